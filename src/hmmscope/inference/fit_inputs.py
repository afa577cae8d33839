"""Fit an input-output HMM by expectation maximization (EM)."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Bool, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import BaumWelchFit
from hmmscope.inference.constraints import Constraints, as_constraints
from hmmscope.inference.em import PARTS, require_possible
from hmmscope.inference.known_states import as_allowed, conditioned
from hmmscope.inference.ragged import check_ragged, counted
from hmmscope.inference.restarts import check_limits, criterion, search
from hmmscope.inference.row_rules import RowRules
from hmmscope.inference.smoothing import smooth_pairs
from hmmscope.inference.weights import as_weights
from hmmscope.processes.input_output import InputOutputHMM
from hmmscope.reprs import Shown
from hmmscope.schema import require
from hmmscope.seeds import numpy_generator
from hmmscope.sequences.encoding import Alphabet

Array = NDArray[np.float64]

#: Entries of pair posteriors per block of sequences.
_MOST_PAIRS = 2**22


class InputCounts(NamedTuple):
    """Expected counts given all observations and inputs.

    Attributes:
        initial, transitions, emissions: Expected counts (state,), (input, state, state) and (input, state, symbol).
        log_likelihood: log P(observations | inputs) (batch,), in nats.
    """

    initial: Array
    transitions: Array
    emissions: Array
    log_likelihood: Array


def expected_input_counts(
    hmm: InputOutputHMM, observations: object, inputs: object, *, lengths: object = None, known_states: Any = None
) -> InputCounts:
    """Compute the expected counts of initial states, transitions and emissions by input.

    Raises:
        InputError: Observations, inputs or lengths are invalid, or a sequence has probability zero.
    """
    checked, mask, inside = check_ragged(observations, hmm.alphabet, None, lengths)
    given = hmm.checked_inputs(inputs, tuple(checked.shape))
    allowed = None if known_states is None else as_allowed(known_states, hmm.num_states, inside, hmm.states)
    return _counts(hmm, checked, given, mask, inside, np.ones(len(checked)), allowed)


def _counts(
    hmm: InputOutputHMM,
    observations_BT: Tensor,
    inputs_BT: Tensor,
    mask_T: Tensor,
    inside_BT: Tensor,
    weights_B: Array,
    allowed_BTS: Tensor | None = None,
) -> InputCounts:
    size, count, num_symbols = hmm.num_states, hmm.num_inputs, hmm.num_symbols
    batch, time = observations_BT.shape
    first, moves = np.zeros(size), np.zeros((count, size, size))
    emitted, logs = np.zeros((count, num_symbols + 1, size)), np.zeros(batch)
    each = max(1, _MOST_PAIRS // max(1, time * size * size))
    process, symbols_BT = hmm.given_inputs(observations_BT, inputs_BT, mask_T)
    if allowed_BTS is not None:
        process, symbols_BT, _ = conditioned(process, symbols_BT, allowed_BTS)
    for begin in range(0, batch, each):
        part = slice(begin, begin + each)
        inside, given = inside_BT[part].numpy(), inputs_BT[part].numpy()
        found = smooth_pairs(process, symbols_BT[part], lengths=counted(inside_BT[part]))
        beliefs = found.beliefs.numpy() * weights_B[part, None, None]
        pairs = found.pairs.numpy() * weights_B[part, None, None, None]
        logs[part] = found.log_likelihood.numpy()
        require_possible(logs[part], np.arange(batch)[part])
        first += beliefs[:, 0][inside[:, 0]].sum(0)
        np.add.at(emitted, (given[inside], observations_BT[part].numpy()[inside]), beliefs[inside])
        later = inside[:, 1:]
        np.add.at(moves, given[:, 1:][later], pairs[later])
    return InputCounts(first, moves, emitted[:, :num_symbols].swapaxes(1, 2), logs)


@dataclass(frozen=True, repr=False)
class InputSteps(Shown):
    """EM steps of an input-output HMM; `weights` multiplies each sequence's expected counts."""

    observations: Int64[Tensor, "batch time"]
    inputs: Int64[Tensor, "batch time"]
    mask: Bool[Tensor, " time"]
    inside: Bool[Tensor, "batch time"]
    rules: RowRules
    weights: Array
    allowed: Bool[Tensor, "batch time state"] | None

    @property
    def num_steps(self) -> float:
        return float(self.weights @ self.inside.sum(1).numpy())

    def counts(self, hmm: InputOutputHMM) -> tuple[dict[str, Array], float]:
        own = self.observations, self.inputs, self.mask, self.inside, self.weights, self.allowed
        counts = _counts(hmm, *own)
        return dict(zip(PARTS, counts[:3], strict=True)), float(self.weights @ counts.log_likelihood)

    def maximise(self, before: InputOutputHMM, counts: dict[str, Array]) -> InputOutputHMM:
        return InputOutputHMM(**self.rules.maximise(_rows(before), counts))

    def log_prior(self, hmm: InputOutputHMM) -> float:
        return self.rules.log_prior(_rows(hmm))


