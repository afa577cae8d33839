"""What comes from a file, or from a person, as it may stand on a terminal or a page: everything in it can be seen.

All text of others is shown through `visible`, and the command line prints with `say` alone.
"""

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
_JOINERS = "\u200c\u200d"  # of scripts and of composed signs; they change no direction and hide nothing


def visible(text: str, *, keep: str = "\n\t") -> str:
    """`text` with everything that could act instead of being read written out: ESC becomes ``\\x1b``.

    These are control and format characters (among them changes of writing direction), line and paragraph separators,
    characters that nobody has defined, and halves of surrogate pairs, which no file could hold.

    Args:
        text: any.
        keep: control characters that stay; "" for text that must be one line.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or not _acts(c) else c.encode("unicode_escape").decode() for c in text)


def in_a_line(text: str) -> str:
    """`visible` text in one line."""
    return visible(text, keep="")


def in_brief(text: str, most: int = 40) -> str:
    """The beginning of `in_a_line` text: so many characters at most."""
    line = in_a_line(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def is_text(text: str) -> bool:
    """Whether UTF-8 can hold it: half a surrogate pair, such as JSON may name, is no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class NobodyReadsError(Exception):
    """The reader of the standard output has gone, which ends what only prints."""


def say(*parts: object, end: str = "\n", flush: bool = False) -> None:
    """Print visible text; what the standard output cannot encode is written out, and without a reader nothing is printed.

    Raises:
        NobodyReadsError: nobody reads any more, and there is nothing else to do, see `whatever_is_heard`.
    """
    text = visible(" ".join(map(str, parts))) + end
    with heard():
        try:
            print(text, end="", flush=flush)
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding
            print(text.encode(encoding, "backslashreplace").decode(encoding), end="", flush=flush)


def tell(line: str) -> None:
    """Print a line on the standard error, if there is one: nothing ends because nobody reads it."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)


@contextmanager
def heard() -> Iterator[None]:
    """Print to the standard output: once its reader has gone, or it is closed, all further text goes nowhere.

    Raises:
        NobodyReadsError: see `say`.
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
    """Do work that counts without its text, such as a training: it goes on when the reader of its text has gone."""
    token = _going_on.set(True)
    try:
        yield
    finally:
        _going_on.reset(token)


_going_on: ContextVar[bool] = ContextVar("going on", default=False)


def silence() -> None:
    """Send the standard output nowhere: what is still buffered must not fail again when the interpreter ends."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def repair_streams() -> None:
    """Give a process whose standard streams are closed, or cannot encode all text, streams that take everything.

    A closed stream leaves its number free: the next file that is opened would take it, and text would go into that file.
    """
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


def _acts(char: str) -> bool:
    return char not in _JOINERS and unicodedata.category(char) in _ACTS


def numbers_in(text: str) -> list[str]:
    """The numbers in a text, as they are written there, without its words."""
    return re.findall(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?", text)


#: Width below which an interval is a point to a reader.
ROUNDED = 2e-6


def in_digits(value: float, low: float, high: float, *, least: int = 2, unit: str = "") -> str:
    """``0.91 [0.84, 0.95]``: `least` decimals, and as many more as leave the interval two units of its last digit wide.

    So no interval is rounded away, unless it is narrower than `ROUNDED`.
    """
    decimals = least
    while high - low >= ROUNDED and high - low < 2 * 10.0**-decimals:
        decimals += 1
    shown, first, last = (f"{round(x, decimals) + 0.0:.{decimals}f}" for x in (value, low, high))
    return f"{shown}{unit} [{first}, {last}]"
