"""What comes from a file, or from a person, as it may stand on a terminal or a page: everything in it can be seen.

All text of others is shown through `visible`, and the command line prints with `say` alone.
"""

import re
import unicodedata

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


def say(*parts: object, end: str = "\n", flush: bool = False) -> None:
    """Print visible text."""
    print(visible(" ".join(map(str, parts))), end=end, flush=flush)


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
