"""Effects: means over seeds with 95 % intervals.

The interval is the widest of three: Student's t over seeds, normal sampling noise, and a width of `resolution`.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from hmmscope.ties import rounded, steady

#: Default probability that an interval does not contain the true value.
ALPHA = 0.05
_LEVEL = ContextVar("level", default=ALPHA)
#: Error probability of the one-sided bound from the sign test.
SIGN_LEVEL = 0.05
#: Fewest seeds for which bimodality is tested.
LEAST_GROUPED = 5
#: A sample is bimodal if a gap exceeds GAP[0] + GAP[1] / seeds² widths of the wider group (1 in 40 normal samples).
GAP = (0.4, 100.0)
#: Relative spread below which differences are rounding errors.
_ROUNDING = 1e-12


@contextmanager
def at_level(alpha: float) -> Iterator[None]:
    """Set the error probability of intervals inside a ``with`` block."""
    before = _LEVEL.set(alpha)
    try:
        yield
    finally:
        _LEVEL.reset(before)


def level() -> float:
    """Return the error probability of intervals, 0.05 unless `at_level` changes it."""
    return _LEVEL.get()


class EstimateWithError(NamedTuple):
    """A value with its standard error from sampling, which is zero for exact values."""

    value: float
    error: float = 0.0

    def __sub__(self, other: "EstimateWithError") -> "EstimateWithError":
        return EstimateWithError(self.value - other.value, math.hypot(self.error, other.error))


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A mean over seeds with its 95 % interval.

    Attributes:
        value: the mean.
        low, high: ends of the interval, or None.
        error: standard error of the mean, or None.
        degrees: degrees of freedom of Student's t; 0 for a normal interval, -1 for any other, such as that of `share`.
        num_seeds: number of values.
        num_missing: number of seeds without a value.
        unit: unit of the value.
        others: standard error and degrees of freedom of each narrower interval that `pooled` rejected.
        values: value of each seed, ascending; empty if unknown.
    """

    value: float
    low: float | None = None
    high: float | None = None
    error: float | None = None
    degrees: int = 0
    num_seeds: int = 1
    num_missing: int = 0
    unit: str = ""
    others: tuple[tuple[float, int], ...] = field(default=(), compare=False, repr=False)
    values: tuple[float, ...] = field(default=(), compare=False, repr=False)

    @staticmethod
    def pooled(
        values: Sequence[float | EstimateWithError | None], unit: str = "", *, resolution: float = 0.0
    ) -> "Effect":
        """Return the mean over seeds.

        Args:
            values: value of each seed; an `EstimateWithError` if its sampling error is known, None if missing.
            unit: unit of the values.
            resolution: smallest difference that can be measured, such as 1 for counts.

        Raises:
            ValueError: no seed has a value.
        """
        found = [
            one if isinstance(one, EstimateWithError) else EstimateWithError(one) for one in values if one is not None
        ]
        if not found:
            raise ValueError("no seed has a value; at least one must not be None")
        count = len(found)
        mean = math.fsum(one.value for one in found) / count
        about: dict[str, Any] = {"num_seeds": count, "num_missing": len(values) - count, "unit": unit}
        about["values"] = tuple(sorted(one.value for one in found))
        laws = []  # (half-width, standard error, degrees of freedom)
        if count > 1:
            variance = math.fsum((one.value - mean) ** 2 for one in found) / (count - 1)
            laws.append((quantile(count - 1) * math.sqrt(variance / count), math.sqrt(variance / count), count - 1))
        noise = math.sqrt(math.fsum(one.error**2 for one in found)) / count
        laws.append((quantile(0) * noise, noise, 0))
        laws.append((resolution / 2, resolution / 2 / quantile(0), 0))
        (half, error, degrees), *narrower = sorted(laws, reverse=True)
        if half <= _ROUNDING * abs(mean):
            return Effect(value=mean, **about)
        others = tuple((own, freedom) for width, own, freedom in narrower if width > _ROUNDING * abs(mean))
        return Effect(
            value=mean, low=mean - half, high=mean + half, error=error, degrees=degrees, others=others, **about
        )

    @staticmethod
    def predicted(values: Sequence[float], unit: str = "") -> "Effect":
        """Return the mean with Student's 95 % prediction interval for one more value.

        Args:
            values: at least two values, not all equal.
            unit: unit of the values.
        """
        mean = Effect.pooled(values, unit)
        if mean.error is None:
            return mean
        error = mean.error * math.sqrt(len(values) + 1)
        half = quantile(len(values) - 1) * error
        return replace(mean, low=mean.value - half, high=mean.value + half, error=error, others=(), values=())

    @staticmethod
    def share(flags: Iterable[bool], unit: str = "") -> "Effect":
        """Return the proportion of true values with its exact (Clopper-Pearson) interval.

        Args:
            flags: whether the property holds, for each independent instance.
        """
        kept = list(flags)
        right, count = sum(map(bool, kept)), len(kept)
        return Effect(
            value=right / count,
            low=0.0 if right == 0 else _tail_root(right, count),
            high=1.0 if right == count else 1 - _tail_root(count - right, count),
            degrees=-1,
            num_seeds=count,
            unit=unit,
        )

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{rounded(self.value):.3g} {self.unit}".strip()
        digits = digits_for(steady(self.high - self.low))
        value, low, high = (f"{rounded(number):.{digits}f}" for number in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}] {self.unit}".strip()

    def short(self) -> str:
        """Format the effect for a sentence, as ``0.54 (0.48 to 0.60)``."""
        return str(replace(self, unit="")).replace("[", "(").replace(", ", " to ").replace("]", ")")

    def mirrored(self, bound: float = 0.0) -> "Effect":
        """Return the effect reflected about a bound."""
        low, high = (None if end is None else 2 * bound - end for end in (self.high, self.low))
        values = tuple(2 * bound - value for value in reversed(self.values))
        return replace(self, value=2 * bound - self.value, low=low, high=high, values=values)

    def shifted(self, by: float) -> "Effect":
        low, high = (None if end is None else end + by for end in (self.low, self.high))
        return replace(self, value=self.value + by, low=low, high=high, values=tuple(one + by for one in self.values))

    def p_value(self, bound: float = 0.0) -> float | None:
        """Return the two-sided p-value of the hypothesis that the mean equals the bound; None if unknown."""
        if self.error is None or self.degrees < 0:
            return None
        laws = ((self.error, self.degrees), *self.others)
        return max(two_sided(abs(self.value - bound) / error, degrees) for error, degrees in laws)

    def with_seeds(self, count: int) -> "Effect":
        """Return the effect that `count` seeds with the same mean and spread would give."""
        if self.error is None or self.degrees < 0:
            return self
        error = self.error * math.sqrt(self.num_seeds / count)
        degrees = count - 1 if self.degrees else 0
        half = quantile(degrees) * error
        return replace(
            self,
            low=self.value - half,
            high=self.value + half,
            error=error,
            degrees=degrees,
            num_seeds=count,
            num_missing=0,
            others=(),
            values=(),
        )

    def one_sided(self, bound: float, side: int) -> float | None:
        """Return the p-value of the hypothesis that the mean is at most (`side` 1) or at least (-1) the bound."""
        if self.error is None or self.degrees < 0:
            return None
        laws = ((self.error, self.degrees), *self.others)
        found = (side * (self.value - bound) / error for error, _ in laws)
        halves = ((t, two_sided(abs(t), degrees) / 2) for t, (_, degrees) in zip(found, laws, strict=True))
        return max(half if t >= 0 else 1 - half for t, half in halves)

    @property
    def sign_low(self) -> float | None:
        """Lower one-sided 95 % bound of the median from the sign test; None for too few seeds."""
        rank = _sign_rank(len(self.values))
        return self.values[rank - 1] if rank else None

    @property
    def sign_high(self) -> float | None:
        """Upper one-sided 95 % bound of the median from the sign test; None for too few seeds."""
        rank = _sign_rank(len(self.values))
        return self.values[-rank] if rank else None

    @property
    def bimodal(self) -> bool:
        """Return whether the values of the seeds fall into two groups with a wide gap."""
        count, values = len(self.values), self.values
        if count < LEAST_GROUPED:
            return False
        gap, cut = max((values[k] - values[k - 1], k) for k in range(1, count))
        inside = max(values[cut - 1] - values[0], values[-1] - values[cut])
        return gap > (GAP[0] + GAP[1] / count**2) * inside and gap > _ROUNDING * max(map(abs, values))


