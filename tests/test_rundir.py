"""Runs on disk: what is committed survives kills, power cuts, failing disks and altered files, or is refused."""

import errno
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hmmscope import disk, rundir, store
from hmmscope.errors import DamagedError, HmmscopeError, InputError, NonFiniteError, RefusedError, ResourceError
from hmmscope.rundir import RunDir, read_journal
from rundir_faults import Recorder, crash_states, failing, flipped, materialise

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
    assert found is not None
    assert found[0] == step
    assert found[1].keys() == small_tensors(step).keys()
    for group, named in small_tensors(step).items():
        assert {name: value.tolist() for name, value in found[1][group].items()} == {
            name: value.tolist() for name, value in named.items()
        }
    assert found[2]["note"] == step


# ---------------------------------------------------------------------------------------------------------------------
# Runs


def test_run_is_what_was_written(run: RunDir) -> None:
    assert_holds(run, 2)
    run.mark_done({"loss": 0.5})
    run.unlock()
    again = RunDir.open(run.path)
    assert (again.config, again.done) == ({"name": "x"}, {"loss": 0.5})
    assert read_journal(run.path / "metrics.jsonl") == [{"step": 1}, {"step": 2}]
    assert json.loads((run.path / "seeds.json").read_text()) == {"model": 1}
    assert again.load_checkpoint(1)[2]["journal_length"] < again.load_checkpoint(2)[2]["journal_length"]  # type: ignore[index]


def test_new_run_has_no_checkpoint_and_is_not_done(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "a" / "b" / "run", {})
    assert run.load_checkpoint() is None
    assert run.checkpoint_steps() == []
    assert run.done is None


