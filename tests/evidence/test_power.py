"""Whether a rule could have come out either way: power by simulation, and what it closes."""

import itertools
import random

import pytest

from hmmscope import registry
from hmmscope.lab import Law
from hmmscope.lab.evidence import power
from hmmscope.lab.evidence.claim import Claim, Seen
from hmmscope.lab.evidence.effects import Effect
from hmmscope.lab.evidence.power import power_of, powered, resolved, targets
from hmmscope.lab.evidence.rows import Tables
from hmmscope.lab.evidence.verdicts import Above, Always, Below, Gate, Printed, Rule, Within

QUIET, LOUD = {"": Effect.pooled([1.0, 1.01, 0.99, 1.0, 1.0])}, {"": Effect.pooled([1.0, 9.0, -5.0, 2.0, 0.0])}


def test_a_rule_says_so_only_where_the_spread_lets_it() -> None:
    able, unable = (power_of(Above(0, matters=0.1), effects) for effects in (QUIET, LOUD))
    assert able is not None
    assert unable is not None
    assert able.suffices(0.9)
    assert not unable.suffices(0.9)
    assert max(unable.there, unable.none) < 0.2
    without_room = power_of(Within(0.001), QUIET)  # narrower than its interval
    assert without_room is not None
    assert not without_room.suffices(0.9)
    assert power_of(Above(), QUIET) is None  # nothing says how large an effect is
    assert power_of(Above(), QUIET, there=0.5) is None  # nor how small one is none
    assert power_of(Above(), QUIET, there=0.5, none=-0.5) == (1.0, 1.0, None)


def test_the_share_is_that_of_students_law() -> None:
    """An effect at the bound is above it in one of forty experiments, whatever the spread and the number of seeds."""
    for values in ([0.3, 0.1, 0.2], [5.0, -3.0, 8.0, 1.0, 0.0], [0.1 * k for k in range(12)]):
        found = power_of(Above(0.0), {"": Effect.pooled(values)}, there=0.0, none=0.0)
        assert found is not None
        assert found.there == pytest.approx(0.025, abs=0.015)
    samples = Effect.pooled([0.0, 1e-9, 0.0], resolution=0.2)  # the law of the samples counts
    found = power_of(Above(0.0), {"": samples}, there=0.0, none=0.0)
    assert found is not None
    assert found.there == pytest.approx(0.025, abs=0.015)


def test_several_effects_must_all_bear_it_out() -> None:
    one = power_of(Above(0, matters=0.1), {"a": Effect.pooled([0.1, 0.2, 0.15, 0.18, 0.12])})
    both = power_of(Above(0, matters=0.1), {name: Effect.pooled([0.1, 0.2, 0.15, 0.18, 0.12]) for name in "abc"})
    assert one is not None
    assert both is not None
    assert both.there < one.there
    assert both.none > one.none


