"""Reading of files and objects as encoded sequences; only regular files of limited size are read."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.errors import DamagedError, InputError
from hmmscope.schema import shown
from hmmscope.sequences.columns import as_labels, categories_of, is_frame, labels_of, to_plain
from hmmscope.sequences.encoding import Alphabet, Encoded, apart, encode_words
from hmmscope.sequences.gaps import FOR_NUMBERS, MISSING
from hmmscope.sequences.read_options import ReadOptions
from hmmscope.sequences.read_request import FORMAT, OBSERVATIONS, ReadRequest, is_whole, plain
from hmmscope.sequences.tables import (
    MAX_TEXT,
    SEPARATORS,
    Table,
    csv_table,
    ending_of,
    parquet_table,
    read_cells,
    read_text,
    table_of,
)
from hmmscope.storage import disk
from hmmscope.storage.mapped import map_tensors, read_npy, read_npz
from hmmscope.system_info import require_memory

#: Error message for a text file that starts like FASTA.
TWO_WAYS = "can be read in two ways: as FASTA, if it is named .fasta, or as text with unit='characters' (--unit)"
TEXT, FASTA, FASTQ = (".txt", ".text"), (".fa", ".fasta", ".fna", ".faa", ".ffn"), (".fq", ".fastq")
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
ARRAYS = (".npz", ".npy", ".safetensors")
ENDINGS = (*TEXT, *FASTA, *FASTQ, *TABLES, *ARRAYS)


def read_file(path: Path, asked: ReadRequest) -> Encoded:
    ending = ending_of(path)
    if ending not in TABLES:
        asked.no_group()
    if ending in ARRAYS:
        return _read_arrays(path, asked)
    if ending == ".parquet":
        return asked.table(parquet_table(path))
    with disk.reading(path, managed=False, limit=MAX_TEXT) as file:
        require_memory(f"{path}", 40 * os.fstat(file.fileno()).st_size)
    text = read_text(path)
    if ending in FASTA or (ending not in (*TEXT, *TABLES) and text.startswith(">")):
        return _read_fasta(text, asked)
    if ending in TEXT and asked.unit is None and asked.alphabet.names is None and is_fasta(text):
        raise InputError(f"{asked.what}: {TWO_WAYS}")
    if ending in FASTQ:
        return _read_fastq(text, asked)
    if ending in SEPARATORS:
        return _read_csv(text, asked, SEPARATORS[ending])
    if ending in (".jsonl", ".ndjson"):
        return _read_json_lines(text, asked)
    return _read_json(text, asked) if ending == ".json" else asked.lines(text.splitlines())


def _read_json(text: str, asked: ReadRequest) -> Encoded:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{asked.what}: not JSON ({error})") from None
    if isinstance(found, dict) and _is_own(found, asked):
        wanted = asked.of_file(found)
        return _renamed(_saved(found, asked), wanted, asked)
    if not isinstance(found, list):
        raise InputError(f"{asked.what}: must contain a list of sequences; use .jsonl for one record per line")
    return asked.rows(found, "list")


def is_fasta(text: str) -> bool:
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith(";"))
    return next(lines, "").startswith(">")


def _read_fasta(text: str, asked: ReadRequest) -> Encoded:
    records: list[list[str]] = []
    names: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(">"):
            records.append([])
            names.append(" ".join(line[1:].split()[:1]))
        elif line.strip() and not line.startswith(";"):
            if not records:
                raise InputError(f"{asked.what}: line {number}: FASTA must begin with a header, '>name'")
            odd = next((one for one in line if one.isdigit() or not (one.isprintable() or one.isspace())), None)
            if odd is not None and asked.alphabet.names is None:
                raise InputError(
                    f"{asked.what}: line {number}: {shown(odd)} is not a letter of a FASTA sequence; remove it"
                )
            records[-1].append("".join(line.split()).upper())
    sequences = ["".join(record) for record in records]
    if not any(sequences):
        raise InputError(f"{asked.what}: holds no sequence")
    found = _letters(
        sequences, asked, "FASTA records, where each letter is a symbol and small letters count as capitals"
    )
    kept = tuple(name for name, sequence in zip(names, sequences, strict=True) if sequence)
    return replace(found, names=kept if any(kept) and len(kept) == len(found.lengths) else None)


def _read_fastq(text: str, asked: ReadRequest) -> Encoded:
    lines = iter(enumerate(text.splitlines(), 1))
    sequences: list[str] = []
    for number, line in lines:
        if not line.strip():
            continue
        if not line.startswith("@"):
            raise InputError(f"{asked.what}: line {number}: a FASTQ record must begin with a header, '@name'")
        record, quality = "", 0
        for _, part in lines:
            if part.startswith("+"):
                break
            record += "".join(part.split()).upper()
        while quality < len(record):
            end, part = next(lines, (0, ""))
            if not end:
                break
            quality += len(part.strip())
        if quality != len(record):
            rule = f"{len(record)} letters but {quality} quality characters"
            raise InputError(f"{asked.what}: the record at line {number} has {rule}; FASTQ needs one per letter")
        sequences.append(record)
    if not any(sequences):
        raise InputError(f"{asked.what}: holds no sequence")
    how = "FASTQ records without their quality, where each letter is a symbol and small letters count as capitals"
    return _letters(sequences, asked, how)


def _letters(sequences: list[str], asked: ReadRequest, how: str) -> Encoded:
    found = asked.characters(sequences, "record")
    letters = set(found.symbols or ())
    gaps = sorted(letters & {"-", "."}) + (["N"] if "N" in letters and letters <= set("ACGTUN-.") else [])
    if gaps and asked.alphabet.names is None:
        how += f"; {' and '.join(gaps)} count as symbols, unless --missing {','.join(gaps)}"
    empty = sum(not sequence for sequence in sequences)
    how += f"; {empty} empty record{'s' * (empty != 1)} left out" if empty else ""
    return replace(found, how=how)


def _read_csv(text: str, asked: ReadRequest, separators: str) -> Encoded:
    found = read_cells(text, asked.what, separators)
    rows, numbers, _ = found
    if not rows:
        raise InputError(f"{asked.what}: holds no sequence")
    asked.choose(rows[0])
    if asked.column is None:
        numbers = [number for number, row in zip(numbers, rows, strict=True) if row != [""]]
        asked.row_numbers, cells = numbers, [[cell.strip() for cell in row] for row in rows if row != [""]]
        for row in cells:
            while row and not row[-1]:
                row.pop()
        gaps = asked.missing.names
        if all(is_whole(cell) or cell in gaps for row in cells for cell in row):
            values = [[MISSING if cell in gaps else int(cell) for cell in row] for row in cells]
            return asked.numbers(asked.along(values), "rows of numbers", "row")
        named = " or ".join(f"column={shown(name)}" for name in rows[0][:3])
        if asked.unit != "words":
            raise InputError(
                f"{asked.what}: can be read in two ways: as {len(rows)} rows whose cells are symbols, or as a table whose "
                f"first row names columns; choose with unit='words' (--unit) or {named} (--column). For numbers that are "
                "not symbols, fit with emission='gaussian' (--emission)"
            )
        return replace(asked.words(asked.along(cells), "rows of names", "row"), read_options=ReadOptions(unit="words"))
    asked.row_numbers = numbers[1:]
    return asked.table(csv_table(found, asked.what))


def _read_json_lines(text: str, asked: ReadRequest) -> Encoded:
    rows, numbers = [], []
    for number, line in enumerate(text.split("\n"), 1):  # strings may contain other line ends
        if line.strip():
            numbers.append(number)
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                reason = " ".join(str(error).split())[:100]
                raise DamagedError(f"{asked.what}: line {number}: not JSON ({reason})") from None
    asked.row_numbers = numbers
    if rows and all(isinstance(row, Mapping) for row in rows):
        alphabet = rows[0].get("alphabet", {})  # as `hmmscope sample` and `SequenceData.save` write it
        if not isinstance(alphabet, Mapping):
            raise InputError(f"{asked.at('row')(0)}: alphabet: must be a mapping with symbols, got {shown(alphabet)}")
        names = asked.of_file(alphabet)
        found = asked.table(Table(asked.what, rows[0], lambda name: _column(asked, name, rows), numbers))
        return _renamed(found, names, asked)
    asked.no_group()
    return asked.rows(rows, "rows", "row")


def _column(asked: ReadRequest, name: str, rows: list[Any]) -> list[Any]:
    for number, row in enumerate(rows):
        if name not in row:
            raise InputError(f"{asked.at('row')(number)}: has no field {shown(name)}")
    return [row[name] for row in rows]


def _read_arrays(path: Path, asked: ReadRequest) -> Encoded:
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
    arrays = {name: _closed(values) for name, values in arrays.items()}
    own = _is_own(header, asked)
    wanted = asked.of_file(header)
    if {"tokens", "lengths"} <= set(arrays) and np.ndim(arrays["tokens"]) == 1:
        return _renamed(_saved(arrays, asked), wanted, asked)
    name = asked.field(asked.choose(key for key in arrays if key != "lengths"))
    if asked.lengths is None and "lengths" in arrays:
        asked.lengths = _numbers(arrays["lengths"])
    return _renamed(read_array(_numbers(arrays[name]), asked, f"array {name}", managed=own), wanted, asked)


def _is_own(header: Mapping[str, Any], asked: ReadRequest) -> bool:
    if "format" in header and header["format"] != FORMAT:
        raise InputError(f"{asked.what}: contains a process ({shown(header['format'])}), not sequences")
    return "format" in header


def _saved(arrays: Mapping[str, Any], asked: ReadRequest) -> Encoded:
    try:
        tokens, whole = arrays.get("tokens"), None
        if isinstance(tokens, np.ndarray) and tokens.ndim == 1 and asked.lengths is None and not asked.has_gaps:
            whole = asked.whole(tokens[None], arrays.get("lengths"), "sequences as saved")
        if whole is not None:
            return whole
        rows = apart(tokens, arrays.get("lengths"))
    except InputError as error:
        raise InputError(f"{asked.what}: {error}") from None
    if asked.has_gaps:
        rows = [np.where(row == asked.alphabet.count, MISSING, row.astype(np.int64)) for row in rows]
    return asked.numbers(rows, "sequences as saved")


def _numbers(values: Any) -> NDArray[Any]:
    return values.float().numpy() if getattr(values, "dtype", None) is torch.bfloat16 else np.asarray(values)


def _closed(values: Any) -> Any:
    if getattr(values, "dtype", None) is torch.bfloat16:
        return values
    found = np.asarray(values).view()
    found.flags.writeable = False
    return found


def _renamed(found: Encoded, wanted: Alphabet | None, asked: ReadRequest) -> Encoded:
    if wanted is None or found.symbols is None:
        return found
    split = np.split(found.flat, _ends(found))
    names = [*found.symbols, None]  # None for a missing observation
    words = [[names[code] for code in row.tolist()] for row in split]
    wanted = replace(wanted, missing=replace(wanted.missing, nothing=True))
    return replace(encode_words(words, wanted, found.how, asked.at("sequence")), read_options=found.read_options)


def header_of(path: Path, text: str) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise DamagedError(f"{path.name}: header is not JSON")
    return header


def read_array(array: NDArray[Any], asked: ReadRequest, how: str, *, managed: bool = False) -> Encoded:
    """Read a 1-d array as one sequence, or a 2-d array along its time axis.

    By default an array (time, 1) is one sequence, and each row of an array (sequence, time) is a sequence. Arrays of
    floats need `axis` or `lengths`.
    """
    kind, shape = array.dtype.kind, array.shape
    if kind in "USO" and array.ndim == 1:
        return asked.rows((array if kind == "O" else array.astype(str)).tolist(), how)
    if kind not in "iubfUSO" or array.ndim not in (1, 2):
        rule = f"must be whole numbers (sequence, time) or names, got {array.dtype} {shape}"
        raise InputError(f"{asked.what}: {rule}")
    if kind == "f" and array.ndim == 2 and not managed:
        _require_whole(array, asked)
    if kind == "f" and array.ndim == 2 and asked.axis is None and asked.lengths is None and not managed:
        down, along = (
            f"one sequence of {shape[0]} steps" if shape[1] == 1 else f"{shape[1]} of {shape[0]}",
            f"{shape[0]} of {shape[1]}",
        )
        raise InputError(
            f"{asked.what}: {array.dtype} {shape} can be read in two ways: with axis=0 as {down}, or with axis=1 as {along}"
            "; choose one (--axis), or give lengths. For numbers that are not symbols, use hmmscope.fit(X, num_states, "
            "emission='gaussian')"
        )
    if array.ndim == 2:
        is_column = shape[1] == 1 < shape[0]
        given = asked.read_options.axis if managed else asked.axis
        asked.has_axes = given is not None
        axis = given if given is not None else 0 if is_column and not managed else 1
        array = array if axis == 1 else array.T
        how += "" if axis == 1 else ", whose column is one sequence" if is_column else ", each column a sequence"
    array = np.atleast_2d(array)
    found = asked.whole(array, asked.lengths, how)
    if found is not None:
        return found
    rows = list(array)
    if kind == "O":
        return asked.cells([row.tolist() for row in rows], how)
    return asked.words([row.tolist() for row in rows], how) if kind in "US" else asked.numbers(rows, how)


def _require_whole(array: NDArray[Any], asked: ReadRequest) -> None:
    values = np.ma.getdata(array)[~np.ma.getmaskarray(array)]
    odd = values[np.isfinite(values) & (np.floor(values) != values)]
    if odd.size:
        rule = f"must be whole numbers, the numbers of symbols, got {odd.flat[0]:g} in {array.dtype} {array.shape}"
        raise InputError(f"{asked.what}: {rule}; {FOR_NUMBERS}")


def read_again(found: Encoded, asked: ReadRequest) -> Encoded:
    wanted, options = asked.alphabet, asked.read_options.to_data() | ({} if asked.lengths is None else {"lengths": 0})
    if options:
        raise InputError(f"{next(iter(options))}: applies only when a source is read, and SequenceData is already read")
    if wanted.count is None or (wanted.names, wanted.count) == (found.symbols, found.num_symbols):
        return found
    if found.symbols is not None and wanted.names is not None:
        return _renamed(found, wanted, asked)
    parts = np.split(np.where(found.flat == found.num_symbols, MISSING, found.flat.astype(np.int64)), _ends(found))
    return replace(asked.numbers(parts, found.how), read_options=found.read_options)


def _ends(found: Encoded) -> NDArray[np.int64]:
    return np.cumsum(found.lengths)[:-1]


def read_object(source: Any, asked: ReadRequest) -> Encoded:
    if isinstance(source, bytes | bytearray):
        raise InputError(
            f"{asked.what}: bytes can be read in two ways: as text, source.decode(), or as numbers, list(source)"
        )
    if is_frame(source):
        return asked.table(table_of(source, asked.what))
    if isinstance(source, Mapping):
        fields = asked.choose(key for key in source if key != "lengths")
        if asked.group is not None or asked.time_options["time"] is not None:
            return asked.table(table_of(source, asked.what))
        name = asked.field(fields)
        if asked.lengths is None:
            asked.lengths = source.get("lengths")
        return read_object(source[name], asked)
    labels, categories = labels_of(source), categories_of(source)
    if asked.time_options["time"] is not None and labels is not None:
        return asked.table(Table(asked.what, [OBSERVATIONS], lambda name: source, labels=labels))
    if categories is not None:
        asked.adopt(categories)
    source = to_plain(source)
    if isinstance(source, np.ndarray):
        asked.no_group()
        found = read_array(source, asked, "array")
        return found if labels is None else replace(found, index=as_labels(labels))
    asked.no_group()
    if isinstance(source, set | frozenset):
        raise InputError(f"{asked.what}: must be ordered, such as lists; got a set")
    try:
        rows = list(plain(source))
    except TypeError:
        kinds = "lists, an array, a tensor, a table or a path"
        raise InputError(f"{asked.what}: must be {kinds}, got {shown(source)}") from None
    found = asked.rows(rows, "lists")
    return replace(found, index=as_labels(labels)) if labels is not None and len(labels) == len(found.flat) else found
