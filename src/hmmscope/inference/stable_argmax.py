"""The likeliest outcome of a law, whatever the last bits of its probabilities are."""

from hmmscope.axes import Float, Int64, Tensor
from hmmscope.ties import TOLERANCE


def stable_argmax(values: Float[Tensor, "*batch choice"]) -> Int64[Tensor, "*batch"]:
    """The first choice of each row whose value is the largest, up to `TOLERANCE` of the largest magnitude of the row.

    `argmax` where equally likely outcomes differ by rounding, as the states of a symmetric process do.
    """
    slack = TOLERANCE * values.abs().masked_fill(~values.isfinite(), 0.0).amax(-1, keepdim=True)
    return (values >= values.amax(-1, keepdim=True) - slack).int().argmax(-1)
