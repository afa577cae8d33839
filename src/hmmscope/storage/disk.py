"""The calls that change the disk, and what every file of ours is written and opened with. The bottom of `store`.

Tests put themselves in place of the functions on top, to record every operation, reorder it as a power cut may, and
fail it.
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from hmmscope.errors import (
    DamagedError,
    FullDiskError,
    HmmscopeError,
    InputError,
    RefusedError,
    ResourceError,
    too_long,
)

write, truncate, fsync = os.write, os.ftruncate, os.fsync
mkdir, rename, unlink, rmdir = os.mkdir, os.rename, os.unlink, os.rmdir


def create(path: Path) -> int:
    """A descriptor of a new file; an existing one, or a link planted under the name, is an error."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)


def fsync_dir(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(fd)


_PREFIX = ".tmp-"
#: Names that are tried for a file of its own.
_TRIES = 100
LEFTOVER = re.compile(r"\.tmp-.+-[0-9a-f]{16}")
_FULL = {errno.ENOSPC, errno.EDQUOT}
_OCCUPIED = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR}


@contextmanager
def writing(path: Path, needed: int) -> Iterator[None]:
    """Turns what the system refuses into one line: the file, the reason, the bytes needed and free."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(too_long(path)) from error
        if error.errno in _OCCUPIED:
            raise RefusedError(f"{path}: exists, or a part of it is a file; choose another name") from error
        free: int | str = "unknown"
        with suppress(OSError):
            free = shutil.disk_usage(path.parent).free
        kind = FullDiskError if error.errno in _FULL else ResourceError
        raise kind(
            f"{path}: cannot be written ({error.strerror}; {needed} bytes needed, {free} free); "
            "nothing saved before is lost"
        ) from error


#: No file that is read as a whole is longer.
MOST_BYTES = 1 << 40


@contextmanager
def reading(path: Path, *, managed: bool, limit: int = MOST_BYTES) -> Iterator[BufferedReader]:
    """A regular file of at most `limit` bytes, opened for reading.

    If it is our `managed`, anything wrong is damage, and a link is not followed; else the caller's input is wrong.
    """
    wrong = DamagedError if managed else InputError
    check_name(path)

    def opener(name: str, flags: int) -> int:  # a pipe must not make us wait
        return open_own(path, flags) if managed else os.open(name, flags | os.O_NONBLOCK)

    try:
        with open(path, "rb", opener=opener) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise wrong(f"{path}: not a regular file")
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise InputError(f"{path}: {size} bytes, more than the {limit} allowed")
            yield file
    except OSError as error:
        name = str(path) if len(str(path)) <= 1000 else f"{str(path)[:100]}..."
        raise wrong(f"{name}: cannot be read ({error.strerror})") from error


def check_name(path: Path) -> None:
    """InputError for a name that no file can have: with a zero byte, or half a surrogate pair."""
    try:
        possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise InputError(f"{ascii(str(path))[:200]}: cannot be read (no file can have this name)")


def open_own(path: Path, flags: int) -> int:
    """A descriptor of a regular file inside a folder of ours; a symbolic or hard link is refused, never followed."""
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DamagedError(f"{path}: a symbolic link, which is not followed; replace it by the file") from error
        raise
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1:
        os.close(fd)
        raise DamagedError(f"{path}: a hard link or not a regular file; replace it by a copy of the file")
    return fd


def read_bytes(path: Path, *, managed: bool, limit: int = MOST_BYTES) -> bytes:
    """All of a regular file of at most `limit` bytes; errors as of `reading`."""
    with reading(path, managed=managed, limit=limit) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def refuse_special(path: Path) -> None:
    """RefusedError if something stands at `path` that is not a regular file: a link, a device, a pipe, a folder."""
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise RefusedError(f"{path}: exists and is not a regular file, so it is not replaced; choose another name")


def temporary_sibling(path: Path) -> Path:
    """A name beside `path` that nobody can predict and LEFTOVER matches."""
    return path.parent / f"{_PREFIX}{path.name[:100]}-{secrets.token_hex(8)}"


def open_temporary(path: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """A temporary sibling of `path` and its descriptor, whose lock says until it is closed that somebody is at work.

    Those of writers of `path` that were killed are removed first.
    """
    remove_leftovers(path.parent, of=path)
    for _ in range(_TRIES):
        temporary, fd = temporary_sibling(path), -1
        try:  # unless it is taken for a leftover in the instant before it is locked
            fd = make(temporary)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.lstat(temporary)):
                return temporary, fd
        except (BlockingIOError, FileNotFoundError):
            if not path.parent.is_dir():
                raise
        except OSError:
            if fd < 0:
                raise
            return temporary, fd  # a file system without locks: nobody can prove that its writer is dead
        if fd >= 0:
            os.close(fd)
    raise OSError(errno.EIO, "no file can be made in this folder", str(path.parent))  # such as /proc


def remove_leftovers(folder: Path, *, of: Path | None = None) -> None:
    """Remove the temporaries directly in `folder`, or those `of` one file or folder, whose writers have ended.

    The kernel frees a lock when its process has ended; what is locked, a link, or nobody's leftover stays.
    """
    begin = _PREFIX if of is None else f"{_PREFIX}{of.name[:100]}-"
    with suppress(OSError), os.scandir(folder) as entries:
        found = [Path(e.path) for e in entries if e.name.startswith(begin) and LEFTOVER.fullmatch(e.name)]
        for path in [one for one in found if of is None or len(one.name) == len(begin) + 16]:
            with suppress(OSError):
                _remove_unlocked(path)


def _remove_unlocked(path: Path) -> None:
    if path.is_symlink():
        return
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(path)
    finally:
        os.close(fd)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, durably and at once: a reader or a crash finds the previous file or this one, whole.

    Raises:
        RefusedError: `path` is there and not a regular file, or lies below a file.
        ResourceError: the disk is full, read-only, failing or gone; the previous file is intact.
    """
    path = Path(path)
    with writing(path, len(data)):
        refuse_special(path)
        temporary, fd = open_temporary(path, create)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[write(fd, rest) :]
            fsync(fd)
            rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                unlink(temporary)
            raise
        finally:
            os.close(fd)
        fsync_dir(path.parent)


