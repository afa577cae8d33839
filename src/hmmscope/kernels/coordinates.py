"""Log-densities and weighted squared deviations of vectors, for many distributions; NaN entries are skipped."""

import numpy as np

from hmmscope.kernels.compiling import kernel

#: Vectors per partial sum, so that rounding errors do not grow with their number.
_ROWS = 1024
#: Vectors processed together, in SIMD registers.
_BLOCK = 256


@kernel()
def sums(rows, means, weights, slopes, constants, found):  # type: ignore[no-untyped-def]
    size = found.shape[1]
    values, part = np.empty(_BLOCK), np.empty((size, _BLOCK))
    for begin in range(0, len(rows), _BLOCK):
        count = min(_BLOCK, len(rows) - begin)
        part[:] = 0.0
        for y in range(rows.shape[1]):
            for n in range(count):
                values[n] = rows[begin + n, y]
            for c in range(size):
                into, mean, weight = part[c], means[y, c], weights[y, c]
                slope, constant = slopes[y, c], constants[y, c]
                for n in range(count):
                    value = values[n]
                    away = value - mean
                    term = constant + slope * value + weight * away * away
                    into[n] += term if value == value else 0.0
        for n in range(count):
            for c in range(size):
                found[begin + n, c] = part[c, n]


@kernel()
def weighted_squares(rows, shares, means, found):  # type: ignore[no-untyped-def]
    part = np.zeros(found.shape)
    for n in range(len(rows)):
        for y in range(rows.shape[1]):
            value = rows[n, y]
            if value == value:
                for c in range(found.shape[1]):
                    away = value - means[y, c]
                    part[y, c] += shares[n, c] * away * away
        if n % _ROWS == _ROWS - 1 or n + 1 == len(rows):
            for y in range(found.shape[0]):
                for c in range(found.shape[1]):
                    found[y, c] += part[y, c]
                    part[y, c] = 0.0
