"""What the compiled loops take: a process as three tables, a batch as sequences in one flat array of symbols."""

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
from hmmscope.kernels.vectors import padded_size
from hmmscope.processes.params import HMMParams
from hmmscope.reprs import Shown

#: Up to this many states compiled loops beat products of matrices.
FEW_STATES = 32

#: Where nothing but likelihoods of at least so many sequences is asked for, up to this many states.
FEW_FOR_SUMS, SEQUENCES_FOR_SUMS = 16, 6

#: Up to this many states they go side by side in registers, and up to this many sequences even where products beat lanes.
most_side_by_side = simd_over_states.MOST
FEW_BESIDE = 2

#: Up to this many sequences the filter goes through all transitions that emit, the states side by side in memory.
FEW_SEQUENCES = 4

#: Of more states, transitions are gone through one by one where at most this share of them can be made.
sparse_share = 1 / 16

#: Numbers that stay in the first cache of a processor together with what is read and written.
CACHED = 2048


_kept: "WeakKeyDictionary[HMMParams, Tables]" = WeakKeyDictionary()


class Entries(NamedTuple):
    """Positive entries of matrices by the state that they lead to or leave; see `hmmscope.kernels.sparse`."""

    begins: NDArray[np.uint64]
    others: NDArray[np.uint64]
    weights: NDArray[np.float64]


#: In the place of entries where all are gone through.
NO_ENTRIES = Entries(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0))


def _entries(ordered: NDArray[np.floating]) -> Entries:
    """Of matrices (K, S, S) by their rows."""
    matrix, row, other = np.nonzero(ordered)
    count = len(ordered) * ordered.shape[1]
    begins = np.concatenate([[0], np.bincount(matrix * ordered.shape[1] + row, minlength=count).cumsum()])
    weights = ordered[matrix, row, other].astype(np.float64)
    return Entries(begins.astype(np.uint64), other.astype(np.uint64), weights)


@dataclass(frozen=True, eq=False, repr=False)
class Tables(Shown):
    """One HMM for the compiled loops, which unpacks into the three arrays of `hmmscope.kernels.simd_over_sequences`."""

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
        """`step` with its last axes exchanged."""
        return np.ascontiguousarray(self.step.transpose(0, 2, 1))

    @cached_property
    def into(self) -> Entries:
        """Entries of `step` by the state that they lead to."""
        return _entries(self.step.transpose(0, 2, 1))

    @cached_property
    def out_of(self) -> Entries:
        """Entries of `step` by the state that they leave."""
        return _entries(self.step)

    @cached_property
    def signed(self) -> bool:
        """Whether there are negative numbers."""
        return not all(bool((part >= 0).all()) for part in self)

    @cached_property
    def least(self) -> float:
        """The smallest positive transition or emission, or root of a first probability; 1 if a number is negative."""
        if self.signed:
            return 1.0
        first, *rest = self
        return min(float(part[part > 0].min(initial=1.0)) for part in (np.sqrt(first), *rest))

    @cached_property
    def beside(self) -> "Padded":
        """For states side by side in registers, emissions taken into the steps where that is good."""
        return padded(with_emissions(self))

    @cached_property
    def beside_back(self) -> "Padded":
        """The same for the way back, where steps are transposed."""
        own = with_emissions(self)
        return padded(replace(own, step=own.transposed()))

    @cached_property
    def positive_share(self) -> float:
        """Of all entries of `step`."""
        return float(np.count_nonzero(self.step) / max(1, self.step.size))


class Padded(NamedTuple):
    """Flat tables for `hmmscope.kernels.simd_over_states`, with rows as wide as a vector and one of `states` a state."""

    states: tuple[int, ...]
    first: NDArray[np.float64]
    step: NDArray[np.float64]
    emission: NDArray[np.float64]


def padded(process: Tables, *, filling: float = 0.0) -> Padded:
    """The same tables in float64, with `filling` beyond the last state."""
    size = process.num_states
    wide = [np.full((*part.shape[:-1], padded_size(size)), filling) for part in process]
    for own, part in zip(wide, process, strict=True):
        own[..., :size] = part
    first, step, emission = (own.ravel() for own in wide)
    return Padded((0,) * size, first, step, emission)


def with_emissions(process: Tables) -> Tables:
    """The same process with a matrix for each symbol, which saves a product a step, where all of them fit the cache."""
    num_symbols, size = process.first.shape
    if not process.states_emit or num_symbols * size**2 > CACHED:
        return process
    return Tables(process.first, process.step * process.emission[:, None], process.emission[:0])


def tables(law: HMMParams, component: int = 0, dtype: type[np.floating] = np.float64) -> Tables:
    """Tables of a component; of a single small process they are kept as long as it is, for many short calls."""
    single = component == 0 and len(law.initial_MS) == 1 and dtype is np.float64
    found = _kept.get(law) if single else None
    if found is None:
        found = Tables(*(np.ascontiguousarray(part.numpy(), dtype) for part in law.tables(component)))
        if single and sum(part.size for part in found) <= CACHED:
            _kept[law] = found
    return found


