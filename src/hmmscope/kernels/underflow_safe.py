"""Compiled dynamic programs that cannot underflow, one sequence at a time.

A weight is zero or mantissa * 2^(256 exponent), with the mantissa in [2^-128, 2^128). Tables are those of
`simd_over_sequences`.
"""

import math

import numpy as np

from hmmscope.kernels.compiling import kernel, part

_UP, _DOWN, _HIGH, _LOW = 2.0**256, 2.0**-256, 2.0**128, 2.0**-128
_LOG_UP = 256 * math.log(2.0)
_NEVER = -(2**62)

_compiled = part()
_kernel = kernel()


@_compiled
def _balanced(mantissa, exponent):  # type: ignore[no-untyped-def]
    if mantissa == 0.0:
        return 0.0, np.int64(0)
    while mantissa < _LOW:
        mantissa, exponent = mantissa * _UP, exponent - 1
    while mantissa >= _HIGH:
        mantissa, exponent = mantissa * _DOWN, exponent + 1
    return mantissa, exponent


@_compiled
def _dot(mantissa, exponent, others, weights, begin, end):  # type: ignore[no-untyped-def]
    total, top = 0.0, np.int64(_NEVER)
    for entry in range(begin, end):
        term, power = mantissa[others[entry]] * weights[entry], exponent[others[entry]]
        if term > 0.0:
            if term < _LOW:
                term, power = _balanced(term, power)  # otherwise tiny weights look like large terms
            if power > top:
                total, top = (total * _DOWN if power == top + 1 else 0.0), power
            if power == top:
                total += term
            elif power == top - 1:
                total += term * _DOWN
    return _balanced(total, top)


@_compiled
def _divide(mantissa, exponent, every, ones):  # type: ignore[no-untyped-def]
    total, top = _dot(mantissa, exponent, every, ones, np.uint64(0), np.uint64(len(mantissa)))
    if total > 0.0:
        for i in range(len(mantissa)):
            mantissa[i], exponent[i] = _balanced(mantissa[i] / total, exponent[i] - top)
    return total, top


@_compiled
def _plain(mantissa, exponent):  # type: ignore[no-untyped-def]
    for _ in range(min(-exponent, 5)):
        mantissa *= _DOWN
    return mantissa


@_kernel
def forward(first, begins, others, weights, emission, symbols, starts, mantissa, exponent, terms):  # type: ignore[no-untyped-def]
    """Filter one sequence: write beliefs (T, S) as weights, and log P(o_t | past) (T,), -inf from an impossible o_t on.

    Transitions are lists of entries grouped by successor, as in `hmmscope.kernels.sparse`.
    """
    size = first.shape[1]
    every, ones = np.arange(size).astype(np.uint64), np.ones(size)
    alive = True
    for t in range(len(symbols)):
        seen, into, power = symbols[t], mantissa[t], exponent[t]
        into[:], power[:] = 0.0, 0
        if alive:
            base = 0 if len(emission) else seen * size
            for j in range(size):
                if starts[t]:
                    into[j], power[j] = first[seen, j], 0
                else:
                    begin, end = begins[base + j], begins[base + j + 1]
                    weight, top = _dot(mantissa[t - 1], exponent[t - 1], others, weights, begin, end)
                    into[j], power[j] = _balanced(weight * emission[seen, j], top) if len(emission) else (weight, top)
            total, top = _divide(into, power, every, ones)
            alive = total > 0.0
        terms[t] = math.log(total) + top * _LOG_UP if alive else -np.inf


