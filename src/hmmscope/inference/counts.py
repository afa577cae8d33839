"""Expected counts (the E-step of Baum-Welch), computed in blocks that fit the CPU caches.

Long sequences are processed in pieces, so memory does not grow with the length.
"""

from collections.abc import Iterable
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmmscope.inference.compiled import ROWS, TILE_ROWS, Outputs, forward
from hmmscope.inference.compiled_backward import backward_in_products, counts_underflow_safe
from hmmscope.inference.loop_inputs import PackedSequences, Tables, few, in_blocks, one_by_one, padded, side_by_side
from hmmscope.inference.weights import weighted_emissions, weighted_moves
from hmmscope.kernels import simd_over_sequences, simd_over_states, sparse
from hmmscope.system_info import require_memory

#: Bytes of beliefs per block, up to 64 times as many for matrix products. Block sums are added, so this value affects the
#: last digits.
BLOCK_BYTES = 2**20
#: Bytes of beliefs above which a block is split, and bytes per piece.
MOST_BYTES, PIECE_BYTES = 2**27, 2**23

#: Largest number of blocks in the compiled loops, and the least number of observations per block.
BLOCKS, LEAST = 16, 2**13


class Counts(NamedTuple):
    """Accumulated expected counts; emission counts have axes (symbol, state)."""

    initial: NDArray[np.float64]
    transitions: NDArray[np.float64]
    emissions: NDArray[np.float64]
    logs: NDArray[np.float64]


