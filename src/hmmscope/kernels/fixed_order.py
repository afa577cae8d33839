"""Sums and products in a fixed order, so that results have equal bits on all processors and thread counts."""

import math

import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.compiling import kernel


def product(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute left @ right, for shapes (rows, K) and (K, columns), adding the K terms in order."""
    found = np.zeros((len(left), right.shape[1]))
    _multiply(np.ascontiguousarray(left), np.ascontiguousarray(right), found)
    return found


def total(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    found = np.zeros(parts.shape[1:])
    for part in parts:
        found += part
    return found


@kernel()
def _multiply(left, right, found):  # type: ignore[no-untyped-def]
    for i in range(left.shape[0]):
        for k in range(left.shape[1]):
            weight = left[i, k]
            for j in range(right.shape[1]):
                found[i, j] += weight * right[k, j]


@kernel()
def orthonormalise(columns):  # type: ignore[no-untyped-def]
    size = columns.shape[1]
    for matrix in range(columns.shape[0]):
        for j in range(size):
            for _ in range(2):
                for i in range(j):
                    along = 0.0
                    for k in range(size):
                        along += columns[matrix, k, i] * columns[matrix, k, j]
                    for k in range(size):
                        columns[matrix, k, j] -= along * columns[matrix, k, i]
            square = 0.0
            for k in range(size):
                square += columns[matrix, k, j] * columns[matrix, k, j]
            length = math.sqrt(square)
            for k in range(size):
                columns[matrix, k, j] /= length


@kernel()
def eliminate(work, law):  # type: ignore[no-untyped-def]
    """Compute the stationary distribution (S,) of an irreducible chain by state elimination.

    `work` holds the transition matrix and is overwritten.
    """
    size = len(work)
    for last in range(size - 1, 0, -1):
        leaving = 0.0
        for j in range(last):
            leaving += work[last, j]
        for i in range(last):
            work[i, last] /= leaving
        for i in range(last):
            for j in range(last):
                work[i, j] += work[i, last] * work[last, j]
    law[0] = 1.0
    for state in range(1, size):
        largest = 0.0
        for i in range(state):
            law[state] += law[i] * work[i, state]
        for i in range(state + 1):
            largest = max(largest, law[i])
        for i in range(state + 1):
            law[i] /= largest  # the entries' range can exceed that of floats
    whole = 0.0
    for i in range(size):
        whole += law[i]
    for i in range(size):
        law[i] /= whole
