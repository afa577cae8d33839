"""Random arrays as functions of (seed, purpose, component).

Results differ between platforms by rounding errors.
"""

import math

import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.compiling import kernel, part
from hmmscope.kernels.philox import philox


def dirichlet_rows(
    key: tuple[int, int], components: NDArray[np.int64], num_rows: int, num_columns: int, concentration: float
) -> NDArray[np.float64]:
    """Draw rows (component, num_rows, num_columns) from the symmetric Dirichlet(concentration).

    Source: Marsaglia and Tsang (2000) for gamma variates.
    """
    rows = np.empty((len(components), num_rows, num_columns), np.float64)
    _fill(np.uint64(key[0]), np.uint64(key[1]), components.astype(np.uint64), concentration, rows)
    return rows


def uniforms(
    key: tuple[int, int], components: NDArray[np.int64], num_rows: int, num_columns: int
) -> NDArray[np.float64]:
    """Draw uniform odd multiples of 2^-53 in (0, 1), shape (component, num_rows, num_columns)."""
    numbers = np.empty((len(components), num_rows, num_columns), np.float64)
    _fill_uniform(np.uint64(key[0]), np.uint64(key[1]), components.astype(np.uint64), numbers)
    return numbers


def standard_normals(
    key: tuple[int, int], components: NDArray[np.int64], num_rows: int, num_columns: int
) -> NDArray[np.float64]:
    """Draw N(0, 1) numbers (component, num_rows, num_columns), by Box and Muller (1958)."""
    numbers = np.empty((len(components), num_rows, num_columns), np.float64)
    _fill_normal(np.uint64(key[0]), np.uint64(key[1]), components.astype(np.uint64), numbers)
    return numbers


def random_permutations(
    key: tuple[int, int], components: NDArray[np.int64], num_rows: int, size: int
) -> NDArray[np.int64]:
    rows = np.empty((len(components), num_rows, size), np.int64)
    _fill_permutation(np.uint64(key[0]), np.uint64(key[1]), components.astype(np.uint64), rows)
    return rows


@part(forceinline=True)
def _uniform(word):  # type: ignore[no-untyped-def]
    return (np.float64(word) + 0.5) * 2.0**-32


@kernel()
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


@kernel()
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


@part(forceinline=True)
def _uniform_52(high, low):  # type: ignore[no-untyped-def]
    return (np.float64((high << np.uint64(20)) | (low >> np.uint64(12))) + 0.5) * 2.0**-52


@kernel()
def _fill_uniform(k0, k1, components, numbers):  # type: ignore[no-untyped-def]
    for index in range(numbers.shape[0]):
        low = components[index] & np.uint64(0xFFFFFFFF)
        high = components[index] >> np.uint64(32)
        for cell in range(numbers.shape[1] * numbers.shape[2]):
            w0, w1, _, _ = philox(np.uint64(0), np.uint64(cell), low, high, k0, k1)
            numbers[index, cell // numbers.shape[2], cell % numbers.shape[2]] = _uniform_52(w0, w1)


@kernel()
def _fill_normal(k0, k1, components, numbers):  # type: ignore[no-untyped-def]
    for index in range(numbers.shape[0]):
        low = components[index] & np.uint64(0xFFFFFFFF)
        high = components[index] >> np.uint64(32)
        for cell in range(numbers.shape[1] * numbers.shape[2]):
            w0, w1, w2, w3 = philox(np.uint64(0), np.uint64(cell), low, high, k0, k1)
            radius = math.sqrt(-2.0 * math.log(_uniform_52(w0, w1)))
            angle = 2.0 * math.pi * _uniform_52(w2, w3)
            numbers[index, cell // numbers.shape[2], cell % numbers.shape[2]] = radius * math.cos(angle)


@kernel()
def _fill_permutation(k0, k1, components, rows):  # type: ignore[no-untyped-def]
    words = np.empty(4, np.uint64)
    for index in range(rows.shape[0]):
        low = components[index] & np.uint64(0xFFFFFFFF)
        high = components[index] >> np.uint64(32)
        for row in range(rows.shape[1]):
            for place in range(rows.shape[2]):  # numba compiles an assignment of np.arange for two seconds
                rows[index, row, place] = place
            taken = 0
            for last in range(rows.shape[2] - 1, 0, -1):
                choices = np.uint64(last + 1)
                fair = np.uint64(4294967296) - np.uint64(4294967296) % choices
                word = fair
                while word >= fair:  # rejection keeps it uniform
                    if taken % 4 == 0:
                        words[0], words[1], words[2], words[3] = philox(
                            np.uint64(taken // 4), np.uint64(row), low, high, k0, k1
                        )
                    word = words[taken % 4]
                    taken += 1
                other = np.int64(word % choices)
                rows[index, row, last], rows[index, row, other] = rows[index, row, other], rows[index, row, last]
