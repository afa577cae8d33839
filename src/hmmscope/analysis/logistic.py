"""Multinomial logistic regression on the activations of many layers at once, by batched L-BFGS."""

from typing import NamedTuple

import torch

from hmmscope.axes import Float, Int64, Tensor

_HISTORY, _MAX_STEPS, _SHRINKS = 10, 200, 20
_ARMIJO = 1e-4
#: Steps before exact Hessian blocks (at least an eighth of the features), and most numbers in these blocks.
_STEPS_BEFORE_BLOCKS, _MAX_BLOCK_NUMBERS = 5, 2**22


def fit_logistic(
    features: Float[Tensor, "layer example feature"],
    labels: Int64[Tensor, " example"],
    num_classes: int,
    *,
    ridge: float = 1e-3,
    tolerance: float = 1e-4,
    max_steps: int = _MAX_STEPS,
) -> Float[Tensor, "layer feature_and_one class"]:
    """Fit ridge-penalised logistic regression for each layer l; the last row of the weights W_l is the bias.

    minimise  mean_n [ -log softmax(x_n W_l)[y_n] ]  +  ridge / 2 * |W_l without bias|^2

    Args:
        features: features x without a constant (layer, example, feature).
        labels: classes y in [0, num_classes) (example,).
        num_classes: number of classes.
        ridge: penalty on the weights.
        tolerance: the fit ends when no gradient entry exceeds this number.
        max_steps: largest number of steps.
    """
    x = torch.cat([features, features.new_ones(*features.shape[:2], 1)], 2)
    penalty = x.new_full((x.shape[2], 1), ridge)
    penalty[-1] = 0.0
    # No Hessian of a softmax is above half the covariance for each class (Böhning 1992).
    bound = 0.5 * x.transpose(1, 2) @ x / len(labels) + torch.diag(penalty.flatten().clamp_min(1e-6))
    problem = _Problem(x, labels[:, None], penalty, torch.linalg.cholesky_ex(bound).L)
    return _lbfgs(problem, x.new_zeros(len(x), x.shape[2], num_classes), tolerance, max_steps)


def predict_logistic(
    features: Float[Tensor, "layer example feature"], weights: Float[Tensor, "layer feature_and_one class"]
) -> Int64[Tensor, "layer example"]:
    return (features @ weights[:, :-1] + weights[:, -1:]).argmax(-1)


class _Problem(NamedTuple):
    x: Tensor
    labels: Tensor
    penalty: Tensor
    factor: Tensor
    blocks: Tensor | None = None

    def only(self, layers: Tensor) -> "_Problem":
        blocks = None if self.blocks is None else self.blocks[layers]
        return self._replace(x=self.x[layers], factor=self.factor[layers], blocks=blocks)

    def with_blocks(self, w: Tensor) -> "_Problem":
        p = torch.softmax(self.x @ w, -1)
        curvature = (p * (1 - p) / len(self.labels)).unbind(-1)
        hessians = torch.stack([(self.x * each[..., None]).mT @ self.x for each in curvature], 1)
        factors, failed = torch.linalg.cholesky_ex(hessians + torch.diag(self.penalty.flatten().clamp_min(1e-6)))
        factors = torch.where((failed > 0)[..., None, None], self.factor[:, None], factors)
        return self._replace(blocks=torch.cholesky_inverse(factors))

    def objective(self, w: Tensor) -> tuple[Tensor, Tensor]:
        picked = self.labels.expand(len(w), -1, -1)
        log_p = torch.log_softmax(self.x @ w, -1)
        value = -log_p.gather(-1, picked).mean((1, 2)) + 0.5 * (self.penalty * w * w).sum((1, 2))
        residual = log_p.exp_().scatter_add_(-1, picked, -torch.ones_like(picked, dtype=w.dtype))
        return value, self.x.transpose(1, 2) @ residual / len(self.labels) + self.penalty * w

    def precondition(self, gradient: Tensor) -> Tensor:
        if self.blocks is None:
            return torch.cholesky_solve(gradient, self.factor)
        # Weights of all classes together stay zero, where they begin and where the minimum is.
        found = (self.blocks @ gradient.mT[..., None])[..., 0].mT
        return found - found.mean(-1, keepdim=True)


def _lbfgs(problem: _Problem, w: Tensor, tolerance: float, max_steps: int) -> Tensor:
    found, layers = w.clone(), torch.arange(len(w), device=w.device)
    value, gradient = problem.objective(w)
    pairs: list[_Pair] = []
    stalled = torch.zeros_like(value, dtype=torch.bool)
    features, classes = w.shape[1:]
    turn = max(_STEPS_BEFORE_BLOCKS, features // 8) if classes * features**2 <= _MAX_BLOCK_NUMBERS else max_steps
    for taken in range(max_steps):
        left = ~stalled & (gradient.abs().amax((1, 2)) >= tolerance)
        if not left.all():
            found[layers[~left]] = w[~left]
            problem, pairs = problem.only(left), [_Pair(*(part[left] for part in pair)) for pair in pairs]
            layers, w, value, gradient = (part[left] for part in (layers, w, value, gradient))
        if not len(layers):
            break
        if taken == turn:
            problem, pairs = problem.with_blocks(w), []
        direction = -_two_loop(gradient, pairs, problem)
        slope = _dot(direction, gradient)
        uphill = slope >= 0
        direction = torch.where(uphill[:, None, None], -gradient, direction)
        slope = torch.where(uphill, -_dot(gradient, gradient), slope)
        step, searching = torch.ones_like(value), torch.ones_like(uphill)
        rounding = 4 * torch.finfo(w.dtype).eps * value.abs()
        for _ in range(_SHRINKS):
            change = step[:, None, None] * direction
            trial, trial_gradient = problem.objective(w + change)
            searching = searching & (trial > value + _ARMIJO * step * slope + rounding)
            if not searching.any():
                break
            step = torch.where(searching, step / 2, step)
        else:
            step = torch.where(searching, 0.0, step)  # no descent left in this layer at this precision
            change = step[:, None, None] * direction
            trial, trial_gradient = problem.objective(w + change)
        stalled = searching
        pairs = [*pairs, _pair(change, trial_gradient - gradient, problem)][-_HISTORY:]
        w, value, gradient = w + change, trial, trial_gradient
    found[layers] = w
    return found


class _Pair(NamedTuple):
    change: Tensor
    difference: Tensor
    inverse: Tensor
    scale: Tensor


def _pair(change: Tensor, difference: Tensor, problem: _Problem) -> _Pair:
    curvature = _dot(change, difference)
    bent = curvature > 1e-12 * change.flatten(1).norm(dim=1) * difference.flatten(1).norm(dim=1)
    scale = curvature / _dot(difference, problem.precondition(difference)).clamp_min(1e-30)
    return _Pair(change, difference, torch.where(bent, 1 / curvature, 0.0), torch.where(bent, scale, 1.0))


def _two_loop(gradient: Tensor, pairs: list[_Pair], problem: _Problem) -> Tensor:
    """Return the approximate inverse Hessian times the gradient (two-loop recursion, Nocedal 1980)."""
    weights = []
    for pair in reversed(pairs):
        weights.append(pair.inverse * _dot(pair.change, gradient))
        gradient = gradient - weights[-1][:, None, None] * pair.difference
    found = problem.precondition(gradient)
    if pairs:
        found = pairs[-1].scale[:, None, None] * found
    for pair, weight in zip(pairs, reversed(weights), strict=True):
        found = found + (weight - pair.inverse * _dot(pair.difference, found))[:, None, None] * pair.change
    return found


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a.flatten(1), b.flatten(1))
