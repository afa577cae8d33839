"""Matrix products in register tiles, of float32 and float64.

    C[i, j] = (C[i, j] if add) + bias[i] + sum_k A[i, k] B[k, j]        with one fused multiply-add per term

Rows of B and C are contiguous. The rounding does not depend on tiles or vector width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target

from hmmscope.kernels.compile_units import X1, Row, compile_unit, intrinsic

#: Compiler flags. Neither "nnan" nor "ninf": nonfinite numbers are detected. Only loops that write nothing reorder sums
#: (`SUMS`), because array alignment decides whether others run vectorised. "arcp" holds for vectors only.
FLAGS = {"contract", "nsz"}
SUMS = {"reassoc", "contract", "nsz"}


def has(feature: str) -> bool:
    return f"+{feature}" in cpu_target.target_context.codegen().magic_tuple()[2]


#: Numbers per float32 vector (affects only speed), and most vectors per tile row: 64 columns with AVX-512, 16
#: without.
LANES = 16 if has("avx512f") else 8
VECTORS = 4 if LANES == 16 else 2
_I64, _I32 = ir.IntType(64), ir.IntType(32)


class TileSum(NamedTuple):
    """Operands of one tile of a product, whose sum over k has `outer` blocks of `inner` terms."""

    outer: Any
    inner: Any
    A: Any
    a: Any
    a_row: Any
    a_k: Any
    a_outer: Any
    B: Any
    b: Any
    b_col: Any
    b_k: Any
    b_outer: Any
    C: Any
    c: Any
    c_row: Any
    c_col: Any
    bias: Any


class Emitter:
    """Emitter of LLVM instructions on vectors of `lanes` numbers."""

    def __init__(self, context: Any, builder: Any, dtype: Any, lanes: int = LANES) -> None:
        self.context, self.builder, self.lanes = context, builder, lanes
        self.vector = ir.VectorType(context.get_value_type(dtype), lanes)
        self.align = dtype.bitwidth // 8
        self._fma_name = f"llvm.fma.v{lanes}f{dtype.bitwidth}"

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
        return self.filled(self.builder.load(self.builder.gep(data, [offset])))

    def filled(self, number: Any) -> Any:
        nothing = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(nothing, number, ir.Constant(_I32, 0))
        return self.shuffle(first, nothing, [0] * self.lanes)

    def across(self, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
        half = self.lanes
        while half > 1:
            half //= 2
            other = [lane + half if lane < half else lane for lane in range(self.lanes)]
            vector = join(vector, self.shuffle(vector, vector, other))
        return self.builder.extract_element(vector, ir.Constant(_I32, 0))

    def shuffle(self, left: Any, right: Any, lanes: list[int]) -> Any:
        return self.builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(_I32, self.lanes), lanes))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, self._fma_name), [a, b, c])


def write_tile(e: Emitter, rows: int, vectors: int, spread: bool, sums: TileSum, add: Any, bias: Any) -> None:
    builder, s = e.builder, sums
    cells = [(row, col) for row in range(rows) for col in range(vectors)]
    places = [e.at(e.at(s.c, s.c_row, row), s.c_col, col) for row, col in cells]
    zero, one = ir.Constant(_I64, 0), ir.Constant(_I64, 1)
    biases = [e.spread(s.bias, e.at(bias, one, row)) for row in range(rows)]
    begin = builder.block
    adding, outside, inside, after, end = (
        builder.append_basic_block(name) for name in ("adding", "outside", "inside", "after", "end")
    )
    builder.cbranch(add, adding, outside)

    builder.position_at_end(adding)
    before = [builder.fadd(e.load(s.C, place), biases[row]) for (row, _), place in zip(cells, places, strict=True)]
    builder.branch(outside)

    builder.position_at_end(outside)
    count, a_now, b_now = (builder.phi(_I64) for _ in range(3))
    for phi, value in ((count, zero), (a_now, s.a), (b_now, s.b)):
        phi.add_incoming(value, begin)
        phi.add_incoming(value, adding)
    totals = [builder.phi(e.vector) for _ in cells]
    for phi, (row, _), value in zip(totals, cells, before, strict=True):
        phi.add_incoming(biases[row], begin)
        phi.add_incoming(value, adding)
    builder.branch(inside)

    builder.position_at_end(inside)
    k, a_k_now, b_k_now = (builder.phi(_I64) for _ in range(3))
    inner_totals = [builder.phi(e.vector) for _ in cells]
    b_vectors = [e.load(s.B, e.at(b_k_now, s.b_col, col)) for col in range(vectors)]
    a_read = e.spread if spread else e.load
    a_vectors = [a_read(s.A, e.at(a_k_now, s.a_row, row)) for row in range(rows)]
    grown = [e.fma(a_vectors[row], b_vectors[col], phi) for (row, col), phi in zip(cells, inner_totals, strict=True)]
    for phi, start, step in ((k, zero, one), (a_k_now, a_now, s.a_k), (b_k_now, b_now, s.b_k)):
        phi.add_incoming(start, outside)
        phi.add_incoming(builder.add(phi, step), inside)
    for phi, start, value in zip(inner_totals, totals, grown, strict=True):
        phi.add_incoming(start, outside)
        phi.add_incoming(value, inside)
    builder.cbranch(builder.icmp_signed("<", builder.add(k, one), s.inner), inside, after)

    builder.position_at_end(after)
    for phi, step in ((count, one), (a_now, s.a_outer), (b_now, s.b_outer)):
        phi.add_incoming(builder.add(phi, step), after)
    for phi, value in zip(totals, grown, strict=True):
        phi.add_incoming(value, after)
    builder.cbranch(builder.icmp_signed("<", builder.add(count, one), s.outer), outside, end)

    builder.position_at_end(end)
    for value, place in zip(grown, places, strict=True):
        e.store(value, s.C, place)


def stripe_of(vectors: int, emitter: type[Emitter] = Emitter) -> Any:

    @intrinsic
    def stripe(  # type: ignore[no-untyped-def]
        typing, rows, outer, inner, A, a, a_row, a_k, a_outer, B, b, b_k, b_outer, C, c, c_row, add, bias, first
    ):
        i = types.int64

        def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            e = emitter(context, builder, A.dtype, 32 * LANES // A.dtype.bitwidth)
            rows, outer, inner, A_, a, a_row, a_k, a_outer, B_, b, b_k, b_outer, C_, c, c_row, add, bias_, first = (
                arguments
            )
            adding, done, col = builder.trunc(add, ir.IntType(1)), ir.Constant(_I64, 0), ir.Constant(_I64, e.lanes)
            sums = TileSum(
                outer, inner, e.data(A, A_), a, a_row, a_k, a_outer, e.data(B, B_), b, col, b_k, b_outer,
                e.data(C, C_), c, c_row, col, e.data(bias, bias_),
            )  # fmt: skip
            for height in (6, 4, 2, 1):
                count = builder.udiv(builder.sub(rows, done), ir.Constant(_I64, height))
                with cgutils.for_range(builder, count) as loop:
                    row = builder.add(done, builder.mul(loop.index, ir.Constant(_I64, height)))
                    here = sums._replace(
                        a=builder.add(a, builder.mul(row, a_row)), c=builder.add(c, builder.mul(row, c_row))
                    )
                    write_tile(e, height, vectors, True, here, adding, builder.add(first, row))
                done = builder.add(done, builder.mul(count, ir.Constant(_I64, height)))
            return context.get_dummy_value()

        return types.void(i, i, i, A, i, i, i, i, B, i, i, i, C, i, i, types.boolean, bias, i), emit

    return stripe


@intrinsic
def wide(typing):  # type: ignore[no-untyped-def]

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')  # unknown to llvmlite, known to LLVM
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def soon(typing, array, place, count):  # type: ignore[no-untyped-def]
    line = 64 // (array.dtype.bitwidth // 8)

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        data = context.make_array(array)(context, builder, arguments[0]).data
        pointer, flag = ir.IntType(8).as_pointer(), ir.Constant(_I32, 1)
        kind = ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
        fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        lines = builder.udiv(builder.add(arguments[2], ir.Constant(_I64, line - 1)), ir.Constant(_I64, line))
        with cgutils.for_range(builder, lines) as loop:
            at = builder.add(arguments[1], builder.mul(loop.index, ir.Constant(_I64, line)))
            where = builder.bitcast(builder.gep(data, [at]), pointer)
            builder.call(fetch, [where, flag, ir.Constant(_I32, 3), flag])
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), emit


_stripe4, _stripe3, _stripe2, _stripe1 = (stripe_of(min(vectors, VECTORS)) for vectors in (4, 3, 2, 1))


@compile_unit()
def product(
    rows: int, cols: int, outer: int, inner: int, A: Row, a: int, a_row: int, a_k: int, a_outer: int,
    B: Row, b: int, b_k: int, b_outer: int, C: Row, c: int, c_row: int, add: bool, bias: X1, first: int,
) -> None:  # fmt: skip
    """Compute C[i, j] = (C[i, j] if add) + bias[first + i] + sum A[i, k] B[k, j]; `cols` must fill whole registers.

    `a`, `b` and `c` are offsets; `a_row`, `b_k` and similar names are strides.
    """
    if outer < 1 or inner < 1:
        return
    lanes, done = LANES * 4 // A.itemsize, 0
    while done < cols:
        vectors, to, at = (cols - done) // lanes, c + done, b + done
        if vectors >= VECTORS:
            _stripe4(rows, outer, inner, A, a, a_row, a_k, a_outer, B, at, b_k, b_outer, C, to, c_row, add, bias, first)
            done += VECTORS * lanes
        elif vectors >= 3:
            _stripe3(rows, outer, inner, A, a, a_row, a_k, a_outer, B, at, b_k, b_outer, C, to, c_row, add, bias, first)
            done += 3 * lanes
        elif vectors == 2:
            _stripe2(rows, outer, inner, A, a, a_row, a_k, a_outer, B, at, b_k, b_outer, C, to, c_row, add, bias, first)
            done += 2 * lanes
        else:
            _stripe1(rows, outer, inner, A, a, a_row, a_k, a_outer, B, at, b_k, b_outer, C, to, c_row, add, bias, first)
            done += lanes
