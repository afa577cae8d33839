"""From files and objects to encoded sequences. Every read is bounded, and of a regular file."""

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.errors import DamagedError, InputError, ResourceError
from hmmscope.machine import require_memory
from hmmscope.schema import shown, unknown_name
from hmmscope.sequences.encoding import Alphabet, Encoded, encode_lines, encode_numbers, encode_words
from hmmscope.storage import disk, store
from hmmscope.storage.mapped import map_tensors, read_npy, read_npz

TEXT, FASTA = (".txt", ".text"), (".fa", ".fasta", ".fna", ".faa", ".ffn")
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
ARRAYS = (".npz", ".npy", ".safetensors")
ENDINGS = (*TEXT, *FASTA, *TABLES, *ARRAYS)
#: Text files may be this large.
_MAX_TEXT = 1 << 30
#: The field that is taken if nothing is said, as `hmmscope sample` writes it.
OBSERVATIONS = "observations"


class Asked:
    """What the caller says about a source, and where errors are.

    Args:
        what: the source, for messages.
        alphabet: what is known of the symbols.
        unit: of text, see `encode_lines`.
        column: the field, column or array to take.
        group: of a table with one observation a row: the column that says of which sequence.
        lengths: of padded rows.
    """

    def __init__(
        self, what: str, alphabet: Alphabet, unit: str | None, column: str | None, group: str | None, lengths: object
    ) -> None:
        self.what, self.alphabet, self.unit, self.column, self.group = what, alphabet, unit, column, group
        self.lengths = lengths

    def at(self, noun: str, first: int = 1) -> Callable[[int], str]:
        """Names row `number`; the whole source for -1."""
        return lambda number: self.what if number < 0 else f"{self.what}: {noun} {number + first}"

    def numbers(self, rows: Sequence[object], how: str, noun: str = "sequence") -> Encoded:
        return encode_numbers(rows, self.alphabet, how, self.at(noun), self.lengths)

    def lines(self, lines: list[str], noun: str = "line") -> Encoded:
        return encode_lines(lines, self.alphabet, self.unit, self.what, self.at(noun))

    def characters(self, lines: list[str], noun: str) -> Encoded:
        return encode_lines(lines, self.alphabet, self.unit or "characters", self.what, self.at(noun))

    def rows(self, rows: Sequence[Any], how: str, noun: str = "sequence") -> Encoded:
        """Rows of any kind: texts, lists of names, or lists of numbers."""
        values = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
        if not values:
            raise InputError(f"{self.what}: holds no sequence")
        if all(isinstance(row, str) for row in values):
            return self.lines(values, noun)
        if all(isinstance(row, int) and not isinstance(row, bool) for row in values):
            return self.numbers([values], "one sequence of numbers", noun)
        if not all(isinstance(row, list | tuple) for row in values):
            odd = next(k for k, row in enumerate(values) if not isinstance(row, list | tuple))
            raise InputError(f"{self.at(noun)(odd)}: must be a list of symbols or a text, got {shown(values[odd])}")
        if all(isinstance(word, str) for row in values for word in row):
            kept = [list(row) for row in values if len(row)]
            if not kept:
                raise InputError(f"{self.what}: holds no sequence")
            return encode_words(kept, self.alphabet, f"{how} of names", self.at(noun))
        return self.numbers(values, f"{how} of numbers", noun)

    def table(self, fields: Iterable[object], take: Callable[[str], Any]) -> Encoded:
        """A table's column of sequences, or with `group` of symbols, whose rows of one group are a sequence in their order.

        Args:
            fields: names of the columns.
            take: gives a column by its name.
        """
        names = [str(field) for field in fields]
        name = _field(self, names)
        values = _plain(take(name))
        if self.group is None:
            return self.rows(values, f"column {name}", "row")
        if self.group not in names:
            raise unknown_name("group", self.group, names)
        grouped: dict[Any, list[Any]] = {}
        for key, value in zip(_plain(take(self.group)), values, strict=True):
            grouped.setdefault(key, []).append(value)
        rows, how = list(grouped.values()), f"column {name}, a sequence for each {self.group}"
        words = all(isinstance(value, str) for row in rows for value in row)
        if not words and not all(isinstance(value, int) and value is not True for row in rows for value in row):
            raise InputError(f"{self.what}: column {name}: with group= each row must be one name or whole number")
        if not words or (self.alphabet.names is None and all(_whole(value) for row in rows for value in row)):
            return self.numbers([[int(value) for value in row] for row in rows], how)
        return encode_words(rows, self.alphabet, how, self.at("sequence"))

    def no_group(self) -> None:
        """Refuse a group where there are no columns."""
        if self.group is not None:
            raise InputError(f"{self.what}: group: has no columns; it is for tables with one observation a row")


