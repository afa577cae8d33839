"""Means with 95 % intervals over samples."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.inference.monte_carlo import FEW, student_half, student_quantile
from hmmscope.seeds import numpy_generator

NUM_RESAMPLES = 1000


def bootstrap_means(
    values: NDArray[np.float64], *, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Compute means (...,) with 95 % intervals over the samples of values (sample, ...).

    Interval ends are bootstrap percentiles, or Student's t quantiles for fewer than `FEW` samples.
    """
    values = np.asarray(values, np.float64)
    flat = values.reshape(len(values), -1)
    if len(values) < FEW:
        half = student_half(flat)
        low, high = flat.mean(0) - half, flat.mean(0) + half
    else:
        low, high = np.percentile(_resampled(flat, seed), [2.5, 97.5], axis=0)
    shape = values.shape[1:]
    return flat.mean(0).reshape(shape), low.reshape(shape), high.reshape(shape)


def stretch(count: int | None) -> float:
    """Return the factor that widens percentile intervals of n < `FEW` samples (Hesterberg, 2015).

    sqrt(n / (n - 1)) * (Student's quantile) / (normal quantile)
    """
    if count is None or not 2 <= count < FEW:
        return 1.0
    return float(np.sqrt(count / (count - 1)) * student_quantile(float(count - 1)) / student_quantile(1e6))


def mean_row(values: NDArray[np.float64]) -> dict[str, Any]:
    """Return the mean over samples and its 95 % interval as table columns."""
    mean, low, high = (float(x) for x in bootstrap_means(values))
    return {"value": mean, "low": low, "high": high, "samples": len(values)}


def bootstrap_ratio(
    top: NDArray[np.float64], bottom: NDArray[np.float64], *, seed: int = 0
) -> tuple[float, float, float]:
    """Compute the ratio mean(top) / mean(bottom) with its 95 % interval over pairs (top, bottom).

    For fewer than `FEW` pairs, Student's t applies to the residuals top - ratio * bottom.
    """
    if len(top) < FEW:
        ratio = float(top.mean() / bottom.mean())
        half = float(student_half((top - ratio * bottom)[:, None])[0] / abs(bottom.mean()))
        return ratio, ratio - half, ratio + half
    pairs = np.stack([top, bottom], 1)
    resampled = _resampled(pairs, seed)
    low, high = np.percentile(resampled[:, 0] / resampled[:, 1], [2.5, 97.5])
    return float(top.mean() / bottom.mean()), float(low), float(high)


def least_z(count: int, alarm: float) -> float:
    """Return the t-statistic (mean / standard error) that `count` N(0, 1) samples exceed with probability `alarm`."""
    if count < 2:
        return np.inf
    # Student's tail beyond sqrt(degrees) / tan(u) is proportional to the integral of sin^(degrees - 1) from 0 to u
    edges = np.concatenate([[0.0], np.geomspace(1e-15, np.pi / 2, 2**14)])
    mass = np.diff(edges) * np.sin((edges[:-1] + edges[1:]) / 2) ** (count - 2)
    tail = np.concatenate([[0.0], mass.cumsum() / mass.sum() / 2])
    return float(np.sqrt(count - 1) / np.tan(np.interp(alarm, tail, edges)))


def _resampled(values: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    return _resamples(len(values), seed) @ values / len(values)


@lru_cache(maxsize=4)
def _resamples(count: int, seed: int) -> NDArray[np.float64]:
    drawn = numpy_generator(seed, "bootstrap").multinomial(count, np.full(count, 1 / count), size=NUM_RESAMPLES)
    weights = drawn.astype(np.float64)
    weights.flags.writeable = False
    return weights
