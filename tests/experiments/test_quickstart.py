"""What the quickstart says of a model: in true words, whichever way it comes out, and never that something is reproduced."""

import pytest

from hmmscope import registry
from hmmscope.evidence.claims import OURS, claims_of
from hmmscope.evidence.findings import Finding
from hmmscope.evidence.rows import Rows, Tables
from hmmscope.experiments.experiment import experiment_named


def tables(model: float = 2.03, counted: float = 1.82) -> Tables:
    """Loss on HMMs never seen after all demonstrations, of the model and of the n-gram of order 1."""
    unseen, along = Rows(), Rows()
    for metric, predictor, end in (
        ("loss", "model", model), ("loss", "order-1", counted), ("loss", "known-component", 1.5),
        ("accuracy", "model", 0.3), ("accuracy", "order-1", 0.4), ("accuracy", "known-component", 0.5),
    ):  # fmt: skip
        for x, value in ((0, 2.05), (3, end)):
            row = {"x": x, "metric": metric, "predictor": predictor, "value": value}
            unseen.append(row | {"low": value - 0.02, "high": value + 0.02})
    along += unseen
    gap = {"model: rise in accuracy": 0.1, "model: first accuracy": 0.35, "model: last accuracy": 0.45}
    gap |= {
        "optimum: last accuracy": 0.5,
        "model: last loss": 1.6,
        "order-1: last loss": 1.8,
        "optimum: last loss": 1.5,
    }
    gap |= {"share of the gap closed": 0.66}
    rows = Rows(
        {"quantity": name, "value": value, "low": value - 0.01, "high": value + 0.01} for name, value in gap.items()
    )
    probes = Rows(
        {"model": who, "target": target, "labels": "true", "layer": layer,
         "accuracy": 0.1 * layer + 0.2 * (who == "trained"), "low": 0.0, "high": 1.0, "ceiling": 0.95, "chance": 0.1}
        for who in ("trained", "untrained") for target in ("component", "state") for layer in range(3)
    )  # fmt: skip
    return {"unseen": unseen, "in-context": along, "last-sequence": along, "gap": rows, "probes": probes}


def judged(name: str, found: Tables) -> Finding:
    finding: Finding = registry.lookup("claim", name).judge(found)
    return finding


@pytest.mark.parametrize(
    "model, counted, words",
    [
        (2.03, 1.82, "mostly retrieval: in context it learns less than counting does"),
        (1.6, 1.82, "it learns in context more than pairs of neighbours tell"),
        (1.81, 1.82, "are not told apart"),
    ],
)
def test_learning_in_context_is_measured_on_hmms_never_seen(model: float, counted: float, words: str) -> None:
    found = judged("quickstart-in-context", tables(model, counted))
    assert found.verdict == "found"
    assert words in found.text
    assert f"from 2.050 nats to {model:.3f}" in found.text
    assert f"ends at {counted:.3f} and the filter that is told the HMM at 1.500" in found.text
    assert found.value == pytest.approx(0.1)


def test_what_it_holds_stands_beside_the_untrained_model() -> None:
    found = judged("quickstart-layers", tables())
    assert "accuracy 0.40 at layer 2 (0.20 at best before training, 0.95 by the exact posterior)" in found.text


def test_the_gap() -> None:
    found = judged("quickstart-gap", tables())
    assert "the order-1 in-context n-gram loses 1.800 nats, the model 1.600 and the Bayes mixture 1.500" in found.text
    assert (found.value, found.low, found.high) == pytest.approx((0.66, 0.65, 0.67))


def test_the_quickstart_claims_nothing() -> None:
    asked = claims_of("quickstart")
    assert len(asked) == 3
    assert all(claim.is_question and claim.source == OURS for claim in asked)


def test_counting_and_ceiling_on_hmms_never_seen_are_drawn() -> None:
    from hmmscope.experiments.quickstart import _in_context_figure

    assert experiment_named("quickstart").without_training(tables()) is not None  # probes have an untrained model
    unseen = [panel for panel in _in_context_figure(tables()).panels if "never seen" in panel.title]
    assert len(unseen) == 2
    for panel in unseen:
        roles = {series.role for series in panel.series}  # type: ignore[attr-defined]
        assert roles == {"model", "baseline", "ceiling"}
