"""The E-step of EM on few observations, with reused arrays."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.inference.compiled import SMALLEST, steps_between_divisions
from hmmscope.inference.counts import BLOCK_BYTES, LEAST, Counts
from hmmscope.inference.loop_inputs import CACHED, PackedSequences, Tables, side_by_side
from hmmscope.kernels import simd_over_states
from hmmscope.kernels.vectors import row_length


class OneBlock:
    """Expected counts of one block of sequences, bit-identical to those of `counts.add_counts`."""

    def __init__(self, work: PackedSequences, num_states: int, num_symbols: int) -> None:
        self.work, self.size, self.num_symbols = work.packed(), num_states, num_symbols
        self.rows = num_symbols + (int(work.symbols.max(initial=0)) == num_symbols)
        self.folded = self.rows * num_states**2 <= CACHED
        self._own = threading.local()

    @classmethod
    def of(cls, work: PackedSequences, num_states: int, num_symbols: int) -> "OneBlock | None":
        ones = np.ones((1, num_states, num_states))
        each = 8 * num_states * int(work.lengths.max(initial=1))
        one = len(work.symbols) < LEAST and len(work.rows) <= max(1, BLOCK_BYTES // each)
        plain = work.weights is None and work.sets is None and side_by_side(Tables(ones[0], ones, ones[0]), work)
        return cls(work, num_states, num_symbols) if one and plain else None

    def _arrays(self, kinds: Sequence[Any]) -> Sequence[NDArray[np.float64]]:
        if getattr(self._own, "kinds", None) != [type(kind) for kind in kinds]:
            size, (ahead, back) = self.size, map(row_length, kinds)
            first = (self.rows, ahead), (self.rows if self.folded else 1, size, ahead)
            shapes = *first, (0 if self.folded else self.rows, ahead), (size, back), (self.rows, back)
            total = int(self.work.lengths.sum())
            self._own.kinds = [type(kind) for kind in kinds]
            self._own.arrays = [*map(np.zeros, shapes), np.empty(total * size), np.empty(total)]
            self._own.flat = [part.reshape(-1) for part in self._own.arrays]
        return self._own.arrays

    def counts(self, model: Sequence[NDArray[np.float64]]) -> Counts | None:
        """Compute expected counts; return None if a sequence has probability zero or may underflow."""
        size, work, (initial, transition, emission) = self.size, self.work, model
        kernels = simd_over_states.forward, simd_over_states.backward
        kinds = [simd_over_states.states_of(kernel, size, work.lengths) for kernel in kernels]
        first, step, seen, back, emitted = (part[..., :size] for part in self._arrays(kinds)[:5])
        emitted[: self.num_symbols], emitted[self.num_symbols :] = emission.T, 1.0
        seen[:], back[:] = emitted[: len(seen)], transition.T
        np.multiply(initial, emitted, out=first)
        np.multiply(transition, emitted[:, None] if self.folded else 1.0, out=step)
        least_first, *lows = (part.min(initial=1.0, where=part > 0) for part in (first, transition, emission))
        smallest, every = SMALLEST[np.dtype(np.float64)]
        least = float(min(np.sqrt(least_first), *lows))
        if least < smallest:
            return None
        flat, none = self._own.flat, np.empty(0)
        sums, visits = np.zeros((size, size)), np.zeros((self.rows, size))
        counts = Counts(np.zeros(size), sums, visits[: self.num_symbols], np.zeros(len(work.rows)))
        doubtful = np.zeros(len(work.rows), np.bool_)
        simd_over_states.forward(
            *(kinds[0], *flat[:3], none, none, *work[:3], work.starts, steps_between_divisions(least, every)),
            *(*flat[5:], none, counts.logs, doubtful),
        )
        if doubtful.any() or counts.logs.min() == -np.inf:
            return None
        simd_over_states.backward(
            *(kinds[1], *flat[3:5], *work[:3], work.starts, *flat[5:], none, none),
            *(counts.initial, sums.reshape(-1), visits.reshape(-1)),
        )
        sums *= transition
        return counts._replace(logs=counts.logs[np.argsort(work.rows)])
