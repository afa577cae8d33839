"""Fit a hidden semi-Markov model by expectation maximization (EM) on its exact expanded HMM."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import SAME, as_sequences, criterion
from hmmscope.inference.em import Model, counts_of
from hmmscope.inference.loop_inputs import PackedSequences
from hmmscope.inference.restarts import RestartSearch, on_threads
from hmmscope.processes.hmm import HMM
from hmmscope.processes.observations import Symbols
from hmmscope.processes.semi_markov import Durations, with_durations
from hmmscope.schema import require, require_count, unknown_name
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
        """Return the chain of pairs (state, remaining steps), and its HMM."""
        chain = with_durations(self.initial, self.transition, self.durations)
        arrays = chain.initial.numpy(), chain.transition.numpy(), self.emission[chain.states.numpy()]
        return chain, Model(*arrays)

    def hmm(self, title: str = "") -> HMM:
        """Return the exact expanded HMM, with states named by state and remaining steps."""
        chain, model = self.expanded()
        pairs = zip(chain.states.tolist(), chain.left.tolist(), strict=True)
        return HMM(*model, states=[f"{s}, {left} left" for s, left in pairs], title=title, allow_drop_tiny=True)


@dataclass(frozen=True)
class SemiMarkovFit:
    """A fitted hidden semi-Markov model, with diagnostics as in `BaumWelchFit`.

    Attributes:
        params: Best parameters.
        hmm: Their exact expanded HMM, for all other functions.
    """

    params: SemiMarkovParams
    hmm: HMM
    log_likelihood: float
    num_iterations: int
    converged: bool
    num_restarts: int
    restart_gap: float
    restarts_agree: bool
    bic: float
    num_free: dict[str, int]


class _End(NamedTuple):
    params: SemiMarkovParams
    log_likelihood: float
    num_iterations: int
    converged: bool


@dataclass(frozen=True)
class _Settings:
    work: PackedSequences
    family: str
    pseudo_count: float

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
            pairs = zip(before.durations, counts.durations, strict=True)
            rows[2] = np.stack([_negative_binomial(old, count) for old, count in pairs])
        return SemiMarkovParams(*rows)

    def _rows(self, before: Array, counts: Array) -> Array:
        weight = np.where(before > 0, counts + self.pseudo_count, 0.0)
        total = weight.sum(-1, keepdims=True)
        share = np.divide(weight, total, where=total > 0, out=before.copy())
        share[share < 2.0**-40] = 0.0  # as in EM without durations
        return np.asarray(share / share.sum(-1, keepdims=True))

    def log_prior(self, params: SemiMarkovParams) -> float:
        free = [params.initial, params.transition, params.emission]
        free += [params.durations] if self.family == "free" else []
        return self.pseudo_count * sum(float(np.log(rows[rows > 0]).sum()) for rows in free)

    def climb(self, params: SemiMarkovParams, max_iterations: int, tolerance: float) -> _End:
        before, iteration, num_steps = -math.inf, 0, self.work.total(self.work.lengths)
        while True:
            counts, score = self.counts(params)
            reached = score + self.log_prior(params)
            converged = reached - before < tolerance * num_steps
            if converged or iteration == max_iterations:
                return _End(params, score, iteration, converged)
            params, before, iteration = self.maximise(params, counts), reached, iteration + 1


def fit_durations(
    observations: Symbols | PackedSequences,
    num_states: int,
    num_symbols: int,
    longest: int,
    *,
    family: str = "free",
    lengths: object = None,
    start: Sequence[Any] | None = None,
    num_restarts: int = 6,
    max_iterations: int = 100,
    tolerance: float = 1e-6,
    pseudo_count: float = 0.1,
    seed: int = 0,
) -> SemiMarkovFit:
    """Fit a hidden semi-Markov model to independent sequences by EM.

    durations_id ∝ E[visits of state i that last d steps];  transition_ij ∝ E[visits of j after i]

    A sequence starts with a new visit, and its end cuts the last one. States do not follow themselves, unless there is
    one state. "negative-binomial" restricts d - 1 to a negative binomial distribution below `longest`.

    Source: Yu (2010).

    Args:
        observations: Symbols in [0, V), shape (batch, time); `hmmscope.MISSING` is summed over.
        num_states, num_symbols: S and V.
        longest: Longest visit D.
        family: "free" or "negative-binomial".
        lengths: Observations per sequence (batch,).
        start: First start; zeros stay zero.
        num_restarts, max_iterations, tolerance, pseudo_count, seed: As for `fit_baum_welch`.

    Raises:
        InputError: Invalid data or options, or a `start` that forbids a sequence.
    """
    counts = {"num_states": num_states, "num_symbols": num_symbols, "longest": longest}
    for name, value in (counts | {"num_restarts": num_restarts, "max_iterations": max_iterations}).items():
        require_count(name, value)
    require(num_states * longest <= _MOST, "longest", f"must be at most {_MOST} over num_states", longest)
    require(
        min(tolerance, pseudo_count) >= 0, "tolerance, pseudo_count", "must be at least 0", (tolerance, pseudo_count)
    )
    if family not in FAMILIES:
        raise unknown_name("family", family, FAMILIES)
    shapes = ((num_states,), (num_states, num_states), (num_states, longest), (num_states, num_symbols))
    begins = None if start is None else SemiMarkovParams(*(np.asarray(part, np.float64) for part in start))
    if begins is not None:
        for name, part, shape in zip(SemiMarkovParams._fields, begins, shapes, strict=True):
            require(part.shape == shape, f"start.{name}", f"must have the shape {shape}", part.shape)
    work = as_sequences(observations, num_symbols, lengths)
    settings = _Settings(work, family, float(pseudo_count))

    def restart(number: int) -> _End:
        begun = begins if begins is not None and number == 0 else _random(number, seed, *shapes)
        if family == "negative-binomial" and begun is not begins:
            begun = begun._replace(durations=np.stack([_negative_binomial(row, row) for row in begun.durations]))
        return settings.climb(begun, max_iterations, tolerance)

    width, near = min(torch.get_num_threads(), num_restarts), max(SAME, 1e-5 * work.total(work.lengths))
    restarts = RestartSearch(on_threads(restart, width), num_restarts, (width, width), near)
    best = restarts.best
    free = _num_free(begins or _random(0, seed, *shapes), family)
    parts = {
        "initial": free["initial"],
        "transition": free["transition"] + free["durations"],
        "emission": free["emission"],
    }
    about = best.num_iterations, best.converged, len(restarts.ends), restarts.restart_gap, restarts.restarts_agree
    bic = criterion(best.log_likelihood, parts, work, num_symbols)
    return SemiMarkovFit(best.params, best.params.hmm("semi-Markov fit"), best.log_likelihood, *about, bic, free)


def _num_free(params: SemiMarkovParams, family: str) -> dict[str, int]:
    each = {name: int((rows > 0).sum() - rows[..., 0].size) for name, rows in params._asdict().items()}
    if family == "negative-binomial":
        each["durations"] = min(2, params.durations.shape[1] - 1) * len(params.durations)
    return each


def _random(number: int, seed: int, *shapes: tuple[int, ...]) -> SemiMarkovParams:
    rng = numpy_generator(seed, "semi-markov-fit", number)
    initial, transition, durations, emission = (rng.dirichlet(np.ones(shape[-1]), shape[:-1]) for shape in shapes)
    if len(initial) > 1:
        np.fill_diagonal(transition, 0.0)
        transition /= transition.sum(1, keepdims=True)
    return SemiMarkovParams(initial, transition, durations, emission)


def _negative_binomial(before: Array, counts: Array) -> Array:
    """Return a truncated negative binomial distribution that fits counts no worse than `before`.

    Golden-section search over log r; for each r, the log of the success probability solves a concave problem.
    """
    if counts.sum() <= 0 or len(counts) == 1:
        return before
    low, high = -4.0, 8.0
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    found = [_with_mean(at, counts) for at in inner]
    scores = [_score(rows, counts) for rows in found]
    for _ in range(30):
        better = int(scores[1] > scores[0])
        low, high = (inner[0], high) if better else (low, inner[1])
        at = low + _GOLDEN * (high - low) if better else high - _GOLDEN * (high - low)
        new = _with_mean(at, counts)
        order = 1 if better else -1
        inner = [inner[better], at][::order]
        found = [found[better], new][::order]
        scores = [scores[better], _score(new, counts)][::order]
    best = found[int(scores[1] > scores[0])]
    return best if _score(best, counts) > _score(before, counts) else before


def _with_mean(log_r: float, counts: Array) -> Array:
    """Return the truncated distribution with this r whose mean is nearest to that of the counts."""
    k, r = np.arange(len(counts)), math.exp(log_r)
    base = np.array([math.lgamma(n + r) - math.lgamma(n + 1) for n in k.tolist()])
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
