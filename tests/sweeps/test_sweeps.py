"""Sweeps: what a grid means and refuses, what its folder says, what is tried again, and the table."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hmmscope.errors import DamagedError, FullDiskError, InputError, RefusedError
from hmmscope.lab import cli
from hmmscope.lab.experiments.pool import train_in_pool
from hmmscope.lab.sweeps.grid import (
    config_digest,
    expand,
    extend_folder,
    load_point,
    load_points,
    make_folder,
    read_grid,
    run_name,
)
from hmmscope.lab.sweeps.run_task import RunTask, taking_part
from hmmscope.lab.sweeps.sweeping import run_sweep
from hmmscope.lab.sweeps.table import Board, table_rows, table_text
from hmmscope.lab.tasks import local
from hmmscope.lab.tasks.driver import ProgressListener
from hmmscope.lab.tasks.task import BUSY, Heartbeat, Outcome, Task
from hmmscope.processes.files import load_process
from hmmscope.runs.config import RunConfig
from hmmscope.storage import store
from hmmscope.storage.rundir import RunDir
from hmmscope.storage.seals import read_seal, remove_seal, seal_report
from sweeps_crash import BASE

SUMMARY = {
    **{"steps": 6, "parameters": 9, "loss": 1.5, "bayes_loss": 1.25, "excess": 0.25},
    **{"excess_low": 0.2, "excess_high": 0.3, "training_floor": 1.25, "invalid": None},
}
RATES = {"base": BASE, "vary": {"training.learning_rate": ["1e-3", "3e-4", "1e-4"]}}


class Scripted:
    """An engine whose workers do as they are told: exit codes by run, the last one for ever. Code 0 makes the run."""

    def __init__(self, out: Path, codes: dict[str, list[int]], free: int = 1) -> None:
        self.out, self.codes, self.free, self.stopped = out, codes, free, 0
        self.submitted: list[str] = []
        self.queue: list[str] = []

    @property
    def active(self) -> int:
        return len(self.queue)

    def submit(self, tasks: Sequence[Task]) -> None:
        self.queue += [task.name for task in tasks]
        self.submitted += [task.name for task in tasks]

    def finished(self) -> list[Outcome]:
        names, self.queue = self.queue, []
        return [self.outcome(name) for name in names]

    def outcome(self, name: str) -> Outcome:
        codes = self.codes.get(name, [0])
        code = codes.pop(0) if len(codes) > 1 else codes[0]
        if code == 0:
            with RunDir.create(RunTask(self.out, name).folder, load_point(self.out, name).config.to_data()) as run:
                run.mark_done(SUMMARY)
        return Outcome(name, code, "" if code == 0 else f"error[{code}] told to")

    def stop(self) -> None:
        self.stopped += 1


# --------------------------------------------------------------------------------------------------------------------
# Grids


def test_combinations_then_single_points_each_with_its_seeds() -> None:
    grid = {
        "base": BASE,
        "vary": {
            "training.learning_rate": ["1e-3", "3e-4"],
            "size": {"small": {"model.width": "8"}, "large": {"model.width": "16", "training.batch_size": "8"}},
        },
        "also": [{"training.learning_rate": "1e-2", "target": "belief"}],
        "seeds": ["4", "5"],
    }
    points = expand(grid)
    seen = [tuple(point.varied.values()) for point in points]
    assert list(points[0].varied) == ["training.learning_rate", "size", "target", "seed"]
    assert seen == [
        *((0.001, "small", "observation", 4), (0.001, "small", "observation", 5)),
        *((0.001, "large", "observation", 4), (0.001, "large", "observation", 5)),
        *((0.0003, "small", "observation", 4), (0.0003, "small", "observation", 5)),
        *((0.0003, "large", "observation", 4), (0.0003, "large", "observation", 5)),
        *((0.01, None, "belief", 4), (0.01, None, "belief", 5)),
    ]
    large = points[2].config
    assert (large.model.width, large.training.batch_size, large.training.learning_rate) == (16, 8, 0.001)
    assert points[0].config.training.batch_size == 4
    assert points[8].config.model.width == 8


def test_instances_draw_another_process_for_each_seed() -> None:
    points = expand({"base": BASE, "seeds": 3, "instances": True})
    assert [(p.config.seed, p.config.process.seed) for p in points] == [(0, 0), (1, 1), (2, 2)]
    alone = expand({"base": BASE, "seeds": 3})
    assert [(p.config.seed, p.config.process.seed) for p in alone] == [(0, 0), (1, 0), (2, 0)]


def test_whole_sections_vary() -> None:
    processes = [{"name": "random-hmm", "num_states": 3}, {"name": "cyclic-det"}]
    points = expand({"vary": {"process": processes}, "seeds": 2, "base": {"model": {"name": "rnn", "width": 8}}})
    assert [p.config.process.name for p in points] == ["random-hmm", "random-hmm", "cyclic-det", "cyclic-det"]
    assert processes == [{"name": "random-hmm", "num_states": 3}, {"name": "cyclic-det"}]  # the caller's, untouched


def test_a_grid_file_with_its_base_beside_it(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(json.dumps(BASE))
    (tmp_path / "grid.yaml").write_text("base: base.yaml\nvary:\n  training.learning_rate: [1e-3, 3e-4]\nseeds: 2\n")
    assert [p.name for p in read_grid(tmp_path / "grid.yaml")] == [
        p.name for p in expand({"base": BASE, "vary": {"training.learning_rate": [1e-3, 3e-4]}, "seeds": 2})
    ]


@pytest.mark.parametrize(
    "grid, message",
    [
        ({"vari": {}}, r"grid\.vari: unknown 'vari'; did you mean 'vary'"),
        ({"base": "limits-rn"}, r"base: unknown 'limits-rn'; did you mean 'limits-rnn'"),
        (
            {"vary": {"trainin.num_steps": ["1"]}},
            r"vary\.trainin\.num_steps: unknown 'trainin'; did you mean 'training'",
        ),
        ({"vary": {"training.num_step": ["1"]}}, r"training\.num_step: unknown 'num_step'; did you mean 'num_steps'"),
        ({"vary": {"training.num_steps": "5"}}, r"vary\.training\.num_steps: must be a list"),
        ({"vary": {"training.num_steps": []}}, r"vary\.training\.num_steps: must not be empty"),
        ({"vary": {"training.num_steps": ["five"]}}, r"training\.num_steps: must be an integer, got 'five'"),
        ({"vary": {"loss": {"a": {"model.width": "8"}}}}, r"vary\.loss: is a reserved name"),
        ({"vary": {"size": {"a": {"model.width": {}}}}}, r"vary\.size\.a\.model\.width: must be one value"),
        ({"vary": {"model.width": ["8"], "size": {"a": {"model.width": "8"}}}}, r"vary: must set each key once"),
        (
            {"vary": {"model": [{"name": "rnn"}], "model.width": ["8"]}},
            r"model\.width: cannot be varied together with its whole section",
        ),
        ({"vary": {"seed": ["1"]}, "seeds": "2"}, r"seeds: seed: is set by seeds, so it must not be varied"),
        ({"seeds": "0"}, r"seeds: must be in \[1, 100000\], got 0"),
        ({"seeds": ["1", "-1"]}, r"seeds\[1\]: must be an integer in"),
        ({"instances": True}, "instances: needs seeds"),
        ({"vary": {"seed": [str(k) for k in range(400)], "training.num_steps": ["1"] * 400}}, "at most 100000 points"),
        ({"also": {"model.width": "8"}}, "also: must be a list of mappings"),
        ({"vary": {"training.learning_rate": ["1e-3", "0.001"]}}, "points 1 and 2 are the same run"),
        ([], "grid: must be a mapping"),
    ],
)
def test_what_a_grid_refuses(grid: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        expand(grid)


def test_names_follow_the_configuration_and_not_the_device() -> None:
    config = RunConfig()
    name = run_name(config)
    assert name == f"roformer-random-hmm-seed0-{config_digest(config)[:12]}"
    assert run_name(replace(config, training=replace(config.training, device="cpu"))) == name
    data = config.to_data()
    others = [replace(config, seed=1), replace(config, target="belief")]
    others += [replace(config, training=replace(config.training, num_threads=2))]
    others += [replace(config, process=replace(config.process, seed=1))]
    assert len({config_digest(other) for other in [config, *others]}) == 5
    assert config.to_data() == data


def test_another_key_keeps_the_runs_that_are_there() -> None:
    few = expand({"base": BASE, "vary": {"training.learning_rate": ["1e-3", "3e-4"]}})
    many = expand({"base": BASE, "vary": {"training.learning_rate": ["1e-3", "3e-4"], "model.width": ["8", "16"]}})
    assert {p.name for p in few} < {p.name for p in many}


# --------------------------------------------------------------------------------------------------------------------
# Folders


def test_the_folder_says_the_grid(tmp_path: Path) -> None:
    points = expand(RATES)
    make_folder(tmp_path / "a" / "sweep", points)
    assert load_points(tmp_path / "a" / "sweep") == points
    make_folder(tmp_path / "a" / "sweep", points)  # again: nothing to do


def test_a_sweep_is_extended_and_not_cut(tmp_path: Path) -> None:
    few, many, out = expand(RATES | {"seeds": "1"}), expand(RATES | {"seeds": "2"}), tmp_path / "sweep"
    make_folder(out, few)
    extend_folder(out, many)
    assert load_points(out) == many
    before = (out / "grid.json").read_bytes()
    with pytest.raises(RefusedError, match="has 3 runs that are not in this grid"):
        extend_folder(out, few)
    assert (out / "grid.json").read_bytes() == before
    with pytest.raises(RefusedError, match="not the folder of a sweep"):
        make_folder(tmp_path, few)
    with pytest.raises(InputError, match=r"it has no grid\.json"):
        load_points(tmp_path)


def test_a_grid_says_its_format_and_an_older_one_its_kind_by_its_table(tmp_path: Path) -> None:
    out, points = tmp_path / "sweep", expand(RATES)
    make_folder(out, points)
    document = store.read_json(out / "grid.json")
    assert document["format"] == "hmmscope-grid/1"
    store.write_json(out / "grid.json", document | {"format": "hmmscope-grid/2"})
    with pytest.raises(DamagedError, match="'hmmscope-grid/2', not hmmscope-grid/1; if newer, upgrade hmmscope"):
        load_points(out)
    store.write_json(out / "grid.json", {"points": document["points"]})  # as before 0.3
    assert load_points(out) == points
    make_folder(out, points, shared=True)
    store.write_table(out / "table.jsonl", [])
    with pytest.raises(RefusedError, match="contains a sweep, not a pool"):
        make_folder(out, points, shared=True)


def test_an_altered_grid_is_damage(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    make_folder(out, expand(RATES))
    text = (out / "grid.json").read_text()
    (out / "grid.json").write_text(text.replace('"batch_size": 4', '"batch_size": 5', 1))
    with pytest.raises(DamagedError, match="has another configuration"):
        load_points(out)
    (out / "grid.json").write_text(text.replace('"batch_size"', '"batch_sise"', 1))
    with pytest.raises(DamagedError, match="did you mean 'batch_size'"):
        load_points(out)


def test_states_are_read_off_the_folder(tmp_path: Path) -> None:
    name = "run"
    assert RunTask(tmp_path, name).state() == "waiting"
    RunTask(tmp_path, name).write_failure(Outcome(name, -9, "killed by SIGKILL"), 3)
    assert RunTask(tmp_path, name).state() == "failed"
    assert RunTask(tmp_path, name).failure() == {"reason": "killed by SIGKILL", "exit_code": -9, "attempts": 3}
    with RunDir.create(tmp_path / "runs" / name, {}) as run:
        assert RunTask(tmp_path, name).state() == "running"
        run.metrics.append({"step": 1})
    assert RunTask(tmp_path, name).state() == "failed"
    RunTask(tmp_path, name).clear_failure()
    RunTask(tmp_path, name).clear_failure()  # gone already
    assert RunTask(tmp_path, name).state() == "partial"
    with RunDir.open(tmp_path / "runs" / name, lock=True) as run:
        run.mark_done({})
        assert RunTask(tmp_path, name).state() == "done"


def test_who_comes_alone_cleans_up(tmp_path: Path) -> None:
    make_folder(tmp_path / "sweep", expand(RATES))
    litter = tmp_path / "sweep" / "runs" / f".tmp-run-{'0' * 16}"
    store.make_folder(litter)
    with taking_part(tmp_path / "sweep"):
        assert not litter.exists()
        store.make_folder(litter)
        with taking_part(tmp_path / "sweep"):
            assert litter.exists()  # somebody may be at work on it


# --------------------------------------------------------------------------------------------------------------------
# The loop


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    points, out = expand(RATES), tmp_path / "sweep"
    first = Scripted(out, {})
    rows = run_sweep(points, out, first)
    assert sorted(first.submitted) == sorted(point.name for point in points)
    assert [row["state"] for row in rows] == ["done"] * 3
    assert [row["training.learning_rate"] for row in rows] == [1e-3, 3e-4, 1e-4]
    assert store.read_table(out / "table.jsonl") == rows
    assert first.stopped == 1
    before = (out / "table.jsonl").read_bytes()
    more = expand(RATES | {"seeds": "2"})
    second = Scripted(out, {}, free=10)
    run_sweep(more, out, second)
    assert sorted(second.submitted) == sorted({p.name for p in more} - {p.name for p in points})
    third = Scripted(out, {})
    run_sweep(more, out, third)
    assert third.submitted == []
    assert set(before.splitlines()) < set((out / "table.jsonl").read_bytes().splitlines())


@pytest.mark.parametrize(
    "codes, attempts, state",
    [
        ([5, 70, 0], 3, "done"),
        ([-9], 3, "failed"),
        ([70, 70, 2, 0], 3, "failed"),
        ([2, 0], 1, "failed"),
        ([6, 0], 1, "failed"),
        ([4, 0], 1, "failed"),
        ([3, 0], 1, "failed"),
        ([143, 143, 0], 3, "done"),
        ([143], 3, "failed"),  # it never gets further
        ([BUSY, BUSY, BUSY, BUSY, 0], 5, "done"),
    ],
)
def test_failures_are_tried_again_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: list[int], attempts: int, state: str
) -> None:
    monkeypatch.setattr("hmmscope.lab.tasks.driver._SECONDS_ELSEWHERE", 0.0)
    points, out = expand(RATES), tmp_path / "sweep"
    name = points[1].name
    engine = Scripted(out, {name: codes}, free=3)
    rows = run_sweep(points, out, engine)
    assert engine.submitted.count(name) == attempts
    assert [row["state"] for row in rows] == ["done", state, "done"]
    assert [row["excess"] for row in rows] == [0.25, 0.25 if state == "done" else None, 0.25]
    record = RunTask(out, name).failure()
    assert (record is None) == (state == "done")
    if record is not None:
        assert record["attempts"] == attempts
        assert rows[1]["reason"] == record["reason"] == f"error[{record['exit_code']}] told to"
    again = Scripted(out, {})
    assert [row["state"] for row in run_sweep(points, out, again)] == ["done"] * 3
    assert again.submitted == ([] if state == "done" else [name])
    assert RunTask(out, name).failure() is None


def test_progress_is_no_failure(tmp_path: Path) -> None:
    points, out = expand(RATES), tmp_path / "sweep"
    name = points[0].name

    class Preempted(Scripted):
        def outcome(self, name: str) -> Outcome:
            ended = super().outcome(name)
            if ended.kind == "stopped":  # a step further each time
                store.make_folder(RunTask(out, name).folder / "checkpoints" / f"step-{len(self.submitted):09d}")
            elif name == points[0].name:
                raise AssertionError
            return ended

    class Told(Exception):
        pass

    engine = Preempted(out, {name: [143]})

    class Watcher(ProgressListener):
        def update(self, counts: dict[str, int]) -> None:
            assert sum(counts.values()) == len(points)
            if len(engine.submitted) == 12:
                raise Told

        def failed(self, outcome: Outcome, attempts: int, again: bool) -> None:
            raise AssertionError(outcome)

    with pytest.raises(Told):
        run_sweep(points, out, engine, watcher=Watcher())
    assert engine.submitted.count(name) == 10  # and not three; the other two runs were done meanwhile
    assert engine.stopped


def test_runs_of_another_process_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmmscope.lab.tasks.driver._SECONDS_ELSEWHERE", 0.0)
    points, out = expand(RATES), tmp_path / "sweep"
    make_folder(out, points)
    other = RunDir.create(RunTask(out, points[0].name).folder, points[0].config.to_data())
    engine = Scripted(out, {})
    seen = []

    class Watcher(ProgressListener):
        def update(self, counts: dict[str, int]) -> None:
            seen.append(counts)
            if counts["done"] == 2:
                other.mark_done(SUMMARY)
                other.unlock()

        def failed(self, outcome: Outcome, attempts: int, again: bool) -> None:
            raise AssertionError(outcome)

    rows = run_sweep(points, out, engine, watcher=Watcher())
    assert [row["state"] for row in rows] == ["done"] * 3
    assert points[0].name not in engine.submitted
    assert {"done": 2, "running": 1, "failed": 0, "waiting": 0} in seen
    assert seen[-1] == {"done": 3, "running": 0, "failed": 0, "waiting": 0}


def test_a_damaged_result_is_a_failed_row(tmp_path: Path) -> None:
    points, out = expand(RATES), tmp_path / "sweep"
    run_sweep(points, out, Scripted(out, {}))
    (RunTask(out, points[1].name).folder / "done.json").write_text("{")
    rows = table_rows(out, points)
    assert [row["state"] for row in rows] == ["done", "damaged", "done"]
    assert rows[1]["reason"].startswith(f"runs/{points[1].name}/done.json: has 1 bytes, but seal.json")
    assert table_text(rows)[-1] == f"{points[1].name}: {rows[1]['reason']}"
    (RunTask(out, points[0].name).folder / "config.json").write_text("{")
    unsealed = RunTask(out, points[2].name).folder
    remove_seal(unsealed)
    store.write_json(unsealed / "done.json", SUMMARY | {"loss": "low"})
    rows = table_rows(out, points)
    assert [row["state"] for row in rows] == ["damaged", "damaged", "unsealed"]
    assert rows[0]["reason"].startswith(f"runs/{points[0].name}/config.json: ")
    assert "low" in table_text(rows)[3]


def test_a_run_without_its_seal_is_not_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points, out = expand(RATES), tmp_path / "sweep"
    run_sweep(points, out, Scripted(out, {}))
    assert cli.main(["sweep", "--table", str(out)]) == 0
    run = RunTask(out, points[1].name).folder
    remove_seal(run)
    store.write_json(run / "done.json", SUMMARY | {"loss": 0.125, "excess": -1.0})
    capsys.readouterr()
    assert cli.main(["sweep", "--table", str(out)]) == 5
    told = capsys.readouterr()
    (line,) = [line for line in told.out.splitlines() if "0.125" in line]
    assert "unsealed" in line
    assert f"{run.name}: runs/{run.name}: has no checksums (seal.json); remove the folder to" in told.out
    assert "error[5] 1 of 3 runs are damaged or lack checksums" in told.err
    assert Board(out, points)._best > -1.0  # no best run


def test_one_damaged_seal_is_one_row_and_the_seal_of_the_sweep_stays(tmp_path: Path) -> None:
    points, out = expand(RATES), tmp_path / "sweep"
    run_sweep(points, out, Scripted(out, {}))
    (RunTask(out, points[0].name).folder / "seal.json").write_text("{")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert cli.main(["sweep", "--out", str(out), "-q"]) == 5
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert [row["state"] for row in table_rows(out, points)] == ["damaged", "done", "done"]
    assert cli.main(["check", str(out)]) == 4
    more = expand(RATES | {"vary": {"training.learning_rate": ["1e-3", "3e-4", "1e-4", "1e-5"]}})
    assert len(more) == 4
    rows = run_sweep(more, out, Scripted(out, {}))  # the others go on, and the folder is sealed with what it has
    assert [row["state"] for row in rows] == ["damaged", "done", "done", "done"]
    seal = read_seal(out)
    assert seal.bound["runs"][points[0].name] is None
    assert cli.main(["check", str(out)]) == 4


def test_a_sweep_is_unsealed_while_it_is_at_work(tmp_path: Path) -> None:
    """What is tried again writes its log and removes the record of its failure: a seal of before would call it damage."""
    points, out = expand(RATES), tmp_path / "sweep"
    run_sweep(points, out, Scripted(out, {points[0].name: [2]}), retries=0)
    seal = read_seal(out)
    assert f"failures/{points[0].name}.json" in seal.files

    class Looking(Scripted):
        def submit(self, names: Any) -> None:
            assert read_seal(self.out) is None
            super().submit(names)

    rows = run_sweep(points, out, Looking(out, {}))
    assert [row["state"] for row in rows] == ["done"] * 3
    assert read_seal(out) is not None


# --------------------------------------------------------------------------------------------------------------------
# The command


def test_the_command_lists_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "base.yaml").write_text(json.dumps(BASE))
    options = ["--base", str(tmp_path / "base.yaml"), "--vary", "training.learning_rate=1e-3,3e-4", "--num-seeds", "2"]
    assert cli.main(["sweep", *options, "--training.num_steps", "9", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 runs"
    assert lines[1].endswith("training.learning_rate 0.001  seed 0")
    load_process("umbrella").save(tmp_path / "mine.json")
    (tmp_path / "grid.yaml").write_text(json.dumps({"base": BASE}))
    for source in ("umbrella", "limits-rnn", str(tmp_path / "mine.json"), str(tmp_path / "base.yaml")):
        assert cli.main(["sweep", source, "--vary", "training.learning_rate=1e-3,3e-4", "--dry-run"]) == 0
        assert capsys.readouterr().out.startswith("2 runs\n")
    grid = str(tmp_path / "grid.yaml")
    wrong: list[tuple[list[str], int, str]] = [
        (["sweep"], 2, "give a grid file"),
        (["sweep", "umbrella"], 2, "give values to vary, hmmscope sweep umbrella --vary KEY=A,B --out DIR"),
        (["sweep", grid, "--num-seeds", "2"], 2, "is a complete grid; leave out --vary"),
        (["sweep", *options], 2, "out: missing; give a folder"),
        (["sweep", grid, *options], 2, "--base: cannot be combined with the grid"),
        (["sweep", *options, "--out", str(tmp_path)], 3, "not the folder of a sweep"),
        (["sweep", *options, "--executor", "loca", "--out", "x"], 2, "did you mean 'local'"),
        (["sweep", *options, "--jobs", "0", "--out", "x"], 2, "jobs: must be in"),
        (["sweep", *options, "--address", "auto", "--out", "x"], 2, "add --executor ray"),
        (["sweep", *options, "--slurm", "time=1", "--out", "x"], 2, "add --executor slurm"),
        (["sweep", *options, "--gpus", "1", "--out", "x"], 2, "gpus: the local executor"),
        (["sweep", *options, "--vary", "model.width"], 2, "vary: must be KEY=VALUE"),
        (["sweep", "--table", str(tmp_path)], 2, "not the folder of a sweep"),
        (["sweep", "--table", str(tmp_path), "--seeds", "2,"], 2, "give no other option"),
    ]
    for argv, code, message in wrong:
        assert cli.main(argv) == code, argv
        said = capsys.readouterr().err
        assert said.startswith(f"error[{code}] ")
        assert message in said
        assert said.count("\n") == 1


def test_the_command_prints_a_table_at_any_time(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    points, out = expand(RATES), tmp_path / "sweep"
    make_folder(out, points)
    RunTask(out, points[1].name).write_failure(Outcome(points[1].name, 6, "error[6] step 2: loss is not finite"), 1)
    RunDir.create(RunTask(out, points[2].name).folder, {}).unlock()
    before = sorted(path.name for path in out.iterdir())
    assert cli.main(["sweep", "--table", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["0.001", "0", "waiting"],
        ["0.0003", "0", "failed"],
        ["0.0001", "0", "partial"],
    ]
    assert lines[4] == f"{points[1].name}: error[6] step 2: loss is not finite"
    assert sorted(path.name for path in out.iterdir()) == before


def test_failed_runs_are_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "grid.yaml").write_text(json.dumps(RATES))
    out = tmp_path / "sweep"
    name = expand(RATES)[0].name
    monkeypatch.setattr("hmmscope.lab.tasks.executors.LocalExecutor", lambda jobs, **_: Scripted(out, {name: [6]}))
    assert cli.main(["sweep", str(tmp_path / "grid.yaml"), "--out", str(out), "-q"]) == 5
    said = capsys.readouterr()
    assert said.err == f"error[5] 1 of 3 runs failed; see {out}/table.jsonl and {out}/logs\n"
    monkeypatch.setattr("hmmscope.lab.tasks.executors.LocalExecutor", lambda jobs, **_: Scripted(out, {}))
    assert cli.main(["sweep", "--out", str(out)]) == 0  # the grid is in the folder
    said = capsys.readouterr()
    assert said.err == f"plan: 3 runs, seed 0\ndone     {name}  excess 0.2500 (best 0.2500)\n"
    assert said.out.endswith(f"table: {out}/table.jsonl\n")


def test_what_failed_runs_leave_is_covered(tmp_path: Path) -> None:
    points, out = expand(RATES), tmp_path / "sweep"
    executor = Scripted(out, {points[0].name: [6]})
    with RunDir.create(RunTask(out.with_name("begun"), points[0].name).folder, points[0].config.to_data()) as run:
        run.metrics.append({"step": 1})
    make_folder(out, points)
    run.path.rename(RunTask(out, points[0].name).folder)
    run_sweep(points, out, executor)
    found = seal_report(out)
    assert found.beyond == ()
    assert f"runs/{points[0].name}/metrics.jsonl" in found.covered
    with (RunTask(out, points[0].name).folder / "metrics.jsonl").open("a") as file:
        file.write("{}")
    with pytest.raises(DamagedError, match=r"metrics\.jsonl: has \d+ bytes, but"):
        seal_report(out)
    (out / "seal.json").unlink()
    run_sweep(points, out, Scripted(out, {points[0].name: [6]}))
    assert seal_report(out).beyond == ()


# --------------------------------------------------------------------------------------------------------------------
# What a folder is, and what stands in its table


def test_a_process_file_that_was_exchanged_is_another_run(tmp_path: Path) -> None:
    path, data = tmp_path / "mine.json", {"process": {"name": "file", "path": str(tmp_path / "mine.json")}}
    load_process("umbrella").save(path)
    first = expand({"base": data})
    (tmp_path / "moved.json").write_bytes(path.read_bytes())
    assert (
        expand({"base": {"process": {"name": "file", "path": str(tmp_path / "moved.json")}}})[0].name == first[0].name
    )
    out = tmp_path / "sweep"
    run_sweep(first, out, Scripted(out, {}))
    path.unlink()
    load_process("dishonest-casino").save(path)
    second = expand({"base": data})
    assert second[0].name != first[0].name
    with pytest.raises(RefusedError, match=r"process\.digest"):
        run_sweep(second, out, Scripted(out, {}))
    with pytest.raises(DamagedError, match="the process in this file has changed"):
        first[0].config.process.build()


def test_a_sweep_is_no_pool_and_a_pool_no_sweep(tmp_path: Path) -> None:
    points = expand(RATES)
    for shared, other in ((True, "a pool"), (False, "a sweep")):
        out = tmp_path / str(shared)
        run_sweep(points, out, Scripted(out, {}), shared=shared)
        seal = read_seal(out)
        assert (seal.kind, len(seal.bound["runs"])) == ("pool" if shared else "sweep", 3)
        with pytest.raises(RefusedError, match=f"contains {other}"):
            run_sweep(points, out, Scripted(out, {}), shared=not shared)


def test_what_is_damaged_in_a_sweep_gets_no_new_seal(tmp_path: Path) -> None:
    points, out = expand(RATES), tmp_path / "sweep"
    run_sweep(points, out, Scripted(out, {}))
    whole = (out / "table.jsonl").read_bytes()
    (out / "table.jsonl").write_bytes(whole.replace(b"done", b"DONE", 1))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(DamagedError, match=r"table\.jsonl: altered"):
        run_sweep(points, out, Scripted(out, {}))
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    (out / "seal.json").unlink()
    run_sweep(points, out, Scripted(out, {}))
    assert (out / "table.jsonl").read_bytes() == whole


def test_a_run_under_the_name_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    """Whole and sealed, but of another configuration: in the table of a sweep, in a pool, and for `verify`."""
    points, out = expand(RATES), tmp_path / "sweep"
    run_sweep(points, out, Scripted(out, {}))
    first, second = (RunTask(out, point.name).folder for point in points[:2])
    shutil.rmtree(second)
    shutil.copytree(first, second)
    row = table_rows(out, points)[1]
    assert (row["state"], row["loss"]) == ("damaged", None)
    assert re.match(r"runs/.*: is the folder of another run \(training\.learning_rate: ", row["reason"])
    with pytest.raises(DamagedError, match="is the folder of another run"):
        train_in_pool([point.config for point in points], shared_copy(out, tmp_path / "pool"), quiet=True)
    assert cli.main(["check", str(out)]) == DamagedError.exit_code


def shared_copy(sweep: Path, pool: Path) -> Path:
    """The runs of a sweep as a pool."""
    shutil.copytree(sweep, pool)
    (pool / "table.jsonl").unlink()
    store.write_json(pool / "grid.json", store.read_json(pool / "grid.json") | {"kind": "pool"})
    return pool


def test_the_table_is_of_the_grid_as_it_is_when_it_is_written(tmp_path: Path) -> None:
    """A driver whose grid was extended meanwhile ends last, and loses no row."""
    points, out = expand(RATES), tmp_path / "sweep"

    class Extended(Scripted):
        def submit(self, names: Any) -> None:
            super().submit(names)
            extend_folder(out, points)

    assert len(run_sweep(points[:1], out, Extended(out, {}))) == 1
    assert [row["state"] for row in store.read_table(out / "table.jsonl")] == ["done", "waiting", "waiting"]


def test_a_finished_sweep_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points, out = expand(RATES), tmp_path / "sweep"
    rows = run_sweep(points, out, Scripted(out, {}))
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert run_sweep(points, out, Scripted(out, {})) == rows
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_a_full_disk_stops_the_sweep_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points, out = expand(RATES), tmp_path / "sweep"
    monkeypatch.setattr("hmmscope.lab.tasks.driver.shutil.disk_usage", lambda path: SimpleNamespace(free=100))
    engine = Scripted(out, {points[0].name: [5]})
    with pytest.raises(FullDiskError, match="the disk is full"):
        run_sweep(points, out, engine)
    assert not (out / "failures").exists()


def test_a_run_at_work_says_how_far_it_is(tmp_path: Path) -> None:
    points, out = expand(RATES), tmp_path / "sweep"
    make_folder(out, points)
    with RunDir.create(RunTask(out, points[0].name).folder, points[0].config.to_data()) as run:
        run.metrics.append({"step": 7})
        row = table_rows(out, points)[0]
    assert row["state"] == "running"
    assert re.fullmatch(rf"step 7, \d+ s ago, process {os.getpid()} on .+", row["reason"])


def test_what_a_worker_said_is_shown_and_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Board(tmp_path, []).failed(Outcome("a", 2, "error[2] \x1b[2J\nforged"), 1, False)
    assert capsys.readouterr().err == "failed after 1 attempts: a: error[2] \\x1b[2J\\nforged\n"


def test_a_run_that_says_nothing_for_long_is_told_of_once(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    board = Board(tmp_path, [])
    for age in (5.0, 1000.0, 1010.0):
        board.at_work({"one": Heartbeat(7, age, "12 on host"), "two": Heartbeat(None, 1.0, "")})
    said = capsys.readouterr().err
    assert said == (
        "silent   one: step 7, 1000 s ago, process 12 on host; add --heartbeat-timeout SECONDS to restart such runs\n"
    )


class Sleeper:
    """In place of the fork server: its worker sleeps."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["sleep", "100"])

    def fork(self, task: RunTask, log: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.send(b"%d\n" % self.process.pid)

        def tell() -> None:
            with theirs:
                theirs.send(b"%d\n" % self.process.wait())

        threading.Thread(target=tell).start()
        return ours


def test_a_stopped_worker_is_killed_after_its_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = local.Job(sleeper := Sleeper(), RunTask(tmp_path, "run"), heartbeat_timeout=5.0)  # type: ignore[arg-type]
    os.kill(sleeper.process.pid, signal.SIGSTOP)
    assert job.poll() is None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 6)
    outcome = job.poll()
    assert (outcome.exit_code, outcome.kind, outcome.final) == (-9, "failed", False)
    assert outcome.reason == "killed after 5 s without progress (heartbeat timeout)"


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_makes_no_run_silent(hours: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of this machine nor that of the one which dates the files; what is seen to change is alive."""
    job = local.Job(sleeper := Sleeper(), RunTask(tmp_path, "run"), heartbeat_timeout=5.0)  # type: ignore[arg-type]
    journal = tmp_path / "runs" / "run" / "metrics.jsonl"
    begun, wall = time.monotonic(), time.time()
    monkeypatch.setattr(time, "time", lambda: wall + 3600 * hours)
    try:
        assert job.poll() is None
        journal.parent.mkdir(parents=True)
        journal.write_text("{}\n")
        os.utime(journal, (wall - 3600 * hours, wall - 3600 * hours))
        for after, alive in ((4, True), (8, True), (14, False)):  # it is last seen to change after 4 s
            monkeypatch.setattr(time, "monotonic", lambda after=after: begun + after)
            assert (job.poll() is None) == alive, after
    finally:
        sleeper.process.kill()


def test_rows_of_a_pool_have_their_names() -> None:
    row = {"run": "rnn-seed0-a", "seed": 0, "state": "done", "reason": None} | dict.fromkeys(SUMMARY)
    assert "rnn-seed0-a" not in "\n".join(table_text([row, row | {"run": "rnn-seed1-b", "seed": 1}]))
    assert "rnn-seed0-a" in "\n".join(table_text([row, row | {"run": "lstm-seed0-b"}]))
