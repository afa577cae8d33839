"""Sequences of vectors of numbers: reading of arrays, tables and files."""

import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.schema import require, require_count, require_known, shown, unknown_name
from hmmscope.sequences import sources
from hmmscope.sequences.columns import as_labels, listed_columns, own_rows, to_plain
from hmmscope.sequences.gaps import Missing
from hmmscope.sequences.number_cells import (
    BOOLEANS,
    NumberMarkers,
    as_numbers,
    counts_of,
    floats_of,
    headed_table,
    is_array,
    is_flat,
    names_in,
    split_names,
)
from hmmscope.sequences.read_options import TIME_OPTIONS, ReadOptions
from hmmscope.sequences.read_request import check_header
from hmmscope.sequences.sources import NUMBERS, OBSERVATIONS
from hmmscope.sequences.tables import SEPARATORS, Table, TableCells, ending_of, read_cells, table_of
from hmmscope.sequences.time_axis import Steps
from hmmscope.sequences.time_stamps import stored_duration

_COLUMN = "value"


@dataclass(frozen=True, eq=False, repr=False)
class VectorData:
    """Sequences of vectors, of any lengths and with missing entries; see `read_vectors`.

    Attributes:
        rows: vectors of all sequences, one after the other (row, coordinate); NaN marks a missing entry.
        lengths: lengths of the sequences (sequence,).
        columns: names of the coordinates, or None.
        how, read_options: see `hmmscope.SequenceData`.
        steps: time stamps or labels of the rows, and names of the sequences, or None.
        in_table: the columns in the order of the table, or empty.
    """

    rows: Float64[Tensor, "row coordinate"]
    lengths: Int64[Tensor, " sequence"]
    columns: tuple[str, ...] | None = None
    how: str = ""
    read_options: ReadOptions | None = None
    steps: Steps | None = None
    in_table: tuple[str, ...] = ()

    @property
    def moved(self) -> bool:
        """True if groups or times reordered the rows of a table."""
        return self.steps is not None and self.steps.moved

    @property
    def index(self) -> list[NDArray[Any]] | None:
        """Time stamps (datetime64; datetimes if zoned), labels or indices of each sequence's rows, or None."""
        if self.steps is None or self.steps.index is None:
            return None
        return np.split(self.steps.index, np.cumsum(self.lengths.numpy())[:-1])

    @property
    def alphabets(self) -> dict[str, tuple[str, ...]]:
        """Names in each column of names."""
        return (self.read_options and self.read_options.alphabets) or {}

    @property
    def names(self) -> tuple[Any, ...] | None:
        """Names of the sequences, or None."""
        return None if self.steps is None else self.steps.names

    @property
    def num_observations(self) -> int:
        """Number of rows in which at least one entry is observed."""
        return int((~self.rows.isnan()).any(1).sum())

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def sequences(self) -> tuple[Float64[Tensor, "time coordinate"], ...]:
        return self.rows.split(self.lengths.tolist())

    def __getitem__(self, number: int) -> Float64[Tensor, "time coordinate"]:
        return self.sequences[number]

    def padded(self) -> Float64[Tensor, "sequence time coordinate"]:
        """Return an array of all sequences, padded with NaN."""
        parts = list(self.sequences)
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=torch.nan)

    def with_boolean_numbers(self) -> "VectorData":
        """Return the data with booleans as 0 and 1 in columns of numbers."""
        options, names = self.read_options, {one: own for one, own in self.alphabets.items() if own != BOOLEANS}
        if options is None or len(names) == len(self.alphabets):
            return self
        order = (*(name for name in self.in_table if name not in names), *names)
        column = options.column and ",".join(order)
        reading, how = replace(options, column=column, alphabets=names or None), self.how
        for name in set(self.alphabets) - set(names):
            how = how.replace(f"{name} (2 names)", name)
        return replace(_in_order(self, order), read_options=reading, how=how)

    def describe(self) -> str:
        width, least, most = self.rows.shape[1], int(self.lengths.min()), int(self.lengths.max())
        said = f"{self.num_observations} observations of {width} coordinate{'s' * (width != 1)} in {len(self)} sequence"
        said += f"{'s' * (len(self) != 1)} of {least}" + (f" to {most}" if most > least else "")
        gaps = int(self.rows.isnan().sum())
        said += f", {gaps} missing number{'s' * (gaps != 1)}" if gaps else ""
        return f"{self.how}: {said}" if self.how else said

    def __repr__(self) -> str:
        return f"VectorData({self.describe()})"


