"""Operations on large arrays of symbols that work through the arrays in chunks."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError

#: Largest number of symbols.
MAX_SYMBOLS = 2**24
#: Number of observations in a chunk.
_PART = 2**20
#: Most symbols of an inferred alphabet: the larger of a fixed number and a multiple of the number of observations.
_MANY, _EACH = 2**16, 4


def parts_of(flat: NDArray[np.integer]) -> Iterator[NDArray[np.integer]]:
    return (flat[begin : begin + _PART] for begin in range(0, len(flat), _PART))


def num_equal(flat: NDArray[np.integer], symbol: int) -> int:
    return sum(int(np.count_nonzero(part == symbol)) for part in parts_of(flat))


def smallest(count: int) -> type[np.integer]:
    return np.uint8 if count <= 256 else np.int16 if count <= 2**15 else np.int32


def too_sparse(given: int | None, num_symbols: int, num_observations: int) -> bool:
    return given is None and num_symbols > max(_MANY, _EACH * num_observations)


def require_dense(given: int | None, num_symbols: int, num_observations: int, where: str) -> None:
    if too_sparse(given, num_symbols, num_observations):
        raise InputError(
            f"{where}: symbol {num_symbols - 1} implies {num_symbols} symbols for {num_observations} observations; pass "
            f"symbols={num_symbols} if this number is right, or give names"
        )
