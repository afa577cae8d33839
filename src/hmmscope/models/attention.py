"""Multi-head softmax attention with rotary positions and a key-value cache."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from hmmscope.axes import Tensor
from hmmscope.models.base import HookPoint, Mixer
from hmmscope.models.blocked import MAX_BLOCKED_LENGTH, BlockedAttention

#: Cosines and signed sines (time, head width), or (batch, 1, time, head width) for positions of each sequence.
Rotation = tuple[Tensor, Tensor]


class Attention(Mixer):
    """Multi-head attention; if the forward pass receives a rotation, queries and keys are rotated.

    The hook points are ``logits``, the attention logits before the softmax (batch, head, query, key), -inf where
    masked; ``pattern``, the attention weights after the softmax; and ``mixed``, the outputs of all heads (batch, time,
    width). Hooks on ``logits`` or ``pattern`` disable fused kernels.

    Args:
        width: width of the residual stream.
        num_heads: number of heads, each of width / num_heads coordinates.
        causal: True masks future keys.
        scaled: True divides attention logits by the square root of the head width.
    """

    def __init__(self, width: int, num_heads: int, *, causal: bool = True, scaled: bool = True) -> None:
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.scale = 1 / math.sqrt(width // num_heads) if scaled else 1.0
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.logits, self.pattern, self.mixed = HookPoint(), HookPoint(), HookPoint()

    def forward(self, x_BTD: Tensor, rotation: Rotation | None = None, past: "KeyValues | None" = None) -> Tensor:
        batch, time, width = x_BTD.shape
        shape = (self.num_heads, width // self.num_heads)
        together = self.qkv(x_BTD)
        qkv = together.view(batch, time, 3, *shape)
        heard = self.logits.is_hooked or self.pattern.is_hooked
        blocked = self.causal and past is None and not heard and _is_small(qkv)
        if blocked and rotation is not None and rotation[0].ndim == 2:
            return self.out(self.mixed(BlockedAttention.apply(qkv, rotation, self.scale)))
        if rotation is None:
            q_BHTK, k_BHTK, v_BHTK = (
                part.view(batch, time, *shape).transpose(1, 2) for part in together.split(width, 2)
            )
        else:
            rotated, values = together.split([2 * width, width], 2)
            q_BHTK, k_BHTK = rotate(rotated.view(batch, time, 2, *shape).permute(2, 0, 3, 1, 4), rotation).unbind()
            v_BHTK = values.view(batch, time, *shape).transpose(1, 2)
        if past is not None:
            k_BHTK, v_BHTK = past.append(k_BHTK, v_BHTK)
        if heard:
            mixed_BHTK = self._slowly(q_BHTK, k_BHTK, v_BHTK)
        else:
            whole = time == k_BHTK.shape[2]
            mask = None if whole or time == 1 else ~_future(time, k_BHTK)
            causal = self.causal and whole
            mixed_BHTK = F.scaled_dot_product_attention(
                q_BHTK, k_BHTK, v_BHTK, attn_mask=mask, is_causal=causal, scale=self.scale
            )
        return self.out(self.mixed(mixed_BHTK.transpose(1, 2).reshape(batch, time, width)))

    def empty_past(self) -> "KeyValues":
        return KeyValues()

    def _slowly(self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        logits_BHTU = q_BHTK @ k_BHTK.transpose(2, 3) * self.scale
        if self.causal:
            logits_BHTU = logits_BHTU.masked_fill(_future(q_BHTK.shape[2], k_BHTK), -torch.inf)
        return self.pattern(self.logits(logits_BHTU).softmax(-1)) @ v_BHTK


class KeyValues:
    def __init__(self) -> None:
        self._kept: Tensor | None = None  # (2, batch, head, capacity, head width)
        self.length = 0

    def append(self, k_BHTK: Tensor, v_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        new = torch.stack([k_BHTK, v_BHTK])
        begin, self.length = self.length, self.length + k_BHTK.shape[2]
        if torch.is_grad_enabled():  # in-place writes would break gradients
            self._kept = new if self._kept is None else torch.cat([self._kept[..., :begin, :], new], -2)
        else:
            if self._kept is None or self._kept.shape[-2] < self.length:
                grown = new.new_empty(*new.shape[:-2], max(2 * self.length, 16), new.shape[-1])
                if self._kept is not None:
                    grown[..., :begin, :] = self._kept[..., :begin, :]
                self._kept = grown
            self._kept[..., begin : self.length, :] = new
        keys, values = self._kept[..., : self.length, :]
        return keys, values


class RotaryTable:
    """Cached cosines and sines of the angle position * `base`^(-2i / `head_width`) of each coordinate pair i."""

    def __init__(self, head_width: int, base: float) -> None:
        self.head_width, self.base = head_width, base
        self._kept: dict[tuple, Rotation] = {}

    def first(self, begin: int, end: int, like: Tensor, dtype: torch.dtype | None = None) -> Rotation:
        key = (dtype or like.dtype, like.device)
        if key not in self._kept or len(self._kept[key][0]) < end:
            with torch.inference_mode(False):  # cached tensors must also work in training
                length = max(end, 64) if key not in self._kept else 2 * end
                self._kept[key] = self.at(torch.arange(length, device=like.device), key[0])
        cos, sin = self._kept[key]
        return cos[begin:end], sin[begin:end]

    def at(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        pairs = torch.arange(0, self.head_width, 2, device=positions.device, dtype=torch.float64)
        angles = positions[..., None] * self.base ** (-pairs / self.head_width)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        cos, sin = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
        return (cos, sin) if positions.ndim == 1 else (cos[:, None], sin[:, None])  # shared by all heads


def rotation_dtype(x_BTD: Tensor) -> torch.dtype:
    kind = x_BTD.device.type
    rounded = x_BTD.dtype == torch.float32 and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if rounded else x_BTD.dtype


def rotate(x_BHTK: Tensor, rotation: Rotation) -> Tensor:
    """Rotate the coordinate pairs (i, i + K/2) of the last axis of size K."""
    cos, sin = rotation
    first, second = x_BHTK.chunk(2, -1)
    swapped_BHTK = torch.cat([second, first], -1)
    if x_BHTK.dtype in (torch.float32, torch.float64):
        return x_BHTK * cos + swapped_BHTK * sin
    return torch.addcmul(x_BHTK * cos, swapped_BHTK, sin)  # one operation and one rounding fewer


def _is_small(qkv: Tensor) -> bool:
    plain = qkv.device.type == "cpu" and qkv.dtype in (torch.float32, torch.float64)
    return plain and qkv.shape[1] <= MAX_BLOCKED_LENGTH and not torch.compiler.is_compiling()


def _future(time: int, k_BHTK: Tensor) -> Tensor:
    total = k_BHTK.shape[2]
    return torch.ones(time, total, dtype=torch.bool, device=k_BHTK.device).triu(1 + total - time)
