"""What the tests of rundir share."""

import json
import os
import random
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import forking
from hmmscope.errors import DamagedError, HmmscopeError
from hmmscope.storage import disk, store
from hmmscope.storage.rundir import RunDir, read_journal
from rundir_faults import Recorder, crash_states, materialise

Checkpoint = dict[str, dict[str, torch.Tensor]]


def small_tensors(step: int) -> Checkpoint:
    return {"model": {"weight": torch.full((2, 3), float(step))}, "optimizer": {"moment": torch.tensor([-step])}}


def step_folder(run: RunDir, step: int) -> Path:
    return run.path / "checkpoints" / f"step-{step:09d}"


def leftovers(folder: Path) -> list[Path]:
    return sorted(folder.rglob(".tmp-*"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    """A run with checkpoints 1 and 2 and a journal of 2 records, its lock held."""
    with RunDir.create(tmp_path / "run", {"name": "x"}, seeds={"model": 1}) as run:
        for step in (1, 2):
            run.metrics.append({"step": step})
            run.save_checkpoint(step, small_tensors(step), {"note": step})
        yield run


def assert_holds(run: RunDir, step: int) -> None:
    found = run.load_checkpoint()
    assert found[0] == step
    assert found[1].keys() == small_tensors(step).keys()
    for group, named in small_tensors(step).items():
        assert {name: value.tolist() for name, value in found[1][group].items()} == {
            name: value.tolist() for name, value in named.items()
        }
    assert found[2]["note"] == step


# ---------------------------------------------------------------------------------------------------------------------
# Altered files


def assert_damaged(run: RunDir, named: str) -> None:
    """Step 2 is refused by name; a resumed run falls back to step 1 and says so."""
    with pytest.raises(DamagedError, match=named):
        run.load_checkpoint(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = run.load_checkpoint()
    assert found[0] == 1
    assert len(caught) == 1
    assert "step-000000002" in str(caught[0].message)


def swap(left: Path, right: Path) -> None:
    left.rename(left.parent / "swap")
    right.rename(left)
    (left.parent / "swap").rename(right)


# ---------------------------------------------------------------------------------------------------------------------
# Failing disks


OPERATIONS = ("create", "write", "fsync", "fsync_dir", "rename", "mkdir", "unlink", "rmdir")


def interrupt(*args: Any) -> Any:
    raise KeyboardInterrupt


# ---------------------------------------------------------------------------------------------------------------------
# Power cuts


def train_under_record(root: Path, monkeypatch: Any) -> list[tuple]:
    """The log of a short run; an acknowledgement is the step that is safe (0: created, 5: done)."""
    recorder = Recorder(root, monkeypatch)
    run = RunDir.create(root / "run", {"name": "x"})
    recorder.acknowledge(0)
    for step in range(1, 5):
        run.metrics.append({"step": step, "part": 0})
        run.metrics.append({"step": step, "part": 1})
        run.save_checkpoint(step, small_tensors(step), {"note": step})
        recorder.acknowledge(step)
    with store.new_folder(root / "run" / "export") as folder:  # another library may fill it, and sync nothing
        store.make_folder(folder / "deep")
        for path in (folder / "foreign", folder / "deep" / "foreign"):
            fd = disk.create(path)
            disk.write(fd, b"x" * 50)
            os.close(fd)
    run.metrics.append({"step": 5, "part": 0})
    run.mark_done({"steps": 5})
    recorder.acknowledge(5)
    run.unlock()
    monkeypatch.undo()
    return recorder.log


def power_violation(root: Path, acknowledged: int | None) -> str | None:
    """What is wrong with the state that a power cut has left, or None. A checkpoint that is passed over is wrong."""
    if acknowledged is None and not (root / "run").exists():
        return None
    records = [{"step": step, "part": part} for step in range(1, 5) for part in (0, 1)] + [{"step": 5, "part": 0}]
    try:
        with warnings.catch_warnings(), RunDir.open(root / "run", lock=True) as run:
            warnings.simplefilter("error")
            assert not leftovers(run.path)
            for step in run.checkpoint_steps():
                store.verify_folder(step_folder(run, step))
            found = run.load_checkpoint()
            step, _, state = found or (0, {}, {"journal_length": 0})
            assert step >= min(acknowledged or 0, 4), f"step {step} after {acknowledged} was acknowledged"
            if found:
                assert_holds(run, step)
            if acknowledged == 5:
                assert run.done is not None
            if run.done is not None:
                assert run.done == {"steps": 5}
                assert read_journal(run.path / "metrics.jsonl") == records
            if run.done is not None or (run.path / "export").exists():
                assert store.verify_folder(run.path / "export")["files"].keys() == {"foreign", "deep/foreign"}
            run.metrics.truncate(state["journal_length"])
            assert read_journal(run.path / "metrics.jsonl") == records[: 2 * step]
    except (HmmscopeError, AssertionError, UserWarning) as error:
        return repr(error)
    return None


def examine(log: list[tuple], folder: Path, number: int) -> tuple[int, list[str]]:
    """How many of `number` sampled crash states differ, and the violations among them."""
    seen, wrong = set(), []
    for acknowledged, tree in crash_states(log, random.Random(5), number):
        key = hash((acknowledged, repr(tree)))
        if key not in seen:
            seen.add(key)
            materialise(tree, folder / "state")
            wrong += filter(None, [power_violation(folder / "state", acknowledged)])
            shutil.rmtree(folder / "state")
    return len(seen), wrong


def no_call(*args: Any) -> None:
    pass


BROKEN = {
    "files not synced": [("fsync", no_call)],
    "folders not synced": [("fsync_dir", no_call)],
    "in place": [("temporary_sibling", lambda path: path)],
    "old checkpoint removed in place": [],
}


@pytest.fixture
def memory_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory where there is one: thousands of states are written and read there."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path_factory.mktemp("states")
        return
    folder = Path("/dev/shm") / f"hmmscope-{os.urandom(8).hex()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


# ---------------------------------------------------------------------------------------------------------------------
# Other processes


def script(mode: str, folder: Path, *arguments: object) -> dict:
    """The report of rundir_crash.py."""
    command = [str(Path(__file__).with_name("rundir_crash.py")), mode, str(folder)]
    done = forking.run([*command, *map(str, arguments)])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
