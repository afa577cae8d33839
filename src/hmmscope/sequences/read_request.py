"""A request to read sequences: options, alphabet, and names of rows in error messages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.schema import listed, shown, unknown_name
from hmmscope.sequences.columns import as_labels, categories_of, is_frame, to_plain
from hmmscope.sequences.encoding import (
    UNITS,
    Alphabet,
    Encoded,
    are_decimals,
    encode_lines,
    encode_numbers,
    encode_words,
    warn_of_numbers,
    whole_lengths,
    within,
)
from hmmscope.sequences.gaps import FOR_NUMBERS, MISSING, USUAL_GAPS, Missing, is_nothing
from hmmscope.sequences.large import MAX_SYMBOLS, smallest, too_sparse
from hmmscope.sequences.read_options import TIME_OPTIONS, ReadOptions
from hmmscope.sequences.sources import OBSERVATIONS
from hmmscope.sequences.tables import Table

#: Value of "format" in files of sequences.
FORMAT = "hmmscope-sequences"


class ReadRequest:
    """Options for reading one source, and how error messages name its rows.

    Args:
        what: name of the source in messages.
        alphabet: symbols that are already known.
        read_options: options that the caller asks for.
        lengths: see `SequenceData`.
        kept: options stored with a process, used where an option in `read_options` is None.
    """

    def __init__(
        self,
        what: str,
        alphabet: Alphabet,
        read_options: ReadOptions | None = None,
        lengths: object = None,
        kept: ReadOptions | None = None,
    ) -> None:
        self.what, self.alphabet, self.lengths = what, alphabet, lengths
        self.read_options, self.kept = read_options or ReadOptions(), kept or ReadOptions()
        self.unit = self.read_options.unit or self.kept.unit
        if self.unit is not None and self.unit not in UNITS:
            raise unknown_name("unit", self.unit, UNITS)
        column, group = self.read_options.column, self.read_options.group
        self.column, self.group, self.axis = _named(column), _named(group), self.read_options.axis
        if self.axis is None:
            self.axis = self.kept.axis
        self.missing = alphabet.missing
        self.own = False  # True for files of this library
        self.indices = False  # True if numbers are known to be indices of symbols
        self.has_gaps = False  # True if V is a missing observation in the file
        self.row_numbers: Sequence[int] | None = None  # row numbers in the file, from 1
        self.has_axes = False  # True for 2-d arrays
        self.time_options = {name: getattr(self.read_options, name) for name in TIME_OPTIONS}

    def understood(self, found: Encoded) -> Encoded:
        reading = replace(
            found.read_options,
            column=self.column,
            group=self.group,
            axis=self.axis if self.has_axes else None,
            missing=self.missing.names or None,
            **self.time_options,
        )
        asked, kept = self.read_options.to_data(), self.kept.to_data()
        found_now = reading.to_data()
        applied = {name: value for name, value in found_now.items() if name not in asked and kept.get(name) == value}
        how = (
            f"{found.how}; read with options of the process, {ReadOptions(**applied).flags()}" if applied else found.how
        )
        gaps = [name for name in found.symbols or () if name.lower() in USUAL_GAPS and self.alphabet.names is None]
        if gaps:
            how += f"; {' and '.join(gaps)} count as symbols unless you pass --missing {','.join(gaps)}"
        of_numbers = found.of_numbers and not self.indices
        if of_numbers:
            warn_of_numbers(found.symbols, self.what)
        return replace(found, read_options=reading, how=how, of_numbers=of_numbers)

    def choose(self, fields: Iterable[object], has: Callable[[str], bool] | None = None) -> list[str]:
        names = [str(field) for field in fields]
        if self.column is None and self.kept.column in names:
            self.column, self.group = self.kept.column, self.group or self.kept.group
        if self.time_options["time"] is None and self.kept.time and (has or names.__contains__)(self.kept.time):
            self.time_options = {name: getattr(self.kept, name) for name in TIME_OPTIONS}
        time = self.time_options["time"]
        if (
            time is not None
            and self.column is None
            and len(rest := [n for n in names if n not in (time, self.group)]) == 1
        ):
            self.column = rest[0]
        for field, value in (("group", self.group), ("time", time)):
            if value is not None and self.column is None:
                raise InputError(f"{field}: needs the column of the symbols too; pass column= (--column)")
        return names

    def of_file(self, header: Mapping[str, Any]) -> Alphabet | None:
        check_header(header, self.what)
        self.own = "format" in header
        if header.get("gaps"):
            self.has_gaps, self.missing = True, replace(self.missing, nothing=True)
            self.alphabet = replace(self.alphabet, missing=self.missing)
        given, wanted = header.get("symbols", header.get("num_symbols")), self.alphabet
        self.indices = header.get("symbols") is not None
        if self.column not in (None, OBSERVATIONS):
            return None
        if given is None or (wanted.count is not None and (wanted.names is None or not isinstance(given, list))):
            return None
        self.alphabet = Alphabet.of(given, self.missing)
        return None if wanted.count is None or wanted.names == self.alphabet.names else wanted

    def field(self, fields: list[str]) -> str:
        if self.column is not None:
            if self.column not in fields:
                if all(name in fields for name in self.column.split(",")):
                    advice = "several columns of numbers need emission='gaussian' (--emission)"
                    raise InputError(f"column: must be one column for symbols, got {shown(self.column)}; {advice}")
                raise unknown_name("column", self.column, fields)
            return self.column
        if OBSERVATIONS in fields or len(fields) == 1:
            return OBSERVATIONS if OBSERVATIONS in fields else fields[0]
        found = listed(fields) or "nothing"
        raise InputError(
            f"{self.what}: has no column or array '{OBSERVATIONS}', but {found}; choose with column= (--column)"
        )

    def at(self, noun: str) -> Callable[[int], str]:
        known = self.row_numbers if noun == "row" else None
        return lambda n: self.what if n < 0 else f"{self.what}: {noun} {n + 1 if known is None else known[n]}"

    def numbers(self, rows: Sequence[Any], how: str, noun: str = "sequence") -> Encoded:
        return encode_numbers(within(rows, self.lengths), self.alphabet, how, self.at(noun))

    def whole(self, array: NDArray[Any], lengths: object, how: str) -> Encoded | None:
        plain = array.dtype.kind in "iu" and array.ndim == 2 and not isinstance(array, np.ma.MaskedArray)
        if not plain or not array.size or self.missing.names or (lengths is not None and len(array) != 1):
            return None
        counts = np.full(len(array), array.shape[1]) if lengths is None else whole_lengths(lengths)
        least, most = int(array.min()), int(array.max())
        count = most + 1 if self.alphabet.count is None else self.alphabet.count
        if counts.min(initial=1) < 1 or counts.sum() != array.size or least < 0 or not most < count <= MAX_SYMBOLS:
            return None
        if too_sparse(self.alphabet.count, count, array.size):
            return None
        flat, kind = array.reshape(-1), smallest(count)
        beginning = " ".join(map(str, flat[: min(20, int(counts[0]))].tolist()))
        kept = flat if flat.dtype == kind and not array.flags.writeable else flat.astype(kind)
        return Encoded(np.asarray(kept), counts, self.alphabet.names, count, how, beginning, of_numbers=True)

    def words(self, rows: Sequence[list[str]], how: str, noun: str = "sequence") -> Encoded:
        kept = [list(row) for row in within(rows, self.lengths)]
        if not kept:
            raise InputError(f"{self.what}: holds no sequence")
        return encode_words(kept, self.alphabet, how, self.at(noun))

    def lines(self, lines: list[str], noun: str = "line", unit: str | None = None) -> Encoded:
        if self.lengths is not None:
            raise InputError(f"{self.what}: lengths: apply to arrays and lists of symbols, not to text")
        return encode_lines(lines, self.alphabet, unit or self._unit_of(lines), self.what, self.at(noun))

    def _unit_of(self, texts: Sequence[object]) -> str | None:
        count = self.alphabet.count  # of an alphabet; if all texts are its symbols, each text is one symbol
        if self.read_options.unit is not None or self.unit not in (None, "lines") or count is None:
            return self.unit
        symbols = {*(self.alphabet.names or map(str, range(count))), *self.missing.names}
        known = [text in symbols for one in texts if not is_nothing(one) and (text := str(one).strip())]
        return "lines" if any(known) and (self.unit == "lines" or all(known)) else None

    def characters(self, lines: list[str], noun: str) -> Encoded:
        """Encode lines with each character as a symbol, unless the caller asks for another unit."""
        return self.lines(lines, noun, self.read_options.unit or "characters")

    def rows(self, rows: Sequence[Any], how: str, noun: str = "sequence") -> Encoded:
        # before millions are read
        if self.lengths is None and all(type(row) is list for row in rows) and not all(rows):
            empty = next(k for k, row in enumerate(rows) if not row)
            raise InputError(f"{self.at(noun)(empty)}: is empty; leave it out")
        values = [plain(row) for row in rows]
        if not values:
            raise InputError(f"{self.what}: holds no sequence")
        if any(isinstance(row, str) for row in values) and self._names(values):
            return self._texts(values, noun)
        if all(isinstance(row, int | float) or is_nothing(row) for row in values):
            return self.numbers([values], "one sequence of numbers", noun)
        if not all(isinstance(row, list | tuple) for row in values):
            odd = next(k for k, row in enumerate(values) if not isinstance(row, list | tuple))
            raise InputError(f"{self.at(noun)(odd)}: must be a list of symbols or a text, got {shown(values[odd])}")
        return self.cells(self.along(values), how, noun)

    def cells(self, values: Sequence[Any], how: str, noun: str = "sequence") -> Encoded:
        if self._names(word for row in values for word in row):
            return self.words(values, f"{how} of names", noun)
        return self.numbers(values, f"{how} of numbers", noun)

    def _texts(self, values: list[Any], noun: str) -> Encoded:
        whole = self._unit_of(values) == "lines"
        for number, value in enumerate(values):
            empty = is_nothing(value) or not str(value).strip()
            if whole and empty and not self.missing.has(value):
                raise InputError(f"{self.at(noun)(number)}: {_emptiness(value)}; {self.missing.advice(value)}")
            if not whole and (empty or not isinstance(value, str)):
                advice = "leave it out, or pass unit='lines' (--unit) if each entry is one symbol"
                raise InputError(f"{self.at(noun)(number)}: {_emptiness(value)}; {advice}")
        if not whole:
            return self.lines(values, noun)
        cells = [value.strip() if isinstance(value, str) else value for value in values]
        return replace(self._symbols([cells], UNITS["lines"]), read_options=ReadOptions(unit="lines"))

    def _symbols(self, rows: list[list[Any]], how: str) -> Encoded:
        has = self.missing.has
        rows = [[int(v) if isinstance(v, bool) else v for v in row] for row in rows]
        seen = [value for row in rows for value in row if not has(value)]
        words = all(isinstance(value, str) for value in seen)
        if not words or (self.alphabet.names is None and all(map(is_whole, seen))):
            return self.numbers([[MISSING if has(value) else int(value) for value in row] for row in rows], how)
        return self.words(rows, how)

    def along(self, values: list[Any]) -> list[Any]:
        if self.own or self.lengths is not None or len(values) < 2 or any(len(row) != 1 for row in values):
            return values
        if self.axis is None:
            raise InputError(
                f"{self.what}: {len(values)} lists of one symbol can be read in two ways: with axis=0 as one sequence of "
                f"{len(values)} symbols, or with axis=1 as {len(values)} sequences of one symbol; choose one (--axis)"
            )
        self.has_axes = True
        return values if self.axis == 1 else [[row[0] for row in values]]

    def _names(self, values: Iterable[object]) -> bool:
        return all(isinstance(value, str) or is_nothing(value) or self.missing.has(value) for value in values)

    def table(self, table: Table) -> Encoded:
        name = self.field(self.choose(table.names, table.has))
        table.require(name, "column")
        column, values = f"column {_short(name)}", self.adopt(table.raw(name), list(plain(table.column(name))))
        if self.unit is None and self.alphabet.names is None:
            values = _parsed(values, self.missing, self.alphabet.count is not None)
            if _decimals(values, self.missing):
                raise InputError(
                    f"{self.what}: {column}: contains decimal numbers instead of symbols; {FOR_NUMBERS}; if each value is "
                    "one symbol, pass unit='lines' (--unit)"
                )
        axis = ReadOptions(**self.time_options).axis_of_time
        if self.group is None and axis is None:
            if self.unit == "lines":
                self._no_gap(values, column)
            found = self.rows(values, column, "row")
            index = None if table.labels is None else as_labels(table.labels)
            found = replace(found, index=index if index is not None and len(index) == len(found.flat) else None)
            return found if found.read_options.unit is None else replace(found, how=f"{column}: {found.how}")
        steps = table.steps(self.group, axis, len(values))
        self._no_gap(values, column)
        how = column if self.group is None else f"{column}, a sequence for each {_short(self.group)}"
        how = f"{how}; {steps.summary}" if steps.summary else how
        seen = [value for value in values if not self.missing.has(value)]
        words = all(isinstance(value, str) for value in seen)
        whole = (float.is_integer(v) if isinstance(v, float) else isinstance(v, int) for v in seen)
        if not words and not all(whole):
            given = "group=" if axis is None else "time="
            raise InputError(
                f"{self.what}: {column}: with {given} each row must be one name or whole number; {FOR_NUMBERS}"
            )
        parts = np.split(steps.rows, np.cumsum(steps.lengths)[:-1])
        rows = [[values[row] if row >= 0 else MISSING for row in part.tolist()] for part in parts]
        return replace(self._symbols(rows, how), index=steps.index, names=steps.names, moved=steps.moved)

    def adopt(self, column: Any, values: Any) -> Any:
        """Take the symbols of a categorical column in the order of its categories; return its values."""
        categories, known = categories_of(column) or [], self.alphabet
        whole = bool(categories) and all(isinstance(one, int) for one in categories)
        if whole and known.names is not None and set(map(str, categories)) <= set(known.names):
            categories = list(map(str, categories))
        if categories and all(isinstance(one, str) for one in categories):
            self.unit = self.unit or "lines"
            names = [one for one in categories if not self.missing.has(one)]
            self.alphabet = Alphabet.of(names, self.missing) if known.count is None else known
            return [one if is_nothing(one) or isinstance(one, str) else str(int(one)) for one in values]
        if known.count is None and whole and min(categories) >= 0 and max(categories) < MAX_SYMBOLS:
            self.alphabet = Alphabet.of(max(categories) + 1, self.missing)
        return values

    def _no_gap(self, cells: list[Any], column: str) -> None:
        for number, cell in enumerate(cells):
            if (is_nothing(cell) or (isinstance(cell, str) and not cell.strip())) and not self.missing.has(cell):
                said = f"{column}: {_emptiness(cell)}; {self.missing.advice(cell)}"
                raise InputError(f"{self.at('row')(number)}: {said}")

    def no_group(self) -> None:
        for field in ("group", "time"):
            if getattr(self.read_options, field) is not None:
                raise InputError(
                    f"{self.what}: {field}: needs a table with one observation per row; this source has no columns"
                )


def check_header(header: Mapping[str, Any], what: str) -> None:
    found = header.get("format", FORMAT)
    if found != FORMAT:
        raise InputError(f"{what}: must have the format {FORMAT!r}, got {shown(found)}")
    if header.get("version", 1) != 1:
        raise InputError(f"{what}: version: must be 1 of {FORMAT}, got {shown(header['version'])}")
    names, count = header.get("symbols"), header.get("num_symbols")
    if names is not None and not isinstance(names, list):
        raise InputError(f"{what}: symbols: must be a list of names, got {shown(names)}")
    try:
        known = Alphabet.of(names).count
        Alphabet.of(count)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    if known is not None and count is not None and known != count:
        raise InputError(f"{what}: num_symbols: must be the number of names, {known}, got {shown(count)}")


def _named(column: Any) -> str | None:
    return column if column is None else str(column)


def _parsed(values: list[Any], missing: Missing, known: bool) -> list[Any]:
    """Convert booleans, or whole numbers below the number of cells (any, if the alphabet is `known`), to numbers."""
    seen = [value.strip() for value in values if isinstance(value, str) and not missing.has(value)]
    if not seen or len(seen) < sum(not missing.has(value) for value in values):
        return values
    if {one.lower() for one in seen} <= {"true", "false"}:
        found = [int(one.lower() == "true") for one in seen]
    elif all(is_whole(one.removeprefix("-").removesuffix(".0")) for one in seen):
        found = [int(one.removesuffix(".0")) for one in seen]
    else:
        return values
    if not known and max(found) >= len(values):
        return values
    numbers = iter(found)
    return [MISSING if missing.has(value) else next(numbers) for value in values]


def _decimals(values: Sequence[object], missing: Missing) -> bool:
    seen = [str(value).strip() for value in values if not (is_nothing(value) or missing.has(value))]
    texts = all(isinstance(value, str) or is_nothing(value) or missing.has(value) for value in values)
    return texts and are_decimals(seen, ".eE")


def plain(values: Any) -> Any:
    values = np.asarray(values) if is_frame(values) else to_plain(values)
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind in "iubf":
        values = Missing().marked(values) if np.ma.is_masked(values) else values.data
    elif isinstance(values, list | tuple) and any(value is np.ma.masked for value in values):
        whole = all(value is np.ma.masked or isinstance(value, int | np.integer) for value in values)
        return [(MISSING if whole else None) if value is np.ma.masked else value for value in values]
    if isinstance(values, np.ndarray) and values.ndim == 2 and values.shape[1] == 1 and values.dtype.kind in "iuOUS":
        values = values.reshape(-1)
    return values.tolist() if isinstance(values, np.ndarray) else values


def _emptiness(value: object) -> str:
    return f"is {value}" if is_nothing(value) else "is empty" if not str(value).strip() else f"is {shown(value)}"


def _short(name: str) -> str:
    return name if len(name) <= 100 else f"{name[:97]}..."


def is_whole(cell: str) -> bool:
    return cell.isascii() and cell.isdigit() and len(cell) <= 9 and (cell == "0" or cell[0] != "0")
