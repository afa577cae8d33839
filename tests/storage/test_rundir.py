"""Runs on disk: what is committed survives kills, power cuts, failing disks and altered files, or is refused."""

import errno
import json
import os
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from hmmscope.errors import DamagedError, InputError, NonFiniteError, RefusedError, ResourceError
from hmmscope.storage import disk, seals, store
from hmmscope.storage.rundir import RunDir, read_journal
from rundir_cases import (
    assert_damaged,
    assert_holds,
    contents,
    leftovers,
    run,  # noqa: F401 - fixtures
    small_tensors,
    step_folder,
    swap,
)
from rundir_faults import failing, flipped

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
    with pytest.raises(RefusedError, match="exists; choose another --out, or add --resume"):
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
def test_a_read_only_place_is_a_matter_of_the_disk(tmp_path: Path, monkeypatch: Any, code: int) -> None:
    monkeypatch.setattr(disk, "mkdir", failing(disk.mkdir, 0, code))
    with pytest.raises(ResourceError, match="choose another --out"):
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
    for config, files in (([1], ["config.json"]), ({"name": "x"}, [])):
        with store.new_folder(tmp_path / "other", manifest=False) as folder:
            store.write_json(folder / "config.json", config)
            entries = store.file_entries(folder, files)
            store.write_json(
                folder / store.MANIFEST, {"format": store.FORMAT, "version": store.VERSION, "files": entries}
            )
        with pytest.raises(DamagedError, match=r"config\.json: is not the configuration of a run"):
            RunDir.open(tmp_path / "other")
        shutil.rmtree(tmp_path / "other")


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
    with pytest.raises(ResourceError, match="the run folder is missing, with checkpoint 3"):
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
    (run.path / seals.SEAL).unlink()
    (run.path / "done.json").write_text("[]")
    with pytest.raises(DamagedError, match=r"done\.json: not a summary"):
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
    run.save_checkpoint(2_000_000_001, small_tensors(4), {"note": 4}, keep=1, milestones=[20, 77])
    assert run.checkpoint_steps() == [20, 2_000_000_001]
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
    with pytest.raises(InputError, match=r"has no step 7 \(available: \[1, 2\]\)"):
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
    with pytest.raises(NonFiniteError, match=r"step 3: model: tensor 'bad\.weight'"):
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
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is damaged
        assert_holds(RunDir.open(run.path), 3)


def test_reader_starts_again_when_the_first_checkpoint_comes(tmp_path: Path, monkeypatch: Any) -> None:
    run, real = RunDir.create(tmp_path / "run", {}), RunDir.checkpoint_steps

    def slower(reader: RunDir) -> list[int]:
        steps = real(reader)
        if reader is not run and not steps:
            run.save_checkpoint(1, small_tensors(1), {"note": 1})
        return steps

    monkeypatch.setattr(RunDir, "checkpoint_steps", slower)
    assert_holds(RunDir.open(run.path), 1)


@pytest.mark.parametrize("document", [{}, [], {"step": 3}, {"step": 2, "journal_length": 0, "state": {}}])
def test_state_with_other_fields_is_damaged(run: RunDir, document: Any) -> None:
    with store.new_folder(step_folder(run, 3)) as folder:
        store.write_json(folder / "state.json", document)
    with pytest.raises(DamagedError, match=r"state\.json"):
        run.load_checkpoint(3)


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
            pytest.warns(UserWarning, match="skipped"),
            pytest.raises(DamagedError, match="none of 2 checkpoints is complete"),
        ):
            run.load_checkpoint()
        swap(step_folder(run, 3) / name, step_folder(run, 4) / name)
    swap(step_folder(run, 3), step_folder(run, 4))
    for step in (3, 4):
        with pytest.raises(DamagedError, match=r"state\.json: contains step"):
            run.load_checkpoint(step)


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


def test_lines_before_a_checkpoint_are_as_they_were_written(run: RunDir) -> None:
    path = run.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b"1", b"7", 1))
    with pytest.raises(DamagedError, match=r"metrics\.jsonl: altered"):
        run.load_checkpoint(2)


def test_a_checkpoint_is_loaded_from_the_bytes_that_were_checked(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = disk.open_own

    def counted(path: Path, flags: int) -> int:
        opened.append(path.name)
        return real(path, flags)

    monkeypatch.setattr(disk, "open_own", counted)
    assert run.load_checkpoint(2) is not None
    assert opened.count("model.safetensors") == opened.count("state.json") == opened.count("manifest.json") == 1