def read_vectors(
    source: Any,
    *,
    column: Any = None,
    group: str | None = None,
    missing: Any = None,
    axis: int | None = None,
    lengths: Any = None,
    symbols_from: ReadOptions | None = None,
    width: int | None = None,
    **time_axis: Any,
) -> VectorData:
    """Read sequences of vectors of numbers.

    A table has one observation per row, and its columns are coordinates: columns of numbers, then columns of names,
    each name as its index in alphabetical order. Arrays (time,) and (time, 1) are one sequence
    of numbers, arrays (sequence, time, coordinate) are several sequences, and a list has one array per sequence. A 2-d
    array without column names needs `lengths` or `width` if its rows are vectors, or `axis` if each entry is an
    observation.

    Args:
        source: array, tensor, list, frame, mapping of columns, `VectorData`, or a file (.txt, .csv, .tsv, .parquet,
            .jsonl, .json, .npy, .npz, .safetensors; text may be compressed).
        column: names of columns, as a list or separated by commas (default: all but `group` and `time`); for files of
            arrays, the name of the array.
        group, axis, lengths: see `hmmscope.SequenceData`.
        missing: values that mark a missing entry (default: NA, NaN, nan); an empty cell is always missing.
        symbols_from: `read_options` of an earlier result, used for the options that are not given here.
        width: number of coordinates, if known.
        time_axis: `time`, `every`, `gap`, `sort` and `duplicates`, see `hmmscope.SequenceData`.

    Raises:
        InputError: there are no numbers, a column is missing, the layout is ambiguous, or a number is infinite.
        DamagedError: the file is incomplete.
    """
    for name in time_axis:
        if name not in TIME_OPTIONS:
            raise unknown_name("option", name, ("column", "group", "missing", "axis", "lengths", *TIME_OPTIONS))
    by_time = {name: time_axis.get(name) for name in ("time", "duplicates")} | {"sort": time_axis.get("sort") or None}
    by_time |= {name: stored_duration(time_axis.get(name), name) for name in ("every", "gap")}
    listed = isinstance(column, Collection) and getattr(column, "ndim", 1) == 1
    require(listed or isinstance(column, int | np.integer | None), "column", "must be a name or list of names", column)
    good = isinstance(symbols_from, ReadOptions | None)
    require(good, "symbols_from", "must be the read_options of an earlier result", symbols_from)
    if width is not None:
        require_count("width", width)
    columns, group = listed_columns(column), None if group is None else str(group)
    names = None if missing is None else Missing.of(missing).names
    wanted = ReadOptions(group=group, axis=axis, missing=names, **by_time)
    source, lengths = own_rows(source, lengths)
    asked = _Request(columns, wanted, lengths, symbols_from or ReadOptions(), width)
    if isinstance(source, VectorData):
        if source.alphabets and asked.kept.alphabets not in (None, source.alphabets):
            raise InputError("source: has other names than the model; read it with symbols_from=hmm.read_options")
        other = next((name for name, value in wanted.to_data().items() if value is not None), None)
        if other is not None or columns or lengths is not None:
            raise InputError(f"{other or 'column, lengths'}: VectorData is already read; leave out options for reading")
        return _in_order(source, (asked.kept.column or "").split(","))
    if isinstance(source, os.PathLike | str):
        path, ending = Path(source), ending_of(Path(source))
        if ending not in NUMBERS:
            rule = f"use one of {', '.join(NUMBERS)}"
            raise InputError(f"{path.name}: cannot read numbers from {ending or 'a file without ending'}; {rule}")
        return _read(sources.open_file(path), asked, path.name, path.name)
    return _read(sources.open_object(source, "source"), asked, "source", "")


def _in_order(data: VectorData, names: Sequence[str]) -> VectorData:
    known = data.columns or ()
    if list(names) == list(known) or not all(name in known for name in names):
        return data
    return replace(data, rows=data.rows[:, [known.index(name) for name in names]], columns=tuple(names))


