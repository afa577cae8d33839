"""Fit an input-output HMM by expectation maximization (EM)."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Bool, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import SAME
from hmmscope.inference.em import PARTS
from hmmscope.inference.ragged import check_ragged, counted
from hmmscope.inference.restarts import RestartSearch, on_threads
from hmmscope.inference.smoothing import smooth_pairs
from hmmscope.processes.input_output import InputOutputHMM
from hmmscope.schema import require, require_count
from hmmscope.seeds import numpy_generator
from hmmscope.sequences.encoding import Alphabet

Array = NDArray[np.float64]

#: Entries of pair posteriors per block of sequences.
_MOST_PAIRS = 2**22


class InputCounts(NamedTuple):
    """Expected counts given all observations and inputs.

    Attributes:
        initial, transitions, emissions: (S,), (U, S, S) and (U, S, V).
        log_likelihood: log P(observations | inputs) (batch,), in nats.
    """

    initial: Array
    transitions: Array
    emissions: Array
    log_likelihood: Array


@dataclass(frozen=True)
class InputFit:
    """A fitted input-output HMM, with diagnostics as in `BaumWelchFit`."""

    hmm: InputOutputHMM
    log_likelihood: float
    num_iterations: int
    converged: bool
    num_restarts: int
    restart_gap: float
    restarts_agree: bool
    bic: float
    num_free: dict[str, int]


def expected_input_counts(
    hmm: InputOutputHMM, observations: object, inputs: object, *, lengths: object = None
) -> InputCounts:
    """Compute the expected counts of initial states, transitions and emissions by input.

    Raises:
        InputError: Invalid observations, inputs or lengths, or a sequence of probability zero.
    """
    checked, mask, inside = check_ragged(observations, hmm.alphabet, None, lengths)
    given = hmm.checked_inputs(inputs, tuple(checked.shape))
    return _counts(hmm, checked, given, mask, inside)


def _counts(
    hmm: InputOutputHMM, observations_BT: Tensor, inputs_BT: Tensor, mask_T: Tensor, inside_BT: Tensor
) -> InputCounts:
    size, count, num_symbols = hmm.num_states, hmm.num_inputs, hmm.num_symbols
    batch, time = observations_BT.shape
    first, moves = np.zeros(size), np.zeros((count, size, size))
    emitted, logs = np.zeros((count, num_symbols + 1, size)), np.zeros(batch)
    each = max(1, _MOST_PAIRS // max(1, time * size * size))
    process, symbols_BT = hmm.given_inputs(observations_BT, inputs_BT, mask_T)
    for begin in range(0, batch, each):
        part = slice(begin, begin + each)
        inside, given = inside_BT[part].numpy(), inputs_BT[part].numpy()
        found = smooth_pairs(process, symbols_BT[part], lengths=counted(inside_BT[part]))
        beliefs, pairs = found.beliefs.numpy(), found.pairs.numpy()
        logs[part] = found.log_likelihood.numpy()
        dead = np.flatnonzero(logs[part] == -np.inf)
        if len(dead):
            raise InputError(f"observations[{begin + dead[0]}]: the sequence has probability zero")
        first += beliefs[:, 0][inside[:, 0]].sum(0)
        np.add.at(emitted, (given[inside], observations_BT[part].numpy()[inside]), beliefs[inside])
        later = inside[:, 1:]
        np.add.at(moves, given[:, 1:][later], pairs[later])
    return InputCounts(first, moves, emitted[:, :num_symbols].swapaxes(1, 2), logs)


class _End(NamedTuple):
    hmm: InputOutputHMM
    log_likelihood: float
    num_iterations: int
    converged: bool


@dataclass(frozen=True)
class _Data:
    observations: Int64[Tensor, "batch time"]
    inputs: Int64[Tensor, "batch time"]
    mask: Bool[Tensor, "time"]
    inside: Bool[Tensor, "batch time"]
    pseudo_count: float

    def maximise(self, hmm: InputOutputHMM, counts: InputCounts) -> InputOutputHMM:
        return InputOutputHMM(*(self._rows(getattr(hmm, p), n) for p, n in zip(PARTS, counts[:3], strict=True)))

    def _rows(self, before: Tensor, counts: Array) -> Array:
        old = before.numpy()
        weight = np.where(old > 0, counts + self.pseudo_count, 0.0)
        total = weight.sum(-1, keepdims=True)
        return np.divide(weight, total, where=total > 0, out=np.array(old))

    def log_prior(self, hmm: InputOutputHMM) -> float:
        rows = [hmm.initial, hmm.transition, hmm.emission]
        logs = [float(row[row > 0].log().sum()) for row in rows] if self.pseudo_count else []
        return self.pseudo_count * sum(logs)

    def climb(self, hmm: InputOutputHMM, max_iterations: int, tolerance: float) -> _End:
        before, iteration, num_steps = -math.inf, 0, int(self.inside.sum())
        while True:
            counts = _counts(hmm, self.observations, self.inputs, self.mask, self.inside)
            score = float(counts.log_likelihood.sum())
            reached = score + self.log_prior(hmm)
            converged = reached - before < tolerance * num_steps
            if converged or iteration == max_iterations:
                return _End(hmm, score, iteration, converged)
            hmm, before, iteration = self.maximise(hmm, counts), reached, iteration + 1


def fit_inputs(
    observations: object,
    inputs: object,
    num_states: int,
    num_symbols: int,
    num_inputs: int,
    *,
    lengths: object = None,
    start: InputOutputHMM | None = None,
    num_restarts: int = 12,
    max_iterations: int = 200,
    tolerance: float = 1e-7,
    pseudo_count: float = 0.1,
    seed: int = 0,
) -> InputFit:
    """Fit an input-output HMM to independent sequences with known inputs by EM.

    transition_uij ∝ E[transitions i -> j under input u];  emission_uiv ∝ E[symbols v emitted by i under input u]

    Args:
        observations: Symbols in [0, V), shape (batch, time); `hmmscope.MISSING` is summed over.
        inputs: In [0, U), as observations.
        num_states, num_symbols, num_inputs: S, V and U.
        lengths: Observations per sequence (batch,).
        start: First start; zeros stay zero.
        num_restarts, max_iterations, tolerance, pseudo_count, seed: As for `fit_baum_welch`.

    Raises:
        InputError: Invalid data or options, or a `start` that forbids a sequence.
    """
    for name, value in {"num_states": num_states, "num_symbols": num_symbols, "num_inputs": num_inputs}.items():
        require_count(name, value)
    for name, value in {"num_restarts": num_restarts, "max_iterations": max_iterations}.items():
        require_count(name, value)
    require(
        min(tolerance, pseudo_count) >= 0, "tolerance, pseudo_count", "must be at least 0", min(tolerance, pseudo_count)
    )
    sizes = num_inputs, num_states, num_symbols
    if start is not None and (start.num_inputs, start.num_states, start.num_symbols) != sizes:
        raise InputError(f"start: must have {sizes[0]} inputs, {sizes[1]} states and {sizes[2]} symbols, got {start!r}")
    checked, mask, inside = check_ragged(observations, Alphabet(None, num_symbols), None, lengths)
    require(bool(inside.any()), "observations", "must hold at least one", tuple(checked.shape))
    first = _random(0, seed, *sizes)
    data = _Data(checked, first.checked_inputs(inputs, tuple(checked.shape)), mask, inside, float(pseudo_count))

    def restart(number: int) -> _End:
        begun = start if start is not None and number == 0 else _random(number, seed, *sizes)
        return data.climb(begun, max_iterations, tolerance)

    width, near = min(torch.get_num_threads(), num_restarts), max(SAME, 1e-5 * int(inside.sum()))
    restarts = RestartSearch(on_threads(restart, width), num_restarts, (width, width), near)
    best = restarts.best
    positive = [(start is None) | (getattr(start or first, part) > 0).numpy() for part in PARTS]
    free = {p: int(own.sum() - own.any(-1).sum()) for p, own in zip(PARTS, positive, strict=True)}
    count, steps = int(inside.any(1).sum()), int(inside.sum())
    seen = {"initial": count, "transition": steps - count, "emission": int((inside & (checked < num_symbols)).sum())}
    penalty = sum(free[part] * math.log(max(1, seen[part])) for part in PARTS)
    about = best.num_iterations, best.converged, len(restarts.ends), restarts.restart_gap, restarts.restarts_agree
    return InputFit(best.hmm, best.log_likelihood, *about, penalty - 2 * best.log_likelihood, free)


def _random(number: int, seed: int, num_inputs: int, num_states: int, num_symbols: int) -> InputOutputHMM:
    rng = numpy_generator(seed, "input-output-fit", number)
    initial = rng.dirichlet(np.ones(num_states))
    transition = rng.dirichlet(np.ones(num_states), (num_inputs, num_states))
    if number % 2:
        transition = (np.eye(num_states) + transition) / 2
    return InputOutputHMM(initial, transition, rng.dirichlet(np.ones(num_symbols), (num_inputs, num_states)))
