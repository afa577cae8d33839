"""Sequences of symbols with their alphabet, for fitting, filtering and training."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from hmmscope.axes import Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.reprs import html_table
from hmmscope.schema import require, require_count, shown, unknown_name
from hmmscope.seeds import check_seed, numpy_generator
from hmmscope.sequences.columns import is_indices, own_rows
from hmmscope.sequences.encoding import Alphabet, Encoded, summary
from hmmscope.sequences.gaps import MISSING, Missing
from hmmscope.sequences.large import num_equal, parts_of
from hmmscope.sequences.read_options import TIME_OPTIONS, ReadOptions
from hmmscope.sequences.read_request import FORMAT, ReadRequest
from hmmscope.sequences.reading import read, read_again
from hmmscope.sequences.saving import write_sequences
from hmmscope.sequences.sources import open_file, open_object
from hmmscope.sequences.splitting import block_length, hashes_of, parts_of_hashes, piece_length
from hmmscope.sequences.time_stamps import stored_duration
from hmmscope.text import in_a_line

#: Names of the options of `SequenceData` for reading a source.
READING_OPTIONS = ("symbols", "unit", "column", "group", *TIME_OPTIONS, "axis", "missing", "lengths", "symbols_from")
#: Most symbols, and most characters of the first line, that `describe` shows.
_SHOWN_SYMBOLS, _SHOWN_LINE = 12, 60


class Parts(NamedTuple):
    """Disjoint sequences for training, model selection and testing."""

    train: "SequenceData"
    validation: "SequenceData"
    test: "SequenceData"


class SequenceData(Dataset[Tensor]):
    """Sequences of symbols 0 to V - 1, of any lengths and with missing observations; symbols may have names.

    Indexing gives a sequence (``data[3]``) or a subset (``data[3:10]``, ``data[[5, 3]]``). The class is a PyTorch
    dataset: ``DataLoader(data, collate_fn=data.collate)``.

    Args:
        source: lists of symbols, texts, an integer array or tensor (sequence, time), a table with a column of symbols
            (`datasets.Dataset`, a frame, a mapping), a path (text, FASTA, .csv, .tsv, .jsonl, .npz, .npy, .safetensors,
            .parquet), or `SequenceData`.
        symbols: all names in order, or the number of symbols (default: sorted names, or numbers up to the largest).
        unit: which unit of text is one symbol: "characters", "words", "numbers" or "lines".
        column: column of a table, or array of a file, with the symbols (default: ``observations``, or the only column).
        group: column that names the sequence of each row, in a table with one observation per row.
        time: column with the time stamp of each row; "index" uses the index of a frame. See
            [time](data.md#time-stamps).
        every: time step, such as "10min"; a step without a row is a missing observation. With "row", each row is
            a step, whatever its time stamp.
        gap: longest time between two rows of one sequence; a longer time starts a new sequence.
        sort: whether to sort rows by time; otherwise rows out of order raise an error.
        duplicates: which row to keep if several fall into one step, "first" or "last"; by default they raise an error.
        axis: time axis of a 2-d array: 0 if columns are sequences, 1 if rows are; (time, 1) is one sequence by default.
        missing: values that mark missing observations, such as "NA", -1, NaN, [None] or ""; None and NaN are equal,
            and "nan" includes them. Masked entries and `hmmscope.MISSING` are always missing.
        lengths: lengths of padded rows, or of sequences that follow each other in one row or column, as in hmmlearn.
        symbols_from: a process or `SequenceData` whose symbols and reading options are used.
        title, seed: title of the data (default: the file name), and seed of the split (`train`, `validation`, `test`).

    Attributes:
        symbols: names of the symbols, or None.
        num_symbols: number of symbols, V.
        lengths: lengths of the sequences, including missing observations (sequence,).
        title, how: title of the data, and a sentence on how the source was read.
        read_options: options that read another source in the same way.
        names: names of the sequences, from `group` or from the records of a file, or None.

    Raises:
        InputError: nothing to read, an unknown symbol, a missing or too large file, or an ambiguous source.
        DamagedError: a truncated binary file.
    """

    def __init__(
        self,
        source: object,
        *,
        symbols: object = None,
        unit: str | None = None,
        column: str | None = None,
        group: str | None = None,
        time: str | None = None,
        every: Any = None,
        gap: Any = None,
        sort: bool = False,
        duplicates: str | None = None,
        axis: int | None = None,
        missing: object = None,
        lengths: object = None,
        symbols_from: Any = None,
        title: str | None = None,
        seed: int = 0,
    ) -> None:
        is_path = isinstance(source, os.PathLike) or (isinstance(source, str) and "\n" not in source)
        what = Path(str(source)).name if is_path else title or "sequences"
        good = symbols_from is None or hasattr(symbols_from, "read_options")
        require(good, "symbols_from", "must be a process or SequenceData", symbols_from)
        if symbols_from is not None and symbols is None:
            alphabet = symbols_from if isinstance(symbols_from, Alphabet) else symbols_from.alphabet
            symbols = alphabet.names or alphabet.count
        kept = None if symbols_from is None else symbols_from.read_options
        names = Missing.of(missing).names or None
        by_time: dict[str, Any] = {"time": time, "sort": sort or None, "duplicates": duplicates}
        by_time |= {"every": stored_duration(every, "every"), "gap": stored_duration(gap, "gap")}
        wanted = ReadOptions(unit=unit, column=column, group=group, axis=axis, missing=names, **by_time)
        gaps = Missing(names or (kept.missing if kept else None) or ())
        source, lengths = own_rows(source, lengths)
        asked = ReadRequest(what, Alphabet.of(symbols, gaps), wanted, lengths, kept)
        asked.indices = is_indices(source)
        if isinstance(source, SequenceData):
            self._set(read_again(source._encoded, asked), source.title if title is None else title, seed or source.seed)
            return
        try:
            if isinstance(source, str) and not is_path:
                encoded = asked.lines(source.splitlines())
            else:
                encoded = read(open_file(Path(str(source))) if is_path else open_object(source, what), asked)
        except InputError as error:
            if kept is None or not kept.to_data():
                raise
            raise InputError(
                f"{error} (the process stores the options {kept.flags()}; pass other values to replace them)"
            ) from None
        self._set(asked.understood(encoded), what if title is None else title, seed)

    def _set(self, encoded: Encoded, title: str, seed: int) -> None:
        self._encoded, self.title, self.seed = encoded, title, check_seed(seed)
        self.symbols, self.num_symbols, self.how = encoded.symbols, encoded.num_symbols, encoded.how
        self.read_options, self.names, self.of_numbers = encoded.read_options, encoded.names, encoded.of_numbers
        self.lengths = torch.from_numpy(encoded.lengths.astype(np.int64))
        self._starts = np.concatenate([[0], np.cumsum(encoded.lengths)]).astype(np.int64)

    @classmethod
    def from_encoded(cls, encoded: Encoded, title: str, seed: int = 0) -> "SequenceData":
        data = cls.__new__(cls)
        data._set(encoded, title, seed)
        return data

    @property
    def alphabet(self) -> Alphabet:
        """The symbols and the reading options."""
        return Alphabet(self.symbols, self.num_symbols, read_options=self.read_options)

    @property
    def num_observations(self) -> int:
        """Number of observations that are not missing."""
        return self.num_steps - self.num_missing

    @property
    def num_steps(self) -> int:
        """Number of observations, including missing ones."""
        return int(self._starts[-1])

    @cached_property
    def steps_since_gap(self) -> NDArray[np.int64]:
        """Index of each observation in its run without missing ones (observation,), from 0; -1 where missing."""
        steps, gaps = np.arange(self.num_steps), self.flat == self.num_symbols
        begins = np.zeros(self.num_steps + 1, np.bool_)
        begins[self._starts[:-1]] = True
        begins[1:] |= gaps
        since = steps - np.maximum.accumulate(np.where(begins[:-1], steps, 0))
        return np.where(gaps, -1, since)

    @cached_property
    def num_missing(self) -> int:
        return num_equal(self.flat, self.num_symbols)

    @property
    def moved(self) -> bool:
        """True if groups or times reordered the rows of a table."""
        return self._encoded.moved

    @property
    def index(self) -> list[NDArray[Any]] | None:
        """Time stamps (datetime64; datetimes if zoned), labels or indices of each sequence's rows, or None."""
        index = self._encoded.index
        return None if index is None else np.split(index, self._starts[1:-1])

    @property
    def longest(self) -> int:
        return int(self.lengths.max())

    @property
    def flat(self) -> NDArray[np.integer]:
        """All symbols, concatenated (observation,); `num_symbols` where missing."""
        return self._encoded.flat

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int | np.integer) and not isinstance(index, bool):
            number = int(index) + (len(self) if index < 0 else 0)
            if not 0 <= number < len(self):
                raise IndexError(f"index: there are {len(self)} sequences, got {index}")
            part = self.flat[self._starts[number] : self._starts[number + 1]]
            return torch.from_numpy(np.where(part == self.num_symbols, MISSING, part.astype(np.int64)))
        if isinstance(index, slice):
            return self._chosen(np.arange(len(self))[index])
        chosen = np.asarray(index)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iub" or len(chosen) == 0:
            raise InputError(f"index: must be a number, a slice or a list of numbers, got {shown(index)}")
        return self._chosen(np.arange(len(self))[chosen])

    def __iter__(self) -> Iterator[Int64[Tensor, " time"]]:
        for number in range(len(self)):
            yield self[number]

    def _chosen(self, numbers: NDArray[np.int64]) -> "SequenceData":
        if len(numbers) == 0:
            raise InputError("index: must select at least one sequence")
        places = np.concatenate([np.arange(self._starts[n], self._starts[n + 1]) for n in numbers.tolist()])
        names = None if self.names is None else tuple(self.names[n] for n in numbers.tolist())
        return self._with(places, self._encoded.lengths[numbers], names)

    def _with(self, places: Any, lengths: NDArray[np.int64], names: tuple[Any, ...] | None) -> "SequenceData":
        flat, index = self.flat[places], self._encoded.index
        about: dict[str, Any] = {"first": self.as_text(flat[: min(40, int(lengths[0]))]), "names": names}
        about |= {} if index is None else {"index": index[places]}
        return self.from_encoded(replace(self._encoded, flat=flat, lengths=lengths, **about), self.title, self.seed)

    def as_text(self, sequence: Any) -> str:
        """Return a sequence of symbol numbers as text."""
        names = self.symbols or tuple(map(str, range(self.num_symbols)))
        glue = "" if self.symbols and all(len(name) == 1 for name in names) else " "
        return glue.join(names[code] if 0 <= code < len(names) else "?" for code in map(int, sequence))

    def renamed(self, symbols: Sequence[str]) -> "SequenceData":
        """Return the data with each symbol numbered by the index of its name in `symbols`."""
        names = self.symbols or ()
        codes = np.array([*(symbols.index(name) for name in names), len(symbols)])
        flat = codes[self.flat.astype(np.int64)]
        return self.from_encoded(
            replace(self._encoded, flat=flat, symbols=tuple(symbols), num_symbols=len(symbols)), self.title, self.seed
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the sequences: symbols, names of symbols, and lengths."""
        header = json.dumps([self.num_symbols, self.symbols], ensure_ascii=False)
        sha = hashlib.sha256(f"{FORMAT}/1/{len(self)}/{header}".encode())
        sha.update(self._encoded.lengths.astype("<i8").tobytes())
        for part in parts_of(self.flat):
            sha.update(part.astype("<i4").tobytes())
        return sha.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SequenceData) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def describe(self) -> str:
        """Return two lines: sizes and symbols, then the first sequence."""
        names = self.symbols or ()
        listed = " ".join(map(in_a_line, names[:_SHOWN_SYMBOLS])) + (" ..." if len(names) > _SHOWN_SYMBOLS else "")
        total = f"{self.num_observations} observations in {summary(self._encoded)}"
        gaps = f", {self.num_missing} missing" if self.num_missing else ""
        alphabet = f": {listed}" if names else f", numbered 0 to {self.num_symbols - 1}"
        first = in_a_line(self._encoded.first)
        first = first[:_SHOWN_LINE] + ("..." if len(first) > _SHOWN_LINE or int(self.lengths[0]) > 40 else "")
        return f"{in_a_line(self.title)}: {total}{gaps}{alphabet} ({self.how})\n  first: {first}"

    def __repr__(self) -> str:
        title = f", title={self.title!r}" if self.title else ""
        return f"SequenceData({summary(self._encoded)}{title})"

    def _repr_html_(self) -> str:
        facts = {"title": self.title, "sequences": summary(self._encoded), "read as": self.how}
        names = {} if self.symbols is None else {"symbols": ", ".join(map(in_a_line, self.symbols[:40]))}
        return html_table("SequenceData", facts | names | {"first": in_a_line(self._encoded.first)})

    def padded(self, length: int | None = None) -> tuple[Int64[Tensor, "sequence time"], Int64[Tensor, " sequence"]]:
        """Return a zero-padded array of all sequences, cut to `length` if it is given, and their lengths."""
        return self.collate([self[number] for number in range(len(self))], length)

    @staticmethod
    def collate(sequences: Sequence[Tensor], length: int | None = None) -> tuple[Tensor, Tensor]:
        """Return (zero-padded tokens, lengths) of sequences, for a DataLoader."""
        counts = torch.tensor(
            [len(sequence) if length is None else min(len(sequence), length) for sequence in sequences]
        )
        tokens = torch.zeros(len(sequences), int(counts.max()), dtype=torch.int64)
        for row, sequence, count in zip(tokens, sequences, counts.tolist(), strict=True):
            row[:count] = sequence[:count]
        return tokens, counts

    def batches(self, batch_size: int, *, shuffle: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (tokens, lengths) of `batch_size` sequences at a time; a seed in `shuffle` shuffles them."""
        require_count("batch_size", batch_size)
        order = np.arange(len(self))
        if shuffle is not None:
            order = numpy_generator(shuffle, "shuffled-sequences").permutation(len(self))
        for begin in range(0, len(self), batch_size):
            yield self.collate([self[int(number)] for number in order[begin : begin + batch_size]])

    def cut(self, length: int) -> "SequenceData":
        """Cut the sequences into pieces of at most `length` observations."""
        require_count("length", length)
        lengths = [
            min(length, count - begin) for count in self._encoded.lengths.tolist() for begin in range(0, count, length)
        ]
        names = self.names and tuple(
            name
            for name, count in zip(self.names, self._encoded.lengths.tolist(), strict=True)
            for _ in range(0, count, length)
        )
        found = self._with(slice(None), np.array(lengths), names)
        return found if len(found) == len(self) else found._said(f"cut into {len(found)} pieces of at most {length}")

    @property
    def block_length(self) -> int:
        """Length, at least 16 observations, that cuts the data into about 50 pieces."""
        return block_length(self.num_steps)

    def chunks(self, length: int) -> "SequenceData":
        """Cut the sequences into pieces of `length`; if that gives fewer than 30 pieces, of at most `block_length`."""
        require_count("length", length)
        length = piece_length(self.lengths.tolist(), length)
        return self.cut(length) if self.longest > length else self

    def in_blocks(self) -> "SequenceData":
        """Return the data, cut into pieces of `block_length` if it has fewer than three different sequences."""
        different: set[bytes] = set()
        for begin, end in pairwise(self._starts.tolist() if len(self) >= 3 else ()):
            different.add(hashlib.sha256(self.flat[begin:end].tobytes()).digest())
            if len(different) == 3:
                return self
        return self.cut(self.block_length)

    def _said(self, more: str) -> "SequenceData":
        return self.from_encoded(replace(self._encoded, how=f"{self.how}; {more}"), self.title, self.seed)

    def prefixes(self, length: int) -> "SequenceData":
        """Return the first `length` observations of each sequence."""
        require_count("length", length)
        lengths = np.minimum(self._encoded.lengths, length)
        kept = np.arange(self.num_steps) - np.repeat(self._starts[:-1], self._encoded.lengths) < length
        return self._with(kept, lengths, self.names)

    def split(self, train: float = 0.8, validation: float = 0.1, *, seed: int = 0) -> Parts:
        """Split into disjoint training, validation and test parts.

        Equal sequences go to the same part, and the order of the sequences has no effect.

        Args:
            train, validation: fractions of the different sequences in these two parts; the test part gets all others.
            seed: seed of the split.

        Raises:
            InputError: there are fewer than three different sequences, or the fractions leave no test part.
        """
        require(
            train > 0 and validation > 0 and train + validation < 1,
            "train, validation",
            "must be positive with a sum below 1",
            (train, validation),
        )
        keys = hashes_of((sequence.numpy().astype("<i8").tobytes() for sequence in self), seed)
        order = set(keys)
        if len(order) < 3:
            if self.num_steps < 3:
                raise InputError(
                    f"{self.title}: {self.num_observations} observations ({self.how}) cannot be split into three "
                    "parts; give at least 3"
                )
            found = "sequence" if len(order) == 1 else "different sequences"
            raise InputError(
                f"{self.title}: {len(order)} {found} cannot be split into three parts; cut long sequences, for example "
                f"with data.cut({max(1, self.longest // 10)})"
            )
        parts = parts_of_hashes(keys, train, validation)
        return Parts(*(self._chosen(np.flatnonzero(parts == part)) for part in range(3)))

    def seeded(self, seed: int) -> "SequenceData":
        """Return the data with another seed of the split."""
        return self.from_encoded(self._encoded, self.title, seed)

    @cached_property
    def _parts(self) -> Parts:
        return self.split(seed=self.seed)

    @property
    def train(self) -> "SequenceData":
        """Training part with 80 % of the different sequences; `validation` and `test` have 10 % each."""
        return self._parts.train

    @property
    def validation(self) -> "SequenceData":
        """Validation part; see `train`."""
        return self._parts.validation

    @property
    def test(self) -> "SequenceData":
        """Test part; see `train`."""
        return self._parts.test

    def save(self, path: object) -> None:
        """Write the data to a new .safetensors, .npz or .jsonl file, from which `SequenceData` restores it.

        Raises:
            InputError: the file name has another ending.
            RefusedError: the file exists.
        """
        write_sequences(self, path)


def read_as(source: Any, read_options: Mapping[str, Any], beside: Iterable[str] = ()) -> SequenceData:
    """Build `SequenceData` from a source; `beside` has further options to list in the error for an unknown option."""
    for name in read_options:
        if name not in READING_OPTIONS:
            raise unknown_name("option", name, [*READING_OPTIONS, *beside])
    if not isinstance(source, SequenceData):
        return SequenceData(source, **read_options)
    if read_options:
        raise InputError(f"{next(iter(read_options))}: SequenceData is already read; leave out options for reading")
    return source
