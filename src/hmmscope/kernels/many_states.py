"""Filter and smoother for many states, by tiled matrix products.

The sequences of a block are sorted by decreasing length. A step updates the beliefs `law` (sequence, state) of
unfinished sequences:

    following = law @ step;       law = following * emission[o_t] / norm

`packed` rearranges matrices into panels of columns; `width_of` gives the padded row length of work arrays.
Results do not depend on blocks or threads.
"""

import math

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from hmmscope.kernels.compile_units import D1, I1, X0, X1, X2, X3, compile_unit, entry, intrinsic
from hmmscope.kernels.products import LANES, SUMS, VECTORS, Emitter, product, soon, wide

#: Prefetch distance, in sequences.
SOON = 2

#: A belief with a smaller sum is normalised at once, so that float32 can hold its successors.
SMALL = 1e-6

_I64 = ir.IntType(64)


def width_of(size: int, dtype: np.dtype) -> int:
    lanes = LANES * 4 // dtype.itemsize
    return (-(-size // lanes) + 1) * lanes


def widened(matrix: NDArray[np.floating]) -> NDArray[np.floating]:
    rows, cols = matrix.shape
    wider = np.zeros((rows, width_of(cols, matrix.dtype)), matrix.dtype)
    wider[:, :cols] = matrix
    return wider


def packed(matrix: NDArray[np.floating]) -> NDArray[np.floating]:
    rows, cols = matrix.shape
    lanes = LANES * 4 // matrix.dtype.itemsize
    width = max(1, min(VECTORS, -(-cols // lanes))) * lanes
    panels = np.zeros((-(-cols // width), rows, width), matrix.dtype)
    for panel, begin in enumerate(range(0, cols, width)):
        part = matrix[:, begin : begin + width]
        panels[panel, :, : part.shape[1]] = part
    return panels


@compile_unit(fastmath=SUMS)
def _times(rows: int, cols: int, law: X2, panels: X3, result: X2, zeros: X1) -> None:
    lanes, width = LANES * 4 // law.itemsize, panels.shape[2]
    inner, across = panels.shape[1], law.shape[1]
    for panel in range(len(panels)):
        begin = panel * width
        here = min(width, (cols - begin + lanes - 1) // lanes * lanes)
        at = panel * inner * width
        product(
            rows, here, 1, inner, law, 0, across, 1, 0, panels, at, width, 0, result, begin, result.shape[1],
            False, zeros, 0,
        )  # fmt: skip


@intrinsic
def _seen(typing, into, i, emission, e, factor, out, o, vectors):  # type: ignore[no-untyped-def]
    number = into.dtype

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        w = Emitter(context, builder, number, 32 * LANES // number.bitwidth)
        arrays = [w.data(kind, arguments[place]) for place, kind in ((0, into), (2, emission), (5, out))]
        places, count = [arguments[place] for place in (1, 3, 6)], arguments[7]
        zero, most = (ir.Constant(w.vector, [value] * w.lanes) for value in (0.0, float("inf")))
        spread = w.filled(arguments[4])

        def smaller(a, b):  # type: ignore[no-untyped-def]
            return builder.select(builder.fcmp_ordered("<", a, b), a, b)

        begin, inside, end = builder.block, builder.append_basic_block("inside"), builder.append_basic_block("end")
        builder.branch(inside)
        builder.position_at_end(inside)
        index, (sums, least) = builder.phi(_I64), (builder.phi(w.vector) for _ in range(2))
        at = [builder.add(place, builder.mul(index, ir.Constant(_I64, w.lanes))) for place in places]
        value = builder.fmul(builder.fmul(w.load(arrays[0], at[0]), w.load(arrays[1], at[1])), spread)
        w.store(value, arrays[2], at[2])
        positive = builder.select(builder.fcmp_ordered(">", value, zero), value, most)
        lower = smaller(positive, least)
        summed, following = builder.fadd(sums, value), builder.add(index, ir.Constant(_I64, 1))
        for phi, start, step in ((index, ir.Constant(_I64, 0), following), (sums, zero, summed), (least, most, lower)):
            phi.add_incoming(start, begin)
            phi.add_incoming(step, inside)
        builder.cbranch(builder.icmp_signed("<", following, count), inside, end)
        builder.position_at_end(end)
        found = w.across(summed, builder.fadd), w.across(lower, smaller)
        return context.make_tuple(builder, signature.return_type, found)

    where = types.int64
    return types.UniTuple(number, 2)(into, where, emission, where, number, out, where, where), emit


@entry(fastmath=SUMS)
def forward(
    first: X2, panels: X3, emission: X2, opening: X1, prediction: X3,
    openers: I1, symbols: I1, offsets: I1, lengths: I1, starts: I1, floor: X0, smallest: X0, ends: I1,
    beliefs: X2, norms: D1, ahead: X2, totals: D1, doubtful: I1,
    law: X2, following: X2, mixed: X2, zeros: X1, ones: X1, scales: X1, chance: D1, logs: D1,
) -> None:  # fmt: skip
    """Filter a block; arrays are as in `simd_over_sequences`, work arrays have a row per sequence.

    A P(o_t | past) below `floor`, or a positive belief below `smallest`, marks its sequence as an underflow risk.
    """
    wide()
    size, num_symbols, rows, width = panels.shape[1], len(opening), len(lengths), law.shape[1]
    zero, one = first.dtype.type(0), first.dtype.type(1)
    lanes = LANES * 4 // law.itemsize
    vectors = (size + lanes - 1) // lanes
    throughout = len(ends) == 0
    law[:], following[:], scales[:], chance[:], logs[:] = zero, zero, one, 1.0, 0.0
    for t in range(lengths[0]):
        while lengths[rows - 1] <= t:
            rows -= 1
        if not starts[t]:
            _times(rows, size, law, panels, following, zeros)
        for b in range(rows):
            place = offsets[b] + t
            if throughout and b + SOON < rows and len(beliefs):
                soon(beliefs, (offsets[b + SOON] + t) * size, size)
            seen, own = (openers[place] if t == 0 else symbols[place]) * width, b * width
            if starts[t]:
                alive = one if scales[b] > zero else zero
                total, least = _seen(first, seen, ones, 0, alive, law, own, vectors)
            else:
                total, least = _seen(following, own, emission, seen, scales[b], law, own, vectors)
            scale = one / total if total > zero else zero
            doubtful[b] |= scales[b] > zero and (total < floor or least < smallest * total)
            if len(norms):
                norms[place] = total
            last = t + 1 == lengths[b]
            chance[b] *= total
            if chance[b] < 1e-100 or last:  # logarithms of products: fewer rounded sums
                logs[b] += math.log(chance[b]) if chance[b] > 0.0 else -np.inf
                chance[b] = 1.0
            if last and len(totals):
                totals[b] = logs[b]
            if len(beliefs) and (throughout or last):
                at, out = place if throughout else ends[b], law[b]
                for i in range(size):
                    beliefs[at, i] = out[i] * scale
            if total < SMALL and scale > zero:
                out = law[b]
                for i in range(width):
                    out[i] *= scale
                scale = one
            scales[b] = scale
        if len(ahead) and (throughout or lengths[rows - 1] == t + 1):
            begins = t + 1 < len(starts) and starts[t + 1] != 0
            if not begins:
                _times(rows, num_symbols, law, prediction, mixed, zeros)
            for b in range(rows):
                if throughout or t + 1 == lengths[b]:
                    at = offsets[b] + t if throughout else ends[b]
                    for v in range(num_symbols):
                        ahead[at, v] = (
                            mixed[b, v] * scales[b] if not begins else opening[v] if scales[b] > zero else zero
                        )


@entry(fastmath=SUMS)
def backward(
    panels: X3, emission: X2, symbols: I1, offsets: I1, lengths: I1, starts: I1, beliefs: X2, norms: X1,
    smoothed: X2, weights: X2, first_counts: X1, pair_counts: X2, symbol_counts: X2,
    now: X2, after: X2, weight: X2, zeros: X1,
) -> None:  # fmt: skip
    """Compute smoothed states and expected counts of a block; see `simd_over_sequences`.

    `panels` hold the transposed transition matrix; the rows of pair_counts (S, width) are padded.
    """
    wide()
    size, rows, carried = beliefs.shape[1], 0, 0
    zero, one, width = beliefs.dtype.type(0), beliefs.dtype.type(1), now.shape[1]
    lanes = LANES * 4 // now.itemsize
    cols = (size + lanes - 1) // lanes * lanes
    weight[:] = zero
    for t in range(lengths[0] - 1, -1, -1):
        while rows < len(lengths) and lengths[rows] > t:
            rows += 1
        for b in range(rows):
            place = offsets[b] + t
            if b + SOON < rows:
                soon(beliefs, (offsets[b + SOON] + t) * size, size)
            for i in range(size):
                now[b, i] = beliefs[place, i]
        if t + 1 == lengths[0] or starts[t + 1]:
            carried = 0
        if carried:
            if len(pair_counts):
                product(
                    size, cols, 1, carried, now, 0, 1, width, 0, weight, 0, width, 0, pair_counts, 0, width,
                    True, zeros, 0,
                )  # fmt: skip
            _times(carried, size, weight, panels, after, zeros)
        for b in range(rows):
            place = offsets[b] + t
            symbol, total, own, ahead, out = symbols[place], zero, now[b], after[b], weight[b]
            if b + SOON < rows and len(smoothed):
                soon(smoothed, (offsets[b + SOON] + t) * size, size)
            if b >= carried:
                for i in range(size):
                    ahead[i] = one
            for i in range(size):
                total += own[i] * ahead[i]
            scale = one / total if total > zero else zero  # renormalise, so that rounding errors do not accumulate
            scale = scale if b < carried else one
            inverse = one / norms[place] if norms[place] > zero else zero
            for i in range(size):
                ahead[i] = ahead[i] * scale if own[i] > zero else zero
            for i in range(size):
                own[i] *= ahead[i]
                out[i] = ahead[i] * inverse * emission[symbol, i]
            if len(smoothed):
                for i in range(size):
                    smoothed[place, i] = own[i]
            if len(weights):
                for i in range(size):
                    weights[place, i] = out[i]
            if len(symbol_counts):
                for i in range(size):
                    symbol_counts[symbol, i] += own[i]
            if len(first_counts) and starts[t]:
                for i in range(size):
                    first_counts[i] += own[i]
        carried = rows
