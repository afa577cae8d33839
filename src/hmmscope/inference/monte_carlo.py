"""Means over sampled sequences with 95 % intervals by the bootstrap."""

from dataclasses import dataclass

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.seeds import numpy_generator

NUM_RESAMPLES = 500


@dataclass(frozen=True)
class Estimate:
    """A mean over sampled sequences.

    Attributes:
        mean: the mean.
        low, high: 2.5 % and 97.5 % percentile of the means of resampled sequences.
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


def estimate(values: Float64[Tensor, "sample ..."], seed: int = 0) -> Estimate:
    """Mean and interval of values whose first axis counts independent sequences."""
    count, flat = len(values), values.reshape(len(values), -1)
    drawn = numpy_generator(seed, "bootstrap").multinomial(count, np.full(count, 1 / count), size=NUM_RESAMPLES)
    means = torch.from_numpy(drawn.astype(np.float64)) @ flat / count
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
    shape = values.shape[1:]
    return Estimate(flat.mean(0).reshape(shape), low.reshape(shape), high.reshape(shape), count)
