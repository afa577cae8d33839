"""Training as an axis: checkpoints that stay, and instruments on all of them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

import hmmscope as hs
from hmmscope.analysis.strategies import LevelCrossing, strategies
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import DamagedError, InputError
from hmmscope.inference.memory import memory_beliefs
from hmmscope.lab import cli
from hmmscope.models.base import parameter_count
from hmmscope.processes.make import make_process
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.runs.development import over_training
from hmmscope.runs.dry_run import as_text, estimate
from hmmscope.runs.pipeline import Run, load_run
from hmmscope.runs.training import train
from hmmscope.storage.rundir import RunDir
from hmmscope.storage.store import read_table
from hmmscope.training.spec import TrainingSpec

TRAINING = {"num_steps": 30, "batch_size": 4, "checkpoint_every": 7, "num_log_checkpoints": 5, "evaluate_every": 0}
KEPT = [1, 2, 5, 13, 30]


class _Stop(Exception):
    pass


def config(engine: str = "torch", **training: Any) -> RunConfig:
    return config_from_data(
        {
            "process": {"name": "random-hmm", "num_states": 3, "num_symbols": 4},
            "layout": {"name": "sequences", "length": 5},
            "model": {"name": "rnn", "width": 16},
            "training": TRAINING | {"engine": engine, "device": "cpu"} | training,
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(config(), tmp_path_factory.mktemp("milestones") / "run", options=hs.TrainOptions(num_samples=8))


def checkpoints(path: Path) -> dict[str, bytes]:
    return {
        f"{file.parent.name}/{file.name}": file.read_bytes() for file in path.glob("checkpoints/step-*/*.safetensors")
    }


def test_steps_are_even_in_the_logarithm() -> None:
    assert TrainingSpec(num_steps=100, num_log_checkpoints=5).log_checkpoint_steps == (1, 3, 10, 32, 100)
    assert TrainingSpec(num_steps=3, num_log_checkpoints=40).log_checkpoint_steps == (1, 2, 3)
    assert TrainingSpec(num_steps=3).log_checkpoint_steps == ()
    for wrong in (1, -2, 1001):
        with pytest.raises(InputError, match="num_log_checkpoints"):
            TrainingSpec(num_log_checkpoints=wrong)


@pytest.mark.parametrize("engine", ["torch", "compiled"])
def test_they_stay_through_stop_and_resume(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(config(engine), tmp_path / "whole", options=hs.TrainOptions(num_samples=4))
    assert RunDir.open(whole.path).checkpoint_steps() == sorted({*KEPT, 28})
    save = RunDir.save_checkpoint

    def ends(self: RunDir, step: int, *args: Any, **options: Any) -> None:
        save(self, step, *args, **options)
        if step == 14:
            raise _Stop

    monkeypatch.setattr(RunDir, "save_checkpoint", ends)
    with pytest.raises(_Stop):
        train(config(engine), tmp_path / "cut", options=hs.TrainOptions(num_samples=4))
    assert RunDir.open(tmp_path / "cut").checkpoint_steps() == [1, 2, 5, 13, 14]
    assert load_run(tmp_path / "cut").checkpoint_steps() == [0, 1, 2, 5, 13]
    monkeypatch.setattr(RunDir, "save_checkpoint", save)
    train(config(engine), tmp_path / "cut", resume=True, options=hs.TrainOptions(num_samples=4))
    assert checkpoints(tmp_path / "cut") == checkpoints(tmp_path / "whole")


def test_the_size_is_said_before_and_true_after(run: Run) -> None:
    found = estimate(run.config)
    assert found.disk_bytes == 6 * 3 * 4 * parameter_count(run.model)
    size = sum(map(len, checkpoints(run.path).values()))
    assert found.disk_bytes < size < 1.5 * found.disk_bytes  # and names and shapes, of weights so few
    assert "MB for 6 stored checkpoints" in "\n".join(as_text(found, run.config))
    assert estimate(config(num_log_checkpoints=0)).disk_bytes == found.disk_bytes // 3


def test_weights_of_every_step(run: Run) -> None:
    assert run.checkpoint_steps() == [0, *KEPT]
    first, last = run.model_at(0), run.model_at(30)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), run.untrained().parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(last.parameters(), run.model.parameters(), strict=True))
    assert not torch.equal(first.head.weight, run.model_at(1).head.weight)


def test_an_instrument_at_every_step(run: Run, capsys: pytest.CaptureFixture) -> None:
    rows = over_training(run, "strategies", num_samples=8)
    assert sorted({row["step"] for row in rows}) == [0, *KEPT]
    alone = strategies(run.model, run.dataset("probe"), num_samples=8)
    assert [{k: v for k, v in row.items() if k != "step"} for row in rows if row["step"] == 30] == alone
    assert cli.main(["analyse", str(run.path), "strategies", "--over-checkpoints", "--num_samples", "8", "-q"]) == 0
    assert read_table(run.path / "analysis/strategies-over-training-num_samples-8.jsonl") == rows
    assert (rows.about["samples"], rows.columns()["step"][0]) == (8, 0)
    axes = Figure().subplots()
    assert rows.plot(ax=axes, metric="total_variation") is axes.figure
    assert axes.get_title() == "strategies over training, total_variation"
    drawn = {line.get_label(): line.get_xdata().tolist() for line in axes.lines}
    assert drawn["optimum"] == [0, *KEPT]
    own = hs.over_training(run, lambda model, corpus: [{"parameters": parameter_count(model)}])
    assert own.plot().axes[0].lines[0].get_ydata().tolist() == [parameter_count(run.model)] * len(own)
    assert own[1] == {"step": 1, "parameters": parameter_count(run.model)}


def test_a_module_that_was_handed_over(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Embedding(4, 4), torch.nn.Linear(4, 4))
    before = module[1].weight.detach().clone()
    made = train(make_process("random-hmm", num_symbols=4), tmp_path / "own", model=module, length=4, training=TRAINING)
    assert torch.equal(made.model_at(0)[1].weight, before)
    assert torch.equal(made.model_at(30)[1].weight, module[1].weight)
    assert not torch.equal(made.model_at(13)[1].weight, module[1].weight)


def test_what_was_not_kept_or_is_lost_is_said(run: Run, tmp_path: Path) -> None:
    plain = train(
        config(num_log_checkpoints=0, num_steps=2), tmp_path / "plain", options=hs.TrainOptions(num_samples=4)
    )
    with pytest.raises(
        InputError, match=r"has no intermediate checkpoints; train again with --training\.num_log_checkpoints"
    ):
        over_training(plain, "strategies")
    with pytest.raises(InputError, match="no step 3"):
        run.model_at(3)
    shutil.copytree(run.path, tmp_path / "lost")
    shutil.rmtree(tmp_path / "lost/checkpoints/step-000000005")
    with pytest.raises(DamagedError, match="its checkpoint of step 5 is missing"):
        over_training(load_run(tmp_path / "lost"), "strategies")


# --------------------------------------------------------------------------------------------------------------------
# Strategies and transitions


class Window(torch.nn.Module):
    """The exact predictor that knows the last observation only."""

    outputs = "law"

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return memory_beliefs(make_process("mess3"), tokens, 1).next_observation


def test_a_predictor_is_found_where_it_is() -> None:
    dataset = ProcessDataset(make_process("mess3"), length=8)
    rows = strategies(Window(), dataset, num_samples=16)
    value = {(row["predictor"], row["metric"]): row["value"] for row in rows}
    assert {name for name, _ in value} == {"uniform", "window-0", "window-1", "window-2", "optimum"}
    assert value["window-1", "kl"] < 1e-12
    assert min(value[name, "kl"] for name in ("window-0", "window-2", "optimum")) > 1e-4
    fresh = ProcessDataset(make_process("fresh-markov-chains", num_states=3, num_symbols=3), length=8)
    names = {row["predictor"] for row in strategies(Window(), fresh, num_samples=4)}
    assert names == {"uniform", "order-0", "order-1", "order-2", "optimum"}


def test_crossings_by_hand() -> None:
    found = LevelCrossing.of([0, 1, 4, 16], [-1.0, -1.0, 1.0, 2.0], [0.0, 0.4, 0.0, 0.0])
    assert found.step == pytest.approx(2.0)
    assert found.error == pytest.approx(0.2)
    back = LevelCrossing.of([1, 2, 4, 8], [-1.0, 1.0, -1.0, 3.0])
    assert back.log2_step == pytest.approx(2.25)  # the last time, after which it stays
    assert LevelCrossing.of([1, 2], [1.0, 2.0]) is None
    assert LevelCrossing.of([1, 2], [-1.0, -2.0]) is None


def test_a_transition_is_between_two_predictors() -> None:
    def row(step: int, predictor: str, value: float) -> dict:
        return {"step": step, "predictor": predictor, "metric": "kl", "value": value, "low": value, "high": value}

    rows = [row(1, "a", 0.0), row(1, "b", 1.0), row(16, "a", 1.0), row(16, "b", 0.0)]
    found = LevelCrossing.between(rows, "a", "b")
    assert found.step == pytest.approx(4.0)
    assert LevelCrossing.between(rows, "b", "a") is None
    with pytest.raises(InputError, match="must contain at least two training steps with a and c"):
        LevelCrossing.between(rows, "a", "c")
