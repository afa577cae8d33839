"""Smoother and expected counts of one HMM in compiled loops."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.inference.compiled import ROWS, TILE_ROWS, Filtered, ScaledBeliefs, filter_underflow_safe
from hmmscope.inference.loop_inputs import PackedSequences, Tables, few, in_blocks, one_by_one, padded, side_by_side
from hmmscope.kernels import many_states, simd_over_sequences, simd_over_states, sparse, underflow_safe


def run_smoother(
    filtered: Filtered, smoothed: NDArray[np.float64], weights: NDArray[np.float64] | None = None
) -> NDArray[np.bool_]:
    """Fill `smoothed` with smoothed posteriors and `weights` with weight_t of `simd_over_sequences.backward`.

    The result is true for sequences of positive probability. Weights of sequences with underflow risk are invalid.
    """
    process, size = filtered.tables, filtered.tables.num_states
    possible: NDArray[np.bool_] = np.all(filtered.terms > -np.inf, axis=1)
    work = filtered.work.part(~np.isin(filtered.work.rows, list(filtered.underflow_risk)))
    if one_by_one(process):
        _smooth_one_by_one(filtered, work, smoothed, weights)
    elif side_by_side(process, work):
        _smooth_side_by_side(filtered, work, smoothed, weights)
    elif few(process, work):
        nothing, transposed = np.empty((0, size)), process.transposed()
        flat = [array.reshape(-1, size) for array in (filtered.beliefs, smoothed)]
        kept = nothing if weights is None else weights.reshape(-1, size)

        def run(part: slice) -> None:
            own = work.part(part)
            simd_over_sequences.backward(
                *(work.width, transposed, process.emission, *own[:3], own.starts, flat[0], filtered.norms.reshape(-1)),
                *(flat[1], kept, nothing[:, 0], np.empty((0, 0)), nothing),
            )

        in_blocks(work, len(work.rows), run)
    else:
        kept = np.empty((0, size)) if weights is None else weights.reshape(-1, size)
        rows, norms = filtered.beliefs.reshape(-1, size), filtered.norms.reshape(-1)
        backward_in_products(process, work, rows, norms, smoothed.reshape(-1, size), kept)
    smoothed[~possible] = 0.0
    for row, beliefs in filtered.underflow_risk.items():
        if possible[row]:
            smooth_underflow_safe(
                filtered, row, beliefs, smoothed[row, : len(beliefs.mantissa)], np.empty((0, size, size))
            )
    return possible


def _smooth_side_by_side(
    filtered: Filtered, work: PackedSequences, smoothed: NDArray[np.float64], weights: NDArray[np.float64] | None
) -> None:
    process, nothing = filtered.tables, np.empty(0)
    states = simd_over_states.states_of(simd_over_states.backward, process.num_states, work.lengths)
    if weights is None:
        flat = process.beside(states, backward=True)
    else:
        flat = padded(replace(process, step=process.transposed()), states)
    kept = nothing if weights is None else weights.reshape(-1)

    def run(part: slice) -> None:
        own = work.part(part)
        simd_over_states.backward(
            *(flat.states, flat.step, flat.emission, *own[:3], own.starts, filtered.beliefs.reshape(-1)),
            *(filtered.norms.reshape(-1), smoothed.reshape(-1), kept, nothing, nothing, nothing),
        )

    in_blocks(work, len(work.rows), run, together=1)


def _smooth_one_by_one(
    filtered: Filtered, work: PackedSequences, smoothed: NDArray[np.float64], weights: NDArray[np.float64] | None
) -> None:
    process = filtered.tables
    nothing = np.empty((0, process.num_states))
    kept = nothing if weights is None else weights.reshape(-1, process.num_states)

    def run(part: slice) -> None:
        own = work.part(part)
        sparse.backward(
            *(
                *process.out_of,
                process.emission,
                *own[:3],
                own.starts,
                filtered.beliefs.reshape(-1, process.num_states),
            ),
            *(filtered.norms.reshape(-1), smoothed.reshape(-1, process.num_states), kept),
            *(nothing[:, 0], nothing, nothing),
        )

    in_blocks(work, len(work.rows), run, together=1)


def backward_in_products(
    process: Tables,
    work: PackedSequences,
    beliefs: NDArray[np.float64],
    norms: NDArray[np.float64],
    smoothed: NDArray[np.float64],
    weights: NDArray[np.float64],
    counts: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]] | None = None,
) -> None:
    size, run_backward = process.num_states, many_states.backward.load(np.float64)
    step, width = many_states.packed(process.transposed()[0]), many_states.width_of(size, np.dtype(np.float64))
    starts = work.starts.astype(np.int64)
    firsts, pairs, visits = (np.empty(0), np.empty((0, width)), np.empty((0, size))) if counts is None else counts
    sums = np.zeros((len(pairs), width))

    def run(part: slice) -> None:
        own, count = work.part(part), len(work.rows[part])
        rows = np.zeros((3, count, width))
        run_backward(
            *(step, process.emission, *own[:3], starts, beliefs, norms, smoothed, weights, firsts, sums, visits),
            *(*rows, np.zeros(max(count, size))),
        )

    if counts is None:
        in_blocks(work, ROWS, run, together=TILE_ROWS)
    else:
        run(slice(None))
        pairs += sums[:, :size]


def smooth_underflow_safe(
    filtered: Filtered, row: int, beliefs: ScaledBeliefs, smoothed: NDArray[np.float64], pairs: NDArray[np.float64]
) -> None:
    process, work = filtered.tables, filtered.work
    time = filtered.beliefs.shape[1]
    symbols = work.symbols[row * time : row * time + len(beliefs.mantissa)]
    entries = process.into, process.out_of, process.states_emit
    underflow_safe.smooth(*entries, symbols, work.starts, *beliefs, smoothed, pairs, smoothed[:0])


def counts_underflow_safe(
    process: Tables,
    symbols: NDArray[np.int64],
    reset_mask: NDArray[np.bool_],
    first: NDArray[np.float64],
    transitions: NDArray[np.float64],
    visits: NDArray[np.float64],
) -> float:
    """Add expected counts of one sequence to `first`, `transitions` and `visits`; return its log-likelihood."""
    size, terms = process.num_states, np.empty(len(symbols))
    beliefs = filter_underflow_safe(process, torch.from_numpy(symbols), reset_mask, terms)
    if terms[-1] > -np.inf:
        smoothed = np.empty((len(symbols), size))
        entries = process.into, process.out_of, True
        underflow_safe.smooth(*entries, symbols, reset_mask, *beliefs, smoothed, np.empty((0, size, size)), transitions)
        first += smoothed[reset_mask[: len(symbols)]].sum(0)
        np.add.at(visits, symbols, smoothed)
    return float(terms.sum())
