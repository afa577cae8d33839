"""Compiled dynamic programs for few states, one sequence per SIMD lane.

Arrays of a group of sequences have axes (state, lane); the length of the tuple `width` is the number of lanes. A
process has three tables:

    first (V, S)          P(o_0 = v, state 0 = s);
    step (1 or V, S, S)   the transition matrix, or one per symbol where transitions emit;
    emission (V or 0, S)  P(symbol | state); no rows where transitions emit

    joint_t = first[o_t] at a sequence start, else (belief_{t-1} @ step) * emission[o_t] or belief_{t-1} @ step[o_t];
    belief_t = joint_t / norm_t;       norm_t = sum(joint_t) = P(o_t | past)

Sequences are given by offset and length in a flat array of N symbols; row n of a result belongs to symbol n. Beliefs
are checked every `every` steps; an entry below `smallest` marks its sequence as an underflow risk. In other sequences a
norm is zero only if the symbol has probability zero.
"""

import math

import numba
import numpy as np

from hmmscope.kernels.compiling import kernel, part

#: Tuples `width` for many sequences, and for few.
WIDE, NARROW = (0,) * 32, (0,) * 4

_FAST = {"contract", "reassoc"}
#: Decorator of functions inlined into kernels.
inlined = part(fastmath=_FAST, forceinline=True)
_kernel = kernel(fastmath=_FAST)


@inlined
def move(width, law, matrix, target):  # type: ignore[no-untyped-def]
    for j in range(matrix.shape[1]):
        sums = target[j]
        for lane in range(len(width)):
            sums[lane] = 0.0
    add_moved(width, law, matrix, target)


@inlined
def add_moved(width, law, matrix, target):  # type: ignore[no-untyped-def]
    size = law.shape[0]
    for j in range(matrix.shape[1]):
        sums, i = target[j], 0
        while i + 4 <= size:
            w0, w1, w2, w3 = matrix[i, j], matrix[i + 1, j], matrix[i + 2, j], matrix[i + 3, j]
            a, b, c, d = law[i], law[i + 1], law[i + 2], law[i + 3]
            for lane in range(len(width)):
                sums[lane] += (a[lane] * w0 + b[lane] * w1) + (c[lane] * w2 + d[lane] * w3)
            i += 4
        while i < size:
            weight, row = matrix[i, j], law[i]
            for lane in range(len(width)):
                sums[lane] += row[lane] * weight
            i += 1


@inlined
def move_by_symbol(width, law, matrices, seen, target):  # type: ignore[no-untyped-def]
    """Compute target_j = sum_i law_i matrices_vij, where v is each lane's symbol."""
    size = law.shape[0]
    flat = matrices.ravel()
    target[:] = 0.0
    for i in range(size):
        row = law[i]
        for j in range(size):
            sums, place = target[j], np.uint64(i * size + j)
            for lane in range(len(width)):
                sums[lane] += row[lane] * flat[np.uint64(seen[lane]) * np.uint64(size) + place]


@inlined
def arrive(width, first, step, emission, seen, begins, alive, law, following, norm, scale):  # type: ignore[no-untyped-def]
    """Advance beliefs by one symbol; write to `norm` their sum before normalisation, P(o_t | past)."""
    size = law.shape[0]
    for lane in range(len(width)):
        norm[lane] = 0.0
    if begins:
        for i in range(size):
            row = law[i]
            for lane in range(len(width)):
                row[lane] = alive[lane] * first[np.uint64(seen[lane]) + np.uint64(i)]
                norm[lane] += row[lane]
    elif len(emission) == 0:
        move_by_symbol(width, law, step, seen, following)
        for i in range(size):
            row, other = law[i], following[i]
            for lane in range(len(width)):
                row[lane] = other[lane]
                norm[lane] += other[lane]
    else:
        move(width, law, step[0], following)
        for i in range(size):
            row, other = law[i], following[i]
            for lane in range(len(width)):
                row[lane] = other[lane] * emission[np.uint64(seen[lane]) + np.uint64(i)]
                norm[lane] += row[lane]
    for lane in range(len(width)):
        scale[lane] = 1.0 / norm[lane] if norm[lane] > 0.0 else 0.0
    for i in range(size):
        row = law[i]
        for lane in range(len(width)):
            row[lane] *= scale[lane]


@inlined
def doubt(width, law, smallest, found):  # type: ignore[no-untyped-def]
    for i in range(law.shape[0]):
        row = law[i]
        for lane in range(len(width)):
            found[lane] |= np.int64(0.0 < row[lane] < smallest)


@numba.njit(nogil=True, fastmath=_FAST, forceinline=True)  # separate: a fifth faster in float32
def _write(law, offset, length, t, lanes, rows):  # type: ignore[no-untyped-def]
    size = law.shape[0]
    for lane in range(lanes):
        if t < length[lane]:
            place = (offset[lane] + t) * size
            for i in range(size):
                rows[place + i] = law[i, lane]


