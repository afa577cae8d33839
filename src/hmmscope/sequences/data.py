"""Sequences of symbols with their alphabet: what users bring, ready for fitting, filtering and training."""

import hashlib
import io
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
from hmmscope.errors import InputError, RefusedError
from hmmscope.reprs import html_table
from hmmscope.schema import require, require_count, shown, unknown_name
from hmmscope.seeds import check_seed, numpy_generator
from hmmscope.sequences.encoding import Alphabet, Encoded, summary
from hmmscope.sequences.gaps import MISSING, Missing
from hmmscope.sequences.large import num_equal, parts_of
from hmmscope.sequences.read_options import ReadOptions
from hmmscope.sequences.read_request import FORMAT, ReadRequest
from hmmscope.sequences.reading import read_again, read_file, read_object
from hmmscope.storage import store
from hmmscope.text import in_a_line

_ENDINGS = (".safetensors", ".npz", ".jsonl")
#: Options of `SequenceData` that say how a source is read.
READING_OPTIONS = ("symbols", "unit", "column", "group", "axis", "missing", "lengths", "symbols_from")
#: Symbols, and characters of a first line, that are shown.
_SHOWN_SYMBOLS, _SHOWN_LINE = 12, 60
#: Blocks that few long sequences are cut into, and symbols of the shortest.
_BLOCKS, _SHORTEST_BLOCK = 50, 16
#: A tenth of fewer pieces says little.
_FEW_PIECES = 30


class Parts(NamedTuple):
    """Sequences apart for training, for choices while training, and for the last judgement."""

    train: "SequenceData"
    validation: "SequenceData"
    test: "SequenceData"


