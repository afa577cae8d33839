"""Rules of verdicts by simulation: how often each says the contrary of what is so, in both directions."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from hmmscope.lab.evidence import power
from hmmscope.lab.evidence.claim import Claim, Measurement
from hmmscope.lab.evidence.effects import Effect, false_discovery
from hmmscope.lab.evidence.rows import Rows, Tables, identical_seeds
from hmmscope.lab.evidence.verdicts import CONFIRMED, DENIED, Above, Below, Gate, Rule, Within


@pytest.fixture(autouse=True)
def _fewer_draws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each finding simulates experiments of its own: fewer are enough where findings are many."""
    power._units.cache_clear()
    monkeypatch.setattr(power, "DRAWS", 100)
    monkeypatch.setattr(power, "seeds_enough", lambda *_: None)
    yield
    power._units.cache_clear()


LEARNED = Gate("learned", True, "it learned")
SAID = {key: "?" for key in ("name", "experiment", "source", "claim_text", "operationalization")}


def claim_of(rule: Rule, effects: Any, gates: tuple[Gate, ...] = (LEARNED,), **more: Any) -> Claim:
    wanted = tuple(effects) if isinstance(effects, Mapping) else ()
    about = {key: more.pop(key) for key in ("required", "parts") if key in more}
    seen = Measurement(effects, "So.", gates=gates, **{"required": wanted, "compute_used": {"sequences": 1.0}} | about)
    return Claim(**SAID, rule=rule, measure=lambda _: seen, **{"budget": {"sequences": 1.0}} | more)


def shares(rule: Rule, made: np.ndarray, **more: Any) -> Counter[str]:
    """Return how often each verdict is given on rows of values, one per seed."""
    found = Counter(claim_of(rule, Effect.pooled(list(row)), **more).evaluate({}).verdict for row in made)
    return Counter({verdict: count / len(made) for verdict, count in found.items()})  # type: ignore[misc]


# ---------------------------------------------------------------------------------------------------------------------
# Power by direction


@pytest.mark.parametrize("spread", [0.05, 0.5])
@pytest.mark.parametrize("rule", [Above(0, smallest_effect=0.1), Below(0, smallest_effect=0.1)])
def test_neither_error_of_a_rule_is_above_a_twentieth(rule: Rule, spread: float) -> None:
    """Spread over seeds costs power and no correctness."""
    draw, side = np.random.default_rng(1), 1 if isinstance(rule, Above) else -1
    noise = spread * draw.standard_normal((200, 5))
    there, none = shares(rule, 0.2 * side + noise), shares(rule, noise)
    assert sum(there[one] for one in DENIED) <= 0.05
    assert sum(none[one] for one in CONFIRMED) <= 0.05
    contrary = shares(rule, -1.5 * side + noise)
    assert contrary["not reproduced"] >= 0.95  # low power to bear out closes no clear denial


def test_the_size_of_what_is_found_with_low_power_is_not_vouched_for() -> None:
    draw = np.random.default_rng(2)
    found = shares(Above(0, smallest_effect=0.1), 0.6 + 0.4 * draw.standard_normal((200, 5)))
    assert found["reproduced in sign"] > 0.3
    assert found["reproduced"] < 0.1


# ---------------------------------------------------------------------------------------------------------------------
# One verdict a task


