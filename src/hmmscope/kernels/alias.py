"""Integer alias tables draw exactly from probabilities that are multiples of 2^-32, with one random 32-bit word.

K integer weights with sum 2^32 fill C = 2^c >= K columns of 2^(32-c) units each. Column i yields outcome i below
its threshold, else another outcome, its alias. A word w selects column = w >> (32-c); the outcome is `column` if
w mod 2^(32-c) < threshold, else `alias`.

An entry of the table is the uint32 (threshold << c) | alias.

Source: Walker (1977); construction in O(K) by Vose (1991), here in integers.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.compiling import kernel

#: Number of table entries built in plain Python before the loop is compiled, because compiling takes longer.
_left = [1 << 12]


def column_bits(num_outcomes: int) -> int:
    return max(1, (num_outcomes - 1).bit_length())


def alias_tables(weights: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the alias tables (..., 2^c) of weights (..., K) with row sums 2^32."""
    num_outcomes = weights.shape[-1]
    bits = column_bits(num_outcomes)
    if bits > 16:
        raise ValueError(f"at most 65536 outcomes fit an alias table, got {num_outcomes}")
    rows = np.ascontiguousarray(weights, dtype=np.int64).reshape(-1, num_outcomes)
    tables = np.empty((rows.shape[0], 1 << bits), np.uint32)
    _left[0] -= tables.size
    build = _build.py_func if _left[0] >= 0 else _build
    build(rows, bits, tables)
    return tables.reshape(*weights.shape[:-1], 1 << bits)


@kernel()
def _build(rows, bits, tables):  # type: ignore[no-untyped-def]
    columns = 1 << bits
    capacity = np.int64(1) << (32 - bits)
    left = np.empty(columns, np.int64)
    small = np.empty(columns, np.int64)
    large = np.empty(columns, np.int64)
    for row in range(rows.shape[0]):
        num_small = num_large = 0
        for i in range(columns):
            left[i] = rows[row, i] if i < rows.shape[1] else 0
            if left[i] < capacity:
                small[num_small] = i
                num_small += 1
            else:
                large[num_large] = i
                num_large += 1
        while num_small > 0:
            num_small -= 1
            column = small[num_small]
            giver = large[num_large - 1]  # exists: the remaining columns hold `capacity` units on average
            tables[row, column] = np.uint32((left[column] << bits) | giver)
            left[giver] -= capacity - left[column]
            if left[giver] < capacity:
                num_large -= 1
                small[num_small] = giver
                num_small += 1
        while num_large > 0:
            num_large -= 1
            tables[row, large[num_large]] = np.uint32(large[num_large])


@numba.njit(forceinline=True)
def draw(table, word, bits):  # type: ignore[no-untyped-def]
    column = word >> np.uint64(32 - bits)
    remainder = word & np.uint64((1 << (32 - bits)) - 1)
    entry = np.uint64(table[column])
    return column if remainder < entry >> np.uint64(bits) else entry & np.uint64((1 << bits) - 1)
