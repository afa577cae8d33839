"""What can go wrong, one class for each exit code of the command line."""

import errno
import re

_RESOURCES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EPIPE}

#: Errors of a path that was there when the work began.
_OUT_OF_REACH = {errno.ENOENT: "is gone", errno.ENOTDIR: "is gone", errno.ESTALE: "is gone"}
_OUT_OF_REACH |= {errno.EACCES: "cannot be opened any more", errno.EROFS: "cannot be written any more"}

_PAGES = {"jinja2", "markupsafe", "matplotlib"}


class HmmscopeError(Exception):
    """Base of all errors that a user can act on. The message is one line: where, what is wrong, what to do.

    Attributes:
        exit_code: of the command line.
        speaks_for_all: of several processes that end together, this is the one that says why.
    """

    exit_code = 70
    speaks_for_all = False


class InputError(HmmscopeError, ValueError):
    """A matrix, observation, configuration value or name that cannot be accepted (exit code 2)."""

    exit_code = 2


class RefusedError(HmmscopeError):
    """The request is well formed but would overwrite, or disagrees with, what exists (exit code 3)."""

    exit_code = 3


class DamagedError(HmmscopeError):
    """A file is truncated, altered or not what its manifest says (exit code 4)."""

    exit_code = 4


class ResourceError(HmmscopeError):
    """Disk, memory or device does not suffice (exit code 5)."""

    exit_code = 5


class FullDiskError(ResourceError):
    """No room is left on the disk, so that of several pieces of work none can go on: the first ends them all."""


class NonFiniteError(HmmscopeError):
    """A loss, gradient, weight or activation is NaN or infinite (exit code 6)."""

    exit_code = 6


class PartlyFailedError(HmmscopeError):
    """Some of several pieces of work failed and the others are done (the exit code of the first that failed)."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def code_and_line(error: Exception) -> tuple[int, str]:
    """The exit code of any error, and what is said of it in one line."""
    if isinstance(error, HmmscopeError):
        return error.exit_code, " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and error.name in _PAGES:
        return 2, f"{error.name} is not installed, which pages and plots need; pip install 'hmmscope[pages]'"
    memory = isinstance(error, RuntimeError) and re.search(r"can't allocate memory|out of memory", str(error))
    if memory or isinstance(error, MemoryError):
        return 5, "out of memory; ask for fewer or shorter samples at once, or choose smaller sizes"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return 2, too_long(error.filename)
    if isinstance(error, OSError) and error.errno in _OUT_OF_REACH and error.filename is not None:
        reason = f"{_OUT_OF_REACH[error.errno]}; the folder must stay where it is, and writable, until the work ends"
        return 5, f"{error.filename}: {reason}"
    if isinstance(error, OSError) and error.errno in _RESOURCES:
        return 5, f"{error.strerror}; nothing saved before is lost"
    return 70, f"internal error, please report it: {type(error).__name__}: {' '.join(str(error).split())}"


def too_long(path: object) -> str:
    """What is said of a path that no file system takes; the path itself is cut."""
    return f"{str(path)[:100]}...: a name is too long ({len(str(path))} characters in all); choose a shorter one"
