"""Whether a verdict turns under other choices."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from golden_verdicts import altered_probe
from hmmscope import registry
from hmmscope.analysis.fit_length import DEFINITIONS
from hmmscope.lab.evidence.claim import Claim, Measurement
from hmmscope.lab.evidence.effects import Effect
from hmmscope.lab.evidence.records import RuleParameters, deviations
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.evidence.sensitivity import OTHERWISE, sensitivity, with_margin
from hmmscope.lab.evidence.verdicts import DECIDED, Above, Always, Below, Rule, Within
from reach import reached

HEADLINES = (Path(__file__).parent / "headlines.txt").read_text().split()
ROOT = Path(__file__).parents[2]


def claim_of(rule: Rule, **more: object) -> Claim:
    """A claim on the mean of a column."""

    def measure(tables: Tables, numbers: object = None) -> Measurement:
        scale = {0.05: 0.1}.get(getattr(numbers, "rate", 0.1), 1.0) if numbers else 1.0
        effect = tables["rows"].effect()
        return Measurement(
            Effect(**{**vars(effect), "value": scale * effect.value, "low": scale * (effect.low or 0)}), "So."
        )

    said = {key: "?" for key in ("name", "experiment", "source", "claim_text", "operationalization")}
    return Claim(**said, rule=rule, measure=measure, **more)  # type: ignore[arg-type]


def rows(*values: float) -> Tables:
    return {"rows": Rows({"seed": seed, "value": value} for seed, value in enumerate(values))}


def test_a_row_that_turns_says_by_what() -> None:
    rule = Above(0, smallest_effect=0.1)
    assert sensitivity(claim_of(rule), rows(1.0, 1.01, 0.99, 1.02, 0.98)) == []
    assert sensitivity(claim_of(rule), rows(0.14, 0.15, 0.16, 0.151, 0.149)) == ["margin × 2"]
    assert "without seed 0" in sensitivity(claim_of(Above(0, smallest_effect=0.5)), rows(0.6, 0.62, 0.58))
    assert sensitivity(claim_of(rule), rows(1.0, -1.0, 0.5)) == []  # of what is not decided nothing is asked
    rated = claim_of(rule, parameters={"rate": 0.1})
    assert sensitivity(rated, rows(0.3, 0.31, 0.301, 0.311, 0.299)) == ["rate 0.05"]


def test_a_seed_less_turns_by_what_it_says_and_not_by_the_power_that_it_takes_away() -> None:
    values = (1.0, 1.0486, 0.9514, 1.0648, 0.9352)
    rule = Within(0.1, bound=1.0)
    assert claim_of(rule).evaluate(rows(*values)).verdict == "reproduced"
    assert claim_of(rule).evaluate(rows(*values[:4])).verdict == "not tested"
    assert "without seed 4" not in sensitivity(claim_of(rule), rows(*values))


def test_margins() -> None:
    assert with_margin(Above(0, smallest_effect=0.1), 2) == Above(0, smallest_effect=0.2)
    assert with_margin(Below(0.1), 0.5) == Below(0.05)
    assert with_margin(Within(0.1), 2) == Within(0.2)
    assert with_margin(Above(), 2) is None
    assert with_margin(Always(), 2) is None


def test_no_headline_becomes_a_question_or_is_dropped() -> None:
    """The list is frozen: a name may be added, and none taken away."""
    assert len(HEADLINES) == len(set(HEADLINES)) >= 90
    for name in HEADLINES:
        claim: Claim = registry.lookup("claim", name)
        assert not claim.is_question, name
    ruled = {claim.name for claim in registry.in_order("claim") if not claim.is_question}
    assert {name for name in ruled if name.startswith(("limits-", "multitask-"))} <= set(HEADLINES)


@pytest.mark.parametrize("folder", sorted(ROOT.glob("*/src/*/*/claims")), ids=lambda one: one.parent.name)
def test_every_deviation_is_a_fact_of_the_table(folder: Path) -> None:
    for claim in registry.in_order("claim"):
        for scale in ("small", "medium"):
            for fact in deviations(folder, claim.experiment, scale):
                assert fact


def test_every_decided_row_on_training_says_what_differs_from_its_paper() -> None:
    """Of experiments whose claims are a paper's; the row is that of the ledger."""
    ledger = json.loads((ROOT / "results" / "ledger" / "ledger.json").read_text())
    trained = {
        claim.name for claim in registry.in_order("claim") if claim.about == "training" and not claim.is_question
    }
    decided = [row for row in ledger if row["claim"] in trained and row["verdict"] in DECIDED]
    assert [row["claim"] for row in decided if not row["differs"]] == []
    assert len(decided) > 10


def test_at_most_thirty_questions_stand_without_a_rule() -> None:
    assert sum(claim.is_question for claim in registry.in_order("claim")) <= 30


def test_what_reads_fit_lengths_is_judged_by_both_error_rates_and_definitions() -> None:
    """Of [Limits] §4.1: 0.05 and 0.1; all positions up to it, or the largest that is fitted."""
    assert OTHERWISE == {"rate": (0.05, 0.1), "definition": DEFINITIONS}
    own = (":length_of", ":crossing_length")
    reading = [
        claim
        for claim in registry.in_order("claim")
        if not claim.is_question and any(key.endswith(own) for key in reached(claim.measure)[0])
    ]
    assert len(reading) > 10
    without = [claim.name for claim in reading if not {"rate", "definition"} <= set(claim.parameters)]
    assert without == ["limits-cycles-converged"]  # which asks the paper's plan for its steps, and reads no length


def test_another_error_rate_or_definition_gives_another_length() -> None:
    """On the frozen tables, of a claim that adds up fit lengths."""
    claim: Claim = registry.lookup("claim", "limits-fit-length-grows")
    tables = altered_probe(claim.experiment, 0)

    def value(**numbers: object) -> float | None:
        return replace(claim, parameters=RuleParameters(claim.parameters | numbers)).evaluate(tables).value

    assert value() == value(rate=0.1, definition="prefix")
    assert value(rate=0.05) != value()
