"""Prompt and residual-stream layout of a [MultiTask] network."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from hmmscope.axes import Tensor
from hmmscope.errors import InputError
from hmmscope.schema import require, require_count, require_known
from hmmscope_papers.constructions.regression import Features
from hmmscope_papers.constructions.residual import Subspaces

Positions = Literal["column", "slot", "absolute"]


@dataclass(frozen=True)
class Prompt:
    """Positions of a prompt: delimiter | demonstration, delimiter | .. | demonstration, delimiter | test sequence.

    Attributes:
        demonstration_lengths: Number of symbols of each demonstration.
        test_length: Number of symbols of the test sequence.
    """

    demonstration_lengths: tuple[int, ...]
    test_length: int

    @classmethod
    def of(cls, num_demonstrations: int, demonstration_length: int | Sequence[int], test_length: int) -> "Prompt":
        require_count("num_demonstrations", num_demonstrations)
        require_count("test_length", test_length)
        if isinstance(demonstration_length, Iterable) and not isinstance(demonstration_length, str):
            lengths = tuple(demonstration_length)
        else:
            lengths = (demonstration_length,) * num_demonstrations
        rule = f"must be a number, or {num_demonstrations} numbers, one for each demonstration"
        require(len(lengths) == num_demonstrations, "demonstration_length", rule, lengths)
        for length in lengths:
            require_count("demonstration_length", length)
        return cls(lengths, test_length)

    @property
    def num_columns(self) -> int:
        return self.first_test_column + self.test_length

    @property
    def first_test_column(self) -> int:
        return 1 + sum(length + 1 for length in self.demonstration_lengths)

    @property
    def delimiter_columns(self) -> list[int]:
        return list(itertools.accumulate((length + 1 for length in self.demonstration_lengths), initial=0))

    def check_delimiters(self, tokens: Tensor, delimiter: int) -> None:
        wanted = torch.zeros(self.num_columns, dtype=torch.bool, device=tokens.device)
        wanted[self.delimiter_columns] = True
        wrong = (tokens == delimiter) != wanted[: tokens.shape[1]]
        if bool(wrong.any()):
            b, t = wrong.nonzero()[0].tolist()
            rule = f"must have the delimiter, token {delimiter}, at positions {self.delimiter_columns} and nowhere else"
            raise InputError(f"tokens: {rule}, got token {int(tokens[b, t])} at position {t} of prompt {b}")

    def num_samples(self, memory_length: int, num_futures: int) -> int:
        return sum(max(0, length - memory_length - num_futures + 1) for length in self.demonstration_lengths)


@dataclass(frozen=True, kw_only=True)
class ResidualLayout:
    """Layout of the rows of the residual stream.

    Slot i holds the token i positions earlier, future i the token i positions later. The query window is slots
    0 to L-1. A regression sample (window x, label y) is:

        not causal: x = slots 0 to L-1,    y = futures 1 to k
        causal:     x = slots k to k+L-1,  y = slots k-1 to 0

    Attributes:
        num_symbols: Number of symbols V; the delimiter is token V.
        memory_length: Number L of symbols in a window.
        num_futures: Number k of predicted symbols.
        joint_labels: True if the label is the joint one-hot of all futures.
        causal: True if attention is causal.
        features: "window" (concatenated one-hots) or "tabular" (one-hot of the window).
        positions: "column", "slot" or "absolute"; see `MultiTaskOptions`.
        position_width: Size of a position vector.
    """

    num_symbols: int
    memory_length: int
    num_futures: int = 1
    joint_labels: bool = False
    causal: bool = False
    features: Features = "window"
    positions: Positions = "column"
    position_width: int = 2

    def __post_init__(self) -> None:
        require_count("num_symbols", self.num_symbols, 2)
        require_count("memory_length", self.memory_length)
        require_count("num_futures", self.num_futures)
        require_count("position_width", self.position_width, 2)
        require_known("features", self.features, ("window", "tabular"))
        require_known("positions", self.positions, ("column", "slot", "absolute"))
        if self.num_symbols ** max(self.num_futures, self.memory_length * (self.features == "tabular")) > 2**20:
            raise InputError("num_symbols: gives joint one-hots of more than 2^20 entries; use fewer symbols or slots")

    @property
    def num_slots(self) -> int:
        return self.memory_length + (self.num_futures if self.causal else 0)

    @property
    def num_copied_futures(self) -> int:
        return 0 if self.causal else self.num_futures

    @property
    def num_labels(self) -> int:
        return self.num_symbols**self.num_futures

    @property
    def num_features(self) -> int:
        size, power = self.num_symbols, self.memory_length
        return size**power if self.features == "tabular" else size * power

    @cached_property
    def subspaces(self) -> Subspaces:
        token, carried = self.num_symbols + 1, self.position_width if self.positions == "slot" else 0
        tabular = self.features == "tabular"
        sizes = {"slot-0": token, "position": self.position_width}
        for slot in range(1, self.num_slots):
            sizes |= {f"slot-{slot}": token, f"position-{slot}": carried}
        for future in range(1, self.num_copied_futures + 1):
            sizes |= {f"future-{future}": token, f"future-position-{future}": carried}
        sizes |= {
            "one": 1,
            "test": 1,
            "label": self.num_labels if self.joint_labels else 0,
            "sample-window": self.num_features if tabular else 0,
            "query-window": self.num_features if tabular and self.causal else 0,
            "weights": self.num_labels * self.num_features,
            "prediction": self.num_labels,
        }
        return Subspaces(sizes)

    @property
    def width_formula(self) -> int:
        """Width if not causal, with window features: (V+1)(L+1) + 4 + V^2 L + V in [MultiTask] Theorem 1."""
        size, slots = self.num_symbols, self.memory_length + self.num_futures
        labels = self.num_labels * (2 if self.joint_labels else 1)
        carried = 2 * (slots - 1) if self.positions == "slot" else 0
        return (size + 1) * slots + 4 + labels + self.num_labels * size * self.memory_length + carried

    @property
    def sample_blocks(self) -> list[str]:
        """Names of a sample's window blocks, most recent first."""
        first = self.num_futures if self.causal else 0
        return [f"slot-{first + slot}" for slot in range(self.memory_length)]

    @property
    def label_blocks(self) -> list[str]:
        """Names of a sample's label blocks, next symbol first."""
        if self.causal:
            return [f"slot-{self.num_futures - 1 - m}" for m in range(self.num_futures)]
        return [f"future-{m + 1}" for m in range(self.num_futures)]

    @property
    def query_blocks(self) -> list[str]:
        return [f"slot-{slot}" for slot in range(self.memory_length)]

    def rows(self, block: str) -> list[int]:
        where = self.subspaces[block]
        return list(range(where.start, where.stop))

    def symbol_rows(self, blocks: Sequence[str]) -> list[int]:
        return [row for block in blocks for row in self.rows(block)[: self.num_symbols]]

    @property
    def sample_rows(self) -> list[int]:
        return self.rows("sample-window") if self.features == "tabular" else self.symbol_rows(self.sample_blocks)

    @property
    def query_rows(self) -> list[int]:
        if self.features == "window":
            return self.symbol_rows(self.query_blocks)
        return self.rows("query-window" if self.causal else "sample-window")

    @property
    def label_rows(self) -> list[int]:
        return self.rows("label") if self.joint_labels else self.symbol_rows(self.label_blocks)

    @property
    def invalid_rows(self) -> list[int]:
        """Rows that mark delimiters and the test sequence; all are zero in a valid sample."""
        delimiters = [self.rows(block)[-1] for block in (*self.sample_blocks, *self.label_blocks)]
        return [*delimiters, *self.rows("test")]