@inlined
def look(width, symbols, offset, length, t, size, seen):  # type: ignore[no-untyped-def]
    for lane in range(len(width)):
        last = length[lane] - 1
        seen[lane] = symbols[offset[lane] + (t if t < last else last)] * size


@inlined
def group(width, offsets, lengths, begin, offset, length):  # type: ignore[no-untyped-def]
    shortest, longest = lengths[begin], lengths[begin]
    for lane in range(len(width)):
        row = min(begin + lane, len(offsets) - 1)
        offset[lane], length[lane] = offsets[row], lengths[row]
        shortest, longest = min(shortest, length[lane]), max(longest, length[lane])
    return shortest, longest


@inlined
def _multiply_in(norm, product, totals, begin, lanes):  # type: ignore[no-untyped-def]
    least = 1.0
    for lane in range(len(norm)):
        product[lane] *= norm[lane] if norm[lane] > 0.0 else 1.0
        least = min(least, product[lane])
    if least < 1e-100:
        for lane in range(lanes):
            totals[begin + lane] += math.log(product[lane])
        product[:] = 1.0


@inlined
def _look_ahead(width, law, prediction, opening, begins, alive, mix):  # type: ignore[no-untyped-def]
    if begins:
        for v in range(len(opening)):
            for lane in range(len(width)):
                mix[v, lane] = opening[v] * alive[lane]
    else:
        move(width, law, prediction, mix)


@inlined
def _end(law, mix, doubts, length, t, begin, lanes, ends, beliefs, ahead, doubtful):  # type: ignore[no-untyped-def]
    for lane in range(lanes):
        if t + 1 == length[lane]:
            doubtful[begin + lane] = doubts[lane] > 0
            if len(ends):
                place = ends[begin + lane]
                for i in range(law.shape[0]):
                    beliefs[place, i] = law[i, lane]
                for v in range(ahead.shape[1]):
                    ahead[place, v] = mix[v, lane]


@_kernel
def forward(  # type: ignore[no-untyped-def]
    width,
    first,
    step,
    emission,
    opening,
    prediction,
    openers,
    symbols,
    offsets,
    lengths,
    starts,
    smallest,
    every,
    ends,
    beliefs,
    norms,
    ahead,
    totals,
    doubtful,
):
    """Filter sequences; opening (V,) is P(first symbol), and prediction (S, V) is P(next symbol | state).

    The function writes doubtful (n,), the mask of underflow risk. It fills beliefs (N, S), norms P(o_t | past) (N,),
    next-symbol probabilities ahead (N, V) and log-likelihoods totals (n,), but skips arrays without rows. If `ends`
    (n,) has rows, beliefs and `ahead` are written at sequence ends only. At its first
    step, a sequence reads `openers` instead of `symbols`.
    """
    size, many = first.shape[1], len(width)
    law, following = np.zeros((size, many), first.dtype), np.empty((size, many), first.dtype)
    norm, alive = np.empty(many, np.float64), np.empty(many, first.dtype)
    product, doubts = np.empty(many, np.float64), np.zeros(many, np.int64)
    scale, opened, likelihood = np.empty(many, first.dtype), first.ravel(), emission.ravel()
    offset, length, seen = np.empty(many, np.int64), np.empty(many, np.int64), np.empty(many, np.int64)
    mix = np.empty((len(opening), many), first.dtype)
    rows, laws = beliefs.ravel(), ahead.ravel()
    throughout = len(ends) == 0
    for begin in range(0, len(offsets), many):
        lanes = min(many, len(offsets) - begin)
        shortest, longest = group(width, offsets, lengths, begin, offset, length)
        alive[:], product[:], doubts[:] = 1.0, 1.0, 0
        for t in range(longest):
            look(width, openers if t == 0 else symbols, offset, length, t, size, seen)
            arrive(width, opened, step, likelihood, seen, starts[t], alive, law, following, norm, scale)
            if t % every == every - 1:
                doubt(width, law, smallest, doubts)
            if t >= shortest:
                for lane in range(many):
                    if t >= length[lane]:  # beyond the end
                        norm[lane] = 1.0
            for lane in range(many):
                alive[lane] = alive[lane] if norm[lane] > 0.0 else 0.0
            if len(totals):
                _multiply_in(norm, product, totals, begin, lanes)
            if len(norms):
                for lane in range(lanes):
                    if t < length[lane]:
                        norms[offset[lane] + t] = norm[lane]
            ending = t + 1 >= shortest
            if len(laws) and (throughout or ending):
                begins = t + 1 < len(starts) and starts[t + 1]
                _look_ahead(width, law, prediction, opening, begins, alive, mix)
            if throughout and len(rows):
                _write(law, offset, length, t, lanes, rows)
            if throughout and len(laws):
                _write(mix, offset, length, t, lanes, laws)
            if ending:
                _end(law, mix, doubts, length, t, begin, lanes, ends, beliefs, ahead, doubtful)
        if len(totals):
            for lane in range(lanes):
                totals[begin + lane] += math.log(product[lane]) if alive[lane] > 0.0 else -np.inf


