"""Curves over layers, with intervals over samples."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.analysis.intervals import stretch
from hmmscope.seeds import numpy_generator

NUM_RESAMPLES = 1000

Curves = NDArray[np.float64]


def resampled_curves(by_sample: Curves, *, seed: int = 0) -> Curves:
    """Means over samples (1 + NUM_RESAMPLES, layer) of values (sample, layer): row 0 over all, then over resamples.

    Equal seeds and numbers of samples draw the same, so that curves of the same samples stay paired.
    """
    means: Curves = _resamples(len(by_sample), seed) @ by_sample / len(by_sample)
    return means


@lru_cache(maxsize=8)
def _resamples(count: int, seed: int) -> Curves:
    """How often each of `count` samples is counted (1 + NUM_RESAMPLES, sample)."""
    drawn = numpy_generator(seed, "bootstrap").multinomial(count, np.full(count, 1 / count), size=NUM_RESAMPLES)
    weights: Curves = np.concatenate([np.ones((1, count)), drawn])
    weights.flags.writeable = False
    return weights


def with_interval(draws: Curves, samples: int | None = None) -> dict[str, Any]:
    """Value, 95 % percentile interval and standard error from the rows of `resampled_curves`.

    The interval is stretched to hold the value, which percentiles need not do for a statistic that jumps; and, where few
    `samples` are said, as Student's law is wider than the normal one.
    """
    value = float(draws[0])
    low, high = value + stretch(samples) * (np.percentile(draws[1:], [2.5, 97.5]) - value)
    return {
        "value": value,
        "low": min(float(low), value),
        "high": max(float(high), value),
        "error": float(draws[1:].std(ddof=1)),
    }
