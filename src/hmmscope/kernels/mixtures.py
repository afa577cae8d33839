"""The compiled filter of a mixture of HMMs with few states: lanes, tables and sequences as in `lanes`, component first.

    P(m | o_0..o_t) ∝ P(m | o_0..o_{t-1}) P_m(o_t | o_0..o_{t-1})

A component's weight is mantissa * 2^(256 power) with a mantissa in [2^-256, 2], so that none is lost however unlikely it
has become.
"""

import math

import numpy as np

from hmmscope.kernels.compiling import kernel
from hmmscope.kernels.lanes import add_moved, arrive, doubt, group, look

_UP, _LOW = 2.0**256, 2.0**-256
_LOG_UP = 256 * math.log(2.0)


@kernel(fastmath={"contract", "reassoc"})
def mixed(  # type: ignore[no-untyped-def]
    width,
    weights,
    first,
    step,
    emission,
    opening,
    prediction,
    symbols,
    offsets,
    lengths,
    starts,
    smallest,
    every,
    posterior,
    following,
    terms,
    doubtful,
):
    """Posteriors (N, M), if the array has rows, predictions of the next symbol (N, V), log P(o_t | past) (N,).

    first (M, V * S) and emission (M, V * S or 0) are flat; opening (M, V) is the law of a first symbol, prediction
    (M, S, V) the law of the next symbol given the state. A sequence in which a component's law may lose an entry is
    marked in doubtful (n,).
    """
    components, num_symbols = opening.shape
    size = step.shape[3]
    many = len(width)
    law, moved, norm = np.zeros((components, size, many)), np.empty((size, many)), np.empty(many)
    alive, share = np.empty((components, many)), np.empty((components, many))
    weight, power = np.empty((components, many)), np.empty((components, many), np.int64)
    mix, total, inverse = np.empty((num_symbols, many)), np.empty(many), np.empty(many)
    top, doubts = np.empty(many, np.int64), np.zeros(many, np.int64)
    offset, length, seen = np.empty(many, np.int64), np.empty(many, np.int64), np.empty(many, np.int64)
    scales = np.array([1.0, 2.0**-256, 2.0**-512, 2.0**-768, 2.0**-1024, 0.0])
    for begin in range(0, len(offsets), many):
        lanes = min(many, len(offsets) - begin)
        _, longest = group(width, offsets, lengths, begin, offset, length)
        alive[:], power[:], doubts[:] = 1.0, 0, 0
        for m in range(components):
            weight[m, :] = weights[m]
        for t in range(longest):
            look(width, symbols, offset, length, t, size, seen)
            top[:] = -(2**62)
            for m in range(components):
                arrive(width, first[m], step[m], emission[m], seen, starts[t], alive[m], law[m], moved, norm, inverse)
                if t % every == every - 1:
                    doubt(width, law[m], smallest, doubts)
                own, mantissa, height = alive[m], weight[m], power[m]
                for lane in range(many):
                    own[lane] = own[lane] if norm[lane] > 0.0 else 0.0
                    w = mantissa[lane] * norm[lane]
                    low, high = w < _LOW, w > 2.0
                    mantissa[lane] = w * _UP if low else (w * _LOW if high else w)
                    height[lane] += np.int64(high) - np.int64(low)
                    top[lane] = max(top[lane], height[lane] if w > 0.0 else -(2**62))
            total[:] = 0.0
            for m in range(components):
                mantissa, height, part = weight[m], power[m], share[m]
                for lane in range(many):
                    part[lane] = mantissa[lane] * scales[np.uint64(min(max(top[lane] - height[lane], 0), 5))]
                    total[lane] += part[lane]
            for lane in range(many):
                inverse[lane] = 1.0 / total[lane] if total[lane] > 0.0 else 0.0
                top[lane] = top[lane] if total[lane] > 0.0 else 0
            begins = t + 1 < len(starts) and starts[t + 1]
            mix[:] = 0.0
            for m in range(components):
                mantissa, height, part = weight[m], power[m], share[m]
                for lane in range(many):
                    mantissa[lane] *= inverse[lane]
                    height[lane] -= top[lane]
                    part[lane] *= inverse[lane]
                if begins:
                    for v in range(num_symbols):
                        into, weight_v = mix[v], opening[m, v]
                        for lane in range(many):
                            into[lane] += part[lane] * weight_v
                else:
                    for i in range(size):
                        own, into = law[m, i], moved[i]
                        for lane in range(many):
                            into[lane] = own[lane] * part[lane]
                    add_moved(width, moved, prediction[m], mix)
            for lane in range(lanes):
                if t >= length[lane]:
                    continue
                place = offset[lane] + t
                terms[place] = math.log(total[lane]) + top[lane] * _LOG_UP if total[lane] > 0.0 else -np.inf
                for v in range(num_symbols):
                    following[place, v] = mix[v, lane]
                if len(posterior):
                    for m in range(components):
                        posterior[place, m] = share[m, lane]
                if t + 1 == length[lane]:
                    doubtful[begin + lane] = doubts[lane] > 0
