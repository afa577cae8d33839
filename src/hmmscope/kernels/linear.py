"""Paths of linear systems with given noise, summed in a fixed order: the same bits for any batch."""

import numba
import numpy as np
from numpy.typing import NDArray


def linear_paths(
    initial: NDArray[np.float64],
    transition: NDArray[np.float64],
    output: NDArray[np.float64],
    state_noise: NDArray[np.float64],
    output_noise: NDArray[np.float64],
    starts: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Observations (B, T, m) and states (B, T, n):

    state_t = transition @ state_{t-1} + state_noise_t;  observation_t = output @ state_t + output_noise_t

    with `initial` (n,) as the state before where `starts[t]`.
    """
    observations = np.empty_like(output_noise)
    states = np.empty_like(state_noise)
    _linear(initial, transition, output, state_noise, output_noise, starts, observations, states)
    return observations, states


@numba.njit(cache=True, nogil=True)
def _linear(initial, transition, output, state_noise, output_noise, starts, observations, states):  # type: ignore[no-untyped-def]
    for b in range(states.shape[0]):
        for t in range(states.shape[1]):
            before = initial if starts[t] else states[b, t - 1]
            for i in range(states.shape[2]):
                total = state_noise[b, t, i]
                for j in range(states.shape[2]):
                    total += transition[i, j] * before[j]
                states[b, t, i] = total
            for i in range(observations.shape[2]):
                total = output_noise[b, t, i]
                for j in range(states.shape[2]):
                    total += output[i, j] * states[b, t, j]
                observations[b, t, i] = total
