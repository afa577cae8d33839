"""Reading of sequence files that are larger than memory."""

import io
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hmmscope.errors import InputError
from hmmscope.schema import listed, require_count, unknown_name
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.encoding import UNITS, Alphabet, encode_characters, filling_lengths
from hmmscope.sequences.gaps import MISSING, Missing
from hmmscope.sequences.read_options import ReadOptions
from hmmscope.sequences.read_request import ReadRequest
from hmmscope.sequences.reading import TWO_WAYS
from hmmscope.sequences.sources import FASTA, TEXT, is_fasta, open_arrays
from hmmscope.storage import disk

#: Most bytes of a line.
_MAX_LINE = 2**26
_STREAMED = (*TEXT, *FASTA, ".safetensors")
_UNITS = ("characters", "words", "numbers")


class SequenceStream:
    """The sequences of a file in chunks that fit into memory; each iteration starts at the beginning.

    Unless symbols are given, text and FASTA files are first read once to find the symbols. A safetensors file from
    `SequenceData.save` is memory-mapped.

    Args:
        path: a text file, FASTA, or .safetensors.
        symbols: all names, or the number of symbols.
        unit: which unit of text is one symbol: "characters", "words" or "numbers".
        missing: values that mark missing observations, see `SequenceData`.
        batch: approximate number of observations in a chunk.
        longest: length of the pieces into which longer sequences are cut; lines of words or numbers are never cut.

    Attributes:
        symbols, num_symbols, read_options: see `SequenceData`.
        size: size of the file in bytes.
        position: number of bytes that the last iteration has read.

    Raises:
        InputError: the file has another type, no sequence or a line above 64 MiB; `unit` is missing; or, during
            iteration, a symbol is unknown.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        symbols: object = None,
        unit: str | None = None,
        missing: object = None,
        batch: int = 2**22,
        longest: int = 2**16,
    ) -> None:
        self.path, self.batch, self.longest = Path(path), batch, longest
        require_count("batch", batch)
        require_count("longest", longest, 2)
        ending = self.path.suffix.lower()
        if ending not in _STREAMED:
            raise InputError(f"{self.path}: streams read text, FASTA or .safetensors; use SequenceData instead")
        with disk.reading(self.path, managed=False) as file:
            self.size, self._is_fasta = os.fstat(file.fileno()).st_size, ending in FASTA
            if ending in TEXT and unit is None and is_fasta(file.read(2**16).decode("utf-8-sig", "replace")):
                raise InputError(f"{self.path}: {TWO_WAYS}")
        self.position = 0
        self.unit = "characters" if self._is_fasta else unit
        self._missing, self._has_gaps = Missing.of(missing), False
        self.read_options = ReadOptions(
            unit=None if ending == ".safetensors" else self.unit, missing=self._missing.names or None
        )
        alphabet = Alphabet.of(symbols, self._missing)
        if ending == ".safetensors":
            header = open_arrays(self.path).header or {}
            given, self._has_gaps = header.get("symbols", header.get("num_symbols")), bool(header.get("gaps"))
            alphabet = Alphabet.of(given if symbols is None else symbols, self._missing)
            if isinstance(given, list) and alphabet.names not in (None, tuple(given)):
                raise InputError(f"symbols: differ from those of the file ({listed(given)}); leave symbols out")
        elif self.unit is None:
            units = ", ".join(f"{name!r} ({UNITS[name]})" for name in _UNITS)
            raise InputError(f"unit: is required for streamed text (--unit): {units}")
        elif self.unit not in _UNITS:
            raise unknown_name("unit", self.unit, _UNITS)
        elif alphabet.count is None:
            alphabet = self._found()
        if alphabet.count is None:
            raise InputError(f"{self.path}: holds no sequence")
        self._alphabet, self.symbols, self.num_symbols = alphabet, alphabet.names, alphabet.count

    def __iter__(self) -> Iterator[SequenceData]:
        if self.path.suffix.lower() == ".safetensors":
            yield from self._mapped()
            return
        part: list[str] = []
        total = 0
        for text in self._texts():
            step = self.longest if self.unit == "characters" else len(text)
            for begin in range(0, len(text), step):
                part.append(text[begin : begin + step])
                total += len(part[-1])
                if total >= self.batch:
                    yield self._data(part)
                    part, total = [], 0
        if part:
            yield self._data(part)

    def _data(self, part: list[str]) -> SequenceData:
        asked = ReadRequest(self.path.name, self._alphabet, self.read_options)
        if self.unit == "characters":
            encoded = encode_characters(part, self._alphabet, "characters", asked.at("sequence"))
            encoded = replace(encoded, read_options=self.read_options)
        else:
            encoded = asked.lines(part)
        return SequenceData.from_encoded(encoded, self.path.name)

    def _mapped(self) -> Iterator[SequenceData]:
        arrays = open_arrays(self.path).arrays
        if not {"tokens", "lengths"} <= set(arrays):
            raise InputError(f"{self.path}: must be a file from SequenceData.save, with tokens and lengths")
        flat = arrays["tokens"]
        if flat.ndim != 1:
            raise InputError(
                f"{self.path}: tokens: must be concatenated sequences (observation,), got shape {tuple(flat.shape)}"
            )
        ends = filling_lengths(arrays["lengths"], len(flat)).cumsum()
        bounds = [b for a, e in zip([0, *ends[:-1]], ends, strict=True) for b in range(a, e, self.longest)]
        bounds.append(int(ends[-1]))
        rows: list[np.ndarray] = []
        begun = 0
        asked = ReadRequest(self.path.name, self._alphabet)
        for begin, end in pairwise(bounds):
            row = flat[begin:end].astype(np.int64)
            rows.append(np.where(row == self.num_symbols, MISSING, row) if self._has_gaps else row)
            if end - begun >= self.batch or end == bounds[-1]:
                self.position = int(self.size * end / bounds[-1])
                yield SequenceData.from_encoded(asked.numbers(rows, "sequences as saved"), self.path.name)
                rows, begun = [], end

    def _found(self) -> Alphabet:
        names: set[str] = set()
        largest = -1
        for text in self._texts():
            words = set(text if self.unit == "characters" else text.replace(",", " ").split())
            words.difference_update(self._missing.names)
            if self.unit == "numbers":
                largest = max([largest, *(int(word) for word in words if word.isascii() and word.isdigit())])
            else:
                names.update(words)
        if self.unit == "numbers":
            return Alphabet.of(largest + 1, self._missing) if largest >= 0 else Alphabet()
        return Alphabet.of(sorted(names), self._missing) if names else Alphabet()

    def _texts(self) -> Iterator[str]:
        with disk.reading(self.path, managed=False) as file:
            self.position = 0
            if not self._is_fasta:
                yield from (text for line in self._lines(file) if (text := line.strip()))
                return
            record = io.StringIO()
            for line in self._lines(file):
                is_header = line.startswith(">")
                if is_header or record.tell() >= self.longest:
                    if record.tell():
                        yield record.getvalue()
                    record = io.StringIO()
                if not is_header and not line.startswith(";"):
                    record.write("".join(line.split()).upper())
            if record.tell():
                yield record.getvalue()

    def _lines(self, file: BinaryIO) -> Iterator[str]:
        while line := file.readline(_MAX_LINE + 1):
            self.position += len(line)
            if len(line) > _MAX_LINE:
                raise InputError(f"{self.path}: a line is longer than {_MAX_LINE} bytes; split it, or pass an array")
            try:
                yield from line.decode("utf-8-sig" if self.position == len(line) else "utf-8").splitlines()
            except UnicodeDecodeError:
                raise InputError(f"{self.path}: is not UTF-8 text") from None
