"""Journals: records as JSON Lines to which lines are only added, with the digest of all that was written."""

import errno
import hashlib
import os
import zlib
from contextlib import suppress
from pathlib import Path

from hmmscope.errors import DamagedError, InputError
from hmmscope.storage import disk, store


class Journal:
    """A file of records to which lines are only added: JSON Lines, as pandas and jq read them.

    One writer at a time (in a run: who holds the lock). A line that a crash cut is removed on opening.
    `length` is the size in bytes and `digest` the SHA-256 of them all; a checkpoint stores both, which shows whether the
    lines before it are as they were written, and a resumed run calls `truncate` with the length.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._sync_failed = False
        with disk.writing(self.path, 0):
            new = not os.path.lexists(self.path)
            self._fd = disk.open_own(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            if new:
                disk.fsync_dir(self.path.parent)
        data = self._read()
        *lines, tail = data.split(b"\n")
        self.length = len(data) - len(tail)
        if lines and not tail and _record(lines[-1]) is None:
            self.length -= len(lines[-1]) + 1
        self._running = hashlib.sha256(data[: self.length])
        if self.length < len(data):
            self._cut(self.length)

    @property
    def digest(self) -> str:
        """SHA-256 of the first `length` bytes."""
        return self._running.hexdigest()

    def append(self, record: dict) -> None:
        """Add a record, whole or not at all. It is safe from a crash of the machine only after `sync`.

        Raises:
            InputError: NaN, infinity or an object that JSON does not know.
            ResourceError: the disk is full; the journal ends where it ended before.
        """
        line = store.dump(record, f"{self.path.name}: record") + b"\n"
        with disk.writing(self.path, len(line)):
            try:
                if disk.write(self._fd, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self.length += len(line)
                self._running.update(line)
            except BaseException:
                with suppress(OSError):
                    disk.truncate(self._fd, self.length)
                raise

    def sync(self) -> None:
        """Make all records safe from a crash of the machine. A failed sync is final: the system may drop the data."""
        with disk.writing(self.path, 0):
            if self._sync_failed:
                raise OSError(errno.EIO, "an earlier sync failed")
            try:
                disk.fsync(self._fd)
            except OSError:
                self._sync_failed = True
                raise

    def truncate(self, length: int) -> None:
        """Forget all records after the first `length` bytes.

        Raises:
            DamagedError: the journal is shorter, or no line ends there.
        """
        if not 0 <= length <= self.length:
            raise DamagedError(f"{self.path}: {self.length} bytes, but {length} were recorded")
        if length == self.length:
            return
        if length and os.pread(self._fd, 1, length - 1) != b"\n":
            raise DamagedError(f"{self.path}: no line ends at byte {length}")
        self._cut(length)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _cut(self, length: int) -> None:
        with disk.writing(self.path, 0):
            disk.truncate(self._fd, length)
        self.length = length
        self._running = hashlib.sha256(self._read())

    def _read(self) -> bytes:
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            return file.read()


def read_journal(path: Path, *, limit: int = 1 << 30) -> list[dict]:
    """The records of a journal. A last line that a crash cut is left out without a word.

    Raises:
        InputError: missing, or above `limit` bytes.
        DamagedError: a line other than the last is no record, named by number; or the file is a link.
    """
    if not os.path.lexists(path):
        raise InputError(f"{path}: no such journal")
    *lines, tail = disk.read_bytes(path, managed=True, limit=limit).split(b"\n")
    records = []
    for number, line in enumerate(lines, 1):
        record = _record(line)
        if record is not None:
            records.append(record)
        elif tail or number < len(lines):
            raise DamagedError(f"{path}:{number}: damaged line")
    return records


def _record(line: bytes) -> dict | None:
    """The record of one line, or None if it is torn or altered."""
    body, tab, checksum = line.partition(b"\t")  # JSON has no tab; before 0.2 a CRC32 stood behind one
    if tab and checksum != b"%08x" % zlib.crc32(body):
        return None
    with suppress(DamagedError):
        record = store.parse(body, "")
        return record if isinstance(record, dict) else None
    return None
