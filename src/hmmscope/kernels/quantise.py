"""Probabilities to multiples of 2^-32 by the largest remainder, row by row."""

import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.compiling import kernel

UNIT = 2**32

#: Up to so many units are given one by one, to the largest fraction that is left; more, in the order of a sort.
_FEW = 16


def quantise_rows(probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
    """Integer weights (..., K) that sum to 2^32 in each row; the row sums of the input need only be near one.

    A zero stays zero and every weight is within one unit of probability * 2^32. Units left over by rounding down go to
    the largest fractional parts, the lowest index first among equals.
    """
    rows = np.ascontiguousarray(probabilities, dtype=np.float64).reshape(-1, probabilities.shape[-1])
    weights, fraction = np.empty(rows.shape, np.int64), np.empty(rows.shape[1], np.float64)
    row = 0
    while row < len(rows):
        row, remaining = _quantise(rows, weights, fraction, row)
        if remaining:  # sorted here: a sort takes longer to compile than all the rest of the loop
            weights[row - 1, np.argsort(-fraction, kind="stable")[:remaining]] += 1
    return weights.reshape(probabilities.shape)


@kernel()
def _quantise(rows, weights, fraction, begin):  # type: ignore[no-untyped-def]
    """Rows from `begin` on, to the first in which more than `_FEW` units are left: the row after it, and how many."""
    num_outcomes = rows.shape[1]
    for row in range(begin, rows.shape[0]):
        total = 0.0
        for i in range(num_outcomes):
            total += rows[row, i]
        given = np.int64(0)
        for i in range(num_outcomes):
            exact = rows[row, i] / total * 4294967296.0
            weights[row, i] = np.int64(np.floor(exact))
            fraction[i] = exact - np.floor(exact) if rows[row, i] > 0.0 else -1.0
            given += weights[row, i]
        remaining = np.int64(4294967296) - given
        if remaining > _FEW:
            return row + 1, remaining
        for _ in range(remaining):
            largest = 0
            for i in range(1, num_outcomes):
                if fraction[i] > fraction[largest]:
                    largest = i
            weights[row, largest] += 1
            fraction[largest] = -2.0
        if remaining < 0:  # floating-point division can overshoot by a unit: take it from the largest weight
            largest = 0
            for i in range(1, num_outcomes):
                if weights[row, i] > weights[row, largest]:
                    largest = i
            weights[row, largest] += remaining
    return rows.shape[0], np.int64(0)
