"""`hmmscope check`: seals, what follows from tables and from weights, and the first difference."""

import shutil
from collections.abc import Callable
from pathlib import Path

import kept_results
import pytest

import hmmscope as hs
from cli_cases import TINY, call, trained  # noqa: F401 - fixtures
from hmmscope.interop.huggingface import export_huggingface
from hmmscope.storage import packed, seals, store
from hmmscope.storage.rundir import RunDir

RESULTS = kept_results.RESULTS / "small"


def forge(path: Path, key: str, value: float) -> None:
    """Another number, under a seal that agrees with it."""
    data = store.read_json(path)
    (data if isinstance(data, dict) else data[0])[key] = value
    store.write_json(path, data)
    seal = seals.read_seal(path.parent)
    seals.write_seal(path.parent, seal.kind, seal.bound)


def test_findings_follow_from_the_tables(call: Callable, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(RESULTS / "limits-table1", kept)
    told = call("check", str(kept))
    assert (told.code, told.error) == (0, "")
    assert "files agree with their checksums" in told.out
    assert "findings recomputed from" in told.out
    forge(kept / "findings.json", "value", 0.125)
    told = call("check", str(kept))
    assert told.code == 4
    assert "findings.json" in told.error
    assert "0.125" in told.error
    seals.remove_seal(kept)
    shutil.copyfile(RESULTS / "limits-table1" / "findings.json", kept / "findings.json")
    told = call("check", str(kept))
    assert told.code == 3
    assert "has no checksums (seal.json)" in told.error


def test_an_experiment_that_goes_on_fits_its_index(call: Callable, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(RESULTS / "limits-fig6", kept)
    seals.remove_seal(kept)
    (kept / "findings.json").unlink()
    seals.write_seal(kept, "experiment", {})
    told = call("check", str(kept))
    assert (told.code, told.error) == (0, "")
    assert "not finished; its tables contain" in told.out
    index = store.read_table(kept / packed.INDEX)
    index[0]["rows"]["runs"] += 1
    store.write_table(kept / packed.INDEX, index)
    seals.write_seal(kept, "experiment", {})
    told = call("check", str(kept))
    assert told.code == 4
    assert "does not contain the rows listed in parts.jsonl" in told.error


def test_a_score_follows_from_the_weights(call: Callable, trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "copy"
    shutil.copytree(trained, run)
    told = call("check", str(run))
    assert (told.code, told.error) == (0, "")
    assert "the recomputed loss" in told.out
    summary = RunDir.open(run).done
    forge(run / "done.json", "loss", summary["loss"] - 0.1)
    told = call("check", str(run))
    assert told.code == 4
    assert "done.json: loss is" in told.error


@pytest.mark.long
@pytest.mark.drawn(1, of="whole runs")
def test_whatever_a_verb_writes_into_a_run_is_covered(call: Callable, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    for words in (
        ["report", "run", "-o", "run/page.html"],
        ["look", "run", "-o", "run/live.html"],
        ["report", "run", "--figures", "run/drawn", "--style", "web"],
        ["analyse", "run", "curves"],
        ["analyse", "run", "--export", "run/model"],
        ["sample", "umbrella", "-n", "2", "--length", "3", "--out", "run/x.txt"],
    ):
        assert call(*words, "-q").code == 0, words
    told = call("check", "run")
    assert told.code == 0, told.error
    assert told.out.endswith(" files, 0 not covered\n")
    (tmp_path / "run" / "live.html").write_bytes((tmp_path / "run" / "live.html").read_bytes() + b" ")
    assert call("check", "run").code == 4


def test_a_refused_analysis_writes_nothing(call: Callable, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    assert call("analyse", "run", "curves", "-q").code == 0
    (tmp_path / "run" / seals.ADDED).write_text("{}")
    before = sorted((tmp_path / "run").rglob("*"))
    assert call("analyse", "run", "probe", "-q").code == 4
    assert sorted((tmp_path / "run").rglob("*")) == before


def test_an_export_is_as_its_manifest_says(call: Callable, tmp_path: Path) -> None:
    export_huggingface(hs.make_model("roformer", num_symbols=3, num_layers=1, width=8, num_heads=2), tmp_path / "out")
    told = call("check", "out")
    assert (told.code, told.error) == (0, "")
    assert "; 4 files, 0 not covered" in told.out
    assert "the weights have the shapes of the configuration" in told.out
    for path in sorted((tmp_path / "out").iterdir()):
        before = path.read_bytes()
        for after in (before.replace(b" ", b"\t", 1), before[:-9] + bytes([before[-9] ^ 1]) + before[-8:], None):
            path.unlink() if after is None else path.write_bytes(after)
            assert call("check", "out").code == 4, path.name
            path.write_bytes(before)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert "5 files, 1 not covered: notes.txt" in call("check", "out").out
    for words in (["report", "out"], ["analyse", "out", "geometry"]):
        assert "out: is an exported model, not a run folder" in call(*words).error


@pytest.mark.long
@pytest.mark.drawn(1, of="whole runs")
def test_an_unsealed_sweep_whose_table_is_a_row_short(call: Callable, tmp_path: Path) -> None:
    grid = ["sweep", "mess3", *TINY, "--vary", "training.learning_rate=1e-3,1e-4", "--out", "out", "--jobs", "1", "-q"]
    assert call(*grid).code == 0
    seals.remove_seal(tmp_path / "out")
    rows = store.read_table(tmp_path / "out" / "table.jsonl")
    store.write_table(tmp_path / "out" / "table.jsonl", rows[:1])
    told = call("check", "out")
    assert told.code == 4
    assert "table.jsonl: has 1 row, but the grid has 2 runs" in told.error


@pytest.mark.parametrize("folder", [".", "none"])
def test_what_is_no_folder_of_ours(call: Callable, folder: str) -> None:
    told = call("check", folder)
    assert told.code == 2
    assert "not the folder of a run" in told.error


def test_folders_of_ours_at_any_depth_are_checked_and_files_beside_them_counted(call: Callable, tmp_path: Path) -> None:
    for name in ("all/a", "all/b/c"):
        assert call("train", "mess3", *TINY, "--out", name, "-q").code == 0
    told = call("check", "all")
    assert told.code == 0
    first, second, last = told.out.splitlines()
    assert first.startswith("all/a: run: ")
    assert second.startswith("all/b/c: run: ")
    assert last.startswith("all: 2 folders of hmmscope inside; ")
    assert last.endswith(" files, 0 not covered")
    (tmp_path / "all" / "b" / "gpt2").mkdir()
    (tmp_path / "all" / "b" / "gpt2" / "config.json").write_text("{}")  # a model of somebody else's
    assert call("check", "all").out.rstrip().endswith(" files, 1 not covered: b/gpt2/config.json")
    path = tmp_path / "all" / "b" / "c" / "config.json"
    path.write_bytes(path.read_bytes() + b" ")
    told = call("check", "all")
    assert told.code == 4
    assert "all/b/c/config.json" in told.error
    path.write_bytes(path.read_bytes()[:-1])
    seals.remove_seal(tmp_path / "all" / "a")
    told = call("check", "all")
    assert told.code == 3
    assert "all/a: has no checksums (seal.json)" in told.error


def test_a_folder_that_a_seal_covers_says_what_to_check(call: Callable, tmp_path: Path) -> None:
    (tmp_path / "all" / "a" / "drawn").mkdir(parents=True)
    store.write_json(tmp_path / "all" / "a" / "experiment.json", {})
    seals.write_seal(tmp_path / "all" / "a", "experiment", {})
    assert (
        f"all/a/drawn: is inside {tmp_path}/all/a, whose checksums cover it; check {tmp_path}/all/a"
        in call("check", "all/a/drawn").error
    )
    assert call("check", "all/a/drawn").code == 2


def test_names_that_cannot_be_and_pages_without_a_folder_are_refused_before_anything(call: Callable) -> None:
    assert call("check", "no\0folder").code == 2
    told = call("report", str(RESULTS / "limits-table1"), "--figures", "drawn", "--out", "no/such/x.html")
    assert (told.code, told.error) == (2, "error[2] out: folder no/such does not exist\n")
    assert not Path("drawn").exists()
