"""Forward filter of one HMM in compiled CPU loops.

Sequences at risk of underflow are recomputed by `hmmscope.kernels.underflow_safe`.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Bool, Int64, Tensor
from hmmscope.inference.loop_inputs import (
    NO_ENTRIES,
    PackedSequences,
    Tables,
    few,
    in_blocks,
    one_by_one,
    row_by_row,
    sequences,
    side_by_side,
    tables,
)
from hmmscope.inference.ragged import check_ragged, counted, silent
from hmmscope.kernels import many_states, simd_over_sequences, simd_over_states, sparse, underflow_safe
from hmmscope.processes.observations import Observations
from hmmscope.processes.params import ROUNDING, HMMParams, seeing, symbol_probs
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown

#: (smallest safe positive belief entry, steps between checks); see `hmmscope.kernels.simd_over_sequences`.
SMALLEST = {np.dtype(np.float64): (1e-100, 8), np.dtype(np.float32): (1e-17, 1)}

#: For many states: (least sum, least positive entry) of a safe belief, checked at each step. In float32 only entries that
#: vanish within a step are detected.
FLOORS = {np.dtype(np.float64): (0.0, 1e-270), np.dtype(np.float32): (1e-25, 0.0)}

#: Sequences per block of matrix products, a multiple of the tile.
ROWS, TILE_ROWS = 96, 6

#: Largest shrinkage of an entry between checks that keeps a safe entry a normal number.
_SHRINKS = 1e-200

#: Sparse loops: steps between checks. An entry is safe if `Tables.least` cannot shrink it below `_NORMAL` before the
#: check after the next; then nothing underflows, and the backward pass does not overflow.
_LOOKS, _NORMAL = 4, 1e-300

#: Largest alphabet for which the compiled loop also predicts.
FEW_SYMBOLS = 64


class ScaledBeliefs(NamedTuple):
    """Beliefs mantissa * 2^(256 exponent) of one sequence (time, state)."""

    mantissa: NDArray[np.float64]
    exponent: NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Filtered(Shown):
    """Filter results of a batch, as input of the backward pass.

    Attributes:
        tables: Parameter tables of the process.
        work: Packed sequences.
        beliefs: P(state t | o_0..o_t) (batch, time, state); zeros in padding and where o_0..o_t has probability zero.
        predictive: P(o_{t+1} | o_0..o_t) (batch, time, symbol), if requested.
        norms: P(o_t | o_0..o_{t-1}) of sequences without underflow risk (batch, time); ones in padding.
        terms: log P(o_t | o_0..o_{t-1}) (batch, time).
        underflow_risk: `ScaledBeliefs` of sequences with underflow risk, by row of the batch.
    """

    tables: Tables
    work: PackedSequences
    beliefs: NDArray[np.float64]
    predictive: NDArray[np.float64]
    norms: NDArray[np.float64]
    terms: NDArray[np.float64]
    underflow_risk: dict[int, ScaledBeliefs]


def run_filter(
    law: HMMParams,
    observations_BT: Int64[Tensor, "batch time"],
    starts_T: Bool[Tensor, " time"],
    lengths_B: Int64[Tensor, " batch"],
    *,
    predict: bool = False,
) -> Filtered:
    found, work = tables(law), sequences(observations_BT, starts_T, lengths_B)
    batch, time = observations_BT.shape
    ragged = len(work.rows) < batch or bool((work.lengths < time).any())
    probs = next_step_probs(law) if predict else NextStepProbs(np.empty(0), np.empty((found.num_states, 0)))
    empty = np.zeros if ragged else np.empty
    beliefs, ahead = empty((batch, time, found.num_states)), empty((batch, time, len(probs.opening)))
    norms = np.ones((batch, time)) if ragged else np.empty((batch, time))
    doubtful = np.zeros(len(work.rows), np.bool_)
    together = len(probs.opening) <= FEW_SYMBOLS and not (one_by_one(found) or row_by_row(found, work))
    forward(found, work, doubtful, Outputs(beliefs, norms, probs, ahead if together else None))
    if not law.signed:
        with np.errstate(divide="ignore", invalid="ignore"):  # rows with underflow risk hold garbage until they
            terms = np.log(norms)  # are overwritten below
    else:
        terms = np.full(norms.shape, -np.inf)
        np.log(norms, out=terms, where=norms > ROUNDING)  # sums that cancel are zero up to rounding
        never = np.logical_or.accumulate(terms == -np.inf, axis=1)
        terms[never], beliefs[never], ahead[never] = -np.inf, 0.0, 0.0
    again = {}
    for row, length in zip(work.rows[doubtful].tolist(), work.lengths[doubtful].tolist(), strict=True):
        again[row] = filter_underflow_safe(found, observations_BT[row, :length], work.starts, terms[row])
        underflow_safe.plain(*again[row], beliefs[row, :length])
    silenced = silent(torch.from_numpy(terms), observations_BT, law.num_symbols)
    if predict:
        for rows in (slice(row, row + 1) for row in again) if together else (slice(None),):
            probs.predict(beliefs[rows], work.starts, ahead[rows])
    return Filtered(found, work, beliefs, ahead, norms, silenced.numpy(), again)


class NextStepProbs(NamedTuple):
    """Distributions of the first symbol (V,) and of the next symbol given the state (S, V)."""

    opening: NDArray[np.float64]
    prediction: NDArray[np.float64]

    def predict(self, beliefs: NDArray[np.float64], reset_mask: NDArray[np.bool_], ahead: NDArray[np.float64]) -> None:
        flat = torch.from_numpy(beliefs).flatten(0, 1) @ torch.from_numpy(self.prediction)
        ahead[:] = flat.numpy().reshape(ahead.shape)
        begins = np.flatnonzero(reset_mask[1:])
        ahead[:, begins] = self.opening * beliefs[:, begins].any(-1, keepdims=True)


def next_step_probs(law: HMMParams, component: int = 0) -> NextStepProbs:
    symbols_SV = symbol_probs(law)[component]
    opening_V = law.initial_MS[component] @ symbols_SV
    prediction_SV = law.predictive_in(component)
    return NextStepProbs(opening_V.numpy(), np.ascontiguousarray(prediction_SV.numpy()))


def filter_batch(hmm: Process, observations: Observations, reset_mask: object, lengths: object) -> Filtered:
    checked, mask, inside = check_ragged(observations, hmm.alphabet, reset_mask, lengths)
    return run_filter(seeing(hmm.params, checked), checked.cpu(), mask, counted(inside).cpu())


class Outputs(NamedTuple):
    """Arrays that the forward pass fills, if given; see `hmmscope.kernels.simd_over_sequences.forward`."""

    beliefs: NDArray | None = None
    norms: NDArray | None = None
    laws: NextStepProbs | None = None
    ahead: NDArray | None = None
    totals: NDArray | None = None
    ends: NDArray[np.int64] | None = None
    openers: NDArray[np.int64] | None = None

    def flat(self, size: int, dtype: np.dtype) -> tuple[NDArray, ...]:
        """Return opening, prediction, `ahead`, `beliefs` and `norms`; missing arrays are empty."""
        laws, ahead = NextStepProbs(np.empty(0), np.empty((size, 0))), np.empty((0, 0))
        if self.laws is not None and self.ahead is not None and len(self.laws.opening):
            laws, ahead = self.laws, self.ahead.reshape(-1, len(self.laws.opening))
        beliefs = np.empty((0, size), dtype) if self.beliefs is None else self.beliefs.reshape(-1, size)
        norms = np.empty(0) if self.norms is None else self.norms.reshape(-1)
        return *(part.astype(dtype, copy=False) for part in (*laws, ahead)), beliefs, norms


def forward(process: Tables, work: PackedSequences, doubtful: NDArray[np.bool_], out: Outputs) -> None:
    if not few(process, work, sums=out.beliefs is None and out.ahead is None and out.openers is None):
        forward_in_products(process, work, doubtful, out)
        return
    whole, least = out.ends is None and out.openers is None, process.least
    beside = whole and side_by_side(process, work)
    smallest, every = SMALLEST[np.dtype(np.float64) if beside else process.first.dtype]
    every = steps_between_divisions(least, every)
    if beside:
        _forward_side_by_side(process, work, every, doubtful, out)
    else:
        _forward_over_lanes(process, work, (smallest, every), doubtful, out)
    if whole and least < smallest:
        doubtful |= _vanishing(process, work, smallest)


def steps_between_divisions(least: float, most: int) -> int:
    # one step shrinks an entry by no more than its square
    return max(1, min(most, int(math.log(_SHRINKS) / (2 * math.log(least))))) if least < 1 else most


def _forward_over_lanes(
    process: Tables, work: PackedSequences, looks: tuple[float, int], doubtful: NDArray[np.bool_], out: Outputs
) -> None:
    totals, ends, openers, (smallest, every) = *out[4:], looks
    alone = ends is None and openers is None and out.ahead is None
    alone = alone and (one_by_one(process) or row_by_row(process, work))
    if alone:
        safe = process.least > 1e-20
        smallest, every = (_NORMAL / process.least ** (2 * _LOOKS + 2), _LOOKS) if safe else (1e-100, every)
    dtype = np.dtype(np.float64) if alone else process.first.dtype
    opening, prediction, ahead, beliefs, norms = out.flat(process.num_states, dtype)

    def run(part: slice) -> None:
        own = work.part(part)
        places = own.rows[:0] if ends is None else ends[part]
        sums = np.empty(0) if totals is None else totals[part]
        if alone:
            first, step, emission = (array.astype(np.float64, copy=False) for array in process)
            entries = process.into if one_by_one(process) else NO_ENTRIES
            known = *own[:3], own.starts, smallest, every, beliefs, norms, sums, doubtful[part]
            sparse.forward(first, step, *entries, emission, *known)
            return
        simd_over_sequences.forward(
            *(work.width, *process, opening, prediction, work.symbols if openers is None else openers, *own[:3]),
            *(own.starts, smallest, every, places, beliefs, norms, ahead, sums, doubtful[part]),
        )

    in_blocks(work, len(work.rows), run, together=1 if alone else None)


def _vanishing(process: Tables, work: PackedSequences, smallest: float) -> NDArray[np.bool_]:
    if bool(((process.step > 0) & (process.step < smallest)).any()):
        return np.ones(len(work.rows), np.bool_)
    seen_V: NDArray[np.bool_] = np.any((process.emission > 0) & (process.emission < smallest), axis=1)
    spans = zip(work.offsets.tolist(), work.lengths.tolist(), strict=True)
    return np.array([seen_V[work.symbols[begin : begin + length]].any() for begin, length in spans], np.bool_)


def _forward_side_by_side(
    process: Tables, work: PackedSequences, every: int, doubtful: NDArray[np.bool_], out: Outputs
) -> None:
    states = simd_over_states.states_of(simd_over_states.forward, process.num_states, work.lengths)
    flat, nothing = process.beside(states), np.empty(0)
    opening, prediction = (nothing, nothing) if out.laws is None or out.ahead is None else out.laws
    kept = [nothing if array is None else array.reshape(-1) for array in (out.beliefs, out.norms, out.ahead)]

    def run(part: slice) -> None:
        own = work if part == slice(0, len(work.rows)) else work.part(part)
        simd_over_states.forward(
            *(*flat, opening, prediction.ravel(), *own[:3], own.starts, every, *kept),
            *(nothing if out.totals is None else out.totals[part], doubtful[part]),
        )

    in_blocks(work, len(work.rows), run, together=1)


def forward_in_products(process: Tables, work: PackedSequences, doubtful: NDArray[np.bool_], out: Outputs) -> None:
    totals, ends, openers = out[4:]
    dtype, size = process.first.dtype, process.num_states
    floor, smallest = (dtype.type(number) for number in FLOORS[dtype])
    least = min(float(part[part > 0].min(initial=1.0)) for part in (process.step, process.emission))
    if least < 1e-12 and smallest:  # otherwise one or two steps could underflow
        smallest = dtype.type(1e-100)
        doubtful |= least < smallest
    opening, prediction, ahead, beliefs, norms = out.flat(size, dtype)
    run_forward, step = many_states.forward.load(dtype), many_states.packed(process.step[0])
    first, emission = (many_states.widened(part) for part in (process.first, process.emission))
    ones = np.ones(first.shape[1], dtype)
    prediction, starts = many_states.packed(prediction), work.starts.astype(np.int64)

    def run(part: slice) -> None:
        own, count = work.part(part), len(work.rows[part])
        rows = [np.zeros((count, many_states.width_of(n, dtype)), dtype) for n in (size, size, len(opening))]
        doubts = np.zeros(count, np.int64)
        run_forward(
            *(first, step, emission, opening, prediction),
            *(work.symbols if openers is None else openers, *own[:3], starts, floor, smallest),
            *(work.rows[:0] if ends is None else ends[part], beliefs, norms, ahead),
            *(np.empty(0) if totals is None else totals[part], doubts),
            *(*rows, np.zeros(max(count, size), dtype), ones, np.empty(count, dtype), np.empty(count), np.empty(count)),
        )
        doubtful[part] |= doubts > 0

    in_blocks(work, ROWS, run, together=TILE_ROWS)


def filter_underflow_safe(
    process: Tables, symbols_T: Int64[Tensor, " time"], reset_mask: NDArray[np.bool_], terms: NDArray[np.float64]
) -> ScaledBeliefs:
    size = process.num_states
    found = ScaledBeliefs(np.empty((len(symbols_T), size)), np.empty((len(symbols_T), size), np.int64))
    first, emission = (part.astype(np.float64, copy=False) for part in (process.first, process.emission))
    symbols = np.ascontiguousarray(symbols_T.numpy())
    underflow_safe.forward(first, *process.into, emission, symbols, reset_mask, *found, terms[: len(symbols_T)])
    return found
