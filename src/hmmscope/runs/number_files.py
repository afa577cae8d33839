"""Files of numbers as sequences of vectors: tables whose columns are coordinates, and arrays."""

import csv
import io
import itertools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.runs.number_sequences import Vectors, read_vectors
from hmmscope.schema import shown, unknown_name
from hmmscope.storage import store
from hmmscope.storage.mapped import read_npy, read_npz

TABLES, ARRAYS = {".csv": ",", ".tsv": "\t"}, (".npy", ".npz")
#: What stands for a missing entry, if nothing else is said; an empty cell does too.
MISSING = ("NA", "NaN", "nan")
_MAX_TEXT = 1 << 30


class NumberFile(NamedTuple):
    """What a file holds.

    Attributes:
        vectors: the sequences.
        how: they were read, in words.
    """

    vectors: Vectors
    how: str


def read_number_file(
    path: str | Path,
    *,
    column: str | None = None,
    group: str | None = None,
    missing: Any = None,
    axis: int | None = None,
    lengths: Any = None,
) -> NumberFile:
    """Sequences of vectors from a file.

    A table (.csv, .tsv) has one observation a row, and its first row names the columns, which are coordinates. Without names
    one column is one sequence of numbers; several are refused unless `axis` says that each entry is an observation. An array
    (.npy, .npz) is read as `read_vectors` reads arrays.

    Args:
        path: of the file.
        column: names of the columns to read, with commas between them (default: all but `group`); of .npz, of the array.
        group: the column that says of which sequence a row is; each run of rows of one group is a sequence.
        missing: names of a missing entry, beside an empty cell (default: NA, NaN, nan).
        axis, lengths: as of `read_vectors`.

    Raises:
        InputError: another ending; a cell that is no number; columns that are not there; what can be read in several ways.
        DamagedError: an array that is not whole.
    """
    path = Path(path)
    ending = path.suffix.lower()
    if ending in ARRAYS:
        if group is not None or missing is not None:
            raise InputError(f"{path.name}: group and missing are for tables; in an array a missing entry is NaN")
        return _array(path, column, axis, lengths)
    if ending not in TABLES:
        known = ", ".join((*TABLES, *ARRAYS))
        raise InputError(f"{path.name}: numbers are read from {known}, got {ending or 'no ending'}")
    text = store.read_text(path, limit=_MAX_TEXT)
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=TABLES[ending]) if any(map(str.strip, row))]
    cells = [[cell.strip() for cell in row] for row in rows]
    if not cells:
        raise InputError(f"{path.name}: holds no numbers")
    gaps = frozenset(MISSING if missing is None else missing) | {""}
    if all(cell in gaps or _number(cell) is not None for cell in cells[0]):
        if column is not None or group is not None:
            raise InputError(f"{path.name}: has no first row that names columns, which column and group are about")
        return _nameless(path, cells, gaps, axis, lengths)
    return _named(path, cells, gaps, column, group, axis, lengths)


def _number(cell: str) -> float | None:
    try:
        found = float(cell)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _floats(path: Path, cells: list[list[str]], names: list[str], gaps: frozenset[str], first: int) -> NDArray[Any]:
    """The cells as numbers, NaN where one is missing; `first` is the number of the first row."""
    found = np.full((len(cells), len(names)), np.nan)
    for number, row in enumerate(cells):
        if len(row) != len(names):
            raise InputError(f"{path.name} row {number + first}: {len(row)} cells where others have {len(names)}")
        for place, cell in enumerate(row):
            if cell not in gaps:
                value = _number(cell)
                if value is None:
                    where = f"{path.name} row {number + first}, column {names[place]}"
                    raise InputError(f"{where}: must be a number, got {shown(cell)}; --missing names a missing entry")
                found[number, place] = value
    return found


def _nameless(path: Path, cells: list[list[str]], gaps: frozenset[str], axis: int | None, lengths: Any) -> NumberFile:
    array = _floats(path, cells, [str(place + 1) for place in range(len(cells[0]))], gaps, 1)
    rows, columns = array.shape
    if columns > 1 and axis is None and lengths is None:
        raise InputError(
            f"{path.name}: {rows} rows of {columns} numbers can be read in three ways: with a first row that names columns, "
            f"as {rows} observations of {columns} coordinates; with --axis 0 as {columns} sequences of {rows} numbers; with "
            f"--axis 1 as {rows} of {columns}"
        )
    how = "one sequence of numbers" if axis is None else f"each {('column', 'row')[axis]} a sequence"
    return NumberFile(read_vectors(array, axis=axis, lengths=lengths), f"{path.name}, {how}")


def _named(
    path: Path,
    cells: list[list[str]],
    gaps: frozenset[str],
    column: str | None,
    group: str | None,
    axis: int | None,
    lengths: Any,
) -> NumberFile:
    header, body = cells[0], cells[1:]
    if axis is not None:
        raise InputError(f"{path.name}: axis is for numbers without names; here each row is an observation")
    for name in header:
        if header.count(name) > 1:
            raise InputError(f"{path.name}: {header.count(name)} columns are named {shown(name)}")
    chosen = [name for name in header if name != group] if column is None else [n.strip() for n in column.split(",")]
    for name in (*chosen, *([group] if group is not None else [])):
        if name not in header:
            raise unknown_name("column", name, header)
    if not chosen or not body:
        raise InputError(f"{path.name}: holds no {'numbers' if chosen else 'column of numbers'}")
    for number, row in enumerate(body, 2):
        if len(row) != len(header):
            raise InputError(f"{path.name} row {number}: {len(row)} cells where the header has {len(header)}")
    places = [header.index(name) for name in chosen]
    array = _floats(path, [[row[place] for place in places] for row in body], chosen, gaps, 2)
    how = f"{path.name}, {'columns' if len(chosen) > 1 else 'column'} {', '.join(chosen)}"
    if group is None:
        return NumberFile(read_vectors(array, lengths=[len(array)] if lengths is None else lengths), how)
    runs = [(key, len(list(own))) for key, own in itertools.groupby(row[header.index(group)] for row in body)]
    again = [key for place, (key, _) in enumerate(runs) if any(key == before for before, _ in runs[:place])]
    if again:
        raise InputError(
            f"{path.name}: group {shown(again[0])} comes in several runs of rows; sort the rows by {group}"
        )
    return NumberFile(read_vectors(array, lengths=[count for _, count in runs]), f"{how}, each {group} a sequence")


def _array(path: Path, column: str | None, axis: int | None, lengths: Any) -> NumberFile:
    if path.suffix.lower() == ".npy":
        return NumberFile(read_vectors(read_npy(path), axis=axis, lengths=lengths), path.name)
    arrays = dict(read_npz(path))
    names = [name for name in arrays if name != "lengths"]
    if column is None and len(names) != 1:
        raise InputError(f"{path.name}: holds the arrays {', '.join(names)}; choose one with column (--column)")
    name = names[0] if column is None else column
    if name not in names:
        raise unknown_name("column", name, names)
    if lengths is None and "lengths" in arrays:
        lengths = np.asarray(torch.as_tensor(arrays["lengths"]))
    return NumberFile(read_vectors(arrays[name], axis=axis, lengths=lengths), f"{path.name}, array {name}")