def test_tasks_are_judged_each_by_its_own_gates_and_all_of_them_by_all() -> None:
    hard = Gate("regime", False, "asked too often").about("hard")
    good, bad = Effect.pooled([1.0, 1.1, 0.9, 1.0, 1.05]), Effect.pooled([-1.0, -1.1, -0.9, -1.0, -1.05])
    found = claim_of(Above(0, smallest_effect=0.2), {"easy": good, "hard": good}, (LEARNED, hard)).evaluate({})
    assert [(part.name, part.verdict) for part in found.parts] == [("easy", "reproduced"), ("hard", "not tested")]
    assert found.verdict == "not tested"
    assert found.parts[1].why == "regime"
    denied = claim_of(Above(0, smallest_effect=0.2), {"easy": bad, "hard": good}, (LEARNED, hard)).evaluate({})
    assert (denied.verdict, denied.value) == ("not reproduced", bad.value)  # one that is denied denies all
    assert all(gate.is_open for gate in denied.gates)
    blocked = claim_of(Above(0, smallest_effect=0.2), {"easy": good, "hard": bad}, (LEARNED, hard)).evaluate({})
    assert blocked.verdict == "not tested"
    part = claim_of(Above(0, smallest_effect=0.2), {"easy": good}, required=("easy", "hard")).evaluate({})
    assert [one.verdict for one in part.parts] == ["reproduced", "not tested"]
    assert part.verdict == "not tested"
    mean = claim_of(Above(0, smallest_effect=0.2), good, (LEARNED, hard), parts={"easy": good, "hard": good}).evaluate(
        {}
    )
    assert [one.verdict for one in mean.parts] == ["reproduced", "not tested"]
    assert mean.verdict == "not tested"  # the mean needs all


def test_all_of_several_tasks_err_no_more_often_than_one() -> None:
    draw = np.random.default_rng(3)
    noise = 0.5 * draw.standard_normal((200, 3, 5))

    def verdicts(aim: float) -> Counter[str]:
        return Counter(
            claim_of(
                Above(0, smallest_effect=0.1), {str(k): Effect.pooled(list(aim + one)) for k, one in enumerate(rows)}
            )
            .evaluate({})
            .verdict
            for rows in noise
        )

    assert sum(verdicts(0.2)[one] for one in DENIED) <= 0.05 * 200
    assert sum(verdicts(0.0)[one] for one in CONFIRMED) <= 0.05 * 200


# ---------------------------------------------------------------------------------------------------------------------
# Equivalence


def test_p_of_an_equivalence_is_that_of_two_one_sided_tests() -> None:
    """At the margin it is below a twentieth in a twentieth of samples, well inside it nearly always, and at the bound of
    what is claimed it is small, where the two-sided p is large."""
    draw, rule = np.random.default_rng(4), Within(1.0)
    noise = 0.3 * draw.standard_normal((400, 5))
    at = {
        aim: np.mean([rule.p_value(Effect.pooled(list(aim + row))) < 0.05 for row in noise]) for aim in (1.0, 0.0, -1.0)
    }
    assert at[1.0] == pytest.approx(0.05, abs=0.03)
    assert at[-1.0] == pytest.approx(0.05, abs=0.03)
    assert at[0.0] > 0.95
    effect = Effect.pooled([0.1, -0.1, 0.05, 0.0, -0.02])
    assert rule.p_value(effect) < 1e-4 < effect.p_value(0.0)
    assert claim_of(rule, effect).evaluate({}).p == rule.p_value(effect)
    assert rule.p_value(Effect.share([True] * 9)) is None


def test_false_discoveries_are_held_over_all_rows_that_have_a_p() -> None:
    """At most about a twentieth of the significant rows are false when all rows count."""
    draw, false, found = np.random.default_rng(5), 0, 0
    for _ in range(100):
        p = {str(k): float(one) for k, one in enumerate(draw.uniform(size=40))} | {f"t{k}": 1e-6 for k in range(10)}
        kept = [name for name, q in false_discovery(p).items() if q is not None and q <= 0.05]
        false, found = false + sum(not name.startswith("t") for name in kept), found + len(kept)
    assert false / found <= 0.06
    assert found >= 1000


# ---------------------------------------------------------------------------------------------------------------------
# Direction in the budget


