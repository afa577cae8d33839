"""Seeded experiments: every model once for each seed, in a pool that experiments share."""

import copy
import errno
import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hmmscope import registry
from hmmscope.errors import DamagedError, FullDiskError, InputError, PartlyFailedError, RefusedError, ResourceError
from hmmscope.lab import Experiment, MeasuredTables, Tables
from hmmscope.lab.cli import main
from hmmscope.lab.evidence.figure import Figure
from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.ledger import tables_of
from hmmscope.lab.evidence.panels import curve, lines
from hmmscope.lab.experiments import parts, running, seeded
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope.lab.experiments.pool import train_in_pool
from hmmscope.lab.experiments.running import run_experiment
from hmmscope.lab.report.drawing import draw_folder
from hmmscope.lab.report.page import write_page
from hmmscope.lab.sweeps import run_task
from hmmscope.lab.sweeps.grid import run_name
from hmmscope.lab.sweeps.run_task import taking_part
from hmmscope.lab.tasks import driver
from hmmscope.lab.tasks.executors import ExecutorOptions
from hmmscope.lab.tasks.plans import as_written_now, in_words
from hmmscope.lab.verbs.seed_lists import chosen_seeds
from hmmscope.lab.worker import task_of
from hmmscope.runs import pipeline, training
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.runs.pipeline import Run
from hmmscope.storage import disk, seals, store
from hmmscope.storage.rundir import RunDir
from hmmscope.storage.seals import read_seal, remove_seal

WIDTHS = (4, 8)


class Seeded(Experiment):
    """An experiment of two small models."""

    title = "Small models"
    summary = "Two of them."
    num_seeds = {"smoke": 2, "small": 3, "gpu": 3, "paper": 1}
    groups = {"losses": ("losses",), "again": ("again",)}

    def choices(self, scale: str) -> dict[str, Any]:
        return {"widths": list(WIDTHS)}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {f"width {width}": plain(width) for width in choices["widths"]}

    def measurements(self, scale: str) -> dict[str, Any]:
        return {"factor": 1.0}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> MeasuredTables:
        rows = []
        for label, run in runs.items():
            rows.append({"label": label, "own": run.config.seed, "value": sizes["factor"] * run.summary["loss"]})
        return {group: rows}

    def figures(self, tables: Tables) -> list[Figure]:
        rows = tables["losses"].with_columns(width=lambda row: int(row["label"].split()[1]))
        panel = lines("", curve(rows, "width", "model", "model"), x_label="width", y_label="loss")
        return [Figure(name="losses", title="Losses", caption="Of two models.", panels=(panel,))]

    def findings(self, tables: Tables) -> list[Finding]:
        (first, *_) = tables["losses"].pool("label")
        return [Finding(title="Loss", text="It is.", verdict="answered", value=first["value"])]


def plain(width: int, **training: Any) -> dict[str, Any]:
    recipe = {"num_steps": 3, "batch_size": 4, "evaluate_every": 2, "evaluate_samples": 8, "device": "cpu"}
    return {
        "process": {"name": "cyclic-det", "num_states": 3, "num_symbols": 2},
        "layout": {"name": "sequences", "length": 4, "placeholder": True},
        "target": "belief",
        "model": {"name": "rnn", "width": width},
        "training": recipe | training,
    }


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = registry.lookup

    def known(kind: str, name: str, field: str | None = None) -> Any:
        return (
            Seeded if (kind, name.removesuffix("-twin")) == ("experiment", "test-seeded") else lookup(kind, name, field)
        )

    monkeypatch.setattr(registry, "lookup", known)


def names(pool: Path) -> set[str]:
    return {path.name for path in (pool / "runs").iterdir()}


@pytest.mark.drawn(5, of="whole experiments")
def test_every_model_is_trained_once_for_each_seed_and_shared(tmp_path: Path) -> None:
    out = run_experiment("test-seeded", "smoke", tmp_path / "one", quiet=True)
    rows = store.read_table(out / "tables" / "losses.jsonl")
    assert [(row["seed"], row["label"]) for row in rows] == [(s, f"width {w}") for s in (0, 1) for w in WIDTHS]
    assert all(row["seed"] == row["own"] for row in rows)
    runs = store.read_table(out / "tables" / "runs.jsonl")
    assert {row["run"] for row in runs} == names(tmp_path / "trained")
    assert len(runs) == 4
    for row in runs:
        config = store.read_json(tmp_path / "trained" / "runs" / row["run"] / "config.json")
        assert config["seed"] == config["process"]["seed"] == row["seed"]
    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "trained").rglob("done.json")}
    run_experiment("test-seeded-twin", "smoke", tmp_path / "two", quiet=True, seeds=(1, 2))
    assert len(names(tmp_path / "trained")) == 6  # seed 1 was there
    assert all(path.stat().st_mtime_ns == time for path, time in done.items())


