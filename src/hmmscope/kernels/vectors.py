"""SIMD vectors as values of compiled functions; a vector holds the states of one sequence.

A vector holds P numbers, zero-padded. With a tuple of P entries as first argument, vectors hold P arbitrary numbers.
Tables are flat, with rows of P numbers.
"""

import math
import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, register_model

from hmmscope.kernels import run_time_rows
from hmmscope.kernels.run_time_rows import LENGTHS, added

#: Untyped, because decorated functions are called without their first argument.
intrinsic: Any = _intrinsic

#: log 2 as two numbers; multiples of the first are exact.
_LOG2 = (0.693147180369123816490, 1.90821492927058770002e-10)

_F64, _I32, _I8, _BIT = ir.DoubleType(), ir.IntType(32), ir.IntType(8), ir.IntType(1)


def shared(num_states: int) -> Any:
    return next(kind(num_states) for kind, most in LENGTHS.items() if num_states <= most)


def row_length(states: Any) -> int:
    return LENGTHS[type(states)]


class Vector(types.Type):
    def __init__(self, size: int) -> None:
        self.size = size
        super().__init__(name=f"Vector({size})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, ir.VectorType(_F64, kind.size))


def _vector(states: Any) -> Vector:
    own = getattr(states, "instance_class", tuple)
    return Vector(LENGTHS.get(own) or states.count)


def _count(builder: Any, states: Any) -> Any:
    return builder.extract_value(states, 0)


def _address(context: Any, builder: Any, kind: Any, array: Any, place: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [place])


def _place(context: Any, builder: Any, kind: Any, array: Any, place: Any, vector: Any) -> Any:
    return builder.bitcast(_address(context, builder, kind, array, place), vector.as_pointer())


def _read(builder: Any, pointer: Any, align: int = 8) -> Any:
    loaded = builder.load(pointer)
    loaded.align = align
    return loaded


def _shuffle(builder: Any, left: Any, right: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(_I32, len(lanes)), lanes))


def _spread(builder: Any, vector: Any, lane: int, size: int | None = None) -> Any:
    return _shuffle(builder, vector, ir.Constant(vector.type, ir.Undefined), [lane] * (size or vector.type.count))


def _filled(builder: Any, number: Any, size: int) -> Any:
    nothing = ir.Constant(ir.VectorType(number.type, size), ir.Undefined)
    return _spread(builder, builder.insert_element(nothing, number, ir.Constant(_I32, 0)), 0)


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _across(builder: Any, vector: Any, join: Any) -> Any:
    while vector.type.count > 1:
        half, nothing = vector.type.count // 2, ir.Constant(vector.type, ir.Undefined)
        low = _shuffle(builder, vector, nothing, list(range(half)))
        high = _shuffle(builder, vector, nothing, list(range(half, 2 * half)))
        vector = join(low, high)
    return builder.extract_element(vector, ir.Constant(_I32, 0))


@intrinsic
def filled(_: Any, states: Any, number: Any) -> Any:
    kind = _vector(states)
    return kind(states, types.float64), lambda c, b, s, args: _filled(b, args[1], kind.size)


@intrinsic
def load(_: Any, states: Any, table: Any, place: Any) -> Any:
    kind = _vector(states)

    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(_F64, kind.size)
        return _read(builder, _place(context, builder, table, args[1], args[2], vector))

    return kind(states, table, types.intp), write


def _taker(filling: float) -> Any:
    @intrinsic
    def taken(_: Any, states: Any, values: Any, place: Any) -> Any:
        kind = _vector(states)

        def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            padding = ir.Constant(ir.VectorType(_F64, kind.size), [filling] * kind.size)
            address = _address(context, builder, values, args[1], args[2])
            left = builder.sub(context.make_array(values)(context, builder, args[1]).nitems, args[2])
            return run_time_rows.take(builder, address, _count(builder, args[0]), padding, left)

        return kind(states, values, types.intp), write

    return taken


#: Read S unpadded numbers, and pad with zeros; or S logarithms, and pad with -inf.
take, take_logarithms = _taker(0.0), _taker(-math.inf)


