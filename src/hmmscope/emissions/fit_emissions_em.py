"""Fitting hidden Markov models whose states emit numbers, by expectation maximisation."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.emissions.chain import count_rows
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.emissions.states import StateCounts
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import SAME, TRIED_ITERATIONS
from hmmscope.inference.em import PARTS
from hmmscope.inference.free_parameters import num_free
from hmmscope.inference.restarts import RestartSearch, on_threads
from hmmscope.schema import is_count, require
from hmmscope.seeds import numpy_generator
from hmmscope.ties import largest

#: Least variance of a state, as a share of the variance of all observations of a coordinate.
FLOOR = 1e-3
#: A variance that is so near to its floor lies on it.
_JUST_ABOVE = 1 + 1e-9


@dataclass(frozen=True)
class EmissionFit:
    """A fitted model; what is called as in `BaumWelchFit` is the same.

    Attributes:
        hmm: the model of the best restart.
        log_likelihood: log density of all observations under it, nats.
        num_iterations: iterations of that restart.
        converged: whether its last step gained less than the tolerance, before the iterations ended.
        num_restarts: restarts that were made.
        restart_gap: log-likelihood of the best restart less that of the second, nats; infinite if there was one.
        restarts_agree: whether the best two agree in likelihood.
        bic: -2 log-likelihood + (free initial probabilities) log(sequences) + (free transition probabilities) log(moves) +
            (free numbers of the laws) log(observations); small is good.
        min_variance: least variance of each coordinate that a state was allowed (coordinate,).
        at_min_variance: (state, coordinate) of the variances that would be smaller without it.
        num_free: how many numbers of each part are free: of probabilities the positive entries of `start` less one a row,
            or all entries less one a row; none of fixed parts.
        num_zeros: how many probabilities of each part are fixed at zero, because `start` has zeros there.
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

    @property
    def remarks(self) -> list[str]:
        """What a reader should know of it besides, in lines: which variances lie on their floors."""
        if not self.at_min_variance:
            return []
        which = ", ".join(f"state {state} coordinate {coordinate}" for state, coordinate in self.at_min_variance)
        return [f"at the floor, the least variance allowed: {which}; a smaller floor= would let it narrow"]


class _EMResult(NamedTuple):
    """Where a restart ended."""

    model: EmissionHMM
    log_likelihood: float
    num_iterations: int
    converged: bool


@dataclass(frozen=True)
class _EMSettings:
    """What every step keeps to.

    Attributes:
        rows: observations, one sequence after the other (row, coordinate).
        lengths: of the sequences.
        min_variance: least variances (coordinate,).
        pseudo_count: added to expected numbers of starts and moves.
        fixed: parts that stay.
        positive: where arrays of probabilities may be positive; empty if they may be everywhere.
    """

    rows: Float64[Tensor, "row coordinate"]
    lengths: Int64[Tensor, "sequence"]
    min_variance: Float64[Tensor, "coordinate"]
    pseudo_count: float
    fixed: frozenset[str]
    positive: dict[str, Tensor]

    def expect(self, model: EmissionHMM) -> StateCounts:
        return count_rows(model.chain, model.log_likelihoods(self.rows), self.lengths)

    def maximise(self, model: EmissionHMM, counts: StateCounts) -> EmissionHMM:
        """The model of largest expected log-posterior; probabilities of zero stay zero, rows without counts stay."""
        found: dict[str, Any] = {}
        for part, before, count in (
            ("initial", model.initial, counts.initial),
            ("transition", model.transition, counts.transitions),
        ):
            if part not in self.fixed:
                weight = (count + self.pseudo_count).where(before > 0, 0.0)
                total = weight.sum(-1, keepdim=True)
                found[part] = torch.where(total > 0, weight / total.where(total > 0, 1.0), before)
        if "emission" not in self.fixed:
            found |= model.m_step(self.rows, counts.occupancy, self.min_variance)
        return model.replaced(**found)

    def log_prior(self, model: EmissionHMM) -> float:
        """Log density of the free laws of the chain under Dirichlet(1 + pseudo_count) rows, up to a constant."""
        free = [
            law
            for part, law in (("initial", model.initial), ("transition", model.transition))
            if part not in self.fixed
        ]
        return self.pseudo_count * sum(float(law[law > 0].log().sum()) for law in free) if self.pseudo_count else 0.0

    def climb(
        self, model: EmissionHMM, max_iterations: int, tolerance: float, callback: Callable[[int], object] = bool
    ) -> _EMResult:
        """Expectation maximisation until a step gains less than asked for, or for so many steps."""
        before, iteration = -math.inf, 0
        while True:
            counts = self.expect(model)
            score = float(counts.log_likelihood.sum())
            reached = score + self.log_prior(model)
            converged = reached - before < tolerance * len(self.rows)
            if converged or iteration == max_iterations:
                return _EMResult(model, score, iteration, converged)
            model, before, iteration = self.maximise(model, counts), reached, iteration + 1
            callback(1)

    def fitted(self, restarts: RestartSearch[_EMResult]) -> EmissionFit:
        """The likeliest of the restarts, and how it was found."""
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
        )

    def num_free(self, model: EmissionHMM) -> dict[str, int]:
        """See `EmissionFit`."""
        whole = {"initial": torch.ones_like(model.initial), "transition": torch.ones_like(model.transition)}
        found = {part: num_free(self.positive.get(part, own).numpy()) for part, own in whole.items()}
        found["emission"] = sum(model.num_free(self.positive).values())
        return {part: 0 if part in self.fixed else found[part] for part in PARTS}

    def bic(self, found: _EMResult, free: dict[str, int]) -> float:
        """See `EmissionFit`."""
        count = len(self.lengths)
        seen = int((~self.rows.isnan()).any(1).sum())
        times = {"initial": count, "transition": len(self.rows) - count, "emission": seen}
        penalty = sum(free[part] * math.log(max(1, times[part])) for part in PARTS if part not in self.fixed)
        return penalty - 2 * found.log_likelihood


