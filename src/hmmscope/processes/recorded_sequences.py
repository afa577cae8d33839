"""Recorded sequences as a process with windows as samples."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.axes import Tensor
from hmmscope.errors import DamagedError, InputError
from hmmscope.kernels.random_arrays import random_permutations, uniforms
from hmmscope.processes.process import PriorProcess, Process, SampledPaths, check_samples
from hmmscope.schema import parse_spec, require, shown
from hmmscope.seeds import check_seed, philox_key
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.encoding import Alphabet, apart, encode_numbers
from hmmscope.sequences.gaps import MISSING
from hmmscope.sequences.read_options import ReadOptions

#: Streams for training, and for evaluation on other sequences.
TRAINING, JUDGING = ("train", "counting"), ("evaluate", "probe", "test")


class RecordedSequences(Process):
    """Windows of recorded sequences as samples; their distribution is unknown.

    The sequences are split into three parts. Streams "train" and "test" read the parts of these names; "evaluate" and
    "probe" read the part "validation". Training windows start at random positions; other streams shuffle consecutive
    windows. Padding is symbol 0 with state -1.

    Args:
        data: recorded sequences.
        law: process that the sequences are assumed to follow, which defines the Bayes optimum, or None.

    Raises:
        InputError: the data and `law` differ in the number of symbols, or sequences are too few for three parts.
    """

    stored_name = "GivenSequences"

    num_states = 1
    no_optimum_reason = "the distribution of recorded sequences is unknown; fit an HMM to them"
    file_format = "hmmscope-sequences"
    file_arrays: ClassVar[tuple[str, ...]] = ("tokens", "lengths", "num_symbols")
    file_fields: ClassVar[tuple[str, ...]] = ("symbols", "title", "split_seed", "reading", "gaps")

    def __init__(self, data: SequenceData, law: Process | None = None) -> None:
        if law is not None:
            require(data.num_symbols == law.num_symbols, "symbols", f"must be {law.num_symbols}", data.num_symbols)
            self.prior = PriorProcess(law, 1.0)
        self.data, self.num_symbols, self.symbols = data, data.num_symbols, data.symbols
        self.title, self.read_options = data.title, data.read_options
        self._pieces: dict[tuple[str, int], NDArray[np.int64]] = {}

    @property
    def window(self) -> int:
        """Default sample length: length of the longest sequence, clipped to [2, 256]."""
        return max(2, min(256, int(self.data.lengths.max())))

    @cached_property
    def digest(self) -> str:
        return self.data.digest

    @cached_property
    def params_digest(self) -> str:
        return self.data.digest

    def part(self, stream: str) -> SequenceData:
        if stream in TRAINING:
            return self.data.train
        if stream == "test":
            return self.data.test
        return self.data.validation if stream in JUDGING else self.data

    def _padding(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=torch.int64)

    def num_different(self, stream: str, length: int) -> int | None:
        return None if stream in TRAINING else len(self._windows(stream, length))

    def _windows(self, stream: str, length: int) -> NDArray[np.int64]:
        if (stream, length) not in self._pieces:
            pieces = [
                (number, begin)
                for number, count in enumerate(self.part(stream).lengths.tolist())
                for begin in range(0, count, length)
                if begin == 0 or count - begin > 1
            ]
            self._pieces[stream, length] = np.array(pieces, dtype=np.int64)
        return self._pieces[stream, length]

    def sample_paths(
        self, indices: NDArray[np.int64], reset_mask: NDArray[np.bool_], seed: int, stream: str = "corpus"
    ) -> SampledPaths:
        """Draw windows; states are 0, or -1 in padding.

        Raises:
            InputError: `reset_mask` starts more than one sequence.
        """
        check_samples(indices)
        if int(reset_mask.sum()) > 1:
            raise InputError("layout: recorded sequences need one sequence per sample; use the layout sequences")
        length, part, key = len(reset_mask), self.part(stream), philox_key(seed, stream)
        windows = self._windows(stream, length)
        if stream in TRAINING:
            drawn = uniforms(key, indices, 1, 2)[:, 0]
            chosen = windows[np.minimum((drawn[:, 0] * len(windows)).astype(np.int64), len(windows) - 1)]
            room = np.maximum(part.lengths.numpy()[chosen[:, 0]] - length, 0) + 1
            chosen = np.stack([chosen[:, 0], np.minimum((drawn[:, 1] * room).astype(np.int64), room - 1)], 1)
        else:
            order = random_permutations(key, np.zeros(1, np.int64), 1, len(windows))[0, 0]
            chosen = windows[order[indices % len(windows)]]
        observations, states = self._padding(len(indices), length), torch.full((len(indices), length), -1)
        for row, (number, begin) in enumerate(chosen.tolist()):
            piece = part[number][begin : begin + length]
            observations[row, : len(piece)] = piece
            states[row, : len(piece)] = 0
        return SampledPaths(observations, states, None)

    def file_tensors(self) -> dict[str, Tensor]:
        return {"tokens": torch.from_numpy(np.array(self.data.flat)), "lengths": self.data.lengths}

    def file_texts(self) -> dict[str, Any]:
        plain = {"num_symbols": self.num_symbols, "title": self.title, "split_seed": self.data.seed}
        reading = {"reading": self.data.read_options.to_data()} if self.data.read_options.to_data() else {}
        reading |= {"gaps": True} if self.data.num_missing else {}
        return plain | reading | ({} if self.symbols is None else {"symbols": list(self.symbols)})

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "RecordedSequences":
        rows = apart(data["tokens"], data["lengths"])
        given = data.get("symbols")
        alphabet = Alphabet.of(given if given is not None else data["num_symbols"])
        require(alphabet.count == data["num_symbols"], "symbols", "must be num_symbols names", shown(given))
        if data.get("gaps"):
            rows = [np.where(row == alphabet.count, MISSING, row.astype(np.int64)) for row in rows]
        encoded = encode_numbers(rows, alphabet, "sequences as saved", lambda number: f"sequence {number + 1}")
        reading = parse_spec(ReadOptions, data.get("reading", {}), "reading")
        encoded = replace(encoded, read_options=reading)
        title, seed = data.get("title", ""), check_seed(data.get("split_seed", 0))
        return cls(SequenceData.from_encoded(encoded, title, seed))

    def __repr__(self) -> str:
        return f"RecordedSequences({self.data!r})"


@registry.process("data")
@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """Sequences from a file (text, FASTA, CSV, JSON lines, NPZ, safetensors or Parquet), with an unknown distribution.

    Attributes:
        path: path of the file.
        unit, column, group, axis, missing: reading options, see `hmmscope.SequenceData`.
        symbols: names of the symbols (default: those in the file).
        cut: length of the pieces into which sequences are cut before the split; 0 for whole sequences.
        split_seed: seed of the split into parts.
        digest: digest that the sequences must have; empty for any.
    """

    #: A run stores a copy of the process in its folder.
    keeps_copy: ClassVar[bool] = True

    path: str
    unit: str = ""
    column: str = ""
    group: str = ""
    axis: int | None = None
    missing: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    cut: int = 0
    split_seed: int = 0
    digest: str = ""

    def __post_init__(self) -> None:
        check_seed(self.split_seed, "split_seed")
        require(self.cut >= 0, "cut", "must be at least 0", self.cut)

    def build(self) -> RecordedSequences:
        given: dict[str, Any] = {name: getattr(self, name) or None for name in ("unit", "column", "group")}
        asked = given | {"axis": self.axis, "missing": self.missing or None, "symbols": self.symbols or None}
        data = SequenceData(self.path, **asked, seed=self.split_seed)
        found = RecordedSequences(data.cut(self.cut) if self.cut else data)
        if self.digest and found.digest != self.digest:
            raise DamagedError(f"{self.path}: has changed: its digest is {found.digest[:12]}, not {self.digest[:12]}")
        return found
