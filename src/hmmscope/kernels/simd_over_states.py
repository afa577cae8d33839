"""Compiled dynamic programs with the states side by side in a register: filter, smoother, counts, likeliest paths.

One sequence after the other, up to 64 states, which are eight registers of eight numbers. A step is a chain of a few
instructions, whose length decides how fast one sequence can be; what is only written down is off the chain. So sums are
divided out every eight steps only: one step shrinks a positive entry by no more than 2^-80, and an entry above 1e-100 is a
normal number eight steps later. Of smaller probabilities `hmmscope.inference.compiled` has them divided out more often.

Formulas, tables and doubts are those of `hmmscope.kernels.simd_over_sequences`. Here tables are flat, each row padded with
zeros (for logarithms with -inf) to the size of a vector; see `hmmscope.kernels.vectors`.
"""

import math

import numpy as np

from hmmscope.kernels.compiling import kernel
from hmmscope.kernels.vectors import (
    add_outer,
    any_below,
    any_tiny,
    divided,
    exponentials,
    filled,
    largest,
    load,
    longest,
    lost_of,
    moved,
    plus,
    predict_four,
    predict_one,
    put,
    rounded,
    row_size,
    scaled,
    take,
    take_logarithms,
    times,
    total,
    where_positive,
)

#: The most states: with more of them a step is no longer written out in one piece.
MOST = 64

