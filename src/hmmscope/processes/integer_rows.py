"""Rows of probabilities as integers, for sampling and digests."""

import numpy as np
from numpy.typing import NDArray

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels.quantise import UNIT


def integer_weights(rows: Float64[Tensor, "*row outcome"]) -> NDArray[np.int64]:
    return (rows.numpy() * UNIT).astype(np.int64)


def drawn_weights(rows: Float64[Tensor, "*row outcome"]) -> NDArray[np.int64]:
    """Return 2^32 * rows as integers; raise InputError unless these are distributions in multiples of 2^-32."""
    weights = integer_weights(rows)
    if weights.size and (weights.min() < 0 or (weights.sum(-1) != UNIT).any()):
        raise InputError(
            "params: rows must be distributions in multiples of 2^-32; build them with hmmscope.HMM, which rounds them"
        )
    return weights
