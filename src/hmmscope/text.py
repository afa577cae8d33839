"""Safe output of text from files and users on terminals and pages."""

import errno
import io
import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

_ACTS = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"  # joiners of scripts and composed signs are harmless


def visible(text: str, *, keep: str = "\n\t") -> str:
    r"""Escape every character of `text` that controls a terminal or a layout: ESC becomes ``\\x1b``.

    Args:
        text: Text to escape.
        keep: Control characters to keep.
    """
    if text.isascii() and text.isprintable():
        return text
    acting = {c for c in text if unicodedata.category(c) in _ACTS} - {*keep, *_JOINERS}
    return "".join(c.encode("unicode_escape").decode() if c in acting else c for c in text)


def in_a_line(text: str) -> str:
    return visible(text, keep="")


def in_brief(text: str, most: int = 40) -> str:
    line = in_a_line(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class NobodyReadsError(Exception):
    """The reader of standard output has closed the stream."""


def say(*parts: object, end: str = "\n", flush: bool = False) -> None:
    """Print text; escape control characters, and characters that standard output cannot encode.

    Raises:
        NobodyReadsError: Standard output is closed, and the call is not inside `whatever_is_heard`.
    """
    text = visible(" ".join(map(str, parts))) + end
    with heard():
        try:
            print(text, end="", flush=flush)
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding
            print(text.encode(encoding, "backslashreplace").decode(encoding), end="", flush=flush)


def tell(line: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)


@contextmanager
def heard() -> Iterator[None]:
    """Inside `whatever_is_heard`, end the ``with`` block without an error if standard output is closed.

    Raises:
        NobodyReadsError: Standard output is closed, and the block is not inside `whatever_is_heard`.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EBADF):
            raise
        silence()
        if not _going_on.get():
            raise NobodyReadsError from error


@contextmanager
def whatever_is_heard() -> Iterator[None]:
    """Let work in the ``with`` block, such as training, continue when standard output is closed."""
    token = _going_on.set(True)
    try:
        yield
    finally:
        _going_on.reset(token)


_going_on: ContextVar[bool] = ContextVar("going on", default=False)


def silence() -> None:
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def repair_streams() -> None:
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "utf-8", line_buffering=True))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def numbers_in(text: str) -> list[str]:
    return re.findall(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?", text)


#: Width below which an interval is shown as a point.
ROUNDED = 2e-6


def in_digits(value: float, low: float, high: float, *, least: int = 2, unit: str = "") -> str:
    """Format a value and its interval as ``0.91 [0.84, 0.95]``; narrow intervals get more than `least` decimals."""
    decimals = least
    while high - low >= ROUNDED and high - low < 2 * 10.0**-decimals:
        decimals += 1
    shown, first, last = (f"{round(x, decimals) + 0.0:.{decimals}f}" for x in (value, low, high))
    return f"{shown}{unit} [{first}, {last}]"