def test_one_number_of_the_plan_and_of_the_measurements(tmp_path: Path) -> None:
    changes = {"plan.widths": "6", "measurements.factor": "0", "training.num_steps": "2"}
    out = run_experiment("test-seeded", "smoke", tmp_path / "one", overrides=changes, seeds=3, quiet=True)
    rows = store.read_table(out / "tables" / "losses.jsonl")
    assert [row["label"] for row in rows] == ["width 6"] * 3
    assert all(row["value"] == 0 for row in rows)
    about = store.read_json(out / "experiment.json")
    assert about["config"]["plan"] == {"widths": [6]}
    assert about["config"]["seeds"] == [0, 1, 2]
    assert "--num-seeds 3 --plan.widths 6 --measurements.factor 0 --training.num_steps 2" in about["command"]
    with pytest.raises(RefusedError, match="another plan"):
        run_experiment("test-seeded", "smoke", out, overrides=changes, seeds=2, resume=True, quiet=True)


@pytest.mark.slow
def test_workers_and_this_process_train_alike(tmp_path: Path) -> None:
    here = run_experiment("test-seeded", "smoke", tmp_path / "here" / "out", quiet=True)
    options = ExecutorOptions(jobs=2)
    there = run_experiment("test-seeded", "smoke", tmp_path / "there" / "out", executor=options, quiet=True)
    assert (here / "tables" / "losses.jsonl").read_bytes() == (there / "tables" / "losses.jsonl").read_bytes()
    runs = [store.read_table(out / "tables" / "runs.jsonl") for out in (here, there)]
    for column in ("seconds", "processor_seconds"):
        assert all(row.pop(column) > 0 for rows in runs for row in rows)
    assert runs[0] == runs[1]


@pytest.mark.drawn(5, of="whole experiments")
def test_a_worker_measures_a_part_as_this_process_does(tmp_path: Path) -> None:
    """It is told the folder, the pool and the name, and reads the plan from the folder; so does a copy of a task."""
    out = run_experiment("test-seeded", "smoke", tmp_path / "out", quiet=True)
    file = out / "parts" / "seed-1" / "all.json"
    before = file.read_bytes()
    given = {"out": str(out), "name": "seed-1-all", "pool": str(tmp_path / "trained")}
    for task in (task_of(json.dumps({"kind": "part"} | given).encode()), copy.copy(seeded.PartTask.read(**given))):
        assert (task.name, task.given(), task.state()) == ("seed-1-all", given, "done")
        file.unlink()
        assert task.state() == "waiting"
        task.do()
        assert file.read_bytes() == before


