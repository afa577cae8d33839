"""Sums and products in one fixed order, the same bits on every processor and with any number of threads.

Libraries of linear algebra add in an order that suits the processor. That moves the last bit of a sum, and what is then
rounded to multiples of 2^-32 may fall to the other side: laws, and so their digests and samples, are made with these.
Each term is rounded before it is added: nothing is fused, nothing is added in another order.
"""

import math

import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.compiling import kernel


def product(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """left @ right, (rows, K) by (K, columns): each entry adds its K terms one after the other.

    Cost: O(rows * K * columns).
    """
    found = np.zeros((len(left), right.shape[1]))
    _multiply(np.ascontiguousarray(left), np.ascontiguousarray(right), found)
    return found


def total(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """parts.sum(0), the first part first (K, ..)."""
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
    """Gram and Schmidt's basis of the columns of each matrix (count, S, S), in their place; twice, as rounding asks for.

    The triangular factor that is left out has a positive diagonal. Columns of random numbers are independent.
    """
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
    """The stationary law (S,) of an irreducible chain (S, S): remove states from the last, then put them back.

    Nothing is subtracted. `work` holds the transition matrix and is overwritten.
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
            law[i] /= largest  # entries can differ by more than a float holds
    whole = 0.0
    for i in range(size):
        whole += law[i]
    for i in range(size):
        law[i] /= whole
