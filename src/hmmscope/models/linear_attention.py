"""Decoders with linear attention."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from hmmscope import registry
from hmmscope.axes import Tensor
from hmmscope.models.base import Cost, Mixer, ModelIO
from hmmscope.models.decoder import Decoder, DecoderSpec

#: Positions in a chunk.
CHUNK = 64


def decoder_without_attention(spec: Any, positions: Literal["learned", "sinusoidal", "none"]) -> DecoderSpec:
    return DecoderSpec(
        num_layers=spec.num_layers,
        num_heads=spec.num_heads,
        width=spec.width,
        mlp_ratio=spec.mlp_ratio,
        positions=positions,
        input_features=False,
        dropout=0.0,
    )


@registry.model("linear-attention")
@dataclass(frozen=True, kw_only=True)
class LinearAttentionSpec:
    """Decoder with causal linear attention.

    mixed_t = φ(q_t)·S_t / φ(q_t)·z_t    with S_t = Σ_{s≤t} φ(k_s) v_s^T,  z_t = Σ_{s≤t} φ(k_s),  φ(x) = elu(x) + 1

    The other parts are as in `DecoderSpec`.

    Attributes:
        num_layers: number of blocks.
        num_heads: number of heads in a block.
        width: width of the residual stream; a multiple of num_heads.
        mlp_ratio: hidden width of the MLP divided by `width`.
        positions: "learned", "sinusoidal" or "none".

    Source: Katharopoulos et al. 2020, Eq. 9-12.
    """

    num_layers: int = 4
    num_heads: int = 4
    width: int = 128
    mlp_ratio: int = 4
    positions: Literal["learned", "sinusoidal", "none"] = "sinusoidal"

    def __post_init__(self) -> None:
        _ = self.decoder  # checks the values

    @property
    def decoder(self) -> DecoderSpec:
        return decoder_without_attention(self, self.positions)

    def build(self, model_io: ModelIO, generator: torch.Generator) -> Decoder:
        return Decoder(self.decoder, model_io, generator, lambda: LinearAttention(self.width, self.num_heads))

    def cost(self, model_io: ModelIO, columns: int, *, device: str = "cpu") -> Cost:
        chunk, k = min(CHUNK, columns), self.width // self.num_heads
        flops = self.num_heads * (2.0 * chunk * (2 * k + 1) + 4.0 * k * (k + 1))
        kept = 10 * self.width + 2 * self.num_heads * chunk
        return self.decoder.cost(model_io, columns, device=device, mixing=(flops, kept))


class LinearAttention(Mixer):
    """Mixer of `LinearAttentionSpec`, computed by a masked product within chunks and a state between chunks."""

    def __init__(self, width: int, num_heads: int, chunk: int = CHUNK) -> None:
        super().__init__()
        self.num_heads, self.chunk = num_heads, chunk
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BTD: Tensor, rotation: None = None, past: "LinearAttentionState | None" = None) -> Tensor:
        batch, time, width = x_BTD.shape
        qkv = self.qkv(x_BTD).view(batch, time, 3, self.num_heads, width // self.num_heads)
        q_BHTK, k_BHTK, v_BHTK = qkv.permute(2, 0, 3, 1, 4)
        q_BHTK, k_BHTK = positive(q_BHTK), positive(k_BHTK)
        v_BHTC = torch.cat([v_BHTK, torch.ones_like(v_BHTK[..., :1])], -1)  # the last column sums to z
        past = LinearAttentionState() if past is None else past
        parts = []
        for begin in range(0, time, self.chunk):
            q, k, v = (x[:, :, begin : begin + self.chunk] for x in (q_BHTK, k_BHTK, v_BHTC))
            sums = (q @ k.transpose(2, 3)).tril() @ v
            if past.state is not None:
                sums = sums + q @ past.state
            parts.append(sums[..., :-1] / sums[..., -1:])
            own = k.transpose(2, 3) @ v
            past.state = own if past.state is None else past.state + own
        mixed_BHTK = torch.cat(parts, 2)
        return self.out(mixed_BHTK.transpose(1, 2).reshape(batch, time, width))

    def empty_past(self) -> "LinearAttentionState":
        return LinearAttentionState()


class LinearAttentionState:
    """The recurrent state: S_t and z_t side by side (batch, head, head width, head width + 1), initially None."""

    state: Tensor | None = None


def positive(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())
