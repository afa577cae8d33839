"""Argmax of probabilities that ignores rounding errors."""

from hmmscope.axes import Float, Int64, Tensor
from hmmscope.schema import require
from hmmscope.ties import TOLERANCE


def stable_argmax(values: Float[Tensor, "*batch choice"]) -> Int64[Tensor, "*batch"]:
    """Return the first index of each row with a value within `TOLERANCE` of the row's maximum."""
    is_real = isinstance(values, Tensor) and values.is_floating_point() and values.ndim > 0 and values.shape[-1] > 0
    require(is_real, "values", "must be a floating-point tensor with a nonempty last axis", values)
    slack = TOLERANCE * values.abs().masked_fill(~values.isfinite(), 0.0).amax(-1, keepdim=True)
    return (values >= values.amax(-1, keepdim=True) - slack).int().argmax(-1)
