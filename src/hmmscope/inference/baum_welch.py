"""Fitting hidden Markov models to sequences by expectation maximisation (Baum and Welch)."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.counts import Counts
from hmmscope.inference.em import (
    PARTS,
    EMResult,
    EMRunner,
    Model,
    MStepSettings,
    can_run_side_by_side,
    counts_of,
    expect,
)
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.loop_inputs import PackedSequences, sequences
from hmmscope.inference.ragged import check_ragged, counted
from hmmscope.inference.restarts import RestartSearch, on_threads
from hmmscope.processes.hmm import HMM
from hmmscope.processes.observations import Symbols, whole_batch
from hmmscope.schema import is_count, require
from hmmscope.seeds import numpy_generator
from hmmscope.sequences.encoding import Alphabet
from hmmscope.sequences.large import num_equal
from hmmscope.ties import largest

#: Log-likelihoods that differ by less, in nats, agree.
SAME = 0.1
#: Restarts of the first wave and of every other where models climb side by side: on one thread, and on several.
WAVES = ((4, 8), (12, 12))
#: Iterations after which the random starts of a restart are compared, of which the best one climbs on.
TRIED_ITERATIONS = 10


@dataclass(frozen=True)
class BaumWelchFit:
    """A fitted model.

    Attributes:
        hmm: the model of the best restart.
        log_likelihood: log P(all observations) under it, nats.
        num_iterations: iterations of that restart.
        converged: whether its last step gained less than the tolerance, before the iterations ended.
        num_restarts: restarts that were made.
        restart_gap: log-likelihood of the best restart less that of the second, nats; infinite if there was one.
        restarts_agree: whether the best two agree in likelihood, see `fit_baum_welch`.
        bic: the Bayesian information criterion: -2 log-likelihood + (free initial probabilities) log(sequences) + (free
            transition probabilities) log(moves) + (free emission probabilities) log(observations); small is good.
        num_free: how many probabilities of each part are free: the positive entries of `start` less one a row, or all
            entries less one a row; none of fixed parts, and the laws of tied states once.
        num_zeros: how many probabilities of each part are fixed at zero, because `start` has zeros there.
    """

    hmm: HMM
    log_likelihood: float
    num_iterations: int
    converged: bool
    num_restarts: int
    restart_gap: float
    restarts_agree: bool
    bic: float
    num_free: dict[str, int] = field(default_factory=dict)
    num_zeros: dict[str, int] = field(default_factory=dict)

    @property
    def remarks(self) -> list[str]:
        """What a reader should know of it besides, in lines: nothing."""
        return []


def fit_baum_welch(
    observations: Symbols | PackedSequences,
    num_states: int,
    num_symbols: int,
    *,
    lengths: object = None,
    start: HMM | None = None,
    fixed: Collection[str] = (),
    tied_emissions: Sequence[int] | None = None,
    num_restarts: int = 12,
    num_tries: int = 4,
    agreement: float = 1e-5,
    max_iterations: int = 200,
    tolerance: float = 1e-7,
    pseudo_count: float = 0.1,
    seed: int = 0,
    callback: Callable[[int], object] | None = None,
) -> BaumWelchFit:
    """Fit a state-emitting HMM to independent sequences by expectation maximisation.

    initial_i ∝ E[first states i];  transition_ij ∝ E[moves i -> j];  emission_iv ∝ E[visits of i with symbol v]

    With a positive `pseudo_count` c, which is added to every expected count, the maximum is that of the posterior under
    Dirichlet(1 + c) rows, and no symbol is taken to be impossible because it has not been seen yet. A probability that
    is zero in `start` stays zero in every restart, and gets no pseudo-count.

    There are local maxima. So there are restarts, three or more, until the best two agree: their log-likelihoods differ by
    less than `agreement` nats an observation, or by less than 0.1 nats in all. Each restart makes ten iterations from each
    of `num_tries` random starts and goes on from the likeliest; every other start is of states that tend to stay.

    Source: Baum, Petrie, Soules and Weiss (1970); short runs before long ones: Biernacki, Celeux and Govaert (2003).

    Args:
        observations: symbols in [0, V), shape (batch, time); or sequences in one flat array. What is missing
            (`hmmscope.MISSING`, in a flat array V) is summed over: such a step has a state, and counts for no emission.
        num_states, num_symbols: S and V of the model.
        lengths: optional number of observations of each sequence (batch,).
        start: where the first restart begins, what fixed parts are, and where zeros are; the other restarts are random.
        fixed: which of "initial", "transition", "emission" are kept as in `start`.
        tied_emissions: a class number for each state; states of one class have one emission law, with the zeros of all.
        num_restarts: at most so many, on as many threads as torch has; the one with the largest log-likelihood is kept.
        num_tries: random starts of each restart; with one of them its ten iterations are left out.
        agreement: nats an observation; with zero only restarts less than 0.1 nats apart agree.
        max_iterations: of each restart, from the best of its random starts on.
        tolerance: a gain of log-likelihood (log-posterior, with pseudo-counts) in nats per observation below which a
            restart has converged.
        pseudo_count: at least 0.
        seed: in [0, 2^32).
        callback: called, from several threads, with the number of iterations that need not be made any more: after each one,
            and for those that are left when a restart has converged.

    Raises:
        InputError: no observations; options out of range; a `start` that forbids a sequence.

    Cost: restarts * iterations * batch * time * S^2.
    """
    _at_least(1, num_states=num_states, num_restarts=num_restarts, num_tries=num_tries, max_iterations=max_iterations)
    _at_least(0, agreement=agreement, pseudo_count=pseudo_count, tolerance=tolerance)
    work = as_sequences(observations, num_symbols, lengths)
    rules = _rules(num_states, num_symbols, start, fixed, tied_emissions, pseudo_count)
    together = num_restarts > 1 and can_run_side_by_side(num_states, work)
    threads = torch.get_num_threads()
    width = min(threads, num_restarts)
    climb = EMRunner(work, rules, threads if together else max(1, threads // width))

    def begins(number: int) -> list[Model]:
        if number == 0 and start is not None:
            return [rules.kept(rules.tied(Model.of(start)), start)]
        drawn = (_random(number, attempt, seed, num_states, num_symbols, rules) for attempt in range(num_tries))
        return [rules.kept(rules.restricted(model), start) for model in drawn]

    search = _RestartSearch(begins, climb, max_iterations, tolerance, callback or bool)
    near = max(SAME, agreement * int(work.lengths.sum()))
    if together:
        restarts = RestartSearch(search.wave, num_restarts, WAVES[min(threads, 2) - 1], near)
    else:
        restarts = RestartSearch(on_threads(search.restart, width), num_restarts, (width, width), near)
    search.hear((num_restarts - restarts.made) * max_iterations)
    return _fitted(restarts, work, rules)


class _RestartSearch(NamedTuple):
    """Restarts, one after the other or several side by side.

    Attributes:
        begins: from the number of a restart to the starts that it tries.
        climb: from a start on.
        max_iterations, tolerance, hear: as `fit_baum_welch`.
    """

    begins: Callable[[int], list[Model]]
    climb: EMRunner
    max_iterations: int
    tolerance: float
    hear: Callable[[int], object]

    def restart(self, number: int) -> EMResult:
        tried = self.begins(number)
        if len(tried) > 1:
            tried = [_likeliest([self.climb(model, TRIED_ITERATIONS, 0.0) for model in tried])]
        climbed = self.climb(tried[0], self.max_iterations, self.tolerance, self.hear)
        self.hear(self.max_iterations - climbed.num_iterations)
        return climbed

    def wave(self, numbers: Sequence[int]) -> list[EMResult]:
        """Several restarts, each as alone."""
        tried = [self.begins(number) for number in numbers]
        several = [model for models in tried if len(models) > 1 for model in models]
        reached = iter(self.climb.side_by_side(several, TRIED_ITERATIONS, 0.0) if several else ())
        best = [own[0] if len(own) == 1 else _likeliest([next(reached) for _ in own]) for own in tried]
        ends = self.climb.side_by_side(best, self.max_iterations, self.tolerance, self.hear)
        self.hear(sum(self.max_iterations - end.num_iterations for end in ends))
        return ends


def _at_least(least: int, **options: int | float) -> None:
    """InputError that names the first option below `least`."""
    for name, value in options.items():
        require(value >= least, name, f"must be at least {least}", value)
        require(not least or is_count(value), name, "must be whole", value)


def _fitted(restarts: RestartSearch[EMResult], work: PackedSequences, rules: MStepSettings) -> BaumWelchFit:
    """The likeliest of the restarts, and how it was found."""
    best = restarts.best
    free = rules.num_free(best.model)
    return BaumWelchFit(
        HMM(*best.model, title="Baum-Welch fit", allow_drop_tiny=True),
        best.log_likelihood,
        best.num_iterations,
        best.converged,
        num_restarts=len(restarts.ends),
        restart_gap=restarts.restart_gap,
        restarts_agree=restarts.restarts_agree,
        bic=criterion(best.log_likelihood, free, work, best.model.emission.shape[1]),
        num_free=free,
        num_zeros=rules.num_zeros,
    )


def _likeliest(tried: Sequence[EMResult]) -> Model:
    """Where the most promising of some starts has come."""
    return largest(tried, key=lambda one: one.log_likelihood).model


def criterion(log_likelihood: float, free: dict[str, int], work: PackedSequences, num_symbols: int) -> float:
    """-2 log-likelihood + sum over the parts of the model of (free parameters) * log(what they are seen in).

    Initial probabilities are seen once in each sequence, transition probabilities at each move, emission probabilities at
    each observation that is not missing: one long sequence says next to nothing about the first, and short ones little
    about the second.
    """
    num_sequences, num_steps = len(work.rows), int(work.lengths.sum())
    num_observations = num_steps - num_equal(work.symbols, num_symbols)
    seen = dict(zip(PARTS, (num_sequences, num_steps - num_sequences, num_observations), strict=True))
    return sum((free[part] * math.log(max(1, seen[part])) for part in PARTS), 0.0) - 2 * log_likelihood


def as_sequences(
    observations: Symbols | PackedSequences, num_symbols: int, lengths: object = None, name: str = "observations"
) -> PackedSequences:
    """The sequences that are not empty; InputError if there is none."""
    if isinstance(observations, PackedSequences):
        return observations._replace(rows=np.arange(len(observations.rows)))
    checked, mask, inside = check_ragged(observations, Alphabet(None, num_symbols), None, lengths)
    work = sequences(checked.cpu(), mask, counted(inside).cpu()).packed()
    require(len(work.rows) > 0, name, "must hold at least one", tuple(checked.shape))
    require(bool((work.symbols < num_symbols).any()), name, "must hold one that is not missing", tuple(checked.shape))
    return work._replace(rows=np.arange(len(work.rows)))


def _rules(
    num_states: int,
    num_symbols: int,
    start: HMM | None,
    fixed: Collection[str],
    tied: Sequence[int] | None,
    pseudo_count: float,
) -> MStepSettings:
    require(set(fixed) <= set(PARTS), "fixed", f"must be among {', '.join(PARTS)}", sorted(fixed))
    require(start is not None or not fixed, "fixed", "needs a start to take the parts from", sorted(fixed))
    if start is not None and (start.num_states, start.num_symbols) != (num_states, num_symbols):
        raise InputError(f"start: must have {num_states} states and {num_symbols} symbols, got {start!r}")
    classes = None if tied is None else np.asarray(tied)
    if classes is not None and (
        classes.shape != (num_states,)
        or classes.dtype.kind not in "iu"
        or classes.min() < 0
        or classes.max() >= num_states
    ):
        raise InputError(f"tied_emissions: must be {num_states} class numbers in [0, {num_states})")
    rules = MStepSettings(pseudo_count, frozenset(fixed), classes)
    if start is None:
        return rules
    support = tuple(part > 0 for part in rules.tied(Model.of(start)))
    if classes is not None and not support[2].any(-1).all():
        name = classes[support[2].any(-1).argmin()]
        raise InputError(f"start: no symbol is possible in all states of class {name} of tied_emissions")
    return replace(rules, support=support)


def _random(number: int, attempt: int, seed: int, num_states: int, num_symbols: int, rules: MStepSettings) -> Model:
    """Dirichlet(1) rows; in every other attempt each state stays with one half more."""
    rng = numpy_generator(seed, f"baum-welch-{attempt}" if attempt else "baum-welch", number)
    initial = rng.dirichlet(np.ones(num_states))
    transition = rng.dirichlet(np.ones(num_states), num_states)
    emission = rng.dirichlet(np.ones(num_symbols), num_states)
    if attempt % 2:
        transition = (np.eye(num_states) + transition) / 2
    return rules.tied(Model(initial, transition, emission))


def held_out_log_likelihoods(hmm: HMM, work: PackedSequences) -> NDArray[np.float64]:
    """log P(sequence) for each of some packed sequences (n,), nats; -inf for one that the model forbids."""
    return counts_of(Model.of(hmm), work, torch.get_num_threads()).logs


def fit_stream(
    batches: Iterable[Int[Tensor, "batch time"] | PackedSequences],
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
    model, average, seen = Model.of(start), None, 0
    for number, batch in enumerate(batches, 1):
        work = as_sequences(batch, start.num_symbols)
        counts, seen = expect(model, work, torch.get_num_threads()), seen + len(work.rows)
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
    observations = whole_batch(observations, Alphabet(None, num_symbols))
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