@dataclass(frozen=True)
class _Request:
    columns: list[str] | None
    options: ReadOptions
    lengths: Any
    kept: ReadOptions
    width: int | None

    def chosen(self, table: Table) -> tuple[list[str] | None, ReadOptions]:
        columns, options, kept = self.columns, self.options, self.kept
        if columns is None and kept.column is not None:
            known = [name for name in split_names(kept.column, table) if table.has(name)]
            absent = [name for name in split_names(kept.column, table) if name not in known]
            if known and absent:
                raise InputError(
                    f"{table.what}: has {', '.join(known)} but not {', '.join(absent)}, which the model was fitted to; "
                    "name the columns in the order of the model with column= (--column)"
                )
            columns = None if absent else [kept.column]
        values = {name: getattr(options, name) for name in ("group", "missing", *TIME_OPTIONS)}
        if values["group"] is None and kept.group is not None and table.has(kept.group):
            values["group"] = kept.group
        if values["time"] is None and kept.time is not None and table.has(kept.time):
            values |= {name: getattr(kept, name) for name in TIME_OPTIONS}
        if values["missing"] is None:
            values["missing"] = kept.missing
        names = [name for one in columns for name in split_names(one, table)] if columns is not None else None
        return names, ReadOptions(**values)

    def alphabets(self, table: Table, chosen: list[str], gaps: NumberMarkers) -> dict[str, tuple[str, ...]]:
        if self.kept.alphabets is not None or self.width is not None:  # the model's
            return {name: names for name, names in (self.kept.alphabets or {}).items() if name in chosen}
        found = {name: names for name in chosen if (names := names_in(table, name, gaps))}
        return found if len(found) < len(chosen) else {}


def _read(source: sources.Source, asked: _Request, what: str, how: str) -> VectorData:
    match source:
        case sources.Text(text, "lines") if text.strip():
            return _read(read_cells(text, what, SEPARATORS[".csv"]), asked, what, how)
        case TableCells([]) | sources.Plain([]) | sources.Text():
            pass
        case TableCells():
            missing = NumberMarkers.of(asked.options.missing or asked.kept.missing)
            table = headed_table(source, what, missing)
            return _nameless(what, source, asked, missing) if table is None else _of_table(table, asked)
        case Table():
            return _of_table(source, asked)
        case sources.Arrays(arrays, None) if "lengths" not in arrays:
            return _of_table(table_of(arrays, what), asked)
        case sources.Arrays() if source.names:
            return _of_arrays(source, asked, what, how)
        case sources.Plain():
            return _of_plain(source, asked, what, how)
    raise InputError(f"{what}: contains no numbers")


def _of_arrays(source: sources.Arrays, asked: _Request, what: str, how: str) -> VectorData:
    arrays, names = source.arrays, source.names
    if source.header is not None:
        check_header(source.header, what)
        _arrays_only(what, asked)
    column = asked.columns[0] if asked.columns else asked.kept.column if asked.kept.column in names else None
    if column is None and len(names) != 1 and OBSERVATIONS not in names:
        raise InputError(f"{what}: contains the arrays {', '.join(names)}; choose one with column (--column)")
    name = column or (OBSERVATIONS if OBSERVATIONS in names else names[0])
    require_known("column", name, names)
    lengths = arrays.get("lengths") if asked.lengths is None else asked.lengths
    again = _Request(None, asked.options, lengths, asked.kept, asked.width)
    what = f"{what}, array {name}" if source.named else what
    found = _read(sources.open_object(arrays[name], what), again, what, how and what)
    options = found.read_options or ReadOptions()
    return replace(found, read_options=replace(options, column=column or options.column) or None)


def _arrays_only(what: str, asked: _Request) -> None:
    for name in ("group", "missing", "time"):
        if getattr(asked.options, name) is not None:
            raise InputError(f"{what}: {name} applies to tables only; arrays mark missing entries with NaN")


def _lists(rows: list[Any], asked: _Request, how: str) -> VectorData:
    parts = []
    for number, row in enumerate(rows):
        width = next((len(one) for one in row if isinstance(one, list)), 0) if isinstance(row, list) else 0
        whole = [math.nan] * width if width else math.nan
        if not isinstance(row, list) or not row:
            raise InputError(f"{how}: sequence {number + 1}: must be a list of vectors, got {shown(row)}")
        filled = [
            whole if one is None else [math.nan if v is None else v for v in one] if isinstance(one, list) else one
            for one in row
        ]
        parts.append(as_numbers(filled, f"{how}: sequence {number + 1}"))
    return joined([part[:, None] if part.ndim == 1 else part for part in parts], how)


