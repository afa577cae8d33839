"""Multinomial logistic regression for many layers at once: batched L-BFGS, each layer with its own steps."""

import torch

from hmmscope.axes import Float, Int64, Tensor

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
    hot_NC = torch.nn.functional.one_hot(labels, num_classes).to(x.dtype)

    def objective(w: Tensor) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(x @ w, -1)
        value = -(log_p * hot_NC).sum(-1).mean(1) + 0.5 * (penalty * w * w).sum((1, 2))
        gradient = x.transpose(1, 2) @ (log_p.exp() - hot_NC) / len(labels) + penalty * w
        return value, gradient

    return _lbfgs(objective, x.new_zeros(len(x), x.shape[2], num_classes), tolerance, max_steps)


def predict_logistic(
    features: Float[Tensor, "layer example feature"], weights: Float[Tensor, "layer feature_and_one class"]
) -> Int64[Tensor, "layer example"]:
    """The likeliest class."""
    return (features @ weights[:, :-1] + weights[:, -1:]).argmax(-1)


def _lbfgs(objective, w: Tensor, tolerance: float, max_steps: int) -> Tensor:  # type: ignore[no-untyped-def]
    """Minimise each layer's objective; layers share the loop, not their curvature or step lengths."""
    value, gradient = objective(w)
    pairs: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(max_steps):
        if gradient.abs().max() < tolerance:
            break
        direction = _two_loop(gradient, pairs)
        slope = _dot(direction, gradient)
        uphill = slope >= 0
        direction = torch.where(uphill[:, None, None], -gradient, direction)
        slope = torch.where(uphill, -_dot(gradient, gradient), slope)
        first = (1 / gradient.flatten(1).norm(dim=1)).clamp_max(1.0) if not pairs else torch.ones_like(value)
        step, searching = first.clone(), torch.ones_like(value, dtype=torch.bool)
        for _ in range(_SHRINKS):
            trial, trial_gradient = objective(w + step[:, None, None] * direction)
            searching = trial > value + _ARMIJO * step * slope
            if not searching.any():
                break
            step = torch.where(searching, step / 2, step)
        step = torch.where(searching, torch.zeros_like(step), step)  # no descent left in this layer at this precision
        if not (step > 0).any():
            break
        change = step[:, None, None] * direction
        trial, trial_gradient = objective(w + change)
        difference = trial_gradient - gradient
        curvature = _dot(change, difference)
        pairs = [*pairs, (change, difference, curvature)][-_HISTORY:]
        w, value, gradient = w + change, trial, trial_gradient
    return w


def _two_loop(gradient: Tensor, pairs: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """-H gradient, by the two-loop recursion (Nocedal 1980); pairs without positive curvature count for nothing."""
    direction = -gradient
    weights = []
    for change, difference, curvature in reversed(pairs):
        inverse = torch.where(curvature > 1e-12, 1 / curvature.clamp_min(1e-12), 0.0)
        weight = inverse * _dot(change, direction)
        weights.append((inverse, weight))
        direction = direction - weight[:, None, None] * difference
    if pairs:
        change, difference, curvature = pairs[-1]
        scale = torch.where(curvature > 1e-12, curvature / _dot(difference, difference).clamp_min(1e-30), 1.0)
        direction = direction * scale[:, None, None]
    for (change, difference, _), (inverse, weight) in zip(pairs, reversed(weights), strict=True):
        direction = direction + (weight - inverse * _dot(difference, direction))[:, None, None] * change
    return direction


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((1, 2))
