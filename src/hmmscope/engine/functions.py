"""Exponential, GELU and tanh for compiled loops, by polynomials in float32 and the C library in float64."""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.extending import overload

_STRICT: Any = {"fastmath": False, "error_model": "numpy", "forceinline": True}  # a division by zero gives infinity
_F = np.float32
intrinsic: Any = extending.intrinsic

# exp(x) = 2^n exp(r) with n the integer nearest to x log2(e), |r| <= log(2)/2, exp(r) by its series to r^7 (1e-8 relative).
# Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
_LOG2E, _ROUND, _LOW, _HIGH = _F(1 / math.log(2)), _F(1.5 * 2**23), _F(-87.3), _F(88.0)
_LN2_HIGH = _F(0.693359375)
_LN2_LOW = _F(math.log(2) - 0.693359375)
_E2, _E3, _E4, _E5, _E6, _E7 = (_F(1 / math.factorial(k)) for k in range(2, 8))
_ONE, _TWO, _HALF, _ZERO = _F(1), _F(2), _F(0.5), _F(0)
_DENSITY = _F(1 / math.sqrt(2 * math.pi))

TAIL_RATE = 0.2316419
#: Gaussian upper tail over the unscaled density: P(Z > a) exp(a^2/2) = t Q(t), t = 1/(1 + TAIL_RATE a), a >= 0.
#: Coefficients of Q from the constant on, a least-squares fit on Chebyshev points (1.1e-8 relative).
TAIL = (
    0.09241174775389856,
    0.09241174540919932,
    0.0874543072726082,
    0.0774941769802642,
    0.06403636956200989,
    0.042653507510907754,
    0.04720324606744732,
    -0.02952025320241271,
    0.07137595622671548,
    -0.06064500673500186,
    0.015124208456029502,
)
_RATE = _F(TAIL_RATE)
_Q0, _Q1, _Q2, _Q3, _Q4, _Q5, _Q6, _Q7, _Q8, _Q9, _Q10 = (_F(coefficient) for coefficient in TAIL)

# tanh(x) = x + x s P(s), s = x^2, for |x| < 0.625 (Moshier, Cephes tanhf); 1 - 2/(exp(2|x|) + 1) with the sign beyond.
_T0, _T1, _T2, _T3, _T4 = (
    _F(c) for c in (-3.33332819422e-1, 1.33314422036e-1, -5.37397155531e-2, 2.06390887954e-2, -5.70498872745e-3)
)
_SMALL, _BIG = _F(0.625), _F(44.0)


@intrinsic
def _bits(typing, x):  # type: ignore[no-untyped-def]
    return types.int32(types.float32), lambda context, builder, signature, args: builder.bitcast(
        args[0], ir.IntType(32)
    )


@intrinsic
def _number(typing, x):  # type: ignore[no-untyped-def]
    return types.float32(types.int32), lambda context, builder, signature, args: builder.bitcast(
        args[0], ir.FloatType()
    )


def exponential(x: Any) -> Any:
    return math.exp(x)


def gelu(x: Any) -> tuple[Any, Any]:
    """Return x Φ(x) and its derivative Φ(x) + x φ(x), with the standard normal distribution Φ and density φ."""
    below = 0.5 * math.erfc(-x / math.sqrt(2))
    return x * below, below + x * math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def tangent(x: Any) -> Any:
    return math.tanh(x)


@overload(exponential, jit_options=_STRICT)
def _exponential(x):  # type: ignore[no-untyped-def]
    if x != types.float32:
        return lambda x: math.exp(x)

    def polynomial(x):  # type: ignore[no-untyped-def]
        x = _LOW if x < _LOW else x
        x = _HIGH if x > _HIGH else x
        rounded = x * _LOG2E + _ROUND
        n = rounded - _ROUND
        r = (x - n * _LN2_HIGH) - n * _LN2_LOW
        tail = _E2 + r * (_E3 + r * (_E4 + r * (_E5 + r * (_E6 + r * _E7))))
        power = _number(np.int32((_bits(rounded) << np.int32(23)) + np.int32(0x3F800000)))
        return (_ONE + (r + r * r * tail)) * power

    return polynomial


@overload(gelu, jit_options=_STRICT)
def _gelu(x):  # type: ignore[no-untyped-def]
    if x != types.float32:

        def exact(x):  # type: ignore[no-untyped-def]
            below = 0.5 * math.erfc(-x / math.sqrt(2.0))
            return x * below, below + x * math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)

        return exact

    def polynomial(x):  # type: ignore[no-untyped-def]
        a = abs(x)
        t = _ONE / (_ONE + _RATE * a)
        low = _Q0 + t * (_Q1 + t * (_Q2 + t * (_Q3 + t * (_Q4 + t * _Q5))))
        power = t * t * t
        density = exponential(-_HALF * a * a)
        tail = density * t * (low + power * power * (_Q6 + t * (_Q7 + t * (_Q8 + t * (_Q9 + t * _Q10)))))
        below = tail if x < _ZERO else _ONE - tail
        return x * below, below + x * (density * _DENSITY)

    return polynomial


@overload(tangent, jit_options=_STRICT)
def _tangent(x):  # type: ignore[no-untyped-def]
    if x != types.float32:
        return lambda x: math.tanh(x)

    def polynomial(x):  # type: ignore[no-untyped-def]
        a = abs(x)
        s = x * x
        near = x + x * s * (_T0 + s * (_T1 + s * (_T2 + s * (_T3 + s * _T4))))
        far = _ONE - _TWO / (exponential(_TWO * (_BIG if a > _BIG else a)) + _ONE)
        far = -far if x < _ZERO else far
        return near if a < _SMALL else far

    return polynomial
