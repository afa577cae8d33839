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
    weights = np.empty(rows.shape, np.int64)
    _quantise(rows, weights)
    return weights.reshape(probabilities.shape)


@kernel()
def _quantise(rows, weights):  # type: ignore[no-untyped-def]
    num_outcomes = rows.shape[1]
    fraction = np.empty(num_outcomes, np.float64)
    for row in range(rows.shape[0]):
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
        if 0 < remaining <= _FEW:
            for _ in range(remaining):
                largest = np.argmax(fraction)
                weights[row, largest] += 1
                fraction[largest] = -2.0
        elif remaining > 0:
            order = np.argsort(-fraction, kind="mergesort")
            for rank in range(remaining):
                weights[row, order[rank]] += 1
        elif remaining < 0:  # floating-point division can overshoot by a unit: take it from the largest weight
            weights[row, np.argmax(weights[row])] += remaining
