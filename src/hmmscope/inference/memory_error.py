"""Error of predictions from the last few observations: exact, estimated by sampling, and bounded in the worst case."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.memory import all_sequences, filter_windows, memory_table, with_prior
from hmmscope.processes.capabilities import STATES
from hmmscope.processes.params import symbol_probs
from hmmscope.processes.process import Process
from hmmscope.schema import require, require_count
from hmmscope.system_info import require_memory

#: Predictions closer than this differ by rounding only.
_ROUNDING = 1e-13


@dataclass(frozen=True)
class MemoryLoss:
    """Expected distance of the finite-memory prediction from the exact prediction.

    Attributes:
        total_variation: E 1/2 ||P - Q||_1 for P = P(. | o_0..o_{t-1}) and Q = P(. | last `memory_length` observations).
        squared: E ||P - Q||^2.
        low, high: 95 % interval of `total_variation`, of zero width if exact.
        exact: True if all sequences were enumerated.
    """

    total_variation: float
    squared: float
    low: float
    high: float
    exact: bool


def memory_error(hmm: Process, memory_length: int, time: int, prior: object = None) -> MemoryLoss:
    """Compute the expected error of predictions from the last `memory_length` observations, over all V^time sequences.

    Source: [MultiTask]; Lemma 1 bounds this error.

    Args:
        hmm: The process.
        memory_length: Number L of remembered observations, in [1, time].
        time: Number of observations; if it is `memory_length`, all error is due to `prior`.
        prior: See `memory_beliefs`.

    Raises:
        InputError: A length or `prior` is invalid, or there are too many sequences.
    """
    require(1 <= memory_length <= time, "memory_length", f"must be in [1, {time}]", memory_length)
    exact_N, log_probability_N = _exact_predictions(hmm, all_sequences(hmm.num_symbols, time))
    table = memory_table(hmm, memory_length, prior).next_observation
    recent_N = torch.arange(len(exact_N)) % len(table)  # recent symbols vary fastest
    half_l1, squared = _distances(exact_N, table[recent_N])
    probability_N = log_probability_N.exp()
    total, square = float(probability_N @ half_l1), float(probability_N @ squared)
    return MemoryLoss(total, square, total, total, exact=True)


def sampled_memory_error(
    hmm: Process, memory_length: int, time: int, prior: object = None, *, num_samples: int = 10_000, seed: int = 0
) -> MemoryLoss:
    require(1 <= memory_length <= time, "memory_length", f"must be in [1, {time}]", memory_length)
    require_count("num_samples", num_samples, 2)
    require_memory("memory_error", 8 * 3 * num_samples * time)
    paths = hmm.sample_paths(np.arange(num_samples), np.arange(time) == 0, seed, "evaluate")
    exact_N, _ = _exact_predictions(hmm, paths.observations)
    params = with_prior(hmm, prior)
    _, following, _ = filter_windows(params, paths.observations[:, time - memory_length :])
    half_l1, squared = _distances(exact_N, following @ symbol_probs(params)[0])
    mean, error = float(half_l1.mean()), float(half_l1.std()) / math.sqrt(num_samples)
    return MemoryLoss(mean, float(squared.mean()), max(0.0, mean - 1.96 * error), mean + 1.96 * error, exact=False)


def _exact_predictions(hmm: Process, sequences: Tensor) -> tuple[Tensor, Tensor]:
    _, following, log_probability = filter_windows(hmm.params, sequences)
    return following @ symbol_probs(hmm.params)[0], log_probability


def _distances(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    apart = one - other
    apart = apart.masked_fill(apart.abs() <= _ROUNDING, 0.0)
    return apart.abs().sum(-1) / 2, apart.square().sum(-1)


@dataclass(frozen=True)
class DecayFit:
    """Fit of geometrically decaying errors, error ~ constant * ratio^length.

    Attributes:
        ratio: Factor per unit of length.
        rate: -ln(ratio), in nats per unit of length.
        first, last: Fitted range of lengths, inclusive.
        residual: Largest absolute deviation of ln(error) from the fitted line.
    """

    ratio: float
    rate: float
    first: int
    last: int
    residual: float


def fit_decay(
    lengths: Sequence[int], errors: Sequence[float], *, first: int | None = None, last: int | None = None
) -> DecayFit:
    """Fit a least-squares line to ln(error) against memory length.

    The default `first` is the second length. Choose `last` well below the argument `time` of `memory_error`, because
    errors drop at lengths near `time`.

    Args:
        lengths: Memory lengths, ascending.
        errors: Error at each length, positive.
        first, last: Range of lengths to fit.
    """
    first = lengths[min(1, len(lengths) - 1)] if first is None else first
    last = lengths[-1] if last is None else last
    used = [(length, error) for length, error in zip(lengths, errors, strict=True) if first <= length <= last]
    if len(used) < 2 or any(not 0 < error < math.inf for _, error in used):
        raise InputError(f"errors: must have at least two positive values at lengths {first} to {last}, got {used}")
    x, y = np.array([length for length, _ in used], dtype=np.float64), np.log([error for _, error in used])
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    residual = float(np.abs(y - y.mean() - slope * centred).max())
    return DecayFit(math.exp(slope), -slope, first, last, residual)


def memory_certificate(hmm: Process, memory_length: int) -> float:
    """Bound the total variation between predictions from finite memory and from any full history.

    Let D be the largest ln(A_ik A_jl / (A_il A_jk)) over i, j, k, l (Hilbert's metric) and c = tanh(D / 4). Then

        state emissions:  A = transition;                  TV <= tanh(D * c^L / 4)
        edge emissions:   A = labelled[v], max D over v;   TV <= tanh(D * c^(L - 1) / 4)

    for a memory of L observations that starts from the stationary distribution. The bound is 1 if D is infinite.

    Source: Birkhoff (1957); Atar and Zeitouni (1997) for filters.
    """
    require_count("memory_length", memory_length)
    hmm.require_capability(STATES)
    matrices, steps = hmm.params.contractions(memory_length)
    if hmm.num_states == 1:
        return 0.0
    matrices = matrices[matrices.flatten(1).any(1)]  # drop symbols that are never emitted
    if not bool((matrices > 0).all()):
        return 1.0
    diameter = max(_diameter(matrix) for matrix in matrices)
    return math.tanh(diameter * math.tanh(diameter / 4) ** steps / 4)


def _diameter(matrix_SS: Float64[Tensor, "state state"]) -> float:
    logs = matrix_SS.log()
    ranges = [(logs - row).amax(1) - (logs - row).amin(1) for row in logs]
    return float(torch.stack(ranges).max())
