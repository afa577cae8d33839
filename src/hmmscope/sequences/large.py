"""Large arrays of symbols: asked part by part, so that nothing else of their size is made."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

#: Symbols of a part.
_PART = 2**20


def parts_of(flat: NDArray[np.integer]) -> Iterator[NDArray[np.integer]]:
    """The array part by part."""
    return (flat[begin : begin + _PART] for begin in range(0, len(flat), _PART))


def num_equal(flat: NDArray[np.integer], symbol: int) -> int:
    """How often a symbol stands in the array."""
    return sum(int(np.count_nonzero(part == symbol)) for part in parts_of(flat))


def smallest(count: int) -> type[np.integer]:
    """The smallest type that holds the numbers 0 to count - 1."""
    return np.uint8 if count <= 256 else np.int16 if count <= 2**15 else np.int32
