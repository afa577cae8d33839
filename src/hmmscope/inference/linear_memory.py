"""The best prediction that is linear in the last few observations, as one-hot vectors."""

from dataclasses import dataclass

import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.inference.memory import with_prior
from hmmscope.inference.stationary_process import emitting_steps, state_transitions
from hmmscope.processes.params import symbol_probs
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.schema import require_count

#: Eigenvalues of the covariance below this share of the largest are zero: at least memory_length - 1 of them are.
RELATIVE_ZERO = 1e-10


@dataclass(frozen=True, repr=False)
class LinearPredictor(Shown):
    """y ~ weights @ x for the window x = [one-hot o_t; one-hot o_{t-1}; ..; one-hot o_{t-L+1}], most recent first.

    Attributes:
        weights: W_L = cross @ pseudo-inverse of covariance (symbol, feature), V x VL.
        covariance: E x x^T (feature, feature). Each block of x sums to one, so at least L - 1 eigenvalues are zero.
        cross: E y x^T with y the one-hot next observation (symbol, feature).
        smallest_eigenvalue: smallest non-zero eigenvalue of the covariance.
        largest_eigenvalue: its largest.
        num_zero: how many of its eigenvalues are zero (relative to the largest, 1e-10).
    """

    weights: Float64[Tensor, "symbol feature"]
    covariance: Float64[Tensor, "feature feature"]
    cross: Float64[Tensor, "symbol feature"]
    smallest_eigenvalue: float
    largest_eigenvalue: float
    num_zero: int


def linear_predictor(hmm: Process, memory_length: int, prior: object = None) -> LinearPredictor:
    """The population least-squares predictor from windows of `memory_length` observations, of smallest norm.

    The entries of both moments are P(o_s = a, o_{s+k} = b), which follow from powers of the transition matrix: nothing is
    enumerated or sampled. rank W_L <= rank of the transition matrix.

    Source: [MultiTask] Eq. (5), its population form.

    Args:
        hmm: the process.
        memory_length: at least 1.
        prior: law of the state that emits the first observation of a window; stationary if not given.

    Cost: O(memory_length^2 * S^2 * V + (V * memory_length)^3).
    """
    require_count("memory_length", memory_length)
    law = with_prior(hmm, prior)
    size, num_symbols = memory_length, hmm.num_symbols
    transition_SS, symbols_SV = state_transitions(law), symbol_probs(law)[0]
    steps_VSS = emitting_steps(law)
    state_S = law.initial_MS[0]
    joint = torch.zeros(size + 1, num_symbols, size + 1, num_symbols, dtype=torch.float64)  # of o_s and o_u, in time
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
