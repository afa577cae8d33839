"""Compiled loops of the forward filter: one for few states, one between matrix products for many.

Both work on laws that sum to one after every step and report where a sum fell below `floor`, so that the caller can go
over those sequences again in a safer way; `forward_steps` in inference is the plain twin.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
from numpy.typing import NDArray

_LANES = 128  # sequences side by side: long enough for vector instructions, short enough for the first cache


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

    def fill(start: int) -> None:
        part = slice(start, start + block)
        _few_states(initial_S, transition_SS, emission_SV, observations_BT[part], floor, result[part], doubtful[part])

    blocks = range(0, len(result), block)
    if len(blocks) <= 1:
        for start in blocks:
            fill(start)
    else:
        with ThreadPoolExecutor(num_threads) as pool:
            list(pool.map(fill, blocks))
    return result, doubtful


@numba.njit(cache=True, nogil=True, fastmath=True)
def _few_states(initial, transition, emission, observations, floor, result, doubtful):  # type: ignore[no-untyped-def]
    """Laws are (state, lane) and symbols (time, lane), unsigned: every inner loop runs over all lanes without a branch.

    Lanes beyond the last sequence repeat symbol 0 and are not read.
    """
    num_states = initial.shape[0]
    num_sequences, num_steps = observations.shape
    one = initial.dtype.type(1.0)
    symbols = np.zeros((num_steps, _LANES), np.uint32)
    law = np.empty((num_states, _LANES), initial.dtype)
    following = np.empty((num_states, _LANES), initial.dtype)
    norm = np.empty(_LANES, initial.dtype)
    product = np.empty(_LANES, np.float64)
    for first in range(0, num_sequences, _LANES):
        lanes = min(_LANES, num_sequences - first)
        for lane in range(lanes):
            for t in range(num_steps):
                symbols[t, lane] = observations[first + lane, t]
        product[:] = 1.0
        for i in range(num_states):
            following[i, :] = initial[i]
        for t in range(num_steps):
            seen = symbols[t]
            norm[:] = 0.0
            for i in range(num_states):
                before, after, likelihood = following[i], law[i], emission[i]
                for lane in range(_LANES):
                    joint = before[lane] * likelihood[seen[lane]]
                    after[lane] = joint
                    norm[lane] += joint
            smallest, smallest_product = one, 1.0
            for lane in range(_LANES):
                smallest = min(smallest, norm[lane])
            if smallest < floor:
                for lane in range(_LANES):
                    if norm[lane] < floor:
                        if lane < lanes:
                            doubtful[first + lane] = True
                        norm[lane] = one
            for lane in range(_LANES):
                product[lane] *= norm[lane]
                smallest_product = min(smallest_product, product[lane])
                norm[lane] = one / norm[lane]
            if smallest_product < 1e-100:
                for lane in range(lanes):
                    result[first + lane] += math.log(product[lane])
                product[:] = 1.0
            for j in range(num_states):
                _column(law, transition[:, j], norm, following[j])
        for lane in range(lanes):
            result[first + lane] += math.log(product[lane])


@numba.njit(inline="always")
def _column(law, weights, scale, target):  # type: ignore[no-untyped-def]
    """target = scale * (weights @ law), four rows of `law` at a time."""
    target[:] = 0.0
    i = 0
    while i + 4 <= law.shape[0]:
        w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        a, b, c, d = law[i], law[i + 1], law[i + 2], law[i + 3]
        for lane in range(_LANES):
            target[lane] += (a[lane] * w0 + b[lane] * w1) + (c[lane] * w2 + d[lane] * w3)
        i += 4
    while i < law.shape[0]:
        weight, row = weights[i], law[i]
        for lane in range(_LANES):
            target[lane] += row[lane] * weight
        i += 1
    for lane in range(_LANES):
        target[lane] *= scale[lane]


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