def test_what_is_decided_has_the_power_that_its_gate_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not decided has that of its rule."""
    monkeypatch.setattr(Claim, "_powered", lambda *_: (None, "of the gate"))
    said = {"name": "x", "experiment": "e", "source": "s", "says": "s", "reading": "r"}
    for effects, rule, of_gate in (
        (QUIET, Above(0, matters=0.1), True),
        (LOUD, Above(0, matters=0.1), False),
        ({"": Effect.share([True] * 36)}, Always(0.9), False),
    ):
        made = Claim(**said, rule=rule, measure=lambda *_: None)  # type: ignore[arg-type]
        assert (made.power(Seen(text="", effects=effects)) == "of the gate") is of_gate
    assert Claim(**said, measure=lambda *_: None).power(Seen(text="", effects=QUIET)) is None  # type: ignore[arg-type]


def test_universal_rules_need_enough_instances() -> None:
    enough, few = (power_of(Always(0.9), {"": Effect.share([True] * count)}) for count in (36, 20))
    assert enough == (1.0, pytest.approx(1 - 0.9**36), None)
    assert few is not None
    assert few.there == 0.0


def test_targets() -> None:
    assert targets(Above(0, matters=0.1)) == (0.2, 0)
    assert targets(Above(0, matters=0.1), 1.0) == (1.0, 0)
    assert targets(Below(2.0, matters=0.5)) == (1.0, 2.0)
    assert targets(Above(-0.1)) == (0.0, -0.2)  # the bound is the margin
    assert targets(Within(0.1)) == (0.0, 0.2)
    assert targets(Printed(1.5, 0.05)) == (1.5, 1.6)
    assert targets(Above(), 1.0) is None
    assert targets(Above(), 1.0, -1.0) == (1.0, -1.0)
    assert targets(Always()) is None


def test_a_prediction_holds_the_printed_number_in_nineteen_of_twenty() -> None:
    narrow = {"": Effect.predicted([1.5, 1.501, 1.499, 1.5, 1.5, 1.501])}
    found = power_of(Printed(1.5, 0.05), narrow)
    assert found is not None
    assert found.there == pytest.approx(0.95, abs=0.02)
    assert found.none == 1.0


def test_a_large_effect_is_judged_by_the_margin_that_the_spread_can_tell() -> None:
    large, small = ({"": Effect.pooled([shift + x for x in (0.0, 0.1, -0.1, 0.05, -0.05)])} for shift in (2.0, 0.25))
    rule = Above(0, matters=0.05)
    for effects in (large, small):
        assert rule.verdict(effects[""]) == "reproduced"
        plain = power_of(rule, effects)
        assert plain is not None
        assert not plain.suffices(0.9)
    gate, power = powered(rule, large, "reproduced", there=None, none=None, least=0.9)
    assert gate.is_open
    assert power is not None
    assert power.suffices(0.9)
    assert power.margin is not None
    assert 0.1 < power.margin < 0.3
    assert "is told from none" in gate.text
    closed, _ = powered(rule, small, "reproduced", there=None, none=None, least=0.9)
    assert not closed.is_open
    assert "seeds would do" in closed.text
    # what is denied needs the power at the margin that the record has
    denied, _ = powered(
        rule, {"": Effect.pooled([-2.0, -1.9, -2.1, -2.05, -1.95])}, "not reproduced", there=None, none=None, least=0.9
    )
    assert not denied.is_open
    assert resolved(Within(0.01), large, None, None, 0.9) is None  # a wider margin asks less of equality


def claim_of(rule: Rule, effect: Effect, **more: object) -> Claim:
    def measure(tables: Tables) -> Seen:
        return Seen(effect, "So.", gates=(Gate("learned", True, "it learned"),), spent={"sequences": 1.0})

    said = {key: "?" for key in ("name", "experiment", "source", "says", "reading")}
    return Claim(**said, rule=rule, measure=measure, budget={"sequences": 1.0}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [(0.1, 0.2, 0.05, 0.16, 0.14), (-0.1, -0.2, -0.05, -0.16, -0.14)])
def test_what_a_rule_could_not_have_denied_is_not_tested(values: tuple[float, ...]) -> None:
    effect = Effect.pooled(values)
    judged = claim_of(Above(0, matters=0.04), effect).judge({})
    assert judged.verdict == "not tested"
    assert judged.text.startswith("Not tested: power: the rule says so in 0.")
    assert [gate.name for gate in judged.gates] == ["learned", "power"]
    assert claim_of(Above(0, matters=0.04), effect, least_power=0.001).judge({}).verdict != "not tested"
    told = claim_of(Above(0.0), effect, there=0.5, none=-0.5).judge({})
    assert told.verdict == ("reproduced" if values[0] > 0 else "not reproduced")
    assert claim_of(Above(0.0), effect).judge({}).verdict == "not tested"  # nothing says how large an effect is


def test_what_is_open_needs_no_power() -> None:
    assert claim_of(Above(0, matters=0.04), Effect.pooled([1.0, -1.0, 0.5])).judge({}).verdict == "inconclusive"


def test_laws_are_redrawn_about_another_effect() -> None:
    draw = random.Random(1)
    own = [draw.gauss(0, 0.2) for _ in range(5)]
    points = [Law.Point(15.0 + k, i, 3 + 0.3 * k + own[i] + draw.gauss(0, 0.05)) for i in range(5) for k in range(6)]
    law = Law.of(points)
    assert law is not None
    found = [law.redrawn(28.0, 4.0, random.Random(seed), "") for seed in range(10)]
    assert all(one is not None and one.low is not None and one.high is not None for one in found)
    held = sum(
        one.low <= 4.0 <= one.high for one in found if one is not None and one.low is not None and one.high is not None
    )
    assert held >= 8


def test_shares_of_redrawn_experiments_are_of_all_that_were_drawn() -> None:
    """A law that puts every other experiment on the wrong side of the bound."""
    turn = itertools.count()
    sides = (Effect.pooled([1.0, 1.01, 0.99]), Effect.pooled([-1.0, -1.01, -0.99]))
    found = power._share(Above(0.0, matters=0.1), QUIET, 1.0, "reproduced", lambda *_: sides[next(turn) % 2])
    assert found == 0.5


def test_margins_are_tried_up_to_a_hundred_and_twenty_eight_times_what_matters() -> None:
    assert (power.MARGINS[0], power.MARGINS[-1]) == (2**0.25, 128)


CLAIMS = [claim for claim in registry.in_order("claim") if not claim.is_question]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_every_rule_can_come_out_both_ways(claim: Claim) -> None:
    """With a spread that is small beside what it has to tell, it says so of the effect, and the contrary of none."""
    rule, present = claim.rule, claim.there if claim.printed is None else claim.printed
    if isinstance(rule, Always):
        assert rule.verdict(Effect.share([True] * 200)) == "reproduced"
        assert rule.verdict(Effect.share([True] * 199 + [False])) == "not reproduced"
        return
    aims = targets(rule, present, claim.none)
    assert aims is not None, "the record says neither what matters nor how large an effect is, and none"
    spread = abs(aims[0] - aims[1]) / 100
    values = [spread * x for x in (-1.2, -0.4, 0.0, 0.5, 1.1)]
    made = Effect.predicted(values) if isinstance(rule, Printed) else Effect.pooled(values)
    found = power_of(rule, {"": made}, present, claim.none)
    assert found is not None
    assert found.suffices(claim.least_power), found