def _of_plain(source: sources.Plain, asked: _Request, what: str, how: str) -> VectorData:
    values, labels = source.values, source.labels
    if labels is not None and asked.options.time is not None:
        name = str(getattr(values, "name", None) or _COLUMN)
        return _of_table(Table(what, [name], lambda _: values, labels=labels), asked)
    _arrays_only(what, asked)
    if asked.columns is not None:
        raise InputError(f"{what}: column applies to tables, but this source has no column names")
    found = _of_array(values, asked, how, what)
    if labels is None or len(labels) != len(found.rows):
        return found
    return replace(found, steps=Steps(np.arange(len(found.rows)), found.lengths.numpy(), as_labels(labels), None))


def _of_table(table: Table, asked: _Request) -> VectorData:
    name = asked.columns[0] if asked.columns and len(asked.columns) == 1 else OBSERVATIONS
    if table.header is not None and table.has(name) and isinstance((rows := table.column(name))[0], list):
        return _lists(rows, asked, f"{table.what}, field {name}")
    columns, options = asked.chosen(table)
    if asked.options.axis is not None:
        raise InputError(f"{table.what}: axis applies to tables without column names; here each row is an observation")
    for name in table.names:
        if table.names.count(name) > 1:
            raise InputError(f"{table.what}: {table.names.count(name)} columns have the name {shown(name)}")
    aside = (options.group, options.time, *table.row_numbers())
    chosen = columns if columns is not None else [n for n in table.names if n not in aside]
    for field, given in (("column", chosen), ("group", [options.group]), ("time", [options.time])):
        for name in filter(None, given):
            table.require(name, field)
    gaps = NumberMarkers.of(options.missing)
    alphabets = asked.alphabets(table, chosen, gaps)
    in_table, chosen = tuple(chosen), [*(name for name in chosen if name not in alphabets), *alphabets]
    arrays = [floats_of(table, name, gaps, alphabets.get(name)) for name in chosen]
    if not arrays or not len(arrays[0]):
        raise InputError(f"{table.what}: contains no {'numbers' if chosen else 'column of numbers'}")
    said = (f"{name} ({len(alphabets[name])} names)" if name in alphabets else name for name in chosen)
    how = f"{table.what}, {'columns' if len(chosen) > 1 else 'column'} {', '.join(said)}"
    kept = None if len(chosen) > 1 and any("," in name for name in chosen) else ",".join(chosen)
    reading = replace(options, column=kept, alphabets=alphabets or None)
    array = np.stack(arrays, 1)
    labels = table.labels is not None or options.group is not None or options.time is not None
    if asked.lengths is not None:
        if options.group is not None or options.time is not None:
            other = "group" if options.group is not None else "time"
            raise InputError(f"{table.what}: give either lengths or {other}; both define where sequences end")
        counts = counts_of(asked.lengths, len(array))
    else:
        counts = [len(array)]
    steps = table.steps(options.group, options.axis_of_time, len(array)) if labels else None
    if steps is not None:
        array = np.where(steps.rows[:, None] < 0, np.nan, array[steps.rows])
        counts = counts if asked.lengths is not None else steps.lengths.tolist()
    how += f", each {options.group} a sequence" if options.group is not None else ""
    how += f"; {steps.summary}" if steps is not None and steps.summary else ""
    if np.isnan(array).all():
        raise InputError(f"{table.what}: every observation is missing")
    rows, lengths = torch.from_numpy(array), torch.tensor(counts)
    return VectorData(rows, lengths, tuple(chosen), how, reading or None, steps, in_table)


