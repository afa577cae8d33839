"""What models share: named activations, a vocabulary, and weights from a named generator."""

import math
from typing import Protocol

import torch
from torch import nn

from hmmscope.axes import Float, Int64, Tensor


class Tap(nn.Module):
    """An activation with a name: passes its input through, and is where instruments listen.

    The name is the module's path (``residual.2``, ``blocks.0.attention.logits``), as for any other module of any model.
    """

    def forward(self, activation: Tensor) -> Tensor:
        return activation

    @property
    def heard(self) -> bool:
        """Whether somebody listens; what is costly and only for listeners is skipped otherwise."""
        return len(self._forward_hooks) > 0


class SequenceModel(nn.Module):
    """Tokens (batch, time) to logits over the next symbol (batch, time, symbol).

    Attributes:
        num_symbols: V, size of the output.
        num_tokens: size of the input vocabulary (symbols, and a delimiter if there is one).
        residual: taps on the stream after the embedding and after every layer, ``residual.0`` to ``residual.<layers>``.
    """

    num_symbols: int
    num_tokens: int
    residual: nn.ModuleList

    def forward(
        self, tokens: Int64[Tensor, "batch time"], positions: Int64[Tensor, "*batch time"] | None = None
    ) -> Float[Tensor, "batch time symbol"]:
        raise AssertionError("a model defines forward")


class ModelSpec(Protocol):
    """A frozen dataclass of sizes, registered by name."""

    def build(self, num_symbols: int, num_tokens: int, generator: torch.Generator) -> SequenceModel:
        """The model with fresh weights from `generator`."""
        ...


@torch.no_grad()
def initialise(model: nn.Module, generator: torch.Generator, *, num_residual_writes: int) -> None:
    """Normal weights of variance 1/fan-in, zero biases, embeddings of standard deviation one half.

    Linear maps whose attribute is named ``out`` write into the residual stream and are scaled by
    1/sqrt(num_residual_writes); one named ``head`` gets standard deviation 0.02, so that the first loss is near log V.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            module.weight.normal_(0.0, 0.5, generator=generator)
        elif isinstance(module, nn.Linear):
            std = 1 / math.sqrt(module.in_features)
            last = name.rpartition(".")[2]
            if last == "out":
                std /= math.sqrt(num_residual_writes)
            elif last == "head":
                std = 0.02
            module.weight.normal_(0.0, std, generator=generator)
            if module.bias is not None:
                module.bias.zero_()


def parameter_count(model: nn.Module) -> int:
    """Number of trainable numbers."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
