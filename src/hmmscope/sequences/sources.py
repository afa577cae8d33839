"""Sources of symbols and numbers: files and objects as text, cells, tables, arrays or plain values."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hmmscope.errors import DamagedError, InputError
from hmmscope.schema import shown
from hmmscope.sequences import tables
from hmmscope.sequences.columns import is_frame, labels_of, to_plain
from hmmscope.sequences.tables import SEPARATORS, Table, TableCells, read_text
from hmmscope.storage.mapped import ARRAYS, read_arrays
from hmmscope.storage.store import unique_keys

#: Name of the column or array that is read by default, and that `hmmscope sample` writes.
OBSERVATIONS = "observations"
TEXT, FASTA, FASTQ = (".txt", ".text"), (".fa", ".fasta", ".fna", ".faa", ".ffn"), (".fq", ".fastq")
_JSON_LINES = (".jsonl", ".ndjson")
NUMBERS = (*SEPARATORS, ".parquet", *_JSON_LINES, *ARRAYS, ".json", *TEXT)
ENDINGS = (*FASTA, *FASTQ, *NUMBERS)


@dataclass(frozen=True)
class Text:
    text: str
    form: Literal["lines", "FASTA", "FASTQ", "lines or FASTA"]


@dataclass(frozen=True)
class Arrays:
    """Named arrays, with the JSON header if they come from a file."""

    arrays: Mapping[str, Any]
    header: dict[str, Any] | None = None
    saved: bool = False  # by `SequenceData.save`, as tokens and lengths
    named: bool = True  # in their file

    @property
    def names(self) -> list[str]:
        return [name for name in self.arrays if name != "lengths"]


@dataclass(frozen=True)
class Plain:
    """Values without column names; rows may have labels or line numbers."""

    values: Any
    labels: Any = None
    numbers: list[int] | None = None


Source = Text | TableCells | Table | Arrays | Plain


def open_file(path: Path) -> Source:
    ending = tables.ending_of(path)
    if ending in ARRAYS:
        return open_arrays(path)
    if ending == ".parquet":
        return tables.parquet_table(path)
    text = read_text(path)
    if ending in SEPARATORS:
        return tables.read_cells(text, path.name, SEPARATORS[ending])
    if ending in _JSON_LINES:
        return _json_lines(text, path.name)
    if ending == ".json":
        return _json_document(text, path.name)
    if ending in FASTA or (ending not in TEXT and text.startswith(">")):
        return Text(text, "FASTA")
    return Text(
        text, "FASTQ" if ending in FASTQ else "lines or FASTA" if ending in TEXT and is_fasta(text) else "lines"
    )


def open_object(source: Any, what: str) -> Source:
    if is_frame(source):
        return tables.table_of(source, what)
    if isinstance(source, Mapping):
        return Arrays({str(name): source[name] for name in source}, named=False)
    return Plain(source, labels_of(source))


def is_fasta(text: str) -> bool:
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith(";"))
    return next(lines, "").startswith(">")


def _json_lines(text: str, what: str) -> Source:
    # not splitlines(), because strings may contain other line ends
    lines = [(k, line) for k, line in enumerate(text.split("\n"), 1) if line.strip()]
    rows, numbers = [_parsed(line, f"{what}: line {k}", DamagedError) for k, line in lines], [k for k, _ in lines]
    if not rows or not all(isinstance(row, dict) for row in rows):
        return Plain(rows, numbers=numbers)

    def column(name: str) -> list[Any]:
        for number, row in zip(numbers, rows, strict=True):
            if name not in row:
                raise InputError(f"{what}: row {number}: has no field {shown(name)}")
        return [row[name] for row in rows]

    header = rows[0].get("alphabet", {})  # as `hmmscope sample` and `SequenceData.save` write it
    return Table(what, rows[0], column, numbers, header=header)


def _json_document(text: str, what: str) -> Source:
    found = _parsed(text, what, InputError)
    if isinstance(found, dict) and "format" in found:
        return Arrays({name: found.get(name) for name in ("tokens", "lengths")}, found, saved=True)
    if not isinstance(found, list):
        raise InputError(f"{what}: must contain a list of sequences; use .jsonl for one record per line")
    return Plain(found)


def _parsed(text: str, what: str, kind: type[Exception]) -> Any:
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise kind(f"{what}: not JSON ({' '.join(str(error).split())[:100]})") from None


def open_arrays(path: Path) -> Arrays:
    ending = tables.ending_of(path)
    found, header = read_arrays(path, ending, "sequences", "hmm")
    arrays = {name: to_plain(values) for name, values in found.items()}
    for values in arrays.values():
        values.flags.writeable = False  # so that symbols can keep it without a copy
    saved = {"tokens", "lengths"} <= set(arrays) and arrays["tokens"].ndim == 1
    return Arrays(arrays, header, saved, named=ending != ".npy")
