"""Compiled filter, smoother and Viterbi loops for few states, given log-likelihoods.

If a transition probability is below 1e-20, a sequence in which underflow could change results is recomputed in log
space.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.inference.counts import BLOCK_BYTES, BLOCKS, LEAST
from hmmscope.inference.loop_inputs import PackedSequences, in_blocks
from hmmscope.inference.weights import weighted_moves
from hmmscope.kernels import log_space, simd_over_states
from hmmscope.kernels.vectors import row_length

#: Largest number of states.
MOST = simd_over_states.MOST

_NO_SYMBOLS, _NOTHING = np.empty(0, np.int64), np.empty(0)
#: Log-probabilities of compared paths are multiples of 1 / _GRID.
_GRID = 2.0**36


class ChainParams(NamedTuple):
    """Markov chain parameters for the compiled loops.

    Attributes:
        initial, transition: Probabilities (S,) and (S, S).
        every: Number of steps between normalizations.
        smallest: The filter rounds state probabilities below it to zero.
    """

    initial: NDArray[np.float64]
    transition: NDArray[np.float64]
    every: int
    smallest: float

    def padded(self, states: tuple[int, ...], table: NDArray[np.float64], filling: float = 0.0) -> NDArray[np.float64]:
        wide = np.full((*table.shape[:-1], row_length(states)), filling)
        wide[..., : len(self.initial)] = table
        return wide.ravel()

    def log_params(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        with np.errstate(divide="ignore"):
            return np.log(self.initial), np.log(self.transition)

    def steps(self) -> NDArray[np.float64]:
        return np.where(_tiny(self.transition), 1e-100, self.transition)

    def fragile(self) -> NDArray[np.float64]:
        return np.any(_tiny(self.transition), axis=0) * np.float64(self.smallest > 0)


def law_of(initial: NDArray[np.float64], transition: NDArray[np.float64]) -> ChainParams:
    if float(transition.min()) >= 1e-20:
        return ChainParams(initial, transition, 8, 0.0)
    return ChainParams(initial, transition, 1, 1e-100 if bool(_tiny(transition).any()) else 1e-200)


def _tiny(transition: NDArray[np.float64]) -> NDArray[np.bool_]:
    return (transition > 0) & (transition < 1e-100)


class FilterOutput(NamedTuple):
    beliefs: NDArray[np.float64]
    predicted: NDArray[np.float64]
    terms: NDArray[np.float64]
    totals: NDArray[np.float64]
    underflow_risk: NDArray[np.bool_]


class SufficientStatistics(NamedTuple):
    initial: NDArray[np.float64]
    transitions: NDArray[np.float64]


class LogLikelihoodBatch:
    """A batch of sequences of log-likelihood rows.

    Args:
        law: Markov chain of at most `MOST` states.
        rows: log P(o | state) of all sequences (observation, state).
        offsets, lengths: Offset in `rows` and length of each nonempty sequence (n,).
        reset_mask: True where a new sequence starts (T,).
        numbers: Index of each nonempty sequence among all sequences (n,).
        weights: Weight of each sequence (n,); None if all are 1.
    """

    def __init__(
        self,
        law: ChainParams,
        rows: NDArray[np.float64],
        offsets: NDArray[np.int64],
        lengths: NDArray[np.int64],
        reset_mask: NDArray[np.bool_],
        numbers: NDArray[np.int64],
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        self.params, self.rows = law, np.ascontiguousarray(rows, np.float64)
        starts = np.ascontiguousarray(reset_mask)
        self.work = PackedSequences(_NO_SYMBOLS, offsets, lengths, numbers, starts, weights)

    @cached_property
    def _whole(self) -> bool:
        return int(self.work.lengths.sum()) == len(self.rows)

    def _empty(self, *shape: int) -> NDArray[np.float64]:
        return np.empty(shape) if self._whole else np.zeros(shape)

    def _forward(self, part: slice, found: FilterOutput, norms: NDArray[np.float64], tops: NDArray[np.float64]) -> None:
        law, own = self.params, self.work.part(part)
        states = simd_over_states.states_of(simd_over_states.forward_given, len(law.initial), own.lengths)
        with np.errstate(divide="ignore"):
            logs = law.padded(states, np.log(law.initial), -np.inf)
        laws = [law.padded(states, law.initial), logs, law.padded(states, law.fragile())]
        good = simd_over_states.forward_given(
            *(states, np.concatenate(laws), law.padded(states, law.steps())),
            *(self.rows.ravel(), *own[1:3], own.starts, law.every, law.smallest),
            *(
                found.beliefs.ravel(),
                found.predicted.ravel(),
                norms,
                tops,
                found.totals[part],
                found.underflow_risk[part],
            ),
        )
        if not good:
            raise InputError("log_likelihoods: must be finite numbers or -inf, got NaN or +inf")

    def _found(self, *, predict: bool = False) -> FilterOutput:
        count, size = self.rows.shape
        beliefs, predicted = self._empty(count, size), self._empty(count if predict else 0, size)
        number = len(self.work.rows)
        return FilterOutput(beliefs, predicted, _NOTHING, np.empty(number), np.zeros(number, np.bool_))

    def filtered(self) -> FilterOutput:
        found, count = self._found(predict=True), len(self.rows)
        norms, tops = np.empty(count) if self._whole else np.ones(count), np.zeros(count)
        in_blocks(self.work, len(self.work.rows), lambda part: self._forward(part, found, norms, tops), together=1)
        with np.errstate(divide="ignore"):
            terms = np.log(norms, out=norms)
        terms += tops
        return found._replace(terms=terms)

    def total(self) -> FilterOutput:
        found = self._found()._replace(beliefs=_NOTHING)
        in_blocks(self.work, len(self.work.rows), lambda p: self._forward(p, found, _NOTHING, _NOTHING), together=1)
        return found

    def smoothed(self, sums: SufficientStatistics | None = None) -> FilterOutput:
        law, found, work = self.params, self._found(), self.work
        norms, size = np.empty(len(self.rows)), len(law.initial)
        transposed, parts = np.ascontiguousarray(law.steps().T), {}
        weighted = bool(sums) and work.weights is not None
        smoothed, backward = self._empty(2, *self.rows.shape) if weighted else (found.beliefs, _NOTHING)

        def run(part: slice) -> None:
            self._forward(part, found, norms, _NOTHING)
            sure = ~found.underflow_risk[part] & (found.totals[part] > -np.inf)
            own = work.part(part).part(sure)
            summed = bool(sums) and not weighted
            first, pairs = np.zeros(size if summed else 0), np.zeros((size, size) if summed else (0, 0))
            states = simd_over_states.states_of(simd_over_states.backward, size, own.lengths)
            simd_over_states.backward(
                *(states, law.padded(states, transposed), self.rows, _NO_SYMBOLS, *own[1:3], own.starts),
                *(found.beliefs.ravel(), norms),
                *(smoothed.ravel(), backward.ravel(), first, pairs.ravel(), _NOTHING),
            )
            parts[part.start] = weighted_moves(own, found.beliefs, backward, smoothed) if weighted else (first, pairs)

        rows = max(1, BLOCK_BYTES // (8 * size * int(work.lengths.max(initial=1))))
        blocks = min(BLOCKS, 1 + len(self.rows) // LEAST)  # independent of the number of threads
        in_blocks(work, rows, run, together=1, shares=blocks)
        for begin in sorted(parts) if sums else ():
            for total, own in zip(sums or (), parts[begin], strict=True):
                total += own
        if sums:
            sums.transitions[:] *= law.transition
        return found._replace(beliefs=smoothed)

    def viterbi(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        law, work = self.params, self.work
        exact = law.log_params()
        compared = [np.rint(part * _GRID) / _GRID for part in exact]
        paths, logs = np.full(len(self.rows), -1), np.empty(len(work.rows))
        longest = int(work.lengths.max(initial=0))

        def run(part: slice) -> None:
            own = work.part(part)
            states = simd_over_states.states_of(simd_over_states.likeliest, len(law.initial), own.lengths)
            first, steps = (law.padded(states, table, -np.inf) for table in compared)
            pointers = np.empty(longest * row_length(states), np.uint8)
            simd_over_states.likeliest(
                *(states, first, steps, self.rows, _NO_SYMBOLS, *own[1:3], own.starts, False),
                *(pointers, paths, logs[part]),
            )
            log_space.path_totals(*exact, self.rows, *own[1:3], own.starts, paths, logs[part])

        in_blocks(work, len(work.rows), run, together=1)
        return paths, logs
