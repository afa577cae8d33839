"""Networks with weights given by a theorem."""

from typing import Any

import torch
from torch import nn

from hmmscope.axes import Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.models.base import HookPoint, ModelIO, SequenceModel
from hmmscope.schema import require
from hmmscope_papers.constructions.residual import LayerNote, Subspaces, explanation


def frozen(weight: Tensor, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(weight.to(dtype), requires_grad=False)


class Constructed(SequenceModel):
    """A network with weights from a theorem.

    Attributes:
        title: Theorem and network sizes.
        subspaces: Layout of the residual stream.
        blocks: Layers that add to the residual stream.
        residual: Hook points after the embedding and after each of `num_layers` layers.
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
        raise AssertionError("subclasses must define a title")

    def through(self, x_BTD: Tensor) -> Tensor:
        x_BTD = self.residual[0](x_BTD)
        for block, tap in zip(self.blocks, self.residual[1:], strict=True):
            x_BTD = tap(block(x_BTD))
        return x_BTD

    def largest_weight(self) -> float:
        return max(float(weight.abs().max()) for weight in self.parameters())

    def notes(self, tokens: Int64[Tensor, "batch time"] | None = None) -> list[LayerNote]:
        raise AssertionError("subclasses must describe their layers")

    def explain(self, tokens: Int64[Tensor, "batch time"] | None = None) -> str:
        return explanation(self.title, self.subspaces, self.notes(tokens))


def require_floats(dtype: object) -> None:
    require(dtype in (torch.float64, torch.float32), "dtype", "must be torch.float64 or torch.float32", dtype)


def only_tokens(inputs: Tensor, feedback: Tensor | None, cache: dict[str, Any] | None) -> None:
    if inputs.is_floating_point():
        raise InputError("inputs: must be integer tokens (batch, time); the theorem's network reads no vectors")
    for field, value in (("feedback", feedback), ("cache", cache)):
        if value is not None:
            raise InputError(f"{field}: must be left out; the theorem's network reads whole sequences of tokens")


def check_first(tokens: Tensor, placeholder: int) -> None:
    first = tokens[:, :1]
    if bool((wrong := first != placeholder).any()):
        raise InputError(f"tokens: must begin with the placeholder, token {placeholder}, got {int(first[wrong][0])}")


def check_tokens(tokens: Tensor, vocab_size: int) -> None:
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        raise InputError(f"tokens: must be in [0, {vocab_size}), got {int(tokens.min())} to {int(tokens.max())}")