def zeros_by_part(positive: Mapping[str, Tensor]) -> dict[str, int]:
    """Count the zeros of each part; arrays besides those of the chain are emissions."""
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
    """Fit a hidden Markov model of a family to independent sequences by expectation maximisation.

    initial_i ∝ E[first states i];  transition_ij ∝ E[moves i -> j];  laws of state i by the rows, weighed by E[visits of i]

    Likelihoods of densities have no upper end: a state that narrows on one observation gains without bound. So no variance
    falls below `min_variance` times that of its coordinate over all observations. Entries that are missing are summed over.
    Restarts, tries and agreement are those of `fit_baum_welch`.

    Source: Baum, Petrie, Soules and Weiss (1970); Dempster, Laird and Rubin (1977); floors: Hathaway (1985).

    Args:
        family: a kind of `EmissionHMM`.
        observations: one sequence after the other; NaN where an entry is missing.
        lengths: of the sequences, at least 1 each.
        num_states: S.
        start: where the first restart begins, what fixed parts are, and where zeros are; the others are random. A
            probability that is zero in `start` stays zero in every restart.
        fixed: which of "initial", "transition", "emission" are kept as in `start`.
        num_restarts, num_tries, agreement, max_iterations, tolerance, seed, callback: as `fit_baum_welch`.
        pseudo_count: added to expected numbers of starts and moves, not to what states emit.
        min_variance: share of the variance, in (0, 1).
        laws: options of the family, such as `covariance_type`.

    Raises:
        InputError: no observations, or options out of range; a coordinate that never varies or is never seen.
    """
    _check_options(
        num_states, num_restarts, num_tries, max_iterations, min(agreement, tolerance, pseudo_count), min_variance
    )
    _check_start(family, observations.shape[1], num_states, start, fixed, laws)
    rows, laws = family.checked(observations), ({} if start is None else start.options) | laws
    least = min_variance * _variances(rows, len(lengths))
    positive = {} if start is None else start.positive
    search, hear = _EMSettings(rows, lengths, least, pseudo_count, frozenset(fixed), positive), callback or bool

    def begin(number: int) -> EmissionHMM:
        if number == 0 and start is not None:
            return start
        drawn = [
            _random(family, rows, num_states, seed, number, attempt, least, start, fixed, laws)
            for attempt in range(num_tries)
        ]
        if len(drawn) == 1:
            return drawn[0]
        tried = [search.climb(model, TRIED_ITERATIONS, 0.0) for model in drawn]
        return largest(tried, key=lambda one: one.log_likelihood).model

    def restart(number: int) -> _EMResult:
        climbed = search.climb(begin(number), max_iterations, tolerance, hear)
        hear(max_iterations - climbed.num_iterations)
        return climbed

    width = min(torch.get_num_threads(), num_restarts)
    restarts = RestartSearch(on_threads(restart, width), num_restarts, (width, width), max(SAME, agreement * len(rows)))
    hear((num_restarts - restarts.made) * max_iterations)
    return search.fitted(restarts)


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
        "must be in (0, 1), a share of the variance of all observations",
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
    require(start is not None or not fixed, "fixed", "needs a start to take the parts from", sorted(fixed))
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
            raise InputError(f"{name}: must be that of start, {own!r}, or be left out, got {laws[name]!r}")


def _variances(rows: Float64[Tensor, "row coordinate"], num_sequences: int) -> Float64[Tensor, "coordinate"]:
    """Of each coordinate over what is not missing; InputError for one that tells nothing."""
    require(len(rows) > 0 and num_sequences > 0, "observations", "must hold at least one", len(rows))
    seen = ~rows.isnan()
    for coordinate, any_seen in enumerate(seen.any(0).tolist()):
        if not any_seen:
            raise InputError(f"observations: coordinate {coordinate} is missing everywhere")
    centre = rows.nanmean(0)
    variances = (rows - centre).square().nanmean(0)
    for coordinate, variance in enumerate(variances.tolist()):
        if variance <= 1e-24 * (1 + float(centre[coordinate]) ** 2):
            value = float(centre[coordinate])
            raise InputError(
                f"observations: coordinate {coordinate} is {value:g} everywhere; its variance is zero, leave it out"
            )
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
    """Laws as the family begins, Dirichlet(1) rows; in every other attempt each state stays with one half more."""
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
