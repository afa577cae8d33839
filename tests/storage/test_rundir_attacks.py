"""Runs on disk under kills, power cuts, failing operations, links and locks."""

import errno
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hmmscope.errors import DamagedError, InputError, RefusedError, ResourceError
from hmmscope.schema import spec_to_data
from hmmscope.storage import disk, rundir, store
from hmmscope.storage.rundir import RunDir, read_journal
from hmmscope.training.spec import TrainingSpec
from rundir_cases import (  # noqa: F401 - fixtures
    BROKEN,
    OPERATIONS,
    assert_damaged,
    assert_holds,
    contents,
    examine,
    interrupt,
    leftovers,
    memory_folder,
    run,
    script,
    small_tensors,
    step_folder,
    train_under_record,
)
from rundir_faults import failing


def test_foreign_files_are_left_alone(run: RunDir) -> None:
    foreign = ("notes.txt", ".tmp-mine", "step-5", "step-0000000007", "step-000000004.bak", "latest", ".tmp-x-0123")
    checkpoints = run.path / "checkpoints"
    for name in foreign:
        (checkpoints / name).mkdir()
        (checkpoints / name / "file").write_text(name)
        (run.path / name).write_text(name)
    ours = (checkpoints / ".tmp-step-000000009-0123456789abcdef", run.path / ".tmp-done.json-0123456789abcdef")
    ours[0].mkdir()
    (ours[0] / "model.safetensors").write_text("half")
    ours[1].write_text("half")
    (run.path / "other").mkdir()
    (run.path / "other" / "file").write_text("x")
    link = checkpoints / ".tmp-link-0123456789abcdef"
    link.symlink_to(run.path / "other")
    assert run.checkpoint_steps() == [1, 2]
    RunDir.open(run.path)
    assert all(path.exists() for path in ours)  # without the lock nothing is removed
    run.unlock()
    run.lock()
    assert not any(path.exists() for path in ours)
    run.save_checkpoint(3, small_tensors(3), {"note": 3})
    assert_holds(run, 3)
    assert all((checkpoints / name / "file").read_text() == name == (run.path / name).read_text() for name in foreign)
    assert link.is_symlink()
    assert (run.path / "other" / "file").read_text() == "x"


def test_links_in_a_checkpoint_are_refused(run: RunDir, tmp_path: Path) -> None:
    folder = step_folder(run, 2)
    for file in sorted(folder.iterdir()):
        away = tmp_path / file.name
        file.rename(away)
        file.symlink_to(away)
        assert_damaged(run, file.name)
        file.unlink()
        os.link(away, file)
        assert_damaged(run, file.name)
        file.unlink()
        os.mkfifo(file)
        assert_damaged(run, file.name)
        file.unlink()
        away.rename(file)
    folder.rename(tmp_path / "away")
    folder.symlink_to(tmp_path / "away")
    assert_damaged(run, "step-000000002")
    run.save_checkpoint(3, small_tensors(3), {"note": 3}, keep=1)  # removes the link, not what it points to
    assert len(os.listdir(tmp_path / "away")) == 4


def test_links_in_a_run_are_refused(run: RunDir, tmp_path: Path) -> None:
    run.mark_done({})
    run.unlock()
    for name in ("config.json", "manifest.json", "lock", "metrics.jsonl", "done.json", "checkpoints"):
        file = run.path / name
        away = tmp_path / "away"
        file.rename(away)
        before = contents(away) if away.is_dir() else away.read_bytes()
        file.symlink_to(away)

        def use() -> None:
            with RunDir.open(run.path, lock=True) as again:
                assert again.done == {}
                again.metrics.append({})
                again.load_checkpoint()

        with pytest.raises(DamagedError, match=name):
            use()
        assert before == (contents(away) if away.is_dir() else away.read_bytes())
        file.unlink()
        away.rename(file)


