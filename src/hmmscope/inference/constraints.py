"""Constraints that EM keeps on the probabilities of an HMM: forbidden, fixed and tied entries."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.inference.free_parameters import SMALLEST
from hmmscope.reprs import Shown
from hmmscope.schema import require_count, shown

Array = NDArray[np.float64]

#: Least count of a tied group, as a fraction of all counts, so that the M-step is strictly concave.
_LEAST = 1e-13


@dataclass(frozen=True, kw_only=True, eq=False)
class Constraints:
    """Constraints on the parameter arrays of an HMM; each is None or an array with the shape of its parameter.

    In an array of booleans, True marks an entry that may be positive. In other arrays or nested lists, a number fixes
    an entry, and None or NaN leaves it free. Entries with the same string are tied: they have equal values.

    Attributes:
        initial, transition, emission, durations: Constraints (state,), (state, state), (state, symbol), (state,
            duration). With inputs, transition and emission have a first axis (input, ...). Constraints without this
            axis apply to all inputs, and their strings also tie entries across inputs.
    """

    initial: Any = None
    transition: Any = None
    emission: Any = None
    durations: Any = None

    @classmethod
    def left_to_right(cls, num_states: int, width: int = 1, *, emission: Any = None) -> "Constraints":
        """Return constraints under which paths start in state 0 and move ahead by 0 to `width` states per step."""
        require_count("width", width)
        ahead = _differences(num_states)
        first = np.arange(num_states) == 0
        return cls(initial=first, transition=(ahead >= 0) & (ahead <= width), emission=emission)

    @classmethod
    def banded(cls, num_states: int, width: int = 1, *, emission: Any = None) -> "Constraints":
        """Return constraints that allow moves by at most `width` states per step in either direction."""
        require_count("width", width)
        return cls(transition=np.abs(_differences(num_states)) <= width, emission=emission)

    def parts(self, num_states: int, num_symbols: int | None, **shapes: tuple[int, ...]) -> dict[str, "RowConstraints"]:
        """Check the constraints; return them by the name of the parameter array.

        Raises:
            InputError: A shape or entry is invalid, or no probabilities satisfy the constraints.
        """
        usual = {"initial": (num_states,), "transition": (num_states,) * 2, "emission": (num_states, num_symbols)}
        found = {}
        for part, given in vars(self).items():
            shape: Any = (usual | shapes).get(part)
            if given is None:
                continue
            if shape is None:
                raise InputError(f"constraints.{part}: must be omitted, because this fit has no {part}")
            if shape[-1] is None:
                raise InputError("constraints.emission: must be omitted for vector emissions; use start and fixed")
            found[part] = RowConstraints.of(f"constraints.{part}", given, shape)
        return found


def _differences(num_states: int) -> NDArray[np.int64]:
    require_count("num_states", num_states)
    return np.subtract.outer(np.arange(num_states), np.arange(num_states)).T


def as_constraints(constraints: Any, num_states: int | None = None) -> Constraints:
    """Return `constraints`, or their value at `num_states` if they are a function; reject other types."""
    if constraints is None:
        return Constraints()
    if callable(constraints):
        return Constraints() if num_states is None else as_constraints(constraints(num_states))
    if not isinstance(constraints, Constraints):
        raise InputError(f"constraints: must be hmmscope.Constraints, got {shown(constraints)}")
    return constraints


@dataclass(frozen=True, eq=False, repr=False)
class RowConstraints(Shown):
    """Constraints on rows that sum to 1.

    Attributes:
        name: Name of the constraints in error messages.
        fixed: Fixed values, NaN where free (row, entry).
        groups: For each free entry, the number of its group of tied entries; -1 where fixed (row, entry).
        shape: Shape of the parameter array.
    """

    name: str
    fixed: Array
    groups: NDArray[np.int64]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, given: Any, shape: tuple[Any, ...]) -> "RowConstraints":
        try:
            entries = np.array(given.tolist() if hasattr(given, "tolist") else given, dtype=object)
        except ValueError:
            entries = np.empty(0, object)
        if len(shape) == 3 and entries.shape == shape[1:]:
            entries = np.broadcast_to(entries, shape)
        if entries.shape != shape:
            raise InputError(f"{name}: must have the shape {shape}, got {entries.shape}")
        fixed, groups = np.full(shape, np.nan), np.full(shape, -1)
        names: dict[str, int] = {}
        for number, (place, entry) in enumerate(np.ndenumerate(entries)):
            is_number = isinstance(entry, int | float | np.number) and not isinstance(entry, bool | np.bool_)
            if isinstance(entry, str):
                groups[place] = names.setdefault(entry, number)
            elif entry is None or entry is True or (is_number and np.isnan(entry)):
                groups[place] = number
            elif entry is False or (is_number and 0 <= entry <= 1):
                fixed[place] = float(entry)
            else:
                rule = "must be a probability, a boolean, None, or a string that ties entries"
                raise InputError(f"{name}{list(place)}: {rule}, got {shown(entry)}")
        rows = (-1, shape[-1])
        found = cls(name, fixed.reshape(rows), groups.reshape(rows), shape)
        return found._checked()

    def _checked(self) -> "RowConstraints":
        numbers = np.unique(self.groups[self.groups >= 0], return_inverse=True)[1]
        groups = np.full(self.groups.shape, -1)
        groups[self.groups >= 0] = numbers.ravel()
        found = replace(self, groups=groups)
        left = found.left
        free: NDArray[np.bool_] = np.any(groups >= 0, axis=1)
        for row in np.flatnonzero(np.where(free, left <= 1e-9, np.abs(left) > 1e-9)).tolist():
            rule = (
                "the fixed entries sum to 1 or more, which leaves no probability for the free entries"
                if free[row]
                else "all entries are fixed, but do not sum to 1; write True or None for a free entry"
            )
            raise InputError(f"{self.name}: row {row}: {rule}")
        rows = found.maximise(np.ones(self.shape)).reshape(groups.shape)
        if np.abs(rows.sum(1) - 1).max() > 1e-9 or (rows[groups >= 0] < 1e-7).any():
            raise InputError(f"{self.name}: the rows cannot sum to 1 with positive tied entries; tie fewer entries")
        return found

    @property
    def left(self) -> Array:
        total: Array = 1.0 - np.nansum(self.fixed, 1)
        return total

    @property
    def is_mask(self) -> bool:
        """Return whether the constraints only forbid entries."""
        free = self.groups[self.groups >= 0]
        return len(np.unique(free)) == len(free) and not (self.fixed > 0).any()

    @property
    def allowed(self) -> NDArray[np.bool_]:
        positive: NDArray[np.bool_] = ~(self.fixed == 0)
        return positive.reshape(self.shape)

    def with_zeros(self, zeros: NDArray[np.bool_]) -> "RowConstraints":
        lost = np.unique(self.groups[zeros.reshape(self.groups.shape) & (self.groups >= 0)])
        if not len(lost):
            return self
        gone = np.isin(self.groups, lost)
        kept = np.where(gone, -1, self.groups)
        return replace(self, fixed=np.where(gone, 0.0, self.fixed), groups=kept)._checked()

    @cached_property
    def multiplicity(self) -> Array:
        count = np.zeros((len(self.groups), int(self.groups.max(initial=-1)) + 1))
        rows, entries = np.nonzero(self.groups >= 0)
        np.add.at(count, (rows, self.groups[rows, entries]), 1.0)
        return count

    @property
    def num_free(self) -> int:
        count = self.multiplicity
        return count.shape[1] - (int(np.linalg.matrix_rank(count)) if count.size else 0)

    def maximise(self, counts: Array, pseudo_count: float = 0.0, before: Array | None = None) -> Array:
        """Maximize sum(counts * log(probs)) + pseudo_count * sum(log(prob) of one entry of each tied group)."""
        multiplicity = self.multiplicity
        free = self.groups >= 0
        if not multiplicity.shape[1]:
            return self.fixed.reshape(self.shape).copy()
        weights = np.full(multiplicity.shape[1], float(pseudo_count))
        np.add.at(weights, self.groups[free], counts.reshape(self.groups.shape)[free])
        values = _solved(multiplicity, self.left, weights)
        if before is not None:  # rows without counts stay
            rows = np.array([weights[own > 0].sum() == 0 for own in multiplicity])
            old = np.zeros(len(values))
            old[self.groups[free]] = before.reshape(self.groups.shape)[free]
            still = (multiplicity[rows] > 0).any(0)
            values = np.where(still, old, values)
        found = np.where(free, values[self.groups], self.fixed)
        tiny = free & (found < SMALLEST) & (found > 0)
        if tiny.any():
            return self._without(tiny).maximise(counts, pseudo_count, before)
        return found.reshape(self.shape)

    def _without(self, gone: NDArray[np.bool_]) -> "RowConstraints":
        groups = np.where(gone, -1, self.groups)
        numbers = np.unique(groups[groups >= 0], return_inverse=True)[1].ravel()
        groups[groups >= 0] = numbers
        return replace(self, fixed=np.where(gone, 0.0, self.fixed), groups=groups)

    def log_prior(self, probs: Array) -> float:
        _, first = np.unique(self.groups, return_index=True)
        chosen = first[self.groups.ravel()[first] >= 0]
        values = probs.reshape(-1)[chosen]
        return float(np.log(values[values > 0]).sum())


def row_constraints(
    rows: Mapping[str, Array],
    given: Mapping[str, RowConstraints],
    fixed: Collection[str],
    classes: NDArray[np.int64] | None,
    support: Mapping[str, NDArray[np.bool_]],
) -> dict[str, RowConstraints]:
    """Combine the constraints `given`, fixed arrays, tied emission classes, and zeros outside `support`."""
    found = dict[str, RowConstraints]()
    for part, own in rows.items():
        entries = np.full(own.shape, None, object)
        if part in given:
            found[part] = given[part]
            continue
        if part in fixed:
            entries[:] = own
        elif part == "emission" and classes is not None:
            for place in np.ndindex(own.shape):
                entries[place] = " ".join(map(str, (*place[:-2], classes[place[-2]], place[-1])))
        lost = ~support.get(part, np.ones(own.shape, np.bool_))
        if lost.any() or any(entry is not None for entry in entries.flat):
            rule = RowConstraints.of(part, entries, own.shape)
            found[part] = rule.with_zeros(lost)
    return found


def _solved(multiplicity: Array, left: Array, weights: Array) -> Array:
    rows = np.unique(np.column_stack([multiplicity, left]), axis=0)
    rows = rows[rows[:, :-1].any(1)]
    multiplicity, left = rows[:, :-1], rows[:, -1]
    values = np.zeros(len(weights))
    shared = (multiplicity > 0).sum(0) > 1
    apart = ~(multiplicity[:, shared] > 0).any(1)
    for own, total in zip(multiplicity[apart], left[apart], strict=True):
        mine = own > 0
        share = weights[mine] if weights[mine].sum() > 0 else np.ones(int(mine.sum()))
        values[mine] = total * share / share.sum() / own[mine]
    linked = (multiplicity[~apart] > 0).any(0)
    if linked.any():
        floor = max(weights[linked].sum(), 1.0) * _LEAST
        values[linked] = _newton(multiplicity[~apart][:, linked], left[~apart], np.maximum(weights[linked], floor))
    return values


def _newton(multiplicity: Array, left: Array, weights: Array) -> Array:
    # the dual problem: minimize multipliers @ left - sum(weights * log(multipliers @ multiplicity))
    def dual(at: Array) -> float:
        slopes = at @ multiplicity
        return float(at @ left - weights @ np.log(slopes)) if (slopes > 0).all() else np.inf

    at = (multiplicity @ weights) / left
    for _ in range(100):
        values = weights / (at @ multiplicity)
        gradient = left - multiplicity @ values
        if np.abs(gradient).max() < 1e-13:
            break
        curvature = (multiplicity * (values**2 / weights)) @ multiplicity.T
        step: Array = np.linalg.lstsq(curvature, -gradient, rcond=None)[0].astype(np.float64)
        size = _backtracked(dual, at, step, float(gradient @ step))
        if size == 0.0:
            break
        at = at + size * step
    found: Array = weights / (at @ multiplicity)
    return found


def _backtracked(dual: Callable[[Array], float], at: Array, step: Array, slope: float) -> float:
    before, size = dual(at), 1.0
    while size > 1e-12:
        if dual(at + size * step) <= before + 1e-4 * size * slope + 1e-15 * abs(before):
            return size
        size /= 2
    return 0.0
