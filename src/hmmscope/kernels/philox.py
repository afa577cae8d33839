"""Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), a map from a counter to four uniform 32-bit words.

The counter layout is part of the dataset format (`CORPUS_VERSION`):

    key     = (seed, purpose);
    counter = (block of steps, path or component, sample mod 2^32, sample div 2^32)
"""

import numba
import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.compiling import kernel

MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10

#: Increased when the same (process, layout, seed) gives other bits.
CORPUS_VERSION = 1

#: Values of the counter's second word.
KIND_PATH, KIND_COMPONENT = 0, 1

MAX_SAMPLES = 2**40


def philox_reference(counter: tuple[int, int, int, int], key: tuple[int, int], rounds: int = ROUNDS) -> tuple[int, ...]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        product_0, product_1 = MULTIPLIER_0 * c0, MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & 0xFFFFFFFF,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + WEYL_0) & 0xFFFFFFFF, (k1 + WEYL_1) & 0xFFFFFFFF
    return c0, c1, c2, c3


_M0, _M1 = np.uint64(MULTIPLIER_0), np.uint64(MULTIPLIER_1)
_W0, _W1 = np.uint64(WEYL_0), np.uint64(WEYL_1)
_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)


@numba.njit(forceinline=True)
def philox(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    """Compute the four random words of a counter; all values are uint64 below 2^32."""
    c0, c2, k0, k1 = c0 & _LOW, c2 & _LOW, k0 & _LOW, k1 & _LOW  # 32-bit products suffice
    for _ in range(10):
        product_0 = _M0 * c0
        product_1 = _M1 * c2
        c0 = (product_1 >> _32) ^ c1 ^ k0
        c2 = (product_0 >> _32) ^ c3 ^ k1
        c1 = product_1 & _LOW
        c3 = product_0 & _LOW
        k0 = (k0 + _W0) & _LOW
        k1 = (k1 + _W1) & _LOW
    return c0, c1, c2, c3


def philox_words(counters: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint32]:
    return _philox_words(np.ascontiguousarray(counters, dtype=np.uint64), np.uint64(key[0]), np.uint64(key[1]))


@kernel()
def _philox_words(counters, k0, k1):  # type: ignore[no-untyped-def]
    out = np.empty((counters.shape[0], 4), np.uint32)
    for i in range(counters.shape[0]):
        w0, w1, w2, w3 = philox(counters[i, 0], counters[i, 1], counters[i, 2], counters[i, 3], k0, k1)
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = w0, w1, w2, w3
    return out
