"""Rows of probabilities: M-step of EM, number of free parameters, and entries fixed at zero."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Smaller probabilities become zero, so that the compiled loops detect underflow in time.
SMALLEST = 2.0**-40


def num_free(positive: Any) -> int:
    """Count the free probabilities of rows (..., outcome): the positive entries of each row, minus one.

    Args:
        positive: True where an entry may be positive.
    """
    rows = np.asarray(positive, np.bool_)
    rows = rows.reshape(-1, rows.shape[-1])
    return int(rows.sum() - rows.any(-1).sum())


def restricted(rows: Array, positive: NDArray[np.bool_]) -> Array:
    """Set forbidden entries of rows (..., outcome) to zero and renormalize; a row left without mass becomes uniform."""
    lost = ((rows > 0) & ~positive).any(-1, keepdims=True)
    kept = np.where(positive, rows, 0.0)
    total = kept.sum(-1, keepdims=True)
    uniform = positive / np.maximum(1, positive.sum(-1, keepdims=True))
    share = np.divide(kept, total, where=total > 0, out=np.broadcast_to(uniform, kept.shape).copy())
    found: Array = np.where(lost, share, rows)
    return found


def without_tiny(rows: Array) -> Array:
    rows[rows < SMALLEST] = 0.0
    return np.asarray(rows / np.add.reduce(rows, -1, keepdims=True))


def maximised_rows(before: Array, counts: Array, pseudo_count: float) -> Array:
    """Normalize rows of counts + pseudo_count; zeros, and rows without counts, stay as in `before`."""
    weight = np.add(counts, pseudo_count, order="C")
    weight = weight if before.min() > 0 else np.where(before > 0, weight, 0.0)
    total = np.add.reduce(weight, -1, keepdims=True)
    whole: Array = (
        weight / total if total.min() > 0 else np.divide(weight, total, where=total > 0, out=np.array(before))
    )
    return whole


def log_of_positive(rows: Array) -> float:
    return float(np.log(rows[rows > 0]).sum())


def zeros_in_words(num_zeros: dict[str, int]) -> str:
    parts = [f"{count} {part}" for part, count in num_zeros.items() if count]
    if not parts:
        return ""
    said = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    one = sum(num_zeros.values()) == 1
    return f"fixed at zero, as in start: {said} probabilit{'y' if one else 'ies'}"
