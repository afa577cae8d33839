"""The legend of axis letters, and the array types that signatures use.

    B batch   T time (query position)   U key position   S state   V symbol   M mixture component
    R rank    D width   H head   K head width   F feed-forward width   L layer   N flattened examples

Public signatures use word axes, ``Float[Tensor, "batch time state"]``; bodies use suffixes, ``beliefs_BTS``.
Every array is row-stochastic where it is stochastic, time is 0-based, observation t is emitted by state t, and
logarithms are natural.
"""

from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

__all__ = ["Bool", "Float", "Float64", "Int", "Int64", "Tensor"]