class SequenceData(Dataset[Tensor]):
    """Sequences of symbols 0 to V - 1, of any lengths and with gaps, with the names of the symbols if they have names.

    Args:
        source: lists of symbols (names or whole numbers), texts, an array or tensor (sequence, time) of whole numbers, a
            table with a column of such (`datasets.Dataset`, a frame, a mapping), the path of a file (text, FASTA, .csv,
            .tsv, .jsonl, .npz, .npy, .safetensors, .parquet), or `SequenceData`, to be given other names.
        symbols: the names of all symbols in their order, or how many there are. By default names are those that occur,
            sorted, and numbers go up to the largest.
        unit: of text: "characters", "words", "numbers", or "lines" (one symbol a line).
        column: of a table or file with several arrays, the one to take; by default ``observations``, or the only one.
        group: of a table with one observation a row, the column that says of which sequence.
        axis: of an array of two dimensions, the axis along which time runs: 0 if each column is a sequence, 1 if each row
            is. By default (time, 1) is one sequence, as in hmmlearn, and (sequence, time) has one a row.
        missing: what stands for an observation that was not made: a name or number, or several: "NA", -1, NaN, [None],
            "" for an empty cell of a table. One of None, NaN and "nan" stands for all that is no value. Masked entries of
            NumPy, and `hmmscope.MISSING`, are missing in any case.
        lengths: number of symbols of each row of a padded array; or of each of the sequences that lie one after the other in
            one row or column, as in hmmlearn's ``X, lengths``.
        symbols_from: a process, or other `SequenceData`, whose symbols these have; without other options, the sequences are
            read as it was read.
        title: what it is; by default the name of the file.
        seed: of `train`, `validation` and `test`.

    ``len(data)`` is the number of sequences, ``data[3]`` one of them, ``data[3:10]`` and ``data[[5, 3]]`` some of them
    as data of their own. It is a data set of PyTorch: ``DataLoader(data, collate_fn=data.collate)``.

    Attributes:
        symbols: names (V,), or None.
        num_symbols: V.
        lengths: of the sequences (sequence,), missing observations counted too.
        title, how: what it is, and how it was read.
        read_options: the options with which another source is read alike.

    Raises:
        InputError: nothing to read, a symbol that is not in the alphabet, a file that is missing, no regular file, or too
            large; or a source that can be read in two ways: the message says both, and the option that chooses.
        DamagedError: a binary file that is not whole.
    """

    def __init__(
        self,
        source: object,
        *,
        symbols: object = None,
        unit: str | None = None,
        column: str | None = None,
        group: str | None = None,
        axis: int | None = None,
        missing: object = None,
        lengths: object = None,
        symbols_from: Any = None,
        title: str | None = None,
        seed: int = 0,
    ) -> None:
        is_path = isinstance(source, os.PathLike) or (isinstance(source, str) and "\n" not in source)
        what = Path(str(source)).name if is_path else "sequences"
        if symbols_from is not None and symbols is None:
            symbols = symbols_from.symbols or symbols_from.num_symbols
        kept = None if symbols_from is None else symbols_from.read_options
        names = Missing.of(missing).names or None
        wanted = ReadOptions(unit=unit, column=column, group=group, axis=axis, missing=names)
        gaps = Missing(names or (kept.missing if kept else None) or ())
        asked = ReadRequest(what, Alphabet.of(symbols, gaps), wanted, lengths, kept)
        if isinstance(source, SequenceData):
            self._set(read_again(source._encoded, asked), source.title if title is None else title, seed or source.seed)
            return
        try:
            if isinstance(source, str) and not is_path:
                encoded = asked.lines(source.splitlines())
            else:
                encoded = read_file(Path(str(source)), asked) if is_path else read_object(source, asked)
        except InputError as error:
            if kept is None or not kept.to_data():
                raise
            raise InputError(
                f"{error} (read as those of the process, {kept.flags()}; the options choose another way)"
            ) from None
        self._set(asked.understood(encoded), what if title is None else title, seed)

    def _set(self, encoded: Encoded, title: str, seed: int) -> None:
        self._encoded, self.title, self.seed = encoded, title, check_seed(seed)
        self.symbols, self.num_symbols, self.how = encoded.symbols, encoded.num_symbols, encoded.how
        self.read_options = encoded.read_options
        self.lengths = torch.from_numpy(encoded.lengths.astype(np.int64))
        self._starts = np.concatenate([[0], np.cumsum(encoded.lengths)]).astype(np.int64)

    @classmethod
    def from_encoded(cls, encoded: Encoded, title: str, seed: int = 0) -> "SequenceData":
        """From sequences that are numbers already."""
        data = cls.__new__(cls)
        data._set(encoded, title, seed)
        return data

    # -- what is in it

    @property
    def num_observations(self) -> int:
        """Symbols in all; missing ones are not counted."""
        return self.num_steps - self.num_missing

    @property
    def num_steps(self) -> int:
        """Observations in all, and missing ones."""
        return int(self._starts[-1])

    @cached_property
    def steps_since_gap(self) -> NDArray[np.int64]:
        """Observations before each one in its sequence, since the last gap (observation,); -1 where it is missing."""
        steps, gaps = np.arange(self.num_steps), self.flat == self.num_symbols
        begins = np.zeros(self.num_steps + 1, np.bool_)
        begins[self._starts[:-1]] = True
        begins[1:] |= gaps
        since = steps - np.maximum.accumulate(np.where(begins[:-1], steps, 0))
        return np.where(gaps, -1, since)

    @cached_property
    def num_missing(self) -> int:
        """Observations that were not made."""
        return num_equal(self.flat, self.num_symbols)

    @property
    def longest(self) -> int:
        """Length of the longest sequence."""
        return int(self.lengths.max())

    @property
    def flat(self) -> NDArray[np.integer]:
        """All symbols, one sequence after the other (observation,); V where one is missing."""
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

    def __iter__(self) -> Iterator[Int64[Tensor, "time"]]:
        for number in range(len(self)):
            yield self[number]

    def _chosen(self, numbers: NDArray[np.int64]) -> "SequenceData":
        if len(numbers) == 0:
            raise InputError("index: chooses no sequence")
        parts = [self.flat[self._starts[n] : self._starts[n + 1]] for n in numbers.tolist()]
        return self._with(np.concatenate(parts), self._encoded.lengths[numbers])

    def _with(self, flat: NDArray[np.integer], lengths: NDArray[np.int64]) -> "SequenceData":
        first = self.as_text(flat[: min(40, int(lengths[0]))])
        return self.from_encoded(replace(self._encoded, flat=flat, lengths=lengths, first=first), self.title, self.seed)

    def as_text(self, sequence: Any) -> str:
        """Symbols as text: names, side by side if each is one character."""
        names = self.symbols or tuple(map(str, range(self.num_symbols)))
        glue = "" if self.symbols and all(len(name) == 1 for name in names) else " "
        return glue.join(names[code] if 0 <= code < len(names) else "?" for code in map(int, sequence))

    def renamed(self, symbols: Sequence[str]) -> "SequenceData":
        """The same with symbols numbered as in `symbols`, which hold all names that these have."""
        names = self.symbols or ()
        codes = np.array([*(symbols.index(name) for name in names), len(symbols)])
        flat = codes[self.flat.astype(np.int64)]
        return self.from_encoded(
            replace(self._encoded, flat=flat, symbols=tuple(symbols), num_symbols=len(symbols)), self.title, self.seed
        )

    @cached_property
    def digest(self) -> str:
        """sha256 of the symbols, of their names and number, and of the lengths."""
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

    # -- what it says

    def describe(self) -> str:
        """What was understood: sequences, lengths, symbols, and the first line as it was read; two lines."""
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

    # -- in batches

    def padded(self, length: int | None = None) -> tuple[Int64[Tensor, "sequence time"], Int64[Tensor, "sequence"]]:
        """All sequences as one array with zeros beyond their ends, and their lengths; cut to `length` if it is given."""
        return self.collate([self[number] for number in range(len(self))], length)

    @staticmethod
    def collate(sequences: Sequence[Tensor], length: int | None = None) -> tuple[Tensor, Tensor]:
        """Some sequences as (tokens, lengths), padded with zeros: the `collate_fn` of a DataLoader."""
        counts = torch.tensor(
            [len(sequence) if length is None else min(len(sequence), length) for sequence in sequences]
        )
        tokens = torch.zeros(len(sequences), int(counts.max()), dtype=torch.int64)
        for row, sequence, count in zip(tokens, sequences, counts.tolist(), strict=True):
            row[:count] = sequence[:count]
        return tokens, counts

    def batches(self, batch_size: int, *, shuffle: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """(tokens, lengths) of `batch_size` sequences at a time, all of them once; in an order of the seed `shuffle`."""
        require_count("batch_size", batch_size)
        order = np.arange(len(self))
        if shuffle is not None:
            order = numpy_generator(shuffle, "shuffled-sequences").permutation(len(self))
        for begin in range(0, len(self), batch_size):
            yield self.collate([self[int(number)] for number in order[begin : begin + batch_size]])

    # -- in parts

    def cut(self, length: int) -> "SequenceData":
        """The same symbols in pieces of at most `length`."""
        require_count("length", length)
        lengths = [
            min(length, count - begin) for count in self._encoded.lengths.tolist() for begin in range(0, count, length)
        ]
        found = self._with(self.flat, np.array(lengths))
        return found if len(found) == len(self) else found._said(f"cut into {len(found)} pieces of at most {length}")

    @property
    def block_length(self) -> int:
        """Length of about 50 blocks of all symbols, but not below 16: what few long sequences are cut into by itself."""
        count = max(1, min(_BLOCKS, self.num_steps // _SHORTEST_BLOCK))
        return -(-self.num_steps // count)

    def chunks(self, length: int) -> "SequenceData":
        """Longer sequences cut into pieces of `length`, or of `block_length` if fewer than 30 pieces would be left."""
        require_count("length", length)
        if sum(-(-count // length) for count in self.lengths.tolist()) < _FEW_PIECES:
            length = min(length, self.block_length)
        return self.cut(length) if self.longest > length else self

    def in_blocks(self) -> "SequenceData":
        """Sequences of which some can be held out: these if three of them differ, else cut into blocks (`block_length`).

        Blocks are not quite independent: the hidden state at the end of one says something of the next.
        """
        different: set[bytes] = set()
        for begin, end in pairwise(self._starts.tolist() if len(self) >= 3 else ()):
            different.add(hashlib.sha256(self.flat[begin:end].tobytes()).digest())
            if len(different) == 3:
                return self
        return self.cut(self.block_length)

    def _said(self, more: str) -> "SequenceData":
        return self.from_encoded(replace(self._encoded, how=f"{self.how}; {more}"), self.title, self.seed)

    def prefixes(self, length: int) -> "SequenceData":
        """Of each sequence the first `length` symbols."""
        require_count("length", length)
        lengths = np.minimum(self._encoded.lengths, length)
        kept = np.arange(self.num_steps) - np.repeat(self._starts[:-1], self._encoded.lengths) < length
        return self._with(self.flat[kept], lengths)

    def split(self, train: float = 0.8, validation: float = 0.1, *, seed: int = 0) -> Parts:
        """Three parts with no sequence in common; what is neither `train` nor `validation` is test.

        The order of the sequences does not matter: they are sorted by the sha256 of the seed and their symbols, and equal
        ones stay together. Each part has one sequence at least.

        Args:
            train, validation: shares of the different sequences.
            seed: another seed is another split.

        Raises:
            InputError: fewer than three different sequences, or shares that leave nothing.
        """
        require(
            train > 0 and validation > 0 and train + validation < 1, "train", "and validation must leave a rest", train
        )
        keys = [
            hashlib.sha256(f"{check_seed(seed)}/".encode() + sequence.numpy().astype("<i8").tobytes()).digest()
            for sequence in self
        ]
        order = sorted(set(keys))
        if len(order) < 3:
            if self.num_steps < 3:
                raise InputError(
                    f"{self.title}: {self.num_observations} observations ({self.how}) cannot be split into three parts"
                )
            found = "sequence" if len(order) == 1 else "different sequences"
            raise InputError(
                f"{self.title}: {len(order)} {found} cannot be split into three parts; cut long ones first, such as "
                f"data.cut({max(1, self.longest // 10)})"
            )
        num_validation, num_test = (max(1, round(share * len(order))) for share in (validation, 1 - train - validation))
        num_train = max(1, len(order) - num_validation - num_test)
        part_of = {key: (k >= num_train) + (k >= num_train + num_validation) for k, key in enumerate(order)}
        parts = np.array([part_of[key] for key in keys])
        return Parts(*(self._chosen(np.flatnonzero(parts == part)) for part in range(3)))

    def seeded(self, seed: int) -> "SequenceData":
        """The same sequences with another seed of `train`, `validation` and `test`."""
        return self.from_encoded(self._encoded, self.title, seed)

    @cached_property
    def _parts(self) -> Parts:
        return self.split(seed=self.seed)

    @property
    def train(self) -> "SequenceData":
        """Eight tenths of the sequences, see `split`."""
        return self._parts.train

    @property
    def validation(self) -> "SequenceData":
        """A tenth of the sequences, see `split`."""
        return self._parts.validation

    @property
    def test(self) -> "SequenceData":
        """A tenth of the sequences, see `split`."""
        return self._parts.test

    # -- as a file

    def save(self, path: object) -> None:
        """Write to a new .safetensors or .npz, or to .jsonl (names as they are); `SequenceData` reads them back equal.

        Raises:
            InputError: another ending.
            RefusedError: the file exists.
        """
        target = Path(str(path))
        if target.suffix not in _ENDINGS:
            raise InputError(f"path: must end in {', '.join(_ENDINGS)}, got {str(target)!r}")
        if os.path.lexists(target):
            raise RefusedError(f"{target}: exists; choose another name")
        header: dict[str, Any] = {"format": FORMAT, "version": 1, "num_symbols": self.num_symbols}
        header |= {} if self.symbols is None else {"symbols": list(self.symbols)}
        header |= {"gaps": True} if self.num_missing else {}
        if target.suffix == ".jsonl":
            named = dict(enumerate(self.symbols or range(self.num_symbols)))
            rows = [[named.get(v) for v in s.tolist()] for s in self]
            first, *others = ({"observations": row} for row in rows)
            store.write_table(target, [first | {"alphabet": header}, *others])
            return
        text = json.dumps(header)
        if target.suffix == ".safetensors":
            tensors = {"tokens": torch.from_numpy(np.array(self.flat)), "lengths": self.lengths}
            store.write_tensors(target, tensors, {"sequences": text})
            return
        buffer = io.BytesIO()
        np.savez(buffer, header=np.array(text), tokens=self.flat, lengths=self._encoded.lengths)
        store.write_bytes(target, buffer.getvalue())


def read_as(source: Any, read_options: Mapping[str, Any], beside: Iterable[str] = ()) -> SequenceData:
    """`SequenceData` of a source and options of reading.

    Args:
        source: of `SequenceData`, or such.
        read_options: its options, by name.
        beside: names of options that the caller takes besides, which are told with these where one is unknown.

    Raises:
        InputError: an unknown option, or options where all is read already.
    """
    for name in read_options:
        if name not in READING_OPTIONS:
            raise unknown_name("option", name, [*READING_OPTIONS, *beside])
    if not isinstance(source, SequenceData):
        return SequenceData(source, **read_options)
    if read_options:
        raise InputError(f"{next(iter(read_options))}: is for what is still to be read, and SequenceData is read")
    return source
