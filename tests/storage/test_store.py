"""Journals, tables, JSON, tensors and folders as files: exact round trips, and one clear line for what is damaged."""

import errno
import hashlib
import json
import os
import signal
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from hmmscope.errors import DamagedError, InputError, RefusedError, ResourceError
from hmmscope.storage import disk, store
from hmmscope.storage.journal import Journal, read_journal
from hmmscope.storage.mapped import map_tensors
from rundir_faults import flipped


def journal_of(path: Path, number: int) -> bytes:
    journal = Journal(path)
    for step in range(number):
        journal.append({"step": step, "text": "tab\t, line\n, \u2028", "none": None})
    journal.sync()
    journal.close()
    journal.close()
    return path.read_bytes()


def test_journal_cut_at_every_length(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    data = journal_of(path, 4)
    whole = read_journal(path)
    assert [record["step"] for record in whole] == [0, 1, 2, 3]
    assert whole[0]["text"] == "tab\t, line\n, \u2028"
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        complete = data[:length].count(b"\n")
        assert read_journal(path) == whole[:complete]
        journal = Journal(path)
        assert journal.length == path.stat().st_size == len(b"\n".join(data.split(b"\n")[:complete])) + bool(complete)
        journal.append({"step": "next"})
        journal.close()
        assert read_journal(path) == [*whole[:complete], {"step": "next"}]


def test_a_journal_is_plain_json_lines(tmp_path: Path) -> None:
    data = journal_of(tmp_path / "journal", 3)
    rows = [json.loads(line) for line in data.decode().split("\n")[:-1]]
    assert rows == read_journal(tmp_path / "journal")


def test_the_digest_of_a_journal_follows_every_change(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    for step in range(4):
        journal.append({"step": step})
        assert journal.digest == hashlib.sha256((tmp_path / "journal").read_bytes()).hexdigest()
    half = journal.length // 2
    journal.truncate(half)
    again = Journal(tmp_path / "journal")
    assert journal.digest == again.digest == hashlib.sha256((tmp_path / "journal").read_bytes()[:half]).hexdigest()


def test_a_damaged_line_of_a_journal_is_named(tmp_path: Path) -> None:
    data = journal_of(tmp_path / "journal", 4)
    third = data.rindex(b"\n", 0, data.rindex(b"\n", 0, -1)) + 1
    for damage in (data[:third] + b"x" + data[third:], flipped(data, 8 * third)[:-1], data[:third] + b"[1]\n{}\n"):
        (tmp_path / "journal").write_bytes(damage)
        with pytest.raises(DamagedError, match="journal:3: damaged line"):
            read_journal(tmp_path / "journal")


def test_a_last_line_that_says_nothing_is_left_out(tmp_path: Path) -> None:
    data = journal_of(tmp_path / "journal", 2)
    (tmp_path / "journal").write_bytes(data + b'{"step": 2, "te\0\0\0\n')
    assert [record["step"] for record in read_journal(tmp_path / "journal")] == [0, 1]


def test_a_journal_with_check_sums_is_read(tmp_path: Path) -> None:
    line = b'{"step": 1}'
    (tmp_path / "journal").write_bytes(line + b"\t%08x\n" % zlib.crc32(line) + b'{"step": 2}\n')
    assert read_journal(tmp_path / "journal") == [{"step": 1}, {"step": 2}]
    (tmp_path / "journal").write_bytes(line + b"\t%08x\n" % zlib.crc32(line + b" ") + b'{"step": 2}\n')
    with pytest.raises(DamagedError, match="journal:1: damaged line"):
        read_journal(tmp_path / "journal")


def test_journal_truncate(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    data = journal_of(path, 3)
    journal = Journal(path)
    second = data.index(b"\n") + 1
    for length in (-1, len(data) + 1, second - 1, 1):
        with pytest.raises(DamagedError):
            journal.truncate(length)
    assert path.read_bytes() == data
    journal.truncate(second)
    journal.append({"step": 9})
    assert [record["step"] for record in read_journal(path)] == [0, 9]
    journal.truncate(0)
    assert path.read_bytes() == b""
    assert journal.length == 0


def test_journal_refuses_what_is_not_json(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    for value in (float("nan"), float("inf"), object(), np.float32("nan"), np.zeros(2)):
        with pytest.raises(InputError):
            journal.append({"x": value})
    journal.append({"x": np.float32(0.5), "y": torch.tensor(3)})
    assert read_journal(tmp_path / "journal") == [{"x": 0.5, "y": 3}]
    with pytest.raises(InputError, match="no such journal"):
        read_journal(tmp_path / "missing")


def test_table(tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    rows = [{"loss": 0.1, "seed": 1, "name": "é\u2028\n"}, {"loss": None, "seed": 2, "name": ""}]
    store.write_table(path, rows)
    assert store.read_table(path) == rows
    data = path.read_bytes()
    for value in (float("nan"), float("-inf"), [1.0, float("nan")], np.float64("nan")):
        with pytest.raises(InputError, match=r"table\.jsonl: row 1, 'loss'"):
            store.write_table(path, [rows[0], {"seed": 1, "loss": value}])
    assert path.read_bytes() == data
    for damaged, line in (
        (data[:-1], 2),
        (data[:5], 1),
        (data + b"\n", 3),
        (data + b"[1]\n", 3),
        (b"{}\n" + data[1:], 2),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match=rf"table\.jsonl:{line}:"):
            store.read_table(path)
    store.write_table(path, [])
    assert store.read_table(path) == []


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    store.write_json(path, {"b": "é", "a": [1, 0.1, None, True]})
    assert path.read_bytes() == '{\n "b": "é",\n "a": [\n  1,\n  0.1,\n  null,\n  true\n ]\n}\n'.encode()
    assert store.read_json(path) == {"b": "é", "a": [1, 0.1, None, True]}
    for value in ({"x": float("nan")}, {"x": {1, 2}}, "\ud800"):
        with pytest.raises(InputError, match=r"file\.json"):
            store.write_json(path, value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"a": 1,}',
        b"NaN",
        b"[Infinity]",
        b'{"a": 1, "a": 2}',
        b"\xff\xfe",
        b"\0" * 9,
        b"1 2",
        b"[" * 100_000,
    ],
)
def test_json_garbage(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file.json").write_bytes(data)
    with pytest.raises(DamagedError, match=r"file\.json: not JSON") as caught:
        store.read_json(tmp_path / "file.json")
    assert "\n" not in str(caught.value)


def test_json_names_the_position(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text('{\n "a": 1,\n "b": x\n}')
    with pytest.raises(DamagedError, match=r"file\.json.*line 3 column 7"):
        store.read_json(tmp_path / "file.json")


def test_reading_is_bounded_and_never_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 40)
    for name in ("pipe", "large", "missing", "."):
        for read in (store.read_json, partial(store.read_table, managed=False)):
            with pytest.raises(InputError):
                read(tmp_path / name)
    (tmp_path / "small").write_text("[1, 2]")
    with pytest.raises(InputError, match="6 bytes, more than the 5 allowed"):
        store.read_json(tmp_path / "small", limit=5)
    assert store.read_json(tmp_path / "small", limit=6) == [1, 2]


def test_tensors(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    shared = torch.arange(6.0).reshape(2, 3)
    tensors = {
        "b": shared.T,
        "a": shared[0],
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "grad": torch.ones(2, requires_grad=True),
    }
    metadata = {str(number): f"é{number}" for number in range(9)}
    store.write_tensors(path, tensors, metadata)
    loaded = store.read_tensors(path)
    assert loaded.keys() == tensors.keys()
    assert all(
        torch.equal(loaded[name], tensors[name]) and loaded[name].dtype == tensors[name].dtype for name in loaded
    )
    assert len({store.tensor_bytes(tensors, metadata) for _ in range(20)}) == 1
    store.write_tensors(path, {})
    assert store.read_tensors(path) == {}


def test_malformed_tensors(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    data = store.tensor_bytes({"w": torch.ones(3)}, {"a": "b"})
    lies = [(1 << 62).to_bytes(8, "little") + data[8:], data + b"x", b"", b"\0" * 8, data[8:]]
    lies += [data[:length] for length in range(len(data))]
    lies += [data.replace(b'"F32"', b'"F99"'), data.replace(b"[3]", b"[9]"), data.replace(b"0,12", b"4,16")]
    for lie in lies:
        path.write_bytes(lie)
        with pytest.raises(DamagedError, match=r"x\.safetensors: is not a complete safetensors file") as caught:
            store.read_tensors(path)
        assert "\n" not in str(caught.value)


def test_too_little_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write_tensors(tmp_path / "x.safetensors", {"w": torch.ones(3)})
    monkeypatch.setattr("safetensors.torch.load", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        store.read_tensors(tmp_path / "x.safetensors")


def test_mapped_tensors(tmp_path: Path) -> None:
    """Of any place and size; one that does not begin at a multiple of its width is copied."""
    path = tmp_path / "x.safetensors"
    header = {
        "__metadata__": {"a": "b"},
        "small": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "odd": {"dtype": "F32", "shape": [2, 1], "data_offsets": [3, 11]},
        "none": {"dtype": "I64", "shape": [0, 2], "data_offsets": [11, 11]},
    }

    def write(header: dict, body: bytes) -> None:
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + body)

    body = bytes([1, 2, 3]) + np.array([0.5, -2.0], "<f4").tobytes()
    write(header, body)
    tensors, texts = map_tensors(path)
    assert texts == {"a": "b"}
    assert {name: (tensor.tolist(), tensor.dtype) for name, tensor in tensors.items()} == {
        "small": ([1, 2, 3], torch.uint8),
        "odd": ([[0.5], [-2.0]], torch.float32),
        "none": ([], torch.int64),
    }
    assert tensors["none"].shape == (0, 2)
    for lie, rest, reason in (
        (header | {"__metadata__": {"a": 1}}, body, "metadata must be text"),
        (header, body + b"x", "the tensors do not fill the file"),
    ):
        write(lie, rest)
        with pytest.raises(DamagedError, match=reason):
            map_tensors(path)


def test_write_where_it_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(RefusedError, match="folder: exists"):
        store.write_text(tmp_path / "folder", "x")
    with pytest.raises(ResourceError, match=r"missing.file: cannot be written .*1 bytes needed"):
        store.write_text(tmp_path / "missing" / "file", "x")
    assert os.listdir(tmp_path) == ["folder"]


def test_new_folder(tmp_path: Path) -> None:
    with store.new_folder(tmp_path / "new") as folder:
        store.make_folder(folder / "deep" / "er")
        store.write_text(folder / "deep" / "er" / "file", "x")
        assert not (tmp_path / "new").exists()
    manifest = store.verify_folder(tmp_path / "new")
    assert manifest["files"] == {"deep/er/file": {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}}
    with pytest.raises(RefusedError, match="exists"), store.new_folder(tmp_path / "new"):
        pass
    with pytest.raises(InputError), store.new_folder(tmp_path / "other") as folder:
        store.write_table(folder / "file", [{"x": 1}, {"x": float("nan")}])
    with pytest.raises(DamagedError, match="link"), store.new_folder(tmp_path / "other") as folder:
        (folder / "link").symlink_to("/")
    assert os.listdir(tmp_path) == ["new"]
    with pytest.raises(DamagedError):
        store.verify_folder(tmp_path / "missing")


def test_make_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.make_folder(tmp_path / "a" / "b")
    store.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(RefusedError):
            store.make_folder(path)
    mkdir = disk.mkdir

    def slower(path: Path) -> None:
        mkdir(path)  # another process
        mkdir(path)

    monkeypatch.setattr(disk, "mkdir", slower)
    store.make_folder(tmp_path / "race")
    assert (tmp_path / "race").is_dir()


def test_the_format_of_a_folder(tmp_path: Path) -> None:
    store.check_format({"format": store.FORMATS["grid"]}, "grid", tmp_path)
    store.check_format({"base": 1}, "grid", tmp_path)  # of before 0.3
    for document, found in (({"format": "hmmscope-grid/2"}, "hmmscope-grid/2"), ([], "list")):
        with pytest.raises(DamagedError, match=f"'{found}', not hmmscope-grid/1; if newer, upgrade hmmscope"):
            store.check_format(document, "grid", tmp_path)


def test_a_folder_is_synced_where_that_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems cannot, and say so."""
    for code, fails in ((errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)):
        monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(code, "refused")))
        with pytest.raises(OSError, match="refused") if fails else nullcontext():
            disk.fsync_dir(tmp_path)


def special_files(folder: Path) -> Iterator[Path]:
    """A link to a file, a link to nothing, a pipe, a socket and a folder."""
    (folder / "kept").write_text("kept")
    (folder / "link").symlink_to(folder / "kept")
    (folder / "dangling").symlink_to(folder / "nothing")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as bound, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        bound.bind("socket")
    (folder / "folder").mkdir()
    yield from (folder / name for name in ("link", "dangling", "pipe", "socket", "folder"))


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    for path in special_files(tmp_path):
        before = os.lstat(path)
        with pytest.raises(RefusedError, match="regular file"):
            store.write_text(path, "page")
        assert (os.lstat(path).st_ino, os.lstat(path).st_mode) == (before.st_ino, before.st_mode)
    assert not (tmp_path / "nothing").exists()
    assert (tmp_path / "kept").read_text() == "kept"
    assert not list(tmp_path.glob(".tmp-*"))


def test_reading_is_bounded(tmp_path: Path) -> None:
    for path in special_files(tmp_path):
        if path.name != "link":
            with pytest.raises(InputError):
                disk.read_bytes(path, managed=False)
        with pytest.raises(DamagedError):
            disk.read_bytes(path, managed=True)
    with pytest.raises(InputError, match="4 bytes, more than the 3 allowed"):
        store.read_text(tmp_path / "kept", limit=3)


# ---------------------------------------------------------------------------------------------------------------------
# What killed writers leave


def killed_in(work: Callable[[], None]) -> None:
    """A child that is killed in the middle of `work`."""
    pid = os.fork()
    if pid == 0:
        disk.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment, misc]
        work()
    os.waitpid(pid, 0)


def make(path: Path) -> None:
    with store.new_folder(path) as folder:
        store.make_folder(folder / "inside")


@pytest.mark.parametrize("write", [make, lambda path: store.write_text(path, "x")])
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path, write: Callable) -> None:
    for name in ("mine", "mine-too"):
        killed_in(lambda name=name: write(tmp_path / name))  # type: ignore[misc]
    assert len(os.listdir(tmp_path)) == 2
    write(tmp_path / "mine")
    assert sorted(name[:13] for name in os.listdir(tmp_path)) == [".tmp-mine-too", "mine"]  # not what is another's


def test_a_temporary_that_is_taken_for_a_leftover_is_made_again(tmp_path: Path) -> None:
    """Between its making and its lock it is nobody's: it may be removed or replaced, and its folder may be."""
    path, descriptors = tmp_path / "file", len(os.listdir("/proc/self/fd"))

    def make(temporary: Path) -> int:
        made.append(temporary)
        if len(made) == 1:
            raise FileNotFoundError(errno.ENOENT, "no such file")
        fd = disk.create(temporary)
        if len(made) < 4:
            temporary.unlink()
        if len(made) == 3:
            temporary.write_text("another's")
        return fd

    made: list[Path] = []
    temporary, fd = disk.open_temporary(path, make)
    assert (len(made), temporary) == (4, made[-1])
    assert os.path.samestat(os.fstat(fd), os.stat(temporary))
    os.close(fd)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    with pytest.raises(FileNotFoundError):
        disk.open_temporary(tmp_path / "missing" / "file", disk.create)


def test_what_a_living_writer_fills_is_not_removed(tmp_path: Path) -> None:
    with store.new_folder(tmp_path / "mine") as folder:
        store.remove_leftovers(tmp_path)
        with store.new_folder(tmp_path / "mine"):
            assert folder.is_dir()
        disk.remove_tree(tmp_path / "mine")
    assert os.listdir(tmp_path) == ["mine"]
