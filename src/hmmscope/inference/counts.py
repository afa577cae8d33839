"""Expected counts in blocks of sequences whose beliefs stay in the caches: the step of expectation of Baum and Welch."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.inference.compiled import careful_counts, forward
from hmmscope.inference.loop_inputs import Sequences, Tables, few, in_blocks, one_by_one, padded, side_by_side
from hmmscope.inference.products import products_backward, products_forward
from hmmscope.kernels import lanes, registers, sparse

#: Bytes of beliefs of a block; 64 times as many for matrix products, which need many rows.
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
    narrow = side_by_side(process, work) or one_by_one(process)
    add = _add_few if few(process, work) else _add_many
    rows = max(
        1, BLOCK_BYTES * (1 if add is _add_few else 64) // (8 * process.num_states * int(work.lengths.max(initial=1)))
    )
    parts: dict[int, Counts] = {}

    def run(part: slice) -> None:
        own = packed.part(part).alone()
        first, transitions, visits = (np.zeros_like(total) for total in counts[:3])
        found = Counts(first, transitions, visits, np.zeros(len(own.rows)))
        doubtful = add(process, own, found)
        for row in np.flatnonzero(doubtful).tolist():
            symbols = own.symbols[own.offsets[row] : own.offsets[row] + own.lengths[row]]
            found.logs[row] = careful_counts(process, symbols, own.starts, *found[:3])
        counts.logs[own.rows] = found.logs
        parts[part.start] = found

    blocks = min(BLOCKS, 1 + len(work.symbols) // LEAST)  # the same sums for any number of threads
    in_blocks(
        packed, rows, run, num_threads, together=1 if narrow else None, shares=None if add is _add_many else blocks
    )
    for begin in sorted(parts):  # the same sums whichever thread was first
        for total, own in zip(counts[:3], parts[begin][:3], strict=True):
            total += own


def _add_few(process: Tables, work: Sequences, found: Counts) -> NDArray[np.bool_]:
    """Counts of a block by the compiled loops; which sequences are in doubt and left out."""
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
    elif sure.any():
        lanes.backward(
            *(work.width, process.transposed(), process.emission, work.symbols, work.offsets[sure], work.lengths[sure]),
            *(work.starts, beliefs, norms, nothing, nothing, found.first, sums, found.visits),
        )
    found.transitions[:] = sums * process.step[0]
    return doubtful


def _add_many(process: Tables, work: Sequences, found: Counts) -> NDArray[np.bool_]:
    """Counts of a block by matrix products, the sum over time as one; which sequences are in doubt and left out."""
    batch, time, size = len(work.rows), int(work.lengths.max()), process.num_states
    inside_BT = np.arange(time) < work.lengths[:, None]
    symbols_BT = np.zeros((batch, time), np.int64)
    symbols_BT[inside_BT] = work.symbols
    beliefs_TBS, smoothed_TBS, weights_TBS = np.empty((3, time, batch, size))
    norms_TB, doubtful = np.empty((time, batch)), np.zeros(batch, np.bool_)
    for t, belief_BS in products_forward(process, torch.from_numpy(symbols_BT), work.starts[:time], norms_TB, doubtful):
        beliefs_TBS[t] = belief_BS
    beliefs_TBS[(~inside_BT | doubtful[:, None]).T] = 0.0
    with np.errstate(divide="ignore"):
        found.logs[:] = np.log(norms_TB.T, where=inside_BT, out=np.zeros((batch, time))).sum(1)
    padded = Sequences(symbols_BT.ravel(), np.arange(batch) * time, work.lengths, np.arange(batch), work.starts)
    products_backward(
        *(process, padded, beliefs_TBS.transpose(1, 0, 2), norms_TB.T),
        *(smoothed_TBS.transpose(1, 0, 2), weights_TBS.transpose(1, 0, 2)),
    )
    weights_TBS[work.starts[:time]] = 0.0
    before, after = (torch.from_numpy(part).flatten(0, 1) for part in (beliefs_TBS[:-1], weights_TBS[1:]))
    found.transitions[:] = (before.T @ after).numpy() * process.step[0]
    found.first[:] = smoothed_TBS[work.starts[:time]].sum((0, 1))
    symbols_N = torch.from_numpy(np.ascontiguousarray(symbols_BT.T)).flatten()
    torch.from_numpy(found.visits).index_add_(0, symbols_N, torch.from_numpy(smoothed_TBS).flatten(0, 1))
    return doubtful
