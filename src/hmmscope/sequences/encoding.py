"""Conversion of words, characters and numbers to symbol numbers."""

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError, warn
from hmmscope.reprs import Shown
from hmmscope.schema import listed, refuse_masked, require, shown, unknown_name
from hmmscope.sequences.gaps import FOR_NUMBERS, MISSING, USUAL_GAPS, Missing, is_nothing
from hmmscope.sequences.large import MAX_SYMBOLS, require_dense, smallest
from hmmscope.sequences.read_options import ReadOptions
from hmmscope.text import is_text

#: Units of text, each with the way in which a line becomes symbols.
UNITS = {
    "characters": "each character is a symbol",
    "words": "words separated by spaces or commas are symbols",
    "numbers": "whole numbers separated by spaces or commas are symbols",
    "lines": "each line is one symbol, and blank lines separate sequences",
}
#: Pattern of a number in text.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
#: If there are at most this many texts, one repeated text suggests that each text is one symbol.
_FEW_TEXTS = 10


@dataclass(frozen=True, repr=False)
class Encoded(Shown):
    """Sequences encoded as symbol numbers.

    Attributes:
        flat: symbols of all sequences, one after the other (observation,); `num_symbols` where missing.
        lengths, symbols, num_symbols, how, read_options, names: see `SequenceData`.
        first: beginning of the first sequence, as text.
        index: time stamps or row labels of all observations (observation,), or None.
        moved: True if groups or times reordered the rows of a table.
        of_numbers: True if symbols were whole numbers that are not known to be indices.
    """

    flat: NDArray[np.integer]
    lengths: NDArray[np.int64]
    symbols: tuple[str, ...] | None
    num_symbols: int
    how: str
    first: str
    read_options: ReadOptions = field(default_factory=ReadOptions)
    index: NDArray[Any] | None = None
    names: tuple[Any, ...] | None = None
    moved: bool = False
    of_numbers: bool = False


@dataclass(frozen=True, repr=False)
class Alphabet(Shown):
    """Names or number of the symbols, markers of missing observations, and reading options."""

    names: tuple[str, ...] | None = None
    count: int | None = None
    missing: Missing = field(default_factory=Missing)
    read_options: ReadOptions | None = field(default=None, compare=False)

    @classmethod
    def of(cls, symbols: object, missing: Missing | None = None) -> "Alphabet":
        missing = missing or Missing()
        if symbols is None:
            return cls(missing=missing)
        if isinstance(symbols, int | np.integer) and not isinstance(symbols, bool):
            count = int(symbols)
            require(1 <= count <= MAX_SYMBOLS, "symbols", f"must be in [1, {MAX_SYMBOLS}]", count)
            return cls(None, count, missing)
        names = tuple(symbols) if isinstance(symbols, list | tuple | str) else ()
        if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise InputError(f"symbols: must be different names, or the number of symbols, got {shown(symbols)}")
        if "" in names:
            raise InputError(f"symbols: name {names.index('') + 1} is empty; each name needs at least one character")
        check_text(names)
        missing.check(names)
        return cls(names, len(names), missing)


@lru_cache(maxsize=8)
def index_rule(names: tuple[str, ...] | None, noun: str = "symbols") -> str:
    """Return how whole numbers are read if a name is another number than its index, else ""."""
    for index, name in enumerate(names or ()):
        if _NUMBER.fullmatch(name) and float(name) != index:
            rule = f"whole numbers are indices of {noun} ({index} is {shown(name)})"
            return f"{rule}; for names pass text, such as {shown(name)} or x.astype(str), for indices a torch tensor"
    return ""


def warn_of_numbers(names: tuple[str, ...] | None, field: str, noun: str = "symbols") -> None:
    if rule := index_rule(names, noun):
        warn(f"{field}: {rule}")


def check_text(names: Sequence[str], field: str = "symbols") -> None:
    if not is_text("".join(names)):
        odd = next(name for name in names if not is_text(name))
        raise InputError(f"{field}: {shown(odd)} contains an unpaired surrogate, which is not valid text")


