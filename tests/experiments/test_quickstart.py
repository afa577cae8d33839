"""What the quickstart says of its models: in true words, whichever way it comes out."""

import pytest

from hmmscope.evidence.claims import OURS, claims_of
from hmmscope.evidence.findings import Finding
from hmmscope.evidence.rows import Rows, Tables
from hmmscope.experiments.experiment import experiment_named
from hmmscope.experiments.multitask_predictors import POOLS


def tables(unseen: float = 1.3, counted: float = 1.5) -> Tables:
    """Losses after all demonstrations on HMMs never seen; of two models, of which the other knows its pool by heart."""
    effects, along, layers = Rows(), Rows(), Rows()
    for prompts, beyond in ((10.0, unseen), (1500.0, 2.5)):
        for pool in POOLS:
            loss = {"model": 1.1 if pool == "pool" else beyond, "order-1": counted + 0.1, "order-2": counted}
            loss |= {"retrieval": 1.0 if pool == "pool" else 2.8, "known-component": 0.9, "untrained": 2.1}
            for predictor, value in loss.items():
                row = {"prompts": prompts, "pool": pool, "predictor": predictor, "metric": "loss", "value": value}
                along += [row | {"x": 0, "value": 2.05}, row | {"x": 5}]
            gains = {"loss above the ceiling": loss["model"] - 0.9, "gain over counting": counted - loss["model"]}
            for name, value in gains.items():
                row = {"seed": 0, "prompts": prompts, "network": "trained", "pool": pool, "effect": name}
                effects.append(row | {"value": value, "low": value - 0.02, "high": value + 0.02})
        for network, target, layer in (
            (network, target, layer)
            for network in ("trained", "untrained")
            for target in ("previous-1", "previous-2", "previous-3", "component")
            for layer in range(3)
        ):
            value = 0.1 * layer + 0.5 * (network == "trained")
            row = {"prompts": prompts, "network": network, "target": target, "layer": layer, "accuracy": value}
            layers.append(row | {"low": value - 0.01, "high": value + 0.01, "chance": 0.06})
    return {"in-context": along, "effects": effects, "layers": layers, "training": Rows()}


def judged(name: str, found: Tables) -> Finding:
    claim = next(claim for claim in claims_of("quickstart") if claim.name == name)
    return claim.judge(found)


@pytest.mark.parametrize(
    "unseen, counted, words",
    [
        (
            1.3,
            1.5,
            "by heart, and on HMMs never seen it does better than counting in the prompt, so it learns in context: 1.10",
        ),
        (
            1.3,
            1.2,
            "it does worse than counting in the prompt, which needs no training: 1.10 nats on its pool, 1.30 on those.",
        ),
        (1.3, 1.31, "it is not told apart from counting in the prompt"),
        (1.11, 1.5, "is not seen to know its pool by heart, and on HMMs never seen it does better"),
    ],
)
def test_learning_in_context_is_measured_on_hmms_never_seen(unseen: float, counted: float, words: str) -> None:
    found = judged("quickstart-rarely", tables(unseen, counted))
    assert found.verdict == "found"
    assert words in found.text
    assert found.text.startswith("Shown each HMM in 10 prompts, the model ")
    last = f"on HMMs never seen {unseen:.2f} (counting {counted:.2f}, retrieval 2.80, component known 0.90)."
    assert found.text.endswith(last)
    assert found.value == pytest.approx(unseen - 1.1)


def test_retrieval_is_not_called_learning_in_context() -> None:
    found = judged("quickstart-often", tables())
    assert found.text.startswith("Shown each HMM in 1,500 prompts, ")
    assert "knows its pool by heart" in found.text
    assert "learns in context" not in found.text


def test_what_the_layers_hold_stands_beside_the_untrained_model() -> None:
    found = judged("quickstart-layers", tables())
    assert "1 back 0.70 at layer 2 (0.20 before training)" in found.text
    assert found.value == pytest.approx(0.5)


def test_the_quickstart_claims_nothing() -> None:
    asked = claims_of("quickstart")
    assert len(asked) == 3
    assert all(claim.is_question and claim.source == OURS for claim in asked)


def test_every_kind_of_prompt_is_drawn_with_its_prompts_per_hmm() -> None:
    from hmmscope.experiments.quickstart import _in_context

    assert experiment_named("quickstart").without_training(tables()) is not None
    titles = [panel.title for panel in _in_context(tables()["in-context"], "loss", "nats").panels]
    assert titles[2] == "HMMs never seen; 10 prompts per HMM"
    assert titles[3] == "HMMs of the pool; 1,500 prompts per HMM"
