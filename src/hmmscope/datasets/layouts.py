"""Layouts: how observations become the tokens of a sample."""

import functools
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.processes.capabilities import HEADERS, HeaderFormat
from hmmscope.processes.process import Process
from hmmscope.schema import require, require_count

MAX_COLUMNS = 2**20


class Layout:
    """The arrangement of a sample's sequences as tokens, with or without delimiters.

    Observation t is the token at position `token_positions[t]`; the model's output one position earlier predicts it.

    Attributes:
        needs_process: True if the number of tokens depends on the process.
        header_format: format of the header, or None.
    """

    #: Name in digests, which survives renames of the class; default: the class name.
    digest_name: ClassVar[str] = "Layout"
    needs_process: ClassVar[bool] = False
    header_format: HeaderFormat | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "digest_name" not in vars(cls):
            cls.digest_name = cls.__name__

    def of(self, process: Process) -> "Layout":
        """Return this layout with the header format of a process."""
        return self

    @property
    def has_delimiter(self) -> bool:
        """True if a delimiter precedes every sequence."""
        raise AssertionError("a layout must define has_delimiter")

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        """Number of observations of each sequence."""
        raise AssertionError("a layout must define sequence_lengths")

    @cached_property
    def num_observations(self) -> int:
        """Number of observations of a sample."""
        return sum(self.sequence_lengths)

    @cached_property
    def reset_mask(self) -> NDArray[np.bool_]:
        """Mask of observations that start a sequence (T,)."""
        return self.position_in_sequence == 0

    @cached_property
    def sequence_index(self) -> NDArray[np.int64]:
        """Index of the sequence that contains observation t (T,)."""
        return np.repeat(np.arange(len(self.sequence_lengths)), self.sequence_lengths)

    @cached_property
    def position_in_sequence(self) -> NDArray[np.int64]:
        """Position of observation t within the sequence that contains it (T,)."""
        return np.concatenate([np.arange(length) for length in self.sequence_lengths])

    @cached_property
    def token_positions(self) -> NDArray[np.int64]:
        """Token position of observation t (T,)."""
        shift = self.sequence_index + 1 if self.has_delimiter else 0
        return np.arange(self.num_observations) + shift

    @cached_property
    def context_length(self) -> int:
        """Number of tokens of a sample."""
        return int(self.token_positions[-1]) + 1

    @cached_property
    def predicted_observations(self) -> NDArray[np.int64]:
        """Indices t of the observations that a model predicts: those after the first token."""
        return np.flatnonzero(self.token_positions > 0)

    def vocab_size(self, num_symbols: int) -> int:
        """Return the number of different tokens: symbols, plus the delimiter if used."""
        return num_symbols + int(self.has_delimiter)

    @property
    def has_prefix(self) -> bool:
        """True if a token, such as a delimiter, precedes every sequence."""
        return self.has_delimiter

    def tokens(
        self,
        observations: Int64[Tensor, "batch time"] | Float64[Tensor, "batch time observed"],
        num_symbols: int,
        header: Int64[Tensor, "batch entry"] | None = None,
    ) -> Int64[Tensor, "batch column"] | Float64[Tensor, "batch column observed"]:
        """Convert observations to tokens; the delimiter is the token `num_symbols`, or a zero vector.

        Args:
            observations: observations of each sample.
            num_symbols: number of symbols V.
            header: header entries, if any.
        """
        delimiter = 0 if observations.is_floating_point() else num_symbols
        if not self.has_delimiter:
            return observations.clone()
        tokens = observations.new_full((len(observations), self.context_length, *observations.shape[2:]), delimiter)
        return tokens.index_copy_(1, _columns_on(self, observations.device), observations)


def check_layout(layout: object) -> None:
    good = isinstance(layout, Layout)
    require(good, "layout", "must be a Layout, such as hmmscope.SequenceLayout(length=64)", layout)


@functools.lru_cache(maxsize=64)
def _columns_on(layout: Layout, device: torch.device) -> Int64[Tensor, " time"]:
    return torch.from_numpy(layout.token_positions).to(device)