def test_environment_is_a_closed_list_without_host_user_or_home(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", "/home/secret-user")
    monkeypatch.setenv("API_KEY", "secret-key")
    monkeypatch.setattr("platform.node", lambda: "secret-host")
    RunDir.create(tmp_path / "run", {})
    text = (tmp_path / "run" / "environment.json").read_text()
    assert "secret" not in text
    assert str(tmp_path) not in text
    assert set(json.loads(text)) == {
        *("hmmscope", "python", "torch", "numpy", "numba", "safetensors"),
        *("system", "machine", "num_cpu", "source_sha256"),
    }


def test_existing_path_is_refused_and_untouched(run: RunDir, tmp_path: Path) -> None:
    before = contents(run.path)
    with pytest.raises(RefusedError, match="exists; choose another --out or add --resume"):
        RunDir.create(run.path, {"name": "other"})
    assert contents(run.path) == before
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(RefusedError):
            RunDir.create(tmp_path / name, {})
    with pytest.raises(RefusedError):
        RunDir.create(tmp_path / "file" / "run", {})


def test_run_that_appears_meanwhile_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    real = disk.rename

    def slower(old: Path, new: Path) -> None:
        if new.name == "run":
            monkeypatch.setattr(disk, "rename", real)
            RunDir.create(new, {"first": True}).unlock()
        real(old, new)

    monkeypatch.setattr(disk, "rename", slower)
    with pytest.raises(RefusedError, match="--resume"):
        RunDir.create(tmp_path / "run", {"first": False})
    assert RunDir.open(tmp_path / "run", lock=True).config == {"first": True}
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_read_only_place_is_bad_input(tmp_path: Path, monkeypatch: Any, code: int) -> None:
    monkeypatch.setattr(disk, "mkdir", failing(disk.mkdir, 0, code))
    with pytest.raises(InputError, match="choose another --out"):
        RunDir.create(tmp_path / "run", {})
    assert os.listdir(tmp_path) == []


def test_config_that_is_not_json_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    for config in ({"x": float("nan")}, {"x": object()}, {"x": "\ud800"}):
        with pytest.raises(InputError, match="config"):
            RunDir.create(tmp_path / "run", config)
    assert os.listdir(tmp_path) == []


def test_open_refuses_what_is_no_run(run: RunDir, tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path, run.path / "config.json"):
        with pytest.raises(InputError):
            RunDir.open(path)


def test_altered_first_files_are_noticed(run: RunDir) -> None:
    for name in ("config.json", "environment.json", "seeds.json", "manifest.json"):
        file = run.path / name
        data = file.read_bytes()
        for bit in random.Random(name).sample(range(8 * len(data)), min(400, 8 * len(data))):
            file.write_bytes(flipped(data, bit))
            with pytest.raises(DamagedError):
                RunDir.open(run.path)
        file.write_bytes(data)
        for damaged in (data[:-1], data + b"\n"):
            file.write_bytes(damaged)
            if name == "manifest.json":  # white space at its end changes nothing
                continue
            with pytest.raises(DamagedError, match=name):
                RunDir.open(run.path)
        file.write_bytes(data)
        file.rename(run.path / "away")
        with pytest.raises(InputError if name == "config.json" else DamagedError):
            RunDir.open(run.path)
        (run.path / "away").rename(file)
    RunDir.open(run.path)


def test_run_may_be_renamed_and_resumed(run: RunDir) -> None:
    run.unlock()
    elsewhere = run.path.rename(run.path.parent / "elsewhere")
    with RunDir.open(elsewhere, lock=True) as moved:
        assert_holds(moved, 2)
        moved.save_checkpoint(3, small_tensors(3), {"note": 3})
        assert_holds(moved, 3)


def test_deleted_run_is_a_resource_error(run: RunDir) -> None:
    run.metrics.append({"step": 3})
    shutil.rmtree(run.path)
    with pytest.raises(ResourceError, match="the run folder is gone; checkpoint 3 is lost"):
        run.save_checkpoint(3, small_tensors(3), {})
    with pytest.raises(ResourceError, match="cannot be written"):
        run.mark_done({})
    assert not run.path.exists()


def test_damaged_done_mark(run: RunDir) -> None:
    run.mark_done({})
    for text in ("", "[]", "{"):
        (run.path / "done.json").write_text(text)
        with pytest.raises(DamagedError, match=r"done\.json"):
            _ = run.done


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints


def test_newest_are_kept(run: RunDir) -> None:
    for step in (5, 9, 7):
        run.save_checkpoint(step, small_tensors(step), {"note": step})
    assert run.checkpoint_steps() == [5, 7, 9]  # 7 came last: it removes only those before it
    run.save_checkpoint(20, small_tensors(20), {"note": 20}, keep=1)
    assert run.checkpoint_steps() == [20]
    run.save_checkpoint(2_000_000_000, small_tensors(3), {"note": 3}, keep=5)
    assert run.checkpoint_steps() == [20, 2_000_000_000]
    assert not leftovers(run.path)


def test_old_checkpoint_stays_if_the_new_one_does_not_read_back(run: RunDir, monkeypatch: Any) -> None:
    real = disk.rename

    def spoil(old: Path, new: Path) -> None:
        real(old, new)
        if new.name == "step-000000003":
            (new / "model.safetensors").write_bytes(b"spoilt by the disk")

    monkeypatch.setattr(disk, "rename", spoil)
    with pytest.raises(DamagedError, match=r"model\.safetensors"):
        run.save_checkpoint(3, small_tensors(3), {}, keep=1)
    assert run.checkpoint_steps() == [1, 2, 3]
    with pytest.warns(UserWarning, match=r"step-000000003.model\.safetensors"):
        assert_holds(run, 2)


def test_saving_the_same_again_is_nothing_and_other_content_is_refused(run: RunDir) -> None:
    before = contents(run.path)
    run.save_checkpoint(2, small_tensors(2), {"note": 2})
    assert contents(run.path) == before
    for tensors, state in ((small_tensors(3), {"note": 2}), (small_tensors(2), {"note": 3})):
        with pytest.raises(RefusedError, match="other content"):
            run.save_checkpoint(2, tensors, state)
    run.metrics.append({"step": 3})
    with pytest.raises(RefusedError, match="other content"):
        run.save_checkpoint(2, small_tensors(2), {"note": 2})
    assert_holds(run, 2)


def test_damaged_checkpoint_is_set_aside_when_its_step_comes_again(run: RunDir) -> None:
    (step_folder(run, 2) / "state.json").write_bytes(b"{}")
    with pytest.warns(UserWarning, match="set aside as damaged-step-000000002"):
        run.save_checkpoint(2, small_tensors(2), {"note": 2})
    assert_holds(run, 2)
    aside = next((run.path / "checkpoints").glob("damaged-*"))
    assert (aside / "state.json").read_bytes() == b"{}"


def test_checkpoint_arguments(run: RunDir) -> None:
    for step, keep in ((-1, 2), (3, 0)):
        with pytest.raises(InputError, match="checkpoint"):
            run.save_checkpoint(step, small_tensors(3), {}, keep=keep)
    with pytest.raises(InputError, match="checkpoint group"):
        run.save_checkpoint(3, {"../model": {}}, {})
    with pytest.raises(InputError, match=r"no step 7 \(there is \[1, 2\]\)"):
        run.load_checkpoint(7)
    with pytest.raises(InputError, match=r"state\.json"):
        run.save_checkpoint(3, {}, {"loss": float("nan")})
    assert not leftovers(run.path)
    run.unlock()
    with pytest.raises(RefusedError, match="lock=True"):
        run.save_checkpoint(3, small_tensors(3), {})
    with pytest.raises(RefusedError, match="lock=True"):
        _ = run.metrics


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_tensor_that_is_not_finite(run: RunDir, value: float) -> None:
    tensors = {"model": {"fine": torch.zeros(2), "bad.weight": torch.tensor([0.0, value], dtype=torch.bfloat16)}}
    with pytest.raises(NonFiniteError, match=r"step 3: model: 'bad\.weight'"):
        run.save_checkpoint(3, tensors, {})
    assert run.checkpoint_steps() == [1, 2]
    with store.new_folder(step_folder(run, 3)) as folder:
        store.write_tensors(folder / "model.safetensors", tensors["model"])
        store.write_json(folder / "state.json", {"step": 3, "journal_length": 0, "state": {}})
    with pytest.raises(DamagedError, match=r"model\.safetensors: tensor 'bad\.weight' is not finite"):
        run.load_checkpoint(3)
    with pytest.warns(UserWarning, match=r"bad\.weight"):
        assert_holds(run, 2)


def test_checkpoint_ahead_of_its_journal_is_damaged(run: RunDir) -> None:
    run.metrics.truncate(len(run.path.joinpath("metrics.jsonl").read_bytes().split(b"\n")[0]) + 1)
    with pytest.raises(DamagedError, match=r"metrics\.jsonl: shorter"):
        run.load_checkpoint(2)
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: shorter"):
        assert_holds(run, 1)


def test_reader_starts_again_when_all_it_listed_has_been_replaced(run: RunDir, monkeypatch: Any) -> None:
    real = RunDir._read_checkpoint

    def slower(reader: RunDir, step: int) -> Any:
        if run.checkpoint_steps() == [1, 2]:
            run.save_checkpoint(3, small_tensors(3), {"note": 3}, keep=1)
        return real(reader, step)

    monkeypatch.setattr(RunDir, "_read_checkpoint", slower)
    with pytest.warns(UserWarning, match=r"step-00000000[12]: missing"):
        assert_holds(RunDir.open(run.path), 3)


@pytest.mark.parametrize("document", [{}, [], {"step": 3}, {"step": 2, "journal_length": 0, "state": {}}])
def test_state_with_other_fields_is_damaged(run: RunDir, document: Any) -> None:
    with store.new_folder(step_folder(run, 3)) as folder:
        store.write_json(folder / "state.json", document)
    with pytest.raises(DamagedError, match=r"state\.json"):
        run.load_checkpoint(3)


# ---------------------------------------------------------------------------------------------------------------------
# Altered files


def assert_damaged(run: RunDir, named: str) -> None:
    """Step 2 is refused by name; a resumed run falls back to step 1 and says so."""
    with pytest.raises(DamagedError, match=named):
        run.load_checkpoint(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = run.load_checkpoint()
    assert found is not None
    assert found[0] == 1
    assert len(caught) == 1
    assert "step-000000002" in str(caught[0].message)


def test_checkpoint_truncated_at_every_length(run: RunDir) -> None:
    for file in sorted(step_folder(run, 2).iterdir()):
        data = file.read_bytes()
        lengths = range(len(data) - (file.name == "manifest.json"))  # without its last newline it says the same
        for length in lengths:
            file.write_bytes(data[:length])
            assert_damaged(run, file.name)
        file.write_bytes(data)
    assert_holds(run, 2)


def test_flipped_bits_of_a_checkpoint(run: RunDir) -> None:
    for file in sorted(step_folder(run, 2).iterdir()):
        data = file.read_bytes()
        for bit in random.Random(file.name).sample(range(8 * len(data)), min(600, 8 * len(data))):
            file.write_bytes(flipped(data, bit))
            with pytest.raises(DamagedError):
                run.load_checkpoint(2)
        file.write_bytes(data)
    assert_holds(run, 2)


def test_appended_missing_and_extra_files(run: RunDir) -> None:
    folder = step_folder(run, 2)
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        file.write_bytes(data + b"PK\x05\x06")
        assert_damaged(run, file.name)
        file.unlink()
        assert_damaged(run, file.name)
        file.write_bytes(data)
    for name in ("extra", ".hidden", "deep/extra"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
        assert_damaged(run, name)
        (folder / name).unlink()
    assert_holds(run, 2)


def test_files_of_another_step(run: RunDir) -> None:
    run.save_checkpoint(3, small_tensors(3), {"note": 3})
    run.save_checkpoint(4, small_tensors(4), {"note": 4})
    for name in os.listdir(step_folder(run, 3)):
        swap(step_folder(run, 3) / name, step_folder(run, 4) / name)
        for step in (3, 4):
            with pytest.raises(DamagedError):
                run.load_checkpoint(step)
        with (
            pytest.warns(UserWarning, match="passed over"),
            pytest.raises(DamagedError, match="none of 2 checkpoints is whole"),
        ):
            run.load_checkpoint()
        swap(step_folder(run, 3) / name, step_folder(run, 4) / name)
    swap(step_folder(run, 3), step_folder(run, 4))
    for step in (3, 4):
        with pytest.raises(DamagedError, match=r"state\.json: holds step"):
            run.load_checkpoint(step)


def swap(left: Path, right: Path) -> None:
    left.rename(left.parent / "swap")
    right.rename(left)
    (left.parent / "swap").rename(right)


def test_every_field_of_the_manifest_is_needed(run: RunDir) -> None:
    file = step_folder(run, 2) / "manifest.json"
    text = file.read_text()
    cases = [[], {}, {"format": "x"}]
    for key in json.loads(text):
        cases.append({k: v for k, v in json.loads(text).items() if k != key})
    for name in json.loads(text)["files"]:
        for key in ("size", "sha256"):
            cases.append(json.loads(text))
            del cases[-1]["files"][name][key]
        cases.append(json.loads(text) | {"files": {name: None}})
    cases.append(json.loads(text) | {"version": 2})
    cases.append(json.loads(text) | {"more": 1})
    cases.append(json.loads(text) | {"files": []})
    for case in cases:
        file.write_text(json.dumps(case))
        assert_damaged(run, "manifest|safetensors|state")
    file.write_text(text)
    assert_holds(run, 2)


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
        for read in (store.read_tensors, store.read_metadata, store.read_json, store.read_table):
            with pytest.raises(DamagedError):
                read(tmp_path / f"{name}.safetensors")
        with suppress(DamagedError):  # without a line end it is a torn first line
            assert read_journal(tmp_path / f"{name}.safetensors") == []
        shutil.rmtree(run.path / "checkpoints")
        (run.path / "checkpoints").mkdir()
        with store.new_folder(step_folder(run, 5)) as folder:  # with a manifest that agrees
            store.write_bytes(folder / "model.safetensors", data)
            store.write_json(folder / "state.json", {"step": 5, "journal_length": 0, "state": {}})
        with pytest.raises(DamagedError, match=r"not a whole safetensors file"):
            run.load_checkpoint(5)
    assert not canary.exists()
    pickle.loads(pickle.dumps(Payload()))  # the payload does work
    assert canary.exists()


# ---------------------------------------------------------------------------------------------------------------------
# Failing disks


OPERATIONS = ("create", "write", "fsync", "fsync_dir", "rename", "mkdir", "unlink", "rmdir")


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
        assert "nothing saved before is lost" in failure
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


def test_power_cuts_lose_nothing(tmp_path: Path, memory_folder: Path, monkeypatch: Any) -> None:
    log = train_under_record(tmp_path, monkeypatch)
    distinct, wrong = examine(log, memory_folder, 6000)
    assert wrong == []
    assert distinct > 800


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
    command = [sys.executable, str(Path(__file__).with_name("rundir_crash.py")), mode, str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_200_kills_lose_nothing(tmp_path: Path) -> None:
    report = script("kills", tmp_path, 200, 0, "ours")
    assert report["violation"] is None
    assert report["killed"] == 200
    assert report["interrupted"] >= 20  # kills that struck in the middle of a save
    assert report["steps"] > 20


def test_kills_find_a_store_that_writes_in_place(tmp_path: Path) -> None:
    assert script("kills", tmp_path, 100, 1, "in place")["violation"] is not None


def test_of_eight_that_create_one_wins(tmp_path: Path) -> None:
    report = script("race", tmp_path, 10)
    assert report["winners"] == [1] * 10
    assert report["codes"] == [0, 3]
    assert not [name for name in report["names"] if name.startswith(".")]


def test_reader_beside_a_writer(tmp_path: Path) -> None:
    report = script("read", tmp_path, 40)
    assert report["ordered"]
    assert report["distinct"] > 5


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
        assert owner.stdout is not None
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
    monkeypatch.setattr("fcntl.flock", failing(lambda *args: None, 0, errno.ENOLCK))
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
