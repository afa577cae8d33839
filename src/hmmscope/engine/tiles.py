"""Small matrix products and transpositions in SIMD, without bounds checks."""

from typing import Any

from llvmlite import ir
from numba import types

from hmmscope.kernels.compile_units import X1, Row, compile_unit, intrinsic
from hmmscope.kernels.products import LANES, VECTORS, Emitter, TileSum, write_tile

_I64 = ir.IntType(64)


def _lane_tile(rows: int, vectors: int) -> Any:
    @intrinsic
    def tile(typing, inner, A, a, a_row, a_k, B, b, b_col, b_k, C, c, c_row, c_col, add, zeros):  # type: ignore[no-untyped-def]
        i = types.int64

        def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            e = Emitter(context, builder, A.dtype)
            inner, A_, a, a_row, a_k, B_, b, b_col, b_k, C_, c, c_row, c_col, add, zeros_ = arguments
            zero, one = ir.Constant(_I64, 0), ir.Constant(_I64, 1)
            sums = TileSum(
                one, inner, e.data(A, A_), a, a_row, a_k, zero, e.data(B, B_), b, b_col, b_k, zero,
                e.data(C, C_), c, c_row, c_col, e.data(zeros, zeros_),
            )  # fmt: skip
            write_tile(e, rows, vectors, False, sums, builder.trunc(add, ir.IntType(1)), zero)
            return context.get_dummy_value()

        return types.void(i, A, i, i, i, B, i, i, i, C, i, i, i, types.boolean, zeros), emit

    return tile


def _along(kind: str) -> Any:
    reduces = kind in ("top", "sum")

    @intrinsic
    def along(typing, array, at, count, values):  # type: ignore[no-untyped-def]
        signature = types.void(array, types.int64, types.int64, values)

        def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            e = Emitter(context, builder, array.dtype)
            array_, at, count, values_ = arguments
            data, held = e.data(array, array_), e.data(values, values_)
            zero, one, begin = ir.Constant(_I64, 0), ir.Constant(_I64, 1), builder.block
            first = e.load(data, at) if kind == "top" else None if kind == "sum" else e.load(held, zero)
            first = ir.Constant(e.vector, [0.0] * LANES) if first is None else first
            inside, end = builder.append_basic_block("inside"), builder.append_basic_block("end")
            builder.branch(inside)
            builder.position_at_end(inside)
            k, kept = builder.phi(_I64), builder.phi(e.vector)
            place = builder.add(at, builder.mul(k, ir.Constant(_I64, LANES)))
            value, grown = e.load(data, place), kept
            if kind == "top":
                grown = builder.select(builder.fcmp_ordered(">", value, kept), value, kept)
            elif kind == "sum":
                grown = builder.fadd(kept, value)
            else:
                e.store(builder.fsub(value, kept) if kind == "take" else builder.fmul(value, kept), data, place)
            for phi, start, now in ((k, zero, builder.add(k, one)), (kept, first, grown)):
                phi.add_incoming(start, begin)
                phi.add_incoming(now, inside)
            builder.cbranch(builder.icmp_signed("<", builder.add(k, one), count), inside, end)
            builder.position_at_end(end)
            if reduces:
                e.store(grown, held, zero)
            return context.get_dummy_value()

        return signature, emit

    return along


lanes_top, lanes_sum, lanes_take, lanes_times = (_along(kind) for kind in ("top", "sum", "take", "times"))


@intrinsic
def _transpose(typing, source, begin, stride, result, place, result_stride):  # type: ignore[no-untyped-def]
    i = types.int64
    signature = types.void(source, i, i, result, i, i)

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        e = Emitter(context, builder, source.dtype)
        source_, begin, stride, result_, place, result_stride = arguments
        rows = [e.load(e.data(source, source_), e.at(begin, stride, row)) for row in range(LANES)]
        half = LANES // 2
        while half:
            for row in range(LANES):
                if row & half:
                    continue
                upper, lower = rows[row], rows[row | half]
                keep = [lane if not lane & half else LANES + lane - half for lane in range(LANES)]
                rows[row] = e.shuffle(upper, lower, keep)
                rows[row | half] = e.shuffle(upper, lower, [kept + half for kept in keep])
            half //= 2
        for row in range(LANES):
            e.store(rows[row], e.data(result, result_), e.at(place, result_stride, row))
        return context.get_dummy_value()

    return signature, emit


_lane4x, _lane4, _lane1x, _lane1 = (_lane_tile(*size) for size in ((4, VECTORS), (4, 1), (1, VECTORS), (1, 1)))


@compile_unit()
def lane_product(
    rows: int, cols: int, inner: int, A: Row, a: int, a_row: int, a_k: int,
    B: Row, b: int, b_col: int, b_k: int, C: Row, c: int, c_row: int, c_col: int, add: bool, zeros: X1,
) -> None:  # fmt: skip
    """Compute C[i, j] = (C[i, j] if add) + sum_k A[i, k] B[k, j], where every entry is a vector of `LANES` numbers."""
    if inner < 1:
        return
    for row in range(0, rows, 4):
        height = min(4, rows - row)
        a_at, c_at = a + row * a_row, c + row * c_row
        col = 0
        while col < cols:
            wide = col + VECTORS <= cols
            b_at, to = b + col * b_col, c_at + col * c_col
            if height == 4 and wide:
                _lane4x(inner, A, a_at, a_row, a_k, B, b_at, b_col, b_k, C, to, c_row, c_col, add, zeros)
            elif height == 4:
                _lane4(inner, A, a_at, a_row, a_k, B, b_at, b_col, b_k, C, to, c_row, c_col, add, zeros)
            else:
                for i in range(height):
                    at, put = a_at + i * a_row, to + i * c_row
                    if wide:
                        _lane1x(inner, A, at, 0, a_k, B, b_at, b_col, b_k, C, put, 0, c_col, add, zeros)
                    else:
                        _lane1(inner, A, at, 0, a_k, B, b_at, b_col, b_k, C, put, 0, c_col, add, zeros)
            col += VECTORS if wide else 1


@compile_unit()
def transpose(rows: int, cols: int, source: Row, begin: int, stride: int, result: Row, place: int, across: int) -> None:
    """Write result[j, i] = source[i, j]; both sizes must be multiples of `LANES`."""
    for i in range(0, rows, LANES):
        for j in range(0, cols, LANES):
            _transpose(source, begin + i * stride + j, stride, result, place + j * across + i, across)