def _plain(column: Any) -> list[Any]:
    """A column as a list of plain values: of pyarrow, polars, pandas, datasets, NumPy, or any iterable."""
    to_list = next(
        (found for name in ("to_pylist", "to_list", "tolist") if (found := getattr(column, name, None))), None
    )
    return list(column if to_list is None else to_list())


def read_file(path: Path, asked: Asked) -> Encoded:
    """The sequences of a file, by its ending; an unknown ending is text.

    Raises:
        InputError: missing, no regular file, too large, not what its ending says, or readable in several ways.
        DamagedError: a binary file that is not whole.
        ResourceError: Parquet without pyarrow.
    """
    ending = path.suffix.lower()
    if ending not in TABLES:
        asked.no_group()
    if ending in ARRAYS:
        return _read_arrays(path, asked)
    if ending == ".parquet":
        return _read_parquet(path, asked)
    with disk.reading(path, own=False, limit=_MAX_TEXT) as file:
        require_memory(f"{path}", 40 * os.fstat(file.fileno()).st_size)
    text = store.read_text(path, limit=_MAX_TEXT)
    if ending in FASTA or (ending not in (*TEXT, *TABLES) and text.startswith(">")):
        return _read_fasta(text, asked)
    if ending in (".csv", ".tsv"):
        return _read_csv(text, asked, "\t" if ending == ".tsv" else ",")
    if ending in (".jsonl", ".ndjson"):
        return _read_json_lines(text, asked)
    return _read_json(text, asked) if ending == ".json" else asked.lines(text.splitlines())


