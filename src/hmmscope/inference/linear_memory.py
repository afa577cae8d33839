"""The best linear prediction from the last few one-hot observations."""

from dataclasses import dataclass

import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.inference.memory import with_prior
from hmmscope.inference.stationary_process import emitting_steps, state_transitions
from hmmscope.processes.params import symbol_probs
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.schema import require_count

#: Relative threshold of zero eigenvalues of the covariance; at least memory_length - 1 are zero.
RELATIVE_ZERO = 1e-10


@dataclass(frozen=True, repr=False)
class LinearPredictor(Shown):
    """Linear prediction weights @ x of the next observation; x stacks the last L one-hot observations, newest first.

    Attributes:
        weights: W_L = cross @ pseudo-inverse of covariance (symbol, feature).
        covariance: E x x^T (feature, feature).
        cross: E y x^T for the next observation y (symbol, feature).
        smallest_eigenvalue: Smallest nonzero eigenvalue of the covariance.
        largest_eigenvalue: Largest eigenvalue of the covariance.
        num_zero: Number of zero eigenvalues, at least L - 1.
    """

    weights: Float64[Tensor, "symbol feature"]
    covariance: Float64[Tensor, "feature feature"]
    cross: Float64[Tensor, "symbol feature"]
    smallest_eigenvalue: float
    largest_eigenvalue: float
    num_zero: int


def linear_predictor(hmm: Process, memory_length: int, prior: object = None) -> LinearPredictor:
    """Compute the least-squares predictor of minimum norm from `memory_length` observations, with exact moments.

    Source: population form of [MultiTask] Eq. (5).
    """
    require_count("memory_length", memory_length)
    params = with_prior(hmm, prior)
    size, num_symbols = memory_length, hmm.num_symbols
    transition_SS, symbols_SV = state_transitions(params), symbol_probs(params)[0]
    steps_VSS = emitting_steps(params)
    state_S = params.initial_MS[0]
    joint = torch.zeros(size + 1, num_symbols, size + 1, num_symbols, dtype=torch.float64)  # P(o_s, o_u) by time
    for s in range(size + 1):
        joint[s, :, s, :] = torch.diag(state_S @ symbols_SV)
        after_VS = torch.einsum("i,vij->vj", state_S, steps_VSS)
        for u in range(s + 1, size + 1):
            joint[s, :, u, :] = after_VS @ symbols_SV
            joint[u, :, s, :] = joint[s, :, u, :].T
            after_VS = after_VS @ transition_SS
        state_S = state_S @ transition_SS
    latest_first = torch.arange(size - 1, -1, -1)
    covariance = joint[latest_first][:, :, latest_first].reshape(size * num_symbols, size * num_symbols)
    cross = joint[size][:, latest_first].reshape(num_symbols, size * num_symbols)
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > RELATIVE_ZERO * values[-1]
    weights = (cross @ vectors[:, kept] / values[kept]) @ vectors[:, kept].T
    return LinearPredictor(weights, covariance, cross, float(values[kept][0]), float(values[-1]), int((~kept).sum()))
