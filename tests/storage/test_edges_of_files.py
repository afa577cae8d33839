"""What of files of others is read and what is refused, at the edge between the two; and seals at theirs."""

import json
import lzma
import math
import os
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hmmscope.errors import DamagedError, InputError, RefusedError, ResourceError
from hmmscope.storage import disk, journal, mapped, packed, seals, store
from hmmscope.storage.rundir import RunDir

TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
TYPES += (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def written(path: Path, header: dict[str, Any], body: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def test_tensors_of_every_type_are_mapped_as_they_were_saved(tmp_path: Path) -> None:
    given = {str(kind): torch.tensor([[0, 1, 1], [1, 0, 1]]).to(kind) for kind in TYPES}
    store.write_tensors(tmp_path / "x.safetensors", given)
    found, texts = mapped.map_tensors(tmp_path / "x.safetensors")
    assert texts == {}
    assert {name: one.dtype for name, one in found.items()} == {name: one.dtype for name, one in given.items()}
    assert all(torch.equal(found[name], given[name]) for name in given)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"shape": [2]}, None),
        ({"shape": [1] * 63 + [2]}, None),
        ({"shape": [1] * 64 + [2]}, "more than 64 axes"),
        ({"shape": [0, 2**62], "data_offsets": [0, 0]}, "do not fill"),
        ({"shape": [0, 2**63], "data_offsets": [0, 0]}, "a shape exceeds any memory"),
        ({"shape": [3]}, "its size differs from its shape"),
        ({"shape": [-2]}, "its size differs from its shape"),
        ({"shape": [2.0]}, "its size differs from its shape"),
        ({"shape": [2], "data_offsets": [-8, 8]}, "its size differs from its shape"),
        ({"shape": [0], "data_offsets": [8, 8]}, "do not fill"),
        ({"shape": [3], "data_offsets": [0, 24]}, "extends beyond the file"),
        ({"shape": [2], "dtype": "F8_E4M3"}, "type F8_E4M3 is not supported"),
    ],
)
def test_a_tensor_has_the_place_that_its_shape_asks_for(
    tmp_path: Path, entry: dict[str, Any], said: str | None
) -> None:
    header = {"x": {"dtype": "F64", "data_offsets": [0, 16]} | entry}
    path = written(tmp_path / "x.safetensors", header, np.array([1.0, 2.0]).tobytes())
    with pytest.raises(DamagedError, match=said) if said else nullcontext():
        assert mapped.map_tensors(path)[0]["x"].flatten().tolist() == [1, 2]


@pytest.mark.parametrize("data", [b"", b"\x02\0\0\0\0\0\0", b"\0" * 8, b"\0" * 9, b"\x03\0\0\0\0\0\0\0{}"])
def test_a_header_has_a_length_and_is_there(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(DamagedError, match="the header is longer than the file"):
        mapped.map_tensors(tmp_path / "x.safetensors")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (0, 2)])
def test_an_array_stays_in_its_file_in_either_order(tmp_path: Path, order: Any, shape: tuple[int, ...]) -> None:
    given = np.asarray(np.arange(math.prod(shape), dtype=np.int16).reshape(shape), order=order)
    np.save(tmp_path / "x.npy", given)
    found = mapped.read_npy(tmp_path / "x.npy")
    assert found.dtype == given.dtype
    assert np.array_equal(found, given)
    np.savez(tmp_path / "x.npz", given=given)
    assert np.array_equal(mapped.read_npz(tmp_path / "x.npz")["given"], given)


def test_an_array_of_the_second_format_is_read_and_what_is_no_plain_array_is_not(tmp_path: Path) -> None:
    with (tmp_path / "second.npy").open("wb") as file:
        np.lib.format.write_array(file, np.arange(3), version=(2, 0))
    assert mapped.read_npy(tmp_path / "second.npy").tolist() == [0, 1, 2]
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    np.save(tmp_path / "x.npy", np.arange(4))
    whole = (tmp_path / "x.npy").read_bytes()
    for name, data in (("cut", whole[:-1]), ("longer", whole + b"x"), ("text", b"1 2 3")):
        (tmp_path / f"{name}.npy").write_bytes(data)
    said = {"cut": "the size of", "longer": "the size of", "text": "magic", "objects": "Python objects"}
    for name, reason in said.items():
        with pytest.raises(DamagedError, match=f"^{name}.npy: is not a plain array.*{reason}"):
            mapped.read_npy(tmp_path / f"{name}.npy")
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w") as archive:
            archive.write(tmp_path / f"{name}.npy", "x.npy")
        with pytest.raises(DamagedError, match=f"^{name}.npz: is not a readable NPZ file.*{reason}"):
            mapped.read_npz(tmp_path / f"{name}.npz")