def _nameless(what: str, cells: TableCells, asked: _Request, gaps: NumberMarkers) -> VectorData:
    for name in ("columns", "group", "time"):
        given = asked.columns if name == "columns" else getattr(asked.options, name)
        if given is not None:
            raise InputError(f"{what}: has no header with column names, which the option {name.rstrip('s')} needs")
    width = len(cells.rows[0])
    for number, row in zip(cells.numbers, cells.rows, strict=True):
        if len(row) != width:
            raise InputError(f"{what}: row {number}: {len(row)} cells, but the first row has {width}")
    names = [str(place + 1) for place in range(width)]
    table = Table(what, names, lambda name: [row[int(name) - 1] for row in cells.rows], cells.numbers)
    array = np.stack([floats_of(table, name, gaps) for name in names], 1)
    axis, rows = _axis(asked, array), len(array)
    if width > 1 and axis is None and asked.lengths is None and asked.width != width:
        raise InputError(
            f"{what}: {rows} rows of {width} numbers can be read in three ways: add a header of column names to read "
            f"{rows} observations of {width} coordinates, or pass axis=0 (--axis 0) to read {width} sequences of "
            f"{rows} numbers, or axis=1 (--axis 1) to read {rows} sequences of {width} numbers"
        )
    how = "one sequence of numbers" if axis is None else f"each {('column', 'row')[axis]} a sequence"
    found = _of_array(array, asked, f"{what}, {how}")
    missing = asked.options.missing if asked.options.missing is not None else asked.kept.missing
    return replace(found, read_options=ReadOptions(axis=axis, missing=missing) or None)


def _axis(asked: _Request, array: Any) -> int | None:
    if asked.options.axis is None and asked.lengths is None and is_flat(array):
        return asked.kept.axis
    return asked.options.axis


def _of_array(source: Any, asked: _Request, how: str, what: str = "source") -> VectorData:
    plain = to_plain(source)
    axis, lengths = _axis(asked, plain), asked.lengths
    if isinstance(plain, list | tuple) and len(plain) and all(is_array(one) for one in plain):
        parts = [as_numbers(one, what) for one in plain]
        rows = {part.shape for part in parts}
        if not all(isinstance(one, list | tuple) for one in plain) or len(rows) > 1 or any(p.ndim == 2 for p in parts):
            if lengths is not None or axis is not None:
                raise InputError("lengths, axis: apply to a single array; leave them out for a list of arrays")
            return joined([part[:, None] if part.ndim == 1 else part for part in parts], how)
        array = torch.stack(parts)
    else:
        array = as_numbers(plain, what)
    reading = ReadOptions(axis=axis) if axis is not None else None
    return _shaped(array, axis, lengths, asked.width, how, reading, what)


def _shaped(
    array: Tensor, axis: int | None, lengths: Any, width: int | None, how: str, reading: ReadOptions | None, what: str
) -> VectorData:
    if array.ndim == 2 and axis in (0, 1):
        array, axis = (array.T if axis == 0 else array)[..., None], None
    if array.ndim == 3 and axis is None:
        if lengths is None:
            return joined(list(array), how, reading)
        counts = counts_of(lengths)
        if len(counts) != len(array) or max(counts) > array.shape[1]:
            raise InputError(
                f"lengths: must be {len(array)} whole numbers in [1, {array.shape[1]}], got {shown(lengths)}"
            )
        return joined([row[:count] for row, count in zip(array, counts, strict=True)], how, reading)
    if array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1 and axis is None):
        array = array.reshape(-1, 1)
        lengths = [len(array)] if lengths is None else lengths
    if array.ndim != 2 or axis is not None:
        raise InputError(
            f"{what}: must be numbers (sequence, time, coordinate), got {tuple(array.shape)} with axis={axis}"
        )
    if lengths is None and width == array.shape[1]:
        lengths = [len(array)]
    if lengths is None and width is not None and width > 1:
        raise InputError(
            f"{what}: must be numbers (time, {width}) or (sequence, time, {width}), got {tuple(array.shape)}"
        )
    if lengths is None:
        rows, columns = array.shape
        raise InputError(
            f"{what}: an array {tuple(array.shape)} can be read in three ways: pass lengths=[{rows}] to read "
            f"{rows} observations of {columns} coordinates, axis=0 to read {columns} sequences of {rows} numbers, or "
            f"axis=1 to read {rows} sequences of {columns} numbers"
        )
    return joined(list(array.split(counts_of(lengths, len(array)))), how, reading)


def joined(parts: Sequence[Tensor], how: str = "", reading: ReadOptions | None = None) -> VectorData:
    if not parts or len({part.shape[1] for part in parts}) != 1 or not all(map(len, parts)):
        raise InputError("source: every sequence must have observations, all with the same number of coordinates")
    return VectorData(torch.cat(list(parts)), torch.tensor(list(map(len, parts))), None, how, reading)
