"""What the quickstart says of its models: in true words, whichever way it comes out."""

from pathlib import Path

import pytest

from hmmscope import TrainOptions
from hmmscope.analysis.ngrams import TREE
from hmmscope.lab.evidence.claim import claims_of
from hmmscope.lab.evidence.finding import OURS, Finding
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.evidence.verdicts import OF_QUESTIONS
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope.runs.config import config_from_data
from hmmscope.runs.page_export import live_data
from hmmscope.runs.training import train
from hmmscope_papers.multitask.predictors import POOLS

_ENDS = ("share_low", "share_high")


def tables(gain: float = 0.2, right: float = 0.1, *, told: bool = True) -> Tables:
    """After all demonstrations the learner has 1.3 nats on HMMs never seen, and is right in .6 of cases.

    Counting has `gain` nats more and is right by `right` less often; the other model knows its pool by heart.
    """
    effects, along, layers = Rows(), Rows(), Rows()
    for prompts, beyond in ((10.0, 1.3), (1500.0, 2.5)):
        for pool in POOLS:
            loss = {"model": 1.1 if pool == "pool" else beyond, "order-1": beyond + gain + 0.1, TREE: beyond + gain}
            loss |= {"retrieval": 1.0 if pool == "pool" else 2.8, "known-component": 0.9, "untrained": 2.1}
            accuracy = {"model": 0.6, "order-1": 0.6 - right, TREE: 0.5 - right, "retrieval": 0.2}
            for metric, values in (("loss", loss), ("accuracy", accuracy)):
                for predictor, value in values.items():
                    row = {"prompts": prompts, "pool": pool, "predictor": predictor, "metric": metric}
                    along += [row | {"x": 0, "value": 2.05}, row | {"x": 5, "value": value}]
            gains = {
                "loss above the ceiling": loss["model"] - 0.9,
                "gain over counting": gain,
                "accuracy over counting": right,
            }
            gains |= {"gain over retrieval": loss["retrieval"] - loss["model"], "accuracy over retrieval": 0.4}
            for name, value in gains.items():
                row = {"seed": 0, "prompts": prompts, "network": "trained", "pool": pool, "effect": name}
                effects.append(row | {"value": value, "low": value - 0.02, "high": value + 0.02})
        effects += effects.where(prompts=prompts).with_columns(network=lambda row: "untrained", value=lambda row: 0.0)
        for target in ("previous-1", "previous-2", "previous-3", "component"):
            for layer in range(3):
                value, twins = 0.1 * layer + 0.5, 0.1 * layer
                row = {"prompts": prompts, "target": target, "layer": layer, "accuracy": value, "twins": twins}
                share = 1 - (1 - value) / (1 - twins) if told else None
                ends = {"share_low": share - 0.1, "share_high": share + 0.1} if share else dict.fromkeys(_ENDS)
                layers.append(row | {"low": value - 0.01, "high": value + 0.01, "chance": 0.06, "share": share} | ends)
    training = Rows({"prompts": 10.0, "step": step, "evaluation_loss": 2.0} for step in (10, 20))
    return {"in-context": along, "effects": effects, "layers": layers, "training": training}


def judged(name: str, found: Tables) -> Finding:
    claim = next(claim for claim in claims_of("quickstart") if claim.name == name)
    return claim.evaluate(found)


@pytest.mark.parametrize(
    "gain, right, says",
    [
        (0.2, 0.1, "Yes"),
        (0.2, 0.0, "In nats alone"),
        (0.2, -0.1, "No"),
        (0.0, 0.1, "In accuracy alone"),
        (0.01, 0.01, "No difference is seen"),
        (-0.2, -0.1, "No"),
        (-0.2, 0.0, "No"),
    ],
)
def test_words_follow_both_intervals(gain: float, right: float, says: str) -> None:
    found = judged("quickstart-counting", tables(gain, right))
    assert found.verdict in OF_QUESTIONS
    assert found.text.startswith(
        f"{says}: model 1.30 nats, n-gram baseline {1.3 + gain:.2f} nats; accuracies 0.60 and {0.6 - right:.2f}, "
    )
    assert found.text.endswith(f"difference {right:.3f} [{right - 0.02:.3f}, {right + 0.02:.3f}].")
    assert (found.value, found.unit) == (pytest.approx(gain), "nats")


