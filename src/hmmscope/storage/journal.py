"""Append-only files of JSON lines, with a running SHA-256 digest."""

import errno
import hashlib
import os
import zlib
from contextlib import suppress
from pathlib import Path

from hmmscope.errors import DamagedError, InputError
from hmmscope.storage import disk, store


class Journal:
    """An append-only file of JSON lines; only the process that holds the run's lock writes to it.

    Opening the file removes a last line that a crash cut off. A checkpoint stores the `length` of the file in bytes; a
    resumed run truncates the file to this length.
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
        return self._running.hexdigest()

    def append(self, record: dict) -> None:
        """Append a record atomically; the record survives a power cut only after `sync`.

        Raises:
            InputError: `record` has NaN, infinity, or an object without JSON form.
            ResourceError: The disk is full; the journal is unchanged.
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
        with disk.writing(self.path, 0):
            if self._sync_failed:
                raise OSError(errno.EIO, "an earlier sync failed")
            try:
                disk.fsync(self._fd)
            except OSError:
                self._sync_failed = True
                raise

    def truncate(self, length: int) -> None:
        """Remove all records after the first `length` bytes.

        Raises:
            DamagedError: The journal is shorter than `length`, or no line ends at that byte.
        """
        if not 0 <= length <= self.length:
            raise DamagedError(f"{self.path}: has {self.length} bytes, but its checkpoint recorded {length}")
        if length == self.length:
            return
        if length and os.pread(self._fd, 1, length - 1) != b"\n":
            raise DamagedError(f"{self.path}: no line ends at byte {length}")
        self._cut(length)

    def close(self) -> None:
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
    """Read the records of a journal; a last line that a crash cut off is skipped.

    Raises:
        InputError: The file is missing or larger than `limit` bytes.
        DamagedError: A line other than a cut-off last line is not a record, or the file is a link.
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
    body, tab, checksum = line.partition(b"\t")  # JSON has no tab; before 0.2 a CRC32 stood behind one
    if tab and checksum != b"%08x" % zlib.crc32(body):
        return None
    with suppress(DamagedError):
        record = store.parse(body, "")
        return record if isinstance(record, dict) else None
    return None
