"""Paths of linear systems and of generalised HMMs from given noise; a path does not depend on other paths."""

import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.compiling import kernel


def linear_paths(
    initial: NDArray[np.float64],
    transition: NDArray[np.float64],
    output: NDArray[np.float64],
    state_noise: NDArray[np.float64],
    output_noise: NDArray[np.float64],
    starts: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute observations (B, T, m) and states (B, T, n) of a linear system:

    state_t = transition @ state_{t-1} + state_noise_t;  observation_t = output @ state_t + output_noise_t

    The previous state is `initial` (n,) where `starts[t]` is true.
    """
    observations = np.empty_like(output_noise)
    states = np.empty_like(state_noise)
    _linear(initial, transition, output, state_noise, output_noise, starts, observations, states)
    return observations, states


@kernel()
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


def generalised_paths(
    initial: NDArray[np.float64],
    labelled: NDArray[np.float64],
    drawn: NDArray[np.float64],
    starts: NDArray[np.bool_],
    rounding: float,
) -> NDArray[np.int64]:
    """Draw symbols (B, T) of a `GeneralisedHMM`.

    Uniform numbers `drawn` in (0, 1) select symbols by cumulative probability; probabilities up to `rounding` become
    zero.
    """
    symbols = np.empty(drawn.shape, np.int64)
    _generalised(initial, np.ascontiguousarray(labelled), drawn, starts, rounding, symbols)
    return symbols


@kernel()
def _generalised(initial, labelled, drawn, starts, rounding, symbols):  # type: ignore[no-untyped-def]
    size = len(initial)
    vector, following = np.empty(size), np.empty(size)
    sums, law = np.zeros((len(labelled), size)), np.empty(len(labelled))
    for v in range(len(labelled)):
        for i in range(size):
            for j in range(size):
                sums[v, i] += labelled[v, i, j]
    for b in range(symbols.shape[0]):
        for t in range(symbols.shape[1]):
            if starts[t]:
                for i in range(size):
                    vector[i] = initial[i]
            whole = 0.0
            for v in range(len(law)):
                law[v] = 0.0
                for i in range(size):
                    law[v] += vector[i] * sums[v, i]
                if law[v] <= rounding:
                    law[v] = 0.0
                whole += law[v]
            left = drawn[b, t] * whole
            chosen = -1
            for v in range(len(law)):
                if law[v] > 0.0:
                    chosen = v
                    left -= law[v]
                    if left < 0.0:
                        break
            symbols[b, t] = chosen
            total = 0.0
            for j in range(size):
                following[j] = 0.0
                for i in range(size):
                    following[j] += vector[i] * labelled[chosen, i, j]
                total += following[j]
            for j in range(size):
                vector[j] = following[j] / total
