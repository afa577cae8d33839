"""Quantisation of probabilities to multiples of 2^-32, by the largest-remainder method."""

import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.compiling import kernel

UNIT = 2**32

#: Up to this many leftover units are assigned one by one; more, by sorting.
_FEW = 16

#: Up to this many entries are quantised in uncompiled code, because compiling takes longer.
_SMALL = 1 << 14


def quantise_rows(probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return integer weights (..., K) with row sums 2^32, from rows that sum to about one.

    Zeros stay zero. Units that remain after rounding down go to the largest fractional parts, and among equal parts to
    the lowest index.
    """
    rows = np.ascontiguousarray(probabilities, dtype=np.float64).reshape(-1, probabilities.shape[-1])
    if rows.size <= _SMALL:
        return _quantise_few(rows).reshape(probabilities.shape)
    weights, fraction = np.empty(rows.shape, np.int64), np.empty(rows.shape[1], np.float64)
    row = 0
    while row < len(rows):
        row, remaining = _quantise(rows, weights, fraction, row)
        if remaining:  # sorted here, because a compiled sort compiles slowly
            weights[row - 1, np.argsort(-fraction, kind="stable")[:remaining]] += 1
    return weights.reshape(probabilities.shape)


def _quantise_few(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    if not rows.size:
        return np.empty(rows.shape, np.int64)
    exact = rows / np.add.accumulate(rows, 1)[:, -1:] * 4294967296.0
    whole = np.floor(exact)
    weights: NDArray[np.int64] = whole.astype(np.int64)
    remaining = 4294967296 - weights.sum(1)
    order = np.argsort(-np.where(rows > 0, exact - whole, -1.0), axis=1, kind="stable")
    one_more = np.arange(rows.shape[1]) < remaining[:, None]
    np.put_along_axis(weights, order, np.take_along_axis(weights, order, 1) + one_more, 1)
    beyond = remaining < 0
    weights[beyond, weights[beyond].argmax(1)] += remaining[beyond]
    return weights


@kernel()
def _quantise(rows, weights, fraction, begin):  # type: ignore[no-untyped-def]
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
        if remaining < 0:  # division can overshoot by one unit: subtract it from the largest weight
            largest = 0
            for i in range(1, num_outcomes):
                if weights[row, i] > weights[row, largest]:
                    largest = i
            weights[row, largest] += remaining
    return rows.shape[0], np.int64(0)
