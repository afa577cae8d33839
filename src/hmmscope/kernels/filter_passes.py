"""Compiled passes between the matrix products of filters with many states, and over the components of a mixture."""

import math

import numpy as np

from hmmscope.kernels.compiling import kernel


@kernel(fastmath={"contract", "reassoc"})
def absorb(following, emission, symbols, floor, smallest, belief, norm, doubtful):  # type: ignore[no-untyped-def]
    """Write the laws after the observation (B, S), with sum one or zero, and the sums (B,); `following` is overwritten.

    following (B, S) are the laws before it, `emission` is (V, S). A sum below `floor`, or a positive entry below
    `smallest`, marks its sequence as doubtful.
    """
    num_states = following.shape[1]
    zero, one = following.dtype.type(0.0), following.dtype.type(1.0)
    for b in range(following.shape[0]):
        row = emission[symbols[b]]
        total = zero
        for i in range(num_states):
            following[b, i] *= row[i]
            total += following[b, i]
        norm[b] = total
        scale = one / total if total > zero else zero
        low = total < floor
        for i in range(num_states):
            belief[b, i] = following[b, i] * scale
        for i in range(num_states):
            low |= zero < following[b, i] < smallest * total
        doubtful[b] |= low


@kernel()
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
