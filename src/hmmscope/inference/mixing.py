"""Mixing times: how fast the belief forgets the initial state."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.inference.forward import forward_steps
from hmmscope.inference.monte_carlo import MonteCarloEstimate, estimate
from hmmscope.processes.capabilities import STATES
from hmmscope.processes.make import as_process
from hmmscope.processes.process import Process
from hmmscope.schema import require, require_count, require_real
from hmmscope.system_info import require_memory

#: Offset of [Limits] Table 1 from its definition, at every uncapped entry.
PAPER_OFFSET = 2


@dataclass(frozen=True)
class MixingTime:
    """Mixing time, as defined in [Limits].

    Attributes:
        time: Smallest t with d_t <= threshold (see `mixing_time`), None if above `max_time`; for linear systems a real
            number.
        max_time: Largest t allowed.
        distances: Distances d_0, d_1, ... with 95 % intervals; None for a linear system.
    """

    time: float | None
    max_time: int
    distances: MonteCarloEstimate | None

    @property
    def paper_indexing(self) -> float | None:
        """Mixing time of [Limits] Table 1: `max_time` if `time` is None, `time` for linear systems, else `time` - 2."""
        if self.time is None:
            return float(self.max_time)
        return self.time if self.distances is None else self.time - PAPER_OFFSET


def mixing_time(
    process: Process | str, *, threshold: float = 0.1, num_samples: int = 1000, max_time: int = 120, seed: int = 0
) -> MixingTime:
    """Compute the number of steps after which beliefs from different initial states agree on average.

    d_t = E max_{i,j} TV(P(state | o_1..o_t, start i), P(state | o_1..o_t, start j));  d_0 = 1
    mixing time = min {t : d_t <= threshold}

    The initial states i and j precede the first transition. Those with P(o_1..o_t | start) = 0 are excluded.
    A linear system with transition A, output B and steady Kalman gain K has the exact value ln(0.05) / ln(spectral
    radius of (1 - K B) A).

    Source: [Limits] Eq. (A.2) and Table 1.

    Args:
        process: HMM, labelled HMM or linear system.
        threshold: Threshold in (0, 1); not used for linear systems.
        num_samples: Number of sampled sequences; with 1000, d_t has an error of about 0.005.
        max_time: Largest t to try; 120 in [Limits].
        seed: Random seed.

    Raises:
        InputError: The process or a number is invalid.
    """
    process = as_process(process)
    require_real("threshold", threshold)
    require(0 < threshold < 1, "threshold", "must be in (0, 1)", threshold)
    require_count("max_time", max_time)
    if STATES not in process.uses_hmm_inference:
        return MixingTime(process.mixing_time(), max_time, None)
    distances = []
    for distance in _distances(process, num_samples, max_time, seed):
        distances.append(distance)
        if float(distance.mean()) <= threshold:
            break
    reached = float(distances[-1].mean()) <= threshold
    time = float(len(distances) - 1) if reached else None
    return MixingTime(time, max_time, estimate(torch.stack(distances, 1), seed))


def forgetting_curve(process: Process, num_steps: int, *, num_samples: int = 1000, seed: int = 0) -> MonteCarloEstimate:
    """Compute the distances d_0 .. d_num_steps of `mixing_time`."""
    require_count("num_steps", num_steps, 0)
    return estimate(torch.stack(list(_distances(process, num_samples, num_steps, seed)), 1), seed)


def _distances(process: Process, num_samples: int, num_steps: int, seed: int) -> Iterator[Float64[Tensor, " sample"]]:
    process.require_capability(STATES)
    require_count("num_samples", num_samples, 2)
    require_memory("mixing_time", 8 * num_samples * (4 * process.num_states**2 + 2 * num_steps))
    starts = np.arange(num_steps) == 0
    observations = process.sample_paths(np.arange(num_samples), starts, seed, "monte-carlo").observations
    return _vertex_distances(process, observations, torch.from_numpy(starts))


def _vertex_distances(
    process: Process, observations: Int64[Tensor, "sample time"], reset_mask: Tensor
) -> Iterator[Float64[Tensor, " sample"]]:
    num_states = process.num_states
    yield torch.full((len(observations),), float(num_states > 1), dtype=torch.float64)
    for step in forward_steps(process.params.from_each_state(), observations[None], reset_mask):
        posteriors_BIS = step.belief.transpose(0, 1).contiguous()
        possible_BI = posteriors_BIS.any(-1)
        distance_BII = torch.cdist(posteriors_BIS, posteriors_BIS, p=1.0) / 2
        yield (distance_BII * (possible_BI[:, :, None] & possible_BI[:, None, :])).amax((1, 2))
