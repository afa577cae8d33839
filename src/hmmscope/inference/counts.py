"""Expected counts in blocks of sequences whose beliefs stay in the caches: the step of expectation of Baum and Welch."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmmscope.inference.compiled import ROWS, TILE_ROWS, forward
from hmmscope.inference.compiled_backward import backward_in_products, careful_counts
from hmmscope.inference.loop_inputs import Sequences, Tables, few, in_blocks, one_by_one, padded, side_by_side
from hmmscope.kernels import lanes, registers, sparse

#: Bytes of beliefs of a block; up to 64 times as many for products, which need some rows.
BLOCK_BYTES = 2**20

#: The compiled loops have so many blocks, if there are as many sequences and none of fewer observations than `LEAST`.
BLOCKS, LEAST = 16, 2**13


class Counts(NamedTuple):
    """Sums to be added to; as `hmmscope.inference.smoothing.ExpectedCounts`, visits by symbol first."""

    first: NDArray[np.float64]
    transitions: NDArray[np.float64]
    visits: NDArray[np.float64]
    logs: NDArray[np.float64]


def add_counts(process: Tables, work: Sequences, counts: Counts, num_threads: int | None = None) -> None:
    """Add the counts of sequences whose states emit, and write their log-likelihoods; garbage where one is impossible."""
    packed = work.packed()
    narrow, many = side_by_side(process, work) or one_by_one(process), not few(process, work)
    each = 8 * process.num_states * int(work.lengths.max(initial=1))
    rows = min(ROWS, max(TILE_ROWS, 64 * BLOCK_BYTES // each)) if many else max(1, BLOCK_BYTES // each)
    parts: dict[int, Counts] = {}

    def run(part: slice) -> None:
        own = packed.part(part).alone()
        first, transitions, visits = (np.zeros_like(total) for total in counts[:3])
        found = Counts(first, transitions, visits, np.zeros(len(own.rows)))
        doubtful = _add(process, own, found)
        for row in np.flatnonzero(doubtful).tolist():
            symbols = own.symbols[own.offsets[row] : own.offsets[row] + own.lengths[row]]
            found.logs[row] = careful_counts(process, symbols, own.starts, *found[:3])
        counts.logs[own.rows] = found.logs
        parts[part.start] = found

    blocks = min(BLOCKS, 1 + len(work.symbols) // LEAST)  # the same sums for any number of threads
    in_blocks(packed, rows, run, num_threads, together=1 if narrow else TILE_ROWS if many else None, shares=blocks)
    for begin in sorted(parts):  # the same sums whichever thread was first
        for total, own in zip(counts[:3], parts[begin][:3], strict=True):
            total += own


def _add(process: Tables, work: Sequences, found: Counts) -> NDArray[np.bool_]:
    """Counts of a block; which sequences are in doubt and left out."""
    size = process.num_states
    beliefs, norms = np.empty((len(work.symbols), size)), np.empty(len(work.symbols))
    doubtful = np.zeros(len(work.rows), np.bool_)
    forward(process, work, doubtful, beliefs=beliefs, norms=norms, totals=found.logs)
    sums, nothing = np.zeros((size, size)), np.empty((0, size))
    sure = ~doubtful
    if sure.any() and one_by_one(process):
        sparse.backward(
            *(*process.out_of, process.emission, work.symbols, work.offsets[sure], work.lengths[sure], work.starts),
            *(beliefs, norms, nothing, nothing, found.first, sums, found.visits),
        )
    elif sure.any() and side_by_side(process, work):
        flat = padded(replace(process, step=process.transposed()))
        registers.backward(
            *(flat.states, flat.step, flat.emission, work.symbols, work.offsets[sure], work.lengths[sure], work.starts),
            *(beliefs.ravel(), norms, nothing[:, 0], nothing[:, 0], found.first, sums.ravel(), found.visits.ravel()),
        )
    elif sure.any() and not few(process, work):
        visited = found.first, sums, found.visits
        backward_in_products(process, work.part(sure), beliefs, norms, nothing, nothing, counts=visited)
    elif sure.any():
        lanes.backward(
            *(work.width, process.transposed(), process.emission, work.symbols, work.offsets[sure], work.lengths[sure]),
            *(work.starts, beliefs, norms, nothing, nothing, found.first, sums, found.visits),
        )
    found.transitions[:] = sums * process.step[0]
    return doubtful
