"""Fit a hidden semi-Markov model by EM on its expanded HMM."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmmscope.inference.baum_welch import BaumWelchFit, as_sequences, seen_by_part
from hmmscope.inference.constraints import Constraints, RowConstraints, as_constraints
from hmmscope.inference.em import PARTS, Model, counts_of, require_possible
from hmmscope.inference.loop_inputs import PackedSequences
from hmmscope.inference.restarts import check_limits, criterion, search
from hmmscope.inference.row_rules import RowRules
from hmmscope.processes.observations import Symbols
from hmmscope.processes.semi_markov import Durations, SemiMarkovHMM, with_durations
from hmmscope.schema import require, require_known
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
        initial, transition, durations, emission: Arrays (state,), (state, state), (state, duration), (state, symbol).
    """

    initial: Array
    transition: Array
    durations: Array
    emission: Array

    def expanded(self) -> tuple[Durations, Model]:
        chain = with_durations(self.initial, self.transition, self.durations)
        arrays = chain.initial.numpy(), chain.transition.numpy(), self.emission[chain.states.numpy()]
        return chain, Model(*arrays)

    def hmm(self, title: str = "") -> SemiMarkovHMM:
        return SemiMarkovHMM(*self, title=title)


@dataclass(frozen=True)
class DurationSteps:
    work: PackedSequences
    family: str
    rules: RowRules

    @property
    def num_steps(self) -> float:
        return self.work.total(self.work.lengths)

    def counts(self, params: SemiMarkovParams) -> tuple[SemiMarkovParams, float]:
        chain, model = params.expanded()
        sets, work = self.work.sets, self.work
        if sets is not None:
            work = work._replace(sets=sets._replace(allowed=sets.allowed[:, chain.states.numpy()]))
        found = counts_of(model, work, 1)
        require_possible(found.logs, work.rows)
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
        found = SemiMarkovParams(**self.rules.maximise(before._asdict(), counts._asdict()))
        return self.of_family(before.durations, found, counts.durations)

    @property
    def kept(self) -> NDArray[np.bool_]:
        rule = self.rules.rules.get("durations")
        return np.ones((1, 1), np.bool_) if rule is None else rule.groups >= 0

    def of_family(self, before: Array, params: SemiMarkovParams, counts: Array) -> SemiMarkovParams:
        if self.family == "free" or not self.kept.any():
            return params
        rows = zip(before, counts, np.broadcast_to(self.kept, counts.shape), strict=True)
        return params._replace(durations=np.stack([_negative_binomial(*row) for row in rows]))

    def log_prior(self, params: SemiMarkovParams) -> float:
        rows = params._asdict()
        return self.rules.log_prior(rows if self.family == "free" else {k: rows[k] for k in PARTS})


