"""Axis letters, and the array types used in signatures.

    B batch   T time (query position)   U key position   S state   V symbol   M mixture component
    R rank    D width   H head   K head width   F feed-forward width   L layer   N flattened examples

Signatures name axes by words, ``Float[Tensor, "batch time state"]``; variables by letters, ``beliefs_BTS``. Stochastic
matrices are row-stochastic, time is 0-based, states emit observations of the same time, and logarithms are natural.
"""

from typing import Any

from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

__all__ = ["Bool", "Cache", "Feedback", "Float", "Float64", "Inputs", "Int", "Int64", "Positions", "Tensor", "Vectors"]

#: Observed vectors of consecutive sequences, NaN where missing.
Vectors = Float64[Tensor, "row coordinate"]
#: Arguments of models, see `SequenceModel.forward`.
Inputs = Int64[Tensor, "batch time"] | Float[Tensor, "batch time input"]
Positions = Int64[Tensor, "*batch time"] | None
Feedback = Float[Tensor, "batch time feedback"] | None
Cache = dict[str, Any] | None