@pytest.mark.parametrize(("could_help", "denied"), [(True, "not at this budget"), (False, "not reproduced")])
def test_only_what_more_budget_could_help_is_open_at_a_larger_one(could_help: bool, denied: str) -> None:
    draw = np.random.default_rng(6)
    more = {"more_budget_could_help": could_help, "budget": {"sequences": 100.0}}
    noise = 0.1 * draw.standard_normal((100, 5))
    against, there = (shares(Above(0, smallest_effect=0.1), aim + noise, **more) for aim in (-1.0, 0.5))
    assert against[denied] >= 0.95
    assert set(against) & set(DENIED) == {denied}
    assert sum(there[one] for one in DENIED) <= 0.05


# ---------------------------------------------------------------------------------------------------------------------
# Small samples


@pytest.mark.parametrize(
    "law",
    [
        lambda draw, shape: draw.standard_normal(shape),
        lambda draw, shape: draw.exponential(size=shape) - np.log(2),
        lambda draw, shape: np.exp(draw.standard_normal(shape)) - 1,
    ],
    ids=["normal", "exponential", "lognormal"],
)
def test_the_bound_of_the_sign_test_holds_of_any_law(law: Callable[..., np.ndarray]) -> None:
    """The median is below the lower bound in a twentieth of samples at most; values are drawn about a median of zero."""
    for seeds in (5, 8, 12):
        made = [Effect.pooled(list(row)) for row in law(np.random.default_rng(seeds), (400, seeds))]
        assert np.mean([one.sign_low > 0 for one in made]) <= 0.055
        assert np.mean([one.sign_high < 0 for one in made]) <= 0.055
    far = [Effect.pooled(list(row)) for row in 3 + law(np.random.default_rng(7), (400, 8))]
    assert np.mean([one.sign_low > 0 for one in far]) > 0.9  # what is there is found
    assert Effect.pooled([1.0, 2.0, 3.0, 4.0]).sign_low is None  # one in sixteen


def test_seeds_in_two_groups_are_told_and_others_seldom() -> None:
    draw = np.random.default_rng(8)
    for seeds in (5, 8, 12):
        plain = draw.standard_normal((400, seeds))
        learned = np.where(draw.uniform(size=(400, seeds)) < 0.8, 0.9, 0.2) + 0.02 * plain
        both = np.ptp(learned, axis=1) > 0.5  # where all seeds learned nothing tells
        assert np.mean([Effect.pooled(list(row)).bimodal for row in plain]) <= 0.06
        assert np.mean([Effect.pooled(list(row)).bimodal for row in learned[both]]) >= 0.95
    assert (
        claim_of(Above(), Effect.pooled([0.9, 0.91, 0.2, 0.92, 0.9]), effect_if_true=1.0, effect_if_false=-1.0)
        .evaluate({})
        .bimodal
    )


def test_two_seeds_with_the_same_rows_are_one() -> None:
    draw = np.random.default_rng(9)

    def tables(*seeds: int) -> Tables:
        rows = {seed: draw.standard_normal(3) for seed in seeds}
        return {"t": Rows({"seed": seed, "x": x, "value": v} for seed in seeds for x, v in enumerate(rows[seed]))}

    drawn = tables(0, 1, 2)
    copied = {"t": Rows([*drawn["t"], *drawn["t"].where(seed=1).with_columns(seed=lambda _: 5)])}
    assert identical_seeds(drawn) is None
    assert identical_seeds(copied) == (1, 5)
    assert identical_seeds({"t": Rows({"seed": seed, "value": 3.0} for seed in (0, 1))}) is None  # whole numbers agree

    def measure(found: Tables) -> Measurement:
        return Measurement(
            Effect.pooled([5 + v for v in found["t"].where(x=0).values("value")]), "So.", gates=(LEARNED,)
        )

    made = Claim(**SAID, rule=Above(0, smallest_effect=1.0), effect_if_true=5.0, measure=measure)
    assert made.evaluate(drawn).verdict != "not tested"
    refused = made.evaluate(copied)
    assert refused.verdict == "not tested"
    assert refused.text.startswith("Undecided: seeds 1 and 5 have identical rows")
