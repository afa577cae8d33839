"""Filter, smoother and Viterbi path in log space, for one sequence.

Inputs are logarithms: `logs` (T, S) of likelihoods, `initial` (S,), and `moves` (S, S) of the transition matrix.
"""

import numpy as np

from hmmscope.kernels.compiling import kernel

#: Sums of products of probabilities below this are computed in logarithms.
_LEAST = 1e-200


@kernel()
def forward(initial, moves, logs, alphas, terms, shifts):  # type: ignore[no-untyped-def]
    """Write alphas[t, j] = log P(state t = j | o_0..o_t); terms[t] + shifts[t] = log P(o_t | past).

    shifts[t] is the largest log-likelihood among the reachable states.
    """
    size = len(initial)
    steps, law, reached = np.exp(moves), np.zeros(size), np.empty(size)
    for t in range(len(logs)):
        reached[:] = 0.0
        for i in range(size):
            for j in range(size):
                reached[j] += law[i] * steps[i, j]
        shift = -np.inf
        for j in range(size):
            if t == 0:
                alphas[t, j] = initial[j]
            elif reached[j] >= _LEAST:
                alphas[t, j] = np.log(reached[j])
            else:
                largest, total = -np.inf, 0.0
                for i in range(size):
                    largest = max(largest, alphas[t - 1, i] + moves[i, j])
                if largest > -np.inf:
                    for i in range(size):
                        total += np.exp(alphas[t - 1, i] + moves[i, j] - largest)
                    largest += np.log(total)
                alphas[t, j] = largest
            if alphas[t, j] > -np.inf:
                shift = max(shift, logs[t, j])
        shifts[t] = shift
        whole, total = -np.inf, 0.0
        for j in range(size):
            if alphas[t, j] > -np.inf and shift > -np.inf:
                alphas[t, j] += logs[t, j] - shift
                whole = max(whole, alphas[t, j])
            else:
                alphas[t, j] = -np.inf
        terms[t] = whole
        law[:] = 0.0
        if whole > -np.inf:
            for j in range(size):
                law[j] = np.exp(alphas[t, j] - whole)
                total += law[j]
            terms[t] = whole + np.log(total)
            for j in range(size):
                alphas[t, j] -= terms[t]
                law[j] /= total


@kernel()
def backward(moves, logs, alphas, terms, shifts, smoothed, pairs):  # type: ignore[no-untyped-def]
    """Write smoothed[t, i] = P(state t = i | o); add sum_t P(state t = i, state t + 1 = j | o) to pairs[i, j]."""
    size, last = alphas.shape[1], len(logs) - 1
    steps, beta, after, following = np.exp(moves), np.zeros(size), np.empty(size), np.empty(size)
    turned, law, totals, joint = steps.T.copy(), np.empty(size), np.empty(size), np.empty((size, size))
    for i in range(size):
        smoothed[last, i] = np.exp(alphas[last, i])
    for t in range(last - 1, -1, -1):
        most, whole = -np.inf, 0.0
        totals[:] = 0.0
        for j in range(size):
            after[j] = (logs[t + 1, j] - shifts[t + 1]) - terms[t + 1] + beta[j]
            most = max(most, after[j])
        for j in range(size):
            following[j] = np.exp(after[j] - most)
            for i in range(size):
                totals[i] += turned[j, i] * following[j]
        for i in range(size):
            law[i] = np.exp(alphas[t, i])
            whole += law[i] * totals[i]
            if totals[i] >= _LEAST:
                beta[i] = most + np.log(totals[i])
                continue
            largest, total = -np.inf, 0.0
            for j in range(size):
                largest = max(largest, moves[i, j] + after[j])
            if largest > -np.inf:
                for j in range(size):
                    total += np.exp(moves[i, j] + after[j] - largest)
                largest += np.log(total)
            beta[i] = largest
        if whole >= _LEAST:
            for i in range(size):
                scale = law[i] / whole
                smoothed[t, i] = scale * totals[i]
                for j in range(size):
                    pairs[i, j] += scale * steps[i, j] * following[j]
            continue
        most, whole = -np.inf, 0.0
        for i in range(size):
            for j in range(size):
                most = max(most, alphas[t, i] + moves[i, j] + after[j])
        for i in range(size):
            for j in range(size):
                joint[i, j] = np.exp(alphas[t, i] + moves[i, j] + after[j] - most)
                whole += joint[i, j]
        for i in range(size):
            smoothed[t, i] = 0.0
            for j in range(size):
                pairs[i, j] += joint[i, j] / whole
                smoothed[t, i] += joint[i, j] / whole


@kernel()
def likeliest(initial, moves, logs, pointers, states):  # type: ignore[no-untyped-def]
    """Write the Viterbi path (the lowest of equally probable states, -1 if impossible); return its log-probability."""
    size = len(initial)
    best, following = np.empty(size), np.empty(size)
    for j in range(size):
        best[j] = initial[j] + logs[0, j]
    for t in range(1, len(logs)):
        for j in range(size):
            chosen = 0
            for i in range(1, size):
                if best[i] + moves[i, j] > best[chosen] + moves[chosen, j]:
                    chosen = i
            pointers[t, j] = chosen
            following[j] = best[chosen] + moves[chosen, j] + logs[t, j]
        best, following = following, best
    state = 0
    for j in range(1, size):
        if best[j] > best[state]:
            state = j
    found = best[state]
    for t in range(len(logs) - 1, -1, -1):
        states[t] = -1 if found == -np.inf else state
        state = pointers[t, state] if t > 0 else state
    return found


@kernel()
def path_totals(initial, moves, logs, offsets, lengths, starts, states, totals):  # type: ignore[no-untyped-def]
    for row in range(len(offsets)):
        total = 0.0
        for t in range(lengths[row]):
            place = offsets[row] + t
            now = states[place]
            if now < 0:
                total = -np.inf
            elif starts[t]:
                total += initial[now] + logs[place, now]
            else:
                total += moves[states[place - 1], now] + logs[place, now]
        totals[row] = total
