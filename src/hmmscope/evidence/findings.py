"""A sentence that measurements bear out or do not: what experiments and claims end with."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "found"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One sentence that the measurements bear out or do not, with the number it rests on.

    Attributes:
        title: what it is about.
        text: the sentence.
        verdict: of a published claim, or "found" where nothing was claimed.
        value, low, high: the number and its 95 % interval, if it has one.
        unit: of the number.
        source: paper and place of the claim, if it is one.
    """

    title: str
    text: str
    verdict: Verdict
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    source: str = ""


def verdict_of(low: float, high: float, *, above: float = 0.0) -> Verdict:
    """Of the claim that a number is above a bound, by its 95 % interval; a bound inside it leaves the claim open."""
    return "reproduced" if low > above else "not reproduced" if high <= above else "inconclusive"
