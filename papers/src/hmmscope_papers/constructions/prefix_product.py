"""[Limits] Theorem 5.2: a Transformer of depth ceil(log2 T) for prefix products."""

from typing import Any, Literal

import torch

from hmmscope.axes import Float, Int64, Tensor
from hmmscope.schema import require, require_count, require_known, require_real
from hmmscope.system_info import require_memory
from hmmscope_papers.constructions.constructed import only_tokens, require_floats
from hmmscope_papers.constructions.driven import DrivenSystem, driven_system
from hmmscope_papers.constructions.prefix_parts import (
    PRODUCTS,
    Product,
    best_gelu_scale,
    error_bounds,
    forward_bytes,
    gain_of,
    gelu_error,
    layers_needed,
    paper_eta,
    paper_gelu_scale,
)
from hmmscope_papers.constructions.prefix_transformer import PrefixTransformer


class PrefixProduct(PrefixTransformer):
    """The Transformer that `limits_theorem5_2` builds.

    Attributes:
        eta: Largest l1 error of an attention row, in exact arithmetic.
    """

    letters = ("Λ", "A")

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
        n = system.num_states
        super().__init__(
            system,
            length,
            num_outputs=n,
            product=product,
            gain=gain,
            gelu_scale=gelu_scale,
            slots=["current"] * (num_layers + 1),
            sizes={"previous": n * n, "empty": 3, "current": n * n},
            dtype=dtype,
        )
        self.eta = eta

    def forward(
        self,
        inputs: Int64[Tensor, "batch time"],
        positions: Int64[Tensor, "*batch time"] | None = None,
        *,
        feedback: Tensor | None = None,
        cache: dict[str, Any] | None = None,
    ) -> Float[Tensor, "batch time state"]:
        """Return b_t of `limits_theorem5_2` at position t; position 0 is the placeholder.

        Raises:
            InputError: A token or position is out of range, the placeholder is missing, or feedback or cache is passed.
        """
        only_tokens(inputs, feedback, cache)
        return self.stream(inputs, positions) @ self.decoder

    def error_bounds(self) -> list[float]:
        gadget = gelu_error(self.gelu_scale) if self.product == "gelu" else 0.0
        return error_bounds(self.system, len(self.blocks), eta=self.eta, gadget_error=gadget)

    @property
    def title(self) -> str:
        return (
            f"[Limits] Theorem 5.2: {len(self.blocks)} layers for T = {self.length}, n = {self.system.num_states}, "
            f"m = {self.system.num_symbols}, {self.num_neurons} hidden neurons, γ = {self.gain:.6g}, largest weight "
            f"{self.largest_weight():.3g}"
        )


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
    """Build the [Limits] Theorem 5.2 Transformer.

    For m symbols, tokens are a placeholder (token m) and up to T symbols, as in `SequenceLayout(placeholder=True)`.
    Output t is b_t = A_{o_t} b_{t-1}; A_v is the n × n matrix of symbol v. The width is 2n² + 6, with
    4n³ + 2n² hidden neurons per layer for "gelu".

    Args:
        process: 0/1 maps (at most one 1 per column) or orthogonal matrices, see `driven_system`.
        length: Largest number of symbols T.
        product: "gelu" (Lemma D.1); "relu01", exact for 0/1 maps; or "bilinear", exact but not an MLP.
        temperature: Attention gain γ: a number, "tight" (`tight_gain`) or "paper" (`paper_gain`).
        eta: Tolerated attention error, which sets γ (default: 1e-20, or `paper_eta` for "paper").
        gelu_scale: Number λ by which "gelu" divides factors (default: `best_gelu_scale`; "paper": `paper_gelu_scale`).
        num_layers: Number of layers (default: ceil(log2 T)).
        initial: Initial vector b_0.
        dtype: Number type of the weights.

    Raises:
        InputError: The matrices are neither 0/1 maps nor orthogonal, or a value is out of range.
        ResourceError: One sequence exceeds free memory.
    """
    require_count("length", length, most=2**20)
    require_floats(dtype)
    system = driven_system(process, initial)
    require_known("product", product, PRODUCTS)
    require(system.kind != "general", "process", "must have 0/1 maps or orthogonal matrices", process)
    boolean = system.kind in ("permutation", "map")
    require(boolean or product != "relu01", "product", "must be gelu or bilinear unless matrices are 0/1 maps", product)
    needed = layers_needed(length)
    layers = needed if num_layers is None else num_layers
    require_count("num_layers", layers, 0)
    require(layers <= needed, "num_layers", f"must be in [0, {needed}] for length {length}", layers)
    if eta is None:
        eta = paper_eta(system.num_states, layers, length) if temperature == "paper" else 1e-20
    require_real("eta", eta)
    require(0 < eta < 1, "eta", "must be in (0, 1)", eta)
    gain = gain_of(temperature, length, eta)
    if gelu_scale is None:
        scale = best_gelu_scale(dtype)
    elif gelu_scale == "paper":
        scale = paper_gelu_scale(system.num_states, eta)
    else:
        require_real("gelu_scale", gelu_scale)
        scale = float(gelu_scale)
    require(scale > 0, "gelu_scale", "must be a positive number", gelu_scale)
    require_memory("length", forward_bytes(length, system.num_states, dtype), "choose a shorter length")
    return PrefixProduct(
        system, length, product=product, gain=gain, eta=eta, gelu_scale=scale, num_layers=layers, dtype=dtype
    )
