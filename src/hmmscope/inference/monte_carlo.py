"""Means over sampled sequences, with 95 % intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Tensor
from hmmscope.seeds import numpy_generator

NUM_RESAMPLES = 500
#: Fewer samples use Student's t interval; the interval of one sample has zero width.
FEW = 100


@dataclass(frozen=True)
class MonteCarloEstimate:
    """Mean over sampled sequences.

    Attributes:
        mean: Mean over the sequences.
        low, high: 95 % interval, from bootstrap percentiles, or from Student's t for fewer than 100 samples.
        num_samples: Number of sequences.
    """

    mean: Float64[Tensor, "..."]
    low: Float64[Tensor, "..."]
    high: Float64[Tensor, "..."]
    num_samples: int

    def __repr__(self) -> str:
        if self.mean.ndim:
            return f"MonteCarloEstimate(shape={tuple(self.mean.shape)}, num_samples={self.num_samples})"
        interval = f"low={float(self.low):.6g}, high={float(self.high):.6g}"
        return f"MonteCarloEstimate(mean={float(self.mean):.6g}, {interval}, num_samples={self.num_samples})"


def estimate(values: Float64[Tensor, "sample ..."], seed: int = 0) -> MonteCarloEstimate:
    """Compute the mean and its 95 % interval over the first axis."""
    count, flat, shape = len(values), values.reshape(len(values), -1), values.shape[1:]
    if count < FEW:
        mean, half = flat.mean(0), torch.from_numpy(student_half(flat.numpy()))
        return MonteCarloEstimate(
            mean.reshape(shape), (mean - half).reshape(shape), (mean + half).reshape(shape), count
        )
    drawn = numpy_generator(seed, "bootstrap").multinomial(count, np.full(count, 1 / count), size=NUM_RESAMPLES)
    means = torch.from_numpy(drawn.astype(np.float64)) @ flat / count
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
    return MonteCarloEstimate(flat.mean(0).reshape(shape), low.reshape(shape), high.reshape(shape), count)


def student_half(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return half the width of Student's 95 % interval of each column."""
    count = len(values)
    if count < 2:
        return np.zeros(values.shape[1])
    half: NDArray[np.float64] = student_quantile(float(count - 1)) * values.std(0, ddof=1) / np.sqrt(count)
    return half


@lru_cache(maxsize=1024)
def student_quantile(degrees: float) -> float:
    """Compute the 97.5 % quantile of Student's t distribution, to four digits.

    t = sqrt(degrees) tan(angle), where angle has density ∝ cos(angle)^(degrees - 1)
    """
    edges = np.linspace(0, np.pi / 2, 2**15 + 1)
    mass = np.cos((edges[:-1] + edges[1:]) / 2) ** (degrees - 1)
    angle = np.interp(0.95, np.concatenate([[0.0], mass.cumsum() / mass.sum()]), edges)
    return float(np.sqrt(degrees) * np.tan(angle))


class LogMean(NamedTuple):
    """Logarithm of a mean, the variance of this logarithm, and the variance's degrees of freedom."""

    log: float
    variance: float
    degrees: int

    @property
    def error(self) -> float:
        return student_quantile(float(self.degrees)) * math.sqrt(self.variance)


def log_mean(logs: Sequence[float]) -> LogMean | None:
    """Return log(mean(exp(logs))), minus its jackknife bias; None unless at least two of exp(logs) are positive."""
    own, count = np.array(logs), len(logs)
    if count < 2 or own.max() == -np.inf:
        return None
    weights = np.exp(own - own.max())
    if not weights.sum() - weights.max() > 0:
        return None
    without = own.max() + np.log((weights.sum() - weights) / (count - 1))
    log = count * (own.max() + math.log(weights.mean())) - (count - 1) * without.mean()
    return LogMean(float(log), float((count - 1) * without.var()), count - 1)


def log_bridge(chains: NDArray[np.float64], draws: NDArray[np.float64]) -> float:
    """Compute the log mass of a density by bridge sampling, from log(density / proposal) at samples of both.

    Source: Bennett (1976); Meng and Wong (1996).
    """
    share, log = len(chains) / (len(chains) + len(draws)), float(np.median(chains))
    for _ in range(100):
        above = np.mean(1 / (share + (1 - share) * np.exp(np.minimum(log - draws, 700))))
        below = np.mean(1 / (share * np.exp(np.minimum(chains - log, 700)) + 1 - share))
        if not above > 0:
            return -math.inf
        change = math.log(above / below)
        log += change
        if abs(change) < 1e-9:
            break
    return log
