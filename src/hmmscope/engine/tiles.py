"""The micro-kernel of the compiled engine: register tiles of matrix products, and transpositions.

A tile is a block of rows x vectors of the result that stays in registers while the sum runs:

    C[i, j] = (C[i, j]) + (bias[i]) + sum_k A[i, k] B[k, j]        i < rows, j < columns, one fused multiply-add a term

A and C are addressed by strides, so that transposed operands cost nothing; the columns of a vector of B and C lie side by
side. Each number of the result is one chain of fused multiply-adds over k, so its bits depend neither on the tile nor on
the width of the vectors. Nothing here checks bounds: sizes are checked where work arrays are made (`layout`).
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, njit, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.np.arrayobj import populate_array

#: What the compiler may do to arithmetic. No "nnan" and no "ninf": numbers that are not finite are looked for. A loop over
#: several arrays is compiled twice, with and without vectors, and where the arrays lie decides which is run; so sums are
#: reordered (`SUMS`) only in loops that write nothing, and "arcp", which holds for vectors alone, is never given.
FLAGS = {"contract", "nsz"}
SUMS = {"reassoc", "contract", "nsz"}


def _text() -> str:
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


_TEXT = _text()


def kept(function: Any) -> Any:
    """Keep what was compiled for later processes, as long as no file of the engine changes.

    numba by itself looks at the file of the function alone, and would go on with old code of the others.
    """
    function.enable_caching()
    function._cache._cache_file._source_stamp = _TEXT
    return function


def _lanes() -> int:
    """Numbers of a vector: what fills a register in float32; it decides speed only."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return 16 if "+avx512f" in features else 8


#: Numbers of a vector, and the most vectors of a row of a tile: 64 columns with AVX-512, 16 without.
LANES = _lanes()
VECTORS = 4 if LANES == 16 else 2
intrinsic: Any = extending.intrinsic
_int, _bool = np.int64, np.bool_  # a constant has a type of its own in compiled code
_I64, _I32 = ir.IntType(64), ir.IntType(32)


class _Emitter:
    """Writes vector instructions on arrays of one type."""

    def __init__(self, context: Any, builder: Any, dtype: Any) -> None:
        self.context, self.builder = context, builder
        self.vector = ir.VectorType(context.get_value_type(dtype), LANES)
        self.align = dtype.bitwidth // 8
        self._fma_name = f"llvm.fma.v{LANES}f{dtype.bitwidth}"

    def data(self, kind: Any, array: Any) -> Any:
        return self.context.make_array(kind)(self.context, self.builder, array).data

    def at(self, start: Any, stride: Any, number: int) -> Any:
        return self.builder.add(start, self.builder.mul(stride, ir.Constant(_I64, number)))

    def _place(self, data: Any, offset: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(data, [offset]), self.vector.as_pointer())

    def load(self, data: Any, offset: Any) -> Any:
        loaded = self.builder.load(self._place(data, offset))
        loaded.align = self.align
        return loaded

    def store(self, value: Any, data: Any, offset: Any) -> None:
        self.builder.store(value, self._place(data, offset)).align = self.align

    def spread(self, data: Any, offset: Any) -> Any:
        """One number in all lanes."""
        nothing = ir.Constant(self.vector, ir.Undefined)
        number = self.builder.load(self.builder.gep(data, [offset]))
        first = self.builder.insert_element(nothing, number, ir.Constant(_I32, 0))
        return self.shuffle(first, nothing, [0] * LANES)

    def shuffle(self, left: Any, right: Any, lanes: list[int]) -> Any:
        return self.builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(_I32, LANES), lanes))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, self._fma_name), [a, b, c])


