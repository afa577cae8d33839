"""Strategy weights: the weighted mixture of simple predictors that is closest to a model.

    minimise over weights w on the simplex   E KL(q || sum_k w_k p_k)

where q are the model's probabilities and p_k the probabilities of predictor k.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hmmscope.axes import Float64, Tensor
from hmmscope.reprs import Shown
from hmmscope.schema import require

#: Groups of samples for the jackknife.
_PARTS = 20
#: Tolerance of the optimality conditions, and most steps.
_TOLERANCE, _STEPS = 1e-9, 200


@dataclass(frozen=True, repr=False)
class StrategyWeights(Shown):
    """Result of `strategy_weights`.

    Attributes:
        value: weight of each predictor.
        error: jackknife standard error of each weight.
        left: KL divergence of the model from the mixture, nats.
        single_kl: KL divergence of the model from each single predictor, nats.
    """

    value: dict[str, float]
    error: dict[str, float]
    left: float
    single_kl: dict[str, float]


def strategy_weights(
    model: Float64[Tensor, "sample place symbol"], predictors: Mapping[str, Float64[Tensor, "sample place symbol"]]
) -> StrategyWeights:
    """Fit the mixture of predictors that is closest to a model.

    Args:
        model: the model's probabilities (sample, place, symbol), for at least two samples.
        predictors: probabilities of each predictor, by name.

    Raises:
        InputError: there is one sample or no predictor, or an outcome has positive probability under the model only.

    Source: this project; sequential quadratic programming by Kim, Carbonetto, Stephens and Anitescu (2020).
    """
    require(isinstance(predictors, Mapping), "predictors", "must be a mapping of names to probabilities", predictors)
    for name, probs in {"model": model, **predictors}.items():
        require(isinstance(probs, Tensor) and probs.ndim > 0, name, "must be a tensor of probabilities", probs)
    require(len(predictors) >= 1, "predictors", "must have at least one entry", len(predictors))
    require(len(model) >= 2, "model", "must have at least 2 samples", len(model))
    q_BN = model.numpy().reshape(len(model), -1)
    p_KBN = np.stack([probs.numpy().reshape(len(model), -1) for probs in predictors.values()])
    possible = bool((p_KBN.max(0) > 0)[q_BN > 0].all())
    require(
        possible,
        "predictors",
        "must include, for every outcome that the model predicts, a predictor that gives it positive probability",
        "an outcome of probability zero under all predictors",
    )
    start = np.full(len(p_KBN), 1 / len(p_KBN))
    whole = _fit(q_BN, p_KBN, start)
    parts = np.arange(len(q_BN)) % min(_PARTS, len(q_BN))
    left_out = np.stack([_fit(q_BN[parts != g], p_KBN[:, parts != g], whole) for g in range(parts.max() + 1)])
    groups = len(left_out)
    error = np.sqrt((groups - 1) / groups * ((left_out - left_out.mean(0)) ** 2).sum(0))
    places = q_BN.sum()
    entropy = _cross(q_BN, q_BN) / places
    return StrategyWeights(
        value=dict(zip(predictors, whole.tolist(), strict=True)),
        error=dict(zip(predictors, error.tolist(), strict=True)),
        left=float(_cross(q_BN, np.tensordot(whole, p_KBN, 1)) / places - entropy),
        single_kl={
            name: float(_cross(q_BN, p_BN) / places - entropy) for name, p_BN in zip(predictors, p_KBN, strict=True)
        },
    )


def _cross(q: NDArray[np.float64], p: NDArray[np.float64]) -> float:
    kept = q > 0
    with np.errstate(divide="ignore"):
        return float(-(q[kept] * np.log(p[kept])).sum())


def _fit(q: NDArray[np.float64], p: NDArray[np.float64], start: NDArray[np.float64]) -> NDArray[np.float64]:
    kept = q > 0
    q_N, p_KN = q[kept] / q.sum(), p[:, kept]
    w = 0.99 * start + 0.01 / len(start)
    for _ in range(_STEPS):
        mixed = np.maximum(w @ p_KN, 1e-140)  # its square divides
        rise = p_KN @ (q_N / mixed)
        if np.abs(np.where(w > 1e-9, rise - 1, np.maximum(rise - 1, 0))).max() < _TOLERANCE:
            break
        rows_KN = p_KN * (np.sqrt(q_N) / mixed)
        curvature = rows_KN @ rows_KN.T
        ridge = 1e-12 * np.trace(curvature)  # predictors may be alike
        there = _least(curvature + ridge * np.eye(len(w)), 2 * rise - 1 + ridge * w)
        here, step = _value(q_N, p_KN, w), there - w
        size, slope = 1.0, float((1 - rise) @ step)
        while size > 1e-12 and _value(q_N, p_KN, w + size * step) > here + 1e-4 * size * slope + 1e-16:
            size /= 2
        w = w + size * step
    w = np.where(w < 1e-9, 0.0, w)
    return np.asarray(w / w.sum())


def _least(h: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Minimise v·h v / 2 - b·v over v >= 0 by active sets (Lawson and Hanson 1974; Bro and de Jong 1997)."""
    v, free = np.zeros(len(b)), np.zeros(len(b), bool)
    for _ in range(10 * len(b)):
        rise = np.where(free, -np.inf, b - h @ v)
        if rise.max() <= 1e-13 * np.abs(b).max():
            break
        free[rise.argmax()] = True
        while True:
            there = np.zeros(len(b))
            there[free] = np.linalg.solve(h[np.ix_(free, free)], b[free])
            beyond = free & (there <= 0)
            if not beyond.any():
                v = there
                break
            v = v + (v[beyond] / (v[beyond] - there[beyond])).min() * (there - v)
            free &= v > 1e-15
            v[~free] = 0.0
    return v


def _value(q_N: NDArray[np.float64], p_KN: NDArray[np.float64], w: NDArray[np.float64]) -> float:
    mixed = w @ p_KN
    return float(w.sum() - (q_N * np.log(mixed)).sum()) if mixed.min() > 0 else np.inf
