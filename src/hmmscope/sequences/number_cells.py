"""Table cells as numbers: missing entries, decimal marks, and whether cells are numbers or symbols."""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.schema import listed, shown
from hmmscope.sequences.columns import categories_of, is_frame, listed_columns, to_plain, writable
from hmmscope.sequences.encoding import whole_lengths
from hmmscope.sequences.gaps import Missing, is_nothing
from hmmscope.sequences.sources import NUMBERS, OBSERVATIONS, Arrays, Plain, Source, Text, open_file
from hmmscope.sequences.tables import INDEX, Table, TableCells, csv_table, ending_of, table_of
from hmmscope.sequences.time_stamps import looks_like_time

#: Default markers of a missing entry, besides an empty cell.
NOTHING = ("NA", "NaN", "nan")
_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
#: Names of a column of booleans.
BOOLEANS = ("False", "True")
#: Most different names in a column of names, unless each occurs twice on average.
MOST_NAMES = 12
#: A number that may have a thousands separator or a decimal mark.
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}[,.]\d{3}")


def headed_table(cells: TableCells, what: str, gaps: "NumberMarkers") -> Table | None:
    """Return a table with a header; None if the first row has only numbers or missing entries."""
    return csv_table(cells, what) if any(gaps.number(cell) is None for cell in next(iter(cells.rows), [])) else None


def split_names(column: str, table: Table) -> list[str]:
    return [column] if table.has(column) else [name.strip() for name in column.split(",")]


def is_array(one: Any) -> bool:
    plain = to_plain(one)
    if not (isinstance(plain, np.ndarray | list | tuple) or is_frame(plain)):
        return False
    try:
        return np.ndim(plain) in (1, 2)
    except ValueError:  # lists of different lengths
        return False


def is_flat(array: Any) -> bool:
    if isinstance(array, list | tuple):
        return bool(array) and all(isinstance(row, list | tuple) and row and np.isscalar(row[0]) for row in array)
    return bool(np.ndim(array) == 2)


def counts_of(lengths: Any, total: int | None = None) -> list[int]:
    counts = whole_lengths(to_plain(lengths), 1).tolist()
    if total is not None and sum(counts) != total:
        raise InputError(f"lengths: must sum to the {total} rows, got {sum(counts)}")
    return counts


def as_numbers(one: Any, what: str = "source") -> Float64[Tensor, "..."]:
    plain = to_plain(one)
    if isinstance(plain, list | tuple) and any(is_nothing(value) for value in plain):
        plain = [math.nan if is_nothing(value) else value for value in plain]
    try:
        if isinstance(plain, np.ma.MaskedArray):
            plain = np.ma.filled(plain.astype(np.float64), np.nan)
        array = np.asarray(plain)
        if array.dtype.kind in "mMcUS":
            raise TypeError
        found = torch.from_numpy(writable(np.array(array, dtype=np.float64)))
    except (ValueError, TypeError):
        _refuse_ragged(what, plain)
        raise InputError(f"{what}: must be numbers, got {shown(one)}") from None
    if bool(found.isinf().any()):
        raise InputError(f"{what}{found.isinf().nonzero()[0].tolist()}: is not finite; mark a missing entry with NaN")
    return found


def _refuse_ragged(what: str, rows: Any) -> None:
    if isinstance(rows, list | tuple) and all(isinstance(row, list | tuple) for row in rows):
        sizes = sorted({len(row) for row in rows})
        if len(sizes) > 1:
            raise InputError(f"{what}: rows have different lengths, {listed(sizes)}")


class NumberMarkers:
    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self.numbers = frozenset(value for name in self.names if (value := _number(name)) is not None)

    @classmethod
    def of(cls, missing: Any) -> "NumberMarkers":
        said = Missing.of(missing)
        return cls({*said.names, *(NOTHING if missing is None or said.takes_nothing else ()), ""})

    def number(self, cell: Any) -> float | None:
        """Return the number in a cell; NaN for a missing entry, None for other text."""
        if isinstance(cell, str):
            cell = cell.strip()
            if cell in self.names:
                return math.nan
            found = _number(cell.replace(",", ".") if _COMMA.fullmatch(cell) else cell)
        elif is_nothing(cell):
            return math.nan
        else:
            found = _number(cell)
        return math.nan if found is not None and found in self.numbers else found


