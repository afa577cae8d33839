"""Causal softmax attention of a chunk, vectorised over samples, and over heads if there are few samples.

s[t, u] = q_t · k_u for u <= t;  p = softmax of s over u;  mixed_t = sum_u p[t, u] v_u;
dp[t, u] = dmixed_t · v_u;  ds = p (dp - sum_u p dp)

Queries q are rotated and scaled, keys k rotated; dx is the loss gradient of x.
"""

from typing import NamedTuple

from hmmscope.engine.functions import exponential
from hmmscope.engine.tiles import lane_product, lanes_sum, lanes_take, lanes_times, lanes_top
from hmmscope.kernels.compile_units import X0, X1, X2, X3, compile_unit
from hmmscope.kernels.products import FLAGS, LANES, wide


class HeadBuffers(NamedTuple):
    """Work arrays of one head and one group of SIMD lanes: (step, head width, lane), but `p` and `ds` are flat."""

    q: X3
    k: X3
    v: X3
    mixed: X3
    dq: X3
    dk: X3
    dv: X3
    p: X1
    ds: X1


@compile_unit(fastmath=FLAGS)
def _gather(
    x: X3, feature: int, group: int, samples: int, steps: int, size: int, scale: X0, cos: X2, sin: X2, own: X3
) -> None:
    wide()
    half = size // 2
    if samples < LANES:
        for t in range(steps):
            panel, column = divmod(t * samples, x.shape[2])
            for place in range(LANES):
                at, lane = feature + place // samples * size, column + place % samples
                for d in range(size):
                    number = x[panel, at + d, lane]
                    if len(cos):
                        other = d + half if d < half else d - half
                        number = cos[t, d] * number + sin[t, d] * x[panel, at + other, lane]
                    own[t, d, place] = scale * number
        return
    for t in range(steps):
        panel, column = divmod(t * samples + group * LANES, x.shape[2])
        if cos.shape[0] == 0:
            for d in range(size):
                for lane in range(LANES):
                    own[t, d, lane] = scale * x[panel, feature + d, column + lane]
        else:
            for d in range(size):
                other = d + half if d < half else d - half
                for lane in range(LANES):
                    own[t, d, lane] = scale * (
                        cos[t, d] * x[panel, feature + d, column + lane]
                        + sin[t, d] * x[panel, feature + other, column + lane]
                    )


@compile_unit(fastmath=FLAGS)
def _scatter(
    own: X3, feature: int, group: int, samples: int, steps: int, size: int, scale: X0, cos: X2, sin: X2, x: X3
) -> None:
    wide()
    half = size // 2
    if samples < LANES:
        for t in range(steps):
            panel, column = divmod(t * samples, x.shape[2])
            for place in range(LANES):
                at, lane = feature + place // samples * size, column + place % samples
                for d in range(size):
                    number = own[t, d, place]
                    if len(cos):
                        other = d + half if d < half else d - half
                        number = cos[t, d] * number - sin[t, d] * own[t, other, place]
                    x[panel, at + d, lane] = scale * number
        return
    for t in range(steps):
        panel, column = divmod(t * samples + group * LANES, x.shape[2])
        if cos.shape[0] == 0:
            for d in range(size):
                for lane in range(LANES):
                    x[panel, feature + d, column + lane] = scale * own[t, d, lane]
        else:
            for d in range(size):
                other = d + half if d < half else d - half
                for lane in range(LANES):
                    x[panel, feature + d, column + lane] = scale * (
                        cos[t, d] * own[t, d, lane] - sin[t, d] * own[t, other, lane]
                    )


@compile_unit(fastmath=FLAGS)
def _patterns(q: X3, k: X3, begin: int, end: int, size: int, p: X1, values: X1, zeros: X1) -> None:
    wide()
    one, row, key = p.dtype.type(1), size * LANES, end * LANES
    lane_product(end - begin, end, size, q, begin * row, row, LANES, k, 0, row, LANES, p, 0, key, LANES, False, zeros)
    for t in range(begin, end):
        at, count = (t - begin) * key, t + 1
        lanes_top(p, at, count, values)
        lanes_take(p, at, count, values)
        part = p[at : at + count * LANES]
        for i in range(count * LANES):
            part[i] = exponential(part[i])
        lanes_sum(p, at, count, values)
        for lane in range(LANES):
            values[lane] = one / values[lane]
        lanes_times(p, at, count, values)
        part = p[at + count * LANES : at + key]
        for i in range(len(part)):
            part[i] = 0


