"""What an experiment will take is what it takes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cli_cases import assert_one_line, call  # noqa: F401 - a fixture
from hmmscope.lab.experiments.forecast import forecast
from hmmscope.lab.experiments.planning import plan_of
from hmmscope.lab.experiments.running import run_experiment
from hmmscope.runs.dry_run import ResourceEstimate
from hmmscope.storage import store


@pytest.mark.long
def test_runs_and_tokens_are_those_of_the_experiment(tmp_path: Path) -> None:
    said = dict(line.split(maxsplit=1) for line in forecast("multitask-heads", "smoke", {"training.num_steps": "3"}, 2))
    overrides = {"training.num_steps": "3", "training.device": "cpu"}
    run_experiment("multitask-heads", "smoke", tmp_path / "out", overrides=overrides, seeds=2, quiet=True)
    rows = store.read_table(tmp_path / "out" / "tables" / "runs.jsonl")
    assert said["runs"] == f"{len(rows)}, {len(rows) // 2} for each of 2 seeds"
    assert said["tokens"] == f"{sum(row['tokens'] for row in rows):,}"
    assert float(said["FLOPs"].split()[0]) == pytest.approx(sum(row["flops"] for row in rows), rel=5e-3)
    assert "of one thread to train, assuming 4e10 operations per second and core" in said["time"]


def test_equal_shapes_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []

    def noted(config: object, *, measure: bool = False, compare: bool = True, here: bool = True) -> ResourceEstimate:
        timed.append(measure)
        return ResourceEstimate(1, 1, 10, None, None, None, 0, "torch", "", int(measure), 1, 500.0 if measure else None)

    monkeypatch.setattr("hmmscope.lab.experiments.forecast.estimate", noted)
    said = dict(line.split(maxsplit=1) for line in forecast("multitask-fig1", "small", {}, (7,), measure=True))
    runs = len(plan_of("multitask-fig1", "small", {}, None).configs)
    assert timed == [False] * runs + [True]
    assert said["time"].startswith(f"about {500.0 * runs / 60:.1f} minutes of one thread")


def test_nothing_is_trained_and_nothing_written(call: Callable, tmp_path: Path) -> None:
    said = call("run", "limits-table1", "--scale", "smoke", "--dry-run")
    assert said.code == 0
    assert "none, because the experiment trains no model" in said.out
    assert_one_line(call("run", "limits-table1", "--scale", "smoke"), 2)
    assert_one_line(call("run", "all", "--dry-run"), 2)
    assert list(tmp_path.iterdir()) == []
