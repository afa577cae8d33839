"""Loops over states for `hmmscope.kernels.vectors`, equal bit for bit to its unrolled code."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils

F64, I64 = ir.DoubleType(), ir.IntType(64)
#: Partial sums of a product, added pairwise.
CHAINS = 4
#: Lanes that a loop holds in registers.
_LANES = 16


class UpTo16(NamedTuple):
    num_states: int


class UpTo32(NamedTuple):
    num_states: int


class UpTo64(NamedTuple):
    num_states: int


#: Vector lengths of kernels for any number of states up to them.
LENGTHS: dict[type, int] = {UpTo16: 16, UpTo32: 32, UpTo64: 64}


def number(value: int) -> Any:
    return ir.Constant(I64, value)


def room(builder: Any, kind: Any, value: Any = None) -> Any:
    place = cgutils.alloca_once(builder, kind)
    if value is not None:
        builder.store(value, place)
    return builder.bitcast(place, kind.element.as_pointer())


def _cast(builder: Any, pointer: Any, kind: Any) -> Any:
    return builder.bitcast(pointer, kind.as_pointer())


def whole(builder: Any, place: Any, kind: Any) -> Any:
    return builder.load(_cast(builder, place, kind))


@contextmanager
def blocks(builder: Any, size: int, count: Any) -> Iterator[tuple[Any, Any]]:
    """Loop over blocks of lanes that hold states."""
    lanes = min(size, _LANES)
    with cgutils.for_range_slice(builder, number(0), count if size > lanes else number(1), number(lanes)) as (lane, _):
        yield lane, ir.VectorType(F64, lanes)


def mixed(builder: Any, law: Any, count: Any, kind: Any, row: Callable[[Any], Any]) -> Any:
    """sum_i law_i row_i; `law` and `row` are addresses."""
    half = builder.lshr(builder.add(count, number(1)), number(1))
    stride = builder.select(builder.icmp_unsigned("<", half, number(CHAINS)), half, number(CHAINS))
    zero = ir.Constant(kind, None)
    sums = [cgutils.alloca_once_value(builder, zero) for _ in range(CHAINS)]
    with cgutils.for_range_slice(builder, number(0), count, stride) as (begin, _):
        for c, chain in enumerate(sums):
            i = builder.add(begin, number(c))
            inside = builder.and_(builder.icmp_unsigned("<", number(c), stride), builder.icmp_unsigned("<", i, count))
            i = builder.select(inside, i, number(0))
            weight = builder.select(inside, builder.load(builder.gep(law, [i])), ir.Constant(F64, 0.0))
            loaded = builder.load(_cast(builder, row(i), kind))
            loaded.align = 8
            builder.store(added(builder, filled(builder, weight, kind), loaded, builder.load(chain)), chain)
    parts = [builder.load(chain) for chain in sums]
    return builder.fadd(builder.fadd(parts[0], parts[1]), builder.fadd(parts[2], parts[3]))


def filled(builder: Any, value: Any, kind: Any) -> Any:
    nothing = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None))


def added(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(a.type, [a.type] * 3)
    name = f"llvm.fmuladd.v{a.type.count}f64"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, c])


def moved(builder: Any, law: Any, count: Any, rows: Any) -> Any:
    size, kind = law.type.count, law.type
    weights, found = room(builder, kind, law), room(builder, kind, ir.Constant(kind, None))
    with blocks(builder, size, count) as (lane, part):

        def row(i: Any) -> Any:
            return builder.gep(rows, [builder.add(builder.mul(i, number(size)), lane)])

        total = mixed(builder, weights, count, part, row)
        builder.store(total, _cast(builder, builder.gep(found, [lane]), part)).align = 8
    return whole(builder, found, kind)


def add_outer(builder: Any, left: Any, right: Any, count: Any, rows: Any) -> None:
    size = left.type.count
    weights, others = room(builder, left.type, left), room(builder, left.type, right)
    with blocks(builder, size, count) as (lane, part):
        other = builder.load(_cast(builder, builder.gep(others, [lane]), part))
        with cgutils.for_range(builder, count) as loop:
            start = builder.add(builder.mul(loop.index, number(size)), lane)
            place = _cast(builder, builder.gep(rows, [start]), part)
            before = builder.load(place)
            before.align = 8
            weight = filled(builder, builder.load(builder.gep(weights, [loop.index])), part)
            builder.store(added(builder, weight, other, before), place).align = 8


def longest(builder: Any, best: Any, count: Any, rows: Any, pointers: Any) -> Any:
    size, kind = best.type.count, best.type
    weights, found = room(builder, kind, best), room(builder, kind, ir.Constant(kind, None))
    with blocks(builder, size, count) as (lane, part):
        numbers = ir.VectorType(I64, part.count)
        top, chosen = (cgutils.alloca_once(builder, of) for of in (part, numbers))
        builder.store(ir.Constant(part, [float("-inf")] * part.count), top)
        builder.store(ir.Constant(numbers, None), chosen)
        with cgutils.for_range(builder, count) as loop:
            row = builder.load(
                _cast(builder, builder.gep(rows, [builder.add(builder.mul(loop.index, number(size)), lane)]), part)
            )
            row.align = 8
            weight = filled(builder, builder.load(builder.gep(weights, [loop.index])), part)
            summed, before = builder.fadd(weight, row), builder.load(top)
            better = builder.fcmp_ordered(">", summed, before)
            builder.store(builder.select(better, summed, before), top)
            builder.store(builder.select(better, filled(builder, loop.index, numbers), builder.load(chosen)), chosen)
        builder.store(builder.load(top), _cast(builder, builder.gep(found, [lane]), part)).align = 8
        narrow = ir.VectorType(ir.IntType(8), part.count)
        builder.store(
            builder.trunc(builder.load(chosen), narrow), _cast(builder, builder.gep(pointers, [lane]), narrow)
        ).align = 1
    return whole(builder, found, kind)


def predicted(builder: Any, law: Any, count: Any, kind: Any, matrix: Any, stride: Any) -> Any:
    weights = room(builder, law.type, law)
    return mixed(builder, weights, count, kind, lambda i: builder.gep(matrix, [builder.mul(i, stride)]))


def take(builder: Any, values: Any, count: Any, filling: Any) -> Any:
    place = room(builder, filling.type, filling)
    cgutils.raw_memcpy(builder, place, values, count, number(8))
    return whole(builder, place, filling.type)


def put(builder: Any, vector: Any, values: Any, count: Any) -> None:
    cgutils.raw_memcpy(builder, values, room(builder, vector.type, vector), count, number(8))
