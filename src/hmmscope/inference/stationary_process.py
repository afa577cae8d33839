"""The stationary law of a process, and its steps in one form for states and transitions that emit."""

import numpy as np
import torch
from numpy.typing import ArrayLike

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.processes.capabilities import WORDS
from hmmscope.processes.make import as_process
from hmmscope.processes.params import HMMParams
from hmmscope.processes.process import Process
from hmmscope.processes.stationary import stationary_law
from hmmscope.schema import refuse_masked, shown

#: Singular values of step - 1 below this share of the largest are zero.
_SINGULAR = 1e-9


def stationary_distribution(
    process: Process | str | ArrayLike | Float64[Tensor, "state state"],
) -> Float64[Tensor, "state"]:
    """The law with law @ transition = law, of a process or of a matrix whose rows are laws.

    Transient states have exactly zero, periodic chains have one too.

    By elimination without subtraction (`hmmscope.processes.stationary`): every entry has a relative error of about
    S * 2^-53, however small it is. Of a `GeneralisedHMM` it is the vector with that property that sums to one.

    Raises:
        InputError: several closed classes of states (the message lists them), so that the law is not unique; a mixture,
            whose components each have a law of their own.

    Cost: O(S^3).
    """
    if isinstance(process, Tensor):
        return stationary_law(process)
    if isinstance(process, np.ndarray | list):
        refuse_masked("process", process)
        try:
            matrix = torch.from_numpy(np.asarray(process, np.float64))
        except (TypeError, ValueError):
            raise InputError(f"process: must be a process or a matrix of numbers, got {shown(process)}") from None
        return stationary_law(matrix)
    process = as_process(process)
    if process.num_components is not None:
        raise InputError("process: a mixture has no single stationary law; take that of mixture[m]")
    process.require_capability(WORDS)
    if process.params.signed:
        return _stationary_vector(state_transitions(process.params))
    try:
        return stationary_law(state_transitions(process.params))
    except InputError as error:
        raise InputError(f"{error}; give a prior instead") from None


def _stationary_vector(step_SS: Float64[Tensor, "state state"]) -> Float64[Tensor, "state"]:
    """The vector with vector @ step = vector and sum one, of a step whose entries have any sign."""
    left, sizes, _ = torch.linalg.svd(step_SS - torch.eye(len(step_SS), dtype=step_SS.dtype))
    if len(sizes) > 1 and float(sizes[-2]) < _SINGULAR * max(1.0, float(sizes[0])):
        raise InputError("stationary vector: not unique; give a prior instead")
    return left[:, -1] / left[:, -1].sum()


def state_transitions(law: HMMParams) -> Float64[Tensor, "state state"]:
    """P(next state | state) of a single process."""
    return law.transitions()[0]


def emitting_steps(law: HMMParams) -> Float64[Tensor, "symbol state state"]:
    """`[v, i, j]` = P(emit v and j emits next | i is about to emit), of a single process of either form.

    For states that emit, emission[i, v] * transition[i, j]. A product of 2^-32 multiples, so not itself one.
    """
    return law.steps()
