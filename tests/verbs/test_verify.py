"""`hmmscope verify`: seals, what follows from tables and from weights, and the first difference."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_cases import call, trained  # noqa: F401 - fixtures
from hmmscope.storage import packed, seals, store
from hmmscope.storage.rundir import RunDir

RESULTS = Path(__file__).parents[2] / "results" / "small"


def forge(path: Path, key: str, value: float) -> None:
    """Another number, under a seal that agrees with it."""
    data = store.read_json(path)
    (data if isinstance(data, dict) else data[0])[key] = value
    store.write_json(path, data)
    seal = seals.read_seal(path.parent)
    assert seal is not None
    seals.write_seal(path.parent, seal.kind, seal.bound)


def test_findings_follow_from_the_tables(call: Callable, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(RESULTS / "limits-table1", kept)
    told = call("verify", str(kept))
    assert (told.code, told.error) == (0, "")
    assert "files are as they were sealed" in told.out
    assert "findings follows from" in told.out
    forge(kept / "findings.json", "value", 0.125)
    told = call("verify", str(kept))
    assert told.code == 4
    assert "findings.json" in told.error
    assert "0.125" in told.error
    seals.remove_seal(kept)
    shutil.copyfile(RESULTS / "limits-table1" / "findings.json", kept / "findings.json")
    told = call("verify", str(kept))
    assert told.code == 3
    assert "has no seal" in told.error


def test_an_experiment_that_goes_on_fits_its_index(call: Callable, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(RESULTS / "limits-fig6", kept)
    seals.remove_seal(kept)
    (kept / "findings.json").unlink()
    seals.write_seal(kept, "experiment", {})
    told = call("verify", str(kept))
    assert (told.code, told.error) == (0, "")
    assert "not finished; its tables hold" in told.out
    index = store.read_table(kept / packed.INDEX)
    index[0]["rows"]["runs"] += 1
    store.write_table(kept / packed.INDEX, index)
    seals.write_seal(kept, "experiment", {})
    told = call("verify", str(kept))
    assert told.code == 4
    assert "does not hold the rows that parts.jsonl says" in told.error


def test_a_score_follows_from_the_weights(call: Callable, trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "copy"
    shutil.copytree(trained, run)
    told = call("verify", str(run))
    assert (told.code, told.error) == (0, "")
    assert "again" in told.out
    summary = RunDir.open(run).done
    assert summary is not None
    forge(run / "done.json", "loss", summary["loss"] - 0.1)
    told = call("verify", str(run))
    assert told.code == 4
    assert "done.json: loss is" in told.error


@pytest.mark.parametrize("folder", [".", "none"])
def test_what_is_no_folder_of_ours(call: Callable, folder: str) -> None:
    told = call("verify", folder)
    assert told.code == 2
    assert "not the folder of a run" in told.error