def _tile(rows: int, vectors: int, spread: bool) -> Any:
    """A tile as a function for compiled code; A is read by single numbers (`spread`) or by vectors, one a lane.

    The sum runs over `outer` blocks of `inner` terms. Every stride is in numbers.
    """

    @intrinsic
    def tile(  # type: ignore[no-untyped-def]
        typing, outer, inner, A, a, a_row, a_k, a_outer, B, b, b_col, b_k, b_outer, C, c, c_row, c_col, add, bias, first
    ):
        i = types.int64
        signature = types.void(i, i, A, i, i, i, i, B, i, i, i, i, C, i, i, i, types.boolean, bias, i)

        def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            e = _Emitter(context, builder, A.dtype)
            outer, inner, A_, a, a_row, a_k, a_outer, B_, b, b_col, b_k, b_outer, C_, c, c_row, c_col = arguments[:16]
            add, bias_, first = arguments[16:]
            in_a, in_b, in_c, in_bias = e.data(A, A_), e.data(B, B_), e.data(C, C_), e.data(bias, bias_)
            cells = [(row, col) for row in range(rows) for col in range(vectors)]
            places = [e.at(e.at(c, c_row, row), c_col, col) for row, col in cells]
            zero, one = ir.Constant(_I64, 0), ir.Constant(_I64, 1)
            biases = [e.spread(in_bias, e.at(first, one, row)) for row in range(rows)]
            begin = builder.block
            adding, outside, inside, after, end = (
                builder.append_basic_block(name) for name in ("adding", "outside", "inside", "after", "end")
            )
            builder.cbranch(builder.trunc(add, ir.IntType(1)), adding, outside)

            builder.position_at_end(adding)
            before = [
                builder.fadd(e.load(in_c, place), biases[row]) for (row, _), place in zip(cells, places, strict=True)
            ]
            builder.branch(outside)

            builder.position_at_end(outside)
            count, a_now, b_now = (builder.phi(_I64) for _ in range(3))
            for phi, value in ((count, zero), (a_now, a), (b_now, b)):
                phi.add_incoming(value, begin)
                phi.add_incoming(value, adding)
            sums = [builder.phi(e.vector) for _ in cells]
            for phi, (row, _), value in zip(sums, cells, before, strict=True):
                phi.add_incoming(biases[row], begin)
                phi.add_incoming(value, adding)
            builder.branch(inside)

            builder.position_at_end(inside)
            k, a_k_now, b_k_now = (builder.phi(_I64) for _ in range(3))
            inner_sums = [builder.phi(e.vector) for _ in cells]
            b_vectors = [e.load(in_b, e.at(b_k_now, b_col, col)) for col in range(vectors)]
            a_read = e.spread if spread else e.load
            a_vectors = [a_read(in_a, e.at(a_k_now, a_row, row)) for row in range(rows)]
            grown = [
                e.fma(a_vectors[row], b_vectors[col], phi) for (row, col), phi in zip(cells, inner_sums, strict=True)
            ]
            for phi, start, step in ((k, zero, one), (a_k_now, a_now, a_k), (b_k_now, b_now, b_k)):
                phi.add_incoming(start, outside)
                phi.add_incoming(builder.add(phi, step), inside)
            for phi, start, value in zip(inner_sums, sums, grown, strict=True):
                phi.add_incoming(start, outside)
                phi.add_incoming(value, inside)
            builder.cbranch(builder.icmp_signed("<", builder.add(k, one), inner), inside, after)

            builder.position_at_end(after)
            for phi, step in ((count, one), (a_now, a_outer), (b_now, b_outer)):
                phi.add_incoming(builder.add(phi, step), after)
            for phi, value in zip(sums, grown, strict=True):
                phi.add_incoming(value, after)
            builder.cbranch(builder.icmp_signed("<", builder.add(count, one), outer), outside, end)

            builder.position_at_end(end)
            for value, place in zip(grown, places, strict=True):
                e.store(value, in_c, place)
            return context.get_dummy_value()

        return signature, emit

    return tile


