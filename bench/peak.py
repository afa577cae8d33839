"""Measure the peak of the processor: fused multiply-adds between registers, in enough chains to hide their latency.

    sum_i = sum_i x + y        i < chains, whole registers, no memory access

The fraction of peak of a product is its rate divided by this peak. bfloat16 products are summed in float32, by AMX tiles if
available, else by dot products of pairs.
"""

import ctypes
import functools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.binding
import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hmmscope.kernels.products import LANES
from hmmscope.system_info import processor

#: Parallel sums: two multipliers with a latency of five steps need ten; registers hold no more.
CHAINS, _PAIR_CHAINS, _TILES = 12, 24, 6
_I64, _F32, _BYTES = ir.IntType(64), ir.FloatType(), ir.IntType(8).as_pointer()
#: Linux call that requests the AMX registers.
_ARCH_PRCTL, _ASK, _TILE_DATA = 158, 0x1023, 18


@intrinsic
def _chains(typing, steps, numbers):  # type: ignore[no-untyped-def]
    """Run `steps` rounds of `CHAINS` fused multiply-adds on an array; its first entry becomes the sum."""

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        width = 32 * LANES // numbers.dtype.bitwidth
        vector = ir.VectorType(context.get_value_type(numbers.dtype), width)
        data = builder.bitcast(context.make_array(numbers)(context, builder, arguments[1]).data, vector.as_pointer())
        x, y = (builder.load(builder.gep(data, [ir.Constant(_I64, place)])) for place in (0, 1))
        x.align = y.align = 8
        kind = ir.FunctionType(vector, [vector] * 3)
        fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{width}f{numbers.dtype.bitwidth}")
        begin, inside, end = builder.block, builder.append_basic_block("inside"), builder.append_basic_block("end")
        builder.branch(inside)
        builder.position_at_end(inside)
        step, sums = builder.phi(_I64), [builder.phi(vector) for _ in range(CHAINS)]
        after = [builder.call(fma, [one, x, y]) for one in sums]
        now = builder.add(step, ir.Constant(_I64, 1))
        for number, (phi, value) in enumerate(zip([step, *sums], [now, *after], strict=True)):
            phi.add_incoming(ir.Constant(_I64, 0) if not number else ir.Constant(vector, [number / 8] * width), begin)
            phi.add_incoming(value, inside)
        builder.cbranch(builder.icmp_signed("<", now, arguments[0]), inside, end)
        builder.position_at_end(end)
        builder.store(functools.reduce(builder.fadd, after), data).align = 8
        return context.get_dummy_value()

    return types.void(types.int64, numbers), emit


def _written(body: str, clobbered: str) -> Any:
    @intrinsic
    def run(typing, steps, numbers):  # type: ignore[no-untyped-def]
        def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            data = builder.bitcast(context.make_array(numbers)(context, builder, arguments[1]).data, _BYTES)
            kind = ir.FunctionType(ir.VoidType(), [_I64, _BYTES])
            builder.asm(kind, body, f"r,r,~{{rax}},~{{memory}},{clobbered}", [arguments[0], data], True)
            return context.get_dummy_value()

        return types.void(types.int64, numbers), emit

    return run


def _loop(before: list[str], inside: list[str], after: str = "") -> str:
    return "\n".join([*before, "mov $0, %rax", "1:", *inside, "dec %rax", "jnz 1b", after])


_pairs = _written(
    _loop(
        [f"vmovups ($1), %zmm{place}" for place in range(_PAIR_CHAINS + 2)],
        [f"vdpbf16ps %zmm0, %zmm1, %zmm{place + 2}" for place in range(_PAIR_CHAINS)],
    ),
    ",".join(f"~{{xmm{place}}}" for place in range(_PAIR_CHAINS + 2)),
)
_tiles = _written(
    _loop(
        ["ldtilecfg ($1)", *(f"tilezero %tmm{place}" for place in range(8))],
        [f"tdpbf16ps %tmm7, %tmm6, %tmm{place}" for place in range(_TILES)],
        "tilerelease",
    ),
    ",".join(f"~{{tmm{place}}}" for place in range(8)),
)


def _kernel(what: Any) -> Any:
    @numba.njit(nogil=True)
    def run(steps, numbers):  # type: ignore[no-untyped-def]
        what(steps, numbers)

    return run


fused, _paired, _tiled = (_kernel(what) for what in (_chains, _pairs, _tiles))


def burst(dtype: torch.dtype, threads: int = 1) -> tuple[Callable[[], object], float] | None:
    """Return a function that keeps the multipliers of all threads busy for some milliseconds, and its operations.

    None if the processor has no bfloat16 instruction.
    """
    has = (processor()["instructions"] or "").split()
    if dtype != torch.bfloat16:
        numbers = np.full(128, 0.5, np.float64 if dtype == torch.float64 else np.float32)
        kernel, steps, each = fused, 2**21, 2 * CHAINS * 32 * LANES // (8 * numbers.itemsize)
    elif "amx_bf16" in has and sys.platform == "linux":
        ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASK, _TILE_DATA)
        llvmlite.binding.initialize_native_asmparser()
        numbers = np.zeros(64, np.uint8)  # eight tiles of 16 rows of 64 bytes
        numbers[0], numbers[16:32:2], numbers[48:56] = 1, 64, 16
        kernel, steps, each = _tiled, 2**17, _TILES * 2 * 16 * 16 * 32
    elif "avx512_bf16" in has:
        llvmlite.binding.initialize_native_asmparser()
        numbers = np.zeros(64, np.uint8)
        kernel, steps, each = _paired, 2**19, 2 * _PAIR_CHAINS * 32
    else:
        return None
    kernel(1, numbers)

    def run() -> None:
        if threads == 1:
            kernel(steps, numbers)
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda own: kernel(steps, own), [numbers.copy() for _ in range(threads)]))

    return run, float(threads * steps * each)
