"""Fit a hidden semi-Markov model by EM on its expanded HMM."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import BaumWelchFit, as_sequences, seen_by_part
from hmmscope.inference.em import Model, counts_of
from hmmscope.inference.free_parameters import log_of_positive, maximised_rows, num_free, restricted
from hmmscope.inference.loop_inputs import PackedSequences
from hmmscope.inference.restarts import check_limits, criterion, search
from hmmscope.processes.observations import Symbols
from hmmscope.processes.semi_markov import Durations, SemiMarkovHMM, with_durations
from hmmscope.schema import require, unknown_name
from hmmscope.seeds import numpy_generator

Array = NDArray[np.float64]

#: Families of durations.
FAMILIES = ("free", "negative-binomial")
#: Most pairs of a state and a remaining duration.
_MOST = 4096
_GOLDEN = (math.sqrt(5) - 1) / 2


class SemiMarkovParams(NamedTuple):
    """Parameters of a hidden semi-Markov model; `durations[i, d - 1]` = P(a visit of state i lasts d steps).

    Attributes:
        initial, transition, durations, emission: (S,), (S, S), (S, D) and (S, V).
    """

    initial: Array
    transition: Array
    durations: Array
    emission: Array

    def expanded(self) -> tuple[Durations, Model]:
        """Return the chain of pairs (state, remaining steps), and the HMM on these pairs."""
        chain = with_durations(self.initial, self.transition, self.durations)
        arrays = chain.initial.numpy(), chain.transition.numpy(), self.emission[chain.states.numpy()]
        return chain, Model(*arrays)

    def hmm(self, title: str = "") -> SemiMarkovHMM:
        return SemiMarkovHMM(*self, title=title)


@dataclass(frozen=True)
class DurationSteps:
    work: PackedSequences
    family: str
    pseudo_count: float
    support: tuple[NDArray[np.bool_], ...]

    @property
    def num_steps(self) -> float:
        return self.work.total(self.work.lengths)

    def counts(self, params: SemiMarkovParams) -> tuple[SemiMarkovParams, float]:
        chain, model = params.expanded()
        found = counts_of(model, self.work, 1)
        dead = np.flatnonzero(found.logs == -np.inf)
        if len(dead):
            raise InputError(f"start: gives observations[{int(self.work.rows[dead[0]])}] probability zero")
        states, left = chain.states.numpy(), chain.left.numpy() - 1
        first, durations = np.zeros(len(params.initial)), np.zeros_like(params.durations)
        moves, emitted = np.zeros_like(params.transition), np.zeros_like(params.emission)
        np.add.at(first, states, found.initial)
        np.add.at(durations, (states, left), found.initial)
        ends = np.flatnonzero(left == 0)
        np.add.at(moves, (states[ends][:, None], states[None]), found.transitions[ends])
        np.add.at(durations, (states, left), found.transitions[ends].sum(0))
        np.add.at(emitted, states, found.emissions.T)
        return SemiMarkovParams(first, moves, durations, emitted), self.work.total(found.logs)

    def maximise(self, before: SemiMarkovParams, counts: SemiMarkovParams) -> SemiMarkovParams:
        rows = [self._rows(old, count) for old, count in zip(before, counts, strict=True)]
        if self.family == "negative-binomial":
            rows[2] = self._durations(before.durations, counts.durations)
        return SemiMarkovParams(*rows)

    def begun(self, params: SemiMarkovParams) -> SemiMarkovParams:
        """Return parameters of the family with the zeros of `start`."""
        found = SemiMarkovParams(*(restricted(own, kept) for own, kept in zip(params, self.support, strict=True)))
        if self.family == "free":
            return found
        even = self.support[2] / self.support[2].sum(-1, keepdims=True)
        return found._replace(durations=self._durations(even, found.durations))

    def _durations(self, before: Array, counts: Array) -> Array:
        rows = zip(before, counts, self.support[2], strict=True)
        return np.stack([_negative_binomial(old, count, kept) for old, count, kept in rows])

    def _rows(self, before: Array, counts: Array) -> Array:
        """Maximize the posterior of rows; zeros, and rows without counts, stay."""
        share = maximised_rows(before, counts, self.pseudo_count)
        share[share < 2.0**-40] = 0.0  # as in EM without durations
        return np.asarray(share / share.sum(-1, keepdims=True))

    def log_prior(self, params: SemiMarkovParams) -> float:
        free = [params.initial, params.transition, params.emission]
        free += [params.durations] if self.family == "free" else []
        return self.pseudo_count * sum(map(log_of_positive, free))


def fit_durations(
    observations: Symbols | PackedSequences,
    num_states: int,
    num_symbols: int,
    longest: int,
    *,
    family: str = "free",
    lengths: object = None,
    sequence_weights: Any = None,
    start: Any = None,
    num_restarts: int = 6,
    max_iterations: int = 100,
    tolerance: float = 1e-6,
    pseudo_count: float = 0.1,
    seed: int = 0,
    callback: Callable[[int], object] | None = None,
) -> BaumWelchFit:
    """Fit a hidden semi-Markov model to independent sequences by EM.

    durations_id ∝ E[visits of state i that last d steps];  transition_ij ∝ E[visits of j after i]

    A sequence starts with a new visit; its end may cut the last visit short. No state follows itself, unless there is
    one state. The family "negative-binomial" restricts d - 1 to a negative binomial distribution, cut off at `longest`
    and at zeros of `start`.

    Source: Yu (2010).

    Args:
        observations: Symbols in [0, V), shape (batch, time); `hmmscope.MISSING` is summed over.
        num_states, num_symbols: S and V.
        longest: Longest visit D.
        family: "free" or "negative-binomial".
        lengths, sequence_weights: Observations, and factor, of each sequence (batch,).
        start: First start, a `SemiMarkovHMM` or its four arrays; its zeros stay zero in every restart.
        num_restarts, max_iterations, tolerance, pseudo_count, seed, callback: As for `fit_baum_welch`.

    Raises:
        InputError: Invalid data or options, or a `start` that forbids a sequence.
    """
    limits = {"num_states": num_states, "num_symbols": num_symbols, "longest": longest}
    check_limits(num_restarts, max_iterations, {"tolerance": tolerance, "pseudo_count": pseudo_count}, **limits)
    require(num_states * longest <= _MOST, "longest", f"must be at most {_MOST} divided by num_states", longest)
    if family not in FAMILIES:
        raise unknown_name("family", family, FAMILIES)
    shapes = ((num_states,), (num_states, num_states), (num_states, longest), (num_states, num_symbols))
    if getattr(start, "visits", None) is not None:
        start = list(start.file_tensors().values())
    begins = None
    if start is not None:
        good = isinstance(start, Sequence) and len(start) == 4
        require(good, "start", "must be a SemiMarkovHMM, or its four arrays", type(start).__name__)
        begins = SemiMarkovParams(*(np.asarray(part, np.float64) for part in start))
        for name, part, shape in zip(SemiMarkovParams._fields, begins, shapes, strict=True):
            require(part.shape == shape, f"start.{name}", f"must have the shape {shape}", part.shape)
    work = as_sequences(observations, num_symbols, lengths, weights=sequence_weights)
    first = _random(0, seed, *shapes) if begins is None else begins
    steps = DurationSteps(work, family, float(pseudo_count), tuple(rows > 0 for rows in first))

    def begin(number: int) -> list[SemiMarkovParams]:
        return [steps.begun(_random(number, seed, *shapes) if number else first)]

    params, about = search(steps, begin, num_restarts, max_iterations, tolerance, callback)
    free = {name: num_free(kept) for name, kept in zip(first._fields, steps.support, strict=True)}
    if family == "negative-binomial":
        free["durations"] = int(np.minimum(2, steps.support[2].sum(-1) - 1).sum())
    moves = free["transition"] + free["durations"]
    parts = {"initial": free["initial"], "transition": moves, "emission": free["emission"]}
    bic = criterion(about["log_likelihood"], parts, seen_by_part(work, num_symbols))
    zeros = {} if begins is None else {name: int((rows == 0).sum()) for name, rows in begins._asdict().items()}
    hmm = params.hmm("semi-Markov fit")
    return BaumWelchFit(hmm, bic=bic, num_free=free, num_zeros=zeros, lists_free=True, **about)


def _random(number: int, seed: int, *shapes: tuple[int, ...]) -> SemiMarkovParams:
    rng = numpy_generator(seed, "semi-markov-fit", number)
    initial, transition, durations, emission = (rng.dirichlet(np.ones(shape[-1]), shape[:-1]) for shape in shapes)
    if len(initial) > 1:
        np.fill_diagonal(transition, 0.0)
        transition /= transition.sum(1, keepdims=True)
    return SemiMarkovParams(initial, transition, durations, emission)


def _negative_binomial(before: Array, counts: Array, kept: NDArray[np.bool_]) -> Array:
    """Fit a negative binomial restricted to durations that are `kept`, no worse than `before`.

    Golden-section search over log r.
    """
    if counts.sum() <= 0 or kept.sum() == 1:
        return before
    low, high = -4.0, 8.0
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    found = [_with_mean(at, counts, kept) for at in inner]
    scores = [_score(rows, counts) for rows in found]
    for _ in range(30):
        better = int(scores[1] > scores[0])
        low, high = (inner[0], high) if better else (low, inner[1])
        at = low + _GOLDEN * (high - low) if better else high - _GOLDEN * (high - low)
        new = _with_mean(at, counts, kept)
        order = 1 if better else -1
        inner = [inner[better], at][::order]
        found = [found[better], new][::order]
        scores = [scores[better], _score(new, counts)][::order]
    best = found[int(scores[1] > scores[0])]
    return best if _score(best, counts) > _score(before, counts) else before


def _with_mean(log_r: float, counts: Array, kept: NDArray[np.bool_]) -> Array:
    """Return the distribution with this r and the mean nearest to the counts'."""
    k, r = np.arange(len(counts)), math.exp(log_r)
    base = np.array([math.lgamma(n + r) - math.lgamma(n + 1) for n in k.tolist()])
    base[~kept] = -np.inf
    mean, low, high = float(k @ counts) / float(counts.sum()), -40.0, -1e-9

    def probs(log_p: float) -> Array:
        logs = base + k * log_p
        weights = np.exp(logs - logs.max())
        return np.asarray(weights / weights.sum())

    for _ in range(50):  # the mean increases with log p
        middle = (low + high) / 2
        low, high = (middle, high) if float(k @ probs(middle)) < mean else (low, middle)
    return probs((low + high) / 2)


def _score(probs: Array, counts: Array) -> float:
    with np.errstate(divide="ignore"):
        return float((counts * np.where(counts > 0, np.log(probs), 0.0)).sum())
