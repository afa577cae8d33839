"""How sampled observations are laid out as the tokens that a model reads."""

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
    """Sequences of one component side by side, with or without delimiters.

    A sample holds `sequence_lengths` sequences of the same component, each started anew. Observation t (counted through
    the whole sample) stands in token column `token_positions[t]`; what a model says at column `token_positions[t] - 1` is
    its prediction of observation t.

    Attributes:
        needs_process: whether how many columns there are depends on the process, see `of`.
        header_format: of the header that stands before the first observation; None for a layout without one.
    """

    #: Name of this layout in digests. It never changes, even if the class is renamed; a class that does
    #: not set it has its own name there.
    digest_name: ClassVar[str] = "Layout"
    needs_process: ClassVar[bool] = False
    header_format: HeaderFormat | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "digest_name" not in vars(cls):
            cls.digest_name = cls.__name__

    def of(self, process: Process) -> "Layout":
        """The same for this process: a header has as many columns as the process has entries."""
        return self

    @property
    def has_delimiter(self) -> bool:
        """Whether a delimiter stands before every sequence."""
        raise AssertionError("a layout says whether it has a delimiter")

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        """Number of observations of each sequence."""
        raise AssertionError("a layout says how long its sequences are")

    @cached_property
    def num_observations(self) -> int:
        return sum(self.sequence_lengths)

    @cached_property
    def reset_mask(self) -> NDArray[np.bool_]:
        """(T,): whether observation t is the first of its sequence."""
        return self.position_in_sequence == 0

    @cached_property
    def sequence_index(self) -> NDArray[np.int64]:
        """(T,): number of the sequence of observation t, which is the number of demonstrations before it."""
        return np.repeat(np.arange(len(self.sequence_lengths)), self.sequence_lengths)

    @cached_property
    def position_in_sequence(self) -> NDArray[np.int64]:
        """(T,): position of observation t within its sequence."""
        return np.concatenate([np.arange(length) for length in self.sequence_lengths])

    @cached_property
    def token_positions(self) -> NDArray[np.int64]:
        """(T,): token column of observation t."""
        shift = self.sequence_index + 1 if self.has_delimiter else 0
        return np.arange(self.num_observations) + shift

    @cached_property
    def context_length(self) -> int:
        return int(self.token_positions[-1]) + 1

    @cached_property
    def predicted_observations(self) -> NDArray[np.int64]:
        """Numbers t of the observations that some column precedes, so that a model predicts them."""
        return np.flatnonzero(self.token_positions > 0)

    def vocab_size(self, num_symbols: int) -> int:
        """Size of the vocabulary that a model reads: the symbols, and the delimiter (the last token) if there is one."""
        return num_symbols + int(self.has_delimiter)

    @property
    def has_prefix(self) -> bool:
        """Whether a column stands before every sequence."""
        return self.has_delimiter

    def tokens(
        self,
        observations: Int64[Tensor, "batch time"] | Float64[Tensor, "batch time observed"],
        num_symbols: int,
        header: Int64[Tensor, "batch entry"] | None = None,
    ) -> Int64[Tensor, "batch column"] | Float64[Tensor, "batch column observed"]:
        """The token columns; the delimiter is token `num_symbols`, and zeros among vectors.

        Args:
            observations: of each sample.
            num_symbols: V.
            header: what the process tells of the component of each sample, for a layout that says so.
        """
        delimiter = 0 if observations.is_floating_point() else num_symbols
        if not self.has_delimiter:
            return observations.clone()
        tokens = observations.new_full((len(observations), self.context_length, *observations.shape[2:]), delimiter)
        return tokens.index_copy_(1, _columns_on(self, observations.device), observations)


@functools.lru_cache(maxsize=64)
def _columns_on(layout: Layout, device: torch.device) -> Int64[Tensor, "time"]:
    """Columns on a device, kept there: batches are alike."""
    return torch.from_numpy(layout.token_positions).to(device)


@registry.layout("sequences")
@dataclass(frozen=True, kw_only=True)
class SequenceLayout(Layout):
    """One sequence a sample: tokens are the observations, after a placeholder if wanted.

    With a placeholder the first observation is predicted too. It stands at position 0 of [Limits], whose positions
    1, 2, ... hold our observations 0, 1, ...

    Attributes:
        length: observations a sample.
        placeholder: put the token `num_symbols` (zeros among vectors) before the first observation.
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
    """The HMM of each sample in numbers, then one sequence of it.

    e_1 .. e_H | o_0 .. o_{T-1}

    Entry k of the header is token V + k. Of a pool such as `told-hmms` they are the numerators of the transition matrix row
    by row, and of the emission matrix, without the last of each row: the header is the law, and the optimum is the filter of
    the HMM that it tells. The last entry stands before o_0, which is predicted too; the header itself is not.

    Attributes:
        length: observations a sample.

    Source: after Agarwal, Dalal and Misra (2025), arXiv 2512.22471.
    """

    digest_name: ClassVar[str] = "Header"
    needs_process: ClassVar[bool] = True

    length: int = 32
    header_format: HeaderFormat | None = field(init=False, default=None, repr=False, metadata={"stored": "telling"})

    def __post_init__(self) -> None:
        require_count("length", self.length, most=MAX_COLUMNS)

    def of(self, process: Process) -> "HeaderLayout":
        """The same with the sizes of the headers of this process.

        Raises:
            InputError: a process that has no headers.
        """
        process.require_capability(HEADERS, "layout header")
        bound = HeaderLayout(length=self.length)
        object.__setattr__(bound, "header_format", process.header_format)
        return bound

    @property
    def _told(self) -> HeaderFormat:
        if self.header_format is None:
            raise InputError("layout: a header has as many columns as its process tells; take layout.of(process)")
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
        """(T,): token column of observation t, behind the header."""
        return self._told.num_entries + np.arange(self.length)

    def vocab_size(self, num_symbols: int) -> int:
        """The symbols, and what an entry of a header may be."""
        return num_symbols + self._told.num_values

    def tokens(
        self,
        observations: Int64[Tensor, "batch time"] | Float64[Tensor, "batch time observed"],
        num_symbols: int,
        header: Int64[Tensor, "batch entry"] | None = None,
    ) -> Int64[Tensor, "batch column"]:
        """The token columns, header first.

        Raises:
            InputError: no header.
        """
        if header is None:
            raise InputError("layout: a header tells the HMM of each sample, so its entries must be given")
        return torch.cat([header + num_symbols, observations], 1)


@registry.layout("prompts")
@dataclass(frozen=True, kw_only=True)
class PromptLayout(Layout):
    """Demonstrations of one component, then a test sequence of it.

    delimiter | o^1_1 .. o^1_M, delimiter | .. | o^n_1 .. o^n_M, delimiter | o_1 .. o_t

    Attributes:
        num_demonstrations: demonstrations before the test sequence.
        demonstration_length: observations of each.
        test_length: observations of the test sequence.

    Source: [MultiTask] §3 (demonstrations, delimiters, test); the leading delimiter is ours, so that every sequence
    follows one.
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
        require(columns <= MAX_COLUMNS, "num_demonstrations", f"must give at most {MAX_COLUMNS} columns", columns)

    @property
    def has_delimiter(self) -> bool:
        return True

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        return (self.demonstration_length,) * self.num_demonstrations + (self.test_length,)
