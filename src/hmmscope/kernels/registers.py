"""Compiled dynamic programs with the states side by side in a register: filter, smoother, counts, likeliest paths.

One sequence after the other, up to 64 states, which are eight registers of eight numbers. A step is a chain of a few
instructions, whose length decides how fast one sequence can be; what is only written down is off the chain. So sums are
divided out every eight steps only: one step shrinks a positive entry by no more than 2^-80, and an entry above 1e-100 is a
normal number eight steps later.

Formulas, tables and doubts are those of `hmmscope.kernels.lanes`. Here tables are flat, each row padded with zeros (for
logarithms with -inf) to the size of a vector; see `hmmscope.kernels.vectors`.
"""

import math

import numpy as np

from hmmscope.kernels.compiling import kernel
from hmmscope.kernels.vectors import (
    add_outer,
    any_tiny,
    divided,
    filled,
    load,
    longest,
    moved,
    plus,
    predict_four,
    predict_one,
    put,
    row_size,
    scaled,
    take,
    times,
    total,
    where_positive,
)

#: The most states: with more of them a step is no longer written out in one piece.
MOST = 64

#: Steps between two divisions, and the smallest entry that is in no doubt then.
_EVERY, _SMALLEST = 8, 1e-100
#: Terms of a sum before it is added to a longer one, so that rounding does not grow with the length.
_TERMS = 1024


@kernel()
def forward(  # type: ignore[no-untyped-def]
    states,
    first,
    step,
    emission,
    opening,
    prediction,
    symbols,
    offsets,
    lengths,
    starts,
    beliefs,
    norms,
    ahead,
    totals,
    doubtful,
):
    """The filter, as `lanes.forward` without `ends`; arrays but `symbols` to `starts` are flat."""
    size, columns = len(states), len(opening)
    padded = row_size(states)
    for row in range(len(offsets)):
        begin, time = offsets[row], lengths[row]
        law = filled(states, 0.0)
        last, whole, product, doubt, t = 1.0, 0.0, 1.0, False, 0
        while t < time:
            seen = symbols[begin + t]
            if starts[t]:
                law = load(states, first, seen * padded)
                product, last = product * last, 1.0
            elif len(emission):
                law = times(moved(states, law, step, 0), load(states, emission, seen * padded))
            else:
                law = moved(states, law, step, seen * size * padded)
            norm = total(law)
            if not norm > 0.0:
                break
            now = divided(law, norm)  # not times 1 / norm: a belief that is certain is exactly one
            if len(norms):
                norms[begin + t] = norm / last
            last = norm
            if len(beliefs):
                put(states, now, beliefs, (begin + t) * size)
            if columns:
                place = (begin + t) * columns
                if t + 1 < len(starts) and starts[t + 1]:
                    for v in range(columns):
                        ahead[place + v] = opening[v]
                else:
                    v = 0
                    while v + 4 <= columns:
                        predict_four(states, now, prediction, v, columns, ahead, place + v)
                        v += 4
                    while v < columns:
                        predict_one(states, now, prediction, v, columns, ahead, place + v)
                        v += 1
            if t % _EVERY == _EVERY - 1:
                law, last = now, 1.0
                doubt |= any_tiny(law, _SMALLEST)
                product *= norm
            if product < 1e-100:
                whole += math.log(product)
                product = 1.0
            t += 1
        doubtful[row] = doubt
        if len(totals):
            totals[row] += whole + math.log(product) + math.log(last) if t == time else -np.inf
        for place in range(begin + t, begin + time):
            if len(norms):
                norms[place] = 0.0
            if len(beliefs):
                put(states, filled(states, 0.0), beliefs, place * size)
            for v in range(columns):
                ahead[place * columns + v] = 0.0


@kernel()
def backward(  # type: ignore[no-untyped-def]
    states,
    transposed,
    emission,
    symbols,
    offsets,
    lengths,
    starts,
    beliefs,
    norms,
    smoothed,
    weights,
    first_counts,
    pair_counts,
    symbol_counts,
):
    """The smoother and the expected counts, as `lanes.backward`; arrays but `symbols` to `starts` are flat."""
    size, padded = len(states), row_size(states)
    sums = np.zeros(size * padded if len(pair_counts) else 0)
    ahead = filled(states, 1.0)
    weight, terms = ahead, 0
    for row in range(len(offsets)):
        begin, time = offsets[row], lengths[row]
        t = time
        while t > 0:
            low, scale = max(0, t - _EVERY), 1.0
            while t > low:
                t -= 1
                place = begin + t
                now = take(states, beliefs, place * size)
                ends = t + 1 == time or starts[t + 1]
                if ends:
                    ahead = filled(states, 1.0)
                else:
                    if len(sums):
                        add_outer(states, now, weight, sums)
                        terms += 1
                    if len(emission):
                        ahead = moved(states, weight, transposed, 0)
                    else:
                        ahead = moved(states, weight, transposed, symbols[place + 1] * size * padded)
                ahead = where_positive(now, ahead)
                joint = times(now, ahead)
                whole = total(joint)  # one up to rounding, which must not add up over time
                scale = 1.0 / whole if whole > 0.0 and not ends else 1.0
                inverse = 1.0 / norms[place] if norms[place] > 0.0 else 0.0
                weight = scaled(ahead, inverse)
                if len(emission):
                    weight = times(weight, load(states, emission, symbols[place] * padded))
                if len(weights):
                    put(states, weight, weights, place * size)
                joint = scaled(joint, scale)
                if len(smoothed):
                    put(states, joint, smoothed, place * size)
                if len(symbol_counts):
                    into = symbols[place] * size
                    put(states, plus(take(states, symbol_counts, into), joint), symbol_counts, into)
                if starts[t] and len(first_counts):
                    put(states, plus(take(states, first_counts, 0), joint), first_counts, 0)
            weight = scaled(weight, scale)
            if terms >= _TERMS or (terms and t == 0 and row + 1 == len(offsets)):
                for i in range(size):
                    for j in range(size):
                        pair_counts[i * size + j] += sums[i * padded + j]
                sums[:] = 0.0
                terms = 0


@kernel()
def likeliest(  # type: ignore[no-untyped-def]
    states, first, step, emission, symbols, offsets, lengths, starts, highest_end, pointers, paths, logs
):
    """The paths of largest probability, as `viterbi.likeliest` with `step` as it is; arrays of numbers are flat.

    `pointers` is working memory for a row of padded size for each time of the longest sequence, in bytes.
    """
    size, padded = len(states), row_size(states)
    here = np.empty(size)
    for row in range(len(offsets)):
        begin, time = offsets[row], lengths[row]
        best = filled(states, 0.0)
        for t in range(time):
            seen = symbols[begin + t]
            if starts[t]:
                put(states, best, here, 0)
                top = 0
                for i in range(1, size):
                    top = i if here[i] > here[top] else top
                best = plus(filled(states, here[top]), load(states, first, seen * padded))
                for i in range(size):
                    pointers[t * padded + i] = top
            elif len(emission):
                best = longest(states, best, step, 0, pointers, t * padded)
                best = plus(best, load(states, emission, seen * padded))
            else:
                best = longest(states, best, step, seen * size * padded, pointers, t * padded)
        put(states, best, here, 0)
        at = np.int64(0)
        for i in range(1, size):
            at = np.int64(i) if here[i] > here[at] or (highest_end and here[i] == here[at]) else at
        logs[row] = here[at]
        possible = here[at] > -np.inf
        for t in range(time - 1, -1, -1):
            paths[begin + t] = at if possible else -1
            at = np.int64(pointers[t * padded + at])
