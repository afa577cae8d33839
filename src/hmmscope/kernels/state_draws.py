"""Compiled Gibbs sampling of hidden paths given parameters, and of parameters given path counts.

Observations select rows of a likelihood table (R, S). Sequences are given by offset and length in a flat array (N,). A
sequence with a P(o_t | past) below 1e-100 is filtered again in log space. `random` is a `numpy.random.Generator`.
"""

import math

import numpy as np

from hmmscope.kernels.compiling import kernel, part

#: Least P(o_t | past) that is safe from underflow.
_DOUBT = 1e-100


@part()
def _filter(initial, step, table, seen, begin, end, beliefs):  # type: ignore[no-untyped-def]
    size, total, product = len(initial), 0.0, 1.0
    for t in range(begin, end):
        row, norm = seen[t], 0.0
        if t == begin:
            for j in range(size):
                beliefs[t, j] = initial[j]
        else:
            for j in range(size):
                beliefs[t, j] = 0.0
            for i in range(size):
                share = beliefs[t - 1, i]
                for j in range(size):
                    beliefs[t, j] += share * step[i, j]
        for j in range(size):
            beliefs[t, j] *= table[row, j]
            norm += beliefs[t, j]
        if not norm > _DOUBT:
            return np.nan
        scale = 1.0 / norm
        for j in range(size):
            beliefs[t, j] *= scale
        product *= norm
        if product < _DOUBT:
            total, product = total + math.log(product), 1.0
    return total + math.log(product)


@part()
def _filter_in_logarithms(initial, step, table, seen, beliefs):  # type: ignore[no-untyped-def]
    size, total = len(initial), 0.0
    for t in range(len(seen)):
        highest = -np.inf
        for j in range(size):
            reached = -np.inf
            if t == 0:
                reached = np.log(initial[j])
            else:
                for i in range(size):
                    reached = np.logaddexp(reached, beliefs[t - 1, i] + np.log(step[i, j]))
            beliefs[t, j] = reached + np.log(table[seen[t], j])
            highest = max(highest, beliefs[t, j])
        if highest == -np.inf:
            return -np.inf
        for j in range(size):
            beliefs[t, j] -= highest
        total += highest
    last = 0.0
    for j in range(size):
        last += np.exp(beliefs[len(seen) - 1, j])
    return total + math.log(last)


@part()
def _choose(weights, total, random):  # type: ignore[no-untyped-def]
    target, reached, chosen = random.random() * total, 0.0, 0
    for i in range(len(weights)):
        reached += weights[i]
        if weights[i] > 0.0:
            chosen = i
            if reached > target:
                break
    return chosen


@part()
def _backward(columns, beliefs, begin, end, states, random, weights):  # type: ignore[no-untyped-def]
    size, later = len(weights), 0
    for t in range(end - 1, begin - 1, -1):
        total = 0.0
        for i in range(size):
            weights[i] = beliefs[t, i] if t == end - 1 else beliefs[t, i] * columns[later, i]
            total += weights[i]
        later = _choose(weights, total, random)
        states[t] = later


@part()
def _backward_in_logarithms(columns, beliefs, states, random, weights):  # type: ignore[no-untyped-def]
    later = 0
    for t in range(len(states) - 1, -1, -1):
        highest, total = -np.inf, 0.0
        for i in range(len(weights)):
            weights[i] = beliefs[t, i] if t == len(states) - 1 else beliefs[t, i] + np.log(columns[later, i])
            highest = max(highest, weights[i])
        for i in range(len(weights)):
            weights[i] = np.exp(weights[i] - highest)
            total += weights[i]
        later = _choose(weights, total, random)
        states[t] = later


