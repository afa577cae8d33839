"""Compiled dynamic programs over nonzero transitions, for many states with few successors.

Formulas, tables and results are those of `hmmscope.kernels.simd_over_sequences`, but `step` is stored as a list of its
positive entries:

    begins (K S + 1,)      begins[k S + s] .. begins[k S + s + 1] - 1 are the entries of matrix k < K and state s;
    others, weights (E,)   each entry's successor or predecessor, in ascending order, and its value
"""

import math

import numpy as np

from hmmscope.kernels.compiling import kernel, part

#: Terms per partial sum, so that rounding does not grow with the length.
_TERMS = 1024


@part(fastmath={"contract", "reassoc"})
def _moved(law, matrix, now):  # type: ignore[no-untyped-def]
    size = len(law)
    now[:] = 0.0
    for i in range(0, size - 3, 4):
        a, b, c, d = law[i], law[i + 1], law[i + 2], law[i + 3]
        for j in range(size):
            now[j] += (a * matrix[i, j] + b * matrix[i + 1, j]) + (c * matrix[i + 2, j] + d * matrix[i + 3, j])
    for i in range(size - size % 4, size):
        for j in range(size):
            now[j] += law[i] * matrix[i, j]


@kernel(fastmath={"contract", "reassoc"})
def forward(  # type: ignore[no-untyped-def]
    first,
    step,
    begins,
    others,
    weights,
    emission,
    symbols,
    offsets,
    lengths,
    starts,
    smallest,
    every,
    beliefs,
    norms,
    totals,
    doubtful,
):
    """Filter sequences with transitions grouped by successor, or with dense `step` (K, S, S) if `begins` is empty.

    A sequence stops at an underflow risk: a belief below `smallest`, checked every `every` steps.
    """
    size, emits = first.shape[1], len(emission) > 0
    law, now = np.zeros(size), np.zeros(size)
    for row in range(len(offsets)):
        place, product, whole, doubt, alive = offsets[row], 1.0, 0.0, False, True
        for t in range(lengths[row]):
            seen, norm = symbols[place], 0.0
            if alive and starts[t]:
                for j in range(size):
                    now[j] = first[seen, j]
                    norm += now[j]
            elif alive:
                base = 0 if emits else seen * size
                for j in range(size if len(begins) else 0):
                    x = 0.0
                    for entry in range(begins[base + j], begins[base + j + 1]):
                        x += law[others[entry]] * weights[entry]
                    now[j] = x
                if len(begins) == 0:
                    _moved(law, step[0 if emits else seen], now)
                if emits:
                    for j in range(size):
                        now[j] *= emission[seen, j]
                for j in range(size):
                    norm += now[j]
            alive = norm > 0.0
            for j in range(size):
                now[j] = now[j] / norm if alive else 0.0
            law, now = now, law
            if len(beliefs):
                for j in range(size):
                    beliefs[place, j] = law[j]
            if len(norms):
                norms[place] = norm
            if t % every == every - 1:
                least = 1.0
                for j in range(size):
                    least = min(least, law[j] if law[j] > 0.0 else 1.0)
                if least < smallest:  # redone as a whole
                    doubt = True
                    break
            product *= norm
            if alive and product < 1e-100:
                whole += math.log(product)
                product = 1.0
            place += 1
        doubtful[row] = doubt
        if len(totals) and not doubt:
            totals[row] = whole + math.log(product) if alive else -np.inf