@pytest.mark.drawn(5, of="whole experiments")
@pytest.mark.parametrize("found", [True, False], ids=["found by any process", "known here alone"])
def test_parts_are_measured_where_runs_are_trained(
    found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Noting(driver.InProcessExecutor):
        def submit(self, tasks: Any) -> None:
            seen.extend(task.kind for task in tasks)
            super().submit(tasks)

    monkeypatch.setattr(registry, "is_installed", lambda entry: found)
    monkeypatch.setattr(ExecutorOptions, "make", lambda self, out: Noting(quiet=True))
    out = run_experiment("test-seeded", "smoke", tmp_path / "out", executor=ExecutorOptions(jobs=2), quiet=True)
    assert seen == ["run"] * 4 + ["part"] * 2 * found
    assert store.read_json(out / "experiment.json")["facts"][1]["value"] == "0, 1"
    assert len(store.read_table(out / "parts.jsonl")) == 2


def test_which_experiments_every_process_finds() -> None:
    assert registry.is_installed(type(experiment_named("limits-depth")))
    assert not registry.is_installed(Seeded)


@pytest.mark.slow
def test_workers_measure_like_this_process_and_a_part_that_fails_is_named(tmp_path: Path) -> None:
    options: dict[str, Any] = {"seeds": 2, "quiet": True}
    here = run_experiment("limits-depth", "smoke", tmp_path / "a" / "out", **options)
    pool = tmp_path / "a" / "trained"
    there = run_experiment(
        "limits-depth", "smoke", tmp_path / "b" / "out", trained=pool, executor=ExecutorOptions(jobs=2), **options
    )
    for table in ("runs", "lengths-by-epoch"):
        files = [out / "tables" / f"{table}.jsonl" for out in (here, there)]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert sorted(path.name for path in (there / "logs").iterdir())[0] == "seed-0-cyclic-det-1-layer-length-6.log"
    assert seals.seal_report(there).beyond == ()
    weights = next((pool / "runs").glob("*/checkpoints/*/model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(
        PartlyFailedError, match=r"limits-depth: seed \d.* failed \(error\[4\] .* the run is finished, but"
    ):
        run_experiment(
            "limits-depth", "smoke", tmp_path / "c" / "out", trained=pool, executor=ExecutorOptions(jobs=2), **options
        )
    assert len(list((tmp_path / "c" / "out" / "failures").iterdir())) == 1
    assert len(store.read_table(tmp_path / "c" / "out" / "parts.jsonl")) == 7


@pytest.mark.drawn(5, of="whole experiments")
def test_an_interrupted_measurement_goes_on_with_the_next_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, seen = Seeded.measure, []

    def spy(self: Seeded, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Tables:
        seed = next(iter(runs.values())).config.seed
        seen.append((seed, group))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return measure(self, runs, group, sizes)

    monkeypatch.setattr(Seeded, "measure", spy)
    with pytest.raises(KeyboardInterrupt):
        run_experiment("test-seeded", "smoke", tmp_path / "out", quiet=True)
    assert store.read_json(tmp_path / "out" / "experiment.json")["whole_seeds"] == [0]
    run_experiment("test-seeded", "smoke", tmp_path / "out", resume=True, quiet=True)
    assert seen == [(0, "losses"), (0, "again"), (1, "losses"), (1, "losses"), (1, "again")]


# ---------------------------------------------------------------------------------------------------------------------
# Parts


@pytest.fixture
def apart_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Models are measured one by one; the parts that were, and an interruption at the fourth."""
    measure, seen = Seeded.measure, []

    def spy(self: Seeded, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Tables:
        (label,), seed = runs, next(iter(runs.values())).config.seed
        if len(seen) == 6:
            seen.clear()
            raise KeyboardInterrupt
        seen.append(f"{seed}, {label}, {group}")
        return measure(self, runs, group, sizes)

    monkeypatch.setattr(Seeded, "measure", spy)
    monkeypatch.setattr(Seeded, "measure_per_run", True)
    return seen


def small_files(out: Path, to: Path) -> Path:
    """What is kept of an experiment: no weights and no parts."""
    for path in [*out.glob("*.json*"), *out.glob("tables/*")]:
        (to / path.relative_to(out)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to / path.relative_to(out))
    return to


@pytest.mark.drawn(5, of="whole experiments")
def test_an_experiment_goes_on_from_its_small_files(tmp_path: Path, apart_at: list[str]) -> None:
    whole = run_experiment("test-seeded", "smoke", tmp_path / "a" / "out", seeds=1, quiet=True)
    apart_at.clear()
    with pytest.raises(KeyboardInterrupt):
        run_experiment("test-seeded", "smoke", tmp_path / "b" / "out", quiet=True)
    kept = small_files(tmp_path / "b" / "out", tmp_path / "kept")
    about = store.read_json(kept / "experiment.json")
    assert about["whole_seeds"] == [0]
    assert len(store.read_table(kept / "tables" / "losses.jsonl")) == 3
    assert tables_of(kept, about)["losses"] == store.read_table(whole / "tables" / "losses.jsonl")
    store.write_json(kept / "experiment.json", about | {"rules": {"fixed": "before"}})
    out = run_experiment("test-seeded", "smoke", tmp_path / "c" / "out", kept=kept, quiet=True)
    assert apart_at == ["1, width 8, losses", "1, width 8, again"]
    assert len(names(tmp_path / "c" / "trained")) == 1
    run_experiment("test-seeded", "smoke", tmp_path / "b" / "out", resume=True, quiet=True)
    for table in ("losses", "again"):
        same = [store.read_table(folder / "tables" / f"{table}.jsonl") for folder in (out, tmp_path / "b" / "out")]
        assert same[0] == same[1]
        assert [row["seed"] for row in same[0]] == [0, 0, 1, 1]
    about = store.read_json(out / "experiment.json")
    assert "whole_seeds" not in about
    assert about["rules"] == {"fixed": "before"}
    assert "core-hours" in about["facts"][2]["value"]


@pytest.mark.drawn(5, of="whole experiments")
def test_the_first_seeds_are_whole_and_the_others_come_later(tmp_path: Path) -> None:
    out = run_experiment("test-seeded", "smoke", tmp_path / "out", first=1, quiet=True)
    assert len(names(tmp_path / "trained")) == len(WIDTHS)
    assert store.read_json(out / "experiment.json")["whole_seeds"] == [0]
    assert (out / "findings.json").exists()
    assert "1 of 2 seeds so far" in write_page([out], out / "report.html").read_text("utf-8")
    run_experiment("test-seeded", "smoke", out, resume=True, quiet=True)
    assert "seeds so far" not in write_page([out], out / "report.html").read_text("utf-8")
    assert "whole_seeds" not in store.read_json(out / "experiment.json")
    assert len(names(tmp_path / "trained")) == 2 * len(WIDTHS)


def test_what_is_trained_is_measured_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Two experiments share a pool, and the second looks at what the first has trained so far."""
    run_experiment("test-seeded", "smoke", tmp_path / "out", first=1, quiet=True)
    same = {"trained": tmp_path / "trained", "measure_only": True, "quiet": True}
    other = run_experiment("test-seeded", "smoke", tmp_path / "other", overrides={"plan.widths": "8,6"}, **same)
    assert len(names(tmp_path / "trained")) == len(WIDTHS)
    assert store.read_table(other / "tables" / "losses.jsonl") == []  # one of its two models is not there
    again = run_experiment("test-seeded", "smoke", tmp_path / "again", **same)
    assert store.read_json(again / "experiment.json")["whole_seeds"] == [0]
    tables = [store.read_table(folder / "tables" / "losses.jsonl") for folder in (tmp_path / "out", again)]
    assert tables[0] == tables[1] != []
    words = ["run", "test-seeded", "--scale", "smoke", "--out", str(tmp_path / "none"), "-q"]
    assert main([*words, "--pool", str(tmp_path), "--measure-only"]) == 0
    assert "no seed is complete yet" in capsys.readouterr().out
    assert len(names(tmp_path / "trained")) == len(WIDTHS)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("change", "why", "measured"),
    [
        ({"overrides": {"training.num_steps": "2"}}, "the configuration of width 4 differs", 8),
        ({"overrides": {"measurements.factor": "2"}}, "the configuration of its measurements differs", 8),
        ({"overrides": {"plan.widths": "8,6"}}, "", 4),
        ({"seeds": (1, 2)}, "", 4),
        ({"version": 2}, "measured by version 1 of `measure`, now at version 2", 8),
        ({"version": None}, "measured by version unknown of `measure`, now at version 1", 8),
    ],
)
def test_what_is_kept_must_be_the_same(
    change: dict[str, Any],
    why: str,
    measured: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    seen: list[str] = []
    measure = parts._measure

    def spy(experiment: Seeded, *given: Any) -> Tables:
        seen.append(given[1])
        return measure(experiment, *given)

    monkeypatch.setattr(Seeded, "measure_per_run", True)
    kept = run_experiment("test-seeded", "smoke", tmp_path / "a" / "out", quiet=True)
    change = dict(change)
    monkeypatch.setattr(parts, "_measure", spy)
    if "version" in change:
        version = change.pop("version")
        if version is None:  # a mark of before versions, that no record knows
            remove_seal(kept)
            index = [row | {"code": "0123456789ab"} for row in store.read_table(kept / "parts.jsonl")]
            store.write_table(
                kept / "parts.jsonl", [{k: v for k, v in row.items() if k != "measurement"} for row in index]
            )
        else:
            monkeypatch.setattr(Seeded, "measurement", version)
    capsys.readouterr()
    run_experiment("test-seeded", "smoke", tmp_path / "b" / "out", kept=kept, **change)
    assert len(seen) == measured
    assert why in capsys.readouterr().out


@pytest.mark.drawn(5, of="whole experiments")
def test_a_run_goes_by_a_protocol_and_writes_none(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file, out = tmp_path / "fixed.json", tmp_path / "out"
    plain_run = ["run", "test-seeded", "--scale", "smoke", "-q"]
    assert main([*plain_run, "--out", str(out), "--protocol", str(file)]) == 2  # there is none yet
    assert not out.exists()
    assert main([*plain_run, "--dry-run", "--protocol", str(file)]) == 0
    assert "commit it before the first run" in capsys.readouterr().out
    assert main([*plain_run, "--dry-run", "--protocol", str(file)]) == 3
    assert "never overwritten" in capsys.readouterr().err
    assert main([*plain_run, "--seeds", "1,2", "--out", str(out), "--protocol", str(file)]) == 2
    assert "is for another plan" in capsys.readouterr().err
    run_experiment("test-seeded", "smoke", out, protocol=file, quiet=True, first=1)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    about = store.read_json(out / "experiment.json")
    assert about["protocol"] == digest
    assert (out / "protocol.json").read_bytes() == file.read_bytes()
    assert [part["protocol"] for part in store.read_table(out / "parts.jsonl")] == [digest]
    write_page([out], out / "report.html")
    file.write_bytes(file.read_bytes().replace(b'"measurement": 1', b'"measurement": 2'))
    assert main([*plain_run, "--out", str(tmp_path / "new"), "--protocol", str(file)]) == 2
    assert "is for version 2 of the measuring code; the current version is 1" in capsys.readouterr().err
    shutil.copyfile(out / "protocol.json", file)
    run_experiment("test-seeded", "smoke", out, protocol=file, quiet=True, resume=True)
    assert [part["protocol"] for part in store.read_table(out / "parts.jsonl")] == [digest] * 2
    without = run_experiment("test-seeded", "smoke", tmp_path / "without", trained=tmp_path / "trained", quiet=True)
    assert not (without / "protocol.json").exists()
    assert "protocol" not in store.read_table(without / "parts.jsonl")[0]
    with pytest.raises(RefusedError, match="was started without this protocol"):
        run_experiment("test-seeded", "smoke", without, protocol=file, quiet=True, resume=True)
    on = run_experiment("test-seeded", "smoke", tmp_path / "on", kept=out, quiet=True)
    assert store.read_json(on / "experiment.json")["protocol"] == digest
    assert (on / "protocol.json").read_bytes() == file.read_bytes()
    late = run_experiment("test-seeded", "smoke", tmp_path / "late", kept=without, protocol=file, quiet=True)
    assert ["protocol" in part for part in store.read_table(late / "parts.jsonl")] == [False] * 2  # of before it


@pytest.mark.parametrize(
    ("number", "text", "seeds"), [(3, None, 3), (None, "0,5", (0, 5)), (None, "100,", (100,)), (None, None, None)]
)
def test_seeds_are_a_number_or_a_list(
    number: int | None, text: str | None, seeds: int | tuple[int, ...] | None
) -> None:
    assert chosen_seeds(number, text) == seeds


@pytest.mark.parametrize(
    "words",
    [
        ["run", "test-seeded", "--scale", "smoke"],
        ["sweep", "--base", "mess3", "--vary", "training.learning_rate=1e-3"],
        ["study", "x.txt"],
        ["benchmark", "rnn"],
    ],
    ids=lambda words: words[0],
)
def test_one_number_of_seeds_is_asked_about(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Once it was how many, and beside lists it reads as which one."""
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--seeds", "100", "--out", "out"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error[2] --seeds 100: is ambiguous; for 100 seeds, starting at 0, give --num-seeds 100; ")
    assert not list(tmp_path.iterdir())
    if words[0] in ("run", "sweep"):
        assert "for seed 100 alone give --seeds '100,'" in said
        assert main([*words, "--seeds", "1,2", "--num-seeds", "2", "--out", "out"]) == 2
        assert "give only one of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seeds", "said"),
    [((7,), "seed 7"), ((0, 1), "2 seeds, 0, 1"), (range(3, 6), "3 seeds, 3 to 5"), ((9, 0, 5), "3 seeds, 0, 5, 9")],
)
def test_a_plan_names_its_seeds(seeds: Sequence[int], said: str) -> None:
    assert in_words(seeds) == said


def test_kept_commands_are_shown_as_they_are_written_now() -> None:
    kept = "hmmscope run x --seeds 5 --plan.a 3,4 --seeds 5,6 --seeds 12"
    assert as_written_now(kept) == "hmmscope run x --num-seeds 5 --plan.a 3,4 --seeds 5,6 --num-seeds 12"


@pytest.mark.drawn(5, of="whole experiments")
def test_only_small_files_of_the_experiment_are_taken(tmp_path: Path) -> None:
    out = run_experiment("test-seeded", "smoke", tmp_path / "out", quiet=True)
    with pytest.raises(InputError, match="at scale smoke, not test-seeded at scale small"):
        run_experiment("test-seeded", "small", tmp_path / "b", kept=out, quiet=True)
    with pytest.raises(InputError, match=r"has no experiment\.json"):
        run_experiment("test-seeded", "smoke", tmp_path / "b", kept=tmp_path / "nothing", quiet=True)
    rows = store.read_table(out / "tables" / "losses.jsonl")
    store.write_table(out / "tables" / "losses.jsonl", rows[1:])
    with pytest.raises(DamagedError, match=r"losses\.jsonl: has \d+ bytes, but seal\.json"):
        run_experiment("test-seeded", "smoke", tmp_path / "b", kept=out, quiet=True)
    remove_seal(out)
    with pytest.raises(DamagedError, match=r"parts\.jsonl: counts .* but the tables differ; restore"):
        run_experiment("test-seeded", "smoke", tmp_path / "b", kept=out, quiet=True)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"overrides": {"seed": "3"}}, "--seed: is determined by --seeds"),
        ({"overrides": {"process.seed": "3"}}, r"--process\.seed: is determined by --seeds"),
        ({"overrides": {"plan.width": "3"}}, "did you mean 'widths'"),
        ({"overrides": {"plan.widths": "4,-8"}}, r"--plan\.widths: must be in \[1, 8000\], got -8"),
        (
            {"overrides": {"measurements.factor": "1e9"}},
            r"--measurements\.factor: must be in \[0, 1000\], got 1000000000",
        ),
        ({"overrides": {"model.name": "lstm"}}, r"model\.name: must be rnn in experiment test-seeded, got 'lstm'"),
        ({"seeds": 0}, "seeds: must be a number of seeds from 1 to 1000"),
        ({"seeds": 2**64}, "seeds: must be a number of seeds from 1 to 1000"),
        ({"seeds": (1, 1)}, "a list of distinct seeds"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], error: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=error):
        run_experiment("test-seeded", "smoke", tmp_path / "out", quiet=True, **arguments)
    assert not list(tmp_path.iterdir())


def test_an_experiment_without_seeds_takes_none(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["run", "multitask-theorem1", "--scale", "smoke", "--out", str(tmp_path / "out"), "--seeds", "2,"]) == 2
    assert "is not divided into seeds" in capsys.readouterr().err
    assert main(["run", "multitask-theorem1", "--scale", "smoke", "--out", str(tmp_path / "out"), "--jobs", "2"]) == 2
    assert not list(tmp_path.iterdir())


def test_runs_that_did_not_record_processor_time_have_none() -> None:
    records = [{"seconds": 1.0}, {"seconds": 3.0}, {"seconds": 0.5}]
    assert seeded._seconds(records, "seconds") == 3.5
    assert seeded._seconds(records, "processor_seconds") is None


# ---------------------------------------------------------------------------------------------------------------------
# What fails, and who may write


@pytest.mark.drawn(5, of="whole experiments")
def test_a_folder_that_is_gone_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: Any) -> MeasuredTables:
        out = next(tmp_path.glob("*out"))
        shutil.rmtree(out)
        raise DamagedError(f"{out}/experiment.json: cannot be read")

    gone = "out: was moved or removed while hmmscope was writing; leave it in place until hmmscope ends"
    monkeypatch.setattr(Seeded, "measure", measure)
    with pytest.raises(ResourceError, match=gone):
        run_experiment("test-seeded", "smoke", tmp_path / "out", seeds=1, quiet=True)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    monkeypatch.setattr(running, "_run_once", measure)
    with pytest.raises(ResourceError, match=gone):
        run_experiment("multitask-theorem1", "smoke", tmp_path / "without-seeds-out", quiet=True)


@pytest.mark.drawn(5, of="whole experiments")
def test_one_failure_ends_no_other_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Seeded.measure

    def failing(self: Seeded, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Tables:
        if next(iter(runs.values())).config.seed == 0 and group == "again":
            raise MemoryError
        return measure(self, runs, group, sizes)

    monkeypatch.setattr(Seeded, "measure", failing)
    with pytest.raises(PartlyFailedError, match=r"seed 0 failed \(error\[5\] measuring again: out of memory") as caught:
        run_experiment("test-seeded", "smoke", tmp_path / "out", quiet=True)
    assert caught.value.exit_code == 5
    assert store.read_json(tmp_path / "out" / "experiment.json")["whole_seeds"] == [1]
    assert read_seal(tmp_path / "out") is None
    monkeypatch.setattr(Seeded, "measure", measure)
    run_experiment("test-seeded", "smoke", tmp_path / "out", resume=True, quiet=True)
    assert read_seal(tmp_path / "out") is not None


def test_figures_that_fail_end_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Seeded, tables: Tables) -> list[Figure]:
        raise ValueError("no such column")

    monkeypatch.setattr(Seeded, "figures", failing)
    with pytest.raises(
        PartlyFailedError, match=r"seed 0 failed \(error\[70\] .*no such column\); 1 more failed: seed 1; "
    ):
        run_experiment("test-seeded", "smoke", tmp_path / "out", quiet=True)
    assert len(store.read_table(tmp_path / "out" / "parts.jsonl")) == 2


@pytest.mark.drawn(5, of="whole experiments")
@pytest.mark.parametrize("phase", ["training", "measuring"])
def test_a_full_disk_ends_an_experiment_at_once(phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def full(*given: Any, **_: Any) -> Any:
        tried.append(given)
        with disk.writing(tmp_path / "file", 9):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*{"training": (run_task, "train"), "measuring": (Seeded, "measure")}[phase], full)
        with pytest.raises(FullDiskError, match=r"^test-seeded: seed 0: .*No space left.*command with --resume$"):
            run_experiment("test-seeded", "smoke", tmp_path / "out", quiet=True)
    assert len(tried) == 1
    assert not (tmp_path / "trained" / "failures").exists()
    out = run_experiment("test-seeded", "smoke", tmp_path / "out", resume=True, quiet=True)
    assert read_seal(out) is not None


def test_one_process_writes_an_experiment(tmp_path: Path) -> None:
    out = run_experiment("test-seeded", "smoke", tmp_path / "out", seeds=1, quiet=True)
    before = read_seal(out)
    with disk.holding(out / "lock"), pytest.raises(RefusedError, match="in use by process"):
        run_experiment("test-seeded", "smoke", out, seeds=1, resume=True, quiet=True)
    assert read_seal(out) == before


@pytest.mark.parametrize("named", [True, False], ids=["a part that the seal names", "one of a seal without parts"])
def test_a_refused_resume_changes_no_byte(named: bool, tmp_path: Path) -> None:
    out = run_experiment("test-seeded", "smoke", tmp_path / "out", seeds=1, quiet=True)
    if not named:  # as seals were before they named parts
        (tmp_path / "parts").mkdir()
        (out / "parts").rename(tmp_path / "parts" / "parts")
        seals.write_seal(out, "experiment", {})
        (tmp_path / "parts" / "parts").rename(out / "parts")
    part = next((out / "parts").rglob("*.json"))
    part.write_bytes(part.read_bytes().replace(b"0.", b"1.", 1))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(DamagedError, match=rf"{part.name}: altered"):
        run_experiment("test-seeded", "smoke", out, seeds=1, resume=True, quiet=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert read_seal(out) is not None


@pytest.mark.drawn(5, of="whole experiments")
def test_every_file_of_an_experiment_is_covered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run_experiment("test-seeded", "smoke", tmp_path / "out", seeds=1, quiet=True)
    draw_folder(out)
    write_page([out], out / "report.html")
    found = seals.seal_report(out)
    assert found.beyond == ()
    folders = {name.split("/")[0] for name in found.covered}
    assert {"parts", "timing", "figures", "tables", "report.html"} <= folders
    for name in (
        "figures/01-losses.png",
        "report.html",
        "timing/facts.json",
        next(n for n in found.covered if "parts/" in n),
    ):
        before = (out / name).read_bytes()
        (out / name).write_bytes(before + b" ")
        assert main(["check", str(out)]) == 4
        assert f"{out / name}: " in capsys.readouterr().err
        (out / name).write_bytes(before)
    (out / "notes.txt").write_text("mine")
    assert main(["check", str(out)]) == 0
    assert capsys.readouterr().out.endswith(" files, 1 not covered: notes.txt\n")
    (out / "report.html").unlink()  # it can be made again
    assert main(["check", str(out)]) == 0
    pool = tmp_path / "trained"
    assert seals.seal_report(pool).beyond == ()
    assert seals.seal_report(pool).runs == 2


def test_a_finished_experiment_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run_experiment("test-seeded", "smoke", tmp_path / "out", seeds=1, quiet=True)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr(disk, "create", lambda path: pytest.fail("written"))
    assert run_experiment("test-seeded", "smoke", out, seeds=1, resume=True, quiet=True) == out


def test_tables_without_seeds_are_used_again_only_if_the_same_measured_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def measured(self: Seeded, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> MeasuredTables:
        seen.append(group)
        return {group: [{"label": "width 4", "value": 1.0}]}

    monkeypatch.setattr(Seeded, "num_seeds", {})
    monkeypatch.setattr(Seeded, "plan", lambda self, scale, **choices: {})
    monkeypatch.setattr(Seeded, "measure", measured)
    out = run_experiment("test-seeded", "smoke", tmp_path / "out", quiet=True)
    run_experiment("test-seeded", "smoke", out, resume=True, quiet=True)
    assert seen == ["losses", "again"]
    remove_seal(out)
    store.write_table(out / "tables" / "again.jsonl", [{"label": "width 4", "value": 100.0}])
    with pytest.raises(DamagedError, match=r"again\.jsonl: has \d+ bytes, but made\.json"):
        run_experiment("test-seeded", "smoke", out, resume=True, quiet=True)
    monkeypatch.setattr(Seeded, "measurement", 2)
    run_experiment("test-seeded", "smoke", out, resume=True, quiet=True)
    assert seen == ["losses", "again"] * 2
    assert store.read_table(out / "tables" / "again.jsonl")[0]["value"] == 1.0


# ---------------------------------------------------------------------------------------------------------------------
# The pool


def config(width: int, **training: Any) -> RunConfig:
    return config_from_data(plain(width, **training))


@pytest.mark.long
@pytest.mark.drawn(5, of="whole experiments")
def test_a_pool_keeps_the_runs_of_others(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    (first,) = train_in_pool([config(4)], pool, quiet=True)
    second, again = train_in_pool([config(6), config(4)], pool, ExecutorOptions(jobs=2), quiet=True)
    assert again == first
    points = [point["name"] for point in store.read_json(pool / "grid.json")["points"]]
    assert points == [run_name(config(4)), run_name(config(6))]
    assert {first.name, second.name} == names(pool)
    assert not (pool / "table.jsonl").exists()
    assert main(["check", str(pool)]) == 0


@pytest.mark.drawn(5, of="whole experiments")
@pytest.mark.parametrize("executor", [ExecutorOptions(jobs=1), None])
def test_a_failed_run_is_named_and_the_others_are_there(executor: ExecutorOptions | None, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    bad = config(4, learning_rate=1e30, warmup_steps=0, num_steps=20)
    with pytest.raises(ResourceError, match=rf"1 of 2 runs failed; .* {run_name(bad)} \(error\[6\].*not finite"):
        train_in_pool([bad, config(6)], pool, executor, quiet=True)
    assert (pool / "runs" / run_name(config(6)) / "done.json").exists()


def test_who_trains_in_this_process_holds_the_lock_of_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another driver that comes meanwhile removes nothing that a live process works on."""
    pool = tmp_path / "pool"

    def train(config: RunConfig, out: Path, **options: Any) -> Run:
        live = out.parent / f".tmp-{out.name}-0123456789abcdef"
        live.mkdir()
        with taking_part(pool):
            assert live.exists()
        live.rmdir()
        return training.train(config, out, **options)

    monkeypatch.setattr(run_task, "train", train)
    train_in_pool([config(4)], pool, quiet=True)
    seal = read_seal(pool)
    assert (seal.kind, list(seal.bound["runs"])) == ("pool", [run_name(config(4))])


def test_an_altered_part_is_not_used_again(tmp_path: Path) -> None:
    out = run_experiment("test-seeded", "smoke", tmp_path / "out", quiet=True)
    part = next((out / "parts").rglob("*.json"))
    part.write_text(part.read_text().replace("0", "1", 1))
    with pytest.raises(DamagedError, match="altered"):
        run_experiment("test-seeded", "smoke", out, resume=True, quiet=True)


def test_a_damaged_plan_or_table_ends_in_a_line(tmp_path: Path) -> None:
    out = run_experiment("test-seeded", "smoke", tmp_path / "out", quiet=True)
    file, table = out / "experiment.json", out / "tables" / "runs.jsonl"
    about, rows = store.read_json(file), table.read_bytes()
    without = {key: value for key, value in about.items() if key != "config"}
    for changed in (without, about | {"config": 3}, about | {"format": "hmmscope-experiment/9"}, []):
        store.write_json(file, changed)
        with pytest.raises(DamagedError, match=r"experiment\.json: "):
            run_experiment("test-seeded", "smoke", out, resume=True, quiet=True)
    store.write_json(file, about)
    table.write_bytes(rows[: len(rows) // 2])
    with pytest.raises(DamagedError, match=r"runs\.jsonl: has \d+ bytes, but seal\.json"):
        run_experiment("test-seeded", "smoke", out, resume=True, quiet=True)


def test_runs_that_another_process_trains_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, trained = tmp_path / "pool", []
    (first,) = train_in_pool([config(4)], pool, quiet=True)
    other = RunDir.open(first, lock=True)  # another process takes the run up again
    (first / "done.json").unlink()

    def train(config: RunConfig, out: Path, **options: Any) -> Run:
        trained.append(out.name)
        return training.train(config, out, **options)

    def at_last(seconds: float) -> None:
        assert trained[0] == run_name(config(6))  # what is free comes first
        other.unlock()

    monkeypatch.setattr(run_task, "train", train)
    monkeypatch.setattr(driver.time, "sleep", at_last)
    monkeypatch.setattr(driver, "_SECONDS_ELSEWHERE", 0.0)
    train_in_pool([config(4), config(6)], pool, quiet=True)
    assert trained == [run_name(config(6)), run_name(config(4))]
    assert (first / "done.json").exists()


def test_a_finished_run_without_its_last_checkpoint_is_not_measured(tmp_path: Path) -> None:
    once = config(4, checkpoint_every=1)
    (run,) = train_in_pool([once], tmp_path / "pool", quiet=True)
    weights = sorted(run.glob("checkpoints/*/model.safetensors"))
    assert len(weights) > 1
    data = bytearray(weights[-1].read_bytes())
    data[-1] ^= 1
    weights[-1].write_bytes(data)
    with (
        pytest.warns(UserWarning, match="model.safetensors"),
        pytest.raises(DamagedError, match=r"is finished, but .* delete done\.json and"),
    ):
        pipeline.load_run(run)
    (run / "done.json").unlink()
    with pytest.warns(UserWarning, match="model.safetensors"):
        train_in_pool([once], tmp_path / "pool", quiet=True)
    assert pipeline.load_run(run).summary is not None


def test_seed_is_not_short_for_seeds(capsys: pytest.CaptureFixture) -> None:
    code, printed = main(["sweep", "--model.name", "rnn", "--seed", "3", "--dry-run"]), capsys.readouterr()
    assert code == 0, printed.err
    assert "-seed3-" in printed.out
    assert "-seed0-" not in printed.out


def test_a_pool_is_not_made_in_another_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(RefusedError, match="not the folder of a sweep"):
        train_in_pool([config(4)], tmp_path / "mine", quiet=True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
