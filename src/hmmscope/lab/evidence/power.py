"""Power of decision rules by simulation.

A simulated experiment has as many seeds as the real one; its spread over seeds is drawn from the posterior (scaled
inverse chi-squared). A verdict is accepted if its error rate is small:

    denied      at most 5 % of simulations with the paper's effect deny it
    confirmed   at most 5 % of simulations without an effect confirm one

The function `targets` chooses the simulated effects. An effect confirmed at power below
one half is likely overstated (Gelman and Carlin 2014) and counts as reproduced in sign only.
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

#: Number of simulated experiments for each power or rate.
DRAWS = 1000
#: The same if each is a fit of a scaling law.
DRAWS_OF_LAWS = 100
#: Numbers of seeds to try if the power is too low.
SEEDS = (*range(3, 21), 24, 30, 40, 60, 100)
#: Highest accepted rate of false verdicts.
MOST_FALSE = 0.05
#: Power for which campaigns are planned.
PLANNED = 0.9

#: Function (name, true value, generator) -> simulated effect, for effects that are not means over seeds.
Redrawn = Callable[[str, float, random.Random], Effect | None]


class Power(NamedTuple):
    """Fractions of simulated experiments with each verdict.

    Attributes:
        power: fraction with the verdict "reproduced", if the paper's effect is true.
        denied: fraction with the verdict "not reproduced", if the paper's effect is true.
        confirmed: fraction with "reproduced" or "reproduced in sign", if there is no effect.
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
    """Return the simulated power of a rule; None if the spread over seeds or the effect to simulate is unknown."""
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
    """Return the rates of confirming a true claim and of denying a false one; None if unknown."""
    aims = targets(rule, effect_if_true, effect_if_false)
    if aims is None or not effects or any(one.num_seeds < 2 or _error(one) is None for one in effects.values()):
        return None
    said, denied = (_verdicts(rule, effects, aim, None) for aim in aims)
    return sum(one in CONFIRMED for one in said) / len(said), denied.count("not reproduced") / len(denied)


def targets(
    rule: Rule, effect_if_true: float | None = None, effect_if_false: float | None = None
) -> tuple[float, float] | None:
    """Return the effects to simulate if the claim is true and if it is false; None if unknown."""
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
    found = power_of(rule, effects, effect_if_true, effect_if_false, redrawn)
    seen = (MOST_FALSE, least)
    if found is None:
        text = "the error rate of the rule is unknown, because the spread over seeds or the expected effect is unknown"
        return Gate("power", False, text, seen), None, verdict
    if verdict not in CONFIRMED:
        text = f"the rule falsely denies the expected effect in {found.denied:.2f} of simulated experiments"
        return Gate("power", found.denied <= MOST_FALSE, text, seen), found, verdict
    if found.confirmed > MOST_FALSE:
        text = f"the rule falsely confirms an effect of zero in {found.confirmed:.2f} of simulated experiments"
        return Gate("power", False, text, seen), found, verdict
    text = f"the rule confirms the expected effect in {found.power:.2f} of simulated experiments"
    if found.power >= least:
        return Gate("power", True, f"{text}, and an effect of zero in {found.confirmed:.2f}", seen), found, verdict
    enough = None if redrawn is not None else seeds_enough(rule, effects, effect_if_true, effect_if_false)
    more = f" ({enough} seeds would raise this fraction to {PLANNED:g})" if enough else ""
    held = all(rule.holds_by_sign(effect) for effect in effects.values())
    bound = (
        "a sign test over the seeds confirms the sign"
        if held
        else "a sign test over the seeds does not confirm the sign, or needs more seeds"
    )
    text = f"the power is low: {text}{more}; {bound}"
    return Gate("power", held, text, seen), found, "reproduced in sign"


def seeds_enough(
    rule: Rule,
    effects: Mapping[str, Effect],
    effect_if_true: float | None,
    effect_if_false: float | None,
    wanted: float = PLANNED,
) -> int | None:
    """Return the least number of seeds in `SEEDS` with the power `wanted`, or None."""
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
    if redrawn is not None:
        draw = random.Random(f"{aim:.6g}")
        made = ({name: redrawn(name, aim, draw) for name in effects} for _ in range(DRAWS_OF_LAWS))
        whole = [{name: one for name, one in found.items() if one is not None} for found in made]
        return [all_of(rule, one, tuple(effects))[0] for one in whole]
    laws = [_Ends.of(number, effect) for number, effect in enumerate(effects.values())]
    return [severest(rule.decide(*law.at(aim, draw)) for law in laws) for draw in range(DRAWS)]


class _Ends(NamedTuple):
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
    if effect.error is not None:
        return effect.error or None
    if effect.low is None or effect.high is None:
        return None
    return (effect.high - effect.low) / 2 / quantile(0) or None
