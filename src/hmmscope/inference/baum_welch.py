"""Fitting hidden Markov models to sequences by expectation maximisation (Baum and Welch), and how many states to fit."""

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.counts import Counts, add_counts
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.ragged import check_ragged
from hmmscope.inference.tables import Sequences, Tables, sequences
from hmmscope.processes.hmm import HMM
from hmmscope.schema import require
from hmmscope.seeds import numpy_generator

#: Parts of a model.
PARTS = ("initial", "transition", "emission")

#: Smaller probabilities become zero: from here on the compiled loops see in time what could underflow.
_SMALLEST = 2.0**-40


@dataclass(frozen=True)
class BaumWelchFit:
    """A fitted model.

    Attributes:
        hmm: the model of the best restart.
        log_likelihood: log P(all observations) under it, nats.
        num_iterations: iterations of that restart.
        converged: whether its last step gained less than the tolerance, before the iterations ended.
    """

    hmm: HMM
    log_likelihood: float
    num_iterations: int
    converged: bool


class _Model(NamedTuple):
    """Parameters in floats: quantised only when all is done."""

    initial: NDArray[np.float64]
    transition: NDArray[np.float64]
    emission: NDArray[np.float64]

    def tables(self) -> Tables:
        emission_VS = np.ascontiguousarray(self.emission.T)
        return Tables(self.initial * emission_VS, np.ascontiguousarray(self.transition[None]), emission_VS)


@dataclass(frozen=True)
class _Rules:
    """What every step of maximisation keeps to."""

    pseudo_count: float
    fixed: frozenset[str]
    classes: NDArray[np.int64] | None

    def maximise(self, model: _Model, counts: Counts) -> _Model:
        """The model of largest expected log-posterior; probabilities of zero stay zero, rows without counts stay."""
        found = []
        for part, before, count in zip(PARTS, model, (counts.first, counts.transitions, counts.visits.T), strict=True):
            if part in self.fixed:
                found.append(before)
                continue
            weight = np.where(before > 0, count + self.pseudo_count, 0.0)
            if part == "emission" and self.classes is not None:
                shared = np.zeros_like(weight)
                np.add.at(shared, self.classes, np.where(before > 0, count, 0.0))
                weight = np.where(before > 0, shared[self.classes] + self.pseudo_count, 0.0)
            total = weight.sum(-1, keepdims=True)
            share = np.divide(weight, total, where=total > 0, out=before.copy())
            share[share < _SMALLEST] = 0.0
            found.append(share / share.sum(-1, keepdims=True))
        return _Model(*found)

    def log_prior(self, model: _Model) -> float:
        """Log density of the free parts under Dirichlet(1 + pseudo_count) rows, up to a constant."""
        if not self.pseudo_count:
            return 0.0
        free = [rows for part, rows in zip(PARTS, model, strict=True) if part not in self.fixed]
        if self.classes is not None and "emission" not in self.fixed:
            free[-1] = model.emission[np.unique(self.classes, return_index=True)[1]]
        return self.pseudo_count * sum(float(np.log(rows[rows > 0]).sum()) for rows in free)


