"""Error classes, one per exit code of the command line."""

import errno
import re
import sys
import warnings

_RESOURCES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EPIPE}

#: Reasons, by error number, why a path that existed when the work started cannot be used now.
_OUT_OF_REACH = {
    errno.ENOENT: "was moved or removed",
    errno.ENOTDIR: "was moved or removed",
    errno.ESTALE: "was moved or removed",
}
_OUT_OF_REACH |= {errno.EACCES: "can no longer be opened", errno.EROFS: "can no longer be written"}

_PAGES = {"jinja2", "markupsafe", "matplotlib"}


def warn(message: str) -> None:
    """Warn at the line outside of the library that called it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("hmmscope."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


class HmmscopeError(Exception):
    """Base class of errors that the user can fix; the message is one line.

    Attributes:
        exit_code: Exit code of the command line.
        speaks_for_all: True if this process prints the error for all processes of a parallel training.
    """

    exit_code = 70
    speaks_for_all = False

    def __init__(self, message: str = "") -> None:
        super().__init__(" ".join(line.strip() for line in message.splitlines()))  # the text of a value may have lines


class InputError(HmmscopeError, ValueError):
    """An invalid matrix, observation, configuration value or name (exit code 2)."""

    exit_code = 2


class RefusedError(HmmscopeError):
    """A valid request that would overwrite or contradict existing files (exit code 3)."""

    exit_code = 3


class DamagedError(HmmscopeError):
    """A file that is truncated, altered or different from its manifest (exit code 4)."""

    exit_code = 4


class ResourceError(HmmscopeError):
    """Insufficient disk, memory or device (exit code 5)."""

    exit_code = 5


class FullDiskError(ResourceError):
    """A full disk; the first task that fails with this error ends all parallel tasks."""


class NonFiniteError(HmmscopeError):
    """A loss, gradient, weight or activation that is NaN or infinite (exit code 6)."""

    exit_code = 6


class PartlyFailedError(HmmscopeError):
    """Some of several tasks failed; the exit code is that of the first failed task."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def code_and_line(error: Exception) -> tuple[int, str]:
    if isinstance(error, HmmscopeError):
        return error.exit_code, " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and error.name in _PAGES:
        return 2, f"{error.name} is not installed, but pages and plots need it; run pip install 'hmmscope[pages]'"
    memory = isinstance(error, RuntimeError) and re.search(r"can't allocate memory|out of memory", str(error))
    if memory or isinstance(error, MemoryError):
        return 5, "out of memory; request fewer or shorter samples at once, or a smaller model"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return 2, too_long(error.filename)
    if isinstance(error, OSError) and error.errno in _OUT_OF_REACH and error.filename is not None:
        reason = f"{_OUT_OF_REACH[error.errno]}; leave the folder in place and writable until hmmscope ends"
        return 5, f"{error.filename}: {reason}"
    if isinstance(error, OSError) and error.errno in _RESOURCES:
        return 5, f"{error.strerror}; files saved earlier are intact"
    return 70, f"internal error, please report it: {type(error).__name__}: {' '.join(str(error).split())}"


def too_long(path: object) -> str:
    return f"{str(path)[:100]}...: the path or a name in it is too long ({len(str(path))} characters); shorten it"