def apart(flat: object, lengths: object) -> list[NDArray[Any]]:
    """Split concatenated sequences; raise InputError unless `lengths` are positive and sum to the number of symbols."""
    try:
        tokens = np.asanyarray(flat)
    except (ValueError, TypeError):  # lists of different lengths, or a type that NumPy lacks
        tokens = np.array(None)
    if tokens.ndim != 1:
        raise InputError(f"tokens: must be whole numbers, one sequence after the other, got {shown(flat)}")
    return np.split(tokens, filling_lengths(lengths, len(tokens)).cumsum()[:-1])


def filling_lengths(lengths: object, total: int) -> NDArray[np.int64]:
    counts = whole_lengths(lengths)
    if not len(counts) or bool((counts < 1).any()) or sum(counts.tolist()) != total:
        raise InputError(f"lengths: must be positive and sum to the number of tokens, {total}, got {shown(lengths)}")
    return counts


def whole_lengths(lengths: object, least: int = 0) -> NDArray[np.int64]:
    refuse_masked("lengths", lengths)
    try:
        counts = np.asarray(lengths)
        if counts.dtype.kind == "f" and bool((counts == np.floor(counts)).all() and (counts < 2**53).all()):
            counts = counts.astype(np.int64)
        good = counts.ndim == 1 and (counts.dtype.kind in "iu" or counts.size == 0) and bool((counts >= least).all())
    except (ValueError, TypeError, OverflowError):
        good = False
    if not good:
        raise InputError(f"lengths: must be whole numbers of at least {least}, one per sequence, got {shown(lengths)}")
    return counts.astype(np.int64)


def within(rows: Sequence[Any], lengths: object) -> list[Any]:
    """Return sequences without padding: rows cut to `lengths`, or a single row split by `lengths`."""
    if lengths is None:
        return list(rows)
    counts = whole_lengths(lengths).tolist()
    if 0 in counts:
        raise InputError(f"lengths: sequence {counts.index(0) + 1} is empty; leave it out")
    if len(counts) != len(rows) and len(rows) == sum(counts) and all(len(row) == 1 for row in rows):
        rows = [[row[0] for row in rows]]  # a column, given as lists
    if len(rows) == 1 and sum(counts) == len(rows[0]):
        ends = list(accumulate(counts))
        return [rows[0][end - count : end] for end, count in zip(ends, counts, strict=True)]
    if len(counts) != len(rows) or any(count > len(row) for count, row in zip(counts, rows, strict=True)):
        also = f", or sum to {len(rows[0])}" if len(rows) == 1 else ""
        rule = f"{len(rows)} numbers, each at most the length of its row" + also
        raise InputError(f"lengths: must be {rule}, got {shown(lengths)}")
    return [row[:count] for count, row in zip(counts, rows, strict=True)]


def encode_numbers(rows: Sequence[object], alphabet: Alphabet, how: str, where: Callable[[int], str]) -> Encoded:
    arrays = [_whole(row, alphabet.missing, partial(where, number)) for number, row in enumerate(rows)]
    if not arrays:
        raise InputError(f"{where(-1)}: holds no sequence")
    flat, counts = np.concatenate(arrays), np.array([len(array) for array in arrays])
    gaps, largest = flat == MISSING, int(flat.max())
    if gaps.all():
        raise InputError(f"{where(-1)}: every observation is missing")
    count = largest + 1 if alphabet.count is None else alphabet.count
    bad = ((flat < 0) | (flat >= count)) & ~gaps
    if bad.any():
        place = int(bad.argmax())
        row = int(np.searchsorted(counts.cumsum(), place, side="right"))
        column = place - int(counts[:row].sum())
        rule = f"{int(flat[place])} is not a symbol in [0, {count})"
        advice = alphabet.missing.advice(flat[place])
        hint = f"; if it is padding, give lengths; {advice}" if flat[place] < 0 else ""
        hint += f"; {named}" if (named := index_rule(alphabet.names)) else ""
        raise InputError(f"{where(row)}, symbol {column + 1}: {rule}{hint}")
    if count > MAX_SYMBOLS:
        raise InputError(f"symbols: must be below {MAX_SYMBOLS}, got {largest}; {FOR_NUMBERS}")
    require_dense(alphabet.count, count, len(flat), where(-1))
    beginning = " ".join("?" if value == MISSING else str(value) for value in arrays[0][:20].tolist())
    codes = _small(np.where(gaps, count, flat), count)
    return Encoded(codes, counts, alphabet.names, count, how, beginning, of_numbers=True)


