"""Matrix products of bfloat16 numbers with float32 sums.

A pair stores two consecutive bfloat16 numbers in one float32, the first in its low half. Pairs A and B add to C by

    C <- (C + second(A) second(B)) + first(A) first(B)

with exact products, and sums rounded to float32.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from hmmscope.kernels.compile_units import X1, Row, compile_unit
from hmmscope.kernels.compiling import part
from hmmscope.kernels.products import LANES, VECTORS, Emitter, has, stripe_of, wide

#: Whether the processor multiplies pairs.
AT_ONCE = has("avx512bf16")

_I32 = ir.IntType(32)
_KEPT, _LAST, _BIT = np.uint32(0xFFFF0000), np.uint32(0x7FFF), np.uint32(1)
_HALF = np.uint32(16)


class _BFloat(ir.Type):
    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


class Pairs(Emitter):
    """Emitter of LLVM instructions on vectors of bfloat16 pairs, with float32 sums."""

    at_once = AT_ONCE

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        if self.align == 8:
            return c  # float64 has no pairs: compiled, never run
        if self.at_once:
            pairs = ir.VectorType(_BFloat(), 2 * self.lanes)
            kind = ir.FunctionType(self.vector, [self.vector, pairs, pairs])
            name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.lanes}"
            called = cgutils.get_or_insert_function(self.builder.module, kind, name)
            return self.builder.call(called, [c, self.builder.bitcast(a, pairs), self.builder.bitcast(b, pairs)])
        c = super().fma(self._second(a), self._second(b), c)
        return super().fma(self._first(a), self._first(b), c)

    def _bits(self, number: int) -> Any:
        return ir.Constant(ir.VectorType(_I32, self.lanes), [number] * self.lanes)

    def _first(self, pairs: Any) -> Any:
        bits = self.builder.bitcast(pairs, ir.VectorType(_I32, self.lanes))
        return self.builder.bitcast(self.builder.shl(bits, self._bits(16)), self.vector)

    def _second(self, pairs: Any) -> Any:
        bits = self.builder.bitcast(pairs, ir.VectorType(_I32, self.lanes))
        return self.builder.bitcast(self.builder.and_(bits, self._bits(0xFFFF0000)), self.vector)


_stripe4, _stripe2, _stripe1 = (stripe_of(min(vectors, VECTORS), Pairs) for vectors in (4, 2, 1))


@compile_unit()
def product_of_pairs(
    rows: int, cols: int, outer: int, inner: int, A: Row, a: int, a_row: int, a_k: int, a_outer: int,
    B: Row, b: int, b_k: int, b_outer: int, C: Row, c: int, c_row: int, add: bool, bias: X1, first: int,
) -> None:  # fmt: skip
    """Multiply matrices of pairs like `products.product`; `inner` counts pairs, and C and biases are float32."""
    if outer < 1 or inner < 1:
        return
    done = 0
    while done < cols:
        vectors, to, at = (cols - done) // LANES, c + done, b + done
        if vectors >= VECTORS:
            _stripe4(rows, outer, inner, A, a, a_row, a_k, a_outer, B, at, b_k, b_outer, C, to, c_row, add, bias, first)
            done += VECTORS * LANES
        elif vectors >= 2:
            _stripe2(rows, outer, inner, A, a, a_row, a_k, a_outer, B, at, b_k, b_outer, C, to, c_row, add, bias, first)
            done += 2 * LANES
        else:
            _stripe1(rows, outer, inner, A, a, a_row, a_k, a_outer, B, at, b_k, b_outer, C, to, c_row, add, bias, first)
            done += LANES


@part()
def _rounded(bits):  # type: ignore[no-untyped-def]
    return bits + _LAST + ((bits >> _HALF) & _BIT)


@compile_unit()
def pairs_of_rows(
    pairs: int, cols: int, source: Row, begin: int, stride: int, result: Row, place: int, across: int
) -> None:
    wide()
    numbers, written = source.view(np.uint32), result.view(np.uint32)
    for k in range(pairs):
        first = numbers[begin + 2 * k * stride : begin + 2 * k * stride + cols]
        second = numbers[begin + (2 * k + 1) * stride : begin + (2 * k + 1) * stride + cols]
        put = written[place + k * across : place + k * across + cols]
        for j in range(cols):
            put[j] = (_rounded(first[j]) >> _HALF) | (_rounded(second[j]) & _KEPT)


@compile_unit()
def pairs_in_rows(count: int, source: Row, begin: int, result: Row, place: int) -> None:
    wide()
    numbers, written = source.view(np.uint32), result.view(np.uint32)
    given, put = numbers[begin : begin + 2 * count], written[place : place + count]
    for k in range(count):
        put[k] = (_rounded(given[2 * k]) >> _HALF) | (_rounded(given[2 * k + 1]) & _KEPT)
