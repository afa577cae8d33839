"""Plans of the experiments of [Limits], and what they read from runs."""

from typing import Any

import pytest
import torch

from hmmscope import TrainOptions
from hmmscope.errors import InputError
from hmmscope.inference.window import window_errors
from hmmscope.lab.evidence.effects import EstimateWithError
from hmmscope.lab.evidence.records import RuleParameters
from hmmscope.lab.evidence.rows import Rows, as_tables
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.runs.config import config_from_data
from hmmscope.runs.pipeline import Run
from hmmscope.runs.training import train
from hmmscope.training.schedules import learning_rate
from hmmscope.training.spec import TrainingSpec
from hmmscope_papers.limits.fig4_mixing import uniform_errors
from hmmscope_papers.limits.tables import (
    WHILE_TRAINING,
    drift,
    epochs_of,
    equal_budgets,
    fit_length_of,
    loss_of,
    losses_at_rest,
    relabelled,
    training_rows,
    trivial_loss,
    while_training,
)
from hmmscope_papers.limits.trainings import FAST, RATES, TASKS, identity, limits_config, shortened
from limits_cases import SEEDS, at_rest, budgets


@pytest.mark.parametrize("scale", ["smoke", "small", "gpu", "paper"])
@pytest.mark.parametrize("steps", [12, 1000])
def test_a_shortened_training_keeps_its_shape(scale: str, steps: int) -> None:
    config = config_from_data(limits_config(scale, "cyclic-det", 2, training=shortened(steps), length=120))
    spec = config.training
    assert isinstance(spec, TrainingSpec)
    assert spec.num_steps == steps
    assert spec.warmup_steps <= steps
    assert spec.evaluate_every == spec.steps_per_epoch  # one evaluation an epoch
    assert shortened(0) == {}
    with pytest.raises(InputError, match=r"plan\.steps: must be at least 0"):
        shortened(-1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A little Transformer on Cyclic-RND."""
    slip = {"backward_probability": 0.1}
    data = limits_config("smoke", "cyclic-rnd", 1, process=slip, training=shortened(40, 4), length=6)
    return train(config_from_data(data), tmp_path_factory.mktemp("studies") / "run", options=TrainOptions(quiet=True))


def test_evaluations_are_those_of_the_journal(trained: Run) -> None:
    found = epochs_of(trained)
    assert [row["step"] for row in found.rows] == [10, 20, 30, 40]
    assert found.positions == [1, 2, 3, 4, 5, 6]  # the constant answer before the first observation is left out
    assert all(len(row) == 6 and all(0 <= loss <= 1 for loss in row if loss is not None) for row in found.distances)
    assert fit_length_of(trained, 1.0) == 6  # total variation is below 1
    assert fit_length_of(trained, 1e-9) == 0
    assert identity(trained) == {"task": "cyclic-rnd", "layers": 1}


def test_rows_while_training(trained: Run) -> None:
    rows = training_rows(trained, [0.1, 1.0], {"task": "cyclic-rnd"})
    assert [(row["share"], row["error_rate"]) for row in rows] == [
        (share, rate) for share in (0.25, 0.5, 0.75, 1.0) for rate in (0.1, 1.0)
    ]
    assert all(row["value"] <= row["length"] <= row["longest"] == 6 for row in rows)
    assert rows[-1]["length"] == 6.0
    assert rows[-1]["sequences"] == 40 * trained.config.training.batch_size
    assert trivial_loss(trained, 200) == pytest.approx(1.5, abs=0.15)  # nearly ln 5


def test_uniform_errors_are_those_of_a_window(trained: Run) -> None:
    """On other samples of the same process, so up to their noise."""
    assert isinstance(trained.process, LabelledHMM)
    found = uniform_errors(trained, 2000).mean(0)[1:]
    known = window_errors(trained.process, [0], [1, 2, 3, 4, 5, 6], num_samples=2000, seed=1)
    assert ((found - known.mean[0]).abs() < 0.03).all()  # standard errors are below 0.005
    exact = 0.9 - 1 / 5  # after one symbol: 0.9 on one state and 0.1 on another, of which the 0.9 exceeds 1/5
    assert float(found[0]) == pytest.approx(exact, abs=1e-6)
    assert torch.all(found[:-1] > found[1:])


# ---------------------------------------------------------------------------------------------------------------------
# Gates and controls


def test_what_still_moves_is_not_at_rest() -> None:
    facts = [{"task": "matmul", "layers": n, "seed": s} for n in (1, 2) for s in SEEDS]

    def rows(before: float, after: float) -> Rows:
        return while_training(as_tables({WHILE_TRAINING: at_rest(facts, before, after)}), layers=1)

    numbers = RuleParameters(late=0.75, loss_at_rest=0.01)
    assert losses_at_rest(rows(8.0, 8.2), numbers).is_open
    assert not losses_at_rest(rows(8.0, 4.0), numbers).is_open
    assert not losses_at_rest(rows(4.0, 8.0), numbers).is_open
    assert losses_at_rest(rows(8.0, 0.5), numbers).is_open  # at the floor
    assert "not recorded" in losses_at_rest(Rows(), numbers).text
    assert "in 1 of 1 cases (task matmul, layers 1)" in losses_at_rest(rows(4.0, 8.0), numbers).text
    up_and_down = Rows([*rows(4.0, 8.0).where(seed=0), *rows(8.0, 4.0).where(seed=1)])
    assert losses_at_rest(up_and_down, numbers).is_open  # mean over seeds


def test_the_drift_is_that_of_the_last_doubling() -> None:
    rows = Rows(
        {"layers": n, "seed": seed, "error_rate": 0.1, "longest": 32, "epoch": epoch, "share": epoch / 20, "loss": 0.0}
        | {"length": (n + 1) * epoch + seed, "value": 0, "worst": None}
        for n in (0, 1)
        for seed in SEEDS
        for epoch in range(1, 21)
    )

    def longest(own: Rows) -> float:
        assert len(own) == 2  # each training once
        return max(row["length"] for row in own)

    assert drift(rows, longest) == pytest.approx(
        2 * (19.5 - 9.5)
    )  # two evaluations before the end, and before the half
    assert drift(rows, lambda own: None) is None
    assert drift(rows, lambda own: None if own[0]["seed"] == 1 else 1.0) is None  # every seed has to have it
    assert drift(rows, lambda own: own[0]["worst"]) is None  # nor is a missing number guessed
    assert drift(Rows(), longest) is None


def test_budgets_are_those_of_the_runs() -> None:
    labels = {"Transformer": "deep", "RNN": "flat"}
    assert equal_budgets(as_tables({"runs": budgets(labels.values())}), labels).is_open
    unequal = equal_budgets(
        as_tables({"runs": budgets(labels.values(), lambda label: len(label) * 10 ** (label == "deep"))}), labels
    )
    assert not unequal.is_open
    assert "sequences by a factor of 10" in unequal.text
    assert not equal_budgets({}, labels).is_open


def test_a_control_takes_the_place_of_the_model() -> None:
    rows = Rows(
        {"predictor": name, "value": value} for name, value in (("model", 1), ("untrained", 2), ("constant", 3))
    )
    found = relabelled(rows, "untrained")
    assert found.where(predictor="model").values("value") == [2]
    assert sorted(found.values("predictor")) == ["constant", "model", "untrained"]


def test_positions_share_their_samples() -> None:
    rows = Rows({"value": value, "low": value - 0.1, "high": value + 0.1} for value in (0.2, 0.4))
    assert loss_of(rows) == pytest.approx(EstimateWithError(0.3, 0.2 / 3.92))


# ---------------------------------------------------------------------------------------------------------------------
# Plans


def plan_of(name: str, scale: str = "small", **changes: Any) -> dict[str, dict[str, Any]]:
    experiment = experiment_named(name)
    return experiment.plan(scale, **(experiment.choices(scale) | changes))


def test_plans_share_the_grid() -> None:
    """The figures ask for the same configurations, so that the pool trains each once."""
    names = ("limits-fig2", "limits-fig3", "limits-fig6", "limits-table3", "limits-table4")
    plans = {name: plan_of(name) for name in names}
    whole = plans["limits-fig3"]
    assert len(whole) == 6 * 4
    curricula = plans.pop("limits-fig6")
    for name, plan in plans.items():
        for label, data in plan.items():
            shared = whole[label.removeprefix("fixed, ")]
            if label.startswith("fixed, "):  # an epoch of the others, again and again
                assert name == "limits-table3"
                per_epoch = shared["training"]["epoch_steps"] * shared["training"]["batch_size"]
                again = {"epoch_steps": 0, "num_trajectories": per_epoch}
                shared = shared | {"training": shared["training"] | again}
            assert data == shared, (name, label)
    models = ("1 layer", "2 layers", "3 layers", "RNN")
    for label in (f"{task}, {model}" for task in ("cyclic-det", "matmul") for model in models):
        without = label if label.endswith("RNN") else f"{label}, no curriculum"
        taught = f"{label}, curriculum" if label.endswith("RNN") else label
        assert curricula.pop(without) == whole[label]
        assert set(curricula[taught]["training"]) == set(whole[label]["training"]) | {"curriculum"}
    assert len(curricula) == 2 * 4
    taught = curricula["matmul, RNN, curriculum"]["training"]
    assert taught["curriculum"][-1] == 16
    assert len(set(taught["curriculum"])) == 4


def test_the_protocol_that_decides() -> None:
    """Scale medium: whole sequences, equal sequences, a rate a depth, A5, and nothing that is trained twice."""
    whole = plan_of("limits-fig3", "medium")
    assert list(whole)[:2] == ["cyclic-det, RNN", "cyclic-det, 1 layer"]
    for label, data in whole.items():
        layers = 0 if "RNN" in label else data["model"]["num_layers"]
        assert data["layout"]["length"] == 32
        assert data["training"].get("curriculum", []) == []
        assert data["training"]["learning_rate"] == RATES[32][layers]
        if label.startswith("cyclic"):
            assert data["process"]["group_order"] == 60
    for task in TASKS:
        of_task = [data["training"] for label, data in whole.items() if label.startswith(f"{task},")]
        assert len(of_task) == 6
        assert len({(one["num_steps"], one["batch_size"], one["halve_every"]) for one in of_task}) == 1
        last = config_from_data(whole[f"{task}, 2 layers"]).training
        steps = range(3 * last.num_steps // 4, last.num_steps)
        stages = 4 if task in FAST else 2  # what mixes fast is soon at the noise of its learning rate
        assert min(learning_rate(last, step) for step in steps) == last.learning_rate / 2**stages
    depth, lessons = plan_of("limits-depth", "medium"), plan_of("limits-fig6", "medium")
    assert all(whole[label] == data for label, data in depth.items() if "length" not in label)
    assert {data["layout"]["length"] for label, data in depth.items() if "length" in label} == {64}
    assert lessons["cyclic-det, 2 layers"]["training"]["curriculum"] == [4, 8, 16, 32]
    assert lessons["cyclic-det, 2 layers, no curriculum"] == whole["cyclic-det, 2 layers"]


@pytest.mark.parametrize(
    ("name", "scale"),
    [("limits-hard-dose", scale) for scale in ("smoke", "small", "medium", "gpu")]
    + [("limits-hard-rare", scale) for scale in ("smoke", "medium")],
)
def test_doses_differ_by_the_rate_alone(name: str, scale: str) -> None:
    plan = plan_of(name, scale)
    rates = [data["process"]["prediction_rate"] if scale == "medium" else 1 for data in plan.values()]
    steps = [data["training"]["num_steps"] for data in plan.values()]  # or as many answers
    assert len({round(one * rate) for one, rate in zip(steps, rates, strict=True)}) == 1
    for label, data in plan.items():
        assert round(1 / data["process"]["prediction_rate"]) == int(label.split()[2].rstrip(","))


def test_architectures_see_as_many_sequences() -> None:
    for scale in ("smoke", "small", "medium"):
        plan = plan_of("limits-architectures", scale)
        assert len({data["training"]["num_steps"] * data["training"]["batch_size"] for data in plan.values()}) == 1
    assert {data["layout"]["length"] for data in plan.values()} == {32}


@pytest.mark.parametrize("name", ["limits-fig3", "limits-architectures", "limits-fig4-mixing", "limits-hard-dose"])
@pytest.mark.parametrize("scale", ["small", "gpu"])
def test_all_models_of_a_task_see_as_many_sequences(name: str, scale: str) -> None:
    """Recurrent networks as well, of which a step costs a fraction."""
    seen: dict[str, set[int]] = {}
    for data in plan_of(name, scale).values():
        process, training = str(data["process"]), data["training"]
        seen.setdefault(process, set()).add(training["num_steps"] * training["batch_size"])
    assert [process for process, numbers in seen.items() if len(numbers) > 1] == []


def test_the_long_run_is_twice_as_long() -> None:
    plan = plan_of("limits-table4", "paper")
    short, long = plan["matmul, 7 layers"], plan["long, matmul, 7 layers"]
    assert long["training"]["num_steps"] == 2 * short["training"]["num_steps"]
    assert "long, matmul, 3 layers" in plan_of("limits-table4", long_factor=2)
    assert len(plan_of("limits-table4")) == 3


@pytest.mark.parametrize("scale", ["smoke", "small", "gpu", "paper"])
@pytest.mark.parametrize("name", ["limits-fig4-mixing", "limits-fig5"])
def test_the_rnn_sees_as_many_sequences(name: str, scale: str) -> None:
    """At scale paper batches differ, and epochs are the same."""
    trainings = {label: data["training"] for label, data in plan_of(name, scale).items()}
    recurrent = [one for label, one in trainings.items() if "RNN" in label]
    deep = [one for label, one in trainings.items() if "RNN" not in label]
    assert recurrent
    if scale != "paper":
        assert {one["num_steps"] * one["batch_size"] for one in recurrent} <= {
            one["num_steps"] * one["batch_size"] for one in deep
        }


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("limits-fig4-cot", {"tasks": ["cyclic", "matmul"]}, r"plan\.tasks"),
        ("limits-fig4-cot", {"layers": [1, 2, 3]}, r"plan\.layers: must have 2 numbers, one for each of `plan.tasks`"),
        ("limits-fig5", {"widths": [7]}, r"plan\.widths: must be a multiple of the number of heads 2"),
        ("limits-fig5", {"tasks": ["cyclic"]}, r"plan\.tasks"),
        ("limits-architectures", {"tasks": ["cyclic"]}, r"plan\.tasks"),
    ],
)
def test_plans_refuse(name: str, changes: dict[str, Any], message: str) -> None:
    experiment = experiment_named(name)
    with pytest.raises(InputError, match=message):
        experiment.plan("smoke", **(experiment.choices("smoke") | changes))
