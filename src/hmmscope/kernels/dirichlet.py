"""Dirichlet rows as a function of (seed, purpose, component, row): any component of a mixture without the others.

gamma(a) = gamma(a + 1) * U^(1/a), the former by Marsaglia and Tsang (2000); logarithms throughout, so that concentrations
far below one, where almost every entry underflows, still give rows that sum to one.
"""

import math

import numba
import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.philox import philox


def dirichlet_rows(
    key: tuple[int, int], components: NDArray[np.int64], num_rows: int, num_columns: int, concentration: float
) -> NDArray[np.float64]:
    """Rows (component, num_rows, num_columns), each from the symmetric Dirichlet(concentration)."""
    rows = np.empty((len(components), num_rows, num_columns), np.float64)
    _fill(np.uint64(key[0]), np.uint64(key[1]), components.astype(np.uint64), concentration, rows)
    return rows


@numba.njit(inline="always")
def _uniform(word):  # type: ignore[no-untyped-def]
    return (np.float64(word) + 0.5) * 2.0**-32


@numba.njit(cache=True, nogil=True)
def _log_gamma_variate(k0, k1, cell, low, high, concentration):  # type: ignore[no-untyped-def]
    d = concentration + 1.0 - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    attempt = np.uint64(0)
    log_boost = 0.0
    while True:
        w0, w1, w2, w3 = philox(attempt, cell, low, high, k0, k1)
        if attempt == 0:
            log_boost = math.log(_uniform(w3)) / concentration
        normal = math.sqrt(-2.0 * math.log(_uniform(w0))) * math.cos(2.0 * math.pi * _uniform(w1))
        v = (1.0 + c * normal) ** 3
        if v > 0.0 and math.log(_uniform(w2)) < 0.5 * normal * normal + d - d * v + d * math.log(v):
            return math.log(d * v) + log_boost
        attempt += np.uint64(1)


@numba.njit(cache=True, nogil=True)
def _fill(k0, k1, components, concentration, rows):  # type: ignore[no-untyped-def]
    num_rows, num_columns = rows.shape[1], rows.shape[2]
    for index in range(rows.shape[0]):
        low = components[index] & np.uint64(0xFFFFFFFF)
        high = components[index] >> np.uint64(32)
        for row in range(num_rows):
            largest = -np.inf
            for column in range(num_columns):
                cell = np.uint64(row * num_columns + column)
                rows[index, row, column] = _log_gamma_variate(k0, k1, cell, low, high, concentration)
                largest = max(largest, rows[index, row, column])
            total = 0.0
            for column in range(num_columns):
                rows[index, row, column] = math.exp(rows[index, row, column] - largest)
                total += rows[index, row, column]
            for column in range(num_columns):
                rows[index, row, column] /= total