@_kernel
def smooth(  # type: ignore[no-untyped-def]
    into, out_of, emits, symbols, starts, mantissa, exponent, smoothed, pairs, moves
):
    """Compute P(state t | o) (T, S) and, if requested, P(state t, state t+1 | o) (T - 1, S, S).

    smoothed_t(i) = belief_t(i) sum_j (step_ij smoothed_{t+1}(j) / sum_k belief_t(k) step_kj), where `step` is the
    transition matrix if states emit (`emits`), else the matrix of o_{t+1}.

    The function adds the sum of pairs over time to `moves` (S, S), without pairs across sequence starts.
    """
    size = mantissa.shape[1]
    every, ones = np.arange(size).astype(np.uint64), np.ones(size)
    now, power = np.empty(size), np.empty(size, np.int64)
    ratio, height = np.zeros(size), np.zeros(size, np.int64)
    pairs[:] = 0.0
    for t in range(len(symbols) - 1, -1, -1):
        last = t + 1 == len(symbols) or starts[t + 1]
        if t + 1 < len(symbols) and not last:
            base = 0 if emits else symbols[t + 1] * size
            for j in range(size):
                begin, end = into[0][base + j], into[0][base + j + 1]
                weight, top = _dot(mantissa[t], exponent[t], into[1], into[2], begin, end)
                possible = weight > 0.0
                ratio[j], height[j] = _balanced(now[j] / weight if possible else 0.0, power[j] - top)
            for i in range(size):
                begin, end = out_of[0][base + i], out_of[0][base + i + 1]
                weight, top = _dot(ratio, height, out_of[1], out_of[2], begin, end)
                now[i], power[i] = _balanced(weight * mantissa[t, i], top + exponent[t, i])
                for entry in range(begin, end if len(pairs) or len(moves) else begin):
                    j = out_of[1][entry]
                    one, two = _balanced(mantissa[t, i] * ratio[j], exponent[t, i] + height[j])
                    pair = _plain(*_balanced(one * out_of[2][entry], two))
                    if len(pairs):
                        pairs[t, i, j] = pair
                    if len(moves):
                        moves[i, j] += pair
            _divide(now, power, every, ones)
        else:
            for i in range(size):
                now[i], power[i] = mantissa[t, i], exponent[t, i]
        for i in range(size):
            smoothed[t, i] = _plain(now[i], power[i])
        if last and t + 1 < len(symbols) and len(pairs):
            for i in range(size):
                for j in range(size):
                    pairs[t, i, j] = smoothed[t, i] * smoothed[t + 1, j]


@_kernel
def draw(transposed, emits, symbols, starts, mantissa, exponent, uniforms, paths):  # type: ignore[no-untyped-def]
    """Draw paths (P, T) from the posterior given a sequence of positive probability, with uniform numbers (P, T).

    P(state t = i | state t+1 = j, o) ∝ belief_t(i) step_ij. `transposed` is step with its last two axes exchanged. If
    `exponent` has no rows, `mantissa` holds the beliefs.
    """
    size = mantissa.shape[1]
    weights, height = np.empty(size), np.zeros(size, np.int64)
    for p in range(len(paths)):
        later = 0
        for t in range(len(symbols) - 1, -1, -1):
            alone = t + 1 == len(symbols) or starts[t + 1]
            column = transposed[0 if emits or alone else symbols[t + 1], later]
            top = np.int64(_NEVER)
            for i in range(size):
                weights[i] = mantissa[t, i] * (1.0 if alone else column[i])
                if len(exponent):
                    height[i] = exponent[t, i]
                    if weights[i] > 0.0 and height[i] > top:
                        top = height[i]
            total = 0.0
            for i in range(size):
                if len(exponent) and weights[i] > 0.0 and height[i] < top:
                    weights[i] = weights[i] * _DOWN if height[i] == top - 1 else 0.0
                total += weights[i]
            target, reached = uniforms[p, t] * total, 0.0
            for i in range(size):
                reached += weights[i]
                if weights[i] > 0.0:
                    later = i
                    if reached > target:
                        break
            paths[p, t] = later


@_kernel
def plain(mantissa, exponent, values):  # type: ignore[no-untyped-def]
    for t in range(values.shape[0]):
        for i in range(values.shape[1]):
            values[t, i] = _plain(mantissa[t, i], exponent[t, i])
