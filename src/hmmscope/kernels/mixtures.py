"""Compiled filter of a mixture of small HMMs, with the tables of `simd_over_sequences` plus a component axis.

    P(m | o_0..o_t) ∝ P(m) P_m(o_0..o_t)

A component's weight is stored as mantissa * 2^(256 power) with the mantissa in [2^-256, 2], so it never underflows.
"""

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from hmmscope.kernels.compile_units import intrinsic
from hmmscope.kernels.compiling import kernel
from hmmscope.kernels.products import LANES, VECTORS, Emitter, stripe_of
from hmmscope.kernels.simd_over_sequences import add_moved, arrive, doubt, group, inlined, look

_UP, _LOW = 2.0**256, 2.0**-256
_LOG_UP = 256 * math.log(2.0)

#: Factor of a weight whose power is 0, 1, .. below the largest; zero from 5 on.
_SCALES = np.array([1.0, 2.0**-256, 2.0**-512, 2.0**-768, 2.0**-1024, 0.0])
#: The power of a zero weight, and the steps per component.
_NONE, _STEPS = -(2**62), 64
#: Lanes of a float64 tile; fewer lanes are processed one by one.
_TILE = VECTORS * LANES // 2
_tiles = stripe_of(VECTORS)
#: Most symbols for which emissions are looked up by exact one-hot products.
_FEW = 32
_I64 = ir.IntType(64)


