"""The Transformer decoder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from hmmscope import registry
from hmmscope.axes import Cache, Feedback, Float, Inputs, Int64, Positions, Tensor
from hmmscope.errors import InputError
from hmmscope.models.attention import Attention, RotaryTable, Rotation, rotation_dtype
from hmmscope.models.base import Cost, Dropout, EncodedModel, HookPoint, Mixer, ModelIO, check_sizes, initialise
from hmmscope.models.blocked import MAX_BLOCKED_LENGTH, num_blocks
from hmmscope.schema import require


@registry.model("decoder")
@dataclass(frozen=True, kw_only=True)
class DecoderSpec:
    """A GPT-style Transformer decoder.

    x_0 = embedding(inputs) + linear(input_features(position)) + position vector;
    x <- x + dropout(attention(norm(x)));  x <- x + dropout(mlp(norm(x))) in each of `num_layers` blocks;
    outputs = head(norm(x))

    Attributes:
        num_layers: number of blocks.
        num_heads: number of heads in a block.
        width: width of the residual stream; a multiple of num_heads (of 2 * num_heads with rotary positions).
        mlp_ratio: hidden width of the MLP divided by `width`.
        positions: "learned" (needs ``max_length``), "sinusoidal", "rotary" or "none".
        input_features: True adds `input_features` of the position (needs ``max_length``).
        dropout: dropout rate.
        attention_only: True omits the MLPs.
        causal: True masks future positions.
        norm: "pre" (layer norm before attention and MLP) or "none".
        scale_attention: True divides attention logits by the square root of the head width.
        rotary_base: coordinate pair i of a head rotates by position * rotary_base^(-2i/head width).

    Source: [Limits] §2.2, A.1, C.1, which do not state MLP width, dropout sites and attention scaling. The registered
    model "decoder-paper" has the paper's size.
    """

    num_layers: int = 2
    num_heads: int = 4
    width: int = 64
    mlp_ratio: int = 4
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    input_features: bool = True
    dropout: float = 0.1
    attention_only: bool = False
    causal: bool = True
    norm: Literal["pre", "none"] = "pre"
    scale_attention: bool = True
    rotary_base: float = 10000.0

    def __post_init__(self) -> None:
        check_sizes(self, "num_layers", "num_heads", "width", "mlp_ratio")
        pairs = 2 if self.positions == "rotary" else 1
        rule = f"must be a multiple of {'2 * ' * (pairs == 2)}num_heads = {pairs * self.num_heads}"
        require(self.width % (pairs * self.num_heads) == 0, "width", rule, self.width)
        even = self.positions != "sinusoidal" or self.width % 2 == 0
        require(even, "width", "must be even with sinusoidal positions", self.width)
        require(0 <= self.dropout < 1, "dropout", "must be in [0, 1)", self.dropout)
        require(self.rotary_base > 0, "rotary_base", "must be positive", self.rotary_base)

    def build(self, model_io: ModelIO, generator: torch.Generator) -> "Decoder":
        return Decoder(self, model_io, generator)

    def cost(self, model_io: ModelIO, columns: int, *, device: str = "cpu", mixing: "Mixing | None" = None) -> Cost:
        """Compute the cost on samples of `columns` positions.

        `mixing` replaces the FLOPs and stored activations of attention, per position and layer.
        """
        d, normed, mlp = self.width, self.norm == "pre", not self.attention_only
        hidden, norm, dropped = self.mlp_ratio * d, 2 * d * normed, self.dropout > 0
        flops, kept = mixing or self._attention(columns, device)
        each = self.num_layers * (8 * d**2 + 4 * d * hidden * mlp + flops)
        read = 2 * d * (3 * self.input_features + model_io.feedback_width + (model_io.input_width or 0))
        block = 4 * d**2 + 4 * d + norm + (2 * d * hidden + hidden + d + norm) * mlp
        reads = (model_io.read_width + (model_io.input_width is not None) + model_io.feedback_width) * d
        placed = 3 * d * self.input_features + (model_io.max_length or 0) * d * (self.positions == "learned")
        stays = d + normed * d + kept + (d + normed * d + 2 * hidden + d * dropped) * mlp + d * dropped
        ends = d * (1 + normed + dropped) + 3 * model_io.num_outputs
        return Cost(
            parameters=self.num_layers * block + reads + placed + norm + (d + 1) * model_io.num_outputs,
            flops=3.0 * columns * (each + read + 2 * d * model_io.num_outputs),
            kept=round(columns * (self.num_layers * stays + ends)),
        )

    def _attention(self, columns: int, device: str) -> "Mixing":
        flops = 4.0 * columns * self.width * (0.5 if self.causal else 1.0)
        rotary = self.positions == "rotary"
        if device == "cpu" and self.causal and rotary and columns <= MAX_BLOCKED_LENGTH:
            blocks = num_blocks(columns)
            return flops, 4 * self.width + self.num_heads * columns * (blocks + 1) / (2 * blocks)
        return flops, (6 if rotary else 4) * self.width


registry.named_size(
    "decoder-paper",
    "decoder",
    "decoder at the size of [Limits] App. C.1: 4 layers, 8 heads, width 512; 13 million parameters",
    num_layers=4,
    num_heads=8,
    width=512,
)


@registry.model("roformer")
@dataclass(frozen=True, kw_only=True)
class RoFormerSpec:
    """A RoFormer-style decoder: `DecoderSpec` with rotary positions, no input features and no dropout.

    Attributes:
        num_layers: number of blocks.
        num_heads: number of heads in a block.
        width: width of the residual stream; a multiple of 2 * num_heads.
        mlp_ratio: hidden width of the MLP divided by `width`.
        rotary_base: base of the rotation frequencies.

    Source: [MultiTask] §5, which does not state norm, MLP, rotary base and dropout. The registered model
    "roformer-paper" has the paper's size.
    """

    num_layers: int = 2
    num_heads: int = 4
    width: int = 64
    mlp_ratio: int = 4
    rotary_base: float = 10000.0

    def __post_init__(self) -> None:
        check_sizes(self, "num_layers", "num_heads", "width", "mlp_ratio")
        rule = f"must be a multiple of 2 * num_heads = {2 * self.num_heads}"
        require(self.width % (2 * self.num_heads) == 0, "width", rule, self.width)
        require(self.rotary_base > 0, "rotary_base", "must be positive", self.rotary_base)

    @property
    def decoder(self) -> DecoderSpec:
        return DecoderSpec(
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            width=self.width,
            mlp_ratio=self.mlp_ratio,
            positions="rotary",
            input_features=False,
            dropout=0.0,
            rotary_base=self.rotary_base,
        )

    def build(self, model_io: ModelIO, generator: torch.Generator) -> "Decoder":
        return Decoder(self.decoder, model_io, generator)

    def cost(self, model_io: ModelIO, columns: int, *, device: str = "cpu") -> Cost:
        return self.decoder.cost(model_io, columns, device=device)


registry.named_size(
    "roformer-paper",
    "roformer",
    "roformer at the size of [MultiTask] §5: 16 layers, 16 heads, width 1024; 201 million parameters",
    num_layers=16,
    num_heads=16,
    width=1024,
)


#: Operations and stored activations of a mixer, for each position and layer.
Mixing = tuple[float, int | float]


class Decoder(EncodedModel):
    """The decoder of `DecoderSpec`; hook points: ``residual.<layer>``, ``blocks.<layer>.attention.{logits,pattern}``.

    Args:
        spec: the architecture.
        model_io: input and output sizes.
        mixer: factory of the module that mixes positions in a block.

    Raises:
        InputError: `max_length` is required but missing.
    """

    def __init__(
        self, spec: DecoderSpec, model_io: ModelIO, generator: torch.Generator, mixer: Callable[[], Mixer] | None = None
    ) -> None:
        super().__init__(model_io, spec.width)
        self.causal, self.sinusoidal = spec.causal, spec.positions == "sinusoidal"
        learned = spec.positions == "learned"
        for needed, what in ((learned, "learned positions"), (spec.input_features, "input features")):
            if needed and model_io.max_length is None:
                raise InputError(f"max_length: {what} need the longest input length; pass max_length")
        if spec.input_features:
            rule = "must be at least 2 with input features"
            require(
                model_io.max_length is not None and model_io.max_length >= 2, "max_length", rule, model_io.max_length
            )
        self.features = nn.Linear(3, spec.width, bias=False) if spec.input_features else None
        self.positions = nn.Parameter(torch.empty(model_io.max_length or 0, spec.width)) if learned else None
        self.rotary = (
            RotaryTable(spec.width // spec.num_heads, spec.rotary_base) if spec.positions == "rotary" else None
        )
        make = mixer or (lambda: Attention(spec.width, spec.num_heads, causal=spec.causal, scaled=spec.scale_attention))
        self.blocks = nn.ModuleList(Block(spec, make()) for _ in range(spec.num_layers))
        self.residual = nn.ModuleList(HookPoint() for _ in range(spec.num_layers + 1))
        self.norm = _norm(spec)
        self.head = nn.Linear(spec.width, model_io.num_outputs)
        initialise(self, generator, num_residual_writes=(1 if spec.attention_only else 2) * spec.num_layers)
        if self.positions is not None:
            nn.init.normal_(self.positions, 0.0, 0.02, generator=generator)
        self.dropout = Dropout(spec.dropout, generator)
        self._tables: dict[tuple, Tensor] = {}

    def forward(
        self, inputs: Inputs, positions: Positions = None, *, feedback: Feedback = None, cache: Cache = None
    ) -> Float[Tensor, "batch time output"]:
        """Compute the outputs; see `SequenceModel.forward`.

        Raises:
            InputError: inputs do not fit `model_io`, a position is >= `max_length`, or `cache` is used without causal
                attention.
        """
        x_BTD = self.encode(inputs, feedback)
        begin, pasts = self._recall(cache)
        rotation = self._rotation(positions, begin, x_BTD)
        x_BTD = self.residual[0](self.dropout(self._placed(x_BTD, positions, begin)))
        for block, tap, past in zip(self.blocks, self.residual[1:], pasts, strict=True):
            x_BTD = tap(block(x_BTD, rotation, past, self.dropout))
        if cache is not None:
            cache["length"] = begin + inputs.shape[1]
        return self.head(self.norm(x_BTD))

    def attend_at(
        self, attention: nn.Module, x_BTD: Float[Tensor, "batch time width"], positions: Int64[Tensor, "*batch time"]
    ) -> Float[Tensor, "batch time width"]:
        if self.rotary is None:
            raise InputError(
                "positions: must be rotary to be permuted in one layer; other positions enter only the first layer"
            )
        moved: Tensor = attention(x_BTD, self.rotary.at(positions, rotation_dtype(x_BTD)), None)
        return moved

    def _recall(self, cache: dict[str, Any] | None) -> tuple[int, list[Any]]:
        if cache is None:
            return 0, [None] * len(self.blocks)
        if not self.causal:
            raise InputError("cache: needs causal attention; with causal = false positions depend on later positions")
        if "blocks" not in cache:
            cache["blocks"] = [module.empty_past() for module in self.modules() if isinstance(module, Mixer)]
        return cache.get("length", 0), cache["blocks"]

    def _rotation(self, positions: Tensor | None, begin: int, x_BTD: Tensor) -> Rotation | None:
        if self.rotary is None:
            return None
        dtype = rotation_dtype(x_BTD)
        if positions is not None:
            return self.rotary.at(positions, dtype)
        return self.rotary.first(begin, begin + x_BTD.shape[1], x_BTD, dtype)

    def _placed(self, x_BTD: Tensor, positions: Tensor | None, begin: int) -> Tensor:
        if self.features is None and self.positions is None and not self.sinusoidal:
            return x_BTD
        end = begin + x_BTD.shape[1]
        last = end - 1 if positions is None else int(positions.max()) if positions.numel() else -1
        if self.features is not None or self.positions is not None:
            longest = self.model_io.max_length
            assert longest is not None
            if last >= longest:
                raise InputError(
                    f"max_length: the model reads positions 0 to {longest - 1}, got position {last}; "
                    f"build it with max_length={last + 1} or pass shorter inputs"
                )
        where = slice(begin, end) if positions is None else positions
        if self.features is not None:
            x_BTD = x_BTD + self.features(self._fixed(input_features, self.model_io.max_length or 0, where, x_BTD))
        if self.positions is not None:
            x_BTD = x_BTD + self.positions[where]
        if self.sinusoidal:
            x_BTD = x_BTD + self._fixed(sinusoids, x_BTD.shape[2], where, x_BTD)
        return x_BTD

    def _fixed(self, make: Callable[..., Tensor], size: int, where: slice | Tensor, x_BTD: Tensor) -> Tensor:
        if isinstance(where, Tensor):
            return make(where, size, x_BTD.dtype)
        key = (make, x_BTD.dtype, x_BTD.device)
        if key not in self._tables or len(self._tables[key]) < where.stop:
            with torch.inference_mode(False):  # cached tensors must also work in training
                length = max(where.stop, 64) if key not in self._tables else 2 * where.stop
                self._tables[key] = make(torch.arange(length, device=x_BTD.device), size, x_BTD.dtype)
        return self._tables[key][where]


class Block(nn.Module):
    """Attention, then an MLP; both outputs are added to the residual stream."""

    def __init__(self, spec: DecoderSpec, attention: Mixer) -> None:
        super().__init__()
        self.attention_norm = _norm(spec)
        self.attention = attention
        self.mlp_norm = None if spec.attention_only else _norm(spec)
        self.mlp = None if spec.attention_only else MLP(spec.width, spec.mlp_ratio * spec.width)

    def forward(self, x_BTD: Tensor, rotation: Rotation | None, past: Any, dropout: nn.Module) -> Tensor:
        x_BTD = x_BTD + dropout(self.attention(self.attention_norm(x_BTD), rotation, past))
        if self.mlp is None or self.mlp_norm is None:
            return x_BTD
        return x_BTD + dropout(self.mlp(self.mlp_norm(x_BTD)))


class MLP(nn.Module):
    """An MLP with exact GELU: out(gelu(hidden(x)))."""

    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, hidden_width)
        self.out = nn.Linear(hidden_width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.out(F.gelu(self.hidden(x_BTD)))


def input_features(
    positions: Int64[Tensor, "*batch time"], max_length: int, dtype: torch.dtype
) -> Float[Tensor, "*batch time 3"]:
    """Return [sin(πt/4T), cos(πt/4T), 1] for position t, with T = max_length - 1.

    Source: [Limits] §2.2, Appendix C and the proofs of Appendix E.
    """
    angles = positions.double() * (torch.pi / (4 * (max_length - 1)))
    return torch.stack([angles.sin(), angles.cos(), torch.ones_like(angles)], -1).to(dtype)


def sinusoids(
    positions: Int64[Tensor, "*batch time"], width: int, dtype: torch.dtype
) -> Float[Tensor, "*batch time width"]:
    """Return sines, then cosines, of position * 10000^(-2i / width) for 0 <= i < width / 2 (Vaswani et al. 2017)."""
    rates = 10000.0 ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width)
    angles = positions[..., None].double() * rates
    return torch.cat([angles.sin(), angles.cos()], -1).to(dtype)


def _norm(spec: DecoderSpec) -> nn.Module:
    return nn.LayerNorm(spec.width) if spec.norm == "pre" else nn.Identity()