@registry.layout("sequences")
@dataclass(frozen=True, kw_only=True)
class SequenceLayout(Layout):
    """One sequence per sample, optionally after a placeholder token, as in [Limits].

    Attributes:
        length: number of observations per sample.
        placeholder: True starts each sample with the token `num_symbols`, or with a zero vector.
    """

    digest_name: ClassVar[str] = "Sequences"

    length: int = 256
    placeholder: bool = False

    def __post_init__(self) -> None:
        require_count("length", self.length, most=MAX_COLUMNS)

    @property
    def has_delimiter(self) -> bool:
        return self.placeholder

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        return (self.length,)


@registry.layout("header")
@dataclass(frozen=True, kw_only=True)
class HeaderLayout(Layout):
    """The header (integers e that encode the sample's HMM), then one sequence of observations o.

    e_1 .. e_H | o_0 .. o_{length - 1}

    The token of a header entry e is V + e, because tokens below V, the number of symbols, are symbols. In the process
    `told-hmms`, entries are transition and emission probabilities (all but each row's last) times their denominator.
    The Bayes-optimal predictor filters with the HMM in the header. Models do not predict the header.

    Attributes:
        length: number of observations per sample.

    Source: after Agarwal, Dalal and Misra (2025), arXiv 2512.22471.
    """

    digest_name: ClassVar[str] = "Header"
    needs_process: ClassVar[bool] = True

    length: int = 32
    header_format: HeaderFormat | None = field(init=False, default=None, repr=False, metadata={"stored": "telling"})

    def __post_init__(self) -> None:
        require_count("length", self.length, most=MAX_COLUMNS)

    def of(self, process: Process) -> "HeaderLayout":
        """Return this layout with the header format of a process.

        Raises:
            InputError: the process has no headers.
        """
        process.require_capability(HEADERS, "layout header")
        bound = HeaderLayout(length=self.length)
        object.__setattr__(bound, "header_format", process.header_format)
        return bound

    @property
    def _told(self) -> HeaderFormat:
        if self.header_format is None:
            raise InputError("layout: the size of the header depends on the process; use layout.of(process)")
        return self.header_format

    @property
    def has_delimiter(self) -> bool:
        return False

    @property
    def has_prefix(self) -> bool:
        return True

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        return (self.length,)

    @cached_property
    def token_positions(self) -> NDArray[np.int64]:
        return self._told.num_entries + np.arange(self.length)

    def vocab_size(self, num_symbols: int) -> int:
        return num_symbols + self._told.num_values

    def tokens(
        self,
        observations: Int64[Tensor, "batch time"] | Float64[Tensor, "batch time observed"],
        num_symbols: int,
        header: Int64[Tensor, "batch entry"] | None = None,
    ) -> Int64[Tensor, "batch column"]:
        """Concatenate header and observations.

        Raises:
            InputError: the header is missing.
        """
        if header is None:
            raise InputError("layout: header entries are missing; pass header=")
        return torch.cat([header + num_symbols, observations], 1)


@registry.layout("prompts")
@dataclass(frozen=True, kw_only=True)
class PromptLayout(Layout):
    """Demonstrations (sequences of one mixture component), then a test sequence of the same component.

    delimiter | o^1_1 .. o^1_M, delimiter | .. | o^n_1 .. o^n_M, delimiter | o_1 .. o_t

    Attributes:
        num_demonstrations: number n of demonstrations before the test sequence.
        demonstration_length: number M of observations of each demonstration.
        test_length: number of observations of the test sequence.

    Source: [MultiTask] §3; the delimiter before the first demonstration is an addition of hmmscope.
    """

    digest_name: ClassVar[str] = "Prompts"

    num_demonstrations: int = 15
    demonstration_length: int = 8
    test_length: int = 8

    def __post_init__(self) -> None:
        require_count("num_demonstrations", self.num_demonstrations, 0)
        require_count("demonstration_length", self.demonstration_length)
        require_count("test_length", self.test_length)
        columns = self.num_demonstrations * (self.demonstration_length + 1) + self.test_length + 1
        require(columns <= MAX_COLUMNS, "num_demonstrations", f"must give at most {MAX_COLUMNS} tokens", columns)

    @property
    def has_delimiter(self) -> bool:
        return True

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        return (self.demonstration_length,) * self.num_demonstrations + (self.test_length,)
