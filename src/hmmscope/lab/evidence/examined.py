"""What a verdict would be under other choices, and whether its rule could have come out either way: sensitivity and power.

A decided row is fragile if it turns when its margin is halved or doubled, at another error rate or definition of what is
read, or without any one seed. The power of a rule is found by simulation: effects with the spread over seeds of the kept
ones are drawn about the paper's effect, and about none; the rule has to say so nine times in ten.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hmmscope.lab.evidence.claim import Claim, Seen
from hmmscope.lab.evidence.effects import Effect, Estimate, at_level, pooled, share
from hmmscope.lab.evidence.records import Numbers
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.evidence.verdicts import DECIDED, Above, Always, Below, Rule, Verdict, Within, all_of

#: Least share of simulated experiments in which a rule says what is so.
LEAST_POWER = 0.9
#: Simulated experiments for each number.
DRAWS = 400
#: What a record may have among its numbers, and the values at which it is judged again.
OTHERWISE: Mapping[str, tuple[Any, ...]] = {"rate": (0.05, 0.1), "definition": ("prefix", "max")}


class Power(NamedTuple):
    """Shares of simulated experiments in which a rule says "reproduced" of the paper's effect, and the contrary of none."""

    there: float
    none: float

    def __str__(self) -> str:
        return f"{self.there:.2f} and {self.none:.2f}"

    @property
    def suffices(self) -> bool:
        return min(self) >= LEAST_POWER


def turns(claim: Claim, tables: Tables) -> list[str]:
    """What turns the verdict of a decided row: ``margin × 2``, ``rate 0.05``, ``without seed 4``; empty of others."""
    now = claim.judge(tables).verdict
    if now not in DECIDED:
        return []
    return [name for name, verdict in _otherwise(claim, tables) if verdict != now]


def _otherwise(claim: Claim, tables: Tables) -> Iterator[tuple[str, Verdict]]:
    seen = claim.seen(tables)
    for factor, name in ((0.5, "margin × ½"), (2.0, "margin × 2")):
        rule = with_margin(claim.rule, factor)
        if rule is not None:
            yield name, replace(claim, rule=rule).finding(seen).verdict
    for name, values in OTHERWISE.items():
        for value in values if name in claim.numbers else ():
            if value != claim.numbers[name]:
                other = replace(claim, numbers=Numbers(claim.numbers | {name: value}))
                yield f"{name} {value}", other.judge(tables).verdict
    seeds = {seed for rows in tables.values() for seed in Rows(rows).seeds() if seed is not None}
    if claim.about == "training":
        for seed in sorted(seeds):
            kept = {name: Rows(row for row in rows if row.get("seed") != seed) for name, rows in tables.items()}
            yield f"without seed {seed}", claim.judge(kept).verdict


def with_margin(rule: Rule | None, factor: float) -> Rule | None:
    """A rule with another margin: of `Above` and `Below` what matters, or the bound where that is the margin."""
    match rule:
        case Above() | Below():
            name = "matters" if rule.matters else "bound"
            return replace(rule, **{name: factor * getattr(rule, name)}) if getattr(rule, name) else None
        case Within():
            return replace(rule, margin=factor * rule.margin)
    return None


def power(claim: Claim, seen: Seen) -> Power | None:
    """By simulation with the spread that was seen, at the seeds that were used; None where no spread was.

    The paper's effect is the record's `printed`, or twice what matters; none is the bound of the rule, or its margin on the
    other side where nothing else is said to matter.
    """
    rule, effects = claim.rule, seen.by_name()
    if isinstance(rule, Always) and effects:
        count = min(effect.num_seeds for effect in effects.values())
        return Power(float(rule.verdict(share([True] * count)) == "reproduced"), 1 - 0.5**count)
    aims = None if rule is None else targets(rule, claim.printed)
    known = effects and all(
        effect.error and effect.degrees >= 0 and effect.num_seeds > 1 for effect in effects.values()
    )
    if rule is None or aims is None or not known:
        return None
    draw = random.Random(claim.name)
    with at_level(claim.level):
        there, none = (
            sum(_drawn(rule, effects, aim, draw) == wanted for _ in range(DRAWS)) / DRAWS
            for aim, wanted in zip(aims, ("reproduced", "not reproduced"), strict=True)
        )
    return Power(there, none)


def targets(rule: Rule, printed: float | None) -> tuple[float, float] | None:
    """The effect of the paper, and that of none; None where nothing says how large either is."""
    match rule:
        case Within():
            return rule.bound, rule.bound + 2 * rule.margin
        case Above() | Below():
            side = 1 if isinstance(rule, Above) else -1
            margin = rule.matters or abs(rule.bound)
            if printed is None and not margin:
                return None
            aim = rule.bound + side * (2 * margin if rule.matters else margin) if printed is None else printed
            return aim, rule.bound - (0 if rule.matters else side * margin)
    return None


def _drawn(rule: Rule, effects: Mapping[str, Effect], aim: float, draw: random.Random) -> Verdict:
    """The verdict of one simulated experiment."""
    made = {}
    for name, effect in effects.items():
        spread = (effect.error or 0.0) * effect.num_seeds**0.5
        noise = 0.0 if effect.degrees else spread  # it was the samples' law that counted
        made[name] = pooled([Estimate(draw.gauss(aim, spread), noise) for _ in range(effect.num_seeds)])
    return all_of(rule, made)[0]