@pytest.mark.parametrize(("size", "refused"), [(1 << 28, False), ((1 << 28) + 1, True)])
def test_an_archive_that_says_that_it_inflates_beyond_bounds_is_not_read(
    tmp_path: Path, size: int, refused: bool
) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.arange(3))
    data = path.read_bytes()
    at = data.index(b"PK\1\2") + 24  # the size that the directory says, behind the one in the archive
    path.write_bytes(data[:at] + size.to_bytes(4, "little") + data[at + 4 :])
    said = f"bytes decompress to {size} bytes, more than the 268435456 allowed"
    with pytest.raises(InputError, match=said) if refused else nullcontext():
        assert mapped.read_npz(path)["x"].tolist() == [0, 1, 2]


def test_a_large_archive_may_inflate_to_64_times_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.zeros(2000))
    monkeypatch.setattr(mapped, "_INFLATED", 100)
    inflated, size = 16128, path.stat().st_size
    assert inflated > 64 * size
    with pytest.raises(InputError, match=f"more than the {64 * size} allowed"):
        mapped.read_npz(path)
    with zipfile.ZipFile(path, "a") as archive:  # something that does not inflate, and lets it in
        archive.comment = b"." * (inflated // 64 - size + 1)
    assert mapped.read_npz(path)["x"].tolist() == [0.0] * 2000


def test_names_that_no_file_can_have_are_refused_and_long_ones_too(tmp_path: Path) -> None:
    for name in ("a\0b", "a\ud800b"):
        with pytest.raises(InputError, match="no file can have this name"):
            disk.read_bytes(tmp_path / name, managed=False)
    with pytest.raises(InputError, match="too long"):
        store.write_text(tmp_path / ("x" * 300), "x")
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_is_full_is_told_from_one_that_fails(tmp_path: Path) -> None:
    for number, kind in ((28, "FullDiskError"), (122, "FullDiskError"), (5, "ResourceError"), (30, "ResourceError")):
        with (
            pytest.raises(ResourceError, match=r"7 bytes needed, [0-9]+ free") as failed,
            disk.writing(tmp_path / "x", 7),
        ):
            raise OSError(number, "it failed")
        assert type(failed.value).__name__ == kind
    for number in (17, 39, 20, 21):
        with (
            pytest.raises(RefusedError, match="exists, or one of its parent folders is a file"),
            disk.writing(tmp_path / "x", 7),
        ):
            raise OSError(number, "it failed")
    with pytest.raises(ResourceError, match="unknown free"), disk.writing(tmp_path / "no" / "x", 7):
        raise OSError(5, "it failed")


def test_an_export_of_a_model_is_no_run(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run", {}) as run:
        run.mark_done({})
    assert run.path.is_dir()
    store.write_json(tmp_path / "run" / "hmmscope.json", {})
    with pytest.raises(InputError, match="an exported model, not a run folder"):
        RunDir.open(tmp_path / "run")


def test_both_journals_are_durable_before_a_run_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = disk.fsync
    monkeypatch.setattr(
        disk, "fsync", lambda fd: synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name) or fsync(fd)
    )
    with RunDir.create(tmp_path / "run", {}) as run:
        run.metrics.append({"step": 1})
        run.timing.append({"step": 1})
        synced.clear()
        run.mark_done({})
    assert {"metrics.jsonl", "timing.jsonl"} <= set(synced[:2])


def test_what_a_journal_is_cut_to_is_one_of_its_lines(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    lines = journal.Journal(tmp_path / "x")
    lines.append({"a": 1})
    first = lines.length
    lines.append({"a": 2})
    for length, said in ((first - 1, f"no line ends at byte {first - 1}"), (-1, "its checkpoint recorded -1")):
        with pytest.raises(DamagedError, match=said):
            lines.truncate(length)
    with pytest.raises(DamagedError, match=f"its checkpoint recorded {2 * first + 1}"):
        lines.truncate(2 * first + 1)
    lines.truncate(2 * first)
    lines.truncate(first)
    lines.close()
    lines.close()
    assert journal.read_journal(tmp_path / "x") == [{"a": 1}]


def test_a_folder_that_grows_is_sealed_from_its_first_file_on(tmp_path: Path) -> None:
    """And what a reader adds to it is named in the same seal, in the order of names."""
    for name in ("b", "a", "made"):
        store.write_text(tmp_path / name, name)
    seals.keep(tmp_path, ["b"])
    seals.keep(tmp_path, ["a"])
    seal = seals.open_sealed(tmp_path)
    assert (seal.kind, [*seal.files], seal.bound) == ("kept", ["a", "b"], {})
    assert str(seals.seal_report(tmp_path)) == "3 files, 1 not covered: made"
    seals.cover(tmp_path / "made")
    assert str(seals.seal_report(tmp_path)) == "3 files, 0 not covered"
    assert not (tmp_path / seals.ADDED).exists()
    seals.cover(tmp_path / "nothing")  # it was not made after all


def test_files_that_nothing_covers_are_named_up_to_eight(tmp_path: Path) -> None:
    for count, end in ((8, "7"), (9, "7, ...")):
        names = [f"{number}" for number in range(count)]
        said = str(seals.SealReport((), tuple(names)))
        assert said == f"{count} files, {count} not covered: {', '.join(names[:7])}, {end}"
    assert str(seals.SealReport(("a",), ())) == "1 file, 0 not covered"


def test_runs_that_a_seal_is_bound_to_are_counted_and_missed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with RunDir.create(tmp_path / "runs" / name, {}) as run:
            run.mark_done({})
    store.write_json(tmp_path / "experiment.json", {})
    seals.write_seal(
        tmp_path, "experiment", {"runs": seals.digests([tmp_path / "runs" / one for one in ("one", "two")])}
    )
    found = seals.seal_report(tmp_path)
    assert (found.runs, found.kind, found.beyond) == (2, "experiment", ())
    (tmp_path / "runs" / "two").rename(tmp_path.parent / "two")
    for put in (lambda: None, lambda: (tmp_path / "runs" / "two").symlink_to(tmp_path.parent / "two")):
        put()
        with pytest.raises(
            DamagedError, match=r"two: is missing or a link, although .*seal\.json contains its checksum"
        ):
            seals.seal_report(tmp_path)
    disk.remove_tree(tmp_path / "runs")  # a copy of the small files
    assert seals.seal_report(tmp_path).runs == 0


def test_a_folder_that_cannot_be_listed_is_damage(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="gone: cannot be listed"):
        store._contents(tmp_path / "gone")


def test_a_packed_table_that_is_no_xz_is_damage(tmp_path: Path) -> None:
    whole = lzma.compress(b"[]")
    for data, said in (
        (b"no xz at all", "not a complete xz"),
        (whole[:-1], "too early"),
        (whole + b"x", "has data after the end of its xz stream"),
    ):
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(DamagedError, match=said):
            packed._unpacked(tmp_path / "x")
    (tmp_path / "x").write_bytes(whole)
    assert packed._unpacked(tmp_path / "x") == b"[]"


def test_a_temporary_name_matches_what_is_removed_and_nothing_else_does(tmp_path: Path) -> None:
    for _ in range(3):
        made = disk.temporary_sibling(tmp_path / ("n" * 200))
        assert disk.LEFTOVER.fullmatch(made.name)
        assert len(made.name) < 130
        os.close(disk.create(made))
    (tmp_path / ".tmp-mine").touch()
    disk.remove_leftovers(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == [".tmp-mine"]


def test_a_journal_closes_the_first_of_all_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    lines = journal.Journal(tmp_path / "x")
    lines.close()
    lines._fd = 0  # of a process that began without standard input
    monkeypatch.setattr(journal.os, "close", closed.append)
    lines.close()
    lines.close()
    assert closed == [0]
