"""A compiled forward filter that keeps every belief, for few states: what a training on beliefs compares with."""

import numba
import numpy as np
from numpy.typing import NDArray


def few_state_beliefs(
    first_VS: NDArray[np.float64],
    step_VSS: NDArray[np.float64],
    observations_BT: NDArray[np.integer],
    starts_T: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Beliefs (B, T, S), each with sum one, and which sequences have a sum too small to trust (B,).

    belief_t ∝ first[o_t] where a sequence starts, else belief_{t-1} @ step[o_t]
    """
    beliefs = np.empty((*observations_BT.shape, first_VS.shape[1]))
    doubtful = np.zeros(len(observations_BT), np.bool_)
    _fill(first_VS, step_VSS, observations_BT, starts_T, beliefs, doubtful)
    return beliefs, doubtful


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _fill(first, step, observations, starts, beliefs, doubtful):  # type: ignore[no-untyped-def]
    num_states = first.shape[1]
    for b in range(observations.shape[0]):
        for t in range(observations.shape[1]):
            seen, after = observations[b, t], beliefs[b, t]
            if starts[t]:
                after[:] = first[seen]
            else:
                before, matrix = beliefs[b, t - 1], step[seen]
                after[:] = 0.0
                for i in range(num_states):
                    weight, row = before[i], matrix[i]
                    for j in range(num_states):
                        after[j] += weight * row[j]
            total = 0.0
            for j in range(num_states):
                total += after[j]
            if total < 1e-200:
                doubtful[b] = True
                after[:] = 0.0
            else:
                for j in range(num_states):
                    after[j] /= total