def fit_baum_welch(
    observations: Int[Tensor, "batch time"] | Sequences,
    num_states: int,
    num_symbols: int,
    *,
    lengths: object = None,
    start: HMM | None = None,
    fixed: Collection[str] = (),
    tied_emissions: Sequence[int] | None = None,
    num_restarts: int = 3,
    max_iterations: int = 50,
    tolerance: float = 1e-7,
    pseudo_count: float = 0.1,
    seed: int = 0,
    heard: Callable[[int], object] | None = None,
) -> BaumWelchFit:
    """Fit a state-emitting HMM to independent sequences by expectation maximisation.

    initial_i ∝ E[first states i];  transition_ij ∝ E[moves i -> j];  emission_iv ∝ E[visits of i with symbol v]

    With a positive `pseudo_count` c, which is added to every expected count, the maximum is that of the posterior under
    Dirichlet(1 + c) rows, and no symbol is taken to be impossible because it has not been seen yet. A probability that
    is zero at the start stays zero, and gets no pseudo-count.

    Source: Baum, Petrie, Soules and Weiss (1970).

    Args:
        observations: symbols in [0, V), shape (batch, time); or sequences in one flat array.
        num_states, num_symbols: S and V of the model.
        lengths: optional number of observations of each sequence (batch,).
        start: where the first restart begins, and what fixed parts are; the other restarts are random.
        fixed: which of "initial", "transition", "emission" are kept as in `start`.
        tied_emissions: a class number for each state; states of one class have one emission law.
        num_restarts: starts, on as many threads as torch has; the one with the largest log-likelihood is kept.
        max_iterations: of each.
        tolerance: a gain of log-likelihood (log-posterior, with pseudo-counts) in nats per observation below which a
            restart has converged.
        pseudo_count: at least 0.
        seed: in [0, 2^32).
        heard: called, from several threads, with the number of iterations that need not be made any more: after each one,
            and for those that are left when a restart has converged.

    Raises:
        InputError: no observations; options out of range; a `start` that forbids a sequence.

    Cost: restarts * iterations * batch * time * S^2.
    """
    for name, value, least in (
        ("num_states", num_states, 1),
        ("num_restarts", num_restarts, 1),
        ("max_iterations", max_iterations, 1),
        ("pseudo_count", pseudo_count, 0),
        ("tolerance", tolerance, 0),
    ):
        require(value >= least, name, f"must be at least {least}", value)
    work = _sequences(observations, num_symbols, lengths)
    rules = _rules(num_states, num_symbols, start, fixed, tied_emissions, pseudo_count)
    num_threads = torch.get_num_threads()

    def restart(number: int) -> tuple[_Model, float, int, bool]:
        model = _random(number, seed, num_states, num_symbols, start if number == 0 else None, rules)
        if start is not None:
            parts = zip(PARTS, _rows(start), model, strict=True)
            model = _Model(*(given if part in rules.fixed else own for part, given, own in parts))
        climbed = _climb(model, work, rules, max_iterations, tolerance, max(1, num_threads // num_restarts), heard)
        if heard is not None:
            heard(max_iterations - climbed[2])
        return climbed

    with ThreadPoolExecutor(min(num_threads, num_restarts)) as pool:
        found = list(pool.map(restart, range(num_restarts)))
    model, score, iterations, converged = max(found, key=lambda one: one[1])
    return BaumWelchFit(HMM(*model, title="Baum-Welch fit", allow_drop_tiny=True), score, iterations, converged)


def _climb(
    model: _Model,
    work: Sequences,
    rules: _Rules,
    max_iterations: int,
    tolerance: float,
    num_threads: int,
    heard: Callable[[int], object] | None,
) -> tuple[_Model, float, int, bool]:
    """The model at the end, its log-likelihood, the number of steps, and whether the last gained less than asked for."""
    num_tokens, before, iteration = int(work.lengths.sum()), -np.inf, 0
    while True:
        counts = _expect(model, work, num_threads)
        score = float(counts.logs.sum())
        reached = score + rules.log_prior(model)
        converged = reached - before < tolerance * num_tokens
        if converged or iteration == max_iterations:
            return model, score, iteration, converged
        model, before, iteration = rules.maximise(model, counts), reached, iteration + 1
        if heard is not None:
            heard(1)


def _counts(model: _Model, work: Sequences, num_threads: int) -> Counts:
    size, num_symbols = model.emission.shape
    counts = Counts(np.zeros(size), np.zeros((size, size)), np.zeros((num_symbols, size)), np.zeros(len(work.rows)))
    add_counts(model.tables(), work, counts, num_threads)
    return counts


def _expect(model: _Model, work: Sequences, num_threads: int) -> Counts:
    """Expected counts under a model; InputError if it forbids a sequence."""
    counts = _counts(model, work, num_threads)
    if (counts.logs == -np.inf).any():
        row = int(work.rows[np.flatnonzero(counts.logs == -np.inf)[0]])
        raise InputError(f"start: forbids observations[{row}], and expectation maximisation keeps zeros")
    return counts


def _sequences(
    observations: Tensor | Sequences, num_symbols: int, lengths: object = None, name: str = "observations"
) -> Sequences:
    """The sequences that are not empty, packed; InputError if there is none."""
    if isinstance(observations, Sequences):
        return observations.packed()._replace(rows=np.arange(len(observations.rows)))
    checked, mask, inside = check_ragged(observations, num_symbols, None, lengths)
    work = sequences(checked.cpu(), mask, inside.sum(1).cpu()).packed()
    require(len(work.rows) > 0, name, "must hold at least one", tuple(checked.shape))
    return work._replace(rows=np.arange(len(work.rows)))


def _rules(
    num_states: int,
    num_symbols: int,
    start: HMM | None,
    fixed: Collection[str],
    tied: Sequence[int] | None,
    pseudo_count: float,
) -> _Rules:
    require(set(fixed) <= set(PARTS), "fixed", f"must be among {', '.join(PARTS)}", sorted(fixed))
    require(start is not None or not fixed, "fixed", "needs a start to take the parts from", sorted(fixed))
    if start is not None and (start.num_states, start.num_symbols) != (num_states, num_symbols):
        raise InputError(f"start: must have {num_states} states and {num_symbols} symbols, got {start!r}")
    if tied is None:
        return _Rules(pseudo_count, frozenset(fixed), None)
    classes = np.asarray(tied)
    if (
        classes.shape != (num_states,)
        or classes.dtype.kind not in "iu"
        or classes.min() < 0
        or classes.max() >= num_states
    ):
        raise InputError(f"tied_emissions: must be {num_states} class numbers in [0, {num_states})")
    return _Rules(pseudo_count, frozenset(fixed), classes)


def _rows(hmm: HMM) -> tuple[NDArray[np.float64], ...]:
    return hmm.initial_S.numpy(), hmm.transition_SS.numpy(), hmm.emission_SV.numpy()


def _random(number: int, seed: int, num_states: int, num_symbols: int, start: HMM | None, rules: _Rules) -> _Model:
    """`start` if given, or Dirichlet(1) rows; tied states begin with the emission law of their class's first."""
    if start is not None:
        initial, transition, emission = _rows(start)
    else:
        rng = numpy_generator(seed, "baum-welch", number)
        initial = rng.dirichlet(np.ones(num_states))
        transition = rng.dirichlet(np.ones(num_states), num_states)
        emission = rng.dirichlet(np.ones(num_symbols), num_states)
    if rules.classes is not None and "emission" not in rules.fixed:
        _, first, inverse = np.unique(rules.classes, return_index=True, return_inverse=True)
        emission = emission[first][inverse]
    return _Model(initial, transition, emission)


@dataclass(frozen=True)
class NumStatesChoice:
    """Models of several sizes, judged on sequences that they have not seen.

    Attributes:
        num_states: of the model that gives the held-out sequences the largest probability.
        fits: the fit of each candidate.
        held_out: mean log-probability of a held-out observation under each, nats.
    """

    num_states: int
    fits: dict[int, BaumWelchFit]
    held_out: dict[int, float]


def choose_num_states(
    observations: Int[Tensor, "batch time"] | Sequences,
    held_out: Int[Tensor, "other other_time"] | Sequences,
    candidates: Sequence[int],
    num_symbols: int,
    *,
    lengths: object = None,
    held_out_lengths: object = None,
    **options: Any,
) -> NumStatesChoice:
    """Fit each number of states to `observations` and compare by the likelihood of `held_out`.

    Args:
        observations, lengths: to fit.
        held_out, held_out_lengths: to judge; symbols that a fit forbids make its score -inf, so use pseudo-counts.
        candidates: numbers of states, the smaller preferred among equals.
        num_symbols: V.
        options: of `fit_baum_welch`.

    Raises:
        InputError: as `fit_baum_welch`; no candidates.
    """
    require(len(candidates) > 0, "candidates", "must hold at least one number of states", list(candidates))
    judged = _sequences(held_out, num_symbols, held_out_lengths, "held_out")
    fits, scores = {}, {}
    for size in sorted(set(candidates)):
        fits[size] = fit_baum_welch(observations, size, num_symbols, lengths=lengths, **options)
        logs = _counts(_Model(*_rows(fits[size].hmm)), judged, torch.get_num_threads()).logs
        scores[size] = float(logs.sum()) / int(judged.lengths.sum())
    return NumStatesChoice(max(scores, key=lambda size: scores[size]), fits, scores)


def fit_stream(
    batches: Iterable[Int[Tensor, "batch time"] | Sequences],
    start: HMM,
    *,
    fixed: Collection[str] = (),
    exponent: float = 0.6,
    pseudo_count: float = 0.1,
) -> HMM:
    """Expectation maximisation on a stream: each batch of complete sequences is seen once.

    average_k = (1 - rate_k) average_{k-1} + rate_k E[counts of batch k] / number of its sequences,  rate_k = k^-exponent

    and the model maximises as in `fit_baum_welch` for the average, with `pseudo_count` spread over the sequences seen.

    Source: Cappé and Moulines (2009), on-line expectation maximisation.

    Args:
        batches: symbols in [0, V), each (batch, time), or sequences in one flat array.
        start: the model to begin with; its zeros stay.
        fixed: as in `fit_baum_welch`.
        exponent: of the rates, in (1/2, 1].
        pseudo_count: at least 0.

    Raises:
        InputError: no batch; options out of range; a batch that `start` forbids.
    """
    require(0.5 < exponent <= 1, "exponent", "must be in (1/2, 1]", exponent)
    require(pseudo_count >= 0, "pseudo_count", "must be at least 0", pseudo_count)
    model, average, seen = _Model(*_rows(start)), None, 0
    for number, batch in enumerate(batches, 1):
        work = _sequences(batch, start.num_symbols)
        counts, seen = _expect(model, work, torch.get_num_threads()), seen + len(work.rows)
        each, rate = [part / len(work.rows) for part in counts[:3]], number**-exponent
        average = [o + rate * (n - o) for o, n in zip(average, each, strict=True)] if average else each
        rules = _rules(start.num_states, start.num_symbols, start, fixed, None, pseudo_count / seen)
        model = rules.maximise(model, Counts(average[0], average[1], average[2], counts.logs))
    require(seen > 0, "batches", "must hold at least one", seen)
    return HMM(*model, title="Baum-Welch fit to a stream", allow_drop_tiny=True)


def baum_welch_predictions(
    observations: Int[Tensor, "batch time"],
    num_states: int,
    num_symbols: int,
    positions: Sequence[int],
    **options: Any,
) -> Float64[Tensor, "batch position symbol"]:
    """P(o_{t+1} | o_0..o_t) at each t of `positions`, by the model fitted to o_0..o_t of that sequence alone.

    It is the in-context baseline that fits a hidden Markov model to what it has seen so far.

    Args:
        observations: (batch, time).
        num_states, num_symbols: of the models.
        positions: times t in [0, time).
        options: of `fit_baum_welch`, but `lengths`.

    Cost: a fit for each sequence and position.
    """
    observations = torch.as_tensor(observations)
    time = observations.shape[1]
    if not all(0 <= t < time for t in positions):
        raise InputError(f"positions: must be in [0, {time}), got {list(positions)}")
    predicted = torch.zeros(len(observations), len(positions), num_symbols, dtype=torch.float64)
    for b in range(len(observations)):
        for p, t in enumerate(positions):
            seen = observations[b : b + 1, : t + 1]
            fitted = fit_baum_welch(seen, num_states, num_symbols, **options)
            predicted[b, p] = filter_beliefs(fitted.hmm, seen).next_observation[0, -1]
    return predicted