def _whole(row: object, missing: Missing, where: Callable[[], str]) -> NDArray[np.int64]:
    cells: Any = row
    odd = None
    if isinstance(row, list | tuple):
        cells = [MISSING if missing.has(cell) else cell for cell in row] if _has_gaps(row, missing) else row
        odd = next((k for k, cell in enumerate(cells) if is_nothing(cell)), None)
    try:
        array = np.ma.asanyarray(cells) if isinstance(cells, np.ma.MaskedArray) else np.asarray(cells)
    except (ValueError, TypeError):
        array = np.array(None)
    if array.ndim == 1 and len(array) == 0:
        raise InputError(f"{where()}: is empty; leave it out")
    if array.ndim == 1:
        array = missing.marked(array)
        if array.dtype.kind == "f" and bool(np.isnan(array).any()):
            odd = int(np.isnan(array).argmax())
    if odd is not None and all(map(is_nothing, cells)):
        raise InputError(f"{where()}: every observation is missing; leave out the sequence")
    if odd is not None:
        value = None if isinstance(row, list | tuple) and row[odd] is None else math.nan
        raise InputError(f"{where()}, symbol {odd + 1}: is {value}, which is not a symbol; {missing.advice(value)}")
    if array.dtype.kind == "f" and bool((np.floor(array) == array).all()):
        whole = array.astype(np.float64)
        array = whole.astype(np.int64) if bool((np.abs(whole) < 2**53).all()) else array
    if array.ndim == 1 and array.dtype.kind == "O" and all(isinstance(one, int) for one in array.tolist()):
        raise InputError(f"{where()}: {max(array, key=abs)} is not a symbol; symbols must be in [0, {MAX_SYMBOLS})")
    if array.ndim != 1 or array.dtype.kind not in "iub":
        numbers = f"; {FOR_NUMBERS}" if array.dtype.kind == "f" else ""
        raise InputError(f"{where()}: must be a list of whole numbers, got {shown(row)}{numbers}")
    if array.dtype == np.uint64 and int(array.max()) >= 2**63:
        raise InputError(f"{where()}: {array.max()} is not a symbol; symbols must be below {MAX_SYMBOLS}")
    return array.astype(np.int64)


def _has_gaps(row: Sequence[Any], missing: Missing) -> bool:
    return (bool(missing.names) or missing.nothing) and any(missing.has(cell) for cell in row)


def encode_words(rows: list[list[str]], alphabet: Alphabet, how: str, where: Callable[[int], str]) -> Encoded:
    """Encode rows of names; an alphabet without names or count is replaced by the sorted names in the rows."""
    different = {word for row in rows for word in row}
    gaps = {word for word in different if alphabet.missing.has(word)}
    if different and all(word in gaps or is_nothing(word) for word in different):
        raise InputError(f"{where(-1)}: every observation is missing")
    names = alphabet.names or (
        None if alphabet.count else tuple(sorted(w for w in different - gaps if isinstance(w, str)))
    )
    check_text(names or ())
    known = names if names is not None else tuple(map(str, range(alphabet.count or 0)))
    codes = {name: code for code, name in enumerate(known) if name} | dict.fromkeys(gaps, len(known))
    flat: list[int] = []
    for number, row in enumerate(rows):
        if not len(row):
            raise InputError(f"{where(number)}: is empty; leave it out")
        try:
            flat.extend([codes[word] for word in row])
        except KeyError:
            column = next(k for k, word in enumerate(row) if word not in codes)
            raise _no_name(row[column], known, alphabet, f"{where(number)}, symbol {column + 1}") from None
    counts = np.array([len(row) for row in rows])
    glue = "" if all(len(name) == 1 for name in known) else " "
    first = glue.join("?" if word in gaps else word for word in rows[0][:40])
    return Encoded(_small(np.array(flat), len(known)), counts, names, len(known), how, first)


def _no_name(word: object, known: tuple[str, ...], alphabet: Alphabet, where: str) -> InputError:
    if is_nothing(word) or word == "":
        said = word if word != "" else "empty"
        return InputError(f"{where}: is {said}, which is not a symbol; {alphabet.missing.advice(word)}")
    return InputError(f"{where}: {shown(word)} is not one of {listed(known)}{alphabet.missing.hint(word)}")