class PackedSequences(NamedTuple):
    """Sequences in one flat array of symbols, longest first.

    Attributes:
        symbols: (N,), of any type of whole numbers; the compiled loops take int64 (`packed`).
        offsets: where each begins (n,).
        lengths: at least 1 each (n,).
        rows: the number of each in its batch (n,).
        starts: (T,), true where a new sequence of the same process begins.
    """

    symbols: NDArray[Any]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    rows: NDArray[np.int64]
    starts: NDArray[np.bool_]

    @property
    def width(self) -> tuple[int, ...]:
        """Lanes."""
        return (
            simd_over_sequences.NARROW
            if len(self.rows) <= len(simd_over_sequences.NARROW)
            else simd_over_sequences.WIDE
        )

    def part(self, chosen: slice | NDArray[np.bool_]) -> "PackedSequences":
        """Some of them."""
        offsets, lengths, rows = (array[chosen] for array in (self.offsets, self.lengths, self.rows))
        return PackedSequences(self.symbols, offsets, lengths, rows, self.starts)

    def packed(self) -> "PackedSequences":
        """The same in an array of their own as int64, one right behind the other; a view where they are that already."""
        offsets = self.lengths.cumsum() - self.lengths
        begin, total = self.offsets[:1].sum(), self.lengths.sum()
        if np.array_equal(self.offsets, offsets + begin):
            symbols = self.symbols[begin : begin + total]
        else:
            spans = zip(self.offsets.tolist(), self.lengths.tolist(), strict=True)
            symbols = np.concatenate([self.symbols[at : at + length] for at, length in spans])
        return self._replace(symbols=symbols.astype(np.int64, copy=False), offsets=offsets)


def sequences(
    observations_BT: Int64[Tensor, "batch time"], starts_T: Bool[Tensor, "time"], lengths_B: Int64[Tensor, "batch"]
) -> PackedSequences:
    """The rows of a batch that are not empty."""
    batch, time = observations_BT.shape
    lengths = lengths_B.numpy()
    ragged = bool((lengths < time).any())
    rows = np.argsort(-lengths, kind="stable") if ragged else np.arange(batch)
    rows = rows[lengths[rows] > 0]
    return PackedSequences(
        observations_BT.contiguous().view(-1).numpy(), rows * time, lengths[rows], rows, starts_T.contiguous().numpy()
    )


def flat_sequences(symbols: NDArray[np.integer], lengths: NDArray[np.int64]) -> PackedSequences:
    """Sequences that stand one behind the other in a flat array, which stays as it is; without those that are empty."""
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
    """Call `run` for blocks of at most about `size` sequences, on threads where that is worth it: as many as torch has, if
    not said.

    Blocks are whole lanes, or multiples of `together`; there are a few for each thread, or `shares`.
    """
    num_threads, lanes_of = torch.get_num_threads() if num_threads is None else num_threads, together or len(work.width)
    count = len(work.rows)
    share = -(-count // (shares or (1 if num_threads <= 1 else PARTS * num_threads)))
    block = max(1, -(-min(share, size) // lanes_of)) * lanes_of
    parts = [slice(begin, min(begin + block, count)) for begin in range(0, count, block)]
    on_threads(run, parts, num_threads)


def few(process: Tables, work: PackedSequences, *, sums: bool = False) -> bool:
    """Whether the compiled loops are the faster road; `sums` where nothing but likelihoods is asked for."""
    many = process.num_states > FEW_FOR_SUMS and len(work.rows) >= SEQUENCES_FOR_SUMS
    if sums and many and process.states_emit and not process.signed:
        return one_by_one(process)
    beside = process.num_states <= most_side_by_side and len(work.rows) <= FEW_BESIDE
    return process.num_states <= FEW_STATES or beside or not process.states_emit or one_by_one(process)


def one_by_one(process: Tables) -> bool:
    """Whether so few transitions can be made that they are gone through one by one."""
    large = process.num_states > simd_over_states.MOST
    return large and process.positive_share <= sparse_share and not process.signed


def row_by_row(process: Tables, work: PackedSequences) -> bool:
    """Whether the filter of few sequences goes through all transitions that emit, the states side by side in memory."""
    large = process.num_states > simd_over_states.MOST and most_side_by_side > 0 and not process.states_emit
    return large and len(work.rows) <= FEW_SEQUENCES and not process.signed


def side_by_side(process: Tables, work: PackedSequences) -> bool:
    """Whether the states of a sequence go side by side in registers, if no number is negative."""
    narrow = process.num_states <= most_side_by_side and few(process, work)
    return narrow and not process.signed


def paths_side_by_side(process: Tables, work: PackedSequences) -> bool:
    """`side_by_side` of likeliest paths, which go faster row by row where states are more."""
    return process.num_states <= FEW_STATES and side_by_side(process, work)


@contextmanager
def over_lanes() -> Iterator[None]:
    """Meanwhile no states go side by side or by single transitions, in any thread: for comparisons of the roads."""
    global most_side_by_side, sparse_share
    before = most_side_by_side, sparse_share
    most_side_by_side, sparse_share = 0, 0.0
    try:
        yield
    finally:
        most_side_by_side, sparse_share = before
