"""RoFormer: a decoder with rotary positions (Su et al. 2021), pre-LN, GELU MLP."""

from dataclasses import dataclass

import torch

from hmmscope import registry
from hmmscope.models.base import Cost, Ports, check_sizes
from hmmscope.models.decoder import Decoder, DecoderSpec
from hmmscope.schema import require


@registry.model("roformer")
@dataclass(frozen=True, kw_only=True)
class RoFormerSpec:
    """RoFormer-style decoder: `DecoderSpec` with rotary positions, no input features and no dropout.

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

    Source: [MultiTask] §5 (RoFormer; its size, 16 layers, 16 heads, width 1024, has the name "roformer-paper"). Not stated
    there: pre-LN, GELU MLP of four times the width, rotary base 10000, no dropout.
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
        """The same architecture as options of the general decoder."""
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

    def build(self, ports: Ports, generator: torch.Generator) -> Decoder:
        return Decoder(self.decoder, ports, generator)

    def cost(self, ports: Ports, columns: int, *, device: str = "cpu") -> Cost:
        """That of the decoder."""
        return self.decoder.cost(ports, columns, device=device)


registry.named_size(
    "roformer-paper",
    "roformer",
    "roformer at the size of [MultiTask] §5: 16 layers, 16 heads, width 1024; 201 million parameters",
    num_layers=16,
    num_heads=16,
    width=1024,
)