@intrinsic
def put(_: Any, states: Any, vector: Any, values: Any, place: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if hasattr(states, "instance_class"):
            into = _address(context, builder, values, args[2], args[3])
            run_time_rows.put(builder, args[1], into, _count(builder, args[0]))
        else:
            builder.store(args[1], _place(context, builder, values, args[2], args[3], args[1].type)).align = 8
        return context.get_dummy_value()

    return types.void(states, vector, values, types.intp), write


@intrinsic
def times(_: Any, left: Any, right: Any) -> Any:
    return left(left, right), lambda c, b, s, args: b.fmul(*args)


@intrinsic
def plus(_: Any, left: Any, right: Any) -> Any:
    return left(left, right), lambda c, b, s, args: b.fadd(*args)


@intrinsic
def scaled(_: Any, vector: Any, number: Any) -> Any:
    return vector(vector, types.float64), lambda c, b, s, args: b.fmul(args[0], _filled(b, args[1], vector.size))


@intrinsic
def divided(_: Any, vector: Any, number: Any) -> Any:
    return vector(vector, types.float64), lambda c, b, s, args: b.fdiv(args[0], _filled(b, args[1], vector.size))


@intrinsic
def where_positive(_: Any, law: Any, vector: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(args[0].type, None)
        return builder.select(builder.fcmp_ordered(">", args[0], zero), args[1], zero)

    return vector(law, vector), write


@intrinsic
def total(_: Any, vector: Any) -> Any:
    return types.float64(vector), lambda c, b, s, args: _across(b, args[0], b.fadd)


@intrinsic
def largest(_: Any, vector: Any) -> Any:
    return types.float64(vector), lambda c, b, s, args: _across(b, args[0], lambda left, right: _larger(b, left, right))


@intrinsic
def exponentials(_: Any, vector: Any, shift: Any) -> Any:
    """Return exp(max(x - shift, -700)), to two units in the last place if x <= shift; exp(-inf) is zero."""

    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def every(number: float) -> Any:
            return ir.Constant(args[0].type, [number] * vector.size)

        away = builder.fsub(args[0], _filled(builder, args[1], vector.size))
        bound = every(-700.0)
        x = builder.select(builder.fcmp_ordered("<", away, bound), bound, away)
        # adding 1.5 * 2^52 rounds to an integer in the last bits
        shifted = added(builder, x, every(1 / math.log(2)), every(1.5 * 2.0**52))
        whole = builder.fsub(shifted, every(1.5 * 2.0**52))
        rest = added(builder, whole, every(-_LOG2[0]), x)
        rest = added(builder, whole, every(-_LOG2[1]), rest)
        series = every(1 / math.factorial(13))
        for n in range(12, -1, -1):
            series = added(builder, series, rest, every(1 / math.factorial(n)))
        bits = ir.VectorType(ir.IntType(64), vector.size)
        power = builder.shl(builder.bitcast(shifted, bits), ir.Constant(bits, [52] * vector.size))
        found = builder.bitcast(builder.add(builder.bitcast(series, bits), power), args[0].type)
        found = builder.select(builder.fcmp_unordered("uno", x, x), x, found)
        return builder.select(builder.fcmp_ordered("==", away, every(-math.inf)), every(0.0), found)

    return vector(vector, types.float64), write


def _control_register(change: Any) -> Any:
    """Return an intrinsic that writes `change(previous value)` to MXCSR and returns the previous value; only on x86."""

    @intrinsic
    def switched(_: Any, value: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            if platform.machine().lower() not in ("x86_64", "amd64"):
                return args[0]
            place, kind = cgutils.alloca_once(builder, _I32), ir.FunctionType(ir.VoidType(), [_I8.as_pointer()])
            pointer = builder.bitcast(place, _I8.as_pointer())
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.stmxcsr"), [pointer])
            before = builder.load(place)
            builder.store(change(builder, before, args[0]), place)
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.ldmxcsr"), [pointer])
            return before

        return types.int32(types.int32), write

    return switched


#: Treat subnormal numbers as zero from here on, and restore the value that this returned. One operation on a subnormal
#: number can take more than a hundred cycles. On processors other than x86 they do nothing.
flush_subnormals = _control_register(lambda builder, before, _: builder.or_(before, ir.Constant(_I32, 0x8040)))
restore_subnormals = _control_register(lambda builder, before, value: value)


@intrinsic
def rounded(_: Any, vector: Any, shift: Any, grid: Any) -> Any:
    """Round x - shift to a multiple of 1 / grid in each lane x; -inf stays -inf."""

    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number, size = args[0].type, vector.size
        rint = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(number, [number]), f"llvm.rint.v{size}f64"
        )
        away = builder.fsub(args[0], _filled(builder, args[1], size))
        whole = builder.call(rint, [builder.fmul(away, _filled(builder, args[2], size))])
        return builder.fdiv(whole, _filled(builder, args[2], size))

    return vector(vector, types.float64, types.float64), write


@intrinsic
def uncertain(_: Any, marked: Any, vector: Any, bound: Any) -> Any:
    """Return 1 in each lane in which `marked` is positive and `vector` is below the bound, else 0."""

    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero, one = ir.Constant(args[0].type, None), ir.Constant(args[0].type, [1.0] * vector.size)
        below = builder.fcmp_ordered("<", args[1], _filled(builder, args[2], vector.size))
        return builder.select(builder.and_(builder.fcmp_ordered(">", args[0], zero), below), one, zero)

    return vector(marked, vector, types.float64), write


@intrinsic
def any_below(_: Any, marked: Any, vector: Any, bound: Any) -> Any:

    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        positive = builder.fcmp_ordered(">", args[0], ir.Constant(args[0].type, None))
        below = builder.fcmp_ordered("<", args[1], _filled(builder, args[2], vector.size))
        return _across(builder, builder.and_(positive, below), builder.or_)

    return types.boolean(marked, vector, types.float64), write


@intrinsic
def any_tiny(_: Any, vector: Any, smallest: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        law, bound = args[0], _filled(builder, args[1], vector.size)
        positive = builder.fcmp_ordered(">", law, ir.Constant(law.type, None))
        found = builder.and_(positive, builder.fcmp_ordered("<", law, bound))
        return _across(builder, found, builder.or_)

    return types.boolean(vector, types.float64), write


@intrinsic
def moved(_: Any, states: Any, law: Any, table: Any, place: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows = _address(context, builder, table, args[2], args[3])
        return run_time_rows.moved(builder, args[1], _count(builder, args[0]), rows)

    return law(states, law, table, types.intp), write


def _predictor(size: int) -> Any:
    @intrinsic
    def predicted(_: Any, states: Any, law: Any, matrix: Any, begin: Any, stride: Any, out: Any, place: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind, begins = ir.VectorType(_F64, size), _address(context, builder, matrix, args[2], args[3])
            mixed = run_time_rows.predicted(builder, args[1], _count(builder, args[0]), kind, begins, args[4])
            builder.store(mixed, _place(context, builder, out, args[5], args[6], kind)).align = 8
            return context.get_dummy_value()

        where = types.intp
        return types.void(states, law, matrix, where, where, out, where), write

    return predicted


#: Predictions of four columns, and of one.
predict_four, predict_one = _predictor(4), _predictor(1)


@intrinsic
def add_outer(_: Any, states: Any, left: Any, right: Any, table: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows = _address(context, builder, table, args[3], ir.Constant(ir.IntType(64), 0))
        run_time_rows.add_outer(builder, args[1], args[2], _count(builder, args[0]), rows)
        return context.get_dummy_value()

    return types.void(states, left, right, table), write


@intrinsic
def longest(_: Any, states: Any, best: Any, table: Any, place: Any, pointers: Any, where: Any) -> Any:
    """Return max_i (best_i + row_i) for each row of `table`; write the lowest maximising i to `pointers`."""

    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows = _address(context, builder, table, args[2], args[3])
        into = _address(context, builder, pointers, args[4], args[5])
        return run_time_rows.longest(builder, args[1], _count(builder, args[0]), rows, into)

    return best(states, best, table, types.intp, pointers, types.intp), write


@intrinsic
def number_of(_: Any, states: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _count(builder, args[0])

    return types.intp(states), write


@intrinsic
def row_size(_: Any, states: Any) -> Any:
    kind = _vector(states)
    return types.intp(states), lambda c, b, s, args: ir.Constant(ir.IntType(64), kind.size)


@intrinsic
def fused(_: Any, left: Any, right: Any, more: Any) -> Any:
    return left(left, right, more), lambda c, b, s, args: added(b, *args)


@intrinsic
def over(_: Any, left: Any, right: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(args[0].type, None)
        return builder.select(builder.fcmp_ordered(">", args[1], zero), builder.fdiv(*args), zero)

    return left(left, right), write
