"""Stationary distributions and transition matrices of processes whose states or transitions emit symbols."""

import numpy as np
import torch
from numpy.typing import ArrayLike

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.processes.capabilities import WORDS
from hmmscope.processes.make import as_process
from hmmscope.processes.params import HMMParams
from hmmscope.processes.probability_rows import laws_of
from hmmscope.processes.process import Process
from hmmscope.processes.stationary import stationary_law
from hmmscope.schema import refuse_masked, require

#: Relative threshold of zero singular values of (step matrix - identity).
_SINGULAR = 1e-9


def stationary_distribution(
    process: Process | str | ArrayLike | Float64[Tensor, "state state"],
) -> Float64[Tensor, " state"]:
    """Compute the stationary distribution of a process or a row-stochastic matrix.

    Transient states have probability exactly zero; periodic chains are supported. For S states, entries have a relative
    error of about S * 2^-53. For a `GeneralisedHMM` the result is the stationary vector that sums to one.

    Raises:
        InputError: There are several closed classes, which the message lists, or the process is a mixture.

    Cost: O(S^3).
    """
    if isinstance(process, Tensor | np.ndarray | list):
        refuse_masked("process", process)
        rows = laws_of("process", process, (None, None))
        require(len(rows) == rows.shape[1], "process", "must be a process or a square matrix", tuple(rows.shape))
        return stationary_law(rows)
    process = as_process(process)
    if process.num_components is not None:
        raise InputError("process: a mixture has no single stationary distribution; pass a component (mixture[0])")
    process.require_capability(WORDS)
    if process.params.signed:
        return _stationary_vector(state_transitions(process.params))
    try:
        return stationary_law(state_transitions(process.params))
    except InputError as error:
        raise InputError(f"{error}; pass the argument prior, if there is one") from None


def _stationary_vector(step_SS: Float64[Tensor, "state state"]) -> Float64[Tensor, " state"]:
    left, sizes, _ = torch.linalg.svd(step_SS - torch.eye(len(step_SS), dtype=step_SS.dtype))
    if len(sizes) > 1 and float(sizes[-2]) < _SINGULAR * max(1.0, float(sizes[0])):
        raise InputError("process: the stationary vector is not unique; pass the argument prior, if there is one")
    return left[:, -1] / left[:, -1].sum()


def state_transitions(law: HMMParams) -> Float64[Tensor, "state state"]:
    return law.transitions()[0]


def emitting_steps(law: HMMParams) -> Float64[Tensor, "symbol state state"]:
    """Return `[v, i, j]` = P(state i emits symbol v, and state j emits next | state i)."""
    return law.steps()