@compile_unit(fastmath=FLAGS)
def _softmax_backward(p: X1, ds: X1, rows: int, end: int, values: X1, zeros: X1) -> None:
    wide()
    for t in range(rows):
        at = t * end * LANES
        lane_product(1, 1, end, p, at, 0, LANES, ds, at, 0, LANES, values, 0, 0, 0, False, zeros)
        lanes_take(ds, at, end, values)
        into, of = ds[at : at + end * LANES], p[at : at + end * LANES]
        for i in range(end * LANES):
            into[i] *= of[i]


@compile_unit(fastmath=FLAGS)
def attend(
    qkv: X3, heads: int, scale: float, cos: X2, sin: X2, none: X2, samples: int, steps: int,
    work: HeadBuffers, values: X1, zeros: X1, out: X3,
) -> None:  # fmt: skip
    """Write the mixed values to `out` (panels, width, panel), see `chunks`, from q, k and v (panels, 3 width, panel).

    Args:
        cos, sin: Cosines and sines of rotary positions (step, head width); no rows if positions are not rotary.
        none: Array without rows, which replaces `cos` and `sin` for values (not rotated).
        work: Work arrays of one head and lane group.
    """
    wide()
    width = out.shape[1]
    size = width // heads
    one, row, block = 1.0, size * LANES, len(work.p) // (steps * LANES)
    for group in range(max(1, samples // LANES)):
        for head in range(0, heads, max(1, LANES // samples)):
            at = head * size
            _gather(qkv, at, group, samples, steps, size, scale, cos, sin, work.q)
            _gather(qkv, width + at, group, samples, steps, size, one, cos, sin, work.k)
            _gather(qkv, 2 * width + at, group, samples, steps, size, one, none, none, work.v)
            for begin in range(0, steps, block):
                end = min(begin + block, steps)
                key = end * LANES
                _patterns(work.q, work.k, begin, end, size, work.p, values, zeros)
                lane_product(
                    end - begin, size, end, work.p, 0, key, LANES, work.v, 0, LANES, row,
                    work.mixed, begin * row, row, LANES, False, zeros,
                )  # fmt: skip
            _scatter(work.mixed, at, group, samples, steps, size, one, none, none, out)


@compile_unit(fastmath=FLAGS)
def attend_backward(
    dout: X3, qkv: X3, heads: int, scale: float, cos: X2, sin: X2, none: X2, samples: int, steps: int,
    work: HeadBuffers, values: X1, zeros: X1,
) -> None:  # fmt: skip
    """Replace `qkv` by its loss gradient; recompute the attention patterns block by block."""
    wide()
    width = dout.shape[1]
    size = width // heads
    one, row, block = 1.0, size * LANES, len(work.p) // (steps * LANES)
    p, ds = work.p, work.ds
    for group in range(max(1, samples // LANES)):
        for head in range(0, heads, max(1, LANES // samples)):
            at = head * size
            _gather(qkv, at, group, samples, steps, size, scale, cos, sin, work.q)
            _gather(qkv, width + at, group, samples, steps, size, one, cos, sin, work.k)
            _gather(qkv, 2 * width + at, group, samples, steps, size, one, none, none, work.v)
            _gather(dout, at, group, samples, steps, size, one, none, none, work.mixed)
            for begin in range(0, steps, block):
                end = min(begin + block, steps)
                rows, key, here = end - begin, end * LANES, begin * row
                _patterns(work.q, work.k, begin, end, size, p, values, zeros)
                lane_product(
                    rows, end, size, work.mixed, here, row, LANES, work.v, 0, row, LANES,
                    ds, 0, key, LANES, False, zeros,
                )  # fmt: skip
                _softmax_backward(p, ds, rows, end, values, zeros)
                lane_product(
                    rows, size, end, ds, 0, key, LANES, work.k, 0, LANES, row, work.dq, here, row, LANES, False, zeros
                )
                for weights, of, into in ((ds, work.q, work.dk), (p, work.mixed, work.dv)):
                    lane_product(
                        begin, size, rows, weights, 0, LANES, key, of, here, LANES, row,
                        into, 0, row, LANES, True, zeros,
                    )  # fmt: skip
                    lane_product(
                        rows, size, rows, weights, begin * LANES, LANES, key, of, here, LANES, row,
                        into, here, row, LANES, False, zeros,
                    )  # fmt: skip
            _scatter(work.dq, at, group, samples, steps, size, scale, cos, sin, qkv)
            _scatter(work.dk, width + at, group, samples, steps, size, one, cos, sin, qkv)
            _scatter(work.dv, 2 * width + at, group, samples, steps, size, one, none, none, qkv)
