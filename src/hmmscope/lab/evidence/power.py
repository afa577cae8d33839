"""Whether a rule could have come out either way at the seeds that were used: its power, by simulation.

Simulated experiments have the spread over seeds and samples of the kept ones, once about the effect that the paper prints
(twice what matters where it prints none), once about none. The rule has to say "reproduced" of the first, and "not
reproduced" of the second, nine times in ten. A rule that does not is no test: what it says of these data it might have
said, or failed to say, of any.

What matters may be too small for the spread, while the effect is far larger. Then the rule is asked again with the least
margin that it can tell from none at this spread, see `resolved`: only if the whole interval is beyond that margin too, the
verdict stands, with the power of that stricter rule.

A rule for every instance (`verdicts.Always`) has its power by construction: it says "reproduced" of enough instances alone,
and one counterexample refutes it, however few there are.
"""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from hmmscope.lab.evidence.effects import Effect, level, quantile
from hmmscope.lab.evidence.verdicts import Above, Always, Below, Gate, Printed, Rule, Verdict, Within, all_of, severest

#: Simulated experiments for each number.
DRAWS = 1000
#: The same where each is the fit of a law.
DRAWS_OF_LAWS = 100
#: The first so many of `MARGINS` are tried for them.
MARGINS_OF_LAWS = 8
#: Seeds that are thought of when a rule lacks the power with those that were used.
SEEDS = (*range(3, 21), 24, 30, 40, 60, 100)
#: Margins that are tried by `resolved`, as multiples of what matters.
MARGINS = tuple(2 ** (step / 4) for step in range(1, 29))

#: A simulated effect of that size in the place of the one of that name, for effects whose law is not that of seeds.
Redrawn = Callable[[str, float, random.Random], Effect | None]


class Power(NamedTuple):
    """Shares of simulated experiments in which a rule says "reproduced" of the paper's effect, and the contrary of none.

    Attributes:
        margin: what matters, where that is more than the record says, see `resolved`.
    """

    there: float
    none: float
    margin: float | None = None

    def __str__(self) -> str:
        told = "" if self.margin is None else f", of {self.margin:.2g}"
        return f"{self.there:.2f} and {self.none:.2f}{told}"

    def suffices(self, least: float) -> bool:
        """Whether neither is below `least`."""
        return min(self.there, self.none) >= least


def power_of(
    rule: Rule,
    effects: Mapping[str, Effect],
    there: float | None = None,
    none: float | None = None,
    redrawn: Redrawn | None = None,
) -> Power | None:
    """By simulation with the spread that was seen, at the seeds that were used; None where nothing tells it.

    Args:
        rule: of each effect; all must bear the claim out.
        effects: with the spread that was seen.
        there: the effect that the paper prints; by default twice what matters.
        none: the effect that is none; by default that at the bound, or the mirror image of the paper's where the bound is
            all that matters.
        redrawn: see `Redrawn`.
    """
    if isinstance(rule, Always) and effects:
        count = min(effect.num_seeds for effect in effects.values())
        return Power(float(rule.least**count <= level() / 2), 1 - rule.least**count)
    aims = targets(rule, there, none)
    if aims is None or not effects or any(effect.num_seeds < 2 for effect in effects.values()):
        return None
    if redrawn is None and any(_error(effect) is None for effect in effects.values()):
        return None
    present, absent = aims
    return Power(
        _share(rule, effects, present, "reproduced", redrawn), _share(rule, effects, absent, "not reproduced", redrawn)
    )


def targets(rule: Rule, there: float | None = None, none: float | None = None) -> tuple[float, float] | None:
    """The effect of the paper, and that of none; None where nothing says how large either is."""
    match rule:
        case Within():
            found: tuple[float | None, float | None] = (rule.bound, rule.bound + 2 * rule.margin)
        case Printed():
            found = (rule.bound, rule.bound + 2 * rule.margin)
        case Above() | Below():
            side = 1 if isinstance(rule, Above) else -1
            if rule.matters:
                found = (rule.bound + 2 * side * rule.matters, rule.bound)
            elif rule.bound:
                found = (rule.bound + side * abs(rule.bound), rule.bound - side * abs(rule.bound))
            else:
                found = (None, None)
        case _:
            return None
    present = found[0] if there is None else there
    absent = found[1] if none is None else none
    return None if present is None or absent is None else (present, absent)