@intrinsic
def wide(typing):  # type: ignore[no-untyped-def]
    """Said first in a function: its loops may use whole registers, which some processors are not given by default."""

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')  # unknown to llvmlite, known to LLVM
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def flat(typing, array):  # type: ignore[no-untyped-def]
    """The numbers of an array in one row, while the array lives; so that a loop is compiled for one type."""
    one_row = types.Array(array.dtype, 1, "C")

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        whole = context.make_array(array)(context, builder, arguments[0])
        row = context.make_array(one_row)(context, builder)
        populate_array(row, whole.data, [whole.nitems], [whole.itemsize], whole.itemsize, None)
        return row._getvalue()

    return one_row(array), emit


@intrinsic
def apart(typing):  # type: ignore[no-untyped-def]
    """Said first in a function: it is compiled once and called, never copied to where it is called."""

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), emit


def _along(kind: str) -> Any:
    """A loop over `count` vectors of an array that begin at `at`, one after the other, and the vector `values`.

    "top" and "sum" leave the largest and the sum in `values`; "take" subtracts it from each, "times" multiplies each by it.
    """
    reduces = kind in ("top", "sum")

    @intrinsic
    def along(typing, array, at, count, values):  # type: ignore[no-untyped-def]
        signature = types.void(array, types.int64, types.int64, values)

        def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            e = _Emitter(context, builder, array.dtype)
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
    """result[j, i] = source[i, j] for LANES rows and columns: log2(LANES) rounds of exchanges between pairs of rows."""
    i = types.int64
    signature = types.void(source, i, i, result, i, i)

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        e = _Emitter(context, builder, source.dtype)
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


def _stripe(vectors: int) -> Any:
    """The rows of a product whose columns are that many vectors."""
    tile6, tile4, tile2, tile1 = (_tile(rows, vectors, True) for rows in (6, 4, 2, 1))

    @njit
    def stripe(rows, outer, inner, A, a, a_row, a_k, a_outer, B, b, b_k, b_outer, C, c, c_row, add, bias, first):  # type: ignore[no-untyped-def]
        apart()
        row, v = 0, LANES
        while row + 6 <= rows:
            tile6(
                outer, inner, A, a, a_row, a_k, a_outer, B, b, v, b_k, b_outer, C, c, c_row, v, add, bias, first + row
            )
            row, a, c = row + 6, a + 6 * a_row, c + 6 * c_row
        if row + 4 <= rows:
            tile4(
                outer, inner, A, a, a_row, a_k, a_outer, B, b, v, b_k, b_outer, C, c, c_row, v, add, bias, first + row
            )
            row, a, c = row + 4, a + 4 * a_row, c + 4 * c_row
        if row + 2 <= rows:
            tile2(
                outer, inner, A, a, a_row, a_k, a_outer, B, b, v, b_k, b_outer, C, c, c_row, v, add, bias, first + row
            )
            row, a, c = row + 2, a + 2 * a_row, c + 2 * c_row
        if row < rows:
            tile1(
                outer, inner, A, a, a_row, a_k, a_outer, B, b, v, b_k, b_outer, C, c, c_row, v, add, bias, first + row
            )

    return stripe


_stripe4, _stripe3, _stripe2, _stripe1 = _stripe(min(4, VECTORS)), _stripe(min(3, VECTORS)), _stripe(2), _stripe(1)
_lane4x, _lane4, _lane1x, _lane1 = (
    _tile(4, VECTORS, False),
    _tile(4, 1, False),
    _tile(1, VECTORS, False),
    _tile(1, 1, False),
)