def encode_characters(lines: list[str], alphabet: Alphabet, how: str, where: Callable[[int], str]) -> Encoded:
    if alphabet.names is None and alphabet.count is not None:
        return encode_words([list(line) for line in lines], alphabet, how, where)
    points = np.frombuffer("".join(lines).encode("utf-32-le", "surrogatepass"), np.uint32)
    found, flat = np.unique(points, return_inverse=True)
    names = tuple(map(chr, found.tolist()))
    check_text(names)
    if set(names) & set(alphabet.missing.names):
        return encode_words([list(line) for line in lines], alphabet, how, where)
    if alphabet.names is not None:
        if not set(names) <= set(alphabet.names):
            return encode_words([list(line) for line in lines], alphabet, how, where)  # raises the error
        code = {name: code for code, name in enumerate(alphabet.names)}
        flat, names = np.array([code[name] for name in names])[flat], alphabet.names
    counts = np.array([len(line) for line in lines])
    return Encoded(_small(flat, len(names)), counts, names, len(names), how, lines[0][:40])


def _small(flat: NDArray[np.integer], count: int) -> NDArray[np.integer]:
    return flat.astype(smallest(count + bool((flat == count).any())))


def encode_lines(
    lines: list[str], alphabet: Alphabet, unit: str | None, what: str, where: Callable[[int], str]
) -> Encoded:
    """Encode lines of text with the unit `unit`; None chooses the only unit that fits the text."""
    if unit is not None and unit not in UNITS:
        raise unknown_name("unit", unit, UNITS)
    kept = [number for number, line in enumerate(lines) if line.strip()]
    if not kept:
        raise InputError(f"{what}: holds no sequence")
    texts = [lines[number].strip() for number in kept]
    if unit is None:
        unit = _unit_of(texts, alphabet, what)
    found = _columns(lines, alphabet, what) if unit == "lines" else _in_unit(unit, texts, kept, alphabet, what, where)
    return replace(found, how=UNITS[unit], read_options=ReadOptions(unit=unit))


def _in_unit(
    unit: str, texts: list[str], kept: list[int], alphabet: Alphabet, what: str, where: Callable[[int], str]
) -> Encoded:
    def place(number: int) -> str:
        return where(kept[number] if number >= 0 else number)

    how = UNITS[unit]
    if unit == "characters":
        return encode_characters(texts, alphabet, how, place)
    rows = [_words(text, alphabet) for text in texts]
    kept = [number for number, row in zip(kept, rows, strict=True) if row]
    rows = [row for row in rows if row]
    if unit == "words" and alphabet.names and all(len(name) == 1 for name in alphabet.names):
        rows = [list(row[0]) if len(row) == 1 else row for row in rows]  # the characters of one word, without spaces
    if not rows:
        raise InputError(f"{what}: holds no sequence")
    if unit == "numbers" and alphabet.names is None:
        values, gaps = [], alphabet.missing.names
        for number, row in enumerate(rows):
            largest = alphabet.count or MAX_SYMBOLS
            wrong = [word for word in row if not (word in gaps or (_is_number(word) and _below(word, largest)))]
            if wrong:
                column = row.index(wrong[0]) + 1
                rule = f"{shown(wrong[0])} is not one of the numbers 0 to {largest - 1}"
                raise InputError(f"{place(number)}, symbol {column}: {rule}{alphabet.missing.hint(wrong[0])}")
            values.append([MISSING if word in gaps else int(word) for word in row])
        return encode_numbers(values, alphabet, how, place)
    return encode_words(rows, alphabet, how, place)


def are_decimals(texts: Collection[str], marks: str) -> bool:
    return bool(texts) and all(map(_NUMBER.fullmatch, texts)) and any(set(one) & set(marks) for one in texts)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit()


def _below(word: str, largest: int) -> bool:
    return len(word.lstrip("0")) <= 9 and int(word) < largest


def _words(text: str, alphabet: Alphabet) -> list[str]:
    return text.split() if "," in (alphabet.names or ()) else text.replace(",", " ").split()


