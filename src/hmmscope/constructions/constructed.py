"""What networks with given weights share: they are no learners, say what each layer does, and measure it."""

from typing import Any

import torch
from torch import nn

from hmmscope.axes import Int64, Tensor
from hmmscope.constructions.residual import LayerNote, Subspaces, explanation
from hmmscope.errors import InputError
from hmmscope.models.base import HookPoint, ModelIO, SequenceModel
from hmmscope.schema import require


def frozen(weight: Tensor, dtype: torch.dtype) -> nn.Parameter:
    """A weight that is given, not learned."""
    return nn.Parameter(weight.to(dtype), requires_grad=False)


class Constructed(SequenceModel):
    """A network whose weights a theorem gives: tokens (batch, time) to laws or vectors at every position.

    Attributes:
        title: the theorem and the sizes, in a line.
        subspaces: layout of the stream.
        blocks: the layers, if it has a stream that they add to.
        residual: taps on the stream after the embedding and after each of `num_layers` layers.
    """

    outputs = "law"
    vocab_size: int
    subspaces: Subspaces
    blocks: nn.ModuleList

    def __init__(self, model_io: ModelIO, *, num_symbols: int | None = None, num_layers: int = 1) -> None:
        super().__init__()
        assert model_io.vocab_size is not None
        self.model_io, self.vocab_size = model_io, model_io.vocab_size
        self.num_symbols = model_io.num_outputs if num_symbols is None else num_symbols
        self.residual = nn.ModuleList(HookPoint() for _ in range(num_layers + 1))

    @property
    def title(self) -> str:
        raise AssertionError("a construction has a title")

    def through(self, x_BTD: Tensor) -> Tensor:
        """The stream after the last block, from what it is before the first."""
        x_BTD = self.residual[0](x_BTD)
        for block, tap in zip(self.blocks, self.residual[1:], strict=True):
            x_BTD = tap(block(x_BTD))
        return x_BTD

    def largest_weight(self) -> float:
        """Largest absolute number among all weights."""
        return max(float(weight.abs().max()) for weight in self.parameters())

    def notes(self, tokens: Int64[Tensor, "batch time"] | None = None) -> list[LayerNote]:
        """What each layer does; with tokens, how far what it writes is from the exact value."""
        raise AssertionError("a construction says what its layers do")

    def explain(self, tokens: Int64[Tensor, "batch time"] | None = None) -> str:
        """Layout and layers as a text to print; with tokens, with the measured errors."""
        return explanation(self.title, self.subspaces, self.notes(tokens))


def require_floats(dtype: object) -> None:
    """InputError unless it is a type of the numbers that a construction may compute in."""
    require(dtype in (torch.float64, torch.float32), "dtype", "must be torch.float64 or torch.float32", dtype)


def only_tokens(inputs: Tensor, feedback: Tensor | None, cache: dict[str, Any] | None) -> None:
    """InputError if a construction is to read vectors or its own answers, or to go on where it was."""
    if inputs.is_floating_point():
        raise InputError("inputs: must be tokens (batch, time); the theorem's network reads no vectors")
    for field, value in (("feedback", feedback), ("cache", cache)):
        if value is not None:
            raise InputError(f"{field}: must be left out; the theorem's network reads whole sequences of tokens")


def check_first(tokens: Tensor, placeholder: int) -> None:
    """Raise InputError unless the placeholder is the first token of every sequence (batch, time)."""
    first = tokens[:, :1]
    if bool((wrong := first != placeholder).any()):
        raise InputError(f"tokens: must begin with the placeholder, token {placeholder}, got {int(first[wrong][0])}")


def check_tokens(tokens: Tensor, vocab_size: int) -> None:
    """InputError unless all tokens are in [0, vocab_size)."""
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        raise InputError(f"tokens: must be in [0, {vocab_size}), got {int(tokens.min())} to {int(tokens.max())}")
