"""Claims that are not yet written by the rules of `hmmscope.evidence`; this module goes with the last of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hmmscope import registry
from hmmscope.evidence.findings import Finding
from hmmscope.evidence.pooling import Pooled
from hmmscope.evidence.verdicts import Verdict

Tables = Any


def verdict_of(low: float, high: float, *, above: float = 0.0) -> Verdict:
    """Of the claim that a number is above a bound, by its 95 % interval; a bound inside it leaves the claim open."""
    return "reproduced" if low > above else "not reproduced" if high <= above else "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the tables say of a claim.

    Attributes:
        verdict: reproduced, not reproduced or inconclusive; "found" where the papers leave the question open.
        text: what was seen, with its numbers.
        value, low, high: the effect that decides, with its 95 % interval over seeds and samples.
        unit: of the effect.
    """

    verdict: Verdict
    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim and how it is decided.

    Attributes:
        source: paper and place.
        statement: a sentence.
        experiment: the one whose tables decide.
        judge: from tables to a judgement.
    """

    name: str
    source: str
    statement: str
    experiment: str
    decide: Callable[[Tables], Judgement]
    rule: None = None
    reading: str = ""
    about: str = ""
    proved: bool = False
    rule_version: str = ""
    is_question: bool = False

    @property
    def says(self) -> str:
        return self.statement

    def judge(self, tables: Any, *, mirrored: bool = False) -> Finding:
        """The judgement as a finding of the experiment."""
        found = self.decide(dict(tables))
        return Finding(
            title=self.statement,
            text=found.text,
            verdict=found.verdict,
            value=found.value,
            low=found.low,
            high=found.high,
            unit=found.unit,
            source=self.source,
            claim=self.name,
        )


def claim(
    name: str, *, source: str, statement: str, experiment: str
) -> Callable[[Callable[[Tables], Judgement]], Claim]:
    """Register a function as a claim."""

    def decorate(judge: Callable[[Tables], Judgement]) -> Claim:
        made = Claim(name=name, source=source, statement=statement, experiment=experiment, decide=judge)
        return registry.claim(name)(made)

    return decorate


def verdict_above(effect: Pooled, above: float = 0.0) -> Verdict:
    """Of the claim that an effect is above a bound, by its interval; without one nothing is decided."""
    return verdict_of(effect.low, effect.high, above=above) if effect.decides else "inconclusive"


def is_above(effect: Pooled, text: str, unit: str, *, above: float = 0.0) -> Judgement:
    """Of a claim that holds if the effect is above a bound; the interval decides, and without one nothing does."""
    verdict = verdict_above(effect, above)
    text = text if effect.decides else f"{text} (One seed has this number, so there is no interval.)"
    return Judgement(verdict=verdict, text=text, value=effect.value, low=effect.low, high=effect.high, unit=unit)