@part()
def _draw(initial, step, table, seen, offsets, lengths, random, beliefs, states):  # type: ignore[no-untyped-def]
    total, weights, columns = 0.0, np.empty(len(initial)), step.T.copy()
    for n in range(len(lengths)):
        begin, end = offsets[n], offsets[n] + lengths[n]
        log = _filter(initial, step, table, seen, begin, end, beliefs)
        if np.isnan(log):
            own = slice(begin, end)
            log = _filter_in_logarithms(initial, step, table, seen[own], beliefs[own])
            if log == -np.inf:
                return -np.inf
            _backward_in_logarithms(columns, beliefs[own], states[own], random, weights)
        else:
            _backward(columns, beliefs, begin, end, states, random, weights)
        total += log
    return total


@part()
def _count(states, offsets, lengths, first, moves):  # type: ignore[no-untyped-def]
    first.fill(0.0)
    moves.fill(0.0)
    for n in range(len(lengths)):
        begin = offsets[n]
        first[states[begin]] += 1.0
        for t in range(begin + 1, begin + lengths[n]):
            moves[states[t - 1], states[t]] += 1.0


@part()
def _dirichlet(prior, counts, random, law):  # type: ignore[no-untyped-def]
    total = 0.0
    for k in range(len(law)):
        shape = prior[k] + counts[k]
        law[k] = random.standard_gamma(shape) if shape > 0.0 else 0.0
        total += law[k]
    for k in range(len(law)):
        law[k] /= total


@kernel()
def draw_paths(initial, step, table, seen, offsets, lengths, random, beliefs, states, first, moves):  # type: ignore[no-untyped-def]
    """Sample paths into `states` (N,); count first states (S,) and transitions (S, S); return the log-likelihood."""
    log = _draw(initial, step, table, seen, offsets, lengths, random, beliefs, states)
    if log > -np.inf:
        _count(states, offsets, lengths, first, moves)
    return log


@kernel()
def symbol_chain(  # type: ignore[no-untyped-def]
    initial, step, emission, priors, seen, offsets, lengths, random, burn, every, reference, kept
):
    """Run a Gibbs chain in place; return False if the parameters forbid a sequence.

    path ~ P(path | parameters, o);  each row of the parameters ~ Dirichlet(prior + counts along the path)

    Args:
        initial, step, emission: Parameters of shapes (S,), (S, S) and (S, V).
        priors: Dirichlet concentrations of the same shapes.
        seen: Symbols (N,); the value V means missing.
        burn, every: Numbers of sweeps before the first draw, and between draws.
        reference: Reference path (N,), to which state labels are matched later; empty for no matching.
        kept: Arrays with one row per draw (D, ...) for initial, step, emission, log-likelihood, and counts of path
            states by reference states (D, S, S).
    """
    size, num_symbols = emission.shape
    beliefs, states = np.empty((len(seen), size)), np.empty(len(seen), np.int64)
    first, moves, visits = np.empty(size), np.empty((size, size)), np.empty((size, num_symbols + 1))
    table = np.ones((num_symbols + 1, size))
    for sweep in range(burn + every * (len(kept[3]) - 1) + 1):
        for v in range(num_symbols):
            for i in range(size):
                table[v, i] = emission[i, v]
        log = _draw(initial, step, table, seen, offsets, lengths, random, beliefs, states)
        if log == -np.inf:
            return False
        _count(states, offsets, lengths, first, moves)
        visits.fill(0.0)
        for t in range(len(seen)):
            visits[states[t], seen[t]] += 1.0
        if sweep >= burn and (sweep - burn) % every == 0:
            d = (sweep - burn) // every
            kept[3][d] = log
            kept[4][d].fill(0.0)
            for t in range(len(reference)):
                kept[4][d, states[t], reference[t]] += 1.0
            for i in range(size):
                kept[0][d, i] = initial[i]
                for j in range(size):
                    kept[1][d, i, j] = step[i, j]
                for v in range(num_symbols):
                    kept[2][d, i, v] = emission[i, v]
        _dirichlet(priors[0], first, random, initial)
        for i in range(size):
            _dirichlet(priors[1][i], moves[i], random, step[i])
            _dirichlet(priors[2][i], visits[i], random, emission[i])
    return True
