"""Scaling laws: an outcome as a function of the training budget, fitted in two forms and extrapolated with intervals.

With x = log2(budget), an offset u_i of process instance i, and coefficients a, b, A, k:

    straight     y = a + u_i + b x + noise
    saturating   y = a + u_i - A 2^(-k x) + noise,  k > 0

Fits of both forms, for many rates k, are kept unless an F test against the best fit rejects them (Bates and Watts
1988). Outcomes censored at an upper limit are imputed (Schmee and Hahn 1979). A prediction interval is the union of
the intervals of the kept fits; `held_out` tests it on the largest budget.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmmscope.lab.evidence.effects import Effect, quantile

#: Rates k of the saturating form that are tried.
RATES = tuple(2.0**power for power in np.arange(-6.0, 2.25, 0.25))
#: Most iterations of the imputation of censored outcomes.
_ROUNDS = 200


class Interval(NamedTuple):
    """The prediction of the best fit, with an interval."""

    value: float
    low: float
    high: float


class Held(NamedTuple):
    """Result of testing a scaling law on the largest budget, held out from the fit.

    Attributes:
        covered: number of outcomes in the prediction interval.
        instances: number of outcomes at the largest budget.
    """

    covered: int
    instances: int


@dataclass(frozen=True, eq=False)
class ScalingLaw:
    """A scaling law fitted to points.

    Attributes:
        points: the fitted points.
        forms: kept fits by name of the form, the best fit first.
    """

    class BudgetPoint(NamedTuple):
        """The outcome of one instance at one budget.

        Attributes:
            x: log2 of the budget.
            instance: number of the process instance.
            y: the outcome, or the upper limit that it reached.
            hidden: whether the outcome is censored (known to be at least `y`).
        """

        x: float
        instance: int
        y: float
        hidden: bool = False

    points: tuple[BudgetPoint, ...]
    forms: dict[str, list["_Fit"]]

    @classmethod
    def of(cls, points: Sequence[BudgetPoint]) -> "ScalingLaw | None":
        """Return the fitted law; None without 3 budgets and at least 4 more uncensored points than instances."""
        budgets, instances = ({getattr(point, name) for point in points} for name in ("x", "instance"))
        seen = sum(not point.hidden for point in points)
        if len(budgets) < 3 or seen < len(instances) + 4:
            return None
        straight, *curved = (_Fit.of(points, rate) for rate in (None, *RATES))
        curved.sort(key=lambda fit: fit.squares)
        degrees = straight.degrees - 1  # the rate costs one more
        least = min(straight.squares, curved[0].squares)
        most = least * (1 + quantile(degrees) ** 2 / degrees)  # F with one degree is Student's t squared
        forms = {"straight": [straight], "saturating": curved}
        allowed = {name: [fit for fit in fits if fit.squares <= most] for name, fits in forms.items()}
        return cls(tuple(points), {name: fits for name, fits in allowed.items() if fits})

    def mean_at(self, x: float) -> dict[str, Interval]:
        """Return the predicted mean over instances at budget 2^x, by name of the form."""
        return {name: _union([fit.predict(x, None) for fit in fits]) for name, fits in self.forms.items()}

    def next_at(self, x: float, instance: int) -> dict[str, Interval]:
        """Return the predicted outcome of an instance at budget 2^x, by name of the form."""
        return {name: _union([fit.predict(x, instance) for fit in fits]) for name, fits in self.forms.items()}

    def effect(self, x: float, unit: str) -> Effect:
        """Return the predicted mean over instances at budget 2^x, with the union of all kept intervals."""
        found = self.mean_at(x)
        best = min(self.forms, key=lambda name: self.forms[name][0].squares)
        ends = found.values()
        low, high = min(one.low for one in ends), max(one.high for one in ends)
        count = len({point.instance for point in self.points})
        return Effect(value=found[best].value, low=low, high=high, num_seeds=count, degrees=-1, unit=unit)

    def resampled(self, x: float, aim: float, draw: random.Random, unit: str) -> Effect | None:
        """Return the effect of a law fitted to simulated points with mean `aim` at budget 2^x; see `power.Redrawn`."""
        fit = min((fits[0] for fits in self.forms.values()), key=lambda one: one.squares)
        noise, moved = math.sqrt(fit.squares / fit.degrees), aim - fit.predict(x, None).value
        ceiling = min((point.y for point in self.points if point.hidden), default=math.inf)
        made = []
        for point in self.points:
            y = fit.predict(point.x, point.instance).value + moved + draw.gauss(0, noise)
            made.append(ScalingLaw.BudgetPoint(point.x, point.instance, min(y, ceiling), y >= ceiling))
        law = ScalingLaw.of(made)
        return None if law is None else law.effect(x, unit)

    @staticmethod
    def held_out(points: Sequence[BudgetPoint]) -> Held | None:
        """Fit the law without the largest budget, and test it on that budget; None if the fit is impossible."""
        last = max((point.x for point in points), default=0.0)
        law = ScalingLaw.of([point for point in points if point.x < last])
        if law is None:
            return None
        covered, ends = 0, [point for point in points if point.x == last]
        for point in ends:
            found = law.next_at(last, point.instance).values()
            low, high = min(one.low for one in found), max(one.high for one in found)
            covered += bool(high >= point.y if point.hidden else low <= point.y <= high)
        return Held(covered, len(ends))

    @staticmethod
    def last_doubling(points: Sequence[BudgetPoint]) -> dict[int, float]:
        """Return each instance's change of the outcome per doubling of the budget, between its last two budgets."""
        steps = {}
        for instance in sorted({point.instance for point in points}):
            own = sorted(point for point in points if point.instance == instance and not point.hidden)
            for before, after in [(one, other) for one, other in pairwise(own) if other.x > one.x][-1:]:
                steps[instance] = (after.y - before.y) / (after.x - before.x)
        return steps