@njit
def _product(rows, cols, outer, inner, A, a, a_row, a_k, a_outer, B, b, b_k, b_outer, C, c, c_row, add, bias, first):  # type: ignore[no-untyped-def]
    apart()
    if outer < 1 or inner < 1:
        return
    done, widest = 0, VECTORS * LANES
    while done < cols:
        left, to, at = cols - done, c + done, b + done
        if left >= widest:
            _stripe4(rows, outer, inner, A, a, a_row, a_k, a_outer, B, at, b_k, b_outer, C, to, c_row, add, bias, first)
            done += widest
        elif left >= 3 * LANES:
            _stripe3(rows, outer, inner, A, a, a_row, a_k, a_outer, B, at, b_k, b_outer, C, to, c_row, add, bias, first)
            done += 3 * LANES
        elif left >= 2 * LANES:
            _stripe2(rows, outer, inner, A, a, a_row, a_k, a_outer, B, at, b_k, b_outer, C, to, c_row, add, bias, first)
            done += 2 * LANES
        else:
            _stripe1(rows, outer, inner, A, a, a_row, a_k, a_outer, B, at, b_k, b_outer, C, to, c_row, add, bias, first)
            done += LANES


@njit
def _lane_product(rows, cols, inner, A, a, a_row, a_k, B, b, b_col, b_k, C, c, c_row, c_col, add, zeros):  # type: ignore[no-untyped-def]
    apart()
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
                _lane4x(1, inner, A, a_at, a_row, a_k, 0, B, b_at, b_col, b_k, 0, C, to, c_row, c_col, add, zeros, 0)
            elif height == 4:
                _lane4(1, inner, A, a_at, a_row, a_k, 0, B, b_at, b_col, b_k, 0, C, to, c_row, c_col, add, zeros, 0)
            else:
                for i in range(height):
                    at, put = a_at + i * a_row, to + i * c_row
                    if wide:
                        _lane1x(1, inner, A, at, 0, a_k, 0, B, b_at, b_col, b_k, 0, C, put, 0, c_col, add, zeros, 0)
                    else:
                        _lane1(1, inner, A, at, 0, a_k, 0, B, b_at, b_col, b_k, 0, C, put, 0, c_col, add, zeros, 0)
            col += VECTORS if wide else 1


@njit
def _turn(rows, cols, source, begin, stride, result, place, result_stride):  # type: ignore[no-untyped-def]
    apart()
    for i in range(0, rows, LANES):
        for j in range(0, cols, LANES):
            _transpose(source, begin + i * stride + j, stride, result, place + j * result_stride + i, result_stride)


@njit
def product(rows, cols, outer, inner, A, a, a_row, a_k, a_outer, B, b, b_k, b_outer, C, c, c_row, add, bias, first):  # type: ignore[no-untyped-def]
    """C[i, j] = (C[i, j] if add) + bias[first + i] + sum A[i, k] B[k, j]; `cols` is a multiple of `LANES`.

    Sums run over `outer` blocks of `inner` terms; `a`, `b`, `c` are the places of the first numbers, the rest are strides.
    """
    _product(
        _int(rows), _int(cols), _int(outer), _int(inner), flat(A), _int(a), _int(a_row), _int(a_k), _int(a_outer),
        flat(B), _int(b), _int(b_k), _int(b_outer), flat(C), _int(c), _int(c_row), _bool(add), flat(bias), _int(first),
    )  # fmt: skip


@njit
def lane_product(rows, cols, inner, A, a, a_row, a_k, B, b, b_col, b_k, C, c, c_row, c_col, add, zeros):  # type: ignore[no-untyped-def]
    """C[i, j] = (C[i, j] if add) + sum A[i, k] B[k, j], where every number is a vector: `LANES` small products at once."""
    _lane_product(
        _int(rows), _int(cols), _int(inner), flat(A), _int(a), _int(a_row), _int(a_k), flat(B), _int(b), _int(b_col),
        _int(b_k), flat(C), _int(c), _int(c_row), _int(c_col), _bool(add), zeros,
    )  # fmt: skip


@njit
def transpose(rows, cols, source, begin, stride, result, place, result_stride):  # type: ignore[no-untyped-def]
    """result[j, i] = source[i, j]; both sizes are multiples of `LANES`."""
    _turn(
        _int(rows), _int(cols), flat(source), _int(begin), _int(stride), flat(result), _int(place), _int(result_stride)
    )
