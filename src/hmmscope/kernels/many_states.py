"""The filter and the smoother for many states: products of matrices in tiles of registers, and passes between them.

Sequences of a block go together, longest first, so that those which still last at a time are the first rows of a product:

    following = law @ step        law = following * emission[o_t] / norm

Matrices that stand on the right of a product are packed (`packed`): in panels as wide as a tile, each panel in one piece.
Rows of work arrays are as wide as `width_of` says. What is summed depends neither on the block nor on the thread, and in
products not on the processor either.
"""

import math

import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.phases import D1, I1, X0, X1, X2, X3, entry, phase
from hmmscope.kernels.products import LANES, SUMS, VECTORS, product, soon, wide

#: How many sequences ahead what is read or written of one is fetched.
SOON = 2


def width_of(size: int, dtype: np.dtype) -> int:
    """Numbers of a row of a work array: whole registers, and one more, so that rows do not share places in a cache."""
    lanes = LANES * 4 // dtype.itemsize
    return (-(-size // lanes) + 1) * lanes


def packed(matrix: NDArray[np.floating]) -> NDArray[np.floating]:
    """(panels, rows, columns of a tile) of a matrix (rows, columns), zeros beyond its last column."""
    rows, cols = matrix.shape
    lanes = LANES * 4 // matrix.dtype.itemsize
    width = max(1, min(VECTORS, -(-cols // lanes))) * lanes
    panels = np.zeros((-(-cols // width), rows, width), matrix.dtype)
    for panel, begin in enumerate(range(0, cols, width)):
        part = matrix[:, begin : begin + width]
        panels[panel, :, : part.shape[1]] = part
    return panels


@phase(fastmath=SUMS)
def _times(rows: int, cols: int, law: X2, panels: X3, result: X2, zeros: X1) -> None:
    """The first `cols` columns of result = law @ panels, and what is zero up to the end of a register."""
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


@entry(fastmath=SUMS)
def forward(
    first: X2, panels: X3, emission: X2, opening: X1, prediction: X3,
    openers: I1, symbols: I1, offsets: I1, lengths: I1, starts: I1, floor: X0, smallest: X0, ends: I1,
    beliefs: X2, norms: D1, ahead: X2, totals: D1, doubtful: I1,
    law: X2, following: X2, mixed: X2, zeros: X1, dead: I1, chance: D1, logs: D1,
) -> None:  # fmt: skip
    """The filter of a block; arrays as in `hmmscope.kernels.lanes`, and work arrays of a row for each sequence.

    Written where the array has rows: beliefs (N, S), sums P(o_t | past) (N,), laws of the next symbol (N, V), and
    log-likelihoods (n,). A sum below `floor`, or a positive entry below `smallest`, marks a sequence as doubtful.
    """
    wide()
    size, num_symbols, rows = first.shape[1], len(opening), len(lengths)
    zero, one = first.dtype.type(0), first.dtype.type(1)
    throughout = len(ends) == 0
    law[:], following[:], dead[:], chance[:], logs[:] = zero, zero, 0, 1.0, 0.0
    for t in range(lengths[0]):
        while lengths[rows - 1] <= t:
            rows -= 1
        if not starts[t]:
            _times(rows, size, law, panels, following, zeros)
        for b in range(rows):
            place = offsets[b] + t
            symbol, into, out = openers[place] if t == 0 else symbols[place], following[b], law[b]
            total = zero
            if throughout and b + SOON < rows and len(beliefs):
                soon(beliefs, (offsets[b + SOON] + t) * size, size)
            if dead[b]:
                for i in range(size):
                    out[i] = zero
                if len(beliefs) and throughout:
                    for i in range(size):
                        beliefs[place, i] = zero
            else:
                if starts[t]:
                    for i in range(size):
                        into[i] = first[symbol, i]
                else:
                    for i in range(size):
                        into[i] *= emission[symbol, i]
                for i in range(size):
                    total += into[i]
                scale, least = one / total if total > zero else zero, smallest * total
                low = total < floor
                if len(beliefs) and throughout:
                    for i in range(size):
                        low |= (into[i] > zero) & (into[i] < least)
                        out[i] = into[i] * scale
                        beliefs[place, i] = out[i]
                else:
                    for i in range(size):
                        low |= (into[i] > zero) & (into[i] < least)
                        out[i] = into[i] * scale
                doubtful[b] |= low
                dead[b] = not total > zero
            if len(norms):
                norms[place] = total
            last = t + 1 == lengths[b]
            chance[b] *= total
            if chance[b] < 1e-100 or last:  # logarithms of products: fewer sums that are rounded
                logs[b] += math.log(chance[b]) if chance[b] > 0.0 else -np.inf
                chance[b] = 1.0
            if last and len(totals):
                totals[b] = logs[b]
            if len(beliefs) and last and not throughout:
                for i in range(size):
                    beliefs[ends[b], i] = out[i]
        if len(ahead) and (throughout or lengths[rows - 1] == t + 1):
            begins = t + 1 < len(starts) and starts[t + 1] != 0
            if not begins:
                _times(rows, num_symbols, law, prediction, mixed, zeros)
            for b in range(rows):
                if throughout or t + 1 == lengths[b]:
                    at = offsets[b] + t if throughout else ends[b]
                    for v in range(num_symbols):
                        ahead[at, v] = mixed[b, v] if not begins else zero if dead[b] else opening[v]


@entry(fastmath=SUMS)
def backward(
    panels: X3, emission: X2, symbols: I1, offsets: I1, lengths: I1, starts: I1, beliefs: X2, norms: X1,
    smoothed: X2, weights: X2, first_counts: X1, pair_counts: X2, symbol_counts: X2,
    now: X2, after: X2, weight: X2, zeros: X1,
) -> None:  # fmt: skip
    """The smoother and the expected counts of a block, as `hmmscope.kernels.lanes.backward`.

    `panels` are of the transposed transitions, and pair_counts (S, width) are as wide as a work array.
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
            scale = (
                one / total if total > zero else zero
            )  # the sum is one up to rounding, which must not add up over time
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
