"""Sums over the coordinates of vectors for many distributions; NaN entries are left out."""

import numpy as np

from hmmscope.kernels.compiling import kernel

#: Rows per partial sum, so that rounding does not grow with their number.
_ROWS = 1024


@kernel()
def sums(rows, means, weights, slopes, constants, found):  # type: ignore[no-untyped-def]
    """found[n, c] = sum_y constants[y, c] + slopes[y, c] rows[n, y] + weights[y, c] (rows[n, y] - means[y, c])^2."""
    few = found.shape[1] < 4  # then one after the other, in registers
    for n in range(len(rows)):
        for c in range(found.shape[1]):
            total = 0.0
            for y in range(rows.shape[1] if few else 0):
                value = rows[n, y]
                if value == value:
                    away = value - means[y, c]
                    total += constants[y, c] + slopes[y, c] * value + weights[y, c] * away * away
            found[n, c] = total
        for y in range(0 if few else rows.shape[1]):
            value = rows[n, y]
            if value == value:
                for c in range(found.shape[1]):
                    away = value - means[y, c]
                    found[n, c] += constants[y, c] + slopes[y, c] * value + weights[y, c] * away * away


@kernel()
def weighted_squares(rows, shares, means, found):  # type: ignore[no-untyped-def]
    """found[y, c] += sum_n shares[n, c] (rows[n, y] - means[y, c])^2."""
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
