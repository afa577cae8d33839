"""Errors and power of rules, by simulation, and what they close: each direction for itself."""

import itertools
import random

import pytest

from hmmscope import registry
from hmmscope.lab import ScalingLaw
from hmmscope.lab.evidence import power
from hmmscope.lab.evidence.claim import Claim, Measurement
from hmmscope.lab.evidence.effects import Effect
from hmmscope.lab.evidence.power import power_of, powered, targets
from hmmscope.lab.evidence.rows import Tables
from hmmscope.lab.evidence.verdicts import Above, Always, Below, Gate, Printed, Rule, Within

QUIET, LOUD = {"": Effect.pooled([1.0, 1.01, 0.99, 1.0, 1.0])}, {"": Effect.pooled([1.0, 9.0, -5.0, 2.0, 0.0])}


def test_a_rule_says_so_only_where_the_spread_lets_it() -> None:
    able, unable = (power_of(Above(0, smallest_effect=0.1), effects) for effects in (QUIET, LOUD))
    assert (able.power, able.denied) == (1.0, 0.0)
    assert able.confirmed == 0.0
    assert unable.power < 0.1
    without_room = power_of(Within(0.001), QUIET)  # narrower than its interval
    assert without_room.power < 0.5
    assert power_of(Above(), QUIET) is None  # nothing says how large an effect is
    assert power_of(Above(), QUIET, effect_if_true=0.5) is None  # nor how small one is none
    assert power_of(Above(), QUIET, effect_if_true=0.5, effect_if_false=-0.5) == (1.0, 0.0, 0.0)


def test_the_share_is_that_of_students_law() -> None:
    """An effect at the bound is above it in one of forty experiments, whatever the spread and the number of seeds."""
    for values in ([0.3, 0.1, 0.2], [5.0, -3.0, 8.0, 1.0, 0.0], [0.1 * k for k in range(12)]):
        found = power_of(Above(0.0), {"": Effect.pooled(values)}, effect_if_true=0.0, effect_if_false=0.0)
        assert found.power == found.confirmed == pytest.approx(0.025, abs=0.015)
        assert found.denied == pytest.approx(0.025, abs=0.015)
    samples = Effect.pooled([0.0, 1e-9, 0.0], resolution=0.2)  # the law of the samples counts
    found = power_of(Above(0.0), {"": samples}, effect_if_true=0.0, effect_if_false=0.0)
    assert found.power == pytest.approx(0.025, abs=0.015)


def test_a_spread_of_few_seeds_counts_as_what_it_is_known_to_be() -> None:
    """The power at a spread that three seeds show is nearer to one half than at the same spread of many seeds."""
    three = Effect.pooled([-1.0, 0.0, 1.0])
    many = Effect.pooled([3.37 * x for x in (-1.5, -1.0, -0.5, -0.3, 0.0, 0.3, 0.5, 1.0, 1.5, -1.2, 1.2, 0.0)])
    assert many.error == pytest.approx(three.error * 1.6, rel=0.1)
    errors = (many.error, three.error)
    sure, doubtful = (
        power_of(Above(0.0), {"": one}, effect_if_true=6 * error, effect_if_false=0.0)
        for one, error in zip((many, three), errors, strict=True)
    )
    assert sure.power > 0.97
    assert doubtful.power < 0.9


def test_several_effects_must_all_bear_it_out() -> None:
    effect = Effect.pooled([0.1, 0.2, 0.15, 0.18, 0.12])
    one, both = (power_of(Above(0, smallest_effect=0.1), dict.fromkeys(names, effect)) for names in ("a", "abc"))
    assert both.power < one.power
    assert both.confirmed < one.confirmed


def test_universal_rules_need_enough_instances() -> None:
    enough, few = (power_of(Always(0.9), {"": Effect.share([True] * count)}) for count in (36, 20))
    assert enough == (1.0, 0.0, pytest.approx(0.9**36))
    assert few.power == 0.0


def test_targets() -> None:
    assert targets(Above(0, smallest_effect=0.1)) == (0.2, 0)
    assert targets(Above(0, smallest_effect=0.1), 1.0) == (1.0, 0)
    assert targets(Below(2.0, smallest_effect=0.5)) == (1.0, 2.0)
    assert targets(Above(-0.1)) == (0.0, -0.2)  # the bound is the margin
    assert targets(Within(0.1)) == (0.0, 0.2)
    assert targets(Printed(1.5, 0.05)) == (1.5, 1.6)
    assert targets(Above(), 1.0) is None
    assert targets(Above(), 1.0, -1.0) == (1.0, -1.0)
    assert targets(Always()) is None


def test_a_prediction_holds_the_printed_number_in_nineteen_of_twenty() -> None:
    narrow = {"": Effect.predicted([1.5, 1.501, 1.499, 1.5, 1.5, 1.501])}
    found = power_of(Printed(1.5, 0.05), narrow)
    assert found.power == pytest.approx(0.95, abs=0.02)
    assert found.confirmed == 0.0


