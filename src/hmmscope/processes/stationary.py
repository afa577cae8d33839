"""The stationary law of a finite chain."""

import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError


def stationary_law(transition_SS: Float64[Tensor, "state state"]) -> Float64[Tensor, "state"]:
    """The law with law @ transition = law; InputError if there is more than one (several closed classes).

    Solved as a least-squares problem, law @ (transition - 1) = 0 with sum one, so that periodic chains have it too.
    """
    closed = closed_classes(transition_SS)
    if len(closed) > 1:
        raise InputError(f"stationary law: not unique, the chain has {len(closed)} closed classes of states: {closed}")
    size = len(transition_SS)
    eye = torch.eye(size, dtype=torch.float64)
    system = torch.cat([(transition_SS - eye).T, torch.ones(1, size, dtype=torch.float64)])
    right = torch.zeros(size + 1, 1, dtype=torch.float64)
    right[-1] = 1
    law = torch.linalg.lstsq(system, right, driver="gelsd").solution[:, 0]
    inside = torch.zeros(size, dtype=torch.bool)
    inside[closed[0]] = True
    law = torch.where(inside, law.clamp_min(0), 0.0)
    return law / law.sum()


def closed_classes(transition_SS: Float64[Tensor, "state state"]) -> list[list[int]]:
    """Sets of states that reach one another and are never left, each ascending."""
    reach = (transition_SS > 0) | torch.eye(len(transition_SS), dtype=torch.bool)
    for _ in range(len(reach).bit_length()):
        reach = (reach.double() @ reach.double()) > 0
    both = reach & reach.T
    found = {tuple(both[i].nonzero()[:, 0].tolist()) for i in range(len(reach)) if bool((reach[i] <= both[i]).all())}
    return [list(members) for members in sorted(found)]
