"""Plain reference samplers, which the fast samplers match bit for bit."""

import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.philox import KIND_PATH, philox_reference


def draw_reference(table: NDArray[np.uint32], word: int) -> int:
    bits = len(table).bit_length() - 1
    column, remainder = word >> (32 - bits), word & ((1 << (32 - bits)) - 1)
    entry = int(table[column])
    return column if remainder < entry >> bits else entry & (len(table) - 1)


def sample_paths_reference(
    key: tuple[int, int],
    samples: NDArray[np.int64],
    components: NDArray[np.int64],
    starts: NDArray[np.bool_],
    initial: NDArray[np.uint32],
    transition: NDArray[np.uint32],
    emission: NDArray[np.uint32],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw observations (B, T) and states (B, T) of the samples with indices `samples` (B,).

    The state comes from the initial table where `starts[t]` is true, else from the previous state's transition row.
    Random block k of a path has four words: for state and symbol at time 2k, then at time 2k + 1.

    The alias tables are initial (component, column), transition and emission (component, state, column).
    """
    observations = np.empty((len(samples), len(starts)), np.int64)
    states = np.empty_like(observations)
    for row, (sample, m) in enumerate(zip(samples.tolist(), components.tolist(), strict=True)):
        state = 0
        for t, restart in enumerate(starts.tolist()):
            words = philox_reference((t // 2, KIND_PATH, sample & 0xFFFFFFFF, sample >> 32), key)
            state_word, symbol_word = words[2 * (t % 2) : 2 * (t % 2) + 2]
            state = draw_reference(initial[m] if restart else transition[m, state], state_word)
            states[row, t] = state
            observations[row, t] = draw_reference(emission[m, state], symbol_word)
    return observations, states
