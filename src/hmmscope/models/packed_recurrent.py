"""Layers of RNN, LSTM and GRU for many members at once, with their own backward pass through time.

One step of all members is one batched product and a few elementwise operations. What the backward pass needs of the
nonlinearities is computed for all times together, so that its loop, too, is one product and a few operations a step.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from hmmscope.axes import Tensor


def affine(x_KNI: Tensor, weight_KOI: Tensor, bias_KO: Tensor | None) -> Tensor:
    """x weight^T + bias for each member (member, row, output).

    The gradient is made contiguous before it is added up, so that the order of the sum does not depend on what
    strides it came with, which change with the number of members.
    """
    if bias_KO is None:
        y_KNO = torch.bmm(x_KNI, weight_KOI.transpose(1, 2))
    else:
        y_KNO = torch.baddbmm(bias_KO[:, None], x_KNI, weight_KOI.transpose(1, 2))
    if y_KNO.requires_grad:
        y_KNO.register_hook(Tensor.contiguous)
    return y_KNO


class _Layer(nn.Module):
    """A recurrent layer: called with (rows, time, input) and the state after what came before, as torch's layers.

    No gradient flows into or out of that state, which is for caches.
    """

    gates: int

    def __init__(self, modules: Sequence[nn.RNNBase], stacks: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self.input, self.input_bias = stacks["weight_ih_l0"], stacks["bias_ih_l0"]
        self.hidden, self.hidden_bias = stacks["weight_hh_l0"], stacks["bias_hh_l0"]

    def forward(self, x: Tensor, before: Any = None) -> tuple[Tensor, Any]:
        members, width = len(self.hidden), self.hidden.shape[2]
        rows, time, _ = x.shape
        batch = rows // members
        x_KNI = x.view(members, batch, time, -1).transpose(1, 2).reshape(members, time * batch, -1)
        read_KNG = affine(x_KNI, self.input, self._bias())
        read_TKBG = read_KNG.view(members, time, batch, -1).transpose(0, 1).contiguous()
        if before is None:
            before = (x.new_zeros(members, batch, width, dtype=read_TKBG.dtype),) * self.num_states
        states_TKBW, after = self._run(read_TKBG, before)
        return states_TKBW.permute(1, 2, 0, 3).reshape(rows, time, width), after

    @property
    def num_states(self) -> int:
        return 1

    def _bias(self) -> Tensor:
        """Biases of what does not depend on the state."""
        return self.input_bias + self.hidden_bias

    @abstractmethod
    def _run(self, read_TKBG: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """States (time, member, batch, width) from what is read, and the last ones."""


class PackedRNN(_Layer):
    """h_t = nonlinearity(read_t + W_h h_{t-1}), read_t = W_i x_t + b_i + b_h."""

    def __init__(self, modules: Sequence[nn.RNNBase], stacks: dict[str, nn.Parameter]) -> None:
        super().__init__(modules, stacks)
        self.tanh = modules[0].nonlinearity == "tanh"

    def _run(self, read_TKBG: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        states_TKBW = _RNN.apply(read_TKBG, self.hidden.to(read_TKBG.dtype), before[0], self.tanh)
        return states_TKBW, (states_TKBW[-1].detach(),)


class PackedLSTM(_Layer):
    """i, f, o = σ(...), g = tanh(...) of read_t + W_h h_{t-1};  c_t = f c_{t-1} + i g;  h_t = o tanh(c_t)."""

    @property
    def num_states(self) -> int:
        return 2

    def _run(self, read_TKBG: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        states_TKBW, cells_TKBW = _LSTM.apply(read_TKBG, self.hidden.to(read_TKBG.dtype), *before)
        return states_TKBW, (states_TKBW[-1].detach(), cells_TKBW[-1])


class PackedGRU(_Layer):
    """r, z = σ(...);  n = tanh(read_n + r (W_n h_{t-1} + b_n));  h_t = n + z (h_{t-1} - n)."""

    def _bias(self) -> Tensor:
        return self.input_bias

    def _run(self, read_TKBG: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        hidden, bias = (weights.to(read_TKBG.dtype) for weights in (self.hidden, self.hidden_bias))
        states_TKBW = _GRU.apply(read_TKBG, hidden, bias, before[0])
        return states_TKBW, (states_TKBW[-1].detach(),)


class _RNN(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, read_TKBW: Tensor, hidden_KWW: Tensor, before_KBW: Tensor, tanh: bool) -> Tensor:
        states_TKBW, back_KWW = read_TKBW.clone(), hidden_KWW.transpose(1, 2)
        state = before_KBW
        for own in states_TKBW:
            own.baddbmm_(state, back_KWW)
            state = own.tanh_() if tanh else own.relu_()
        ctx.save_for_backward(states_TKBW, hidden_KWW, before_KBW)
        ctx.tanh = tanh
        return states_TKBW

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_TKBW: Tensor) -> tuple[Tensor, Tensor, None, None]:
        states_TKBW, hidden_KWW, before_KBW = ctx.saved_tensors
        slope_TKBW = 1 - states_TKBW.square() if ctx.tanh else (states_TKBW > 0).to(gradient_TKBW.dtype)
        due = gradient_TKBW[-1]
        for t in range(len(slope_TKBW) - 1, -1, -1):
            own = slope_TKBW[t].mul_(due)  # from here on the gradient of what was read
            if t:
                due = torch.baddbmm(gradient_TKBW[t - 1], own, hidden_KWW)
        return slope_TKBW, _hidden_gradient(slope_TKBW, before_KBW, states_TKBW), None, None


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, read_TKBG: Tensor, hidden_KGW: Tensor, before_KBW: Tensor, cell_KBW: Tensor
    ) -> tuple[Tensor, Tensor]:
        width = hidden_KGW.shape[2]
        gates_TKBG, back_KWG = read_TKBG.clone(), hidden_KGW.transpose(1, 2)
        cells_TKBW = read_TKBG.new_empty(*read_TKBG.shape[:3], width)
        states_TKBW = torch.empty_like(cells_TKBW)
        state, cell = before_KBW, cell_KBW
        for own, own_cell, own_state in zip(gates_TKBG, cells_TKBW, states_TKBW, strict=True):
            own.baddbmm_(state, back_KWG)
            own[..., : 2 * width].sigmoid_()
            i, f, g, o = own.split(width, -1)
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, cell, out=own_cell)
            cell = own_cell.addcmul_(i, g)
            torch.tanh(cell, out=own_state)
            state = own_state.mul_(o)
        ctx.save_for_backward(gates_TKBG, cells_TKBW, states_TKBW, hidden_KGW, before_KBW, cell_KBW)
        ctx.mark_non_differentiable(cells_TKBW)
        return states_TKBW, cells_TKBW

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_TKBW: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        gates_TKBG, cells_TKBW, states_TKBW, hidden_KGW, before_KBW, cell_KBW = ctx.saved_tensors
        width = hidden_KGW.shape[2]
        i, f, g, o = gates_TKBG.split(width, -1)
        earlier = torch.cat([cell_KBW[None], cells_TKBW[:-1]])
        squashed = cells_TKBW.tanh()
        into_cell = o * (1 - squashed.square())
        # d cell / d gate before its nonlinearity, for i, f, g; and d state / d the same of o
        slopes = torch.cat([g * i * (1 - i), earlier * f * (1 - f), i * (1 - g.square()), squashed * o * (1 - o)], -1)
        due, due_cell = gradient_TKBW[-1], torch.zeros_like(cell_KBW)
        for t in range(len(slopes) - 1, -1, -1):
            due_cell.addcmul_(due, into_cell[t])
            slopes[t, ..., : 3 * width].unflatten(-1, (3, width)).mul_(due_cell[..., None, :])
            slopes[t, ..., 3 * width :].mul_(due)
            if t:
                due_cell.mul_(f[t])
                due = torch.baddbmm(gradient_TKBW[t - 1], slopes[t], hidden_KGW)
        return slopes, _hidden_gradient(slopes, before_KBW, states_TKBW), None, None


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, read_TKBG: Tensor, hidden_KGW: Tensor, bias_KG: Tensor, before_KBW: Tensor) -> Tensor:
        width = hidden_KGW.shape[2]
        gates_TKBG, back_KWG = read_TKBG.clone(), hidden_KGW.transpose(1, 2)
        states_TKBW = read_TKBG.new_empty(*read_TKBG.shape[:3], width)
        inner_TKBW = torch.empty_like(states_TKBW)  # W_n h_{t-1} + b_n
        state = before_KBW
        for own, own_state, inner in zip(gates_TKBG, states_TKBW, inner_TKBW, strict=True):
            heard = torch.baddbmm(bias_KG[:, None], state, back_KWG)
            inner.copy_(heard[..., 2 * width :])
            own[..., : 2 * width].add_(heard[..., : 2 * width]).sigmoid_()
            r, z, n = own.split(width, -1)
            n.addcmul_(r, inner).tanh_()
            torch.sub(state, n, out=own_state)
            state = own_state.mul_(z).add_(n)
        ctx.save_for_backward(gates_TKBG, inner_TKBW, states_TKBW, hidden_KGW, before_KBW)
        return states_TKBW

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_TKBW: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        gates_TKBG, inner_TKBW, states_TKBW, hidden_KGW, before_KBW = ctx.saved_tensors
        width = hidden_KGW.shape[2]
        r, z, n = gates_TKBG.split(width, -1)
        earlier = torch.cat([before_KBW[None], states_TKBW[:-1]])
        into_n = (1 - z) * (1 - n.square())
        # d state / d the gate before its nonlinearity, for r, z and for the state's part of n
        slopes = torch.cat([into_n * inner_TKBW * r * (1 - r), (earlier - n) * z * (1 - z), into_n * r], -1)
        due = gradient_TKBW[-1]
        for t in range(len(slopes) - 1, -1, -1):
            slopes[t].unflatten(-1, (3, width)).mul_(due[..., None, :])
            into_n[t].mul_(due)
            if t:
                due = torch.addcmul(gradient_TKBW[t - 1], due, z[t]).baddbmm_(slopes[t], hidden_KGW)
        read = torch.cat([slopes[..., : 2 * width], into_n], -1)
        bias_KG = slopes.transpose(0, 1).reshape(len(before_KBW), -1, 3 * width).contiguous().sum(1)
        return read, _hidden_gradient(slopes, before_KBW, states_TKBW), bias_KG, None


def _hidden_gradient(gates_TKBG: Tensor, before_KBW: Tensor, states_TKBW: Tensor) -> Tensor:
    """Σ_t gates_t^T h_{t-1}, for each member (member, gate, width)."""
    members, width = len(before_KBW), before_KBW.shape[2]
    earlier_KNW = torch.cat([before_KBW[None], states_TKBW[:-1]]).transpose(0, 1).reshape(members, -1, width)
    return torch.bmm(gates_TKBG.permute(1, 3, 0, 2).reshape(members, gates_TKBG.shape[3], -1), earlier_KNW)
