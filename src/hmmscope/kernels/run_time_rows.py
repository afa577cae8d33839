"""Generators of LLVM code for the loops over states in `hmmscope.kernels.vectors`."""

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


class UpTo4(NamedTuple):
    num_states: int


class UpTo8(NamedTuple):
    num_states: int


class UpTo16(NamedTuple):
    num_states: int


class UpTo32(NamedTuple):
    num_states: int


class UpTo64(NamedTuple):
    num_states: int


#: Length of vectors, which is also the largest number of states, by type.
LENGTHS: dict[type, int] = {UpTo4: 4, UpTo8: 8, UpTo16: 16, UpTo32: 32, UpTo64: 64}


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
    lanes = min(size, _LANES)
    with cgutils.for_range_slice(builder, number(0), count if size > lanes else number(1), number(lanes)) as (lane, _):
        yield lane, ir.VectorType(F64, lanes)


def _places(builder: Any, chains: int, size: int, count: Any) -> list[Any]:
    places = [number(i) for i in range(size)]
    for filled in range(chains - 1, 0, -1):
        few = builder.icmp_unsigned("<=", count, number(2 * filled))
        for place, other in enumerate(places):
            row, chain = divmod(place, chains)
            own = number(row * filled + chain if chain < filled else size - 1)
            places[place] = builder.select(few, own, other)
    return places


def mixed(builder: Any, law: Any, size: int, count: Any, kind: Any, row: Callable[[Any], Any]) -> Any:
    def plus(i: Any, before: Any) -> Any:
        exists = builder.icmp_unsigned("<", i, count)
        one = builder.load(_cast(builder, row(builder.select(exists, i, number(0))), kind))
        one.align = 8
        weight = filled(builder, builder.load(builder.gep(law, [i])), kind)
        return builder.fmul(weight, one) if before is None else added(builder, weight, one, before)

    if size <= _LANES:
        parts: list[Any] = [None] * min(CHAINS, size // 2)
        for place, i in enumerate(_places(builder, len(parts), size, count)):
            parts[place % len(parts)] = plus(i, parts[place % len(parts)])
    else:
        sums = [cgutils.alloca_once_value(builder, ir.Constant(kind, None)) for _ in range(CHAINS)]
        with cgutils.for_range_slice(builder, number(0), count, number(CHAINS)) as (begin, _):
            for c, chain in enumerate(sums):
                builder.store(plus(builder.add(begin, number(c)), builder.load(chain)), chain)
        parts = [builder.load(chain) for chain in sums]
    while len(parts) > 1:
        parts = [builder.fadd(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


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

        total = mixed(builder, weights, size, count, part, row)
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
    return mixed(builder, weights, law.type.count, count, kind, lambda i: builder.gep(matrix, [builder.mul(i, stride)]))


def take(builder: Any, values: Any, count: Any, filling: Any, room_left: Any) -> Any:
    kind, size = filling.type, filling.type.count
    place = room(builder, kind)
    fits = builder.icmp_signed("<=", number(size), room_left)
    with builder.if_else(fits, likely=True) as (wide, narrow):
        with wide:
            read = builder.load(_cast(builder, values, kind))
            read.align = 8
            lanes = ir.Constant(ir.VectorType(I64, size), list(range(size)))
            kept = builder.icmp_unsigned("<", lanes, filled(builder, count, lanes.type))
            builder.store(builder.select(kept, read, filling), _cast(builder, place, kind))
        with narrow:
            builder.store(filling, _cast(builder, place, kind))
            cgutils.raw_memcpy(builder, place, values, count, number(8))
    return whole(builder, place, kind)


def put(builder: Any, vector: Any, values: Any, count: Any) -> None:
    place, done, power = room(builder, vector.type, vector), number(0), vector.type.count
    while power:
        bit = builder.and_(count, number(power))
        kind = ir.VectorType(F64, power)
        with builder.if_then(builder.icmp_unsigned("!=", bit, number(0))):
            part = builder.load(_cast(builder, builder.gep(place, [done]), kind))
            part.align = 8
            builder.store(part, _cast(builder, builder.gep(values, [done]), kind)).align = 8
        done, power = builder.add(done, bit), power // 2