def test_retrieval_is_told_from_learning() -> None:
    found = judged("quickstart-retrieval", tables())
    assert found.text.startswith("Yes: model 1.30 nats, retrieval 2.80 nats; accuracies 0.60 and 0.20, ")
    assert found.value == pytest.approx(1.5)


def test_what_the_layers_hold_stands_beside_untrained_twins() -> None:
    found = judged("quickstart-layers", tables())
    assert found.text.startswith("accuracy 1 back 0.70 (0.20), ")
    assert found.value == pytest.approx(0.625)
    unit = "of controls' error removed (1 back)"
    assert (found.low, found.high, found.unit) == (*map(pytest.approx, (0.525, 0.725)), unit)
    found = judged("quickstart-layers", tables(told=False))
    assert found.text.endswith(". The controls are too accurate to show an effect of training.")
    assert found.value is None


def test_without_training_the_layers_hold_what_untrained_twins_do() -> None:
    nothing = experiment_named("quickstart").without_training(tables())
    assert nothing is not None
    found = judged("quickstart-layers", nothing)
    assert found.text.startswith("accuracy 1 back 0.20 (0.20), ")
    assert (found.value, found.low, found.high) == (0, pytest.approx(-0.1), pytest.approx(0.1))


def test_a_finding_is_a_line() -> None:
    """On a terminal each is short, whichever way it comes out."""
    for gain, right in ((0.2, 0.1), (0.0, 0.1), (-0.2, -0.1)):
        for finding in experiment_named("quickstart").findings(tables(gain, right)):
            assert len(f"* {finding.title} ({finding.verdict}): {finding.text} ({finding.number()})") <= 240
            assert finding.text.count(". ") == 0


def test_the_quickstart_claims_nothing() -> None:
    asked = claims_of("quickstart")
    assert len(asked) == 3
    assert all(claim.is_question and claim.source == OURS for claim in asked)


def test_what_is_asked_is_drawn_first_and_every_kind_of_prompt_after_it() -> None:
    assert experiment_named("quickstart").without_training(tables()) is not None
    first, second, *_ = experiment_named("quickstart").figures(tables())
    assert [panel.title for panel in first.panels] == [
        "Trained on 10 prompts per HMM",
        "Trained on 1,500 prompts per HMM",
    ]
    names = {series.name for series in first.panels[0].series}
    assert "in-context n-gram, order 1" in names  # of the n-grams the best, and the context trees
    assert len(names) == 6
    titles = [panel.title for panel in second.panels]
    assert titles[2] == "Unseen HMMs; 10 prompts per HMM"
    assert titles[3] == "HMMs of the pool; 1,500 prompts per HMM"


@pytest.mark.long
def test_the_live_page_shows_the_learner_on_hmms_never_seen(tmp_path: Path) -> None:
    quickstart = experiment_named("quickstart")
    assert quickstart.live_run("small", ["K = 8", "K = 96"]) == "K = 96"
    data = quickstart.plan("smoke", parts=[3])["K = 3"]
    run = train(config_from_data(data), tmp_path / "run", options=TrainOptions(num_samples=8))
    drawn = quickstart.live_process(run)
    pool = run.process
    assert drawn is not None
    seen = {hmm.digest for hmm in (pool[m] for m in range(len(pool)))}
    assert not seen & {drawn[m].digest for m in range(len(drawn))}
    found = live_data(run, drawn)
    assert found["process"]["components"] == len(drawn) == 9
    assert "HMMs that were not in training" in found["title"]
    assert found["excess"] is None
