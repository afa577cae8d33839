"""Arrays from objects of other libraries."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError


def attribute(thing: Any, path: str, hint: str) -> Any:
    """Return ``thing.a.b`` (`path` "a.b"); raise InputError with `hint` if the attribute is missing or None."""
    found = thing
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            raise InputError(f"{type(thing).__name__}: has no {path}; {hint}")
    return found


def numbers(thing: Any, path: str, num_axes: int, hint: str) -> NDArray[np.float64]:
    array = attribute(thing, path, hint)
    if hasattr(array, "detach"):
        array = array.detach().cpu().numpy()
    try:
        read = np.array(array, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{type(thing).__name__}.{path}: must be an array of numbers") from None
    if read.ndim != num_axes:
        raise InputError(f"{type(thing).__name__}.{path}: must have {num_axes} axes, got shape {read.shape}")
    return read


def rescaled(rows: NDArray[np.float64], tolerance: float) -> NDArray[np.float64]:
    sums = rows.sum(-1, keepdims=True)
    close = np.abs(sums - 1) <= tolerance
    return rows / np.where(close, sums, 1.0)


def source_of(thing: Any, library: str) -> str:
    return f"imported from {library} ({type(thing).__name__})"
