"""Means with 95 % intervals by the bootstrap over samples."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.seeds import numpy_generator

NUM_RESAMPLES = 1000


def bootstrap_means(
    values: NDArray[np.float64], *, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean, 2.5 % and 97.5 % percentile (...,) of values (sample, ...), resampling whole samples."""
    values = np.asarray(values, np.float64)
    flat = values.reshape(len(values), -1)
    low, high = np.percentile(_resampled(flat, seed), [2.5, 97.5], axis=0)
    shape = values.shape[1:]
    return flat.mean(0).reshape(shape), low.reshape(shape), high.reshape(shape)


def mean_row(values: NDArray[np.float64]) -> dict[str, Any]:
    """Mean over samples (sample,) with its 95 % bootstrap interval, as columns of a table: value, low, high, samples."""
    mean, low, high = (float(x) for x in bootstrap_means(values))
    return {"value": mean, "low": low, "high": high, "samples": len(values)}


def bootstrap_ratio(
    top: NDArray[np.float64], bottom: NDArray[np.float64], *, seed: int = 0
) -> tuple[float, float, float]:
    """Mean of `top` over mean of `bottom` (sample,), with its 95 % interval; pairs are resampled together."""
    pairs = np.stack([top, bottom], 1)
    resampled = _resampled(pairs, seed)
    low, high = np.percentile(resampled[:, 0] / resampled[:, 1], [2.5, 97.5])
    return float(top.mean() / bottom.mean()), float(low), float(high)


def student_quantile(degrees: float) -> float:
    """The 97.5 % quantile of Student's law with any positive number of degrees of freedom, to four digits.

    t = sqrt(degrees) tan(angle), where the angle has a density proportional to cos(angle)^(degrees - 1)
    """
    edges = np.linspace(0, np.pi / 2, 2**15 + 1)
    mass = np.cos((edges[:-1] + edges[1:]) / 2) ** (degrees - 1)
    angle = np.interp(0.95, np.concatenate([[0.0], mass.cumsum() / mass.sum()]), edges)
    return float(np.sqrt(degrees) * np.tan(angle))


def _resampled(values: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Means of resampled rows (resample, column)."""
    return _resamples(len(values), seed) @ values / len(values)


@lru_cache(maxsize=4)
def _resamples(count: int, seed: int) -> NDArray[np.float64]:
    """How often each of `count` samples is in each resample (resample, sample); the same for all tables of a run."""
    drawn = numpy_generator(seed, "bootstrap").multinomial(count, np.full(count, 1 / count), size=NUM_RESAMPLES)
    weights = drawn.astype(np.float64)
    weights.flags.writeable = False
    return weights