def test_pickle_under_our_suffix_runs_nothing(run: RunDir, tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Payload:
        def __reduce__(self) -> tuple:
            return (open, (str(canary), "w"))

    torch.save({"w": Payload()}, tmp_path / "zip.safetensors")
    (tmp_path / "raw.safetensors").write_bytes(pickle.dumps(Payload()))
    np.save(tmp_path / "array.npy", np.array([Payload()], dtype=object), allow_pickle=True)
    (tmp_path / "array.npy").rename(tmp_path / "array.safetensors")
    for name in ("zip", "raw", "array"):
        data = (tmp_path / f"{name}.safetensors").read_bytes()
        for read in (store.read_tensors, store.read_json, store.read_table):
            with pytest.raises(DamagedError):
                read(tmp_path / f"{name}.safetensors")
        with suppress(DamagedError):  # without a line end it is a torn first line
            assert read_journal(tmp_path / f"{name}.safetensors") == []
        shutil.rmtree(run.path / "checkpoints")
        (run.path / "checkpoints").mkdir()
        with store.new_folder(step_folder(run, 5)) as folder:  # with a manifest that agrees
            store.write_bytes(folder / "model.safetensors", data)
            store.write_json(folder / "state.json", {"step": 5, "journal_length": 0, "state": {}})
        with pytest.raises(DamagedError, match=r"not a complete safetensors file"):
            run.load_checkpoint(5)
    assert not canary.exists()
    pickle.loads(pickle.dumps(Payload()))  # the payload does work
    assert canary.exists()


@pytest.mark.drawn(8)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_of_a_save_fails_in_turn(tmp_path: Path, monkeypatch: Any, operation: str, code: int) -> None:
    for number in range(100):
        run = RunDir.create(tmp_path / f"run{number}", {})
        for step in (1, 2):
            run.save_checkpoint(step, small_tensors(step), {"note": step})
        run.metrics.append({"step": 3})
        real = getattr(disk, operation)
        fault = failing(real, number, code)
        monkeypatch.setattr(disk, operation, fault)
        failure = None
        try:
            run.save_checkpoint(3, small_tensors(3), {"note": 3})
        except ResourceError as error:
            failure = str(error)
        monkeypatch.setattr(disk, operation, real)
        if fault.left >= 0:  # the save is over before call `number`
            assert failure is None
            assert number > 0
            return
        assert failure is not None
        assert "needed" in failure
        assert "free" in failure
        assert "files saved earlier are intact" in failure
        assert "\n" not in failure
        assert fault.left == -1 or operation != "fsync"  # a failed fsync is not followed by another
        if operation not in ("unlink", "rmdir"):  # if removing fails there is nothing to remove with
            assert not leftovers(run.path) or run.checkpoint_steps() == [2, 3]
        assert run.checkpoint_steps() in ([1, 2], [2, 3], [1, 2, 3])
        assert_holds(run, run.checkpoint_steps()[-1])
        run.unlock()
        with RunDir.open(run.path, lock=True) as again:
            assert not leftovers(run.path)
            again.save_checkpoint(3, small_tensors(3), {"note": 3})
            assert_holds(again, 3)
    raise AssertionError("a save of more than 100 operations")


def test_failed_sync_of_the_journal_is_final(run: RunDir, monkeypatch: Any) -> None:
    fault = failing(disk.fsync, 0, errno.EIO)
    monkeypatch.setattr(disk, "fsync", fault)
    for _ in range(3):
        with pytest.raises(ResourceError, match=r"metrics\.jsonl"):
            run.save_checkpoint(3, small_tensors(3), {})
    assert fault.left == -1  # one call, never another
    assert_holds(run, 2)


def test_short_writes_are_completed_in_files_and_undone_in_journals(run: RunDir, monkeypatch: Any) -> None:
    real = disk.write
    monkeypatch.setattr(disk, "write", lambda fd, data: real(fd, bytes(data)[:7]))
    run.save_checkpoint(3, small_tensors(3), {"note": 3})
    assert_holds(run, 3)
    before = (run.path / "metrics.jsonl").read_bytes()
    with pytest.raises(ResourceError):
        run.metrics.append({"step": 3})
    assert (run.path / "metrics.jsonl").read_bytes() == before
    monkeypatch.setattr(disk, "write", real)
    run.metrics.append({"step": 3})
    assert read_journal(run.path / "metrics.jsonl")[-1] == {"step": 3}


def test_interrupt_leaves_nothing_behind(run: RunDir, monkeypatch: Any) -> None:
    before = contents(run.path)
    for operation in ("write", "fsync", "fsync_dir", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(disk, operation, interrupt)
            with pytest.raises(KeyboardInterrupt):
                run.save_checkpoint(3, small_tensors(3), {})
            with pytest.raises(KeyboardInterrupt):
                store.write_text(run.path / "checkpoints" / "note", "x")
        (run.path / "checkpoints" / "note").unlink(missing_ok=True)
        assert contents(run.path) == before


@pytest.mark.parametrize("states, different", [(1500, 400), pytest.param(6000, 800, marks=pytest.mark.slow)])
def test_power_cuts_lose_nothing(
    states: int, different: int, tmp_path: Path, memory_folder: Path, monkeypatch: Any
) -> None:
    log = train_under_record(tmp_path, monkeypatch)
    distinct, wrong = examine(log, memory_folder, states)
    assert wrong == []
    assert distinct > different


@pytest.mark.drawn(2)
@pytest.mark.parametrize("variant", BROKEN)
def test_power_cuts_find_a_broken_store(tmp_path: Path, memory_folder: Path, monkeypatch: Any, variant: str) -> None:
    for name, function in BROKEN[variant]:
        monkeypatch.setattr(disk, name, function)
    if not BROKEN[variant]:
        monkeypatch.setattr(store, "remove_folder", disk.remove_tree)
    log = train_under_record(tmp_path, monkeypatch)
    operations = {"fsync": "sync", "fsync_dir": "sync_folder"}
    log = [entry for entry in log if entry[0] not in {operations.get(name) for name, _ in BROKEN[variant]}]
    _, wrong = examine(log, memory_folder, 600)
    assert len(wrong) > 5


@pytest.mark.parametrize("kills", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_kills_lose_nothing(kills: int, tmp_path: Path) -> None:
    report = script("kills", tmp_path, kills, 0, "ours")
    assert report["violation"] is None
    assert report["killed"] == kills
    assert report["interrupted"] >= kills / 10  # kills that struck in the middle of a save
    assert report["steps"] > 20


def test_kills_find_a_store_that_writes_in_place(tmp_path: Path) -> None:
    assert script("kills", tmp_path, 100, 1, "in place")["violation"] is not None


@pytest.mark.long
def test_of_eight_that_create_one_wins(tmp_path: Path) -> None:
    report = script("race", tmp_path, 10)
    assert report["winners"] == [1] * 10
    assert report["codes"] == [0, 3]
    assert not [name for name in report["names"] if name.startswith(".")]


def test_reader_beside_a_writer(tmp_path: Path) -> None:
    assert script("read", tmp_path, 40, 6)["ordered"]


def test_file_size_limit(tmp_path: Path) -> None:
    report = script("limit", tmp_path)
    assert report["refused"] > 40
    assert all("File too large" in message or "No space left" in message for message in report["messages"])
    assert report["journal_failures"] > 100
    assert report["whole"]


def test_lock_names_its_owner_and_ends_with_it(run: RunDir) -> None:
    with pytest.raises(RefusedError, match=f"process {os.getpid()}"):
        RunDir.open(run.path, lock=True)
    run.unlock()
    command = [sys.executable, str(Path(__file__).with_name("rundir_crash.py")), "hold", str(run.path.parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout.readline() == f"{owner.pid}\n"
        for attempt in (run.lock, lambda: RunDir.open(run.path, lock=True)):
            with pytest.raises(RefusedError, match=f"process {owner.pid}"):
                attempt()
        RunDir.open(run.path)  # reading needs no lock
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    run.lock()
    run.lock()


def test_lock_ends_with_its_object(tmp_path: Path) -> None:
    RunDir.create(tmp_path / "run", {})
    RunDir.open(tmp_path / "run", lock=True)


def test_file_system_without_locks(tmp_path: Path, monkeypatch: Any) -> None:
    def refused(*args: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refused)
    with pytest.raises(ResourceError, match="lock"):
        RunDir.create(tmp_path / "run", {})
    assert os.listdir(tmp_path) == []


# ---------------------------------------------------------------------------------------------------------------------
# Names and configurations


@pytest.mark.parametrize("name", ["a", "run-1", "A_b.c-9", "_x", "0", "a" * 100, "a..b", "console", "model.aux"])
def test_name_is_accepted(name: str) -> None:
    assert rundir.validate_name(name, "run.name") == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", ".hidden", "-dash", "a/b", "a\\b", "a\0b", "a\n", "\n", "a b", "a" * 101, "a" * 300, "end."),
        *("é", "e\u0301", "\u202ea", "\ud800", "😀", "C:", "a:b", "con", "NUL", "Com1.txt", "~", "a*", "$(x)", None, 3),
    ],
)
def test_name_is_refused(name: Any) -> None:
    with pytest.raises(InputError, match=r"^run\.name: ") as caught:
        rundir.validate_name(name, "run.name")
    assert str(caught.value).isprintable()


def test_config_difference() -> None:
    old = {"training": {"learning_rate": 0.001, "steps": 5, "gone": [1]}, "model": {"width": 8}, "same": None}
    new = {"training": {"learning_rate": 0.002, "steps": 5, "new": "a\nb"}, "model": 3, "same": None}
    assert rundir.config_difference(old, new) == [
        "training.learning_rate: 0.001 -> 0.002",
        "training.gone: [1] -> absent",
        'training.new: absent -> "a\\nb"',
        'model: {"width": 8} -> 3',
    ]
    assert rundir.config_difference(old, json.loads(json.dumps(old))) == []
    assert rundir.config_difference({"a": 1, "b": None}, {"a": True}) == ["a: 1 -> true", "b: null -> absent"]
    assert rundir.config_difference({"a": (1, 2)}, {"a": [1, 2]}) == []


def test_config_difference_shows_names_of_fields() -> None:
    old = TrainingSpec(num_log_checkpoints=5)
    plain = [
        {"training": spec_to_data(one)} for one in (old, replace(old, num_log_checkpoints=0, accumulation_steps=2))
    ]
    assert rundir.config_difference(*plain) == [
        "training.accumulation_steps: 1 -> 2",
        "training.num_log_checkpoints: 5 -> 0",
    ]