def _rows(hmm: InputOutputHMM) -> dict[str, Array]:
    return {part: getattr(hmm, part).numpy() for part in PARTS}


def fit_inputs(
    observations: object,
    inputs: object,
    num_states: int,
    num_symbols: int,
    num_inputs: int,
    *,
    lengths: object = None,
    sequence_weights: Any = None,
    known_states: Any = None,
    start: InputOutputHMM | None = None,
    fixed: Collection[str] = (),
    tied_emissions: Sequence[int] | None = None,
    constraints: Constraints | Callable[[int], Constraints] | None = None,
    num_restarts: int = 12,
    max_iterations: int = 200,
    tolerance: float = 1e-7,
    pseudo_count: float = 0.1,
    seed: int = 0,
    callback: Callable[[int], object] | None = None,
) -> BaumWelchFit:
    """Fit an input-output HMM to independent sequences with known inputs by EM.

    transition_uij ∝ E[transitions i -> j under input u];  emission_uiv ∝ E[symbols v emitted by i under input u]

    Args:
        observations: Symbols in [0, V), or `hmmscope.MISSING` where missing, shape (batch, time).
        inputs: Inputs in [0, U), with the shape of the observations.
        num_states, num_symbols, num_inputs: Numbers S, V and U of states, symbols and inputs.
        lengths, sequence_weights: Number of observations, and weight, of each sequence (batch,).
        start: Parameters that start the first EM run; their zeros stay zero.
        known_states, fixed, tied_emissions, constraints: See `FitOptions`.
        num_restarts, max_iterations, tolerance, pseudo_count, seed, callback: See `fit_baum_welch`.

    Raises:
        InputError: Data or options are invalid, or a sequence has probability zero under `start`.
    """
    limits = {"num_states": num_states, "num_symbols": num_symbols, "num_inputs": num_inputs}
    check_limits(num_restarts, max_iterations, {"tolerance": tolerance, "pseudo_count": pseudo_count}, **limits)
    sizes = num_inputs, num_states, num_symbols
    if start is not None and (start.num_inputs, start.num_states, start.num_symbols) != sizes:
        raise InputError(f"start: must have {sizes[0]} inputs, {sizes[1]} states and {sizes[2]} symbols, got {start!r}")
    checked, mask, inside = check_ragged(observations, Alphabet(None, num_symbols), None, lengths)
    weights = as_weights(sequence_weights, len(checked))
    weights = np.ones(len(checked)) if weights is None else weights
    every, inside = inside, inside & torch.from_numpy(weights > 0)[:, None]
    require(bool(inside.any()), "observations", "must contain at least one observation", tuple(checked.shape))
    drawn = _random(0, seed, *sizes)
    given = drawn.checked_inputs(inputs, tuple(checked.shape))
    allowed = None if known_states is None else as_allowed(known_states, num_states, every)
    like = _rows(drawn)
    shapes = {part: rows.shape for part, rows in like.items()}
    parts = as_constraints(constraints, num_states).parts(num_states, num_symbols, **shapes)
    own: dict[str, Any] = {"fixed": fixed, "tied": tied_emissions, "constraints": parts}
    rules = RowRules.of(like, None if start is None else _rows(start), pseudo_count, **own)
    steps = InputSteps(checked, given, mask, inside, rules, weights, allowed)

    def begins(number: int) -> list[InputOutputHMM]:
        begun = start if start is not None and number == 0 else _random(number, seed, *sizes)
        return [InputOutputHMM(**rules.constrained(_rows(begun)))]

    hmm, about = search(steps, begins, num_restarts, max_iterations, tolerance, callback)
    later, used = (np.unique(own.numpy()) for own in (given[:, 1:][inside[:, 1:]], given[inside]))
    occurring = {"transition": like["transition"][later], "emission": like["emission"][used]}
    free = rules.num_free(like | occurring)
    count, total = float(weights @ inside.any(1).numpy()), steps.num_steps
    emitted = float(weights @ (inside & (checked < num_symbols)).sum(1).numpy())
    seen = {"initial": count, "transition": total - count, "emission": emitted}
    bic = criterion(about["log_likelihood"], free, seen)
    about |= {"num_free": free, "num_zeros": rules.num_zeros, "rules": rules.rules}
    return BaumWelchFit(hmm, bic=bic, lists_free=True, **about)


def _random(number: int, seed: int, num_inputs: int, num_states: int, num_symbols: int) -> InputOutputHMM:
    rng = numpy_generator(seed, "input-output-fit", number)
    initial = rng.dirichlet(np.ones(num_states))
    transition = rng.dirichlet(np.ones(num_states), (num_inputs, num_states))
    if number % 2:
        transition = (np.eye(num_states) + transition) / 2
    return InputOutputHMM(initial, transition, rng.dirichlet(np.ones(num_symbols), (num_inputs, num_states)))
