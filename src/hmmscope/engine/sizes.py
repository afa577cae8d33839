"""Sizes of models for the compiled engine."""

from dataclasses import dataclass

from hmmscope.errors import InputError


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model.

    Attributes:
        inputs: Number of tokens, or of coordinates of an input vector.
        outputs: Number of outputs of the head.
        layers, width: Number of layers, and width of the residual stream or hidden state.
        heads, hidden: Number of attention heads (0 for a recurrent network), and width of the MLP (0 without one).
    """

    inputs: int
    outputs: int
    layers: int
    width: int
    heads: int = 0
    hidden: int = 0

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "layers", "width"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: must be at least 1, got {getattr(self, name)}")
        reason = unfit(self.width, self.heads)
        if reason is not None:
            raise InputError(reason)
        if self.hidden % 16:
            raise InputError(f"hidden: must be a multiple of 16, got {self.hidden}")

    @property
    def numbers_of_column(self) -> int:
        return self.layers * (6 * self.width + 2 * self.hidden)


def unfit(width: int, heads: int) -> str | None:
    if width % 16:
        return f"width: must be a multiple of 16, got {width}"
    if heads and (width % heads or width // heads % 8):
        return f"num_heads: width / num_heads must be a multiple of 8, got {width} / {heads}"
    return None
