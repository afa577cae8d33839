"""The stationary law of a finite chain, each entry right to a few roundings however small."""

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels.fixed_order import eliminate

#: Up to so many states nothing is compiled for it: that takes longer.
_FEW = 8


def stationary_law(transition_SS: Float64[Tensor, "state state"]) -> Float64[Tensor, "state"]:
    """The law with law @ transition = law; transient states have exactly zero, periodic chains have one too.

    By elimination without subtraction, so that every entry has a relative error of about S * 2^-53: a state visited once
    in 10^50 steps is not taken for one that is never visited. The bits are the same on every processor.

    Source: Grassmann, Taksar and Heyman (1985), "Regenerative analysis and steady state distributions".

    Raises:
        InputError: several closed classes of states (the message lists them), so that the law is not unique.

    Cost: O(S^3).
    """
    classes = closed_classes(transition_SS)
    if len(classes) > 1:
        shown = ", ".join(
            str(members[:6]).replace("]", ", ...]" if len(members) > 6 else "]") for members in classes[:6]
        )
        more = ", ..." if len(classes) > 6 else ""
        raise InputError(f"stationary law: not unique, {len(classes)} sets of states are never left: {shown}{more}")
    members = classes[0]
    law_S = torch.zeros(len(transition_SS), dtype=torch.float64)
    own_S = np.zeros(len(members))
    solve = eliminate.py_func if len(members) <= _FEW else eliminate
    solve(transition_SS[members][:, members].numpy(), own_S)  # a copy, which it overwrites
    law_S[members] = torch.from_numpy(own_S)
    return law_S


def closed_classes(transition_SS: Float64[Tensor, "state state"]) -> list[list[int]]:
    """Sets of states that reach one another and are never left, each ascending."""
    reach = (transition_SS > 0) | torch.eye(len(transition_SS), dtype=torch.bool)
    for _ in range(len(reach).bit_length()):
        further = (reach.float() @ reach.float()) > 0  # counts of ways, of which only the sign matters
        if further.equal(reach):
            break
        reach = further
    both = reach & reach.T
    found = {tuple(both[i].nonzero()[:, 0].tolist()) for i in range(len(reach)) if bool((reach[i] <= both[i]).all())}
    return [list(members) for members in sorted(found)]
