"""Stationary distributions with small relative errors."""

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels.fixed_order import eliminate

#: Up to this many states the uncompiled function is faster than compiling.
_FEW = 8


def stationary_law(transition_SS: Float64[Tensor, "state state"]) -> Float64[Tensor, " state"]:
    """Solve p = p @ transition for the stationary distribution p; transient states get exactly zero.

    With S states each entry has a relative error of about S * 2^-53; the bits are the same on every CPU.

    Source: Grassmann, Taksar and Heyman (1985).

    Raises:
        InputError: the chain has several closed classes, so the stationary distribution is not unique.

    Cost: O(S^3).
    """
    classes = closed_classes(transition_SS)
    if len(classes) > 1:
        shown = ", ".join(
            str(members[:6]).replace("]", ", ...]" if len(members) > 6 else "]") for members in classes[:6]
        )
        more = ", ..." if len(classes) > 6 else ""
        raise InputError(
            f"stationary distribution: is not unique for {len(classes)} closed sets of states, {shown}{more}"
        )
    members = classes[0]
    law_S = torch.zeros(len(transition_SS), dtype=torch.float64)
    own_S = np.zeros(len(members))
    solve = eliminate.py_func if len(members) <= _FEW else eliminate
    solve(transition_SS[members][:, members].numpy(), own_S)  # a copy, which it overwrites
    law_S[members] = torch.from_numpy(own_S)
    return law_S


def closed_classes(transition_SS: Float64[Tensor, "state state"]) -> list[list[int]]:
    reach = (transition_SS > 0) | torch.eye(len(transition_SS), dtype=torch.bool)
    for _ in range(len(reach).bit_length()):
        further = (reach.float() @ reach.float()) > 0  # path counts; only the sign matters
        if further.equal(reach):
            break
        reach = further
    both = reach & reach.T
    found = {tuple(both[i].nonzero()[:, 0].tolist()) for i in range(len(reach)) if bool((reach[i] <= both[i]).all())}
    return [list(members) for members in sorted(found)]
