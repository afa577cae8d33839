"""The compiled filter of a mixture of HMMs with few states: lanes, tables and sequences as in `lanes`, component first.

    P(m | o_0..o_t) ∝ P(m | o_0..o_{t-1}) P_m(o_t | o_0..o_{t-1})

A component's weight is mantissa * 2^(256 power) with a mantissa in [2^-256, 2], so that none is lost however unlikely it
has become.
"""

import math

import numpy as np

from hmmscope.kernels.compiling import kernel
from hmmscope.kernels.lanes import add_moved, arrive, doubt, group, inlined, look

_UP, _LOW = 2.0**256, 2.0**-256
_LOG_UP = 256 * math.log(2.0)

#: Weights of components whose power is 0, 1, ... below the largest: from 5 on nothing is left of them.
_SCALES = np.array([1.0, 2.0**-256, 2.0**-512, 2.0**-768, 2.0**-1024, 0.0])


@inlined
def _reweigh(width, norm, alive, mantissa, power, top):  # type: ignore[no-untyped-def]
    """Multiply the weights of a component by the sums `norm`; `top` becomes the largest power of all so far."""
    for lane in range(len(width)):
        alive[lane] = alive[lane] if norm[lane] > 0.0 else 0.0
        w = mantissa[lane] * norm[lane]
        low, high = w < _LOW, w > 2.0
        mantissa[lane] = w * _UP if low else (w * _LOW if high else w)
        power[lane] += np.int64(high) - np.int64(low)
        top[lane] = max(top[lane], power[lane] if w > 0.0 else -(2**62))


@inlined
def _normalise(width, weight, power, top, share, total, inverse):  # type: ignore[no-untyped-def]
    """Weights of all components to sum one, as mantissa and power and as plain shares; their sum goes to `total`."""
    total[:] = 0.0
    for m in range(len(weight)):
        mantissa, height, part = weight[m], power[m], share[m]
        for lane in range(len(width)):
            part[lane] = mantissa[lane] * _SCALES[np.uint64(min(max(top[lane] - height[lane], 0), 5))]
            total[lane] += part[lane]
    for lane in range(len(width)):
        inverse[lane] = 1.0 / total[lane] if total[lane] > 0.0 else 0.0
        top[lane] = top[lane] if total[lane] > 0.0 else 0
    for m in range(len(weight)):
        mantissa, height, part = weight[m], power[m], share[m]
        for lane in range(len(width)):
            mantissa[lane] *= inverse[lane]
            height[lane] -= top[lane]
            part[lane] *= inverse[lane]


@inlined
def _look_ahead(width, law, share, prediction, opening, begins, moved, mix):  # type: ignore[no-untyped-def]
    """The law of the next symbol, which may begin a sequence, of all components by their shares."""
    mix[:] = 0.0
    for m in range(len(share)):
        part = share[m]
        if begins:
            for v in range(len(mix)):
                into, weight_v = mix[v], opening[m, v]
                for lane in range(len(width)):
                    into[lane] += part[lane] * weight_v
        else:
            for i in range(law.shape[1]):
                own, into = law[m, i], moved[i]
                for lane in range(len(width)):
                    into[lane] = own[lane] * part[lane]
            add_moved(width, moved, prediction[m], mix)


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
                _reweigh(width, norm, alive[m], weight[m], power[m], top)
            _normalise(width, weight, power, top, share, total, inverse)
            begins = t + 1 < len(starts) and starts[t + 1]
            _look_ahead(width, law, share, prediction, opening, begins, moved, mix)
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


@kernel()
def accumulate(log_weight, predicted, largest, total, mixed):  # type: ignore[no-untyped-def]
    """Add a component to running mixtures: total and mixed (..., V) are relative to exp(largest), float64.

    log_weight (N,) is the component's log weight, predicted (N, V) what it predicts, largest and total (N,), mixed (N, V).
    """
    for n in range(log_weight.shape[0]):
        weight = log_weight[n]
        if weight == -np.inf:
            continue
        if weight > largest[n]:
            scale = math.exp(largest[n] - weight) if largest[n] > -np.inf else 0.0
            total[n] *= scale
            for v in range(mixed.shape[1]):
                mixed[n, v] *= scale
            largest[n] = weight
            share = 1.0
        else:
            share = math.exp(weight - largest[n])
        total[n] += share
        for v in range(mixed.shape[1]):
            mixed[n, v] += share * predicted[n, v]
