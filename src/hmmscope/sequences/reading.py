"""Reading of files and objects as encoded sequences; only regular files of limited size are read."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.schema import shown
from hmmscope.sequences.columns import as_labels, to_plain
from hmmscope.sequences.encoding import Alphabet, Encoded, apart, encode_words, warn_of_numbers
from hmmscope.sequences.gaps import FOR_NUMBERS, MISSING
from hmmscope.sequences.read_options import ReadOptions
from hmmscope.sequences.read_request import ReadRequest, is_whole, plain
from hmmscope.sequences.sources import OBSERVATIONS, Arrays, Plain, Source, Text, open_object
from hmmscope.sequences.tables import Table, TableCells, csv_table, table_of

#: Error message for a text file that starts like FASTA.
TWO_WAYS = "can be read in two ways: as FASTA, if it is named .fasta, or as text with unit='characters' (--unit)"


def read(source: Source, asked: ReadRequest, how: str = "") -> Encoded:
    """Encode a source of symbols; `how`, such as "array tokens", describes a list or array in `Encoded.how`."""
    match source:
        case Text(text, form):
            asked.no_group()
            if form == "lines or FASTA" and asked.unit is None and asked.alphabet.names is None:
                raise InputError(f"{asked.what}: {TWO_WAYS}")
            readers = {"FASTA": _read_fasta, "FASTQ": _read_fastq}
            return readers[form](text, asked) if form in readers else asked.lines(text.splitlines())
        case TableCells():
            return _read_csv(source, asked)
        case Table():
            return _read_table(source, asked)
        case Arrays():
            return _read_arrays(source, asked)
        case Plain():
            return _read_plain(source, asked, how)


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
            raise InputError(f"{asked.what}: the record at line {number} has {rule}; FASTQ needs equal numbers")
        sequences.append(record)
    how = "FASTQ records without their quality, where each letter is a symbol and small letters count as capitals"
    return _letters(sequences, asked, how)


def _letters(sequences: list[str], asked: ReadRequest, how: str) -> Encoded:
    if not any(sequences):
        raise InputError(f"{asked.what}: holds no sequence")
    found = asked.characters(sequences, "record")
    letters = set(found.symbols or ())
    gaps = sorted(letters & {"-", "."}) + (["N"] if "N" in letters and letters <= set("ACGTUN-.") else [])
    if gaps and asked.alphabet.names is None:
        how += f"; {' and '.join(gaps)} count as symbols unless you pass --missing {','.join(gaps)}"
    empty = sum(not sequence for sequence in sequences)
    how += f"; {empty} empty record{'s' * (empty != 1)} left out" if empty else ""
    return replace(found, how=how)


def _read_csv(found: TableCells, asked: ReadRequest) -> Encoded:
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
        gaps, known = asked.missing.names, asked.alphabet.names
        names = {*known, *gaps} if known else set()
        whole = all(is_whole(cell) or cell in gaps for row in cells for cell in row)
        if whole and not all(map(names.issuperset, cells)):
            values = [[MISSING if cell in gaps else int(cell) for cell in row] for row in cells]
            return asked.numbers(asked.along(values), "rows of numbers", "row")
        if asked.unit != "words" and known and not names.issuperset(cells[0]):
            return _read_table(csv_table(found, asked.what), asked)
        if asked.unit != "words" and not known:
            columns = " or ".join(f"column={shown(name)}" for name in rows[0][:3])
            raise InputError(
                f"{asked.what}: can be read in two ways: as {len(rows)} rows whose cells are symbols, or as a table whose "
                f"first row names columns; choose with unit='words' (--unit) or {columns} (--column). For numbers that are "
                "not symbols, fit with emission='gaussian' (--emission)"
            )
        return replace(asked.words(asked.along(cells), "rows of names", "row"), read_options=ReadOptions(unit="words"))
    return _read_table(csv_table(found, asked.what), asked)


def _read_table(table: Table, asked: ReadRequest) -> Encoded:
    asked.row_numbers, header = table.numbers, {} if table.header is None else table.header
    if not isinstance(header, Mapping):
        raise InputError(f"{asked.at('row')(0)}: alphabet: must be a mapping with symbols, got {shown(header)}")
    names = asked.of_file(header)
    return _renamed(asked.table(table), names, asked)


def _read_arrays(source: Arrays, asked: ReadRequest) -> Encoded:
    arrays, header = source.arrays, source.header
    if header is not None:
        asked.no_group()
    wanted = asked.of_file(header or {})
    if source.saved:
        return _renamed(_saved(arrays, asked), wanted, asked)
    names = asked.choose(source.names)
    if header is None and (asked.group is not None or asked.time_options["time"] is not None):
        return asked.table(table_of(arrays, asked.what))
    name = asked.field(names)
    asked.lengths = to_plain(arrays.get("lengths")) if asked.lengths is None else asked.lengths
    how = "" if header is None else f"array {name}"
    return _renamed(read(open_object(arrays[name], asked.what), asked, how), wanted, asked)


def _saved(arrays: Mapping[str, Any], asked: ReadRequest) -> Encoded:
    tokens, lengths, how = arrays.get("tokens"), arrays.get("lengths"), "sequences as saved"
    try:
        if isinstance(tokens, np.ndarray) and asked.lengths is None and not asked.has_gaps:
            whole = asked.whole(tokens[None], lengths, how)
            if whole is not None:
                return whole
        rows = apart(tokens, lengths)
    except InputError as error:
        raise InputError(f"{asked.what}: {error}") from None
    if asked.has_gaps:
        rows = [np.where(row == asked.alphabet.count, MISSING, row.astype(np.int64)) for row in rows]
    return asked.numbers(rows, how)


def _renamed(found: Encoded, wanted: Alphabet | None, asked: ReadRequest) -> Encoded:
    if wanted is None or found.symbols is None:
        return found
    split = np.split(found.flat, _ends(found))
    names = [*found.symbols, None]  # None for a missing observation
    words = [[names[code] for code in row.tolist()] for row in split]
    wanted = replace(wanted, missing=replace(wanted.missing, nothing=True))
    return replace(encode_words(words, wanted, found.how, asked.at("sequence")), read_options=found.read_options)


def _read_array(array: NDArray[Any], asked: ReadRequest, how: str) -> Encoded:
    kind, shape = array.dtype.kind, array.shape
    if kind in "USO" and array.ndim == 1:
        return asked.rows((array if kind == "O" else array.astype(str)).tolist(), how)
    if kind not in "iubfUSO" or array.ndim not in (1, 2):
        rule = f"must be whole numbers (sequence, time) or names, got {array.dtype} {shape}"
        raise InputError(f"{asked.what}: {rule}")
    if kind == "f" and array.ndim == 2 and not asked.own:
        _require_whole(array, asked)
    if kind == "f" and array.ndim == 2 and asked.axis is None and asked.lengths is None and not asked.own:
        down, along = (
            f"one sequence of {shape[0]} steps" if shape[1] == 1 else f"{shape[1]} sequences of {shape[0]}",
            f"{shape[0]} sequences of {shape[1]}",
        )
        raise InputError(
            f"{asked.what}: {array.dtype} {shape} can be read in two ways: with axis=0 as {down}, or with axis=1 as {along}"
            "; choose one (--axis), or give lengths. For numbers that are not symbols, use hmmscope.fit(X, num_states, "
            "emission='gaussian')"
        )
    if array.ndim == 2:
        is_column = shape[1] == 1 < shape[0]
        given = asked.read_options.axis if asked.own else asked.axis
        asked.has_axes = given is not None
        axis = given if given is not None else 0 if is_column and not asked.own else 1
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
    if values.size and np.isnan(values).all():
        raise InputError(f"{asked.what}: every observation is missing")
    odd = values[np.isfinite(values) & (np.floor(values) != values)]
    if odd.size:
        rule = f"must be symbol numbers, which are whole, got {odd.flat[0]:g} in {array.dtype} {array.shape}"
        raise InputError(f"{asked.what}: {rule}; {FOR_NUMBERS}")


def read_again(found: Encoded, asked: ReadRequest) -> Encoded:
    wanted, options = asked.alphabet, asked.read_options.to_data() | ({} if asked.lengths is None else {"lengths": 0})
    if options:
        raise InputError(f"{next(iter(options))}: SequenceData is already read; leave out options for reading")
    if wanted.count is None or (wanted.names, wanted.count) == (found.symbols, found.num_symbols):
        return found
    if found.symbols is not None and wanted.names is not None:
        return _renamed(found, wanted, asked)
    if found.of_numbers:
        warn_of_numbers(wanted.names, asked.what)
    parts = np.split(np.where(found.flat == found.num_symbols, MISSING, found.flat.astype(np.int64)), _ends(found))
    again = asked.numbers(parts, found.how)
    return replace(again, read_options=found.read_options, of_numbers=found.of_numbers)


def _ends(found: Encoded) -> NDArray[np.int64]:
    return np.cumsum(found.lengths)[:-1]


def _read_plain(source: Plain, asked: ReadRequest, how: str) -> Encoded:
    values, labels = source.values, source.labels
    if isinstance(values, bytes | bytearray):
        raise InputError(
            f"{asked.what}: bytes can be read in two ways: as text, source.decode(), or as numbers, list(source)"
        )
    if asked.time_options["time"] is not None and labels is not None:
        return asked.table(Table(asked.what, [OBSERVATIONS], lambda name: source.values, labels=labels))
    asked.no_group()
    values = asked.adopt(values, to_plain(values))
    if isinstance(values, np.ndarray):
        found = _read_array(values, asked, how or "array")
        return found if labels is None else replace(found, index=as_labels(labels))
    if isinstance(values, set | frozenset):
        raise InputError(f"{asked.what}: must have an order, such as a list, got a set")
    try:
        rows = list(plain(values))
    except TypeError:
        kinds = "lists, an array, a tensor, a table or a path"
        raise InputError(f"{asked.what}: must be {kinds}, got {shown(values)}") from None
    asked.row_numbers = source.numbers
    kind, noun = ("lists", "sequence") if source.numbers is None else ("rows", "row")
    found = asked.rows(rows, how or kind, noun)
    return replace(found, index=as_labels(labels)) if labels is not None and len(labels) == len(found.flat) else found
