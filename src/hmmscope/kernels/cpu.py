"""Compiled samplers (numba), bit-identical to `reference`; each thread draws blocks of samples."""

import math

import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.alias import draw
from hmmscope.kernels.compiling import kernel, part
from hmmscope.kernels.philox import KIND_COMPONENT, KIND_PATH, philox
from hmmscope.kernels.threads import PARTS, on_threads

_LANES = 16  # samples per vectorised Philox pass


def sample_components(key: tuple[int, int], samples: NDArray[np.int64], table: NDArray[np.uint32]) -> NDArray[np.int64]:
    components = np.empty(len(samples), np.int64)
    _components(np.uint64(key[0]), np.uint64(key[1]), samples.astype(np.uint64), table, components)
    return components


def sample_paths(
    key: tuple[int, int],
    samples: NDArray[np.int64],
    components: NDArray[np.int64],
    starts: NDArray[np.bool_],
    *tables: NDArray[np.uint32],
    num_states: int = 0,
    dtype: type[np.integer] = np.int64,
    num_threads: int = 1,
) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Draw as in `reference`; `tables` are initial, transition and emission, or initial and edges."""
    fill, given = (_paths, tables) if len(tables) == 3 else (_edges, (*tables, np.uint64(num_states)))
    observations, states = np.empty((2, len(samples), len(starts)), dtype)  # one large array has fewer, larger pages
    pieces = 1 if num_threads <= 1 else PARTS * num_threads
    block = math.ceil(len(samples) / pieces / _LANES) * _LANES
    order = np.argsort(components, kind="stable")  # group samples by component, so that tables stay cached

    def fill_block(start: int) -> None:
        rows = order[start : start + block]
        k0, k1 = np.uint64(key[0]), np.uint64(key[1])
        fill(k0, k1, rows, samples.astype(np.uint64), components, starts, *given, observations, states)

    on_threads(fill_block, range(0, len(samples), block) if block else range(0), num_threads)
    return observations, states


@part(forceinline=True)
def _log2(size):  # type: ignore[no-untyped-def]
    bits = 0
    while 1 << bits < size:
        bits += 1
    return bits


@kernel()
def _components(k0, k1, samples, table, components):  # type: ignore[no-untyped-def]
    bits = _log2(table.shape[0])
    for row in range(samples.shape[0]):
        low, high = samples[row] & np.uint64(0xFFFFFFFF), samples[row] >> np.uint64(32)
        word, _, _, _ = philox(np.uint64(0), np.uint64(KIND_COMPONENT), low, high, k0, k1)
        components[row] = draw(table, word, bits)


@part(forceinline=True)
def _touch(table):  # type: ignore[no-untyped-def]
    seen = np.uint32(0)
    for row in range(table.shape[0]):
        for column in range(0, table.shape[1], 16):
            seen ^= table[row, column]
    return seen


@part(forceinline=True)
def _draw_lanes(table, offsets, words, bits, outcomes, lanes):  # type: ignore[no-untyped-def]
    shift = np.uint64(32) - bits
    columns, units = (np.uint64(1) << bits) - np.uint64(1), (np.uint64(1) << shift) - np.uint64(1)
    for lane in range(lanes):
        column = words[lane] >> shift
        entry = np.uint64(table[offsets[lane] + column])
        outcomes[lane] = column if words[lane] & units < entry >> bits else entry & columns


@kernel()
def _paths(k0, k1, rows, samples, components, starts, initial, transition, emission, observations, states):  # type: ignore[no-untyped-def]
    num_steps, num_states = observations.shape[1], np.uint64(transition.shape[1])
    initial_bits = np.uint64(_log2(initial.shape[1]))
    state_bits, symbol_bits = np.uint64(_log2(transition.shape[2])), np.uint64(_log2(emission.shape[2]))
    flat_initial, flat_transition, flat_emission = initial.ravel(), transition.ravel(), emission.ravel()
    words = (
        np.empty(_LANES, np.uint64),
        np.empty(_LANES, np.uint64),
        np.empty(_LANES, np.uint64),
        np.empty(_LANES, np.uint64),
    )
    low, high = np.zeros(_LANES, np.uint64), np.zeros(_LANES, np.uint64)
    component, row = np.zeros(_LANES, np.uint64), np.zeros(_LANES, np.uint64)
    state, symbol, offset = np.zeros(_LANES, np.uint64), np.zeros(_LANES, np.uint64), np.zeros(_LANES, np.uint64)
    touched, last = np.uint32(0), np.int64(-1)
    for first in range(0, len(rows), _LANES):
        lanes = min(_LANES, len(rows) - first)
        for lane in range(lanes):
            row[lane] = rows[first + lane]
            component[lane] = components[row[lane]]
            low[lane], high[lane] = samples[row[lane]] & np.uint64(0xFFFFFFFF), samples[row[lane]] >> np.uint64(32)
            if components[row[lane]] != last:
                last = components[row[lane]]
                touched ^= _touch(transition[last]) ^ _touch(emission[last])
        for block in range((num_steps + 1) // 2):
            for lane in range(_LANES):
                words[0][lane], words[1][lane], words[2][lane], words[3][lane] = philox(
                    np.uint64(block), np.uint64(KIND_PATH), low[lane], high[lane], k0, k1
                )
            for half in range(2):
                t = 2 * block + half
                if t == num_steps:
                    break
                state_words, symbol_words = words[2 * half], words[2 * half + 1]
                if starts[t]:
                    for lane in range(lanes):
                        offset[lane] = component[lane] << initial_bits
                    _draw_lanes(flat_initial, offset, state_words, initial_bits, state, lanes)
                else:
                    for lane in range(lanes):
                        offset[lane] = (component[lane] * num_states + state[lane]) << state_bits
                    _draw_lanes(flat_transition, offset, state_words, state_bits, state, lanes)
                for lane in range(lanes):
                    offset[lane] = (component[lane] * num_states + state[lane]) << symbol_bits
                _draw_lanes(flat_emission, offset, symbol_words, symbol_bits, symbol, lanes)
                for lane in range(lanes):
                    states[row[lane], t] = state[lane]
                    observations[row[lane], t] = symbol[lane]
    return touched  # prevents removal of the reads


@kernel()
def _edges(k0, k1, rows, samples, components, starts, initial, edges, num_states, observations, states):  # type: ignore[no-untyped-def]
    initial_bits, edge_bits = _log2(initial.shape[1]), _log2(edges.shape[2])
    for row in rows:
        low, high = samples[row] & np.uint64(0xFFFFFFFF), samples[row] >> np.uint64(32)
        m = components[row]
        state = np.uint64(0)
        for block in range((observations.shape[1] + 1) // 2):
            words = philox(np.uint64(block), np.uint64(KIND_PATH), low, high, k0, k1)
            for half in range(2):
                t = 2 * block + half
                if t < observations.shape[1]:
                    if starts[t]:
                        state = draw(initial[m], words[2 * half], initial_bits)
                    outcome = draw(edges[m, state], words[2 * half + 1], edge_bits)
                    state = outcome % num_states
                    observations[row, t] = outcome // num_states
                    states[row, t] = state
