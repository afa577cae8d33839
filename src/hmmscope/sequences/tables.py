"""Tables: text with separators, Parquet, frames and mappings, as named columns."""

import bz2
import csv
import gzip
import io
import lzma
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import DamagedError, InputError, ResourceError
from hmmscope.schema import shown, unknown_name
from hmmscope.sequences.columns import as_labels, labels_of, to_plain
from hmmscope.sequences.gaps import is_nothing
from hmmscope.sequences.time_axis import Steps, TimeAxis, put_on_grid
from hmmscope.storage import disk
from hmmscope.system_info import require_memory

#: Most characters of a text file, and of a cell in it.
MAX_TEXT = 1 << 30
#: Possible separators of cells by ending of the file; the first lines show which one a file uses.
SEPARATORS = {".csv": ",;\t|", ".tsv": "\t"}
_PACKED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_MARKS = {b"\xff\xfe\x00\x00": "utf-32", b"\x00\x00\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_SAMPLE = 200
_COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
#: Name by which the index of a frame is chosen as a column.
INDEX = "index"


def ending_of(path: Path) -> str:
    ending = path.suffix.lower()
    return Path(path.stem).suffix.lower() if ending in _PACKED else ending


def read_text(path: Path, limit: int = MAX_TEXT) -> str:
    """Read text in UTF-8, or UTF-16 or UTF-32 with a byte-order mark; gzip, bzip2 and xz are unpacked."""
    with disk.reading(path, managed=False, limit=limit) as file:
        require_memory(f"{path}", 40 * os.fstat(file.fileno()).st_size)
        opener = _PACKED.get(path.suffix.lower())
        if opener is None:
            data = file.read()
        else:
            try:
                with opener(file, "rb") as packed:
                    data = packed.read(limit + 1)
            except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
                raise DamagedError(f"{path}: cannot be unpacked ({' '.join(str(error).split())[:100]})") from None
            if len(data) > limit:
                raise InputError(f"{path}: has more than {limit} bytes when unpacked; split it")
            require_memory(f"{path}", 40 * len(data))
    encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), "utf-8-sig")
    begin = data[:10_000]
    if 0 in begin and encoding == "utf-8-sig":
        wide = "UTF-32" if begin.count(0) > len(begin) / 2 else "UTF-16"
        wide += "BE" if begin[::2].count(0) > begin[1::2].count(0) else "LE"
        raise InputError(f"{path}: is {wide} text without a byte-order mark, or binary; save it as UTF-8")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not {encoding.removesuffix('-sig').upper()} text; save it as UTF-8") from None


class TableCells(NamedTuple):
    """The rows of a table, their row numbers from 1, and the separator."""

    rows: list[list[str]]
    numbers: list[int]
    separator: str


def read_cells(text: str, what: str, separators: str) -> TableCells:
    """Return the cells of a table in text, without spaces around them.

    A blank line in a table of one column is an empty cell, except at the end.
    """
    named = re.match(r"sep=(.)\r?\n", text)
    first = 1 + bool(named)
    text, separators = (text[named.end() :], named[1]) if named else (text, separators)
    limit = csv.field_size_limit(MAX_TEXT)
    try:
        rows = _parsed(text, separator := separator_of(text, separators))
    except csv.Error as error:
        raise InputError(f"{what}: not CSV ({error})") from None
    finally:
        csv.field_size_limit(limit)
    while rows and not rows[-1]:
        rows.pop()
    one_column = any(rows) and len(next(filter(None, rows))) == 1
    kept = [number for number, row in enumerate(rows) if row or one_column]
    return TableCells([[cell.strip() for cell in rows[k]] or [""] for k in kept], [k + first for k in kept], separator)


def _parsed(text: str, separator: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text), delimiter=separator, strict=True))


def separator_of(text: str, separators: str) -> str:
    if len(separators) == 1:
        return separators
    lines = [line for line in text[: 64 * _SAMPLE * 80].splitlines()[:_SAMPLE] if line.strip()]
    counts: dict[str, set[int]] = {}
    for separator in separators:
        try:
            counts[separator] = {len(row) for row in csv.reader(lines, delimiter=separator)}
        except csv.Error:
            counts[separator] = {1}
    default, others = separators[0], separators[1:]
    fitting = [one for one in others if len(counts[one]) == 1 and max(counts[one]) > 1]
    if not fitting or not lines:
        return default
    best = max(fitting, key=lambda one: max(counts[one]))
    plain = len(counts[default]) == 1 and max(counts[default]) > 1
    if not plain:
        return best
    cells = [cell.strip() for row in csv.reader(lines[1:] or lines, delimiter=best) for cell in row]
    return best if any(_COMMA_NUMBER.fullmatch(cell) for cell in cells) else default


