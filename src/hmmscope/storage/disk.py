"""System calls that change the disk, used by `store`; tests replace them to simulate failures."""

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
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)


def fsync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # unsupported by some network file systems
            raise
    finally:
        os.close(fd)


_PREFIX = ".tmp-"
#: Most attempts to find a free name.
_TRIES = 100
LEFTOVER = re.compile(r"\.tmp-.+-[0-9a-f]{16}")
_FULL = {errno.ENOSPC, errno.EDQUOT}
_OCCUPIED = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR}


@contextmanager
def writing(path: Path, needed: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(too_long(path)) from error
        if error.errno in _OCCUPIED:
            raise RefusedError(
                f"{path}: exists, or one of its parent folders is a file; choose another name"
            ) from error
        free: int | str = "unknown"
        with suppress(OSError):
            free = shutil.disk_usage(path.parent).free
        kind = FullDiskError if error.errno in _FULL else ResourceError
        raise kind(
            f"{path}: cannot be written ({error.strerror}; {needed} bytes needed, {free} free); "
            "files saved earlier are intact"
        ) from error


#: Maximum size of a file that is read at once.
MOST_BYTES = 1 << 40


@contextmanager
def reading(path: Path, *, managed: bool, limit: int = MOST_BYTES) -> Iterator[BufferedReader]:
    """Open a regular file of at most `limit` bytes for reading.

    Problems raise DamagedError for a `managed` file (written by hmmscope, never a link), InputError for other files.
    """
    wrong = DamagedError if managed else InputError
    check_name(path)

    def opener(name: str, flags: int) -> int:  # do not block on a pipe
        return open_own(path, flags) if managed else os.open(name, flags | os.O_NONBLOCK)

    try:
        with open(path, "rb", opener=opener) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise wrong(f"{path}: is not a regular file")
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise InputError(f"{path}: has {size} bytes, more than the {limit} allowed")
            yield file
    except OSError as error:
        name = str(path) if len(str(path)) <= 1000 else f"{str(path)[:100]}..."
        raise wrong(f"{name}: cannot be read ({error.strerror})") from error


def check_name(path: Path) -> None:
    try:
        possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise InputError(f"{ascii(str(path))[:200]}: cannot be read (no file can have this name)")


def open_own(path: Path, flags: int) -> int:
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DamagedError(f"{path}: is a symbolic link, which is not followed; replace it by the file") from error
        raise
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1:
        os.close(fd)
        raise DamagedError(f"{path}: is a hard link or not a regular file; replace it by a copy of the file")
    return fd


def read_bytes(path: Path, *, managed: bool, limit: int = MOST_BYTES) -> bytes:
    with reading(path, managed=managed, limit=limit) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def refuse_special(path: Path) -> None:
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise RefusedError(f"{path}: exists and is not a regular file, so it is not replaced; choose another name")


def temporary_sibling(path: Path) -> Path:
    return path.parent / f"{_PREFIX}{path.name[:100]}-{secrets.token_hex(8)}"


def open_temporary(path: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """Create a temporary sibling of `path`, locked until its descriptor is closed.

    Temporary files of killed writers are removed first.
    """
    remove_leftovers(path.parent, of=path)
    for _ in range(_TRIES):
        temporary, fd = temporary_sibling(path), -1
        try:  # retry if another process removes it before it is locked
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
            return temporary, fd  # without locks no other process can remove it
        if fd >= 0:
            os.close(fd)
    raise OSError(errno.EIO, "no file can be created in this folder", str(path.parent))  # such as /proc


def remove_leftovers(folder: Path, *, of: Path | None = None) -> None:
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
    """Replace `path` by `data` durably and atomically.

    Raises:
        RefusedError: `path` exists and is not a regular file, or one of its parents is a file.
        ResourceError: The disk is full, read-only or failing; the previous file is intact.
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


def refuse_links(folder: Path) -> None:
    """Raise DamagedError if the folder contains a symbolic link."""
    for parent, folders, files in os.walk(folder):
        for name in sorted([*folders, *files]):
            if os.path.islink(path := os.path.join(parent, name)):
                raise DamagedError(f"{path}: is a link; replace it by the file or folder that it names")


def remove_tree(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        return unlink(path)
    for entry in list(os.scandir(path)):
        remove_tree(Path(entry.path))
    rmdir(path)


def take_lock(path: Path) -> int:
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
                f"{path.parent}: is in use by process {owner}; wait until that process ends, or choose another folder"
            ) from None
        except BaseException:
            os.close(fd)
            raise


def give_lock(fd: int) -> None:
    with suppress(OSError):
        os.ftruncate(fd, 0)
    os.close(fd)


@contextmanager
def holding(path: Path) -> Iterator[None]:
    """Hold the lock on `path` inside the block; raise RefusedError, which names the holder, if it is taken."""
    fd = take_lock(path)
    try:
        yield
    finally:
        give_lock(fd)


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Lock a file or folder inside the block; go on without a lock if it is missing or cannot be locked."""
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
    """Replace an error in the block by ResourceError if file `name` is gone (its folder was moved or removed)."""
    try:
        yield
    except (HmmscopeError, OSError) as error:
        if os.path.lexists(folder / name):
            raise
        raise ResourceError(
            f"{folder}: was moved or removed while hmmscope was writing; leave it in place until hmmscope ends"
        ) from error
