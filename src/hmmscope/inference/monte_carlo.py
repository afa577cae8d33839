"""Means over sampled sequences with 95 % intervals by the bootstrap, and of few sequences by Student's law."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Tensor
from hmmscope.seeds import numpy_generator

NUM_RESAMPLES = 500
#: Below so many samples intervals are by Student's law; of one sample there is none, and both ends are its value.
FEW = 100


@dataclass(frozen=True)
class MonteCarloEstimate:
    """A mean over sampled sequences.

    Attributes:
        mean: the mean.
        low, high: 2.5 % and 97.5 % percentile of the means of resampled sequences; of fewer than `FEW`, mean ± Student's
            quantile times the standard error.
        num_samples: sequences.
    """

    mean: Float64[Tensor, "..."]
    low: Float64[Tensor, "..."]
    high: Float64[Tensor, "..."]
    num_samples: int

    def __repr__(self) -> str:
        if self.mean.ndim:
            return f"Estimate(shape={tuple(self.mean.shape)}, num_samples={self.num_samples})"
        interval = f"low={float(self.low):.6g}, high={float(self.high):.6g}"
        return f"Estimate(mean={float(self.mean):.6g}, {interval}, num_samples={self.num_samples})"


def estimate(values: Float64[Tensor, "sample ..."], seed: int = 0) -> MonteCarloEstimate:
    """Mean and interval of values whose first axis counts independent sequences."""
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
    """Half the width of Student's 95 % interval of the mean of each column of values (sample, column); 0 of one sample."""
    count = len(values)
    if count < 2:
        return np.zeros(values.shape[1])
    half: NDArray[np.float64] = student_quantile(float(count - 1)) * values.std(0, ddof=1) / np.sqrt(count)
    return half


@lru_cache(maxsize=1024)
def student_quantile(degrees: float) -> float:
    """The 97.5 % quantile of Student's law with any positive number of degrees of freedom, to four digits.

    t = sqrt(degrees) tan(angle), where the angle has a density proportional to cos(angle)^(degrees - 1)
    """
    edges = np.linspace(0, np.pi / 2, 2**15 + 1)
    mass = np.cos((edges[:-1] + edges[1:]) / 2) ** (degrees - 1)
    angle = np.interp(0.95, np.concatenate([[0.0], mass.cumsum() / mass.sum()]), edges)
    return float(np.sqrt(degrees) * np.tan(angle))
