"""Compiled dynamic programs for up to 64 states, with the states of one sequence in SIMD registers.

Beliefs are normalised every `every` steps, so that entries above 1e-100 stay normal floats. Formulas and tables are
those of `simd_over_sequences`; the tables are flat and zero-padded (see `vectors`).
"""

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.compiling import compiled_signatures, kernel
from hmmscope.kernels.vectors import (
    add_outer,
    any_below,
    any_tiny,
    divided,
    exponentials,
    filled,
    flush_subnormals,
    largest,
    load,
    longest,
    moved,
    number_of,
    plus,
    predict_four,
    predict_one,
    put,
    restore_subnormals,
    rounded,
    row_size,
    scaled,
    shared,
    take,
    take_logarithms,
    times,
    total,
    uncertain,
    where_positive,
)

#: Most states.
MOST = 64
#: Vectors of _COMMON numbers also serve fewer states, until a call has _MANY steps, or shorter vectors would have saved
#: more (_SAVED seconds per step) than compiling them takes (_COMPILING seconds).
_COMMON, _MANY, _COMPILING, _SAVED = 16, 10**4, 0.7, 3e-8

#: Steps between divisions, and the smallest safe entry.
_EVERY, _SMALLEST = 8, 1e-100
#: Beliefs with a smaller norm may have lost relevant entries, which are cut off at exp(-700).
_SMALLEST_NORM = 1e-80
#: Paths compare logarithms as multiples of one over this.
_GRID = 2.0**36
#: Terms per partial sum, so that rounding does not grow with the length.
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
    """Filter sequences as `simd_over_sequences.forward` does without `ends`, but with flat tables."""
    size, columns = number_of(states), len(opening)
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
            now = divided(law, norm)  # not times 1 / norm: certain beliefs are exactly one
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
    """Filter observations with given log-likelihoods `rows` (N, S).

    The rows of `laws` (3, S) are the initial distribution, its logarithms, and a mask of states with an incoming
    transition probability in (0, 1e-100). If `smallest` > 0, states with a smaller belief are lost: their belief is only
    known to be smaller. Where this could change results by more than 1e-18, the filter stops and marks an underflow risk.

    The function writes log-likelihoods totals (n,), the mask of underflow risk doubts (n,) and, if these arrays have
    rows, beliefs (N, S), norms (N,), predicted states (N, S) and tops (N,), with log P(o_t | past) = log norm + top.

    Returns:
        False if a log-likelihood is NaN or +inf.
    """
    size, padded = number_of(states), row_size(states)
    control = flush_subnormals(np.int32(0))
    for row in range(len(offsets)):
        begin, time = offsets[row], lengths[row]
        law = lost = vague = filled(states, 0.0)
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
                    vague = uncertain(marked, reached, 1e20 * smallest)
                law = times(reached, seen)
            norm = total(law)
            if norm != norm:
                restore_subnormals(control)
                return False
            if smallest > 0.0:  # there every step is divided
                # a vague state reached with at most `most` is lost as well, unless the observation favours it
                most = times(plus(reached, filled(states, (size + 1) * smallest)), seen)
                possible = where_positive(reached, seen)
                doubt |= norm < _SMALLEST_NORM and any_below(plus(possible, vague), vague, 2.0)
                doubt |= any_below(vague, scaled(most, -1.0), -smallest * norm)
                lost = plus(uncertain(possible, law, smallest * norm), where_positive(seen, vague))
                vague = filled(states, 0.0)
            if doubt or not norm > 0.0:
                break
            if len(tops):
                tops[place] = top
            if len(norms):
                norms[place] = norm / last
            last = norm
            if len(beliefs):
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
    restore_subnormals(control)
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
    """Compute smoothed states and expected counts as `simd_over_sequences.backward` does, but with flat tables.

    A 2-D `emission` holds log P(observation | state) (time, state), as in `forward_given`.
    """
    size, padded = number_of(states), row_size(states)
    sums = np.zeros(size * padded if len(pair_counts) else 0)
    control = flush_subnormals(np.int32(0)) if emission.ndim == 2 else np.int32(0)
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
                whole = total(joint)  # renormalise, so that rounding errors do not accumulate
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
    if emission.ndim == 2:
        restore_subnormals(control)


@kernel()
def likeliest(  # type: ignore[no-untyped-def]
    states, first, step, emission, symbols, offsets, lengths, starts, highest_end, pointers, paths, logs
):
    """Find Viterbi paths as `viterbi.likeliest` does, but with flat tables.

    A 2-D `emission` holds log-likelihoods (N, S); `first` then has one row.
    """
    size, padded = number_of(states), row_size(states)
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


_missed: dict[tuple[Any, type], float] = {}


@cache
def _compiled(kernel: Any) -> set[str]:
    return {getattr(kinds[0], "instance_class", tuple).__name__ for kinds in compiled_signatures(kernel)}


def states_of(kernel: Any, num_states: int, lengths: NDArray[np.int64]) -> Any:
    """Return a kernel's first argument, which sets the length of its vectors."""
    own = shared(num_states)
    kind = type(own)
    if num_states >= _COMMON or kind.__name__ in _compiled(kernel):
        return own
    steps = int(lengths.sum())
    _missed[kernel, kind] = _missed.get((kernel, kind), 0.0) + _SAVED * steps
    if steps < _MANY and _missed[kernel, kind] < _COMPILING:
        return type(shared(_COMMON))(num_states)
    _compiled(kernel).add(kind.__name__)
    return own
