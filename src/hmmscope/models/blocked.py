"""Causal rotary attention in blocks of queries, for short inputs on a CPU."""

import math
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hmmscope.axes import Tensor

#: Longer inputs use torch's fused kernel, which does not store attention weights.
MAX_BLOCKED_LENGTH = 512

_BLOCK = 48  # queries; a block reads the keys up to its end, which skips about half of the square
_GROUP = 32  # heads of samples per group, so that their logits stay in the CPU cache


class BlockedAttention(torch.autograd.Function):
    """Causal softmax attention with rotary queries and keys, equal to ``scaled_dot_product_attention(is_causal=True)``.

    The attention weights are stored for the backward pass. Only first derivatives are supported.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, rotation: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """Return attention's outputs (batch, time, width) from q, k, v (batch, time, 3, head, head width)."""
        batch, time, _, num_heads, head_width = qkv.shape
        own = qkv.new_empty(3, batch * num_heads, time, head_width)
        own.view(3, batch, num_heads, time, head_width).copy_(qkv.permute(2, 0, 3, 1, 4))
        q_NTK, k_NTK, v_NTK = own
        _turn(own[:2], *rotation)
        q_NTK *= scale
        mixed_NTK = torch.empty_like(v_NTK)
        blocks = _blocks(time)
        future = torch.full((blocks[0][1],) * 2, -math.inf, dtype=qkv.dtype).triu_(1)
        patterns = []
        for group in _groups(len(q_NTK)):
            q, k, v, mixed = q_NTK[group], k_NTK[group], v_NTK[group], mixed_NTK[group]
            for begin, end in blocks:
                logits = torch.bmm(q[:, begin:end], k[:, :end].transpose(1, 2))
                logits[:, :, begin:] += future[: end - begin, : end - begin]
                patterns.append(logits.softmax(-1))
                mixed[:, begin:end] = torch.bmm(patterns[-1], v[:, :end])  # faster than out= into a part
        ctx.save_for_backward(q_NTK, k_NTK, v_NTK, *rotation, *patterns)
        ctx.scale, ctx.num_heads = scale, num_heads
        return mixed_NTK.view(batch, num_heads, time, head_width).transpose(1, 2).reshape(batch, time, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BTD: Tensor) -> tuple[Tensor, None, None]:
        q_NTK, k_NTK, v_NTK, cos, sin, *saved = ctx.saved_tensors
        patterns = iter(saved)
        batch, time, _ = gradient_BTD.shape
        num_heads, head_width = ctx.num_heads, q_NTK.shape[2]
        mixed_NTK = gradient_BTD.view(batch, time, num_heads, head_width).transpose(1, 2).reshape(q_NTK.shape)
        all_NTK = torch.empty(3, *q_NTK.shape, dtype=q_NTK.dtype)  # gradients of queries, keys, values
        for group in _groups(len(q_NTK)):
            q, k, v, mixed, (dq, dk, dv) = q_NTK[group], k_NTK[group], v_NTK[group], mixed_NTK[group], all_NTK[:, group]
            for begin, end in _blocks(time):
                pattern = next(patterns)
                dpattern = torch.bmm(mixed[:, begin:end], v[:, :end].transpose(1, 2))
                dlogits = torch._softmax_backward_data(dpattern, pattern, -1, q.dtype)
                dq[:, begin:end] = torch.bmm(dlogits, k[:, :end])
                for into, weights, of in ((dk, dlogits, q), (dv, pattern, mixed)):
                    part = torch.bmm(weights.transpose(1, 2), of[:, begin:end])
                    into[:, :begin] += part[:, :begin]
                    into[:, begin:end] = part[:, begin:]  # the first block that reads these keys
        all_NTK[0] *= ctx.scale
        _turn(all_NTK[:2], cos, -sin)
        gradient = q_NTK.new_empty(batch, time, 3, num_heads, head_width)
        gradient.permute(2, 0, 3, 1, 4).copy_(all_NTK.view(3, batch, num_heads, time, head_width))
        return gradient, None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    half = x.shape[-1] // 2
    swapped = torch.cat([x[..., half:], x[..., :half]], -1)
    x.mul_(cos).add_(swapped.mul_(sin))


def num_blocks(time: int) -> int:
    return max(1, round(time / _BLOCK))


def _blocks(time: int) -> list[tuple[int, int]]:
    size = -(-time // num_blocks(time))
    return [(begin, min(begin + size, time)) for begin in range(0, time, size)]


def _groups(count: int) -> list[slice]:
    return [slice(begin, begin + _GROUP) for begin in range(0, count, _GROUP)]
