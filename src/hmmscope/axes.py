"""Axis letters, and the array types used in signatures.

    B batch   T time (query position)   U key position   S state   V symbol   M mixture component
    R rank    D width   H head   K head width   F feed-forward width   L layer   N flattened examples

Signatures name axes by words, ``Float[Tensor, "batch time state"]``; variables by letters, ``beliefs_BTS``. Stochastic
matrices are row-stochastic, time is 0-based, states emit observations of the same time, and logarithms are natural.
"""

from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

__all__ = ["Bool", "Float", "Float64", "Int", "Int64", "Tensor"]