# ---------------------------------------------------------------------------------------------------------------------
# One form


@dataclass(frozen=True, eq=False)
class _Fit:
    rate: float | None
    first: float
    instances: tuple[int, ...]
    weights: NDArray[np.float64]
    inverse: NDArray[np.float64]
    squares: float
    degrees: int

    @classmethod
    def of(cls, points: Sequence[ScalingLaw.BudgetPoint], rate: float | None) -> "_Fit":
        instances = tuple(sorted({point.instance for point in points}))
        first = min(point.x for point in points)
        empty = cls(rate, first, instances, np.empty(0), np.empty((0, 0)), 0.0, 0)
        design = np.array([empty._row(point.x, point.instance) for point in points])
        seen = np.array([point.y for point in points])
        hidden = np.array([point.hidden for point in points])
        degrees = int((~hidden).sum()) - design.shape[1]
        inverse = np.linalg.pinv(design.T @ design)
        full = seen.copy()
        for _ in range(_ROUNDS):
            weights = inverse @ (design.T @ full)
            fitted = design @ weights
            squares = float(((full - fitted)[~hidden] ** 2).sum())
            if not hidden.any():
                break
            expected = _above(fitted[hidden], math.sqrt(squares / degrees), seen[hidden])
            moved = float(np.abs(expected - full[hidden]).max())
            full[hidden] = expected
            if moved < 1e-9:
                break
        return cls(rate, first, instances, weights, inverse, squares, degrees)

    def _row(self, x: float, instance: int | None) -> NDArray[np.float64]:
        share = [1 / len(self.instances) if instance is None else float(one == instance) for one in self.instances]
        moved = x - self.first
        return np.array([*share, moved if self.rate is None else -(2.0 ** (-self.rate * moved))])

    def predict(self, x: float, instance: int | None) -> Interval:
        row = self._row(x, instance)
        value = float(row @ self.weights)
        variance = float(row @ self.inverse @ row) + (instance is not None)
        half = quantile(self.degrees) * float(np.sqrt(self.squares / self.degrees * variance))
        return Interval(value, value - half, value + half)


def _union(found: Sequence[Interval]) -> Interval:
    return Interval(found[0].value, min(one.low for one in found), max(one.high for one in found))


def _above(mean: NDArray[np.float64], spread: float, ceiling: NDArray[np.float64]) -> NDArray[np.float64]:
    if spread <= 0:
        return np.maximum(mean, ceiling)
    return np.array([m + spread * _hazard((c - m) / spread) for m, c in zip(mean, ceiling, strict=True)])


def _hazard(z: float) -> float:
    if z > 30:
        return z + 1 / z
    return math.sqrt(2 / math.pi) * math.exp(-z * z / 2) / math.erfc(z / math.sqrt(2))