#: Steps between two divisions, and the smallest entry that is in no doubt then.
_EVERY, _SMALLEST = 8, 1e-100
#: Where less is left of a law, rows whose entries are cut off at exp(-700) may have lost what counts.
_SMALLEST_NORM = 1e-80
#: Logarithms are multiples of one over this where paths are compared.
_GRID = 2.0**36
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
    every,
    beliefs,
    norms,
    ahead,
    totals,
    doubtful,
):
    """The filter, as `lanes.forward` without `ends`; arrays but `symbols` to `starts` are flat.

    Sums are divided out every so many steps.
    """
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
            if t % every == every - 1:
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
def forward_given(  # type: ignore[no-untyped-def]
    states, laws, step, rows, offsets, lengths, starts, every, smallest, beliefs, predicted, norms, tops, totals, doubts
):
    """The filter of observations whose log-likelihoods are given, `rows` (N, S).

    `laws` (3, S) are the initial law, its logarithms, and ones for the states that are fragile.

    A row is read as exp(row - top), top its largest entry. Sums are divided out every so many steps.

    If `smallest` is positive, what falls below it is lost, and marked. A sequence is doubtful, and left there, where the
    law before an observation is below 1e20 times that in a state that something lost leads to, or that is fragile.
    So what was lost elsewhere is less than 1e-20 of everything that comes after it.

    Written are beliefs (N, S) and norms (N,), zeros from an impossible observation on; totals (n,), log-likelihoods; doubts
    (n,); and where the array has numbers predicted (N, S), the law before the observation, and tops (N,).
    log P(o_t | past) = log norm + top.

    Returns:
        False if a log-likelihood is NaN or +inf.
    """
    size, padded = len(states), row_size(states)
    for row in range(len(offsets)):
        begin, time = offsets[row], lengths[row]
        law = lost = filled(states, 0.0)
        last, whole, product, doubt, left, t = 1.0, 0.0, 1.0, False, every, 0
        while t < time:
            place = begin + t
            said = take_logarithms(states, rows, place * size)
            if starts[t]:
                said = plus(said, load(states, laws, padded))
            top = largest(said)
            top = top if top != -np.inf else 0.0
            seen = exponentials(said, top)
            if starts[t]:
                product, last = product * last, 1.0
                law = reached = seen
                if len(predicted):
                    put(states, load(states, laws, 0), predicted, place * size)
            else:
                reached = moved(states, law, step, 0)
                if len(predicted):
                    put(states, divided(reached, last), predicted, place * size)
                if smallest > 0.0:
                    marked = plus(moved(states, lost, step, 0), load(states, laws, 2 * padded))
                    doubt |= any_below(marked, reached, 1e20 * smallest)
                law = times(reached, seen)
            norm = total(law)
            if norm != norm:
                return False
            if smallest > 0.0:  # there every step is divided
                doubt |= 0.0 < norm < _SMALLEST_NORM
                lost = lost_of(reached, seen, divided(law, norm), smallest)
            if doubt or not norm > 0.0:
                break
            if len(tops):
                tops[place] = top
            norms[place] = norm / last
            last = norm
            put(states, divided(law, norm), beliefs, place * size)
            whole += top
            left -= 1
            if left == 0:
                law, last, left = divided(law, norm), 1.0, every
                product *= norm
            if product < 1e-100:
                whole += math.log(product)
                product = 1.0
            t += 1
        doubts[row] = doubt
        totals[row] = whole + math.log(product) + math.log(last) if t == time else -np.inf
        norms[begin + t : begin + time] = 0.0
        beliefs[(begin + t) * size : (begin + time) * size] = 0.0
        predicted[(begin + t + 1) * size : (begin + time) * size] = 0.0
    return True


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
    """The smoother and the expected counts, as `lanes.backward`; arrays but `symbols` to `starts` are flat.

    Of an `emission` with two axes the rows are log-likelihoods, as of `forward_given`, and `symbols` are not read. Smoothed
    laws may be written to the place of the beliefs.
    """
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
                    if emission.ndim == 2 or len(emission):
                        ahead = moved(states, weight, transposed, 0)
                    else:
                        ahead = moved(states, weight, transposed, symbols[place + 1] * size * padded)
                ahead = where_positive(now, ahead)
                joint = times(now, ahead)
                whole = total(joint)  # one up to rounding, which must not add up over time
                scale = 1.0 / whole if whole > 0.0 and not ends else 1.0
                inverse = 1.0 / norms[place] if norms[place] > 0.0 else 0.0
                if emission.ndim == 2:
                    said = take_logarithms(states, emission, place * size)
                    top = largest(said)
                    top = top if top != -np.inf else 0.0
                    weight = scaled(times(ahead, exponentials(said, top)), inverse)
                else:
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

    Of an `emission` with two axes the rows are log-likelihoods (N, S), which are rounded to the grid of the other tables;
    `first` has one row then, the initial law, and `symbols` are not read. `pointers` is working memory for a row of padded
    size for each time of the longest sequence, in bytes.
    """
    size, padded = len(states), row_size(states)
    here, given = np.empty(size), emission.ndim == 2
    for row in range(len(offsets)):
        begin, time = offsets[row], lengths[row]
        best = filled(states, 0.0)
        for t in range(time):
            seen = 0 if given else symbols[begin + t]
            if starts[t]:
                put(states, best, here, 0)
                top = 0
                for i in range(1, size):
                    top = i if here[i] > here[top] else top
                best = plus(filled(states, here[top]), load(states, first, 0 if given else seen * padded))
                for i in range(size):
                    pointers[t * padded + i] = top
            elif given or len(emission):
                best = longest(states, best, step, 0, pointers, t * padded)
            else:
                best = longest(states, best, step, seen * size * padded, pointers, t * padded)
            if given:
                said = take_logarithms(states, emission, (begin + t) * size)
                highest = largest(said)
                best = plus(best, rounded(said, highest if highest != -np.inf else 0.0, _GRID))
            elif len(emission) and not starts[t]:
                best = plus(best, load(states, emission, seen * padded))
        put(states, best, here, 0)
        at = np.int64(0)
        for i in range(1, size):
            at = np.int64(i) if here[i] > here[at] or (highest_end and here[i] == here[at]) else at
        logs[row] = here[at]
        possible = here[at] > -np.inf
        for t in range(time - 1, -1, -1):
            paths[begin + t] = at if possible else -1
            at = np.int64(pointers[t * padded + at])