def test_each_direction_is_asked_for_its_own_error() -> None:
    """A denial is not closed by a power that only a confirmation needs."""
    rule = Above(0, smallest_effect=0.05)
    large, contrary = ({"": Effect.pooled([s + x for x in (0.0, 0.1, -0.1, 0.05, -0.05)])} for s in (2.0, -2.0))
    known = {"effect_if_true": None, "effect_if_false": None, "least": 0.5}
    gate, power, verdict = powered(rule, large, "reproduced", **known)  # type: ignore[arg-type]
    assert power.power < 0.5
    assert (gate.is_open, verdict) == (True, "reproduced in sign")
    assert gate.text.startswith("the power is low: the rule confirms the expected effect in 0.")
    assert "seeds would raise this fraction to 0.9); a sign test" in gate.text
    gate, power, verdict = powered(rule, contrary, "not reproduced", **known)  # type: ignore[arg-type]
    assert (gate.is_open, verdict) == (True, "not reproduced")
    few = {"": Effect.pooled([1.0, 2.0, 3.0])}  # in sign too it rests on the law of three seeds alone
    gate, _, _ = powered(rule, few, "reproduced in sign", **known)  # type: ignore[arg-type]
    assert not gate.is_open
    assert "does not confirm the sign, or needs more seeds" in gate.text
    several = {str(k): Effect.pooled([9.0, -7.0, 4.0]) for k in range(9)}  # the worst of many is often denied
    gate, power, _ = powered(rule, several, "not reproduced", **known)  # type: ignore[arg-type]
    assert power.denied > 0.05
    assert not gate.is_open


def claim_of(rule: Rule, effect: Effect, **more: object) -> Claim:
    def measure(tables: Tables) -> Measurement:
        return Measurement(effect, "So.", gates=(Gate("learned", True, "it learned"),), compute_used={"sequences": 1.0})

    said = {key: "?" for key in ("name", "experiment", "source", "claim_text", "operationalization")}
    return Claim(**said, rule=rule, measure=measure, budget={"sequences": 1.0}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [(0.1, 0.2, 0.05, 0.16, 0.14), (-0.1, -0.2, -0.05, -0.16, -0.14)])
def test_low_power_limits_what_is_borne_out_and_closes_no_denial(values: tuple[float, ...]) -> None:
    effect, confirmed = Effect.pooled(values), values[0] > 0
    judged = claim_of(Above(0, smallest_effect=0.04), effect).evaluate({})
    assert judged.verdict == ("reproduced in sign" if confirmed else "not reproduced")
    assert judged.text == ("So. (The power is low, so the size of the effect is uncertain.)" if confirmed else "So.")
    assert [gate.name for gate in judged.gates] == ["learned", "power"]
    told = claim_of(Above(0.0), effect, effect_if_true=0.5, effect_if_false=-0.5).evaluate({})
    assert told.verdict == ("reproduced" if confirmed else "not reproduced")
    assert claim_of(Above(0.0), effect).evaluate({}).verdict == "not tested"  # nothing says how large an effect is


def test_what_is_open_needs_no_power() -> None:
    assert (
        claim_of(Above(0, smallest_effect=0.04), Effect.pooled([1.0, -1.0, 0.5])).evaluate({}).verdict == "inconclusive"
    )


def test_laws_are_redrawn_about_another_effect() -> None:
    draw = random.Random(1)
    own = [draw.gauss(0, 0.2) for _ in range(5)]
    points = [
        ScalingLaw.BudgetPoint(15.0 + k, i, 3 + 0.3 * k + own[i] + draw.gauss(0, 0.05))
        for i in range(5)
        for k in range(6)
    ]
    law = ScalingLaw.of(points)
    found = [law.resampled(28.0, 4.0, random.Random(seed), "") for seed in range(10)]
    assert sum(one.low <= 4.0 <= one.high for one in found) >= 8


def test_shares_of_redrawn_experiments_are_of_all_that_were_drawn() -> None:
    """A law that puts every other experiment on the wrong side of the bound."""
    turn = itertools.count()
    sides = (Effect.pooled([1.0, 1.01, 0.99]), Effect.pooled([-1.0, -1.01, -0.99]))
    found = power._verdicts(Above(0.0, smallest_effect=0.1), QUIET, 1.0, lambda *_: sides[next(turn) % 2])
    assert found.count("reproduced") / len(found) == 0.5


CLAIMS = [claim for claim in registry.in_order("claim") if not claim.is_question]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_every_rule_can_come_out_both_ways(claim: Claim) -> None:
    """With a spread that is small beside what it has to tell, it says so of the effect, and the contrary of none."""
    rule, present = claim.rule, claim.effect_if_true if claim.printed is None else claim.printed
    if isinstance(rule, Always):
        assert rule.verdict(Effect.share([True] * 200)) == "reproduced"
        assert rule.verdict(Effect.share([True] * 199 + [False])) == "not reproduced"
        return
    aims = targets(rule, present, claim.effect_if_false)
    assert aims is not None, "the record says neither what matters nor how large an effect is, and none"
    spread = abs(aims[0] - aims[1]) / 100
    values = [spread * x for x in (-1.2, -0.4, 0.0, 0.5, 1.1)]
    made = Effect.predicted(values) if isinstance(rule, Printed) else Effect.pooled(values)
    found = power_of(rule, {"": made}, present, claim.effect_if_false)
    assert found.power >= power.PLANNED, found
    assert max(found.denied, found.confirmed) <= power.MOST_FALSE, found
