"""Mean values by layer, with 95 % intervals over samples."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.analysis.intervals import stretch
from hmmscope.seeds import numpy_generator

NUM_RESAMPLES = 1000

Curves = NDArray[np.float64]


def resampled_curves(by_sample: Curves, *, seed: int = 0) -> Curves:
    """Return means of values (sample, layer) over all samples (row 0) and over bootstrap resamples (further rows).

    Equal seeds and sample counts give the same resamples, so that curves of two models can be subtracted.
    """
    means: Curves = _resamples(len(by_sample), seed) @ by_sample / len(by_sample)
    return means


@lru_cache(maxsize=8)
def _resamples(count: int, seed: int) -> Curves:
    drawn = numpy_generator(seed, "bootstrap").multinomial(count, np.full(count, 1 / count), size=NUM_RESAMPLES)
    weights: Curves = np.concatenate([np.ones((1, count)), drawn])
    weights.flags.writeable = False
    return weights


def with_interval(draws: Curves, samples: int | None = None) -> dict[str, Any]:
    """Return a mean with its 95 % percentile interval and standard error, from a column of `resampled_curves`.

    The interval includes the value; for few `samples` it is widened by the factor `stretch`.
    """
    value = float(draws[0])
    low, high = value + stretch(samples) * (np.percentile(draws[1:], [2.5, 97.5]) - value)
    return {
        "value": value,
        "low": min(float(low), value),
        "high": max(float(high), value),
        "error": float(draws[1:].std(ddof=1)),
    }
