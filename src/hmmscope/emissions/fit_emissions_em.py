"""Expectation maximization for HMMs with vector emissions."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor, Vectors
from hmmscope.emissions.densities import require_range
from hmmscope.emissions.em_steps import EmissionSteps, zeros_by_part
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import BaumWelchFit
from hmmscope.inference.constrained_laws import ConstrainedRows
from hmmscope.inference.constraints import Constraints, RowConstraints, as_constraints
from hmmscope.inference.em import PARTS
from hmmscope.inference.known_states import flat_allowed
from hmmscope.inference.restarts import check_limits, criterion, search
from hmmscope.inference.row_rules import check_fixed
from hmmscope.inference.weights import as_weights
from hmmscope.schema import require
from hmmscope.seeds import numpy_generator

#: Least variance of a state, as a fraction of the variance of all observations.
FLOOR = 1e-3
#: Relative distance within which a variance counts as equal to its lower bound.
_JUST_ABOVE = 1 + 1e-9


@dataclass(frozen=True, kw_only=True)
class EmissionFit(BaumWelchFit):
    """A fitted HMM with vector emissions, and diagnostics.

    Attributes:
        min_variance: Least allowed variances (coordinate,).
        at_min_variance: Pairs (state, coordinate) of variances at that bound.
    """

    min_variance: tuple[float, ...] = ()
    at_min_variance: tuple[tuple[int, int], ...] = ()

    def laws(self, concentrations: Mapping[str, float]) -> dict[str, ConstrainedRows]:
        if self.num_free["emission"] == 0 or self.num_zeros["emission"]:
            raise InputError("posterior: needs a fit without fixed emissions or zero emission probabilities")
        return super().laws(concentrations)

    @property
    def remarks(self) -> list[str]:
        if not self.at_min_variance:
            return []
        which = ", ".join(f"state {state} coordinate {coordinate}" for state, coordinate in self.at_min_variance)
        return [f"variances at their lower bound: {which}; pass a smaller min_variance= to lower the bound"]


def fit_emissions(
    family: type[EmissionHMM],
    observations: Vectors,
    lengths: Int64[Tensor, " sequence"],
    num_states: int,
    *,
    start: EmissionHMM | None = None,
    fixed: Collection[str] = (),
    constraints: Constraints | Callable[[int], Constraints] | None = None,
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

    Likelihoods integrate over missing entries.

    Source: Baum et al. 1970; Dempster, Laird and Rubin (1977); lower bounds of variances: Hathaway (1985).

    Args:
        family: Subclass of `EmissionHMM`.
        observations: Consecutive sequences (row, coordinate); NaN where missing.
        lengths: Number of rows of each sequence, at least 1.
        num_states: Number of states S.
        start, fixed, constraints, sequence_weights, known_states: See `fit_baum_welch`.
        num_restarts, num_tries, agreement, max_iterations, tolerance, seed, callback: See `fit_baum_welch`.
        pseudo_count: Number added to each expected initial and transition count.
        min_variance: Least variance as a fraction of the coordinate's total variance, in (0, 1).
        laws: Options of the family, such as `covariance_type`.

    Raises:
        InputError: No observations, an option out of range, or a coordinate that is constant, never observed or too wide.
    """
    at_least = {"agreement": agreement, "tolerance": tolerance, "pseudo_count": pseudo_count}
    check_limits(num_restarts, max_iterations, at_least, num_states=num_states, num_tries=num_tries)
    rule = "must be in (0, 1), as a fraction of each coordinate's variance"
    require(0 < min_variance < 1, "min_variance", rule, min_variance)
    _check_start(family, observations.shape[1], num_states, start, fixed, laws)
    allowed = None if known_states is None else flat_allowed(known_states, num_states, lengths)
    observations, lengths, weights, allowed = _weighted(observations, lengths, sequence_weights, allowed)
    rows, laws = family.checked(observations), ({} if start is None else start.options) | laws
    least, positive = min_variance * _variances(rows, lengths, weights), {} if start is None else start.positive
    parts = _constraints(constraints, num_states, start, fixed)
    steps = EmissionSteps(rows, lengths, least, pseudo_count, frozenset(fixed), positive, weights, allowed, parts)

    def begins(number: int) -> list[EmissionHMM]:
        if number == 0 and start is not None:
            return [steps.constrained(start)]
        given = least, start, fixed, laws
        models = (_random(family, rows, num_states, seed, number, attempt, *given) for attempt in range(num_tries))
        return [steps.constrained(model) for model in models]

    hmm, about = search(steps, begins, num_restarts, max_iterations, tolerance, callback, agreement=agreement)
    free, hits = steps.num_free(hmm), hmm.variance_floor_hits <= least * _JUST_ABOVE
    return EmissionFit(
        hmm,
        bic=criterion(about["log_likelihood"], free, steps.seen()),
        min_variance=tuple(least.tolist()),
        at_min_variance=tuple((s, y) for s, y in hits.nonzero().tolist()),
        num_free=free,
        num_zeros=zeros_by_part(positive),
        rules=steps.row_constraints(hmm),
        **about,
    )


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
    constraints: Any, num_states: int, start: EmissionHMM | None, fixed: Collection[str]
) -> dict[str, RowConstraints]:
    found = as_constraints(constraints, num_states).parts(num_states, None)
    for part in found:
        require(part not in fixed, f"constraints.{part}", "cannot be used with fixed", sorted(fixed))
    zeros = {} if start is None else {part: (getattr(start, part) == 0).numpy() for part in found}
    return {part: own.with_zeros(zeros[part]) if zeros else own for part, own in found.items()}


def _check_start(
    family: type[EmissionHMM],
    count: int,
    num_states: int,
    start: EmissionHMM | None,
    fixed: Collection[str],
    laws: Mapping[str, Any],
) -> None:
    check_fixed(PARTS, start, fixed)
    expected = family.file_format, num_states, count
    if start is not None and (start.file_format, start.num_states, start.num_symbols) != expected:
        raise InputError(
            f"start: must be a {family.__name__} of {num_states} states in {count} coordinates, got {start!r}"
        )
    for name, own in ({} if start is None else start.options).items():
        if name in laws and not np.array_equal(laws[name], own):
            raise InputError(f"{name}: must equal the value in start, {own!r}, or be omitted, got {laws[name]!r}")


def _variances(
    rows: Vectors, lengths: Int64[Tensor, " sequence"], weights: NDArray[np.float64] | None
) -> Float64[Tensor, " coordinate"]:
    require(len(rows) > 0 and len(lengths) > 0, "observations", "must contain at least one observation", len(rows))
    seen = ~rows.isnan()
    lows, highs = rows.where(seen, math.inf).amin(0).tolist(), rows.where(seen, -math.inf).amax(0).tolist()
    for coordinate, (low, high) in enumerate(zip(lows, highs, strict=True)):
        name = f"observations: coordinate {coordinate}"
        if low > high:
            raise InputError(f"{name} is missing in every row; remove the coordinate")
        if high - low <= 2.0**-51 * max(-low, high):  # constant up to rounding
            raise InputError(f"{name} is constant ({low:g}); remove the coordinate")
        require_range(name, high - low)
    if weights is None:
        return (rows - rows.nanmean(0)).square().nanmean(0)
    each = torch.from_numpy(weights).repeat_interleave(lengths)[:, None] * seen
    centre = (each * rows.nan_to_num()).sum(0) / each.sum(0)
    return (each * (rows - centre).nan_to_num().square()).sum(0) / each.sum(0)


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