def remove_tree(path: Path) -> None:
    """Remove a file, or a folder and all it holds; links are removed, not followed."""
    if path.is_symlink() or not path.is_dir():
        return unlink(path)
    for entry in list(os.scandir(path)):
        remove_tree(Path(entry.path))
    rmdir(path)


def take_lock(path: Path) -> int:
    """A descriptor that holds the kernel's lock on `path`; closing it frees the lock. Our process id is written in."""
    with writing(path, 0):
        fd = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            return fd
        except BlockingIOError:
            owner = os.pread(fd, 200, 0).strip().decode(errors="replace") or "unknown"
            os.close(fd)
            raise RefusedError(
                f"{path.parent}: in use by process {owner}; wait until it ends, or choose another folder"
            ) from None
        except BaseException:
            os.close(fd)
            raise


def give_lock(fd: int) -> None:
    """Free what `take_lock` took; the host is nobody's business once the work is done."""
    with suppress(OSError):
        os.ftruncate(fd, 0)
    os.close(fd)


@contextmanager
def holding(path: Path) -> Iterator[None]:
    """Hold the lock on `path`; RefusedError names who holds it."""
    fd = take_lock(path)
    try:
        yield
    finally:
        give_lock(fd)


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Wait for the lock on a file or folder, which changes nothing in it; without locks, or the path, there is no wait."""
    fd = -1
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)


@contextmanager
def staying(folder: Path, name: str) -> Iterator[None]:
    """Work in a folder that has the file `name`: if that is gone, it is why other errors arise, and no damage."""
    try:
        yield
    except (HmmscopeError, OSError) as error:
        if os.path.lexists(folder / name):
            raise
        raise ResourceError(f"{folder}: is gone; it must stay where it is until the work ends") from error
