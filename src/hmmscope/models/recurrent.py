"""Recurrent networks: RNN, LSTM and GRU."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from hmmscope import registry
from hmmscope.axes import Cache, Feedback, Float, Inputs, Positions, Tensor
from hmmscope.models.base import Cost, HookPoint, ModelIO, SequenceModel, check_inputs, check_sizes, initialise


@dataclass(frozen=True, kw_only=True)
class RecurrentSpec:
    """Options of recurrent networks.

    Attributes:
        num_layers: number of stacked layers.
        width: number of coordinates of a state.
        learn_initial: True learns the first state.
        gates: number of weight matrices for the input of a layer, as many as for its state: RNN 1, GRU 3, LSTM 4.
        kept: number of activations per coordinate and position that the backward pass needs.
        num_states: number of state vectors of a layer.
    """

    num_layers: int = 1
    width: int = 64
    learn_initial: bool = False

    #: Fields of a network in a study of sequences (`hmmscope.study`); any model may set them.
    study_fields = {"width": 128}

    gates: ClassVar[int]
    kept: ClassVar[int]
    num_states: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_sizes(self, "num_layers", "width")

    def layer(self, input_width: int) -> nn.RNNBase:
        raise AssertionError("subclasses define layer")

    def input_widths(self, model_io: ModelIO) -> list[int]:
        return [model_io.read_width + model_io.feedback_width] + [self.width] * (self.num_layers - 1)

    def build(self, model_io: ModelIO, generator: torch.Generator) -> "Recurrent":
        return Recurrent(self, model_io, generator)

    def cost(self, model_io: ModelIO, columns: int, *, device: str = "cpu") -> Cost:
        d, widths, outputs = self.width, self.input_widths(model_io), model_io.num_outputs
        cells = sum(self.gates * d * (width + d + 2) for width in widths)
        states = self.num_states * self.num_layers * d * self.learn_initial
        each = sum(2.0 * self.gates * d * (width + d) for width in widths)
        return Cost(
            parameters=cells + states + (d + 1) * outputs,
            flops=3.0 * columns * (each + 2 * d * outputs),
            kept=columns * (self.num_layers * self.kept * d + 2 * widths[0] + 3 * outputs),
        )


@registry.model("rnn")
@dataclass(frozen=True, kw_only=True)
class RNNSpec(RecurrentSpec):
    """Plain recurrent network, ``torch.nn.RNN``.

    h_t = nonlinearity(W_i x_t + b_i + W_h h_{t-1} + b_h);  outputs_t = head(h_t)

    x_t is the one-hot token or the input vector, followed by the extra inputs of block chain-of-thought, if any.

    Attributes:
        num_layers: number of stacked layers.
        width: number of coordinates of a state.
        nonlinearity: nonlinearity of the states, "relu" or "tanh".
        learn_initial: True learns h_{-1}, starting from zero.

    Source: [Limits] §2.2, §4.1: one layer of 64 ReLU units.
    """

    nonlinearity: Literal["relu", "tanh"] = "relu"

    gates, kept = 1, 2

    def layer(self, input_width: int) -> nn.RNNBase:
        return nn.RNN(input_width, self.width, nonlinearity=self.nonlinearity, batch_first=True)


@registry.model("lstm")
@dataclass(frozen=True, kw_only=True)
class LSTMSpec(RecurrentSpec):
    """Long short-term memory, ``torch.nn.LSTM`` (Hochreiter and Schmidhuber 1997), with a linear head.

    Attributes:
        num_layers: number of stacked layers.
        width: number of coordinates of state and cell.
        learn_initial: True learns the first state and cell, starting from zero.
    """

    gates, kept, num_states = 4, 17, 2

    def layer(self, input_width: int) -> nn.RNNBase:
        return nn.LSTM(input_width, self.width, batch_first=True)


@registry.model("gru")
@dataclass(frozen=True, kw_only=True)
class GRUSpec(RecurrentSpec):
    """Gated recurrent units, ``torch.nn.GRU`` (Cho et al. 2014), with a linear head.

    Attributes:
        num_layers: number of stacked layers.
        width: number of coordinates of a state.
        learn_initial: True learns the first state, starting from zero.
    """

    gates, kept = 3, 8

    def layer(self, input_width: int) -> nn.RNNBase:
        return nn.GRU(input_width, self.width, batch_first=True)


class Recurrent(SequenceModel):
    """The network of a `RecurrentSpec`, with hook points ``residual.0`` (input) and the states of each layer.

    Initial weights are uniform in ±1/sqrt(width), except in the head.

    Args:
        spec: RNN, LSTM or GRU.
    """

    def __init__(self, spec: RecurrentSpec, model_io: ModelIO, generator: torch.Generator) -> None:
        super().__init__()
        self.model_io, self.num_symbols, self.vocab_size = model_io, model_io.num_outputs, model_io.vocab_size
        self.layers = nn.ModuleList(spec.layer(width) for width in spec.input_widths(model_io))
        self.residual = nn.ModuleList(HookPoint() for _ in range(spec.num_layers + 1))
        self.head = nn.Linear(spec.width, model_io.num_outputs)
        initialise(self, generator, num_residual_writes=1)
        bound = 1 / math.sqrt(spec.width)
        for parameter in self.layers.parameters():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
        shape = (spec.num_layers, spec.num_states, spec.width)
        self.initial = nn.Parameter(torch.zeros(shape)) if spec.learn_initial else None

    def forward(
        self, inputs: Inputs, positions: Positions = None, *, feedback: Feedback = None, cache: Cache = None
    ) -> Float[Tensor, "batch time output"]:
        check_inputs(self.model_io, inputs, feedback)
        x_BTD = self.residual[0](self._read(inputs, feedback))
        states = {} if cache is None else cache
        for index, (layer, tap) in enumerate(zip(self.layers, self.residual[1:], strict=True)):
            key = f"layer {index}"
            before = states[key] if key in states else self._first_state(index, len(x_BTD))
            x_BTD, states[key] = layer(x_BTD, before)
            x_BTD = tap(x_BTD)
        return self.head(x_BTD)

    def _read(self, inputs: Tensor, feedback: Tensor | None) -> Tensor:
        dtype = self.head.weight.dtype
        x_BTD = inputs if self.vocab_size is None else F.one_hot(inputs, self.vocab_size).to(dtype)
        if self.model_io.feedback_width == 0:
            return x_BTD
        if feedback is None:
            feedback = x_BTD.new_zeros(*x_BTD.shape[:2], self.model_io.feedback_width)
        return torch.cat([x_BTD, feedback], -1)

    def _first_state(self, layer: int, batch: int) -> Tensor | tuple[Tensor, Tensor] | None:
        if self.initial is None:
            return None
        states = self.initial[layer][:, None, None].expand(-1, 1, batch, -1).contiguous()
        return states[0] if len(states) == 1 else (states[0], states[1])
