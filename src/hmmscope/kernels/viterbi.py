"""Compiled Viterbi algorithm, with the lanes and tables of `simd_over_sequences`."""

import numpy as np

from hmmscope.kernels.compiling import kernel, part
from hmmscope.kernels.simd_over_sequences import group, look

_compiled = part()


@_compiled
def _longer(width, best, log_weight, target, pointer, here):  # type: ignore[no-untyped-def]
    size = best.shape[0]
    i, before = 0, best[0]
    for lane in range(len(width)):
        target[lane] = before[lane] + log_weight[0]
        here[lane] = 0
    while i + 4 <= size:
        w0, w1, w2, w3 = log_weight[i], log_weight[i + 1], log_weight[i + 2], log_weight[i + 3]
        a, b, c, d = best[i], best[i + 1], best[i + 2], best[i + 3]
        for lane in range(len(width)):
            top, at = target[lane], here[lane]
            x = a[lane] + w0
            at, top = (i if x > top else at), max(x, top)
            x = b[lane] + w1
            at, top = (i + 1 if x > top else at), max(x, top)
            x = c[lane] + w2
            at, top = (i + 2 if x > top else at), max(x, top)
            x = d[lane] + w3
            at, top = (i + 3 if x > top else at), max(x, top)
            target[lane], here[lane] = top, at
        i += 4
    while i < size:
        weight, row = log_weight[i], best[i]
        for lane in range(len(width)):
            x = row[lane] + weight
            here[lane] = i if x > target[lane] else here[lane]
            target[lane] = max(x, target[lane])
        i += 1
    for lane in range(len(pointer)):
        pointer[lane] = here[lane]


@kernel()
def likeliest(  # type: ignore[no-untyped-def]
    width, first, transposed, emission, symbols, offsets, lengths, starts, highest_end, pointers, states, logs
):
    """Find the Viterbi paths (N,), -1 where impossible, and their log-probabilities (n,).

    Among equally probable states the lowest wins; with `highest_end`, the highest wins at the last step. Tables hold
    logarithms; `transposed` is step with its last two axes exchanged.
    """
    size, many = first.shape[1], len(width)
    best, longer = np.zeros((size, many)), np.zeros((size, many))
    here = np.empty(many, np.int64)
    offset, length, seen = np.empty(many, np.int64), np.empty(many, np.int64), np.empty(many, np.int64)
    table, start = emission.ravel(), first.ravel()
    for begin in range(0, len(offsets), many):
        lanes = min(many, len(offsets) - begin)
        shortest, longest = group(width, offsets, lengths, begin, offset, length)
        best[:] = 0.0
        for t in range(longest):
            look(width, symbols, offset, length, t, size, seen)
            kept = pointers[t, :, :lanes]
            if starts[t]:  # all earlier states continue alike: keep the best and its log-probability
                for lane in range(many):
                    top = 0
                    for i in range(1, size):
                        top = i if best[i, lane] > best[top, lane] else top
                    for i in range(size):
                        longer[i, lane] = best[top, lane] + start[seen[lane] + i]
                        if lane < lanes:
                            kept[i, lane] = top
            elif len(table):
                for j in range(size):
                    into = longer[j]
                    _longer(width, best, transposed[0, j], into, kept[j], here)
                    for lane in range(many):
                        into[lane] += table[np.uint64(seen[lane]) + np.uint64(j)]
            else:
                for j in range(size):
                    into = longer[j]
                    into[:], here[:] = -np.inf, 0
                    for i in range(size):
                        before = best[i]
                        for lane in range(many):
                            x = before[lane] + transposed[seen[lane] // size, j, i]
                            here[lane] = i if x > into[lane] else here[lane]
                            into[lane] = max(x, into[lane])
                    for lane in range(lanes):
                        kept[j, lane] = here[lane]
            if t < shortest:
                best, longer = longer, best
            else:
                for i in range(size):
                    for lane in range(many):
                        if t < length[lane]:
                            best[i, lane] = longer[i, lane]
        for lane in range(lanes):
            at = 0
            for i in range(1, size):
                equal = highest_end and best[i, lane] == best[at, lane]
                at = i if best[i, lane] > best[at, lane] or equal else at
            logs[begin + lane] = best[at, lane]
            possible = best[at, lane] > -np.inf
            for t in range(length[lane] - 1, -1, -1):
                states[offset[lane] + t] = at if possible else -1
                at = pointers[t, at, lane]


@kernel()
def path_terms(first, step, emission, symbols, offsets, lengths, starts, states, terms):  # type: ignore[no-untyped-def]
    for row in range(len(offsets)):
        before = 0
        for t in range(lengths[row]):
            place = offsets[row] + t
            seen, now = symbols[place], states[place]
            if now < 0:
                terms[place] = -np.inf
            elif starts[t]:
                terms[place] = first[seen, now]
            elif len(emission):
                terms[place] = step[0, before, now] + emission[seen, now]
            else:
                terms[place] = step[seen, before, now]
            before = now
