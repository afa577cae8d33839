"""Rows of probabilities as integers: what samples are drawn by, and what digests are of."""

import numpy as np
from numpy.typing import NDArray

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels.quantise import UNIT


def integer_weights(rows: Float64[Tensor, "*row outcome"]) -> NDArray[np.int64]:
    """Probabilities that are multiples of 2^-32 as integers."""
    return (rows.numpy() * UNIT).astype(np.int64)


def drawn_weights(rows: Float64[Tensor, "*row outcome"]) -> NDArray[np.int64]:
    """`integer_weights`; InputError for rows that nothing can be drawn by."""
    weights = integer_weights(rows)
    if weights.size and (weights.min() < 0 or (weights.sum(-1) != UNIT).any()):
        raise InputError(
            "law: has rows that are no laws in multiples of 2^-32; those of hmmscope.HMM are rounded to such"
        )
    return weights
