"""Observability coefficient: how well observations distinguish states.

    gamma(E) = min { ||v E||_1 : sum(v) = 0, ||v||_1 = 1 }

E is an emission matrix of S states and V symbols. The bounds on gamma(E) hold up to rounding:

    upper   ||v E||_1 / ||v||_1 for any v with sum 0
    lower   1 / t if E G + 1 c = I (column of ones 1, any row c) and all rows of G have ||G_i - G_j||_1 / 2 <= t;
            or min ||v E||_2 / (||v||_2 sqrt(S)) over v with sum 0
    exact   0 if S > V; the lower bound with G = E^-1 if E is invertible; else by 2^(S-1) - 1 linear programs

Source: [MultiTask] Assumptions 2 and 4.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.linear_programs import alternate, certificate, enumerate_signs, ratio
from hmmscope.inference.memory import MAX_ENUMERATED
from hmmscope.inference.stationary_process import emitting_steps
from hmmscope.processes.capabilities import WORDS
from hmmscope.processes.make import as_process
from hmmscope.processes.params import symbol_probs
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.schema import require_count, require_known
from hmmscope.system_info import require_memory

METHODS = ("auto", "bounds", "certificate", "enumeration")
#: Bounds closer than this are equal.
_EQUAL = 1e-9
#: Relative singular value below which linear programs and inverses are unreliable.
_SINGULAR = 1e-8
_MAX_ENUMERATED_STATES, _MAX_CERTIFICATE = 14, 4_000


@dataclass(frozen=True, repr=False)
class Observability(Shown):
    """Observability coefficient, or bounds on it.

    Attributes:
        lower, upper: Bounds on gamma.
        exact: True if the bounds agree to 1e-9.
        method: Name of the method that gave the bounds.
        witness: Vector v that attains `upper` (state,).
        steps: Number of observations.
    """

    lower: float
    upper: float
    exact: bool
    method: str
    witness: Float64[Tensor, " state"]
    steps: int


def observability(hmm: Process | str, steps: int = 1, *, method: str = "auto") -> Observability:
    """Compute gamma of the distribution of the next `steps` observations given the first emitting state.

    Args:
        hmm: HMM with S states and V symbols. For edge emissions, the emitting state is the source of the transition.
        steps: Number of observations k; gamma never decreases with k.
        method: "bounds" (no linear program), "certificate" (tighter bounds), "enumeration" (exact, at most 14 states)
            or "auto" (chosen by size).

    Raises:
        InputError: V^k exceeds `MAX_ENUMERATED`, or the method does not apply.
        ResourceError: SciPy (extra `hmm`) is missing, or memory is too small.
    """
    hmm = as_process(hmm)
    require_known("method", method, METHODS)
    return coefficient(step_emission(hmm, steps), method=method, steps=steps)


def pair_bound(hmm: Process, steps: int = 1) -> Observability:
    words_SW = step_emission(hmm, steps)
    require_memory("observability", 8 * 2 * hmm.num_states**2)
    apart_SS = torch.cdist(words_SW, words_SW, p=1)
    first, second = divmod(
        int((apart_SS + torch.diag(torch.full((hmm.num_states,), torch.inf))).argmin()), hmm.num_states
    )
    witness_S = torch.zeros(hmm.num_states, dtype=torch.float64)
    witness_S[first], witness_S[second] = 0.5, -0.5
    upper = float(apart_SS[first, second]) / 2
    return Observability(0.0, upper, upper <= _EQUAL, "bounds", witness_S, steps)


def step_emission(hmm: Process, steps: int) -> Float64[Tensor, "state word"]:
    """Compute P(next `steps` observations | first emitting state), with words in lexicographic order.

    Raises:
        InputError: The process is a mixture, or V^steps exceeds `MAX_ENUMERATED`.
    """
    hmm.require_capability(WORDS)
    require_count("steps", steps)
    if hmm.num_symbols ** min(steps, 64) > MAX_ENUMERATED:
        raise InputError(
            f"steps: {hmm.num_symbols}^{steps} words exceed the limit of {MAX_ENUMERATED}; use fewer steps"
        )
    require_memory("observability", 8 * 3 * hmm.num_states * hmm.num_symbols**steps)
    words_SW = symbol_probs(hmm.params)[0]
    for _ in range(steps - 1):
        words_SW = torch.einsum("vij,jw->ivw", emitting_steps(hmm.params), words_SW).flatten(1)
    return words_SW


def future_distribution(
    hmm: Process | str,
    observations: Int[Tensor, "batch time"],
    num_futures: int,
    *,
    reset_mask: object = None,
    lengths: object = None,
) -> Float64[Tensor, "batch time word"]:
    """Compute P(o_{t+1} .. o_{t+k} | o_0..o_t).

    Source: the target of [MultiTask] Theorem 2.

    Args:
        hmm: HMM with S states and V symbols.
        observations: Symbols in [0, V), shape (batch, time).
        num_futures: Number of future observations k >= 1; their words are in lexicographic order.
        reset_mask, lengths: See `filter_beliefs`.

    Raises:
        InputError: As for `filter_beliefs`; or V^k exceeds `MAX_ENUMERATED`.
        ResourceError: The result does not fit in memory.
    """
    hmm = as_process(hmm)
    require_count("num_futures", num_futures)
    words_SW, params = step_emission(hmm, num_futures), hmm.params
    beliefs_BTS = filter_beliefs(hmm, observations, reset_mask=reset_mask, lengths=lengths).beliefs
    if params.states_emit:
        words_SW = params.transitions()[0] @ words_SW
    require_memory("future_law", 8 * beliefs_BTS[..., 0].numel() * words_SW.shape[1])
    return beliefs_BTS @ words_SW.to(beliefs_BTS.device)


def coefficient(emission_SV: Float64[Tensor, "state symbol"], *, method: str = "auto", steps: int = 1) -> Observability:
    emission = emission_SV.numpy()
    emission = emission[:, emission.any(0)]  # drop symbols that no state emits
    num_states, num_symbols = emission.shape

    def answer(lower: float, upper: float, how: str, witness: NDArray[np.float64]) -> Observability:
        exact = upper - lower <= _EQUAL
        return Observability(lower, upper, exact, how, torch.from_numpy(witness), steps)

    if num_states == 1:
        return answer(1.0, 1.0, "inverse", np.zeros(1))  # a single state
    sigma, scale, direction = _singular(emission)
    if num_states > num_symbols:
        return answer(0.0, 0.0, "more states than symbols", direction)
    require_memory("observability", 8 * num_states**3)
    if num_states == num_symbols and method == "auto" and sigma > _SINGULAR * scale:
        gamma, witness = _by_inverse(emission)
        return answer(gamma, gamma, "inverse", witness)
    lower = sigma / math.sqrt(num_states)
    tried = sorted(_candidates(num_states, direction), key=lambda v: ratio(v, emission))
    if method == "bounds" or sigma <= _SINGULAR * scale:
        return answer(lower, max(lower, ratio(tried[0], emission)), "bounds", tried[0])
    if method == "enumeration" and num_states > _MAX_ENUMERATED_STATES:
        raise InputError(f"method: enumeration supports at most {_MAX_ENUMERATED_STATES} states, got {num_states}")
    if method == "enumeration" or (method == "auto" and num_states <= 6):
        gamma, witness = enumerate_signs(emission)
        return answer(gamma, gamma, "enumeration", witness)
    upper, witness = alternate(emission, [direction, *tried[:5]])
    if method == "certificate" or num_states * num_symbols * (num_symbols - 1) // 2 <= _MAX_CERTIFICATE:
        lower = max(lower, certificate(emission))
    if upper - lower > _EQUAL and method == "auto" and num_states <= 10:
        gamma, witness = enumerate_signs(emission)
        return answer(gamma, gamma, "enumeration", witness)
    return answer(min(lower, upper), upper, "certificate", witness)


def numerical_rank(matrix: Float64[Tensor, "row column"], tolerance: float | None = None) -> int:
    """Count the singular values above `tolerance` times the largest one.

    The default max(1e-10, rows * 2^-31) allows for probabilities rounded to multiples of 2^-32.
    """
    values = torch.linalg.svdvals(matrix)
    tolerance = max(1e-10, len(matrix) * 2.0**-31) if tolerance is None else tolerance
    return int((values > tolerance * values[0]).sum())


def _singular(emission: NDArray[np.float64]) -> tuple[float, float, NDArray[np.float64]]:
    size = len(emission)
    basis = np.linalg.qr(np.column_stack([np.ones(size), np.eye(size)[:, 1:]]))[0][:, 1:]  # vectors with sum 0
    seen = basis.T @ emission
    # All left directions if some are null; never all V^k right ones.
    left, values, _ = np.linalg.svd(seen, full_matrices=seen.shape[0] > seen.shape[1])
    direction = basis @ left[:, -1]
    smallest = values[-1] if len(values) == size - 1 else 0.0
    return float(smallest), float(np.linalg.norm(emission)), direction / np.abs(direction).sum()


def _candidates(num_states: int, direction: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    pairs = [np.zeros(num_states) for _ in range(num_states * (num_states - 1) // 2)]
    for v, (i, j) in zip(pairs, itertools.combinations(range(num_states), 2), strict=True):
        v[i], v[j] = 0.5, -0.5
    return [direction, *pairs]


def _by_inverse(emission: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    eye = torch.eye(len(emission), dtype=torch.float64)
    inverse = torch.linalg.lstsq(torch.from_numpy(emission), eye, driver="gelsd").solution.numpy()
    i, j = np.triu_indices(len(emission), 1)
    norms = np.abs(inverse[i] - inverse[j]).sum(1) / 2
    best = int(norms.argmax())
    witness = inverse[i[best]] - inverse[j[best]]
    return 1 / float(norms[best]), witness / np.abs(witness).sum()
