"""Compiled loops of the forward filter: one for few states, one between matrix products for many.

Both work on laws that sum to one after every step and report where a sum fell below `floor`, so that the caller can go
over those sequences again in a safer way; `forward_steps` in inference is the plain twin.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
from numpy.typing import NDArray

_LANES = 16  # sequences side by side, so that the inner loops are vector instructions


def log_likelihood_few_states(
    initial_S: NDArray[np.floating],
    transition_SS: NDArray[np.floating],
    emission_SV: NDArray[np.floating],
    observations_BT: NDArray[np.integer],
    floor: float,
    *,
    num_threads: int = 1,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Log-likelihoods (B,) of one HMM, in the precision of the arrays with float64 sums; and which are doubtful (B,)."""
    result = np.zeros(len(observations_BT), np.float64)
    doubtful = np.zeros(len(observations_BT), np.bool_)
    block = max(_LANES, math.ceil(len(result) / max(1, num_threads) / _LANES) * _LANES)
    emission_VS = np.ascontiguousarray(emission_SV.T)

    def fill(start: int) -> None:
        part = slice(start, start + block)
        _few_states(initial_S, transition_SS, emission_VS, observations_BT[part], floor, result[part], doubtful[part])

    blocks = range(0, len(result), block)
    if len(blocks) <= 1:
        for start in blocks:
            fill(start)
    else:
        with ThreadPoolExecutor(num_threads) as pool:
            list(pool.map(fill, blocks))
    return result, doubtful


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _few_states(initial, transition, emission, observations, floor, result, doubtful):  # type: ignore[no-untyped-def]
    num_states = initial.shape[0]
    num_sequences, num_steps = observations.shape
    law = np.empty((num_states, _LANES), initial.dtype)
    following = np.empty((num_states, _LANES), initial.dtype)
    norm = np.empty(_LANES, initial.dtype)
    product = np.empty(_LANES, np.float64)
    for first in range(0, num_sequences, _LANES):
        lanes = min(_LANES, num_sequences - first)
        product[:] = 1.0
        for i in range(num_states):
            for lane in range(_LANES):
                following[i, lane] = initial[i]
        for t in range(num_steps):
            norm[:] = 0.0
            for lane in range(_LANES):
                symbol = observations[first + min(lane, lanes - 1), t]
                for i in range(num_states):
                    law[i, lane] = following[i, lane] * emission[symbol, i]
            for i in range(num_states):
                for lane in range(_LANES):
                    norm[lane] += law[i, lane]
            for lane in range(lanes):
                if norm[lane] < floor:
                    doubtful[first + lane] = True
                    norm[lane] = 1.0
                product[lane] *= norm[lane]
                if product[lane] < 1e-200:
                    result[first + lane] += math.log(product[lane])
                    product[lane] = 1.0
            for lane in range(_LANES):
                norm[lane] = 1.0 / norm[lane]
            for j in range(num_states):
                for lane in range(_LANES):
                    following[j, lane] = law[0, lane] * transition[0, j]
                for i in range(1, num_states):
                    for lane in range(_LANES):
                        following[j, lane] += law[i, lane] * transition[i, j]
                for lane in range(_LANES):
                    following[j, lane] *= norm[lane]
        for lane in range(lanes):
            result[first + lane] += math.log(product[lane])


@numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def absorb(following, emission, symbols, floor, log_norm, doubtful):  # type: ignore[no-untyped-def]
    """Turn laws before the observation (B, S) into laws after it, in place; write log sums (B,), mark doubtful ones.

    `emission` is (V, S). A sum below `floor` marks its sequence and leaves a law of zeros.
    """
    num_states = following.shape[1]
    for b in range(following.shape[0]):
        row = emission[symbols[b]]
        total = following.dtype.type(0.0)
        for i in range(num_states):
            following[b, i] *= row[i]
            total += following[b, i]
        if total < floor:
            doubtful[b] = True
            log_norm[b] = -np.inf
            following[b, :] = 0.0
        else:
            log_norm[b] = math.log(total)
            scale = following.dtype.type(1.0) / total
            for i in range(num_states):
                following[b, i] *= scale


@numba.njit(cache=True, nogil=True)
def accumulate(log_weight, predicted, largest, total, mixed):  # type: ignore[no-untyped-def]
    """Add a component to running mixtures: total and mixed (..., V) are relative to exp(largest), float64.

    log_weight (N,) is the component's log weight, predicted (N, V) what it predicts, largest and total (N,), mixed (N, V).
    """
    for n in range(log_weight.shape[0]):
        weight = log_weight[n]
        if weight == -np.inf:
            continue
        if weight > largest[n]:
            scale = math.exp(largest[n] - weight) if largest[n] > -np.inf else 0.0
            total[n] *= scale
            for v in range(mixed.shape[1]):
                mixed[n, v] *= scale
            largest[n] = weight
            share = 1.0
        else:
            share = math.exp(weight - largest[n])
        total[n] += share
        for v in range(mixed.shape[1]):
            mixed[n, v] += share * predicted[n, v]
