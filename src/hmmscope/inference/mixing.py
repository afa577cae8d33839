"""How fast the posterior forgets where the process began."""

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

#: [Limits] Table 1 agrees with its definition minus two steps, at every uncapped entry.
PAPER_OFFSET = 2


@dataclass(frozen=True)
class MixingTime:
    """The mixing time of [Limits].

    Attributes:
        time: smallest t with distance d_t <= threshold, as the definition says; None if there is none up to `max_time`.
            A real number for a linear system.
        max_time: where the search ended.
        distances: d_0, d_1, ... as far as it went, with intervals; None for a linear system.
    """

    time: float | None
    max_time: int
    distances: MonteCarloEstimate | None

    @property
    def paper_indexing(self) -> float | None:
        """`time` - 2, with which the values printed in Table 1 agree; the cap where it is reached, as printed there.

        The paper mentions no offset: it is inferred from its numbers. A linear system has none.
        """
        if self.time is None:
            return float(self.max_time)
        return self.time if self.distances is None else self.time - PAPER_OFFSET


def mixing_time(
    process: Process | str, *, threshold: float = 0.1, num_samples: int = 1000, max_time: int = 120, seed: int = 0
) -> MixingTime:
    """Number of steps after which two observers who disagreed about the start agree, on average.

    d_t = E max_{i,j} TV(P(state | o_1..o_t, start i), P(state | o_1..o_t, start j));  d_0 = 1
    mixing time = min {t : d_t <= threshold}

    The start is the state before the first of t transitions, each of which is followed by one observation; expectations
    are over sequences of the process. The maximum over pairs of laws of the start is attained at a pair of states: the
    posterior is a projective image of the start law, so posteriors of all laws are the convex hull of those of the
    states, and total variation is convex. States that cannot have produced the observations are left out.

    For a linear system it is ln(0.05) / ln(spectral radius of (1 - K B) A) with the steady gain K, exactly.

    Source: [Limits] Eq. (A.2) and Table 1.

    Args:
        process: an HMM, a labelled HMM or a linear system.
        threshold: in (0, 1); not for linear systems.
        num_samples: sequences for the expectation; 1000 give d_t to about 0.005.
        max_time: where to give up; [Limits] stops at 120.
        seed: of the sequences.

    Raises:
        InputError: another kind of process, or a number out of range.

    Cost: O(num_samples * time * S^3).
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
    return MixingTime(
        float(len(distances) - 1) if reached else None, max_time, estimate(torch.stack(distances, 1), seed)
    )


def forgetting_curve(process: Process, num_steps: int, *, num_samples: int = 1000, seed: int = 0) -> MonteCarloEstimate:
    """d_0 .. d_num_steps of `mixing_time`, without a threshold."""
    require_count("num_steps", num_steps, 0)
    return estimate(torch.stack(list(_distances(process, num_samples, num_steps, seed)), 1), seed)


def _distances(process: Process, num_samples: int, num_steps: int, seed: int) -> Iterator[Float64[Tensor, "sample"]]:
    """The largest distance between posteriors of two starts after t = 0, 1, .. observations, for each sequence."""
    process.require_capability(STATES)
    require_count("num_samples", num_samples, 2)
    require_memory("mixing_time", 8 * num_samples * (4 * process.num_states**2 + 2 * num_steps))
    starts = np.arange(num_steps) == 0
    observations = process.sample_paths(np.arange(num_samples), starts, seed, "monte-carlo").observations
    return _vertex_distances(process, observations, torch.from_numpy(starts))


def _vertex_distances(
    process: Process, observations: Int64[Tensor, "sample time"], reset_mask: Tensor
) -> Iterator[Float64[Tensor, "sample"]]:
    num_states = process.num_states
    yield torch.full((len(observations),), float(num_states > 1), dtype=torch.float64)
    for step in forward_steps(process.params.from_each_state(), observations[None], reset_mask):
        posteriors_BIS = step.belief.transpose(0, 1).contiguous()
        possible_BI = posteriors_BIS.any(-1)
        distance_BII = torch.cdist(posteriors_BIS, posteriors_BIS, p=1.0) / 2
        yield (distance_BII * (possible_BI[:, :, None] & possible_BI[:, None, :])).amax((1, 2))
