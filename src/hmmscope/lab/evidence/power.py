"""Simulate the error rates and the power of a rule, to find verdicts that chance could give.

Simulated experiments have the seeds of the kept ones. Their spread is not that which was seen, which five seeds tell badly:
each has one drawn from what the seen one allows (the inverse chi-squared law). They are made once about the effect that the
paper prints (twice what matters where it prints none), once about none. The requirement depends on the direction of the
verdict:

    denied      the rule denies the paper's effect in 5 % of simulated experiments at most
    borne out   the rule bears out no effect in 5 % of them at most

The power, the share in which the rule bears the paper's effect out, closes nothing on a denial. An effect that is borne out
with a power below one half is likely overstated (Gelman and Carlin 2014, Perspectives on Psychological Science 9): it is
reproduced in sign at most, and only if the bound of the sign test, which knows no law of the seeds, is on the claimed side
too. Campaigns are planned for a power of .9.

A rule for every instance (`verdicts.Always`) has its power by construction: it says "reproduced" of enough instances alone,
and one counterexample refutes it, however few there are.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from hmmscope.lab.evidence.effects import Effect, level, quantile
from hmmscope.lab.evidence.verdicts import (
    CONFIRMED,
    Above,
    Always,
    Below,
    Gate,
    Printed,
    Rule,
    Verdict,
    Within,
    all_of,
    severest,
)

#: Simulated experiments for each number.
DRAWS = 1000
#: The same where each is the fit of a law.
DRAWS_OF_LAWS = 100
#: Seeds that are thought of when a rule lacks the power with those that were used.
SEEDS = (*range(3, 21), 24, 30, 40, 60, 100)
#: Most simulated experiments in which a rule may say the contrary of what is so.
MOST_FALSE = 0.05
#: The power for which campaigns are planned.
PLANNED = 0.9

#: A simulated effect of that size in the place of the one of that name, for effects whose law is not that of seeds.
Redrawn = Callable[[str, float, random.Random], Effect | None]


class Power(NamedTuple):
    """Shares of simulated experiments.

    Attributes:
        power: the rule says "reproduced" of the paper's effect.
        denied: it says "not reproduced" of the paper's effect, which is false.
        confirmed: it says "reproduced", or so in sign, of none, which is false.
    """

    power: float
    denied: float
    confirmed: float

    def __str__(self) -> str:
        return f"{self.power:.2f}; false denials {self.denied:.2f}, false confirmations {self.confirmed:.2f}"


def power_of(
    rule: Rule,
    effects: Mapping[str, Effect],
    effect_if_true: float | None = None,
    effect_if_false: float | None = None,
    redrawn: Redrawn | None = None,
) -> Power | None:
    """By simulation at the seeds that were used; None where nothing tells it.

    Args:
        rule: of each effect; all must bear the claim out.
        effects: with the spread that was seen.
        effect_if_true: the effect that the paper prints; by default twice what matters.
        effect_if_false: the effect that is none; by default that at the bound, or the mirror image of the paper's where the
        bound is
            all that matters.
        redrawn: see `Redrawn`.
    """
    if isinstance(rule, Always) and effects:
        count = min(effect.num_seeds for effect in effects.values())
        return Power(float(rule.least**count <= level() / 2), 0.0, rule.least**count)
    aims = targets(rule, effect_if_true, effect_if_false)
    if aims is None or not effects or any(effect.num_seeds < 2 for effect in effects.values()):
        return None
    if redrawn is None and any(_error(effect) is None for effect in effects.values()):
        return None
    present, absent = aims
    said = _verdicts(rule, effects, present, redrawn)
    false = _verdicts(rule, effects, absent, redrawn)
    return Power(
        said.count("reproduced") / len(said),
        said.count("not reproduced") / len(said),
        sum(one in CONFIRMED for one in false) / len(false),
    )


def chances(
    rule: Rule, effects: Mapping[str, Effect], effect_if_true: float | None = None, effect_if_false: float | None = None
) -> tuple[float, float] | None:
    """Return how often a rule confirms the paper's effect, or its sign, and how often it denies an effect of zero.

    Both are fractions of simulated experiments; None if neither can be simulated, see `power_of`.
    """
    aims = targets(rule, effect_if_true, effect_if_false)
    if aims is None or not effects or any(one.num_seeds < 2 or _error(one) is None for one in effects.values()):
        return None
    said, denied = (_verdicts(rule, effects, aim, None) for aim in aims)
    return sum(one in CONFIRMED for one in said) / len(said), denied.count("not reproduced") / len(denied)


def targets(
    rule: Rule, effect_if_true: float | None = None, effect_if_false: float | None = None
) -> tuple[float, float] | None:
    """The effect of the paper, and that of none; None where nothing says how large either is."""
    match rule:
        case Within():
            found: tuple[float | None, float | None] = (rule.bound, rule.bound + 2 * rule.margin)
        case Printed():
            found = (rule.bound, rule.bound + 2 * rule.margin)
        case Above() | Below():
            side = 1 if isinstance(rule, Above) else -1
            if rule.smallest_effect:
                found = (rule.bound + 2 * side * rule.smallest_effect, rule.bound)
            elif rule.bound:
                found = (rule.bound + side * abs(rule.bound), rule.bound - side * abs(rule.bound))
            else:
                found = (None, None)
        case _:
            return None
    present = found[0] if effect_if_true is None else effect_if_true
    absent = found[1] if effect_if_false is None else effect_if_false
    return None if present is None or absent is None else (present, absent)


def powered(
    rule: Rule,
    effects: Mapping[str, Effect],
    verdict: Verdict,
    *,
    effect_if_true: float | None,
    effect_if_false: float | None,
    least: float,
    redrawn: Redrawn | None = None,
) -> tuple[Gate, Power | None, Verdict]:
    """Return the power gate of a verdict, the power of its rule, and the verdict that the power allows.

    Args:
        verdict: that the rule gives.
        least: the power below which "reproduced" is said of the sign alone.
        effect_if_true, effect_if_false, redrawn: see `power_of`.
    """
    found = power_of(rule, effects, effect_if_true, effect_if_false, redrawn)
    seen = (MOST_FALSE, least)
    if found is None:
        text = (
            "nothing tells how often the rule would say the contrary of what is so: no spread, or no effect to look for"
        )
        return Gate("power", False, text, seen), None, verdict
    if verdict not in CONFIRMED:
        text = f"of the effect that is looked for the rule says so, falsely, in {found.denied:.2f} of simulated experiments"
        return Gate("power", found.denied <= MOST_FALSE, text, seen), found, verdict
    if found.confirmed > MOST_FALSE:
        text = f"of no effect the rule says so, falsely, in {found.confirmed:.2f} of simulated experiments"
        return Gate("power", False, text, seen), found, verdict
    text = f"the rule says so in {found.power:.2f} of simulated experiments with the effect that is looked for"
    if found.power >= least:
        return Gate("power", True, f"{text}, and in {found.confirmed:.2f} without", seen), found, verdict
    enough = None if redrawn is not None else seeds_enough(rule, effects, effect_if_true, effect_if_false)
    more = f"; {enough} seeds would have a power of {PLANNED:g}" if enough else ""
    held = all(rule.holds_by_sign(effect) for effect in effects.values())
    bound = (
        "the bound of the sign test holds" if held else "the bound of the sign test does not hold, or has too few seeds"
    )
    text = f"low power: the size is uncertain ({text}); {bound}{more}"
    return Gate("power", held, text, seen), found, "reproduced in sign"


def seeds_enough(
    rule: Rule,
    effects: Mapping[str, Effect],
    effect_if_true: float | None,
    effect_if_false: float | None,
    wanted: float = PLANNED,
) -> int | None:
    """The least number of seeds of the same spread with which a rule has a power; None if no number up to 100 has."""
    aims = targets(rule, effect_if_true, effect_if_false)
    if aims is None or any(effect.error is None or not effect.degrees for effect in effects.values()):
        return None

    def enough(count: int) -> bool:
        said = _verdicts(rule, {name: one.with_seeds(count) for name, one in effects.items()}, aims[0], None)
        return said.count("reproduced") >= wanted * len(said)

    counts = [one for one in SEEDS if one > min(effect.num_seeds for effect in effects.values())]
    number = bisect_left(counts, True, key=enough)
    return counts[number] if number < len(counts) else None


# ---------------------------------------------------------------------------------------------------------------------
# Simulated experiments


def _verdicts(rule: Rule, effects: Mapping[str, Effect], aim: float, redrawn: Redrawn | None) -> list[Verdict]:
    """Return the verdicts of a rule on simulated experiments about an effect."""
    if redrawn is not None:
        draw = random.Random(f"{aim:.6g}")
        made = ({name: redrawn(name, aim, draw) for name in effects} for _ in range(DRAWS_OF_LAWS))
        whole = [{name: one for name, one in found.items() if one is not None} for found in made]
        return [all_of(rule, one, tuple(effects))[0] for one in whole]
    laws = [_Ends.of(number, effect) for number, effect in enumerate(effects.values())]
    return [severest(rule.decide(*law.at(aim, draw)) for law in laws) for draw in range(DRAWS)]


class _Ends(NamedTuple):
    """Intervals of simulated effects: those of `Effect.pooled`, of values whose spread is known as well as it was seen."""

    units: tuple[tuple[float, float, float], ...]
    error: float
    degrees: int
    least: float

    @classmethod
    def of(cls, number: int, effect: Effect) -> "_Ends":
        error = _error(effect) or 0.0
        noise = max((own for own, freedom in effect.others if freedom == 0), default=0.0)
        fixed = quantile(0) * (noise if effect.degrees > 0 else error)
        return cls(_units(number, effect.num_seeds), error, max(effect.degrees, 0), fixed)

    def at(self, aim: float, draw: int) -> tuple[float, float, float]:
        """Low, value and high of a simulated experiment about an effect."""
        mean, spread, doubt = self.units[draw]
        if not self.degrees:
            value = aim + self.error * mean
            return value - self.least, value, value + self.least
        error = self.error * doubt
        value = aim + error * mean
        half = max(self.least, quantile(self.degrees) * error * spread)
        return value - half, value, value + half


@cache
def _units(number: int, seeds: int) -> tuple[tuple[float, float, float], ...]:
    """Means and spreads of standard normal values of so many seeds, in standard errors of the mean.

    With each a true spread that a seen one of 1 allows.
    """
    draw = random.Random(f"experiments {number} of {seeds} seeds")
    found = []
    for _ in range(DRAWS):
        values = [draw.gauss(0, 1) for _ in range(seeds)]
        mean = math.fsum(values) / seeds
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (seeds - 1))
        doubt = math.sqrt((seeds - 1) / math.fsum(draw.gauss(0, 1) ** 2 for _ in range(seeds - 1)))
        found.append((mean * math.sqrt(seeds), spread, doubt))
    return tuple(found)


def _error(effect: Effect) -> float | None:
    """The standard error of an effect; where only its interval is known, by the normal law."""
    if effect.error is not None:
        return effect.error or None
    if effect.low is None or effect.high is None:
        return None
    return (effect.high - effect.low) / 2 / quantile(0) or None
