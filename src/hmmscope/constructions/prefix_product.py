"""[Limits] Theorem 5.2: a Transformer of depth ceil(log2 T) that multiplies all matrices up to each position."""

import math
from typing import Any, Literal

import torch
from torch import nn

from hmmscope.axes import Float, Float64, Int64, Tensor
from hmmscope.constructions.driven import DrivenSystem, check_tokens, driven_system, only_tokens
from hmmscope.constructions.prefix_parts import (
    PRODUCTS,
    OffsetHead,
    PrefixLayer,
    Product,
    ProductMLP,
    best_gelu_scale,
    error_bounds,
    forward_bytes,
    frozen,
    gain_of,
    gelu_error,
    layers_needed,
    paper_eta,
    paper_gelu_scale,
)
from hmmscope.constructions.residual import LayerNote, Subspaces, explanation
from hmmscope.machine import require_memory
from hmmscope.models.base import Ports, SequenceModel, Tap
from hmmscope.schema import require, unknown_name


class PrefixProduct(SequenceModel):
    """The Transformer of Theorem 5.2; see `limits_theorem5_2`.

    Attributes:
        system: what it computes.
        length: T; tokens are at most T + 1, the placeholder first.
        product: the gadget.
        gain: γ of the attention.
        eta: largest l1 error of a row of attention, in exact arithmetic.
        gelu_scale: λ of the gadget.
        subspaces: layout of the stream.
    """

    outputs = "law"
    num_tokens: int

    def __init__(
        self,
        system: DrivenSystem,
        length: int,
        *,
        product: Product,
        gain: float,
        eta: float,
        gelu_scale: float,
        num_layers: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        n, m = system.num_states, system.num_symbols
        self.system, self.length, self.product, self.gain, self.eta = system, length, product, gain, eta
        self.gelu_scale = gelu_scale
        self.ports = Ports(num_outputs=n, num_tokens=m + 1, max_length=length + 1)
        self.num_symbols, self.num_tokens = n, m + 1
        self.subspaces = Subspaces({"previous": n * n, "empty": 3, "current": n * n, "sin": 1, "cos": 1, "one": 1})
        encoder = torch.zeros(m + 4, self.subspaces.width, dtype=torch.float64)
        encoder[: m + 1, self.subspaces["current"]] = system.with_identity.flatten(1)
        encoder[m + 1 :, self.subspaces.width - 3 :] = torch.eye(3, dtype=torch.float64)
        self.encoder = frozen(encoder, dtype)
        decoder = torch.zeros(self.subspaces.width, n, dtype=torch.float64)
        decoder[self.subspaces["current"]] = torch.kron(torch.eye(n, dtype=torch.float64), system.initial_S[:, None])
        self.decoder = frozen(decoder, dtype)
        self.blocks = nn.ModuleList(
            PrefixLayer(
                OffsetHead(
                    self.subspaces,
                    offset=2**layer,
                    length=length,
                    gain=gain,
                    read="current",
                    write="previous",
                    dtype=dtype,
                ),
                ProductMLP(self.subspaces, n, product=product, scale=gelu_scale, dtype=dtype),
            )
            for layer in range(num_layers)
        )
        self.residual = nn.ModuleList(Tap() for _ in range(num_layers + 1))

    def forward(
        self,
        inputs: Int64[Tensor, "batch time"],
        positions: Int64[Tensor, "*batch time"] | None = None,
        *,
        feedback: Tensor | None = None,
        cache: dict[str, Any] | None = None,
    ) -> Float[Tensor, "batch time state"]:
        """The vector b_t after t symbols, in column t; the placeholder stands in column 0.

        Raises:
            InputError: a token outside the vocabulary, a first token that is not the placeholder, more than T + 1 columns
                or a position above T; feedback or a cache.
        """
        only_tokens(feedback, cache)
        x_BTD = self.residual[0](self.embed(inputs, positions))
        for block, tap in zip(self.blocks, self.residual[1:], strict=True):
            x_BTD = tap(block(x_BTD))
        return x_BTD @ self.decoder

    def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """The stream before the first layer: [one-hot(token), sin(πt/4T), cos(πt/4T), 1] @ encoder."""
        check_tokens(tokens, self.num_tokens)
        placeholder = self.num_tokens - 1
        first = bool((tokens[:, :1] == placeholder).all())
        require(first, "tokens", f"must begin with the placeholder, token {placeholder}", tokens[:, :1].flatten())
        last = tokens.shape[1] - 1 if positions is None else int(positions.max())
        require(last <= self.length, "tokens", f"must end at position {self.length} or before (length)", last)
        rows = self.num_tokens
        x_BTD = self.encoder[:rows][tokens]
        return x_BTD + self.features(tokens, positions) @ self.encoder[rows:]

    def features(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """sin(πt/4T), cos(πt/4T) and 1 at each position (time, 3) or (batch, time, 3)."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        angle = positions.to(torch.float64) * (math.pi / (4 * self.length))
        return torch.stack([angle.sin(), angle.cos(), torch.ones_like(angle)], -1).to(self.encoder.dtype)

    def exact_windows(
        self, tokens: Int64[Tensor, "batch time"], layer: int
    ) -> Float64[Tensor, "batch time state state"]:
        """Λ_{i,layer}: the product of the matrices of tokens max(i - 2^layer + 1, 0) .. i, the latest on the left."""
        windows = self.system.with_identity.to(tokens.device)[tokens]
        for step in range(layer):
            windows = windows @ windows[:, self._sources(tokens, step)]
        return windows

    def _sources(self, tokens: Tensor, step: int) -> Tensor:
        """Where position i looks in layer step + 1: i - 2^step, or 0."""
        return (torch.arange(tokens.shape[1], device=tokens.device) - 2**step).clamp_min(0)

    def error_bounds(self) -> list[float]:
        """The proof's bound on the error of the stream after each layer, without rounding; see `error_bounds`."""
        gadget = gelu_error(self.gelu_scale) if self.product == "gelu" else 0.0
        return error_bounds(self.system, len(self.blocks), eta=self.eta, gadget_error=gadget)

    @property
    def layers(self) -> list[PrefixLayer]:
        """The blocks, by their type."""
        return [block for block in self.blocks if isinstance(block, PrefixLayer)]

    def largest_weight(self) -> float:
        """Largest absolute entry of all matrices."""
        return max(float(weight.abs().max()) for weight in self.parameters())

    def notes(self, tokens: Int64[Tensor, "batch time"] | None = None) -> list[LayerNote]:
        """What each layer does; with tokens, how far what it writes is from the exact value."""
        with torch.no_grad():
            x_BTD = None if tokens is None else self.embed(tokens)
            notes = [
                self._note(0, "embed", ("token",), "current", "Λ_0 at i = A of token i", x_BTD, tokens, None),
            ]
            for number, block in enumerate(self.layers, 1):
                offset = 2 ** (number - 1)
                x_BTD = None if x_BTD is None else x_BTD + block.attention(x_BTD)
                text = f"previous at i = Λ_{number - 1} at max(i - {offset}, 0), by γ² cos(π(j - i + {offset})/4T)"
                reads = ("sin", "cos", "current")
                notes.append(self._note(number, "gather", reads, "previous", text, x_BTD, tokens, offset))
                x_BTD = None if x_BTD is None else x_BTD + block.mlp(x_BTD)
                text = f"current = Λ_{number} = current + current (previous - I) by {self.product}; previous = 0"
                reads = ("previous", "current", "one")
                notes.append(self._note(number, "multiply", reads, "current", text, x_BTD, tokens, None))
        return notes

    def _note(
        self,
        layer: int,
        stage: str,
        reads: tuple[str, ...],
        writes: str,
        equation: str,
        x_BTD: Tensor | None,
        tokens: Tensor | None,
        offset: int | None,
    ) -> LayerNote:
        error = None
        if x_BTD is not None and tokens is not None:
            exact = self.exact_windows(tokens, layer if offset is None else layer - 1)
            exact = exact if offset is None else exact[:, self._sources(tokens, layer - 1)]
            error = float((x_BTD[..., self.subspaces[writes]].double() - exact.flatten(2)).abs().max())
        return LayerNote(layer=layer, stage=stage, reads=reads, writes=(writes,), equation=equation, error=error)

    def explain(self, tokens: Int64[Tensor, "batch time"] | None = None) -> str:
        """Layout and layers as a text; with tokens, with the measured errors."""
        width = self.layers[0].mlp.num_neurons if self.blocks else 0
        title = (
            f"[Limits] Theorem 5.2: {len(self.blocks)} layers for T = {self.length}, n = {self.system.num_states}, "
            f"m = {self.system.num_symbols}, {width} hidden neurons, γ = {self.gain:.6g}, largest weight "
            f"{self.largest_weight():.3g}"
        )
        return explanation(title, self.subspaces, self.notes(tokens))


def limits_theorem5_2(
    process: object,
    length: int,
    *,
    product: Product = "gelu",
    temperature: Literal["tight", "paper"] | float = "tight",
    eta: float | None = None,
    gelu_scale: Literal["paper"] | float | None = None,
    num_layers: int | None = None,
    initial: object = None,
    dtype: torch.dtype = torch.float64,
) -> PrefixProduct:
    """The Transformer of [Limits] Theorem 5.2, with its weights.

    Tokens are a placeholder (token m) and up to T symbols, as `Sequences(placeholder=True)` lays them out; column t of
    the output is b_t = A_{o_t} ... A_{o_1} b_0. Width 2n² + 6, two heads of which one is silent, 4n³ + 2n² hidden
    neurons, no normalisation, no biases, no scaling of attention. Layer l multiplies the product of the last 2^(l-1)
    tokens with the one that stands 2^(l-1) positions earlier.

    Args:
        process: see `driven_system`; 0/1 maps or orthogonal matrices.
        length: T, at least 1.
        product: "gelu" (Lemma D.1); "relu01", exact, for 0/1 maps only; "bilinear", exact, which no MLP is.
        temperature: γ from the gap of cosines, "tight"; of E.18, "paper"; or γ itself.
        eta: l1 error of attention to which γ is chosen; by default 1e-20 if tight, that of E.18 if "paper".
        gelu_scale: λ; by default the best of the number type, 2^(p/3); "paper" for truncation at most η/n.
        num_layers: ceil(log2 T) unless fewer are asked for.
        initial: b_0.
        dtype: of the weights and the arithmetic.

    Raises:
        InputError: a process that is not of this kind, or a value out of range.
        ResourceError: one sequence of that length does not fit in memory.
    """
    require(isinstance(length, int) and 1 <= length <= 2**20, "length", "must be in [1, 2^20]", length)
    system = driven_system(process, initial)
    if product not in PRODUCTS:
        raise unknown_name("product", product, PRODUCTS)
    require(system.kind != "general", "process", "must have 0/1 maps or orthogonal matrices", process)
    boolean = system.kind in ("permutation", "map")
    require(boolean or product != "relu01", "product", "must be gelu or bilinear unless matrices are 0/1", product)
    needed = layers_needed(length)
    layers = needed if num_layers is None else num_layers
    require(0 <= layers <= needed, "num_layers", f"must be in [0, {needed}] for length {length}", layers)
    if eta is None:
        eta = paper_eta(system.num_states, layers, length) if temperature == "paper" else 1e-20
    require(0 < eta < 1, "eta", "must be in (0, 1)", eta)
    gain = gain_of(temperature, length, eta)
    if gelu_scale is None:
        scale = best_gelu_scale(dtype)
    elif gelu_scale == "paper":
        scale = paper_gelu_scale(system.num_states, eta)
    else:
        scale = float(gelu_scale)
    require(0 < scale < math.inf, "gelu_scale", "must be a positive number", gelu_scale)
    require_memory("length", forward_bytes(length, system.num_states, dtype), "choose a shorter length")
    return PrefixProduct(
        system, length, product=product, gain=gain, eta=eta, gelu_scale=scale, num_layers=layers, dtype=dtype
    )
