"""Inputs of the compiled loops: parameter tables of an HMM and packed sequences."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Bool, Int64, Tensor
from hmmscope.kernels import simd_over_sequences, simd_over_states
from hmmscope.kernels.threads import PARTS, on_threads
from hmmscope.kernels.vectors import row_length
from hmmscope.processes.params import HMMParams
from hmmscope.reprs import Shown

#: Most states for which compiled loops beat matrix products.
FEW_STATES = 32

#: The same limit if only likelihoods are needed, and the least number of sequences to which it applies.
FEW_FOR_SUMS, SEQUENCES_FOR_SUMS = 16, 6

#: SIMD over states: most states, and most sequences for which it replaces matrix products.
most_side_by_side = simd_over_states.MOST
FEW_BESIDE = 2

#: Most sequences for which the edge-emission filter runs row by row.
FEW_SEQUENCES = 4

#: Largest density of positive transitions for the sparse loops.
sparse_share = 1 / 16

#: Table entries that fit the L1 cache with the working data.
CACHED = 2048


_kept: "WeakKeyDictionary[HMMParams, Tables]" = WeakKeyDictionary()


class SparseEntries(NamedTuple):
    """Positive entries of a transition matrix, sorted by target or source state; see `hmmscope.kernels.sparse`."""

    begins: NDArray[np.uint64]
    others: NDArray[np.uint64]
    weights: NDArray[np.float64]


#: Placeholder for dense loops.
NO_ENTRIES = SparseEntries(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0))


def _entries(ordered: NDArray[np.floating]) -> SparseEntries:
    matrix, row, other = np.nonzero(ordered)
    count = len(ordered) * ordered.shape[1]
    begins = np.concatenate([[0], np.bincount(matrix * ordered.shape[1] + row, minlength=count).cumsum()])
    weights = ordered[matrix, row, other].astype(np.float64)
    return SparseEntries(begins.astype(np.uint64), other.astype(np.uint64), weights)


@dataclass(frozen=True, eq=False, repr=False)
class Tables(Shown):
    """Parameter tables of one HMM for the compiled loops."""

    first: NDArray[np.floating]
    step: NDArray[np.floating]
    emission: NDArray[np.floating]

    def __iter__(self) -> Iterator[NDArray[np.floating]]:
        return iter((self.first, self.step, self.emission))

    @property
    def num_states(self) -> int:
        return self.first.shape[1]

    @property
    def states_emit(self) -> bool:
        return len(self.emission) > 0

    def transposed(self) -> NDArray[np.floating]:
        return np.ascontiguousarray(self.step.transpose(0, 2, 1))

    @cached_property
    def into(self) -> SparseEntries:
        """Positive transition probabilities, sorted by target state."""
        return _entries(self.step.transpose(0, 2, 1))

    @cached_property
    def out_of(self) -> SparseEntries:
        """Positive transition probabilities, sorted by source state."""
        return _entries(self.step)

    @cached_property
    def _lows(self) -> list[np.floating]:
        return [part.min(initial=1.0) for part in self]

    @cached_property
    def signed(self) -> bool:
        return not all(low >= 0 for low in self._lows)

    @cached_property
    def least(self) -> float:
        """Smallest positive entry of sqrt(initial), `step` and `emission`; 1 if an entry is negative."""
        if self.signed:
            return 1.0
        pairs = zip(self, self._lows, strict=True)
        first, *rest = (low if low > 0 else part[part > 0].min(initial=1.0) for part, low in pairs)
        return min(map(float, (np.sqrt(first), *rest)))

    @cached_property
    def _padded(self) -> "dict[tuple[type, bool], Padded]":
        return {}

    def beside(self, states: tuple[int, ...], *, backward: bool = False) -> "Padded":
        key = type(states), backward
        if key not in self._padded:
            own = with_emissions(self)
            self._padded[key] = padded(replace(own, step=own.transposed()) if backward else own, states)
        return self._padded[key]

    @cached_property
    def positive_share(self) -> float:
        return float(np.count_nonzero(self.step) / max(1, self.step.size))


class Padded(NamedTuple):
    """Flat parameter tables, padded to the SIMD vector width."""

    states: tuple[int, ...]
    first: NDArray[np.float64]
    step: NDArray[np.float64]
    emission: NDArray[np.float64]


def padded(process: Tables, states: tuple[int, ...], *, filling: float = 0.0) -> Padded:
    """Pad tables to the SIMD vector width, in float64."""
    size = process.num_states
    wide = []
    for part in process:
        own = np.empty((part.size // size, row_length(states)))
        own[:, :size], own[:, size:] = part.reshape(-1, size), filling
        wide.append(own.reshape(-1))
    return Padded(states, *wide)


def with_emissions(process: Tables) -> Tables:
    num_symbols, size = process.first.shape
    if not process.states_emit or num_symbols * size**2 > CACHED:
        return process
    return Tables(process.first, process.step * process.emission[:, None], process.emission[:0])


def tables(law: HMMParams, component: int = 0, dtype: type[np.floating] = np.float64) -> Tables:
    single = component == 0 and len(law.initial_MS) == 1 and dtype is np.float64
    found = _kept.get(law) if single else None
    if found is None:
        found = Tables(*(np.ascontiguousarray(part.numpy(), dtype) for part in law.tables(component)))
        if single and sum(part.size for part in found) <= CACHED:
            _kept[law] = found
    return found


class StateSets(NamedTuple):
    """Pairs of a symbol and its allowed states.

    Attributes:
        symbols: Symbol of each pair (U,); V means missing.
        allowed: Mask of the states of each pair (U, S).
    """

    symbols: NDArray[np.int64]
    allowed: NDArray[np.bool_]

    def by_symbol(self, visits: NDArray[np.float64], num_symbols: int) -> NDArray[np.float64]:
        """Sum counts (U, S) by symbol into (V, S), without missing observations."""
        found = np.zeros((num_symbols + 1, visits.shape[1]))
        np.add.at(found, self.symbols, visits)
        return found[:num_symbols]


class PackedSequences(NamedTuple):
    """Sequences in one flat array, longest first.

    Attributes:
        symbols: Symbols of all sequences (N,).
        offsets: Index of each sequence's first symbol (n,).
        lengths: Length of each sequence, at least 1 (n,).
        rows: Index of each sequence in its batch (n,).
        starts: Mask of the times at which a sequence is reset (T,), see `reset_mask` of `filter_beliefs`.
        weights: Weight of each sequence in sums (n,); None if all are 1.
        sets: None, or pairs (symbol, allowed states); `symbols` then contains indices of these pairs.
    """

    symbols: NDArray[Any]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    rows: NDArray[np.int64]
    starts: NDArray[np.bool_]
    weights: NDArray[np.float64] | None = None
    sets: StateSets | None = None

    @property
    def width(self) -> tuple[int, ...]:
        return (
            simd_over_sequences.NARROW
            if len(self.rows) <= len(simd_over_sequences.NARROW)
            else simd_over_sequences.WIDE
        )

    def part(self, chosen: slice | NDArray[np.bool_]) -> "PackedSequences":
        offsets, lengths, rows = (array[chosen] for array in (self.offsets, self.lengths, self.rows))
        weights = None if self.weights is None else self.weights[chosen]
        return PackedSequences(self.symbols, offsets, lengths, rows, self.starts, weights, self.sets)

    def total(self, values: NDArray[Any]) -> float:
        return float(values.sum() if self.weights is None else values @ self.weights)

    def packed(self) -> "PackedSequences":
        if len(self.lengths) == 1 and self.lengths[0] == len(self.symbols) and self.symbols.dtype == np.int64:
            return self
        offsets = self.lengths.cumsum() - self.lengths
        begin, total = self.offsets[:1].sum(), self.lengths.sum()
        if total == len(self.symbols) and self.symbols.dtype == np.int64 and np.array_equal(self.offsets, offsets):
            return self
        if np.array_equal(self.offsets, offsets + begin):
            symbols = self.symbols[begin : begin + total]
        else:
            spans = zip(self.offsets.tolist(), self.lengths.tolist(), strict=True)
            symbols = np.concatenate([self.symbols[at : at + length] for at, length in spans])
        return self._replace(symbols=symbols.astype(np.int64, copy=False), offsets=offsets)


def sequences(
    observations_BT: Int64[Tensor, "batch time"], starts_T: Bool[Tensor, " time"], lengths_B: Int64[Tensor, " batch"]
) -> PackedSequences:
    batch, time = observations_BT.shape
    lengths = lengths_B.numpy()
    ragged = bool((lengths < time).any())
    rows = np.argsort(-lengths, kind="stable") if ragged else np.arange(batch)
    rows = rows[lengths[rows] > 0]
    return PackedSequences(
        observations_BT.contiguous().view(-1).numpy(), rows * time, lengths[rows], rows, starts_T.contiguous().numpy()
    )


def flat_sequences(symbols: NDArray[np.integer], lengths: NDArray[np.int64]) -> PackedSequences:
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    starts = np.zeros(lengths.max(initial=1), np.bool_)
    starts[0] = True
    return PackedSequences(symbols, (lengths.cumsum() - lengths)[order], lengths[order], order, starts)


def in_blocks(
    work: PackedSequences,
    size: int,
    run: Callable[[slice], None],
    num_threads: int | None = None,
    *,
    together: int | None = None,
    shares: int | None = None,
) -> None:
    """Call `run` on blocks of about `size` sequences, in threads.

    Block sizes are multiples of `together`, by default the SIMD width.
    """
    num_threads, lanes_of = torch.get_num_threads() if num_threads is None else num_threads, together or len(work.width)
    count = len(work.rows)
    share = -(-count // (shares or (1 if num_threads <= 1 else PARTS * num_threads)))
    block = max(1, -(-min(share, size) // lanes_of)) * lanes_of
    parts = [slice(begin, min(begin + block, count)) for begin in range(0, count, block)]
    on_threads(run, parts, num_threads)


def few(process: Tables, work: PackedSequences, *, sums: bool = False) -> bool:
    """Estimate whether compiled loops are faster than torch; with `sums`, for likelihoods only."""
    many = process.num_states > FEW_FOR_SUMS and len(work.rows) >= SEQUENCES_FOR_SUMS
    if sums and many and process.states_emit and not process.signed:
        return one_by_one(process)
    beside = process.num_states <= most_side_by_side and len(work.rows) <= FEW_BESIDE
    return process.num_states <= FEW_STATES or beside or not process.states_emit or one_by_one(process)


def one_by_one(process: Tables) -> bool:
    """Return whether to use the sparse loops, which skip transitions of probability zero."""
    large = process.num_states > simd_over_states.MOST
    return large and process.positive_share <= sparse_share and not process.signed


def row_by_row(process: Tables, work: PackedSequences) -> bool:
    large = process.num_states > simd_over_states.MOST and most_side_by_side > 0 and not process.states_emit
    return large and len(work.rows) <= FEW_SEQUENCES and not process.signed


def side_by_side(process: Tables, work: PackedSequences) -> bool:
    narrow = process.num_states <= most_side_by_side and few(process, work)
    return narrow and not process.signed


def paths_side_by_side(process: Tables, work: PackedSequences) -> bool:
    return process.num_states <= FEW_STATES and side_by_side(process, work)


@contextmanager
def over_lanes() -> Iterator[None]:
    """Disable SIMD over states and the sparse loops inside the ``with`` block."""
    global most_side_by_side, sparse_share
    before = most_side_by_side, sparse_share
    most_side_by_side, sparse_share = 0, 0.0
    try:
        yield
    finally:
        most_side_by_side, sparse_share = before
