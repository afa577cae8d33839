"""M-step of rows of probabilities under constraints."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.inference.constraints import RowConstraints, row_constraints
from hmmscope.inference.free_parameters import log_of_positive, maximised_rows, num_free, without_tiny
from hmmscope.reprs import Shown
from hmmscope.schema import require

Array = NDArray[np.float64]
#: Rows of probabilities, or their counts, by parameter array.
Rows = Mapping[str, Array]


def check_fixed(parts: Collection[str], start: object, fixed: Collection[str]) -> None:
    """Raise InputError unless `fixed` names parameter arrays of `start`."""
    require(set(fixed) <= set(parts), "fixed", f"must be among {', '.join(parts)}", sorted(fixed))
    require(start is not None or not fixed, "fixed", "must be empty if start is None", sorted(fixed))


def check_rules(
    parts: Collection[str],
    num_states: int,
    start: object,
    fixed: Collection[str],
    tied: Sequence[int] | None,
    constraints: Mapping[str, RowConstraints],
) -> NDArray[np.int64] | None:
    """Check options that restrict a fit's parameters; return the tied-emission class of each state, or None."""
    check_fixed(parts, start, fixed)
    classes = None if tied is None else np.asarray(tied)
    if classes is not None and (
        classes.shape != (num_states,)
        or classes.dtype.kind not in "iu"
        or classes.min() < 0
        or classes.max() >= num_states
    ):
        raise InputError(f"tied_emissions: must be {num_states} class numbers in [0, {num_states})")
    if classes is not None and "emission" in constraints:
        raise InputError("constraints.emission: cannot be used with tied_emissions; tie entries by strings instead")
    for part in constraints:
        require(part not in fixed, f"constraints.{part}", "cannot be used with fixed", sorted(fixed))
    return classes


@dataclass(frozen=True, repr=False)
class RowRules(Shown):
    """Settings of the M-step: constraints, pseudo-count, and zeros of the starting model."""

    rules: Mapping[str, RowConstraints]
    pseudo_count: float
    num_zeros: Mapping[str, int]

    @classmethod
    def of(
        cls,
        like: Rows,
        start: Rows | None,
        pseudo_count: float,
        *,
        fixed: Collection[str],
        tied: Sequence[int] | None,
        constraints: Mapping[str, RowConstraints],
    ) -> "RowRules":
        """Return the settings for arrays with the shapes of `like`; zeros of `start` stay zero."""
        classes = check_rules([*like], len(like["initial"]), start, fixed, tied, constraints)
        zeros = {} if start is None else {part: rows == 0 for part, rows in start.items()}
        given = {part: own.with_zeros(zeros[part]) if zeros else own for part, own in constraints.items()}
        support = {part: ~own for part, own in zeros.items()}
        rules = row_constraints(like if start is None else start, given, fixed, classes, support)
        return cls(rules, float(pseudo_count), {part: int(own.sum()) for part, own in zeros.items()})

    def constrained(self, rows: Rows) -> dict[str, Any]:
        return {part: self.rules[part].maximise(own) if part in self.rules else own for part, own in rows.items()}

    def maximise(self, before: Rows, counts: Rows) -> dict[str, Any]:
        """Maximize the expected log-posterior; zeros, and rows with zero counts, stay unchanged."""
        found = {}
        for part, own in before.items():
            if part in self.rules:
                found[part] = self.rules[part].maximise(counts[part], self.pseudo_count, own)
                continue
            found[part] = without_tiny(maximised_rows(own, counts[part], self.pseudo_count))
        return found

    def log_prior(self, rows: Rows) -> float:
        if not self.pseudo_count:
            return 0.0
        logs = [
            self.rules[part].log_prior(own) if part in self.rules else log_of_positive(own)
            for part, own in rows.items()
        ]
        return self.pseudo_count * sum(logs)

    def num_free(self, rows: Rows) -> dict[str, int]:
        return {
            part: self.rules[part].num_free if part in self.rules else num_free(own > 0) for part, own in rows.items()
        }
