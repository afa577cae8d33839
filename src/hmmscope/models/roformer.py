"""RoFormer: a decoder with rotary positions (Su et al. 2021), pre-LN, GELU MLP."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from hmmscope import registry
from hmmscope.axes import Float, Int64, Tensor
from hmmscope.models.base import SequenceModel, Tap, initialise
from hmmscope.schema import require


@registry.model("roformer")
@dataclass(frozen=True, kw_only=True)
class RoFormerSpec:
    """RoFormer-style decoder.

    x_0 = embedding(tokens)
    x <- x + attention(norm(x));  x <- x + mlp(norm(x))      in each of `num_layers` blocks
    logits = head(norm(x))

    Queries and keys are rotated by their position: pair i of a head turns by position * rotary_base^(-2i/head width),
    so that attention logits depend on positions through differences only.

    Attributes:
        num_layers: blocks.
        num_heads: heads of each block.
        width: of the residual stream; a multiple of twice the number of heads.
        mlp_ratio: width of the MLP's hidden layer, as a multiple of `width`.
        rotary_base: base of the rotation frequencies.

    Source: [MultiTask] §5 (RoFormer, 16 layers, 16 heads, width 1024). Not stated there: pre-LN, GELU MLP of four times
    the width, rotary base 10000, no dropout.
    """

    num_layers: int = 16
    num_heads: int = 16
    width: int = 1024
    mlp_ratio: int = 4
    rotary_base: float = 10000.0

    def __post_init__(self) -> None:
        for field in ("num_layers", "num_heads", "width", "mlp_ratio"):
            require(1 <= getattr(self, field) <= 65536, field, "must be in [1, 65536]", getattr(self, field))
        rule = f"must be a multiple of 2 * num_heads = {2 * self.num_heads}"
        require(self.width % (2 * self.num_heads) == 0, "width", rule, self.width)
        require(self.rotary_base > 0, "rotary_base", "must be positive", self.rotary_base)

    def build(self, num_symbols: int, num_tokens: int, generator: torch.Generator) -> "RoFormer":
        return RoFormer(self, num_symbols, num_tokens, generator)


class RoFormer(SequenceModel):
    """See `RoFormerSpec`. Activations: ``residual.<layer>``, ``blocks.<layer>.attention.{logits,pattern}``."""

    def __init__(self, spec: RoFormerSpec, num_symbols: int, num_tokens: int, generator: torch.Generator) -> None:
        super().__init__()
        self.num_symbols, self.num_tokens = num_symbols, num_tokens
        self.head_width, self.rotary_base = spec.width // spec.num_heads, spec.rotary_base
        self.embedding = nn.Embedding(num_tokens, spec.width)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.num_layers))
        self.residual = nn.ModuleList(Tap() for _ in range(spec.num_layers + 1))
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, num_symbols)
        initialise(self, generator, num_residual_writes=2 * spec.num_layers)

    def forward(
        self, tokens: Int64[Tensor, "batch time"], positions: Int64[Tensor, "*batch time"] | None = None
    ) -> Float[Tensor, "batch time symbol"]:
        """Logits; `positions` default to 0, 1, 2, ..., and may be given for each sequence or for all."""
        x_BTD = self.residual[0](self.embedding(tokens))
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        rotation = rotary_table(positions, self.head_width, self.rotary_base, x_BTD.dtype)
        for block, tap in zip(self.blocks, self.residual[1:], strict=True):
            x_BTD = tap(block(x_BTD, rotation))
        return self.head(self.norm(x_BTD))


class Block(nn.Module):
    """Attention, then a token-wise MLP, each added to the stream."""

    def __init__(self, spec: RoFormerSpec) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(spec.width)
        self.attention = RotaryAttention(spec.width, spec.num_heads)
        self.mlp_norm = nn.LayerNorm(spec.width)
        self.mlp = MLP(spec.width, spec.mlp_ratio * spec.width)

    def forward(self, x_BTD: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), rotation)
        return x_BTD + self.mlp(self.mlp_norm(x_BTD))


class MLP(nn.Module):
    """out(gelu(hidden(x)))."""

    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, hidden_width)
        self.out = nn.Linear(hidden_width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.out(F.gelu(self.hidden(x_BTD)))


class RotaryAttention(nn.Module):
    """Causal multi-head attention with rotated queries and keys.

    Taps: ``logits`` before the softmax (batch, head, query, key), -inf above the diagonal; ``pattern`` after it.
    They are computed only when somebody listens; otherwise a fused kernel is used.
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.logits, self.pattern = Tap(), Tap()

    def forward(self, x_BTD: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        batch, time, width = x_BTD.shape
        qkv = self.qkv(x_BTD).view(batch, time, 3, self.num_heads, width // self.num_heads)
        q_BHTK, k_BHTK, v_BHTK = qkv.permute(2, 0, 3, 1, 4)
        q_BHTK, k_BHTK = rotate(q_BHTK, rotation), rotate(k_BHTK, rotation)
        if self.logits.heard or self.pattern.heard:
            scale = 1 / math.sqrt(width // self.num_heads)
            future_TU = torch.ones(time, time, dtype=torch.bool, device=x_BTD.device).triu(1)
            logits_BHTU = (q_BHTK @ k_BHTK.transpose(2, 3) * scale).masked_fill(future_TU, -torch.inf)
            mixed_BHTK = self.pattern(self.logits(logits_BHTU).softmax(-1)) @ v_BHTK
        else:
            mixed_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        return self.out(mixed_BHTK.transpose(1, 2).reshape(batch, time, width))


def rotary_table(positions: Tensor, head_width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines (..., time, head width / 2) of position * base^(-2i / head width)."""
    pairs = torch.arange(0, head_width, 2, device=positions.device, dtype=torch.float64)
    angles = positions[..., None] * base ** (-pairs / head_width)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return (cos, sin) if positions.ndim == 1 else (cos[:, None], sin[:, None])  # one for all heads


def rotate(x_BHTK: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the pairs (i, i + K/2) of the last axis."""
    cos, sin = rotation
    first, second = x_BHTK.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
