"""Filter, smoother and likeliest path in logarithms, for likelihoods that no float holds side by side.

Arrays are of one sequence: logs (T, S), initial (S,) and moves (S, S) as logarithms; -inf is impossible.
"""

import numpy as np

from hmmscope.kernels.compiling import kernel


@kernel()
def forward(initial, moves, logs, alphas, totals):  # type: ignore[no-untyped-def]
    """alphas[t, j] = log P(o_0..o_t, state t = j), and totals[t] their sum over states."""
    size = len(initial)
    for t in range(len(logs)):
        whole = -np.inf
        for j in range(size):
            if t == 0:
                reached = initial[j]
            else:
                largest = -np.inf
                for i in range(size):
                    largest = max(largest, alphas[t - 1, i] + moves[i, j])
                reached = largest
                if largest > -np.inf:
                    total = 0.0
                    for i in range(size):
                        total += np.exp(alphas[t - 1, i] + moves[i, j] - largest)
                    reached = largest + np.log(total)
            alphas[t, j] = reached + logs[t, j]
            whole = max(whole, alphas[t, j])
        totals[t] = whole
        if whole > -np.inf:
            total = 0.0
            for j in range(size):
                total += np.exp(alphas[t, j] - whole)
            totals[t] = whole + np.log(total)


@kernel()
def backward(moves, logs, alphas, total, smoothed, pairs):  # type: ignore[no-untyped-def]
    """smoothed[t, i] = P(state t = i | all), and added to pairs[i, j] the sum of P(state t = i, state t + 1 = j | all).

    `alphas` are those of `forward`, and `total` is the last of its totals, which must be finite.
    """
    size, last = alphas.shape[1], len(logs) - 1
    beta, after = np.zeros(size), np.empty(size)
    for i in range(size):
        smoothed[last, i] = np.exp(alphas[last, i] - total)
    for t in range(last - 1, -1, -1):
        for j in range(size):
            after[j] = logs[t + 1, j] + beta[j]
        for i in range(size):
            largest = -np.inf
            for j in range(size):
                largest = max(largest, moves[i, j] + after[j])
                pairs[i, j] += np.exp(alphas[t, i] + moves[i, j] + after[j] - total)
            beta[i] = largest
            if largest > -np.inf:
                summed = 0.0
                for j in range(size):
                    summed += np.exp(moves[i, j] + after[j] - largest)
                beta[i] = largest + np.log(summed)
        for i in range(size):
            smoothed[t, i] = np.exp(alphas[t, i] + beta[i] - total)


@kernel()
def likeliest(initial, moves, logs, pointers, states):  # type: ignore[no-untyped-def]
    """The likeliest path, the lowest states among equals, and its logarithm; states of -1 where no path is possible."""
    size, best = len(initial), initial + logs[0]
    following = np.empty(size)
    for t in range(1, len(logs)):
        for j in range(size):
            chosen = 0
            for i in range(1, size):
                if best[i] + moves[i, j] > best[chosen] + moves[chosen, j]:
                    chosen = i
            pointers[t, j] = chosen
            following[j] = best[chosen] + moves[chosen, j] + logs[t, j]
        best[:] = following
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
def filter_rows(initial, transition, logs, starts, lengths, predicted, beliefs, terms, doubtful):  # type: ignore[no-untyped-def]
    """The forward filter of sequences (B, T, S), rows of log-likelihoods scaled by the largest of a state that can be.

    A sequence in which a positive belief falls below 1e-280 is in doubt, and left as it is from there on: a later one may
    ask for what floats have lost. Beliefs are zeros and terms -inf from an impossible observation on.

    Returns:
        False if a log-likelihood is NaN or +inf.
    """
    size = len(initial)
    for b in range(len(logs)):
        for t in range(lengths[b]):
            for j in range(size):
                predicted[b, t, j] = initial[j] if starts[t] else 0.0
            if not starts[t]:
                for i in range(size):
                    weight = beliefs[b, t - 1, i]
                    if weight > 0.0:
                        for j in range(size):
                            predicted[b, t, j] += weight * transition[i, j]
            largest = -np.inf
            for j in range(size):
                if not logs[b, t, j] < np.inf:
                    return False
                if predicted[b, t, j] > 0.0 and logs[b, t, j] > largest:
                    largest = logs[b, t, j]
            if largest == -np.inf:
                terms[b, t : lengths[b]] = -np.inf
                break
            total = 0.0
            for j in range(size):
                before = predicted[b, t, j]
                if before > 0.0 and logs[b, t, j] > -np.inf:
                    after = before * np.exp(logs[b, t, j] - largest)
                    doubtful[b] |= after < 1e-280
                    beliefs[b, t, j] = after
                    total += after
            for j in range(size):
                beliefs[b, t, j] /= total
            terms[b, t] = largest + np.log(total)
            if doubtful[b]:
                break
    return True
