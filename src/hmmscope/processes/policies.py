"""Policies: distributions of the next input (action)."""

from typing import Any

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.processes.probability_rows import laws_of
from hmmscope.processes.stationary import stationary_law
from hmmscope.schema import require


def policy_rows(
    policy: Any, first: Any, num_inputs: int, num_seen: int
) -> tuple[Float64[Tensor, "input seen next_input"], Float64[Tensor, " input"]]:
    """Return P(next input | last input, seen observation or state), and the distribution of the first input.

    Args:
        policy: Distribution of the next input: (input,) without conditions, (input, input) given the last input, or
            (input, seen, input) given the last input and the last observation or state.
        first: Distribution of the first input (input,). Default: `policy` if (input,), its stationary distribution
            if (input, input), else uniform.
        num_inputs, num_seen: Numbers of inputs, and of observations or states.
    """
    ndim = np.ndim(policy)
    require(ndim in (1, 2, 3), "policy", "must have the shape (input,), (input, input) or (input, seen, input)", policy)
    shape = ((), (num_inputs,), (num_inputs, num_seen))[ndim - 1]
    rows = laws_of("policy", policy, (*shape, num_inputs))
    if first is not None:
        begin = laws_of("first", first, (num_inputs,))
    else:
        begin = (rows, stationary_law(rows) if ndim == 2 else rows, torch.ones(num_inputs).double() / num_inputs)[
            ndim - 1
        ]
    whole = rows if ndim == 3 else rows.expand(num_inputs, -1)[:, None].expand(-1, num_seen, -1)
    return whole, begin
