"""Recurrent networks of torch: RNN, LSTM, GRU, on one-hot tokens or vectors as they are."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from hmmscope import registry
from hmmscope.axes import Float, Int64, Tensor
from hmmscope.models.base import Ports, SequenceModel, Tap, check_inputs, check_sizes, initialise


@registry.model("rnn")
@dataclass(frozen=True, kw_only=True)
class RNNSpec:
    """Plain recurrent network, ``torch.nn.RNN``.

    h_t = nonlinearity(W_i x_t + b_i + W_h h_{t-1} + b_h);  outputs_t = head(h_t)

    x_t is the one-hot token, or the vector, followed by what is fed back.

    Attributes:
        num_layers: each reads the states of the one before.
        width: coordinates of a state.
        nonlinearity: "relu" or "tanh".
        learn_initial: h_{-1} is learned, from zero; otherwise it is zero.

    Source: [Limits] §2.2, §4.1: one layer of 64 ReLU units on the raw sequence, linear decoder.
    """

    num_layers: int = 1
    width: int = 64
    nonlinearity: Literal["relu", "tanh"] = "relu"
    learn_initial: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "num_layers", "width")

    def build(self, ports: Ports, generator: torch.Generator) -> "Recurrent":
        def layer(input_width: int) -> nn.RNN:
            return nn.RNN(input_width, self.width, nonlinearity=self.nonlinearity, batch_first=True)

        return Recurrent(self, layer, 1, ports, generator)


@registry.model("lstm")
@dataclass(frozen=True, kw_only=True)
class LSTMSpec:
    """Long short-term memory, ``torch.nn.LSTM`` (Hochreiter and Schmidhuber 1997), with a linear head.

    Attributes:
        num_layers: each reads the outputs of the one before.
        width: coordinates of a state, and of a cell.
        learn_initial: first state and cell are learned, from zero.
    """

    num_layers: int = 1
    width: int = 64
    learn_initial: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "num_layers", "width")

    def build(self, ports: Ports, generator: torch.Generator) -> "Recurrent":
        return Recurrent(self, lambda width: nn.LSTM(width, self.width, batch_first=True), 2, ports, generator)


@registry.model("gru")
@dataclass(frozen=True, kw_only=True)
class GRUSpec:
    """Gated recurrent units, ``torch.nn.GRU`` (Cho et al. 2014), with a linear head.

    Attributes:
        num_layers: each reads the states of the one before.
        width: coordinates of a state.
        learn_initial: the first state is learned, from zero.
    """

    num_layers: int = 1
    width: int = 64
    learn_initial: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "num_layers", "width")

    def build(self, ports: Ports, generator: torch.Generator) -> "Recurrent":
        return Recurrent(self, lambda width: nn.GRU(width, self.width, batch_first=True), 1, ports, generator)


class Recurrent(SequenceModel):
    """See `RNNSpec`, `LSTMSpec`, `GRUSpec`. Activations: ``residual.0`` is what is read, then the states of each layer.

    Weights are uniform in ±1/sqrt(width), as torch draws them; the head is that of the other models.

    Args:
        spec: of one of the three.
        layer: makes a layer for inputs of a given width.
        num_states: vectors that a layer carries on (two for an LSTM).
        ports: what goes in and comes out; any length does.
        generator: of the weights.
    """

    def __init__(
        self,
        spec: RNNSpec | LSTMSpec | GRUSpec,
        layer: Callable[[int], nn.RNNBase],
        num_states: int,
        ports: Ports,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.ports, self.num_symbols, self.num_tokens = ports, ports.num_outputs, ports.num_tokens
        widths = [ports.read_width + ports.feedback_width] + [spec.width] * (spec.num_layers - 1)
        self.layers = nn.ModuleList(layer(width) for width in widths)
        self.residual = nn.ModuleList(Tap() for _ in range(spec.num_layers + 1))
        self.head = nn.Linear(spec.width, ports.num_outputs)
        initialise(self, generator, num_residual_writes=1)
        bound = 1 / math.sqrt(spec.width)
        for parameter in self.layers.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
        shape = (spec.num_layers, num_states, spec.width)
        self.initial = nn.Parameter(torch.zeros(shape)) if spec.learn_initial else None

    def forward(
        self,
        inputs: Int64[Tensor, "batch time"] | Float[Tensor, "batch time input"],
        positions: Int64[Tensor, "*batch time"] | None = None,
        *,
        feedback: Float[Tensor, "batch time feedback"] | None = None,
        cache: dict[str, Any] | None = None,
    ) -> Float[Tensor, "batch time output"]:
        """Outputs at every position; see `SequenceModel.forward`. Positions mean nothing to this model."""
        check_inputs(self.ports, inputs, feedback)
        x_BTD = self.residual[0](self._read(inputs, feedback))
        states = {} if cache is None else cache
        for index, (layer, tap) in enumerate(zip(self.layers, self.residual[1:], strict=True)):
            key = f"layer {index}"
            before = states[key] if key in states else self._first_state(index, len(x_BTD))
            x_BTD, states[key] = layer(x_BTD, before)
            x_BTD = tap(x_BTD)
        return self.head(x_BTD)

    def _read(self, inputs: Tensor, feedback: Tensor | None) -> Tensor:
        """One-hot tokens or vectors, then what is fed back (batch, time, input)."""
        dtype = self.head.weight.dtype
        x_BTD = inputs if self.num_tokens is None else F.one_hot(inputs, self.num_tokens).to(dtype)
        if self.ports.feedback_width == 0:
            return x_BTD
        if feedback is None:
            feedback = x_BTD.new_zeros(*x_BTD.shape[:2], self.ports.feedback_width)
        return torch.cat([x_BTD, feedback], -1)

    def _first_state(self, layer: int, batch: int) -> Tensor | tuple[Tensor, Tensor] | None:
        """What torch's layer takes as its state, None for zeros."""
        if self.initial is None:
            return None
        states = self.initial[layer][:, None, None].expand(-1, 1, batch, -1).contiguous()
        return states[0] if len(states) == 1 else (states[0], states[1])
