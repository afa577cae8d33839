"""The stationary law of a process, each entry right to a few roundings however small."""

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.processes.base import Process
from hmmscope.processes.laws import Law, StateEmitting
from hmmscope.processes.stationary import closed_classes


def stationary_distribution(process: Process) -> Float64[Tensor, "state"]:
    """The law with law @ transition = law; transient states have exactly zero, periodic chains have one too.

    By elimination without subtraction, so that every entry has a relative error of about S * 2^-53: a state visited once
    in 10^50 steps is not taken for one that is never visited.

    Source: Grassmann, Taksar and Heyman (1985), "Regenerative analysis and steady state distributions".

    Raises:
        InputError: several closed classes of states (the message lists them), so that the law is not unique; a mixture,
            whose components each have a law of their own.

    Cost: O(S^3).
    """
    if process.num_components is not None:
        raise InputError("process: a mixture has no single stationary law; take that of mixture[m]")
    return stationary_of(state_transitions(process.law))


def stationary_of(transition_SS: Float64[Tensor, "state state"]) -> Float64[Tensor, "state"]:
    """`stationary_distribution` of a chain given by its matrix."""
    classes = closed_classes(transition_SS)
    if len(classes) > 1:
        shown = ", ".join(
            str(members[:6]).replace("]", ", ...]" if len(members) > 6 else "]") for members in classes[:6]
        )
        raise InputError(
            f"stationary law: not unique, {len(classes)} sets of states are never left: {shown}"
            f"{', ...' if len(classes) > 6 else ''}; give a prior instead"
        )
    members = classes[0]
    law_S = torch.zeros(len(transition_SS), dtype=torch.float64)
    law_S[members] = torch.from_numpy(_eliminate(transition_SS[members][:, members].numpy()))
    return law_S


def state_transitions(law: Law) -> Float64[Tensor, "state state"]:
    """P(next state | state) of a single process."""
    return law.transition_MSS[0] if isinstance(law, StateEmitting) else law.labelled_MVSS[0].sum(0)


def emitting_steps(law: Law) -> Float64[Tensor, "symbol state state"]:
    """`[v, i, j]` = P(emit v and j emits next | i is about to emit), of a single process of either form.

    For states that emit, emission[i, v] * transition[i, j]. A product of 2^-32 multiples, so not itself one.
    """
    if isinstance(law, StateEmitting):
        return law.emission_MSV[0].T[:, :, None] * law.transition_MSS[0]
    return law.labelled_MVSS[0]


def _eliminate(transition: NDArray[np.float64]) -> NDArray[np.float64]:
    """The stationary law of an irreducible chain: remove states from the last, then put them back."""
    work = transition.copy()
    for last in range(len(work) - 1, 0, -1):
        work[:last, last] /= work[last, :last].sum()
        work[:last, :last] += np.outer(work[:last, last], work[last, :last])
    law = np.ones(len(work))
    for state in range(1, len(work)):
        law[state] = law[:state] @ work[:state, state]
        law[: state + 1] /= law[: state + 1].max()  # entries can differ by more than a float holds
    return law / law.sum()
