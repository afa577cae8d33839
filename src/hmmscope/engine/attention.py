"""Causal softmax attention of a chunk: every number below is a vector of `LANES` samples.

    s[t, u] = q_t · k_u,  u <= t;   p = softmax over u;   mixed_t = sum_u p[t, u] v_u          q rotated, scaled; k rotated
    dp[t, u] = dmixed_t · v_u;  ds = p (dp - sum_u p dp);  dq_t = sum_u ds[t, u] k_u
    dk_u = sum_t ds[t, u] q_t;  dv_u = sum_t p[t, u] dmixed_t

Queries come in blocks; a block looks at the keys up to its own end, and what lies after a query is zero.
"""

from typing import Any, NamedTuple

from numba import njit

from hmmscope.engine.functions import exponential
from hmmscope.engine.tiles import FLAGS, LANES, flat, lane_product, lanes_sum, lanes_take, lanes_times, lanes_top, wide


class Heads(NamedTuple):
    """Arrays of one head of a group of lanes: (step, head width, lane), and `p` and `ds` (query of a block, step, lane)."""

    q: Any
    k: Any
    v: Any
    mixed: Any
    dq: Any
    dk: Any
    dv: Any
    p: Any
    ds: Any


@njit(fastmath=FLAGS)
def _gather(x, feature, group, samples, steps, size, scale, cos, sin, own):  # type: ignore[no-untyped-def]
    """own[t, d] = features `feature` .. of a group of lanes, turned by cos and sin where they are given, times `scale`."""
    wide()
    half = size // 2
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


@njit(fastmath=FLAGS)
def _scatter(own, feature, group, samples, steps, size, scale, cos, sin, x):  # type: ignore[no-untyped-def]
    """The gradient of `_gather`: the same places, turned back."""
    wide()
    half = size // 2
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


@njit(fastmath=FLAGS, error_model="numpy")
def _softmax(s, at, count, end, values):  # type: ignore[no-untyped-def]
    """The first `count` vectors of s from `at` on <- their softmax, and zero up to `end`."""
    wide()
    one = s.dtype.type(1)
    lanes_top(s, at, count, values)
    lanes_take(s, at, count, values)
    part = s[at : at + count * LANES]
    for i in range(count * LANES):
        part[i] = exponential(part[i])
    lanes_sum(s, at, count, values)
    for lane in range(LANES):
        values[lane] = one / values[lane]
    lanes_times(s, at, count, values)
    part = s[at + count * LANES : at + end * LANES]
    for i in range(len(part)):
        part[i] = 0


@njit(fastmath=FLAGS)
def _softmax_backward(p, ds, at, end, values, zeros):  # type: ignore[no-untyped-def]
    """ds <- p (ds - sum p ds), of `end` vectors from `at` on, where p is zero after the query."""
    wide()
    lane_product(1, 1, end, p, at, 0, LANES, ds, at, 0, LANES, values, 0, 0, 0, False, zeros)
    lanes_take(ds, at, end, values)
    into, of = ds[at : at + end * LANES], p[at : at + end * LANES]
    for i in range(end * LANES):
        into[i] *= of[i]


@njit
def _patterns(q, k, begin, end, size, p, values, zeros):  # type: ignore[no-untyped-def]
    """Rows of softmax(q_t · k_u) of the queries begin .. end - 1 over the keys before `end`."""
    row, key = size * LANES, end * LANES
    lane_product(end - begin, end, size, q, begin * row, row, LANES, k, 0, row, LANES, p, 0, key, LANES, False, zeros)
    for t in range(begin, end):
        _softmax(p, (t - begin) * key, t + 1, end, values)


@njit(fastmath=FLAGS)
def attend(qkv, heads, scale, cos, sin, none, samples, steps, work, values, zeros, out):  # type: ignore[no-untyped-def]
    """Mixed values `out` (panels, width, panel) of queries, keys, values (panels, 3 width, panel).

    Args:
        cos, sin, none: of the rotation (step, head width), without rows if there is none; `none` has none.
        work: the arrays of one head of a group of lanes.
        values: scratch of a vector.
    """
    wide()
    width = out.shape[1]
    size = width // heads
    one, row, p, block = zeros.dtype.type(1), size * LANES, flat(work.p), work.p.shape[0]
    for group in range(samples // LANES):
        for head in range(heads):
            at = head * size
            _gather(qkv, at, group, samples, steps, size, scale, cos, sin, work.q)
            _gather(qkv, width + at, group, samples, steps, size, one, cos, sin, work.k)
            _gather(qkv, 2 * width + at, group, samples, steps, size, one, none, none, work.v)
            for begin in range(0, steps, block):
                end = min(begin + block, steps)
                key = end * LANES
                _patterns(work.q, work.k, begin, end, size, p, values, zeros)
                lane_product(
                    end - begin, size, end, p, 0, key, LANES, work.v, 0, LANES, row,
                    work.mixed, begin * row, row, LANES, False, zeros,
                )  # fmt: skip
            _scatter(work.mixed, at, group, samples, steps, size, one, none, none, out)


@njit(fastmath=FLAGS)
def attend_backward(dout, qkv, heads, scale, cos, sin, none, samples, steps, work, values, zeros):  # type: ignore[no-untyped-def]
    """Gradients of queries, keys and values in the place of `qkv`, from that of the mixed values. See `attend`.

    The patterns of a block of queries are computed again, which costs less than to keep them all.
    """
    wide()
    width = dout.shape[1]
    size = width // heads
    one, row, block = zeros.dtype.type(1), size * LANES, work.p.shape[0]
    p, ds = flat(work.p), flat(work.ds)
    for group in range(samples // LANES):
        for head in range(heads):
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
                    rows,
                    end,
                    size,
                    work.mixed,
                    here,
                    row,
                    LANES,
                    work.v,
                    0,
                    row,
                    LANES,
                    ds,
                    0,
                    key,
                    LANES,
                    False,
                    zeros,
                )
                for t in range(rows):
                    _softmax_backward(p, ds, t * key, end, values, zeros)
                lane_product(
                    rows, size, end, ds, 0, key, LANES, work.k, 0, LANES, row, work.dq, here, row, LANES, False, zeros
                )
                for weights, of, into in ((ds, work.q, work.dk), (p, work.mixed, work.dv)):
                    lane_product(
                        begin,
                        size,
                        rows,
                        weights,
                        0,
                        LANES,
                        key,
                        of,
                        here,
                        LANES,
                        row,
                        into,
                        0,
                        row,
                        LANES,
                        True,
                        zeros,
                    )
                    lane_product(
                        rows, size, rows, weights, begin * LANES, LANES, key, of, here, LANES, row,
                        into, here, row, LANES, False, zeros,
                    )  # fmt: skip
            _scatter(work.dq, at, group, samples, steps, size, scale, cos, sin, qkv)
            _scatter(work.dk, width + at, group, samples, steps, size, one, cos, sin, qkv)
            _scatter(work.dv, 2 * width + at, group, samples, steps, size, one, none, none, qkv)
