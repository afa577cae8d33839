"""Laws of an outcome in its budget: what runs of growing length say of a longer one, in two forms, with intervals.

An outcome y is measured in several instances at several budgets; x is the logarithm of a budget to base 2. With an effect
u_i of each instance

    straight     y = a + u_i + b x + noise
    saturating   y = a + u_i - A 2^(-k x) + noise,  k > 0

Both are fitted by least squares. The rate k of the second is not estimated but profiled: every k counts under which the sum
of squares is within the F ratio of its least (Bates and Watts 1988, Nonlinear Regression, section 6.1), and an interval
covers those of all of them. For k to zero the second form becomes the first, which counts by the same ratio: a straight line
that the budgets which were run refute says nothing of one that was not. Outcomes that a ceiling hides are replaced by
what is expected of them given that they are above it, until nothing changes (Schmee and Hahn 1979, Technometrics 21), and
cost their degrees of freedom. The interval at a budget that was not run is the union of the forms that count; their test is
the largest budget that was: fitted without it, they have to cover it.
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
#: Rounds of replacing what a ceiling hides.
_ROUNDS = 200


class Interval(NamedTuple):
    """A prediction: the value of the best form, and the ends."""

    value: float
    low: float
    high: float


class Held(NamedTuple):
    """How a law did on the largest budget, which it had not seen.

    Attributes:
        covered, instances: those whose outcome lies in the union of the intervals, and all.
    """

    covered: int
    instances: int


@dataclass(frozen=True, eq=False)
class ScalingLaw:
    """A law of points.

    Attributes:
        points: what it was fitted to.
        forms: the fits that count, by name: of "straight" one, of "saturating" one for each rate, the best first; a form is
            left out if the data allow none of its fits.
    """

    class BudgetPoint(NamedTuple):
        """An outcome.

        Attributes:
            x: logarithm of the budget to base 2.
            instance: whose.
            y: the outcome; of a hidden one the ceiling.
            hidden: whether it is only known to be at least `y`.
        """

        x: float
        instance: int
        y: float
        hidden: bool = False

    points: tuple[BudgetPoint, ...]
    forms: dict[str, list["_Fit"]]

    @classmethod
    def of(cls, points: Sequence[BudgetPoint]) -> "ScalingLaw | None":
        """The law; None with fewer than three budgets or two degrees of freedom."""
        budgets, instances = ({getattr(point, name) for point in points} for name in ("x", "instance"))
        seen = sum(not point.hidden for point in points)
        if len(budgets) < 3 or seen < len(instances) + 4:
            return None
        straight, *curved = (_Fit.of(points, rate) for rate in (None, *RATES))
        curved.sort(key=lambda fit: fit.squares)
        degrees = straight.degrees - 1  # the rate is one more
        least = min(straight.squares, curved[0].squares)
        most = least * (1 + quantile(degrees) ** 2 / degrees)  # F with one degree is Student's squared
        forms = {"straight": [straight], "saturating": curved}
        allowed = {name: [fit for fit in fits if fit.squares <= most] for name, fits in forms.items()}
        return cls(tuple(points), {name: fits for name, fits in allowed.items() if fits})

    def mean_at(self, x: float) -> dict[str, Interval]:
        """The mean over instances at a budget, by form."""
        return {name: _union([fit.predict(x, None) for fit in fits]) for name, fits in self.forms.items()}

    def next_at(self, x: float, instance: int) -> dict[str, Interval]:
        """What would be measured of an instance at a budget, by form."""
        return {name: _union([fit.predict(x, instance) for fit in fits]) for name, fits in self.forms.items()}

    def effect(self, x: float, unit: str) -> Effect:
        """The mean over instances at a budget, by the best form, with the union of the intervals of both."""
        found = self.mean_at(x)
        best = min(self.forms, key=lambda name: self.forms[name][0].squares)
        ends = found.values()
        low, high = min(one.low for one in ends), max(one.high for one in ends)
        count = len({point.instance for point in self.points})
        return Effect(value=found[best].value, low=low, high=high, num_seeds=count, degrees=-1, unit=unit)

    def resampled(self, x: float, aim: float, draw: random.Random, unit: str) -> Effect | None:
        """The effect at a budget that another experiment would show whose mean there is `aim`: see `power.Redrawn`.

        The best form, with the effects of the instances and the noise that were seen, moved up or down as a whole: its
        course over the budgets, and so what it says of one that was not run, stays what it is. Outcomes above the lowest
        ceiling are hidden, as they were. None where no law can be fitted to what is left.
        """
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
        """The test of `ScalingLaw` on the largest budget; None where nothing can be fitted without it."""
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
        """How much the outcome of each instance moved between the two largest budgets, for each doubling of it."""
        steps = {}
        for instance in sorted({point.instance for point in points}):
            own = sorted(point for point in points if point.instance == instance and not point.hidden)
            for before, after in [(one, other) for one, other in pairwise(own) if other.x > one.x][-1:]:
                steps[instance] = (after.y - before.y) / (after.x - before.x)
        return steps


# ---------------------------------------------------------------------------------------------------------------------
# A form


@dataclass(frozen=True, eq=False)
class _Fit:
    """One form with its rate: linear in what is left."""

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
        """A row of the design: the place of the instance, of all alike if None, and the budget."""
        share = [1 / len(self.instances) if instance is None else float(one == instance) for one in self.instances]
        moved = x - self.first
        return np.array([*share, moved if self.rate is None else -(2.0 ** (-self.rate * moved))])

    def predict(self, x: float, instance: int | None) -> Interval:
        """The mean over instances, or one more measurement of an instance."""
        row = self._row(x, instance)
        value = float(row @ self.weights)
        variance = float(row @ self.inverse @ row) + (instance is not None)
        half = quantile(self.degrees) * float(np.sqrt(self.squares / self.degrees * variance))
        return Interval(value, value - half, value + half)


def _union(found: Sequence[Interval]) -> Interval:
    """The first one's value, and the outermost ends."""
    return Interval(found[0].value, min(one.low for one in found), max(one.high for one in found))


def _above(mean: NDArray[np.float64], spread: float, ceiling: NDArray[np.float64]) -> NDArray[np.float64]:
    """The expectation of a normal variable that is known to be above a ceiling."""
    if spread <= 0:
        return np.maximum(mean, ceiling)
    return np.array([m + spread * _hazard((c - m) / spread) for m, c in zip(mean, ceiling, strict=True)])


def _hazard(z: float) -> float:
    """Density over upper tail of the normal law."""
    if z > 30:
        return z + 1 / z
    return math.sqrt(2 / math.pi) * math.exp(-z * z / 2) / math.erfc(z / math.sqrt(2))
