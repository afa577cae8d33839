"""Laws of an outcome in its budget: intervals cover what was planted, in both forms, and below a ceiling."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from hmmscope.errors import InputError
from hmmscope.lab import Above, Effect, Gate, Measurement, ScalingLaw, Tables, parameter
from hmmscope.lab.evidence.claim import Claim
from hmmscope.lab.evidence.records import RuleParameters

#: A budget that is not run.
FAR = 29.0


def planted(
    form: str, seed: int, *, ceiling: float = float("inf"), spread: float = 0.08
) -> tuple[list[ScalingLaw.BudgetPoint], Callable[[float], float]]:
    """Five instances at seven budgets, and the mean over instances at any."""
    rng = random.Random(f"{form} {seed}")
    own = [rng.gauss(0, 0.3) for _ in range(5)]

    def mean(x: float) -> float:
        return 3 + (0.25 * (x - 15) if form == "straight" else 2 - 2 * 2 ** (-0.3 * (x - 15)))

    points = []
    for instance, effect in enumerate(own):
        for x in range(15, 22):
            y = mean(x) + effect + rng.gauss(0, spread)
            points.append(ScalingLaw.BudgetPoint(float(x), instance, min(y, ceiling), y >= ceiling))
    return points, lambda x: mean(x) + sum(own) / len(own)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("ceiling", [float("inf"), 4.3])
@pytest.mark.parametrize("form", ["straight", "saturating"])
def test_the_union_of_both_forms_covers_what_was_planted(form: str, ceiling: float) -> None:
    """Of twenty each at least 17: an interval that covers 95 in 100 has fewer once in 300."""
    covered = width = 0.0
    for seed in range(20):
        points, mean = planted(form, seed, ceiling=ceiling)
        law = ScalingLaw.of(points)
        effect = law.effect(FAR, "doublings")
        covered += effect.low <= mean(FAR) <= effect.high
        width += (effect.high - effect.low) / 20
    assert covered >= 17
    assert width < 4  # or it would say nothing


def test_a_form_that_the_budgets_refute_says_nothing_of_others() -> None:
    """A straight line through a law that saturates is surely too high far away; where either may be, both count."""
    points, mean = planted("saturating", 0)
    law, few, straight = (
        ScalingLaw.of(points),
        ScalingLaw.of([point for point in points if point.x < 18]),
        ScalingLaw.of(planted("straight", 0)[0]),
    )
    assert list(law.forms) == ["saturating"]
    assert law.mean_at(FAR)["saturating"].low <= mean(FAR) <= law.mean_at(FAR)["saturating"].high
    assert list(few.forms) == list(straight.forms) == ["straight", "saturating"]


def test_without_noise_a_line_is_found_and_goes_on() -> None:
    points = [ScalingLaw.BudgetPoint(float(x), i, 0.5 * x + i) for i in range(3) for x in range(4)]
    law = ScalingLaw.of(points)
    assert law.mean_at(10.0)["straight"] == pytest.approx((6.0, 6.0, 6.0), abs=1e-6)
    assert law.next_at(10.0, 2)["straight"] == pytest.approx((7.0, 7.0, 7.0), abs=1e-6)
    assert ScalingLaw.last_doubling(points) == {0: 0.5, 1: 0.5, 2: 0.5}


def test_what_a_ceiling_hides_is_known_to_be_above_it() -> None:
    """As if it ended there, growth would seem to stop."""
    points, mean = planted("straight", 1, ceiling=4.0, spread=0.02)
    assert sum(point.hidden for point in points) > 10
    law, cut = (ScalingLaw.of(chosen) for chosen in (points, [point._replace(hidden=False) for point in points]))
    assert law.mean_at(25.0)["straight"].value == pytest.approx(mean(25.0), abs=0.25)
    assert cut.effect(25.0, "").high < mean(25.0) - 0.25


def test_the_largest_budget_tests_the_law_of_the_others() -> None:
    points, _ = planted("straight", 2)
    found = ScalingLaw.held_out(points)
    assert (found.covered, found.instances) == (5, 5)
    jumped = [point._replace(y=point.y + 2) if point.x == 21 else point for point in points]
    broken = ScalingLaw.held_out(jumped)
    assert broken.covered == 0


def test_too_little_is_no_law() -> None:
    assert ScalingLaw.of([ScalingLaw.BudgetPoint(float(x), i, float(x)) for i in range(3) for x in range(2)]) is None
    assert ScalingLaw.of([ScalingLaw.BudgetPoint(float(x), i, 3.0, True) for i in range(3) for x in range(5)]) is None
    assert ScalingLaw.held_out([]) is None


def test_a_law_that_reaches_the_papers_budget_judges_the_paper() -> None:
    """Where the effects are of that budget, it does not matter how little the models were trained on."""

    def judged(spent: dict[str, float]) -> str:
        def measure(tables: Tables) -> Measurement:
            found = Effect(value=-1.0, low=-1.2, high=-0.8, num_seeds=5)
            return Measurement(found, "So.", gates=(Gate("learned", True, "it learned"),), compute_used=spent)

        said = {key: "?" for key in ("name", "experiment", "source", "claim_text", "operationalization")}
        paper: dict[str, Any] = {"budget": {"sequences": 5e8}, "more_budget_could_help": True}
        made = Claim(**said, rule=Above(), effect_if_true=1.0, effect_if_false=-1.0, measure=measure, **paper)
        return made.evaluate({"runs": [{"sequences": 640_000}]}).verdict

    assert judged({}) == "not at this budget"
    assert judged({"sequences": 5e8}) == "not reproduced"


def test_a_number_is_that_of_the_record_that_judges() -> None:
    """The function of a claim receives its record's numbers; a figure has none."""

    def shared(tables: Tables, numbers: RuleParameters) -> Measurement:
        return Measurement(Effect(value=parameter(numbers, "margin")), "So.")

    said = {key: "?" for key in ("name", "experiment", "source", "claim_text", "operationalization")}
    one, other = (Claim(**said, measure=shared, parameters=RuleParameters(margin=value)) for value in (0.1, 0.2))
    assert (one.evaluate({}).value, other.evaluate({}).value) == (0.1, 0.2)
    assert parameter(one.parameters, "margin") == parameter(None, "margin", 0.1) == 0.1
    for wrong in ((one.parameters, "margn", 0.1), (None, "margin")):
        with pytest.raises(InputError, match="numbers: unknown"):
            parameter(*wrong)