def fit_durations(
    observations: Symbols | PackedSequences,
    num_states: int,
    num_symbols: int,
    longest: int,
    *,
    family: str = "free",
    lengths: object = None,
    sequence_weights: Any = None,
    known_states: Any = None,
    start: Any = None,
    fixed: Collection[str] = (),
    tied_emissions: Sequence[int] | None = None,
    constraints: Constraints | Callable[[int], Constraints] | None = None,
    num_restarts: int = 6,
    max_iterations: int = 100,
    tolerance: float = 1e-6,
    pseudo_count: float = 0.1,
    seed: int = 0,
    callback: Callable[[int], object] | None = None,
) -> BaumWelchFit:
    """Fit a hidden semi-Markov model to independent sequences by EM.

    durations_id ∝ E[visits of state i that last d steps];  transition_ij ∝ E[visits of j after i]

    A sequence starts with a new visit; the last visit may be incomplete. A state follows itself only if all other
    states are forbidden. In the family "negative-binomial", d - 1 has a negative binomial distribution, truncated to
    the durations d that `longest`, `start` and `constraints` allow.

    Source: Yu (2010).

    Args:
        observations: Symbols in [0, V), or `hmmscope.MISSING` where missing, shape (batch, time).
        num_states, num_symbols: Numbers S and V of states and symbols.
        longest: Longest visit D, in steps.
        family: Family of the duration distributions, "free" or "negative-binomial".
        lengths, sequence_weights: Number of observations, and weight, of each sequence (batch,).
        start: Parameters that start the first EM run, a `SemiMarkovHMM` or its four arrays; their zeros stay zero.
        known_states, fixed, tied_emissions, constraints: See `FitOptions`.
        num_restarts, max_iterations, tolerance, pseudo_count, seed, callback: See `fit_baum_welch`.

    Raises:
        InputError: Data or options are invalid, or a sequence has probability zero under `start`.
    """
    limits = {"num_states": num_states, "num_symbols": num_symbols, "longest": longest}
    check_limits(num_restarts, max_iterations, {"tolerance": tolerance, "pseudo_count": pseudo_count}, **limits)
    require(num_states * longest <= _MOST, "longest", f"must be at most {_MOST} divided by num_states", longest)
    require_known("family", family, FAMILIES)
    shapes = ((num_states,), (num_states, num_states), (num_states, longest), (num_states, num_symbols))
    begins = None if start is None else _given(start, shapes)
    known = known_states, num_states
    work = as_sequences(observations, num_symbols, lengths, weights=sequence_weights, known=known)
    parts = as_constraints(constraints, num_states).parts(num_states, num_symbols, durations=shapes[2])
    good = family == "free" or "durations" not in parts or parts["durations"].is_mask
    require(good, "constraints.durations", "must contain only True and False unless family is 'free'", family)
    if "transition" in parts:
        parts["transition"] = _without_repeats(parts["transition"])
    like, rows = _random(0, seed, *shapes)._asdict(), None if begins is None else begins._asdict()
    own: dict[str, Any] = {"fixed": fixed, "tied": tied_emissions, "constraints": parts}
    rules = RowRules.of(like, rows, pseudo_count, **own)
    steps = DurationSteps(work, family, rules)

    def begin(number: int) -> list[SemiMarkovParams]:
        begun = _random(number, seed, *shapes) if begins is None or number else begins
        begun = SemiMarkovParams(**rules.constrained(begun._asdict()))
        even = np.broadcast_to(steps.kept, begun.durations.shape).astype(np.float64)
        return [steps.of_family(even / np.maximum(1, even.sum(1, keepdims=True)), begun, begun.durations)]

    params, about = search(steps, begin, num_restarts, max_iterations, tolerance, callback)
    free = rules.num_free(like if rows is None else rows)
    if family == "negative-binomial" and steps.kept.any():
        count = np.broadcast_to(steps.kept, shapes[2]).sum(1)
        free["durations"] = int(np.clip(count - 1, 0, 2).sum())
    moves = free["transition"] + free["durations"]
    seen = {"initial": free["initial"], "transition": moves, "emission": free["emission"]}
    bic = criterion(about["log_likelihood"], seen, seen_by_part(work, num_symbols))
    about |= {"num_free": free, "num_zeros": rules.num_zeros, "rules": rules.rules}
    return BaumWelchFit(params.hmm("semi-Markov fit"), bic=bic, lists_free=True, **about)


def _given(start: Any, shapes: tuple[tuple[int, ...], ...]) -> SemiMarkovParams:
    if getattr(start, "visits", None) is not None:
        start = list(start.file_tensors().values())
    good = isinstance(start, Sequence) and len(start) == 4
    require(good, "start", "must be a SemiMarkovHMM, or a list of its four arrays", type(start).__name__)
    found = SemiMarkovParams(*(np.asarray(part, np.float64) for part in start))
    for name, part, shape in zip(SemiMarkovParams._fields, found, shapes, strict=True):
        require(part.shape == shape, f"start.{name}", f"must have the shape {shape}", part.shape)
    return found


def _without_repeats(rule: RowConstraints) -> RowConstraints:
    size = len(rule.groups)
    count = np.bincount(rule.groups[rule.groups >= 0], minlength=rule.groups.size)
    alone = (rule.groups >= 0) & (count[rule.groups] == 1)
    return rule.with_zeros(np.eye(size, dtype=np.bool_) & alone & ((rule.groups >= 0).sum(1) > 1)[:, None])


def _random(number: int, seed: int, *shapes: tuple[int, ...]) -> SemiMarkovParams:
    rng = numpy_generator(seed, "semi-markov-fit", number)
    initial, transition, durations, emission = (rng.dirichlet(np.ones(shape[-1]), shape[:-1]) for shape in shapes)
    if len(initial) > 1:
        np.fill_diagonal(transition, 0.0)
        transition /= transition.sum(1, keepdims=True)
    return SemiMarkovParams(initial, transition, durations, emission)


def _negative_binomial(before: Array, counts: Array, kept: NDArray[np.bool_]) -> Array:
    """Fit a negative binomial distribution on the durations in `kept`; return `before` if it is at least as likely."""
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
    seen = counts > 0
    with np.errstate(divide="ignore"):
        return float((counts[seen] * np.log(probs[seen])).sum())
