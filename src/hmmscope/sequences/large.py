"""Large arrays of symbols: asked part by part, so that nothing else of their size is made."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError

#: Symbols that an alphabet has at most.
MAX_SYMBOLS = 2**24
#: Symbols of a part.
_PART = 2**20
#: An alphabet that nobody gave has more symbols than this only where there are a quarter as many observations.
_MANY, _EACH = 2**16, 4


def parts_of(flat: NDArray[np.integer]) -> Iterator[NDArray[np.integer]]:
    """The array part by part."""
    return (flat[begin : begin + _PART] for begin in range(0, len(flat), _PART))


def num_equal(flat: NDArray[np.integer], symbol: int) -> int:
    """How often a symbol stands in the array."""
    return sum(int(np.count_nonzero(part == symbol)) for part in parts_of(flat))


def smallest(count: int) -> type[np.integer]:
    """The smallest type that holds the numbers 0 to count - 1."""
    return np.uint8 if count <= 256 else np.int16 if count <= 2**15 else np.int32


def too_sparse(given: int | None, num_symbols: int, num_observations: int) -> bool:
    """Whether nobody gave their number, and there are so many more symbols than observations that the last is a slip."""
    return given is None and num_symbols > max(_MANY, _EACH * num_observations)


def require_dense(given: int | None, num_symbols: int, num_observations: int, where: str) -> None:
    """InputError where they are `too_sparse`."""
    if too_sparse(given, num_symbols, num_observations):
        raise InputError(
            f"{where}: {num_symbols - 1} would make {num_symbols} symbols of {num_observations} observations; say "
            f"symbols={num_symbols} if there are so many, or give names"
        )