def _columns(lines: list[str], alphabet: Alphabet, what: str) -> Encoded:
    rows: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            rows[-1].append(line.strip())
        elif rows[-1]:
            rows.append([])
    rows, how = [row for row in rows if row], UNITS["lines"]
    gaps = alphabet.missing.names

    def where(number: int) -> str:
        return f"{what}: sequence {number + 1}" if number >= 0 else what

    seen = [word for row in rows for word in row if word not in gaps]
    if all(_is_number(word) and _below(word, MAX_SYMBOLS) for word in seen) and alphabet.names is None:
        values = [[MISSING if word in gaps else int(word) for word in row] for row in rows]
        return encode_numbers(values, alphabet, how, where)
    return encode_words(rows, alphabet, how, where)


def _unit_of(texts: list[str], alphabet: Alphabet, what: str) -> str:
    rows = [_words(text, alphabet) for text in texts]
    if alphabet.names is not None:
        spaced = " " in {*alphabet.names, *alphabet.missing.names} and any(" " in text for text in texts)
        return "characters" if spaced else "words"
    distinct = {word for row in rows for word in row}.difference(alphabet.missing.names)
    numeric = all(map(_is_number, distinct))
    if alphabet.count is not None:
        fits = numeric and all(_below(word, alphabet.count) for word in distinct)
        digits = all(len(row) == 1 and row[0].isascii() and row[0].isdigit() for row in rows)
        below = digits and all(int(digit) < alphabet.count for word in distinct for digit in word)
        if fits and len(texts) > 1 and all(len(row) == 1 for row in rows):
            raise _ambiguous(texts, alphabet, what, "numbers", "lines")
        return "characters" if below and not fits else "numbers"
    one_word = all(len(row) == 1 for row in rows)
    characters = {c for text in texts for c in text}.difference(alphabet.missing.names)
    if numeric:
        if not one_word or (len(texts) == 1 and len(texts[0]) == 1):
            return "numbers"
        raise _ambiguous(
            texts, alphabet, what, "characters" if any(len(word) > 1 for word in distinct) else "numbers", "lines"
        )
    if one_word and are_decimals({word for word in distinct if word.lower() not in USUAL_GAPS}, ".eE+-"):
        fixes = "for real numbers use emission='gaussian' (--emission), for characters unit='characters' (--unit)"
        raise InputError(f"{what}: each line is a number, not a symbol; {fixes}")
    if one_word:
        if all(len(text) == 1 for text in texts) or _repeat(texts):
            raise _ambiguous(texts, alphabet, what, "characters", "lines")
        return "characters"
    if all(len(word) == 1 for word in distinct) or 2 * len(distinct) <= len(characters - {" ", ",", "\t"}):
        _require_alike(rows, alphabet, what)
        return "words"  # characters would be many more symbols than words are
    raise _ambiguous(texts, alphabet, what, "characters", "words")


def _repeat(texts: list[str]) -> bool:
    different = len(set(texts))
    return 2 * different <= len(texts) or different < len(texts) <= _FEW_TEXTS


def _require_alike(rows: list[list[str]], alphabet: Alphabet, what: str) -> None:
    names = {word for row in rows for word in row if not _is_number(word)}.difference(alphabet.missing.names)
    total, odd = sum(map(len, rows)), sum(word in names for row in rows for word in row)
    if not 2 * odd < total:
        return
    name = next(word for row in rows for word in row if word in names)
    raise InputError(
        f"{what}: {shown(name)} is not a whole number, but most of {total} words are; if all are names, pass unit='words' "
        f"(--unit); {alphabet.missing.advice(name)}"
    )


def _ambiguous(texts: list[str], alphabet: Alphabet, what: str, *units: str) -> InputError:
    def number(name: int) -> str:
        return f"{what}: line {name + 1}"

    readings = []
    for unit in units:
        found = encode_lines(texts, alphabet, unit, what, number)
        readings.append(f"as {unit} ({UNITS[unit]}) it is {summary(found)}")
    options = " or ".join(f"unit={unit!r}" for unit in units)
    return InputError(f"{what}: can be read in two ways: {'; '.join(readings)}; choose with {options} (--unit)")


def summary(found: Encoded) -> str:
    count, shortest, longest = len(found.lengths), int(found.lengths.min()), int(found.lengths.max())
    lengths = f"of {shortest}" if shortest == longest else f"of {shortest} to {longest}"
    plural = "sequence" if count == 1 else "sequences"
    return f"{count} {plural} {lengths}, {found.num_symbols} symbol{'s' * (found.num_symbols != 1)}"
