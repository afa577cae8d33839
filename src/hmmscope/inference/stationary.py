"""The stationary law of a process, and its steps in one form for states and transitions that emit."""

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.machine import require_memory
from hmmscope.processes.base import Process
from hmmscope.processes.laws import Law, StateEmitting
from hmmscope.processes.stationary import stationary_law


def stationary_distribution(process: Process) -> Float64[Tensor, "state"]:
    """The law with law @ transition = law; transient states have exactly zero, periodic chains have one too.

    By elimination without subtraction (`hmmscope.processes.stationary`): every entry has a relative error of about
    S * 2^-53, however small it is.

    Raises:
        InputError: several closed classes of states (the message lists them), so that the law is not unique; a mixture,
            whose components each have a law of their own.

    Cost: O(S^3).
    """
    if process.num_components is not None:
        raise InputError("process: a mixture has no single stationary law; take that of mixture[m]")
    try:
        return stationary_law(state_transitions(process.law))
    except InputError as error:
        raise InputError(f"{error}; give a prior instead") from None


def state_transitions(law: Law) -> Float64[Tensor, "state state"]:
    """P(next state | state) of a single process."""
    return law.transition_MSS[0] if isinstance(law, StateEmitting) else law.labelled_MVSS[0].sum(0)


def emitting_steps(law: Law) -> Float64[Tensor, "symbol state state"]:
    """`[v, i, j]` = P(emit v and j emits next | i is about to emit), of a single process of either form.

    For states that emit, emission[i, v] * transition[i, j]. A product of 2^-32 multiples, so not itself one.
    """
    if isinstance(law, StateEmitting):
        num_states, num_symbols = law.emission_MSV.shape[1:]
        require_memory("steps", 8 * num_symbols * num_states**2)
        return law.emission_MSV[0].T[:, :, None] * law.transition_MSS[0]
    return law.labelled_MVSS[0]