def _sign_rank(count: int) -> int:
    rank, below = 0, 0.0
    while rank < count and (below := below + math.comb(count, rank) / 2**count) <= SIGN_LEVEL:
        rank += 1
    return rank


def _tail_root(right: int, count: int) -> float:
    def tail(p: float) -> float:
        return math.fsum(math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(right, count + 1))

    return _bisect(lambda p: tail(p) - level() / 2, 0.0, 1.0)


def false_discovery(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the false discovery rate (q-value) of each p-value, by name (Benjamini and Hochberg, 1995)."""
    known = sorted((p, name) for name, p in p_values.items() if p is not None)
    found: dict[str, float | None] = dict.fromkeys(p_values)
    least = 1.0
    for rank in range(len(known), 0, -1):
        p, name = known[rank - 1]
        least = min(least, p * len(known) / rank)
        found[name] = least
    return found


def quantile(degrees: int, alpha: float | None = None) -> float:
    """Return Student's two-sided quantile at `alpha` (default: `level()`); the normal one at 0 degrees of freedom."""
    return _quantile(level() if alpha is None else alpha, degrees)


@cache
def _quantile(alpha: float, degrees: int) -> float:
    return _bisect(lambda t: alpha - two_sided(t, degrees), 0.0, 100.0)


def two_sided(t: float, degrees: int) -> float:
    """Return P(|T| >= t) for Student's distribution, or the standard normal one at 0 degrees of freedom.

    Source: Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    if degrees == 0:
        return math.erfc(t / math.sqrt(2))
    theta = math.atan2(t, math.sqrt(degrees))
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(3 if odd else 2, degrees - 1, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    inside = (2 / math.pi) * (theta + sine * total) if odd else sine * total
    return max(0.0, 1.0 - inside)


def _bisect(rising: Any, low: float, high: float) -> float:
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def digits_for(width: float) -> int:
    return max(0, min(9, 1 - math.floor(math.log10(width)))) if width > 0 else 3
