"""Expectation maximization for HMMs with vector emissions."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Bool, Float64, Int64, Tensor
from hmmscope.emissions.chain import count_rows
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.emissions.states import StateCounts
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import SAME, TRIED_ITERATIONS
from hmmscope.inference.constraints import Constraints, RowConstraints, as_constraints
from hmmscope.inference.em import PARTS, unheard
from hmmscope.inference.free_parameters import num_free
from hmmscope.inference.known_states import as_allowed
from hmmscope.inference.restarts import RestartSearch, on_threads
from hmmscope.inference.weights import as_weights
from hmmscope.schema import is_count, require
from hmmscope.seeds import numpy_generator
from hmmscope.ties import largest

#: Least variance of a state, as a fraction of the variance of all observations.
FLOOR = 1e-3
#: Relative distance within which a variance equals its lower bound.
_JUST_ABOVE = 1 + 1e-9


@dataclass(frozen=True)
class EmissionFit:
    """A fitted HMM with vector emissions, and diagnostics as in `BaumWelchFit`.

    Attributes:
        hmm: Best model.
        log_likelihood: Total log density, in nats.
        num_iterations: Iterations of the best restart.
        converged: Its last gain was below the tolerance.
        num_restarts: Restarts run.
        restart_gap: Log-likelihood gap of the best two restarts, in nats; infinite for one.
        restarts_agree: The best two agree.
        bic: Bayesian information criterion; smaller is better.
        min_variance: Least allowed variances (coordinate,).
        at_min_variance: (state, coordinate) of variances at that bound.
        num_free: Free parameters of each part; fixed parts have none.
        num_zeros: Probabilities of each part that `start` fixes at zero.
        history: Log-likelihood, in nats, by restart and iteration.
    """

    hmm: EmissionHMM
    log_likelihood: float
    num_iterations: int
    converged: bool
    num_restarts: int
    restart_gap: float
    restarts_agree: bool
    bic: float
    min_variance: tuple[float, ...]
    at_min_variance: tuple[tuple[int, int], ...]
    num_free: dict[str, int] = field(default_factory=dict)
    num_zeros: dict[str, int] = field(default_factory=dict)
    history: tuple[tuple[float, ...], ...] = field(default=(), repr=False, compare=False)

    @property
    def remarks(self) -> list[str]:
        if not self.at_min_variance:
            return []
        which = ", ".join(f"state {state} coordinate {coordinate}" for state, coordinate in self.at_min_variance)
        return [f"variances at their lower bound: {which}; pass a smaller min_variance= to lower it"]


class _EMResult(NamedTuple):
    model: EmissionHMM
    log_likelihood: float
    num_iterations: int
    converged: bool
    history: tuple[float, ...]


@dataclass(frozen=True)
class _EMSettings:
    rows: Float64[Tensor, "row coordinate"]
    lengths: Int64[Tensor, "sequence"]
    min_variance: Float64[Tensor, "coordinate"]
    pseudo_count: float
    fixed: frozenset[str]
    positive: dict[str, Tensor]
    weights: NDArray[np.float64] | None
    allowed: Bool[Tensor, "row state"] | None
    constraints: Mapping[str, RowConstraints]

    def expect(self, model: EmissionHMM) -> StateCounts:
        logs = model.log_likelihoods(self.rows)
        logs = logs if self.allowed is None else logs.masked_fill(~self.allowed, -torch.inf)
        return count_rows(model.chain, logs, self.lengths, self.weights)

    def total(self, values: Tensor) -> float:
        return float(values.sum() if self.weights is None else values.double() @ torch.from_numpy(self.weights))

    def maximise(self, model: EmissionHMM, counts: StateCounts) -> EmissionHMM:
        found: dict[str, Any] = {}
        for part, before, count in (
            ("initial", model.initial, counts.initial),
            ("transition", model.transition, counts.transitions),
        ):
            if part in self.constraints:
                own = self.constraints[part].maximise(count.numpy(), self.pseudo_count, before.numpy())
                found[part] = torch.from_numpy(own)
            elif part not in self.fixed:
                weight = (count + self.pseudo_count).where(before > 0, 0.0)
                total = weight.sum(-1, keepdim=True)
                found[part] = torch.where(total > 0, weight / total.where(total > 0, 1.0), before)
        if "emission" not in self.fixed:
            found |= model.m_step(self.rows, counts.occupancy, self.min_variance)
        return model.replaced(**found)

    def log_prior(self, model: EmissionHMM) -> float:
        free = [
            law
            for part, law in (("initial", model.initial), ("transition", model.transition))
            if part not in self.fixed and part not in self.constraints
        ]
        logs = [float(law[law > 0].log().sum()) for law in free]
        logs += [own.log_prior(getattr(model, part).numpy()) for part, own in self.constraints.items()]
        return self.pseudo_count * sum(logs) if self.pseudo_count else 0.0

    def constrained(self, model: EmissionHMM) -> EmissionHMM:
        own = {part: one.maximise(getattr(model, part).numpy()) for part, one in self.constraints.items()}
        return model.replaced(**own) if own else model

    def climb(
        self, model: EmissionHMM, max_iterations: int, tolerance: float, callback: Callable[[int], object] = unheard
    ) -> _EMResult:
        before, iteration, num_rows, stop = -math.inf, 0, self.total(self.lengths), False
        history: list[float] = []
        while True:
            counts = self.expect(model)
            score = self.total(counts.log_likelihood)
            history.append(score)
            reached = score + self.log_prior(model)
            converged = reached - before < tolerance * num_rows
            if converged or stop or iteration == max_iterations:
                return _EMResult(model, score, iteration, converged, tuple(history))
            model, before, iteration = self.maximise(model, counts), reached, iteration + 1
            stop = callback(1) is True

    def fitted(self, restarts: RestartSearch[_EMResult]) -> EmissionFit:
        best = restarts.best
        free = self.num_free(best.model)
        return EmissionFit(
            hmm=best.model,
            log_likelihood=best.log_likelihood,
            num_iterations=best.num_iterations,
            converged=best.converged,
            num_restarts=len(restarts.ends),
            restart_gap=restarts.restart_gap,
            restarts_agree=restarts.restarts_agree,
            bic=self.bic(best, free),
            min_variance=tuple(self.min_variance.tolist()),
            at_min_variance=tuple(
                (s, y)
                for s, y in (best.model.variance_floor_hits <= self.min_variance * _JUST_ABOVE).nonzero().tolist()
            ),
            num_free=free,
            num_zeros=zeros_by_part(self.positive),
            history=tuple(end.history for end in restarts.ends),
        )

    def num_free(self, model: EmissionHMM) -> dict[str, int]:
        whole = {"initial": torch.ones_like(model.initial), "transition": torch.ones_like(model.transition)}
        found = {part: num_free(self.positive.get(part, own).numpy()) for part, own in whole.items()}
        found["emission"] = sum(model.num_free(self.positive).values())
        found |= {part: own.num_free for part, own in self.constraints.items()}
        return {part: 0 if part in self.fixed else found[part] for part in PARTS}

    def bic(self, found: _EMResult, free: dict[str, int]) -> float:
        count, seen = self.total(torch.ones(len(self.lengths))), (~self.rows.isnan()).any(1)
        num_seen = self.total(torch.stack([part.sum() for part in seen.split(self.lengths.tolist())]))
        times = {"initial": count, "transition": self.total(self.lengths) - count, "emission": num_seen}
        penalty = sum(free[part] * math.log(max(1, times[part])) for part in PARTS if part not in self.fixed)
        return penalty - 2 * found.log_likelihood


def zeros_by_part(positive: Mapping[str, Tensor]) -> dict[str, int]:
    """Count the structural zeros of each part."""
    found = dict.fromkeys(PARTS, 0)
    for name, allowed in positive.items():
        found[name if name in PARTS else "emission"] += int((~allowed).sum())
    return found


def fit_emissions(
    family: type[EmissionHMM],
    observations: Float64[Tensor, "row coordinate"],
    lengths: Int64[Tensor, "sequence"],
    num_states: int,
    *,
    start: EmissionHMM | None = None,
    fixed: Collection[str] = (),
    constraints: Constraints | None = None,
    sequence_weights: Any = None,
    known_states: Any = None,
    num_restarts: int = 12,
    num_tries: int = 4,
    agreement: float = 1e-5,
    max_iterations: int = 200,
    tolerance: float = 1e-7,
    pseudo_count: float = 0.1,
    min_variance: float = FLOOR,
    seed: int = 0,
    callback: Callable[[int], object] | None = None,
    **laws: Any,
) -> EmissionFit:
    """Fit an HMM of a family to independent sequences by expectation maximization (EM).

    Variances stay above `min_variance` times the coordinate's total variance. Missing entries are integrated out.

    Source: Baum et al. (1970); Dempster, Laird and Rubin (1977); floors: Hathaway (1985).

    Args:
        family: A subclass of `EmissionHMM`.
        observations: Consecutive sequences; NaN where missing.
        lengths: At least 1 each.
        num_states: S.
        start: First start, fixed parts and zeros.
        fixed: Parts kept as in `start`: "initial", "transition", "emission".
        constraints, sequence_weights, known_states, num_restarts, num_tries, agreement, max_iterations, tolerance, seed,
            callback: As `fit_baum_welch`.
        pseudo_count: Added to expected initial and transition counts.
        min_variance: Fraction in (0, 1).
        laws: Options of the family, such as `covariance_type`.

    Raises:
        InputError: No observations, an option out of range, or a constant or missing coordinate.
    """
    _check_options(
        num_states, num_restarts, num_tries, max_iterations, min(agreement, tolerance, pseudo_count), min_variance
    )
    _check_start(family, observations.shape[1], num_states, start, fixed, laws)
    allowed = _allowed(known_states, num_states, lengths)
    observations, lengths, weights, allowed = _weighted(observations, lengths, sequence_weights, allowed)
    rows, laws = family.checked(observations), ({} if start is None else start.options) | laws
    least, positive = min_variance * _variances(rows, lengths, weights), {} if start is None else start.positive
    parts = _constraints(constraints, num_states, start, fixed)
    search = _EMSettings(rows, lengths, least, pseudo_count, frozenset(fixed), positive, weights, allowed, parts)
    hear = callback or unheard

    def begin(number: int) -> tuple[EmissionHMM, tuple[float, ...]]:
        if number == 0 and start is not None:
            return search.constrained(start), ()
        given = least, start, fixed, laws
        models = (_random(family, rows, num_states, seed, number, attempt, *given) for attempt in range(num_tries))
        drawn = [search.constrained(model) for model in models]
        if len(drawn) == 1:
            return drawn[0], ()
        tried = [search.climb(x, TRIED_ITERATIONS, 0.0, lambda _: hear(0)) for x in drawn]
        first = largest(tried, key=lambda one: one.log_likelihood)
        return first.model, first.history[:-1]

    def restart(number: int) -> _EMResult:
        model, before = begin(number)
        climbed = search.climb(model, max_iterations, tolerance, hear)
        hear(max_iterations - climbed.num_iterations)
        return climbed._replace(history=before + climbed.history)

    width, near = min(torch.get_num_threads(), num_restarts), max(SAME, agreement * search.total(lengths))
    restarts = RestartSearch(on_threads(restart, width), num_restarts, (width, width), near, hear)
    hear((num_restarts - restarts.made) * max_iterations)
    return search.fitted(restarts)


def _weighted(
    rows: Tensor, lengths: Tensor, given: Any, allowed: Tensor | None
) -> tuple[Tensor, Tensor, NDArray[np.float64] | None, Tensor | None]:
    weights = as_weights(given, len(lengths))
    if weights is None:
        return rows, lengths, None, allowed
    kept = torch.from_numpy(weights > 0)
    each = kept.repeat_interleave(lengths)
    return rows[each], lengths[kept], weights[weights > 0], None if allowed is None else allowed[each]


def _constraints(
    constraints: Constraints | None, num_states: int, start: EmissionHMM | None, fixed: Collection[str]
) -> dict[str, RowConstraints]:
    found = as_constraints(constraints).parts(num_states, None)
    for part in found:
        require(part not in fixed, f"constraints.{part}", "cannot be used with fixed", sorted(fixed))
    zeros = {} if start is None else {part: (getattr(start, part) == 0).numpy() for part in found}
    return {part: own.with_zeros(zeros[part]) if zeros else own for part, own in found.items()}


def _allowed(known_states: Any, num_states: int, lengths: Tensor) -> Bool[Tensor, "row state"] | None:
    if known_states is None:
        return None
    inside = torch.arange(int(lengths.max())) < lengths[:, None]
    return as_allowed(known_states, num_states, inside)[inside]


def _check_options(
    num_states: int, num_restarts: int, num_tries: int, max_iterations: int, least: float, min_variance: float
) -> None:
    counts = {"num_states": num_states, "num_restarts": num_restarts, "num_tries": num_tries}
    for name, value in (counts | {"max_iterations": max_iterations}).items():
        require(is_count(value), name, "must be at least 1 and whole", value)
    require(least >= 0, "agreement, tolerance, pseudo_count", "must be at least 0", least)
    require(
        0 < min_variance < 1,
        "min_variance",
        "must be in (0, 1), a fraction of the variance of all observations",
        min_variance,
    )


def _check_start(
    family: type[EmissionHMM],
    count: int,
    num_states: int,
    start: EmissionHMM | None,
    fixed: Collection[str],
    laws: Mapping[str, Any],
) -> None:
    require(set(fixed) <= set(PARTS), "fixed", f"must be among {', '.join(PARTS)}", sorted(fixed))
    require(start is not None or not fixed, "fixed", "requires start, which supplies the fixed parts", sorted(fixed))
    if start is not None and (start.file_format, start.num_states, start.num_symbols) != (
        family.file_format,
        num_states,
        count,
    ):
        raise InputError(
            f"start: must be a {family.__name__} of {num_states} states in {count} coordinates, got {start!r}"
        )
    for name, own in ({} if start is None else start.options).items():
        if name in laws and not np.array_equal(laws[name], own):
            raise InputError(f"{name}: must equal that of start, {own!r}, or be omitted, got {laws[name]!r}")


def _variances(
    rows: Float64[Tensor, "row coordinate"], lengths: Int64[Tensor, "sequence"], weights: NDArray[np.float64] | None
) -> Float64[Tensor, "coordinate"]:
    require(len(rows) > 0 and len(lengths) > 0, "observations", "must hold at least one", len(rows))
    seen = ~rows.isnan()
    for coordinate, any_seen in enumerate(seen.any(0).tolist()):
        if not any_seen:
            raise InputError(f"observations: coordinate {coordinate} is missing everywhere; drop it")
    if weights is None:
        centre = rows.nanmean(0)
        variances = (rows - centre).square().nanmean(0)
    else:
        each = torch.from_numpy(weights).repeat_interleave(lengths)[:, None] * seen
        centre = (each * rows.nan_to_num()).sum(0) / each.sum(0)
        variances = (each * (rows - centre).nan_to_num().square()).sum(0) / each.sum(0)
    for coordinate, variance in enumerate(variances.tolist()):
        if variance <= 1e-24 * (1 + float(centre[coordinate]) ** 2):
            value = float(centre[coordinate])
            raise InputError(f"observations: coordinate {coordinate} is constant ({value:g}); drop it")
    return variances


def _random(
    family: type[EmissionHMM],
    rows: Tensor,
    num_states: int,
    seed: int,
    number: int,
    attempt: int,
    min_variance: Tensor,
    start: EmissionHMM | None,
    fixed: Collection[str],
    laws: dict[str, Any],
) -> EmissionHMM:
    random = numpy_generator(seed, f"emission-fit-{attempt}" if attempt else "emission-fit", number)
    initial, transition = (random.dirichlet(np.ones(num_states), size) for size in (None, num_states))
    if attempt % 2:
        transition = (np.eye(num_states) + transition) / 2
    model = family.initialize(rows, num_states, random, min_variance=min_variance, **laws)
    found = {"initial": initial, "transition": transition}
    kept = {} if start is None else start.file_tensors()
    if "emission" in fixed and start is not None:
        model = start
    drawn = model.replaced(**{part: kept[part] if part in fixed else value for part, value in found.items()})
    return drawn if start is None else drawn.restricted(start.positive)
