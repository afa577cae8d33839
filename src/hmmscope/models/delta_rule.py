"""Decoders with the gated delta rule instead of attention."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from hmmscope import registry
from hmmscope.axes import Tensor
from hmmscope.models.base import Cost, Mixer, ModelIO
from hmmscope.models.decoder import Decoder, DecoderSpec
from hmmscope.models.linear_attention import CHUNK, decoder_without_attention

#: Bias of the gate: before training a head forgets about 1/150 of its state at each position.
OPEN = 5.0


@registry.model("delta-rule")
@dataclass(frozen=True, kw_only=True)
class DeltaRuleSpec:
    """Decoder with the gated delta rule instead of attention.

    mixed_t = S_t^T q_t    with S_t = a_t (1 - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T

    Queries and keys have norm one. a_t and b_t are sigmoids of affine maps of the block's input; b_t is doubled if
    `negative` is true. The other parts are as in `DecoderSpec`, without position embeddings.

    Attributes:
        num_layers: number of blocks.
        num_heads: number of heads in a block.
        width: width of the residual stream; a multiple of num_heads.
        mlp_ratio: hidden width of the MLP divided by `width`.
        gated: True learns a_t, otherwise a_t = 1.
        negative: True allows eigenvalues a_t (1 - b_t) of the transition S_{t-1} -> S_t in (-1, 1) instead of (0, 1).

    Source: Yang et al. 2024 (arXiv:2406.06484, 2412.06464); for `negative` Grazzi et al. 2025 (arXiv:2411.12537).
    """

    num_layers: int = 4
    num_heads: int = 4
    width: int = 128
    mlp_ratio: int = 4
    gated: bool = True
    negative: bool = False

    def __post_init__(self) -> None:
        _ = self.decoder  # checks the values

    @property
    def decoder(self) -> DecoderSpec:
        return decoder_without_attention(self, "none")

    def build(self, model_io: ModelIO, generator: torch.Generator) -> Decoder:
        return Decoder(self.decoder, model_io, generator, lambda: DeltaRule(self))

    def cost(self, model_io: ModelIO, columns: int, *, device: str = "cpu") -> Cost:
        chunk, k, gates = min(CHUNK, columns), self.width // self.num_heads, self.num_heads * (1 + self.gated)
        carried = 1 - chunk / columns  # fraction of positions with an earlier state
        flops = self.num_heads * (7.0 * chunk * k + 6.0 * k * k * carried) + 2 * gates * self.width
        kept = (10 + self.gated + (3 + 2 * self.gated) * carried) * self.width
        kept += self.num_heads * (chunk * (6 if self.gated else 3) + 10)
        found = self.decoder.cost(model_io, columns, device=device, mixing=(flops, kept))
        return replace(found, parameters=found.parameters + self.num_layers * gates * (self.width + 1))


class DeltaRule(Mixer):
    """Mixer of `DeltaRuleSpec`, computed in chunks.

    Let S be the state before the chunk, A_t the product of the chunk's a up to a_t, and A_tj = a_{j+1} ··· a_t. The
    vectors u_t = b_t (v_t - a_t S_{t-1}^T k_t) of the chunk solve a triangular system:

        u_t = b_t (v_t - A_t S^T k_t) - b_t Σ_{j<t} A_tj (k_t·k_j) u_j
        S_t = A_t S + Σ_{j≤t} A_tj k_j u_j^T
    """

    def __init__(self, spec: DeltaRuleSpec, chunk: int = CHUNK) -> None:
        super().__init__()
        self.num_heads, self.chunk, self.largest = spec.num_heads, chunk, 2.0 if spec.negative else 1.0
        self.qkv = nn.Linear(spec.width, 3 * spec.width)
        self.write = nn.Linear(spec.width, spec.num_heads)
        self.keep = nn.Linear(spec.width, spec.num_heads) if spec.gated else None
        self.out = nn.Linear(spec.width, spec.width)

    def forward(self, x_BTD: Tensor, rotation: None = None, past: "Memory | None" = None) -> Tensor:
        batch, time, width = x_BTD.shape
        qkv = self.qkv(x_BTD).view(batch, time, 3, self.num_heads, width // self.num_heads)
        q_BHTK, k_BHTK, v_BHTK = qkv.permute(2, 0, 3, 1, 4)
        q_BHTK, k_BHTK = F.normalize(q_BHTK, dim=-1), F.normalize(k_BHTK, dim=-1)
        b_BHT1 = self.largest * self.write(x_BTD).sigmoid().transpose(1, 2)[..., None]
        log_a_BHT = None if self.keep is None else F.logsigmoid(self.keep(x_BTD) + OPEN).transpose(1, 2)
        past = Memory() if past is None else past
        parts = []
        for begin in range(0, time, self.chunk):
            own = slice(begin, begin + self.chunk)
            log_a = None if log_a_BHT is None else log_a_BHT[:, :, own]
            parts.append(
                past.through(q_BHTK[:, :, own], k_BHTK[:, :, own], v_BHTK[:, :, own], b_BHT1[:, :, own], log_a)
            )
        mixed_BHTK = torch.cat(parts, 2)
        return self.out(mixed_BHTK.transpose(1, 2).reshape(batch, time, width))

    def empty_past(self) -> "Memory":
        return Memory()


class Memory:
    """The recurrent state S (batch, head, key, value), None before the first chunk."""

    state: Tensor | None = None

    def through(self, q: Tensor, k: Tensor, v: Tensor, b: Tensor, log_a: Tensor | None) -> Tensor:
        keys, looks, late = b * (k @ k.transpose(2, 3)), (q @ k.transpose(2, 3)).tril(), None
        since, wanted = None, b * v
        if log_a is not None:
            logs = log_a.cumsum(2)
            since = logs[..., None].exp()
            future = torch.ones(logs.shape[2], logs.shape[2], dtype=torch.bool, device=logs.device).triu(1)
            between = (logs[..., :, None] - logs[..., None, :]).masked_fill(future, 0.0).exp()
            keys, looks = keys * between, looks * between
            late = (logs[..., -1:] - logs)[..., None].exp()
        if self.state is not None:
            wanted = wanted - b * _times(since, k @ self.state)
        u = torch.linalg.solve_triangular(keys.tril(-1), wanted, upper=False, unitriangular=True)
        mixed = looks @ u
        added = _times(late, k).transpose(2, 3) @ u
        if self.state is not None:
            mixed = mixed + _times(since, q @ self.state)
            added = added + _times(None if since is None else since[:, :, -1:], self.state)
        self.state = added
        return mixed


def _times(factor: Tensor | None, x: Tensor) -> Tensor:
    return x if factor is None else factor * x
