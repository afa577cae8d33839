"""What a [MultiTask] network is built for, and where in its residual stream everything stands."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from hmmscope.axes import Tensor
from hmmscope.constructions.regression import Features
from hmmscope.constructions.residual import Subspaces
from hmmscope.errors import InputError
from hmmscope.schema import require, require_count, unknown_name

Positions = Literal["column", "slot", "absolute"]


@dataclass(frozen=True)
class Prompt:
    """Columns of a prompt: delimiter | demonstration, delimiter | .. | demonstration, delimiter | test sequence.

    Attributes:
        demonstration_lengths: symbols of each demonstration.
        test_length: symbols of the test sequence.
    """

    demonstration_lengths: tuple[int, ...]
    test_length: int

    @classmethod
    def of(cls, num_demonstrations: int, demonstration_length: int | Sequence[int], test_length: int) -> "Prompt":
        """Demonstrations of one length, or of the lengths listed; InputError if there is none or one is empty."""
        require_count("num_demonstrations", num_demonstrations)
        require_count("test_length", test_length)
        if isinstance(demonstration_length, Iterable) and not isinstance(demonstration_length, str):
            lengths = tuple(demonstration_length)
        else:
            lengths = (demonstration_length,) * num_demonstrations
        require(len(lengths) == num_demonstrations, "demonstration_length", f"must be {num_demonstrations}", lengths)
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
        """Columns of the delimiter: the first one, and one after each demonstration."""
        return list(itertools.accumulate((length + 1 for length in self.demonstration_lengths), initial=0))

    def check_delimiters(self, tokens: Tensor, delimiter: int) -> None:
        """Raise InputError unless the delimiter stands in its columns of each prompt (batch, column), and nowhere else."""
        wanted = torch.zeros(self.num_columns, dtype=torch.bool, device=tokens.device)
        wanted[self.delimiter_columns] = True
        wrong = (tokens == delimiter) != wanted[: tokens.shape[1]]
        if bool(wrong.any()):
            b, t = wrong.nonzero()[0].tolist()
            found = f"got {int(tokens[b, t])} in column {t} of prompt {b}"
            where = "begin with the delimiter, and have one after each demonstration and nowhere else"
            raise InputError(f"tokens: must {where} (token {delimiter}, columns {self.delimiter_columns}), {found}")

    def num_samples(self, memory_length: int, num_futures: int) -> int:
        """Regression samples that the demonstrations hold."""
        return sum(max(0, length - memory_length - num_futures + 1) for length in self.demonstration_lengths)


@dataclass(frozen=True, kw_only=True)
class ResidualLayout:
    """Rows of the residual stream.

    A column holds its token and those before it (slot-0, slot-1, ...), those after it (future-1, ...; not where attention
    is causal), its position, a one, whether it belongs to the test sequence, the regression weights and the prediction.

        non-causal: a sample is (x, y) = (slots 0 .. L-1, futures 1 .. k), and the query window is slots 0 .. L-1
        causal:     a sample is (x, y) = (slots k .. k+L-1, slots k-1 .. 0), and the query window is slots 0 .. L-1

    Attributes:
        num_symbols: V; the delimiter is token V.
        memory_length: L.
        num_futures: k.
        joint_labels: whether the label is the one-hot of all futures together, V^k rows made by a token-wise map.
        causal: see above.
        features: "window" for one-hots side by side, "tabular" for the one-hot of the window as a whole.
        positions: "column" where each column has one position vector; "slot" where each slot carries its own.
        position_width: coordinates of a position vector.
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
        if self.features not in ("window", "tabular"):
            raise unknown_name("features", self.features, ("window", "tabular"))
        if self.positions not in ("column", "slot", "absolute"):
            raise unknown_name("positions", self.positions, ("column", "slot", "absolute"))
        if self.num_symbols ** max(self.num_futures, self.memory_length * (self.features == "tabular")) > 2**20:
            raise InputError("num_symbols: gives more than 2^20 joint one-hots; ask for fewer symbols or slots")

    @property
    def num_slots(self) -> int:
        """Slots gathered from the left, the column's own token included."""
        return self.memory_length + (self.num_futures if self.causal else 0)

    @property
    def num_copied_futures(self) -> int:
        """Slots gathered from the right."""
        return 0 if self.causal else self.num_futures

    @property
    def num_labels(self) -> int:
        """q = V^k."""
        return self.num_symbols**self.num_futures

    @property
    def num_features(self) -> int:
        """V L, or V^L with tabular features."""
        size, power = self.num_symbols, self.memory_length
        return size**power if self.features == "tabular" else size * power

    @cached_property
    def subspaces(self) -> Subspaces:
        """Named blocks; V L + V + ... as counted in the source (see `width_formula`)."""
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
        """D counted from the sizes alone, for window features and no causal mask.

        (V+1)(L+k) + 4 + V^k + V^(k+1) L, and V^k more with joint labels, and 2 (L + k - 1) more with slot positions:
        (V+1)(L+1) + 4 + V^2 L + V for [MultiTask] Theorem 1.
        """
        size, slots = self.num_symbols, self.memory_length + self.num_futures
        labels = self.num_labels * (2 if self.joint_labels else 1)
        carried = 2 * (slots - 1) if self.positions == "slot" else 0
        return (size + 1) * slots + 4 + labels + self.num_labels * size * self.memory_length + carried

    @property
    def sample_blocks(self) -> list[str]:
        """Blocks of the window of a sample, most recent first."""
        first = self.num_futures if self.causal else 0
        return [f"slot-{first + slot}" for slot in range(self.memory_length)]

    @property
    def label_blocks(self) -> list[str]:
        """Blocks of the label of a sample, next symbol first."""
        if self.causal:
            return [f"slot-{self.num_futures - 1 - m}" for m in range(self.num_futures)]
        return [f"future-{m + 1}" for m in range(self.num_futures)]

    @property
    def query_blocks(self) -> list[str]:
        """Blocks of the window from which a column predicts."""
        return [f"slot-{slot}" for slot in range(self.memory_length)]

    def rows(self, block: str) -> list[int]:
        """All rows of a block."""
        where = self.subspaces[block]
        return list(range(where.start, where.stop))

    def symbol_rows(self, blocks: Sequence[str]) -> list[int]:
        """Rows of the symbols of token blocks, without their delimiter rows."""
        return [row for block in blocks for row in self.rows(block)[: self.num_symbols]]

    @property
    def sample_rows(self) -> list[int]:
        """Rows of x of a sample (feature,)."""
        return self.rows("sample-window") if self.features == "tabular" else self.symbol_rows(self.sample_blocks)

    @property
    def query_rows(self) -> list[int]:
        """Rows of x of the column's own window (feature,)."""
        if self.features == "window":
            return self.symbol_rows(self.query_blocks)
        return self.rows("query-window" if self.causal else "sample-window")

    @property
    def label_rows(self) -> list[int]:
        """Rows of y (label,)."""
        return self.rows("label") if self.joint_labels else self.symbol_rows(self.label_blocks)

    @property
    def invalid_rows(self) -> list[int]:
        """Rows whose sum is zero in a valid sample: delimiters in its window and label, and the test indicator."""
        delimiters = [self.rows(block)[-1] for block in (*self.sample_blocks, *self.label_blocks)]
        return [*delimiters, *self.rows("test")]