def _read_json(text: str, asked: Asked) -> Encoded:
    """A list of sequences."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{asked.what}: not JSON ({error})") from None
    if isinstance(found, dict) and "format" in found:
        raise InputError(f"{asked.what}: holds a process ({shown(found['format'])}), not sequences")
    if not isinstance(found, list):
        raise InputError(f"{asked.what}: must hold a list of sequences; one record a line is .jsonl")
    return asked.rows(found, "list")


def _read_fasta(text: str, asked: Asked) -> Encoded:
    """Records of FASTA; small letters (masked parts) are read as capitals."""
    records: list[list[str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(">"):
            records.append([])
        elif line.strip() and not line.startswith(";"):
            if not records:
                raise InputError(f"{asked.what}: line {number}: FASTA begins with a header, '>name'")
            records[-1].append("".join(line.split()).upper())
    sequences = ["".join(record) for record in records]
    if not any(sequences):
        raise InputError(f"{asked.what}: holds no sequence")
    found = asked.characters(sequences, "record")
    return _said(found, "FASTA records, each letter a symbol, small letters as capitals")


def _said(found: Encoded, how: str) -> Encoded:
    return Encoded(found.flat, found.lengths, found.symbols, found.num_symbols, how, found.first)


def _read_csv(text: str, asked: Asked, delimiter: str) -> Encoded:
    """Rows of cells are sequences; with `column`, the first row names columns, and each cell, or with `group` each run of
    rows of one group, is a sequence."""
    try:
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter, strict=True) if any(row)]
    except csv.Error as error:
        raise InputError(f"{asked.what}: not CSV ({error})") from None
    if not rows:
        raise InputError(f"{asked.what}: holds no sequence")
    if asked.column is None:
        cells = [[cell.strip() for cell in row] for row in rows]
        for row in cells:
            while row and not row[-1]:
                row.pop()
        if all(_whole(cell) for row in cells for cell in row):
            return asked.numbers([[int(cell) for cell in row] for row in cells], "rows of numbers", "row")
        named = " or ".join(f"column={name!r}" for name in rows[0][:3])
        if asked.unit != "words":
            raise InputError(
                f"{asked.what}: can be read in two ways: as {len(rows)} rows whose cells are symbols, or as a table whose "
                f"first row names columns; choose with unit='words' (--unit) or {named} (--column)"
            )
        return encode_words(cells, asked.alphabet, "rows of names", asked.at("row"))
    header = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            raise InputError(f"{asked.what}: row {number}: {len(row)} cells where the header has {len(header)}")
    return asked.table(header, lambda name: [row[header.index(name)].strip() for row in rows[1:]])


def _whole(cell: str) -> bool:
    return cell.isascii() and cell.isdigit() and len(cell) <= 9


def _read_json_lines(text: str, asked: Asked) -> Encoded:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                reason = " ".join(str(error).split())[:100]
                raise DamagedError(f"{asked.what}: line {number}: not JSON ({reason})") from None
    if rows and all(isinstance(row, Mapping) for row in rows):
        alphabet = rows[0].get("alphabet")  # as `hmmscope sample` writes it
        if isinstance(alphabet, Mapping) and asked.alphabet.count is None:
            asked.alphabet = Alphabet.of(alphabet.get("symbols", alphabet.get("num_symbols")))
        return asked.table(rows[0], lambda name: _column(asked, name, rows))
    asked.no_group()
    return asked.rows(rows, "rows", "row")


def _column(asked: Asked, name: str, rows: list[Any]) -> list[Any]:
    """One field of rows that are mappings."""
    for number, row in enumerate(rows, 1):
        if name not in row:
            raise InputError(f"{asked.what}: row {number}: has no field {name!r}")
    return [row[name] for row in rows]


def _field(asked: Asked, fields: list[str]) -> str:
    """The field to take: the one asked for, `observations`, or the only one."""
    if asked.column is not None:
        if asked.column not in fields:
            raise unknown_name("column", asked.column, fields)
        return asked.column
    if OBSERVATIONS in fields or len(fields) == 1:
        return OBSERVATIONS if OBSERVATIONS in fields else fields[0]
    listed = ", ".join(fields[:10]) or "nothing"
    raise InputError(f"{asked.what}: holds no array '{OBSERVATIONS}' but {listed}; choose one with column= (--column)")


def _read_arrays(path: Path, asked: Asked) -> Encoded:
    """An array of symbols (sequence, time), with `lengths` if it is padded, and names if the file has them."""
    header: dict[str, Any] = {}
    arrays: Mapping[str, Any]
    if path.suffix == ".npy":
        arrays = {OBSERVATIONS: read_npy(path)}
    elif path.suffix == ".npz":
        arrays = dict(read_npz(path))
        header = header_of(path, str(arrays.pop("header", "{}")))
    else:
        arrays, texts = map_tensors(path)
        header = header_of(path, texts.get("sequences", texts.get("hmm", "{}")))
    if "format" in header and header["format"] != "hmmscope-sequences":
        raise InputError(f"{path}: holds a process ({shown(header['format'])}), not sequences")
    alphabet, given = asked.alphabet, header.get("symbols", header.get("num_symbols"))
    asked.alphabet = alphabet if alphabet.count is not None or given is None else Alphabet.of(given)
    names = tuple(given) if isinstance(given, list) and alphabet.names not in (None, tuple(given)) else None
    if {"tokens", "lengths"} <= set(arrays) and np.asarray(arrays["tokens"]).ndim == 1:
        ends = np.cumsum(np.asarray(arrays["lengths"]).astype(np.int64))
        rows = np.split(np.asarray(arrays["tokens"]), ends[:-1])
        return _renamed(rows, names, asked) if names else asked.numbers(rows, "sequences as saved")
    name = _field(asked, [key for key in arrays if key != "lengths"])
    if asked.lengths is None and "lengths" in arrays:
        asked.lengths = np.asarray(arrays["lengths"])
    array = np.asarray(arrays[name])
    if names and array.ndim == 2 and array.dtype.kind in "iu":
        return _renamed(list(array), names, asked)
    return read_array(array, asked, f"array {name}")


def _renamed(rows: list[Any], names: tuple[str, ...], asked: Asked) -> Encoded:
    """Numbers of a file whose symbols have these names, under the names that the caller gives."""
    wanted, asked.alphabet = asked.alphabet, Alphabet.of(list(names))
    found = asked.numbers(rows, "sequences as saved")
    split = np.split(found.flat, np.cumsum(found.lengths)[:-1])
    words = [[names[code] for code in row.tolist()] for row in split]
    return encode_words(words, wanted, "sequences as saved", asked.at("sequence"))


def header_of(path: Path, text: str) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise DamagedError(f"{path.name}: header is not JSON")
    return header


def read_array(array: NDArray[Any], asked: Asked, how: str) -> Encoded:
    """One sequence (time,), or one a row (sequence, time)."""
    if array.dtype.kind in "US":
        return asked.rows(array.astype(str).tolist(), how)
    if array.dtype.kind not in "iub" or array.ndim not in (1, 2):
        kind = f"{array.dtype} {array.shape}"
        raise InputError(f"{asked.what}: must be whole numbers (sequence, time) or names, got {kind}")
    return asked.numbers(list(np.atleast_2d(array)), how)


def _read_parquet(path: Path, asked: Asked) -> Encoded:
    try:
        from pyarrow import parquet  # type: ignore[import-not-found]
    except ImportError:
        raise ResourceError(f"{path}: Parquet needs pyarrow; pip install 'hmmscope[parquet]'") from None
    with disk.reading(path, own=False) as file:
        try:
            table = parquet.ParquetFile(file)
            size = sum(table.metadata.row_group(k).total_byte_size for k in range(table.num_row_groups))
            require_memory(f"{path}", 60 * size)
            return asked.table(table.schema_arrow.names, lambda name: table.read(columns=[name]).column(name))
        except (InputError, ResourceError):
            raise
        except Exception as error:
            raise DamagedError(f"{path.name}: not Parquet ({' '.join(str(error).split())[:100]})") from None


def read_object(source: Any, asked: Asked) -> Encoded:
    """Lists, arrays, tensors, and tables with named columns (data sets of Hugging Face, frames)."""
    if isinstance(source, torch.Tensor):
        source = source.detach().cpu().numpy()
    if isinstance(source, np.ndarray):
        asked.no_group()
        return read_array(source, asked, "array")
    names = getattr(source, "column_names", None)
    if names is None and not isinstance(source, Mapping):
        names = getattr(source, "columns", None)
    if isinstance(names, Mapping):
        splits = " or ".join(f"source[{name!r}]" for name in list(names)[:3])
        raise InputError(f"{asked.what}: has several splits; give one of them, {splits}")
    if names is not None and hasattr(source, "__getitem__"):
        return asked.table(names, lambda name: source[name])
    if isinstance(source, Mapping) and asked.group is not None:
        return asked.table(source, lambda name: source[name])
    asked.no_group()
    if isinstance(source, Mapping):
        name = _field(asked, [key for key in source if key != "lengths"])
        if asked.lengths is None:
            asked.lengths = source.get("lengths")
        return read_object(source[name], asked)
    try:
        rows = list(source)
    except TypeError:
        kinds = "lists, an array, a tensor, a table or a path"
        raise InputError(f"{asked.what}: must be {kinds}, got {shown(source)}") from None
    return asked.rows(rows, "lists")