def _number(cell: Any) -> float | None:
    try:
        found = float(cell)
    except (ValueError, TypeError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def floats_of(table: Table, name: str, gaps: NumberMarkers, names: Sequence[str] | None = None) -> NDArray[np.float64]:
    if names is not None:
        return _codes(table, name, gaps, names)
    cells = table.column(name)
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "iufb":
        found = np.ma.filled(cells.astype(np.float64), np.nan)
        if gaps.numbers:
            found = np.where(np.isin(found, list(gaps.numbers)), np.nan, found)
        if np.isinf(found).any():
            raise InputError(f"{table.place(int(np.isinf(found).argmax()), name)}: is not finite")
        return np.asarray(found)
    cells = cells.tolist() if isinstance(cells, np.ndarray) else cells
    if _are_booleans(cells, gaps):
        return _codes(table, name, gaps, BOOLEANS)
    numbers = [gaps.number(cell) for cell in cells]
    if None in numbers:
        row = numbers.index(None)
        cell = cells[row]
        hint = "; name markers of missing entries with missing= (--missing), or leave the column out with column= (--column)"
        if looks_like_time(cell):
            hint = f"; if it holds time stamps, pass time={name!r} (--time {name})"
        elif isinstance(cell, str) and "," in cell:
            hint = "; write numbers without thousands separators"
        raise InputError(f"{table.place(row, name)}: must be a number, got {shown(cell)}{hint}")
    _one_decimal_mark(table, name, cells)
    return np.array(numbers, np.float64)


def names_in(table: Table, name: str, gaps: NumberMarkers) -> tuple[str, ...] | None:
    """Return the names in a column, () if they hardly repeat, or None for numbers."""
    if (categories := categories_of(table.raw(name))) is not None:
        return tuple(map(str, categories))
    cells = table.column(name)
    if _are_booleans(cells, gaps):
        return BOOLEANS
    plain = isinstance(cells, np.ndarray) and cells.dtype.kind in "iuf"
    if plain or any(number == number for number in map(gaps.number, cells) if number is not None):
        return None
    known = [str(cell).strip() for cell in cells if gaps.number(cell) is None]
    names = sorted(set(known))
    good = 2 <= len(names) <= max(min(MOST_NAMES, len(known) - 1), len(known) // 2) and not looks_like_time(known[0])
    return tuple(names) if good else ()


def _are_booleans(cells: Any, gaps: NumberMarkers) -> bool:
    if isinstance(cells, np.ndarray) and cells.dtype.kind not in "OUS":
        return cells.dtype.kind == "b"
    texts = (_text(cell) for cell in cells)
    seen = (text.capitalize() in BOOLEANS for text in texts if text not in gaps.names)
    return next(seen, False) and all(seen)


def _text(cell: Any) -> str:
    return "" if is_nothing(cell) else str(cell).strip()


def _codes(table: Table, name: str, gaps: NumberMarkers, names: Sequence[str]) -> NDArray[np.float64]:
    places = dict.fromkeys(gaps.names, math.nan) | {one: float(place) for place, one in enumerate(names)}
    texts = list(map(_text, table.column(name)))
    same = {one.capitalize(): one for one in names}
    if sorted(same) == [*BOOLEANS]:  # which programs write as true or TRUE
        texts = [same.get(text.capitalize(), text) for text in texts]
    for row, text in enumerate(texts):
        if text not in places:
            raise InputError(f"{table.place(row, name)}: must be one of the names {listed(names)}, got {shown(text)}")
    return np.array([places[text] for text in texts])


def _one_decimal_mark(table: Table, name: str, cells: list[Any]) -> None:
    commas, points = ([row for row, one in enumerate(cells) if isinstance(one, str) and mark in one] for mark in ",.")
    marked = points or commas
    if marked and all(_THOUSANDS.fullmatch(cells[row].strip()) for row in marked):
        decimal = [cell for one in table.names for cell in table.column(one) if _COMMA.fullmatch(str(cell).strip())]
        if decimal if points else table.separator == ",":
            raise InputError(
                f"{table.place(marked[0], name)}: {shown(cells[marked[0]])} may have a thousands separator or a decimal "
                "mark; write numbers without thousands separators"
            )
    if commas and points:
        both = f"{shown(cells[commas[0]])} and {shown(cells[points[0]])}"
        raise InputError(
            f"{table.place(commas[0], name)}: has both decimal commas and decimal points, {both}; use points"
        )


def looks_like_numbers(source: Any, reading: Mapping[str, Any]) -> bool:
    """Return whether a table or array contains fractional numbers, and otherwise only numbers or names."""
    named = isinstance(source, str | os.PathLike | Mapping) or is_frame(source)
    if named and reading.get("unit") is not None:
        return False
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if "\n" in str(source) or ending_of(path) not in NUMBERS or not path.is_file():
            return False
        try:
            return _fractional_file(open_file(path), path.name, reading)
        except InputError:  # which the reader of symbols raises again
            return False
    if named:
        return _fractional_columns(table_of(source, "source"), reading)
    plain = to_plain(source)
    parts = plain if isinstance(plain, list | tuple) and plain and all(is_array(one) for one in plain) else [plain]
    return any(_fractional_columns(table_of(x, ""), {}) if is_frame(x) else _entries(to_plain(x)) for x in parts)


def _fractional_file(source: Source, what: str, reading: Mapping[str, Any]) -> bool:
    gaps, column = NumberMarkers.of(reading.get("missing")), reading.get("column")
    match source:
        case Text(text, "lines") if reading.get("symbols") is None and "," not in text:
            lines = [line for line in text.splitlines() if line.strip()]
            return _all_numbers(lines[:9], gaps) and _fractional(lines, gaps)
        case TableCells():
            if (table := headed_table(source, what, gaps)) is None:
                return _fractional([cell for row in source.rows for cell in row], gaps)
            headed = all(gaps.number(name) is None for name in table.names if name)
            return _fractional_columns(table, reading, mixed=headed)
        case Table():
            name = column if isinstance(column, str) else OBSERVATIONS
            if source.header is not None and source.has(name) and isinstance(source.column(name)[0], list):
                return looks_like_numbers(source.column(name), {})
            return _fractional_columns(source, reading)
        case Arrays(saved=False):
            names = [one for one in (column, OBSERVATIONS) if one in source.names] or source.names
            return (column in names or len(names) == 1) and looks_like_numbers(source.arrays[names[0]], {})
        case Plain(values):
            return looks_like_numbers(values, {})
    return False


def _entries(entries: Any) -> bool:
    if isinstance(entries, list | tuple) and any(_has_parts(one) for one in entries):
        return False
    return _fractional(entries, NumberMarkers([]))


def _has_parts(one: Any) -> bool:
    return hasattr(one, "__len__") and not isinstance(one, str) and getattr(one, "ndim", 1) > 0


def _fractional_columns(table: Table, reading: Mapping[str, Any], *, mixed: bool = True) -> bool:
    given = listed_columns(reading.get("column"))
    aside = (reading.get("group"), reading.get("time"), INDEX, "lengths", *table.row_numbers())
    names = (
        [n for n in table.names if n not in aside]
        if given is None
        else [n for c in given for n in split_names(c, table)]
    )
    gaps = NumberMarkers.of(reading.get("missing"))
    found = {name: table.column(name) for name in names if table.has(name)}
    if reading.get("time") is None:  # a column of time stamps that the reader will ask about
        found = {name: one for name, one in found.items() if not (len(one) and looks_like_time(one[0]))}
    return any(_fractional(one, gaps) for one in found.values()) and all(
        _all_numbers(one, gaps) or (mixed and names_in(table, name, gaps) is not None) for name, one in found.items()
    )


def _all_numbers(cells: Any, gaps: NumberMarkers) -> bool:
    if isinstance(cells, np.ndarray):
        return cells.dtype.kind in "iufb" or (cells.dtype.kind == "O" and _all_numbers(cells.tolist(), gaps))
    return all(gaps.number(cell) is not None for cell in cells)


def _fractional(cells: Any, gaps: NumberMarkers) -> bool:
    if isinstance(cells, np.ma.MaskedArray):
        cells = cells.compressed()
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "iufb":
        seen = cells[np.isfinite(cells)] if cells.dtype.kind == "f" else cells.reshape(-1)[:0]
        return bool((seen != np.floor(seen)).any())
    if not isinstance(cells, list | tuple | np.ndarray) or np.ndim(cells) != 1:
        return False
    values = [gaps.number(cell) for cell in cells]
    return None not in values and any(value % 1 for value in values if value is not None and value == value)
