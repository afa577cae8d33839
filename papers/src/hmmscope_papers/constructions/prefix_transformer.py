"""The Transformer of [Limits] Theorems 5.2 and 5.3."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import nn

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.models.base import ModelIO
from hmmscope.schema import require
from hmmscope_papers.constructions.constructed import Constructed, check_tokens, frozen
from hmmscope_papers.constructions.driven import DrivenSystem
from hmmscope_papers.constructions.prefix_parts import OffsetHead, PrefixLayer, Product, ProductMLP
from hmmscope_papers.constructions.residual import LayerNote, Subspaces


class PrefixTransformer(Constructed):
    """Transformer of matrix products: after layer l, position i holds the product of the last 2^l tokens' matrices.

    Args:
        system: One matrix per symbol, and the initial vector.
        length: Largest number of symbols T, without the placeholder.
        num_outputs: Number of outputs.
        product: "gelu", "relu01" or "bilinear", see `ProductMLP`.
        gain: Attention gain γ.
        gelu_scale: Number λ by which `gelu_product` divides its factors.
        slots: Names of the subspaces that hold the matrix products: before layer 1, then after each layer.
        sizes: Sizes of the first subspaces of the stream, by name; "sin", "cos" and "one" follow.
        dtype: Number type of the weights.

    Attributes:
        encoder: Map from [one-hot(token), sin, cos, 1] to the stream.
        decoder: Map from the stream to the matrix product times the initial vector.
        product, gain, gelu_scale, slots: Arguments.
    """

    #: Letters for window products and token matrices in notes.
    letters: ClassVar[tuple[str, str]]

    def __init__(
        self,
        system: DrivenSystem,
        length: int,
        *,
        num_outputs: int,
        product: Product,
        gain: float,
        gelu_scale: float,
        slots: Sequence[str],
        sizes: Mapping[str, int],
        dtype: torch.dtype,
    ) -> None:
        n, num_tokens, num_layers = system.num_states, system.num_symbols + 1, len(slots) - 1
        ports = ModelIO(num_outputs=num_outputs, vocab_size=num_tokens, max_length=length + 1)
        super().__init__(ports, num_layers=num_layers)
        self.system, self.length, self.product = system, length, product
        self.gain, self.gelu_scale, self.slots = gain, gelu_scale, list(slots)
        self.subspaces = Subspaces({**sizes, "sin": 1, "cos": 1, "one": 1})
        encoder = torch.zeros(num_tokens + 3, self.subspaces.width, dtype=torch.float64)
        encoder[:num_tokens, self.subspaces[slots[0]]] = system.with_identity.flatten(1)
        if "placeholder" in self.subspaces:
            encoder[num_tokens - 1, self.subspaces["placeholder"]] = 1.0
        encoder[num_tokens:, self.subspaces.width - 3 :] = torch.eye(3, dtype=torch.float64)
        self.encoder = frozen(encoder, dtype)
        decoder = torch.zeros(self.subspaces.width, n, dtype=torch.float64)
        decoder[self.subspaces[slots[-1]]] = torch.kron(torch.eye(n, dtype=torch.float64), system.initial_S[:, None])
        self.decoder = frozen(decoder, dtype)
        blocks = []
        for layer, (now, then) in enumerate(pairwise(slots)):
            head = OffsetHead(
                self.subspaces, offset=2**layer, length=length, gain=gain, read=now, write="previous", dtype=dtype
            )
            mlp = ProductMLP(
                self.subspaces, n, product=product, scale=gelu_scale, current=now, target=then, dtype=dtype
            )
            blocks.append(PrefixLayer(head, mlp))
        self.blocks = nn.ModuleList(blocks)

    @property
    def layers(self) -> list[PrefixLayer]:
        return [block for block in self.blocks if isinstance(block, PrefixLayer)]

    @property
    def num_neurons(self) -> int:
        return self.layers[0].mlp.num_neurons if self.blocks else 0

    def stream(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        return self.through(self.embed(tokens, positions))

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return [one-hot(token), sin(πt/4T), cos(πt/4T), 1] @ encoder."""
        check_tokens(tokens, self.vocab_size)
        placeholder = self.vocab_size - 1
        first = bool((tokens[:, :1] == placeholder).all())
        require(first, "tokens", f"must begin with the placeholder, token {placeholder}", tokens[:, :1].flatten())
        last = tokens.shape[1] - 1 if positions is None else int(positions.max())
        require(last <= self.length, "tokens", f"must have a last position of at most {self.length} (length)", last)
        rows = self.vocab_size
        return self.encoder[:rows][tokens] + self.features(tokens, positions) @ self.encoder[rows:]

    def features(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        angle = positions.to(torch.float64) * (math.pi / (4 * self.length))
        return torch.stack([angle.sin(), angle.cos(), torch.ones_like(angle)], -1).to(self.encoder.dtype)

    def exact_windows(
        self, tokens: Int64[Tensor, "batch time"], layer: int
    ) -> Float64[Tensor, "batch time state state"]:
        """At each position i, multiply the matrices of tokens max(i - 2^layer + 1, 0) .. i, the latest on the left."""
        windows = self.system.with_identity.to(tokens.device)[tokens]
        for step in range(layer):
            windows = windows @ windows[:, self._sources(tokens, step)]
        return windows

    def _sources(self, tokens: Tensor, step: int) -> Tensor:
        return (torch.arange(tokens.shape[1], device=tokens.device) - 2**step).clamp_min(0)

    def deviation(
        self, windows: Float64[Tensor, "batch time state state"], exact: Float64[Tensor, "batch time state state"]
    ) -> float:
        return float((windows - exact).abs().max())

    def notes(self, tokens: Int64[Tensor, "batch time"] | None = None) -> list[LayerNote]:
        window, matrix = self.letters
        notes: list[LayerNote] = []
        with torch.no_grad():
            x_BTD = None if tokens is None else self.embed(tokens)

            def add(layer: int, stage: str, reads: tuple[str, ...], writes: str, equation: str, doublings: int) -> None:
                error = None
                if x_BTD is not None and tokens is not None:
                    exact = self.exact_windows(tokens, doublings)
                    exact = exact[:, self._sources(tokens, doublings)] if stage == "gather" else exact
                    found = x_BTD[..., self.subspaces[writes]].double().view(exact.shape)
                    error = self.deviation(found, exact)
                note = LayerNote(
                    layer=layer, stage=stage, reads=reads, writes=(writes,), equation=equation, error=error
                )
                notes.append(note)

            add(0, "embed", ("token",), self.slots[0], f"{window}_0[i] = {matrix} of token i", 0)
            for layer, block in enumerate(self.layers):
                now, then, offset = self.slots[layer], self.slots[layer + 1], 2**layer
                x_BTD = None if x_BTD is None else x_BTD + block.attention(x_BTD)
                text = f"previous[i] = {window}_{layer}[max(i - {offset}, 0)], score_ij: γ² cos(π(j - i + {offset})/4T)"
                add(layer + 1, "gather", ("sin", "cos", now), "previous", text, layer)
                x_BTD = None if x_BTD is None else x_BTD + block.mlp(x_BTD)
                change = f"{now} + {now} (previous - I)" if now == then else f"{now} previous; {now} <- 0"
                text = f"{then} <- {window}_{layer + 1}, by {self.product}: {change}; previous <- 0"
                add(layer + 1, "multiply", ("previous", now, "one"), then, text, layer + 1)
        return notes
