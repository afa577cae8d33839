"""Multinomial logistic regression for many layers at once: batched L-BFGS, each layer with its own steps.

Its first inverse Hessian is that of a bound on all Hessians, by one Cholesky factorisation a layer: the features of a
network differ in scale by orders of magnitude, which this takes out of the problem.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from hmmscope.axes import Float, Int64, Tensor

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
Linear = Callable[[Tensor], Tensor]

_HISTORY, _MAX_STEPS, _SHRINKS = 10, 200, 20
_ARMIJO = 1e-4


def fit_logistic(
    features: Float[Tensor, "layer example feature"],
    labels: Int64[Tensor, "example"],
    num_classes: int,
    *,
    ridge: float = 1e-3,
    tolerance: float = 1e-4,
    max_steps: int = _MAX_STEPS,
) -> Float[Tensor, "layer feature_and_one class"]:
    """Weights W (last row: bias) that minimise, for each layer l by itself,

    mean_n [ -log softmax(x_n W_l)[y_n] ]  +  ridge / 2 * |W_l without bias|^2

    Args:
        features: x, without the constant.
        labels: y in [0, num_classes).
        num_classes: number of classes.
        ridge: strength of the penalty; it makes the minimum unique up to a shift of the biases.
        tolerance: stop when every layer's gradient is below it in every entry.
        max_steps: stop after so many steps in any case.
    """
    x = torch.cat([features, features.new_ones(*features.shape[:2], 1)], 2)
    penalty = x.new_full((x.shape[2], 1), ridge)
    penalty[-1] = 0.0
    picked = labels.expand(len(x), -1)[..., None]

    def objective(w: Tensor) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(x @ w, -1)
        value = -log_p.gather(-1, picked).mean((1, 2)) + 0.5 * (penalty * w * w).sum((1, 2))
        residual = log_p.exp_().scatter_add_(-1, picked, -torch.ones_like(picked, dtype=x.dtype))
        return value, x.transpose(1, 2) @ residual / len(labels) + penalty * w

    # No Hessian of a softmax is above half the covariance for each class (Böhning 1992).
    bound = 0.5 * x.transpose(1, 2) @ x / len(labels) + torch.diag(penalty.flatten().clamp_min(1e-6))
    factor = torch.linalg.cholesky_ex(bound).L
    start = x.new_zeros(len(x), x.shape[2], num_classes)
    return _lbfgs(objective, start, lambda g: torch.cholesky_solve(g, factor), tolerance, max_steps)


def predict_logistic(
    features: Float[Tensor, "layer example feature"], weights: Float[Tensor, "layer feature_and_one class"]
) -> Int64[Tensor, "layer example"]:
    """The likeliest class."""
    return (features @ weights[:, :-1] + weights[:, -1:]).argmax(-1)


def _lbfgs(objective: Objective, w: Tensor, precondition: Linear, tolerance: float, max_steps: int) -> Tensor:
    """Minimise each layer's objective; layers share the loop, not their curvature or step lengths."""
    value, gradient = objective(w)
    pairs: list[_Pair] = []
    stalled = torch.zeros_like(value, dtype=torch.bool)
    for _ in range(max_steps):
        left = ~stalled & (gradient.abs().amax((1, 2)) >= tolerance)
        if not left.any():
            break
        direction = -_two_loop(gradient, pairs, precondition)
        slope = _dot(direction, gradient)
        uphill = slope >= 0
        direction = torch.where(uphill[:, None, None], -gradient, direction)
        slope = torch.where(uphill, -_dot(gradient, gradient), slope)
        step, searching = left.to(w), left
        rounding = 4 * torch.finfo(w.dtype).eps * value.abs()
        for _ in range(_SHRINKS):
            change = step[:, None, None] * direction
            trial, trial_gradient = objective(w + change)
            searching = searching & (trial > value + _ARMIJO * step * slope + rounding)
            if not searching.any():
                break
            step = torch.where(searching, step / 2, step)
        else:
            stalled = stalled | searching  # no descent left in this layer at this precision
            step = torch.where(searching, 0.0, step)
            change = step[:, None, None] * direction
            trial, trial_gradient = objective(w + change)
        pairs = [*pairs, _pair(change, trial_gradient - gradient, precondition)][-_HISTORY:]
        w, value, gradient = w + change, trial, trial_gradient
    return w


class _Pair(NamedTuple):
    """A step, what it did to the gradient, and for each layer 1 / curvature and the scale of the inverse Hessian."""

    change: Tensor
    difference: Tensor
    inverse: Tensor
    scale: Tensor


def _pair(change: Tensor, difference: Tensor, precondition: Linear) -> _Pair:
    """Without positive curvature it counts for nothing."""
    curvature = _dot(change, difference)
    bent = curvature > 1e-12 * change.flatten(1).norm(dim=1) * difference.flatten(1).norm(dim=1)
    scale = curvature / _dot(difference, precondition(difference)).clamp_min(1e-30)
    return _Pair(change, difference, torch.where(bent, 1 / curvature, 0.0), torch.where(bent, scale, 1.0))


def _two_loop(gradient: Tensor, pairs: list[_Pair], precondition: Linear) -> Tensor:
    """H gradient, by the two-loop recursion (Nocedal 1980)."""
    weights = []
    for pair in reversed(pairs):
        weights.append(pair.inverse * _dot(pair.change, gradient))
        gradient = gradient - weights[-1][:, None, None] * pair.difference
    found = precondition(gradient)
    if pairs:
        found = pairs[-1].scale[:, None, None] * found
    for pair, weight in zip(pairs, reversed(weights), strict=True):
        found = found + (weight - pair.inverse * _dot(pair.difference, found))[:, None, None] * pair.change
    return found


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a.flatten(1), b.flatten(1))