def _rows(context, builder, kinds, arrays):  # type: ignore[no-untyped-def]
    w = Emitter(context, builder, types.float64, LANES // 2)
    data = [w.data(kind, array) for kind, array in zip(kinds, arrays, strict=True)]
    size, many = cgutils.unpack_tuple(builder, context.make_array(kinds[0])(context, builder, arrays[0]).shape)
    lanes = ir.Constant(_I64, w.lanes)

    def at(row, block):  # type: ignore[no-untyped-def]
        return builder.add(builder.mul(row, many), builder.mul(block, lanes))

    return w, data, size, builder.udiv(many, lanes), at


@intrinsic
def _weigh(typing, target, likely, law, norm):  # type: ignore[no-untyped-def]
    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        w, data, size, blocks, at = _rows(context, builder, (target, likely, law, norm), arguments)
        sums = cgutils.alloca_once(builder, w.vector)
        with cgutils.for_range(builder, blocks) as block:
            builder.store(ir.Constant(w.vector, [0.0] * w.lanes), sums)
            with cgutils.for_range(builder, size) as row:
                place = at(row.index, block.index)
                value = builder.fmul(w.load(data[0], place), w.load(data[1], place))
                w.store(value, data[2], place)
                builder.store(builder.fadd(builder.load(sums), value), sums)
            w.store(builder.load(sums), data[3], at(ir.Constant(_I64, 0), block.index))
        return context.get_dummy_value()

    return types.void(target, likely, law, norm), emit


@intrinsic
def _share_out(typing, law, inverse, share, moved):  # type: ignore[no-untyped-def]
    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        w, data, size, blocks, at = _rows(context, builder, (law, inverse, share, moved), arguments)
        with cgutils.for_range(builder, blocks) as block:
            first = at(ir.Constant(_I64, 0), block.index)
            by, part = w.load(data[1], first), w.load(data[2], first)
            with cgutils.for_range(builder, size) as row:
                place = at(row.index, block.index)
                value = builder.fmul(w.load(data[0], place), by)
                w.store(value, data[0], place)
                w.store(builder.fmul(value, part), data[3], place)
        return context.get_dummy_value()

    return types.void(law, inverse, share, moved), emit


@inlined
def _move(width, law, step, emission, symbols, target, likely, norm, scale, zeros):  # type: ignore[no-untyped-def]
    """Advance beliefs `law` by each lane's one-hot symbol, without normalising them; write `scale` = 1 / norm."""
    size, many = law.shape
    for at in range(0, many, _TILE):
        _tiles(size, 1, size, step, 0, 1, size, 0, law, at, many, 0, target, at, many, False, zeros, 0)
        _tiles(size, 1, len(symbols), emission, 0, 1, size, 0, symbols, at, many, 0, likely, at, many, False, zeros, 0)
    _weigh(target, likely, law, norm)
    for lane in range(len(width)):
        scale[lane] = 1.0 / norm[lane] if norm[lane] > 0.0 else 0.0


@inlined
def _reweigh(width, norm, alive, mantissa, power):  # type: ignore[no-untyped-def]
    for lane in range(len(width)):
        alive[lane] = alive[lane] if norm[lane] > 0.0 else 0.0
        w = mantissa[lane] * norm[lane]
        low, high = w < _LOW, w > 2.0
        mantissa[lane] = w * _UP if low else (w * _LOW if high else w)
        power[lane] += np.int64(high) - np.int64(low)


@inlined
def _join(width, mantissa, power, top, total, mix, share):  # type: ignore[no-untyped-def]
    higher, lower = False, False
    for lane in range(len(width)):
        higher |= mantissa[lane] > 0.0 and power[lane] > top[lane]
        lower |= power[lane] != top[lane]
    if not lower:
        for lane in range(len(width)):
            share[lane] = mantissa[lane]
            total[lane] += share[lane]
        return
    if higher:
        for lane in range(len(width)):
            most = max(top[lane], power[lane]) if mantissa[lane] > 0.0 else top[lane]
            share[lane] = _SCALES[np.uint64(min(most - top[lane], 5))]
            total[lane] *= share[lane]
            top[lane] = most
        for v in range(len(mix)):
            into = mix[v]
            for lane in range(len(width)):
                into[lane] *= share[lane]
    for lane in range(len(width)):
        share[lane] = mantissa[lane] * _SCALES[np.uint64(min(max(top[lane] - power[lane], 0), 5))]
        total[lane] += share[lane]


@inlined
def _look_ahead(width, law, share, prediction, opening, begins, moved, mix):  # type: ignore[no-untyped-def]
    if begins:
        for v in range(len(mix)):
            into, weight_v = mix[v], opening[v]
            for lane in range(len(width)):
                into[lane] += share[lane] * weight_v
    else:
        for i in range(len(law)):
            own, into = law[i], moved[i]
            for lane in range(len(width)):
                into[lane] = own[lane] * share[lane]
        add_moved(width, moved, prediction, mix)


@inlined
def _look_ahead_in_tiles(law, scale, share, prediction, moved, mix, zeros):  # type: ignore[no-untyped-def]
    _share_out(law, scale, share, moved)
    size, symbols = prediction.shape
    many = law.shape[1]
    for at in range(0, many, _TILE):
        _tiles(symbols, 1, size, prediction, 0, 1, symbols, 0, moved, at, many, 0, mix, at, many, True, zeros, 0)


@inlined
def _write(lane, mantissa, power, top, scale, posterior):  # type: ignore[no-untyped-def]
    for m in range(len(posterior)):
        below = np.uint64(min(max(top - power[m, lane], 0), 5))
        posterior[m] = mantissa[m, lane] * _SCALES[below] * scale


@inlined
def _as_ones(width, seen, size, ones):  # type: ignore[no-untyped-def]
    ones[:] = 0.0
    for lane in range(len(width)):
        ones[seen[lane] // size, lane] = 1.0


@kernel(fastmath={"contract", "reassoc"})
def mixed(  # type: ignore[no-untyped-def]
    width, weights, first, step, emission, opening, prediction, symbols, offsets, lengths, starts, smallest, every,
    posterior, following, terms, doubtful,
):  # fmt: skip
    """Compute component posteriors (N, M), next-symbol predictions (N, V) and log P(o_t | past) (N,).

    opening (M, V) is P(first symbol), and prediction (M, S, V) is P(next symbol | state). doubtful (sequence,)
    marks underflow risk.
    """
    components, num_symbols = opening.shape
    size = step.shape[3]
    many, kept = len(width), _STEPS if len(posterior) else 0
    law, moved, norm = np.zeros((components, size, many)), np.empty((size, many)), np.empty(many)
    alive, share, inverse = np.empty((components, many)), np.empty(many), np.empty(many)
    weight, power = np.empty((components, many)), np.empty((components, many), np.int64)
    parts, heights = np.empty((kept, components, many)), np.empty((kept, components, many), np.int32)
    mix, total = np.empty((_STEPS, num_symbols, many)), np.empty((_STEPS, many))
    top, seen = np.empty((_STEPS, many), np.int64), np.empty((_STEPS, many), np.int64)
    rows = emission.shape[1] // size
    tiled = 0 < rows <= _FEW and many >= _TILE
    ones, likely = np.empty((_STEPS if tiled else 0, rows, many)), np.empty((size, many))
    before, height, zeros = np.empty(many), np.empty(many, np.int64), np.zeros(max(size, num_symbols))
    offset, length, doubts = np.empty(many, np.int64), np.empty(many, np.int64), np.empty(many, np.int64)
    for begin in range(0, len(offsets), many):
        lanes = min(many, len(offsets) - begin)
        _, longest = group(width, offsets, lengths, begin, offset, length)
        alive[:], power[:], doubts[:], before[:], height[:] = 1.0, 0, 0, 1.0, 0
        for m in range(components):
            weight[m, :] = weights[m]
        for since in range(0, longest, _STEPS):
            count = min(_STEPS, longest - since)
            top[:], total[:], mix[:] = _NONE, 0.0, 0.0
            for s in range(count):
                look(width, symbols, offset, length, since + s, size, seen[s])
                if tiled:
                    _as_ones(width, seen[s], size, ones[s])
            for m in range(components):
                for s in range(count):
                    t = since + s
                    begins = t + 1 < len(starts) and starts[t + 1]
                    plain = starts[t] or begins or not tiled
                    if plain:
                        table, own = emission[m], alive[m]
                        arrive(width, first[m], step[m], table, seen[s], starts[t], own, law[m], moved, norm, inverse)
                    else:
                        _move(width, law[m], step[m, 0], emission[m], ones[s], moved, likely, norm, inverse, zeros)
                    _reweigh(width, norm, alive[m], weight[m], power[m])
                    _join(width, weight[m], power[m], top[s], total[s], mix[s], share)
                    if plain:
                        _look_ahead(width, law[m], share, prediction[m], opening[m], begins, moved, mix[s])
                    else:
                        _look_ahead_in_tiles(law[m], inverse, share, prediction[m], moved, mix[s], zeros)
                    if t % every == every - 1:
                        doubt(width, law[m], smallest, doubts)
                    if kept:
                        # Assigned whole, which avoids compiling numba's shape errors.
                        for lane in range(many):
                            parts[s, m, lane], heights[s, m, lane] = weight[m, lane], power[m, lane]
            for s in range(count):
                for lane in range(lanes):
                    t = since + s
                    if t < length[lane]:
                        place, whole = offset[lane] + t, total[s, lane]
                        scale = 1.0 / whole if whole > 0.0 and before[lane] > 0.0 else 0.0
                        rise = (top[s, lane] - height[lane]) * _LOG_UP
                        terms[place] = math.log(whole / before[lane]) + rise if scale > 0.0 else -np.inf
                        before[lane], height[lane] = whole, top[s, lane]
                        for v in range(num_symbols):
                            following[place, v] = mix[s, v, lane] * scale
                        if kept:
                            _write(lane, parts[s], heights[s], top[s, lane], scale, posterior[place])
                        if t + 1 == length[lane]:
                            doubtful[begin + lane] = doubts[lane] > 0


@kernel()
def accumulate(log_weight, predicted, largest, total, mixed):  # type: ignore[no-untyped-def]
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
