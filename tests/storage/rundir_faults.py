"""Faults for the store: calls that fail, flipped bits, and a model of a power cut.

`Recorder` notes every operation of `hmmscope.storage.disk`. `crash_states` then cuts the power after each prefix of the log:

    data    each sector written since the file's last fsync is kept, lost, or turned to garbage, independently
    names   each folder keeps a random prefix of its changes since its last fsync, independently of other folders
"""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hmmscope.storage import disk

File = tuple[bytes, ...]  # content, wrapped to tell it from a folder
Tree = dict[str, Any]  # name -> Tree or File
SECTOR = 16  # bytes that are kept, lost or spoilt together; small, as our files are


def flipped(data: bytes, bit: int) -> bytes:
    """`data` with one bit turned."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def failing(real: Callable, number: int, code: int) -> Any:
    """`real`, but its call `number` (from 0) fails with `code`; `.left` is negative once that has happened."""

    def fail(*args: Any) -> Any:
        fail.left -= 1  # type: ignore[attr-defined]
        if fail.left == -1:  # type: ignore[attr-defined]
            raise OSError(code, os.strerror(code))
        return real(*args)

    fail.left = number  # type: ignore[attr-defined]
    return fail


class Recorder:
    """Log of (operation, subject, ...); subjects are numbers that, unlike inode numbers, are never used again."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple] = []
        self._ids = {root.stat().st_ino: 0}
        self._sizes: dict[int, int] = {}
        of_files = ["create", "open_own", "write", "truncate", "fsync", "fsync_dir"]
        of_names = ["mkdir", "rename", "unlink", "rmdir"]
        real = {name: getattr(disk, name) for name in of_files + of_names}

        def parent(path: Path) -> int:
            return self._ids[os.stat(path.parent).st_ino]

        def subject(fd: int) -> int:
            return self._ids[os.fstat(fd).st_ino]

        def create(path: Path) -> int:
            return new_file(real["create"](path), path)

        def open_own(path: Path, flags: int) -> int:
            fd = real["open_own"](path, flags)
            return fd if os.fstat(fd).st_ino in self._ids else new_file(fd, path)

        def new_file(fd: int, path: Path) -> int:
            self._ids[os.fstat(fd).st_ino] = new = len(self.log) + 1
            self._sizes[new] = 0
            self.log.append(("file", parent(path), path.name, new))
            return fd

        def mkdir(path: Path) -> None:
            real["mkdir"](path)
            self._ids[os.stat(path).st_ino] = new = len(self.log) + 1
            self.log.append(("folder", parent(path), path.name, new))

        def write(fd: int, data: bytes) -> int:
            size = real["write"](fd, data)
            for start in range(0, size, SECTOR):
                sector = bytes(data[start : min(size, start + SECTOR)])
                self.log.append(("data", subject(fd), self._sizes[subject(fd)], sector))
                self._sizes[subject(fd)] += len(sector)
            return size

        def truncate(fd: int, length: int) -> None:
            real["truncate"](fd, length)
            self._sizes[subject(fd)] = length
            self.log.append(("cut", subject(fd), length))

        def fsync(fd: int) -> None:
            real["fsync"](fd)
            self.log.append(("sync", subject(fd)))

        def fsync_dir(path: Path) -> None:
            real["fsync_dir"](path)
            self.log.append(("sync_folder", self._ids[os.stat(path).st_ino]))

        def rename(old: Path, new: Path) -> None:
            assert old.parent == new.parent
            if new.is_file() and old != new:
                del self._ids[os.stat(new).st_ino]
            real["rename"](old, new)
            if old != new:
                self.log.append(("rename", parent(new), old.name, new.name))

        def unlink(path: Path) -> None:
            number = os.lstat(path).st_ino
            real["unlink"](path)
            del self._ids[number]  # the number may come again
            self.log.append(("drop", parent(path), path.name))

        def rmdir(path: Path) -> None:
            number = os.lstat(path).st_ino
            real["rmdir"](path)
            del self._ids[number]  # the number may come again
            self.log.append(("drop", parent(path), path.name))

        for name in real:
            monkeypatch.setattr(disk, name, locals()[name])

    def acknowledge(self, what: Any) -> None:
        """Note what the store has promised by now."""
        self.log.append(("ack", what))


def crash_states(log: list[tuple], rng: random.Random, number: int) -> Iterator[tuple[Any, Tree]]:
    """`number` states that a power cut may leave: (last acknowledgement or None, the tree of names and contents)."""
    for index in range(number):
        yield _crash(log[: 1 + index % len(log)], rng)


def _crash(log: list[tuple], rng: random.Random) -> tuple[Any, Tree]:
    acknowledged = None
    kinds: dict[int, str] = {0: "folder"}
    data: dict[int, tuple[bytes, list]] = {}  # file: what is safe, what is pending
    names: dict[int, tuple[dict[str, int], list]] = {0: ({}, [])}
    for operation, *rest in log:
        if operation == "ack":
            acknowledged = rest[0]
        elif operation in ("file", "folder"):
            kinds[rest[2]] = operation
            names[rest[0]][1].append((operation, *rest[1:]))
            if operation == "file":
                data[rest[2]] = (b"", [])
            else:
                names[rest[2]] = ({}, [])
        elif operation in ("rename", "drop"):
            names[rest[0]][1].append((operation, *rest[1:]))
        elif operation in ("data", "cut"):
            data[rest[0]][1].append((operation, *rest[1:]))
        elif operation == "sync":
            safe, pending = data[rest[0]]
            data[rest[0]] = (_content(safe, pending, None), [])
        elif operation == "sync_folder":
            entries, pending = names[rest[0]]
            names[rest[0]] = (_entries(entries, pending), [])

    def tree(folder: int) -> Tree:
        entries, pending = names[folder]
        kept = rng.choice((0, len(pending), rng.randint(0, len(pending))))
        return {
            name: tree(node) if kinds[node] == "folder" else (_content(*data[node], rng),)
            for name, node in _entries(entries, pending[:kept]).items()
        }

    return acknowledged, tree(0)


def _content(safe: bytes, pending: list, rng: random.Random | None) -> bytes:
    """What a file holds after its pending operations; with `rng`, after a power cut in their midst."""
    content = bytearray(safe)
    for operation, *rest in pending:
        fate = rng.choice(("kept", "lost", "garbage")) if rng else "kept"
        if fate == "lost":
            continue
        if operation == "cut":
            del content[rest[0] :]
            continue
        offset, written = rest
        if rng and fate == "garbage":
            written = rng.randbytes(len(written))
        content += bytes(max(0, offset + len(written) - len(content)))
        content[offset : offset + len(written)] = written
    return bytes(content)


def _entries(entries: dict[str, int], pending: list) -> dict[str, int]:
    entries = dict(entries)
    for operation, *rest in pending:
        if operation in ("file", "folder"):
            entries[rest[0]] = rest[1]
        elif operation == "rename":
            entries[rest[1]] = entries.pop(rest[0])
        else:
            entries.pop(rest[0], None)
    return entries


def materialise(tree: Tree, folder: Path) -> None:
    """Write a tree under `folder`, which is made."""
    os.mkdir(folder)
    for name, node in tree.items():
        if isinstance(node, dict):
            materialise(node, folder / name)
        else:
            with open(folder / name, "wb") as file:
                file.write(node[0])
