"""Files of numbers, read as sequences of vectors."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.runs.vector_sequences import Vectors, read_vectors
from hmmscope.schema import shown, unknown_name
from hmmscope.sequences.cells import MAX_TEXT, TableCells, read_cells
from hmmscope.sequences.gaps import Missing
from hmmscope.sequences.read_options import ReadOptions
from hmmscope.storage import store
from hmmscope.storage.mapped import read_npy, read_npz

TABLES, ARRAYS = {".csv": ",", ".tsv": "\t"}, (".npy", ".npz")
#: Default markers of a missing entry, besides an empty cell.
NOTHING = ("NA", "NaN", "nan")


class NumberFile(NamedTuple):
    """Contents of a file.

    Attributes:
        vectors: The sequences.
        how: Description of the layout that was read.
        reading: Options that read other files in the same way; None if there was no choice.
    """

    vectors: Vectors
    how: str
    reading: ReadOptions | None = None


class _Gaps(NamedTuple):
    names: frozenset[str]
    numbers: frozenset[float]

    @classmethod
    def of(cls, missing: Any) -> "_Gaps":
        said = Missing.of(missing)
        names = {*said.names, *(NOTHING if missing is None or said.takes_nothing else ()), ""}
        return cls(frozenset(names), frozenset(value for name in names if (value := _number(name)) is not None))

    def has(self, cell: str) -> bool:
        return cell in self.names or (bool(self.numbers) and _number(cell) in self.numbers)


def read_number_file(
    path: str | Path,
    *,
    column: str | None = None,
    group: str | None = None,
    missing: Any = None,
    axis: int | None = None,
    lengths: Any = None,
    symbols_from: ReadOptions | None = None,
) -> NumberFile:
    """Read sequences of vectors from a table (.csv, .tsv) or an array file (.npy, .npz).

    A table has one observation per row; its first row names the columns, which are coordinates. Without names, one
    column is one sequence, and several columns need `axis`, which makes each entry an observation. Arrays follow
    `read_vectors`.

    Args:
        path: The file.
        column: Comma-separated columns to read (default: all but `group`); for .npz the array name.
        group: Column with the sequence id of a row; each run of equal ids is a sequence.
        missing: Markers of a missing entry, in addition to an empty cell (default: NA, NaN, nan).
        axis, lengths: See `read_vectors`.
        symbols_from: Options of another file, used as defaults; its columns apply if this file has all of them.

    Raises:
        InputError: Unknown ending, a cell that is not a number, missing columns, or an ambiguous layout.
        DamagedError: Incomplete array file.
    """
    path = Path(path)
    ending = path.suffix.lower()
    if ending in ARRAYS:
        if group is not None or missing is not None:
            raise InputError(
                f"{path.name}: group and missing apply to tables; mark a missing entry of an array with NaN"
            )
        return _array(path, column, axis, lengths, symbols_from or ReadOptions())
    if ending not in TABLES:
        known = ", ".join((*TABLES, *ARRAYS))
        raise InputError(
            f"{path.name}: cannot read numbers from {ending or 'a file without ending'}; use one of {known}"
        )
    text = store.read_text(path, limit=MAX_TEXT)
    symbols_from = symbols_from or ReadOptions()
    missing = symbols_from.missing if missing is None else missing
    table, gaps = read_cells(text, path.name, TABLES[ending]), _Gaps.of(missing)
    if not table.cells:
        raise InputError(f"{path.name}: contains no numbers")
    if all(gaps.has(cell) or _number(cell) is not None for cell in table.cells[0]):
        if column is not None or group is not None:
            raise InputError(f"{path.name}: has no header with column names, which column and group need")
        axis = symbols_from.axis if axis is None and lengths is None else axis
        found, chosen = _nameless(path, table, gaps, axis, lengths), None
    else:
        if (
            column is None
            and symbols_from.column is not None
            and set(_names(symbols_from.column, table)) <= set(table.cells[0])
        ):
            column = symbols_from.column
        group = symbols_from.group if group is None and symbols_from.group in table.cells[0] else group
        found, chosen = _named(path, table, gaps, column, group, axis, lengths)
    names = None if missing is None else Missing.of(missing).names
    reading = ReadOptions(column=chosen, group=group, axis=axis, missing=names)
    return found._replace(reading=reading if reading.to_data() else None)


def read_validation(validation: Any, fitted: Vectors, axis: int | None, table: dict[str, Any]) -> Vectors:
    """Read held-out data in the same way as the fitted data."""
    if isinstance(validation, str | Path):
        return read_number_file(validation, axis=axis, **table).vectors
    rows = axis is None and np.ndim(validation) == 2 and np.shape(validation)[1] == fitted.rows.shape[1]
    return read_vectors(validation, axis=axis, lengths=[len(validation)] if rows else None)


def _number(cell: str) -> float | None:
    try:
        found = float(cell)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _floats(path: Path, table: TableCells, places: Sequence[int], names: Sequence[str], gaps: _Gaps) -> NDArray[Any]:
    found = np.full((len(table.cells), len(places)), np.nan)
    for number, row in enumerate(table.cells):
        for column, place in enumerate(places):
            if not gaps.has(row[place]):
                value = _number(row[place])
                if value is None:
                    where = f"{path.name} row {table.numbers[number]}, column {names[column]}"
                    raise InputError(
                        f"{where}: must be a number, got {shown(row[place])}; mark missing entries with --missing"
                    )
                found[number, column] = value
    return found


def _nameless(path: Path, table: TableCells, gaps: _Gaps, axis: int | None, lengths: Any) -> NumberFile:
    columns = range(len(table.cells[0]))
    _rectangular(path, table, f"where others have {len(columns)}")
    array = _floats(path, table, columns, [str(place + 1) for place in columns], gaps)
    rows = len(array)
    if len(columns) > 1 and axis is None and lengths is None:
        raise InputError(
            f"{path.name}: {rows} rows of {len(columns)} numbers are ambiguous: add a header with column names to read "
            f"{rows} observations of {len(columns)} coordinates, --axis 0 for {len(columns)} sequences of {rows} numbers, "
            f"or --axis 1 for {rows} sequences of {len(columns)} numbers"
        )
    how = "one sequence of numbers" if axis is None else f"each {('column', 'row')[axis]} a sequence"
    return NumberFile(read_vectors(array, axis=axis, lengths=lengths), f"{path.name}, {how}")


def _rectangular(path: Path, table: TableCells, rule: str) -> None:
    for number, row in zip(table.numbers, table.cells, strict=True):
        if len(row) != len(table.cells[0]):
            raise InputError(f"{path.name} row {number}: {len(row)} cells {rule}")


def _names(column: str, table: TableCells) -> list[str]:
    return [column] if column in table.cells[0] else [name.strip() for name in column.split(",")]


def _named(
    path: Path,
    table: TableCells,
    gaps: _Gaps,
    column: str | None,
    group: str | None,
    axis: int | None,
    lengths: Any,
) -> tuple[NumberFile, str | None]:
    header = table.cells[0]
    if axis is not None:
        raise InputError(f"{path.name}: axis applies to tables without column names; here each row is an observation")
    for name in header:
        if header.count(name) > 1:
            raise InputError(f"{path.name}: {header.count(name)} columns have the name {shown(name)}")
    if column is None:
        chosen = [name for name in header if name != group]
    else:
        chosen = _names(column, table)
    for name in (*chosen, *([group] if group is not None else [])):
        if name not in header:
            raise unknown_name("column", name, header)
    if not chosen or len(table.cells) == 1:
        raise InputError(f"{path.name}: contains no {'numbers' if chosen else 'column of numbers'}")
    _rectangular(path, table, f"where the header has {len(header)}")
    body = TableCells(table.cells[1:], table.numbers[1:])
    array = _floats(path, body, [header.index(name) for name in chosen], chosen, gaps)
    how = f"{path.name}, {'columns' if len(chosen) > 1 else 'column'} {', '.join(chosen)}"
    kept = None if len(chosen) > 1 and any("," in name for name in chosen) else ",".join(chosen)
    if group is None:
        return NumberFile(read_vectors(array, lengths=[len(array)] if lengths is None else lengths), how), kept
    if lengths is not None:
        raise InputError(f"{path.name}: give either lengths or group; both define where sequences end")
    runs = [(key, len(list(own))) for key, own in itertools.groupby(row[header.index(group)] for row in body.cells)]
    again = [key for place, (key, _) in enumerate(runs) if any(key == before for before, _ in runs[:place])]
    if again:
        raise InputError(
            f"{path.name}: group {shown(again[0])} appears in separate blocks of rows; sort the rows by {group}"
        )
    vectors = read_vectors(array, lengths=[count for _, count in runs])
    return NumberFile(vectors, f"{how}, each {group} a sequence"), kept


def _array(path: Path, column: str | None, axis: int | None, lengths: Any, symbols_from: ReadOptions) -> NumberFile:
    if path.suffix.lower() == ".npy":
        return _vectors_of(read_npy(path), path.name, None, axis, lengths, symbols_from)
    arrays = dict(read_npz(path))
    names = [name for name in arrays if name != "lengths"]
    column = symbols_from.column if column is None and symbols_from.column in names else column
    if column is None and len(names) != 1:
        raise InputError(f"{path.name}: contains the arrays {', '.join(names)}; choose one with column (--column)")
    name = names[0] if column is None else column
    if name not in names:
        raise unknown_name("column", name, names)
    if lengths is None and "lengths" in arrays:
        lengths = np.asarray(torch.as_tensor(arrays["lengths"]))
    return _vectors_of(arrays[name], f"{path.name}, array {name}", column, axis, lengths, symbols_from)


def _vectors_of(
    array: NDArray[Any], how: str, column: str | None, axis: int | None, lengths: Any, symbols_from: ReadOptions
) -> NumberFile:
    if axis is None and lengths is None and np.ndim(array) == 2:
        axis = symbols_from.axis
    reading = None if column is None and axis is None else ReadOptions(column=column, axis=axis)
    return NumberFile(read_vectors(array, axis=axis, lengths=lengths), how, reading)