@inlined
def _read(width, rows, offset, length, t, whole, lanes, law):  # type: ignore[no-untyped-def]
    size = law.shape[0]
    if whole:
        for lane in range(len(width)):
            place = (offset[lane] + t) * size
            for i in range(size):
                law[i, lane] = rows[place + i]
    else:
        for lane in range(len(width)):
            inside = lane < lanes and t < length[lane]
            for i in range(size):
                law[i, lane] = rows[(offset[lane] + t) * size + i] if inside else 0.0


@inlined
def _count_pairs(width, now, weight, sums):  # type: ignore[no-untyped-def]
    for i in range(sums.shape[0]):
        one = now[i]
        for j in range(weight.shape[0]):
            into, other = sums[i, j], weight[j]
            for lane in range(len(width)):
                into[lane] += one[lane] * other[lane]


@inlined
def _smooth(width, now, ahead, weight, length, t, ends, total, scale):  # type: ignore[no-untyped-def]
    size = now.shape[0]
    total[:] = 0.0
    for i in range(size):
        one, other = now[i], ahead[i]
        for lane in range(len(width)):
            total[lane] += one[lane] * other[lane]
    for lane in range(len(width)):  # renormalise, so that rounding errors do not accumulate
        scale[lane] = 1.0 / total[lane] if total[lane] > 0.0 else 0.0
        scale[lane] = 1.0 if ends or t + 1 >= length[lane] else scale[lane]
    for i in range(size):
        one, other, into = now[i], ahead[i], weight[i]
        for lane in range(len(width)):
            other[lane] = other[lane] * scale[lane] if one[lane] > 0.0 else 0.0
            into[lane] = other[lane]
            one[lane] *= other[lane]


@_kernel
def backward(  # type: ignore[no-untyped-def]
    width,
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
    """Compute smoothed states and expected counts, after `forward`.

        weight_t(j) = emission[o_t](j) * ahead_t(j) / norm_t;  ahead_{t-1}(i) = sum_j step_ij weight_t(j), 1 at the end;
        smoothed_t = belief_t * ahead_t;                       pair_t(i, j) = belief_t(i) step_ij weight_{t+1}(j)

    The function writes smoothed (N, S) and weights (N, S), and adds first-state counts (S,), sums of belief_t(i)
    weight_{t+1}(j) (S, S), and emission counts (V, S), but skips arrays without rows. `transposed` is step with its
    last two axes exchanged.
    """
    size, many = beliefs.shape[1], len(width)
    now, ahead, weight = np.zeros((size, many)), np.zeros((size, many)), np.zeros((size, many))
    total, scale = np.empty(many), np.empty(many)
    sums = np.zeros((size if len(pair_counts) else 0, size, many))
    offset, length, seen = np.empty(many, np.int64), np.empty(many, np.int64), np.empty(many, np.int64)
    rows, likelihood, visits = beliefs.ravel(), emission.ravel(), symbol_counts.ravel()
    for begin in range(0, len(offsets), many):
        lanes = min(many, len(offsets) - begin)
        shortest, longest = group(width, offsets, lengths, begin, offset, length)
        for t in range(longest - 1, -1, -1):
            _read(width, rows, offset, length, t, t < shortest and lanes == many, lanes, now)
            ends = t + 1 == longest or starts[t + 1]
            if ends:
                ahead[:] = 1.0
            else:
                _count_pairs(width, now, weight, sums)
                if len(likelihood):
                    move(width, weight, transposed[0], ahead)
                else:
                    move_by_symbol(width, weight, transposed, seen, ahead)
                if t + 1 >= shortest:
                    for lane in range(many):
                        if t + 1 >= length[lane]:
                            ahead[:, lane] = 1.0
            look(width, symbols, offset, length, t, size, seen)
            _smooth(width, now, ahead, weight, length, t, ends, total, scale)
            for lane in range(lanes):
                if t >= length[lane]:
                    continue
                place = offset[lane] + t
                inverse = 1.0 / norms[place] if norms[place] > 0.0 else 0.0
                for i in range(size):
                    weight[i, lane] *= inverse
                if len(likelihood):
                    for i in range(size):
                        weight[i, lane] *= likelihood[seen[lane] + i]
                if len(weights):
                    for i in range(size):
                        weights[place, i] = weight[i, lane]
                if len(smoothed):
                    for i in range(size):
                        smoothed[place, i] = now[i, lane]
                if len(visits):
                    for i in range(size):
                        visits[seen[lane] + i] += now[i, lane]
                if starts[t] and len(first_counts):
                    for i in range(size):
                        first_counts[i] += now[i, lane]
    for i in range(sums.shape[0]):
        for j in range(size):
            pair_counts[i, j] += sums[i, j].sum()