@kernel(fastmath={"contract", "reassoc"})
def backward(  # type: ignore[no-untyped-def]
    begins,
    others,
    weights,
    emission,
    symbols,
    offsets,
    lengths,
    starts,
    beliefs,
    norms,
    smoothed,
    factors,
    first_counts,
    pair_counts,
    symbol_counts,
):
    size, emits = beliefs.shape[1], len(emission) > 0
    ahead, factor, joint = np.empty(size), np.zeros(size), np.empty(size)
    sums, terms = np.zeros(len(weights) if len(pair_counts) else 0), 0
    for row in range(len(offsets)):
        for t in range(lengths[row] - 1, -1, -1):
            place = offsets[row] + t
            seen, now, ends = symbols[place], beliefs[place], t + 1 == lengths[row] or starts[t + 1]
            if ends:
                ahead[:] = 1.0
            else:
                base = 0 if emits else symbols[place + 1] * size
                for i in range(size):
                    x = 0.0
                    for entry in range(begins[base + i], begins[base + i + 1]):
                        x += weights[entry] * factor[others[entry]]
                        if len(sums):
                            sums[entry] += now[i] * factor[others[entry]]
                    ahead[i] = x
                terms += 1
            whole = 0.0
            for i in range(size):
                ahead[i] = ahead[i] if now[i] > 0.0 else 0.0
                joint[i] = now[i] * ahead[i]
                whole += joint[i]
            scale = 1.0 / whole if whole > 0.0 and not ends else 1.0  # renormalise against rounding errors
            inverse = scale / norms[place] if norms[place] > 0.0 else 0.0
            for i in range(size):
                joint[i] *= scale
                factor[i] = ahead[i] * inverse * (emission[seen, i] if emits else 1.0)
            if len(factors):
                for i in range(size):
                    factors[place, i] = factor[i]
            if len(smoothed):
                for i in range(size):
                    smoothed[place, i] = joint[i]
            if len(symbol_counts):
                for i in range(size):
                    symbol_counts[seen, i] += joint[i]
            if starts[t] and len(first_counts):
                for i in range(size):
                    first_counts[i] += joint[i]
            if len(sums) and (terms >= _TERMS or (t == 0 and row + 1 == len(offsets))):
                for i in range(size):
                    for entry in range(begins[i], begins[i + 1]):
                        pair_counts[i, others[entry]] += sums[entry]
                        sums[entry] = 0.0
                terms = 0


@part()
def _lengthened(best, step, longer, here):  # type: ignore[no-untyped-def]
    size = len(best)
    for j in range(size):
        longer[j], here[j] = best[0] + step[0, j], 0
    for i in range(1, size - 3, 4):
        a, b, c, d = best[i], best[i + 1], best[i + 2], best[i + 3]
        for j in range(size):
            top, at = longer[j], here[j]
            x = a + step[i, j]
            at, top = (i if x > top else at), max(x, top)
            x = b + step[i + 1, j]
            at, top = (i + 1 if x > top else at), max(x, top)
            x = c + step[i + 2, j]
            at, top = (i + 2 if x > top else at), max(x, top)
            x = d + step[i + 3, j]
            at, top = (i + 3 if x > top else at), max(x, top)
            longer[j], here[j] = top, at
    for i in range(size - (size - 1) % 4, size):
        for j in range(size):
            x = best[i] + step[i, j]
            here[j] = i if x > longer[j] else here[j]
            longer[j] = max(x, longer[j])


@kernel()
def likeliest(  # type: ignore[no-untyped-def]
    first,
    step,
    begins,
    others,
    weights,
    emission,
    symbols,
    offsets,
    lengths,
    starts,
    highest_end,
    pointers,
    states,
    logs,
):
    """Find Viterbi paths as `viterbi.likeliest` does, with dense `step` (K, S, S) if `begins` is empty."""
    size, emits = first.shape[1], len(emission) > 0
    best, longer, here = np.zeros(size), np.zeros(size), np.zeros(size, np.int64)
    for row in range(len(offsets)):
        best[:] = 0.0
        for t in range(lengths[row]):
            seen = symbols[offsets[row] + t]
            if starts[t]:
                top = int(np.argmax(best))
                for j in range(size):
                    longer[j], pointers[t, j] = best[top] + first[seen, j], top
            else:
                base = 0 if emits else seen * size
                if len(begins) == 0:
                    _lengthened(best, step[0 if emits else seen], longer, here)
                    for j in range(size):
                        longer[j] += emission[seen, j] if emits else 0.0
                        pointers[t, j] = here[j]
                for j in range(size if len(begins) else 0):
                    most, at = -np.inf, 0
                    for entry in range(begins[base + j], begins[base + j + 1]):
                        x = best[others[entry]] + weights[entry]
                        at = int(others[entry]) if x > most else at
                        most = max(x, most)
                    longer[j], pointers[t, j] = most + (emission[seen, j] if emits else 0.0), at
            best, longer = longer, best
        at = int(np.argmax(best))
        for j in range(size if highest_end else 0):
            at = j if best[j] == best[at] else at
        logs[row] = best[at]
        possible = best[at] > -np.inf
        for t in range(lengths[row] - 1, -1, -1):
            states[offsets[row] + t] = at if possible else -1
            at = int(pointers[t, at])
