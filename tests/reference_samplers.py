"""Plain reference samplers, which the fast samplers match bit for bit; see `hmmscope.kernels.reference`."""

import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.philox import KIND_COMPONENT, KIND_PATH, philox_reference
from hmmscope.kernels.reference import draw_reference


def sample_components_reference(
    key: tuple[int, int], samples: NDArray[np.int64], table: NDArray[np.uint32]
) -> NDArray[np.int64]:
    """Draw the component (B,) of each sample index (B,)."""
    words = [philox_reference((0, KIND_COMPONENT, s & 0xFFFFFFFF, s >> 32), key)[0] for s in samples.tolist()]
    return np.array([draw_reference(table, word) for word in words], np.int64)


def sample_edges_reference(
    key: tuple[int, int],
    samples: NDArray[np.int64],
    components: NDArray[np.int64],
    starts: NDArray[np.bool_],
    initial: NDArray[np.uint32],
    edges: NDArray[np.uint32],
    num_states: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw observations (B, T) and the states (B, T) after them, for transitions that emit.

    The first word draws a start state where `starts[t]`; the second draws symbol * num_states + next state from the
    edge table (M, S, E').
    """
    observations = np.empty((len(samples), len(starts)), np.int64)
    states = np.empty_like(observations)
    for row, (sample, m) in enumerate(zip(samples.tolist(), components.tolist(), strict=True)):
        state = 0
        for t, restart in enumerate(starts.tolist()):
            words = philox_reference((t // 2, KIND_PATH, sample & 0xFFFFFFFF, sample >> 32), key)
            if restart:
                state = draw_reference(initial[m], words[2 * (t % 2)])
            symbol, state = divmod(draw_reference(edges[m, state], words[2 * (t % 2) + 1]), num_states)
            observations[row, t], states[row, t] = symbol, state
    return observations, states


def permutation_reference(key: tuple[int, int], component: int, row: int, size: int) -> list[int]:
    """Draw a uniform permutation of 0..size-1 by the Fisher-Yates method, from the last place down, with rejection."""
    places = list(range(size))
    taken = 0
    for last in range(size - 1, 0, -1):
        choices = last + 1
        while True:
            block = philox_reference((taken // 4, row, component & 0xFFFFFFFF, component >> 32), key)
            word = block[taken % 4]
            taken += 1
            if word < 2**32 - 2**32 % choices:
                break
        places[last], places[word % choices] = places[word % choices], places[last]
    return places