class Table:
    """Rows with named columns.

    Args:
        what: name of the source in messages.
        names: names of the columns.
        take: function from the name of a column to its cells.
        numbers: numbers of the rows in the file, from 1.
        labels: labels of the rows, or None.
        separator: separator of the cells in the file.
        header: alphabet from the first line of a .jsonl file, or None.
    """

    def __init__(
        self,
        what: str,
        names: Iterable[object],
        take: Callable[[str], Any],
        numbers: Sequence[int] | None = None,
        labels: Any = None,
        separator: str = ",",
        header: Any = None,
    ) -> None:
        self.what, self.names, self._take = what, list(map(str, names)), take
        self.numbers, self.labels, self.separator, self.header = numbers, labels, separator, header

    def raw(self, name: str) -> Any:
        if name in self.names or not self.has(name):
            return self._take(name)
        levels = list(map(str, self.labels.names))
        return self.labels.get_level_values(levels.index(name)) if name in levels else self.labels

    def column(self, name: str) -> Any:
        cells = to_plain(self.raw(name))
        if isinstance(cells, np.ndarray) and cells.ndim == 1:
            return cells
        if isinstance(cells, str | bytes | Mapping) or not isinstance(cells, Iterable):
            raise InputError(f"{self.what}: column {name}: must be a list of rows, got {shown(cells)}")
        return list(cells)

    def row_numbers(self) -> list[str]:
        """Return the name of the first column, in a list, if its cells are the row numbers; else an empty list."""
        if len(self.names) > 1 and self.names[0] in ("", "Unnamed: 0"):
            cells = list(map(str, self.column(self.names[0])))
            return self.names[:1] * any(cells == [str(k + first) for k in range(len(cells))] for first in (0, 1))
        return []

    def has(self, name: str) -> bool:
        return name in self.names or (self.labels is not None and name in (INDEX, *map(str, self.labels.names)))

    def where(self, row: int) -> str:
        return f"{self.what}: row {row + 1 if self.numbers is None else self.numbers[row]}"

    def place(self, row: int, column: str) -> str:
        return f"{self.where(row)}, column {column}"

    def require(self, name: str, field: str) -> None:
        if not self.has(name):
            raise unknown_name(field, name, self.names)
        if self.names.count(name) > 1:
            raise InputError(f"{self.what}: {field}: {self.names.count(name)} columns are named {shown(name)}")

    def steps(self, group: str | None, axis: TimeAxis | None, count: int) -> Steps:
        """Return the rows of each sequence in order of time; without `axis`, in their order."""
        groups: list[tuple[Any, NDArray[np.int64]]] = [(None, np.arange(count))]
        if group is not None:
            groups = self._groups(group, count)
        if axis is None:
            rows = np.concatenate([rows for _, rows in groups])
            index = rows if group is not None else None
            index = index if self.labels is None else as_labels(self.labels)[rows]
            names = None if group is None else tuple(name for name, _ in groups)
            return Steps(rows, np.array([len(rows) for _, rows in groups]), index, names)
        self.require(axis.time, "time")
        if not count:
            raise InputError(f"{self.what}: holds no row")
        cells = self.column(axis.time)
        return put_on_grid(cells, groups, axis, lambda row: self.place(row, axis.time))

    def _groups(self, group: str, count: int) -> list[tuple[Any, NDArray[np.int64]]]:
        self.require(group, "group")
        keys = self.column(group)
        keys = keys.tolist() if isinstance(keys, np.ndarray) else keys
        if len(keys) != count:
            raise InputError(f"{self.what}: column {group} has {len(keys)} rows, but the observations have {count}")
        found: dict[Any, list[int]] = {}
        for row, key in enumerate(keys):
            if is_nothing(key) or (isinstance(key, str) and not key.strip()):
                said = "is empty" if isinstance(key, str) else f"is {key}"
                raise InputError(f"{self.place(row, group)}: {said}, so the row has no group; leave out the row")
            if isinstance(key, list | dict):
                raise InputError(f"{self.place(row, group)}: must be a name or number, got {shown(key)}")
            found.setdefault(key, []).append(row)
        whole = [isinstance(key, int | np.integer) and not isinstance(key, bool) for key in found]
        names = [int(key) if own else str(key) for key, own in zip(found, whole, strict=True)]
        return list(zip(names, map(np.array, found.values()), strict=True))


def table_of(source: Any, what: str) -> Table:
    if isinstance(source, np.ndarray):
        return Table(what, source.dtype.names or (), lambda name: source[name])
    if hasattr(source, "collect_schema") and hasattr(source, "collect"):  # a lazy frame
        source = source.collect()
    if hasattr(source, "data_vars"):  # xarray
        beside = [name for name in source.coords if name not in source.indexes]
        keys = {str(name): name for name in (*source.data_vars, *beside)}
        return Table(what, keys, lambda name: source[keys[name]], labels=labels_of(source))
    names = getattr(source, "column_names", None)
    if names is None:
        names = list(source) if isinstance(source, Mapping) else source.columns
    if isinstance(names, Mapping):
        splits = " or ".join(f"source[{name!r}]" for name in list(names)[:3])
        raise InputError(f"{what}: has several splits; pass one of them, {splits}")
    keys = {str(name): name for name in names}  # columns may be numbers
    return Table(what, names, lambda name: source[keys[name]], labels=labels_of(source))


def csv_table(cells: TableCells, what: str) -> Table:
    header, body, numbers = cells.rows[0], cells.rows[1:], cells.numbers[1:]
    for number, row in zip(numbers, body, strict=True):
        if len(row) != len(header):
            raise InputError(f"{what}: row {number}: has {len(row)} cells, but the header has {len(header)}")
    return Table(
        what, header, lambda name: [row[header.index(name)] for row in body], numbers, separator=cells.separator
    )


def parquet_table(path: Path) -> Table:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ResourceError(f"{path}: Parquet needs pyarrow; run pip install 'hmmscope[parquet]'") from None

    def within(read: Callable[[Any], Any]) -> Any:
        with disk.reading(path, managed=False) as file:
            try:
                return read(parquet.ParquetFile(file))
            except ResourceError:
                raise
            except Exception as error:
                raise DamagedError(f"{path.name}: not Parquet ({' '.join(str(error).split())[:100]})") from None

    def names(found: Any) -> list[str]:
        size = sum(found.metadata.row_group(k).total_byte_size for k in range(found.num_row_groups))
        require_memory(f"{path}", 60 * size)
        return [name for name in found.schema_arrow.names if not re.fullmatch(r"__index_level_\d+__", name)]

    return Table(path.name, within(names), lambda name: within(lambda found: found.read(columns=[name]).column(name)))