def add_counts(process: Tables, work: PackedSequences, counts: Counts, num_threads: int | None = None) -> None:
    narrow, many = side_by_side(process, work) or one_by_one(process), not few(process, work)
    each = 8 * process.num_states * int(work.lengths.max(initial=1))
    rows = min(ROWS, max(TILE_ROWS, 64 * BLOCK_BYTES // each)) if many else max(1, BLOCK_BYTES // each)
    summed = _InOrder(counts)

    def run(part: slice) -> None:
        own = work if part == slice(0, len(work.rows)) else work.part(part)
        first, transitions, visits = (np.zeros_like(total) for total in counts[:3])
        found = Counts(first, transitions, visits, np.zeros(len(own.rows)))
        doubtful = _add(process, own, found)
        for row in np.flatnonzero(doubtful).tolist():
            require_memory(
                "expected counts", 32 * process.num_states * int(own.lengths[row]), "cut long sequences into pieces"
            )
            symbols = own.part(slice(row, row + 1)).packed().symbols
            each = found[:3] if own.weights is None else [np.zeros_like(total) for total in counts[:3]]
            found.logs[row] = counts_underflow_safe(process, symbols, own.starts, *each)
            if own.weights is not None:
                _add_scaled(found, each, own.weights[row])
        counts.logs[own.rows] = found.logs
        summed.add(part, found)

    blocks = min(BLOCKS, 1 + len(work.symbols) // LEAST)  # independent of the number of threads
    in_blocks(work, rows, run, num_threads, together=1 if narrow else TILE_ROWS if many else None, shares=blocks)


class _InOrder:
    def __init__(self, totals: Counts) -> None:
        self._totals, self._lock = totals, Lock()
        self._waiting: dict[int, tuple[int, Counts]] = {}
        self._next = 0

    def add(self, part: slice, found: Counts) -> None:
        with self._lock:
            self._waiting[part.start] = part.stop, found
            while self._next in self._waiting:
                self._next, own = self._waiting.pop(self._next)
                for total, one in zip(self._totals[:3], own[:3], strict=True):
                    total += one


def _piece_length(size: int, num_rows: int) -> int:
    return max(1, PIECE_BYTES * (1 if num_rows == 1 else 4) // (8 * size * num_rows))


def _add(process: Tables, work: PackedSequences, found: Counts) -> NDArray[np.bool_]:
    size, total = process.num_states, int(work.lengths.sum())
    length = _piece_length(size, len(work.rows))
    if 8 * size * total > MOST_BYTES and len(process.emission) < length:
        return _add_in_pieces(process, work, found, length) if work.weights is None else _add_each(process, work, found)
    own, doubtful = work.packed(), np.zeros(len(work.rows), np.bool_)
    beliefs, norms = np.empty((total, size)), np.empty(total)
    forward(process, own, doubtful, Outputs(beliefs, norms, totals=found.logs))
    sure = own.part(~doubtful) if doubtful.any() else own
    if work.weights is None:
        sums = np.zeros((size, size))
        _backward(process, sure, beliefs, norms, np.empty((0, size)), (found.initial, sums, found.emissions))
        found.transitions[:] = sums * process.step[0]
    else:
        smoothed, backward = np.zeros((2, total, size))
        _backward(process, sure, beliefs, norms, backward, None, smoothed)
        emitted = weighted_emissions(sure, smoothed, len(found.emissions))
        _add_scaled(found, (*weighted_moves(sure, beliefs, backward, smoothed), emitted))
        found.transitions[:] *= process.step[0]
    return doubtful


def _add_each(process: Tables, work: PackedSequences, found: Counts) -> NDArray[np.bool_]:
    assert work.weights is not None
    doubtful = np.zeros(len(work.rows), np.bool_)
    for row, weight in enumerate(work.weights.tolist()):
        initial, transitions, emissions = map(np.zeros_like, found[:3])
        own = Counts(initial, transitions, emissions, found.logs[row : row + 1])
        doubtful[row] = _add(process, work.part(slice(row, row + 1))._replace(weights=None), own)[0]
        if not doubtful[row]:
            _add_scaled(found, own[:3], weight)
    return doubtful


def _add_scaled(found: Counts, parts: Iterable[NDArray[np.float64]], weight: float = 1.0) -> None:
    for total, part in zip(found[:3], parts, strict=True):
        total += weight * part


def _backward(
    process: Tables,
    work: PackedSequences,
    beliefs: NDArray[np.float64],
    norms: NDArray[np.float64],
    weights: NDArray[np.float64],
    counts: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]] | None,
    smoothed: NDArray[np.float64] | None = None,
) -> None:
    nothing = np.empty((0, process.num_states))
    first, sums, visits = (nothing[:, 0], np.empty((0, 0)), nothing) if counts is None else counts
    kept = nothing if smoothed is None else smoothed
    if not len(work.rows):
        return
    if one_by_one(process):
        sparse.backward(
            *(*process.out_of, process.emission, *work[:3], work.starts),
            *(beliefs, norms, kept, weights, first, sums, visits),
        )
    elif side_by_side(process, work):
        states = simd_over_states.states_of(simd_over_states.backward, process.num_states, work.lengths)
        flat = padded(Tables(process.first, process.transposed(), process.emission), states)
        simd_over_states.backward(
            *(flat.states, flat.step, flat.emission, *work[:3], work.starts, beliefs.ravel(), norms),
            *(kept.ravel(), weights.ravel(), first, sums.ravel(), visits.ravel()),
        )
    elif not few(process, work):
        backward_in_products(process, work, beliefs, norms, kept, weights, counts=counts)
    else:
        simd_over_sequences.backward(
            *(work.width, process.transposed(), process.emission, *work[:3], work.starts),
            *(beliefs, norms, kept, weights, first, sums, visits),
        )


class _Piece(NamedTuple):
    work: PackedSequences
    counted: NDArray[np.int64]
    seen: NDArray[np.int64]
    further: int
    begun: bool

    @classmethod
    def of(cls, work: PackedSequences, begin: int, length: int, num_symbols: int) -> "_Piece":
        count = int(np.count_nonzero(work.lengths > begin))
        restart = bool(work.starts[begin + length : begin + length + 1].any())
        further = 0 if restart else int(np.count_nonzero(work.lengths > begin + length))
        counted = np.minimum(work.lengths[:count] - begin, length)
        lengths = counted + (np.arange(count) < further)
        starts = work.starts[begin : begin + length + 1]
        chosen = PackedSequences(work.symbols, work.offsets[:count] + begin, lengths, np.arange(count), starts)
        own = chosen.packed()
        symbols = own.symbols.copy()
        seen, begun = symbols[own.offsets], bool(work.starts[begin])
        if not begun:
            symbols[own.offsets] = num_symbols + np.arange(count)
        symbols[(own.offsets + length)[:further]] = num_symbols + count + np.arange(further)
        return cls(own._replace(symbols=symbols), counted, seen, further, begun)


def _add_in_pieces(process: Tables, work: PackedSequences, found: Counts, length: int) -> NDArray[np.bool_]:
    (num_symbols, size), num_rows = process.emission.shape, len(work.rows)
    begins = range(0, int(work.lengths.max()), length)
    opening, doubtful = np.zeros((len(begins), num_rows, size)), np.zeros(num_rows, np.bool_)
    for number, begin in enumerate(begins[:-1]):  # the belief at the start of each piece
        piece = _Piece.of(work, begin, length, num_symbols)
        beliefs, _, _ = _forward(process, piece, opening[number], doubtful)
        ends = (piece.work.offsets + piece.counted - 1)[: piece.further]
        opening[number + 1, : piece.further] = beliefs[ends] @ process.step[0]
    sums = np.zeros((size, size))
    later, carried = np.empty((0, size)), np.empty((0, size))
    for number in reversed(range(len(begins))):
        piece = _Piece.of(work, begins[number], length, num_symbols)
        beliefs, norms, totals = _forward(process, piece, opening[number], doubtful)
        own, count, further = piece.work, len(piece.counted), piece.further
        found.logs[:count] += totals
        behind = (own.offsets + length)[:further]
        beliefs[behind], norms[behind] = later[:further], 1.0
        emission = np.concatenate([process.emission, process.emission[piece.seen], carried[:further]])
        visits, weights = np.zeros_like(emission), np.zeros_like(beliefs)
        starts = own.starts.copy()
        starts[0] = piece.begun
        told = replace(process, first=np.zeros_like(emission), emission=emission)
        sure = own._replace(starts=starts).part(~doubtful[:count])
        _backward(told, sure, beliefs, norms, weights, (found.initial, sums, visits))
        found.emissions[:num_symbols] += visits[:num_symbols]
        np.add.at(found.emissions, piece.seen, visits[num_symbols : num_symbols + count])
        later, carried = beliefs[own.offsets], weights[own.offsets]
    found.transitions[:] = sums * process.step[0]
    return doubtful


def _forward(
    process: Tables, piece: _Piece, opening: NDArray[np.float64], doubtful: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    own, count, size = piece.work, len(piece.counted), process.num_states
    beliefs, norms, totals = np.empty((len(own.symbols), size)), np.empty(len(own.symbols)), np.zeros(count)
    likelihood = process.emission[piece.seen]
    first = np.concatenate([process.first, opening[:count] * likelihood, np.zeros((piece.further, size))])
    emission = np.concatenate([process.emission, likelihood, np.ones((piece.further, size))])
    starts, doubts = own.starts.copy(), np.zeros(count, np.bool_)
    starts[0] = True
    told = replace(process, first=first, emission=emission)
    work = own._replace(lengths=piece.counted, starts=starts)
    forward(told, work, doubts, Outputs(beliefs, norms, totals=totals))
    doubtful[:count] |= doubts
    return beliefs, norms, totals