def resolved(
    rule: Rule,
    effects: Mapping[str, Effect],
    there: float | None,
    none: float | None,
    least: float,
    redrawn: Redrawn | None = None,
) -> tuple[Rule, Power] | None:
    """The rule with the least margin above what matters that has the power; None where there is none.

    Of rules that have something that matters: more of it asks more of "reproduced", and is never asked of its contrary.
    """
    if not isinstance(rule, Above | Below) or not rule.matters:
        return None
    for factor in MARGINS if redrawn is None else MARGINS[:MARGINS_OF_LAWS]:
        stricter = replace(rule, matters=factor * rule.matters)
        found = power_of(stricter, effects, there, none, redrawn)
        if found is not None and found.suffices(least):
            return stricter, found._replace(margin=stricter.matters)
    return None


def powered(
    rule: Rule,
    effects: Mapping[str, Effect],
    verdict: Verdict,
    *,
    there: float | None,
    none: float | None,
    least: float,
    redrawn: Redrawn | None = None,
) -> tuple[Gate, Power | None]:
    """Whether a verdict comes from a rule that could have come out either way, and the power that it has.

    Args:
        verdict: that the rule gives.
        least: of both shares.
        there, none, redrawn: see `power_of`.
    """
    found = power_of(rule, effects, there, none, redrawn)
    if found is None:
        text = (
            "nothing tells in how many experiments the rule would say what is so: no spread, or no effect to look for"
        )
        return Gate("power", False, text, (least,)), None
    said = f"the rule says so in {found.there:.2f} of simulated experiments with the effect, and in {found.none:.2f} without"
    if found.suffices(least):
        return Gate("power", True, said, (least,)), found
    better = resolved(rule, effects, there, none, least, redrawn) if verdict == "reproduced" else None
    if better is not None and all_of(better[0], effects)[0] == "reproduced":
        margin = better[1].margin
        text = f"at this spread an effect of {margin:.2g} is told from none, and the whole interval is beyond it"
        return Gate("power", True, text, (least,)), better[1]
    enough = None if redrawn is not None else _seeds_enough(rule, effects, there, none, least)
    text = f"{said}; {enough} seeds would do" if enough else f"{said}; more seeds alone would not do"
    return Gate("power", False, text if redrawn is None else said, (least,)), found


def _seeds_enough(
    rule: Rule, effects: Mapping[str, Effect], there: float | None, none: float | None, least: float
) -> int | None:
    """The least number of seeds of the same spread with which a rule has the power."""
    if isinstance(rule, Always) or any(effect.error is None or not effect.degrees for effect in effects.values()):
        return None
    for count in (one for one in SEEDS if one > min(effect.num_seeds for effect in effects.values())):
        found = power_of(rule, {name: one.with_seeds(count) for name, one in effects.items()}, there, none)
        if found is not None and found.suffices(least):
            return count
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Simulated experiments


def _share(rule: Rule, effects: Mapping[str, Effect], aim: float, wanted: Verdict, redrawn: Redrawn | None) -> float:
    """In how many simulated experiments about an effect the rule says what is wanted."""
    if redrawn is not None:
        draw = random.Random(f"{aim:.6g}")
        made = ({name: redrawn(name, aim, draw) for name in effects} for _ in range(DRAWS_OF_LAWS))
        whole = [{name: one for name, one in found.items() if one is not None} for found in made]
        return sum(all_of(rule, one, tuple(effects))[0] == wanted for one in whole) / DRAWS_OF_LAWS
    laws = [_Ends.of(number, effect) for number, effect in enumerate(effects.values())]
    verdicts = (severest(rule.decide(*law.at(aim, draw)) for law in laws) for draw in range(DRAWS))
    return sum(one == wanted for one in verdicts) / DRAWS


class _Ends(NamedTuple):
    """Intervals of simulated effects: those of `Effect.pooled`, of values with a spread that is known."""

    units: tuple[tuple[float, float], ...]
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
        mean, spread = self.units[draw]
        value = aim + self.error * mean
        half = max(self.least, quantile(self.degrees) * self.error * spread) if self.degrees else self.least
        return value - half, value, value + half


@cache
def _units(number: int, seeds: int) -> tuple[tuple[float, float], ...]:
    """Means and spreads of standard normal values of so many seeds, in standard errors of the mean."""
    draw = random.Random(f"experiments {number} of {seeds} seeds")
    found = []
    for _ in range(DRAWS):
        values = [draw.gauss(0, 1) for _ in range(seeds)]
        mean = math.fsum(values) / seeds
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (seeds - 1))
        found.append((mean * math.sqrt(seeds), spread))
    return tuple(found)


def _error(effect: Effect) -> float | None:
    """The standard error of an effect; where only its interval is known, by the normal law."""
    if effect.error is not None:
        return effect.error or None
    if effect.low is None or effect.high is None:
        return None
    return (effect.high - effect.low) / 2 / quantile(0) or None
