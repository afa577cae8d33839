"""Folding of norms into the linear maps after them, unfolding of gradients, and AdamW, on flat parameter vectors.

A norm's output y = gain * hat + shift (hat: normalised input) enters a linear map:
map y + bias = folded hat + moved, where

    folded[o, i] = map[o, i] gain[i];        moved[o] = bias[o] + sum_i map[o, i] shift[i]

With gradients G of `folded` and g of `moved`:

    dmap[o, i] = gain[i] G[o, i] + g[o] shift[i];     dbias = g;
    dgain[i] = sum_o map[o, i] G[o, i];               dshift[i] = sum_o map[o, i] g[o]

Negative offsets mark absent parameters.
"""

import math

from hmmscope.kernels.compile_units import X1, X2, compile_unit, entry
from hmmscope.kernels.products import FLAGS, SUMS, wide


@compile_unit(fastmath=SUMS)
def fold(theta: X1, matrix: int, bias: int, gain: int, shift: int, folded: X2, moved: X1) -> None:
    wide()
    rows, cols = folded.shape
    for o in range(rows):
        moved[o] = theta[bias + o]
        line = theta[matrix + o * cols : matrix + (o + 1) * cols]
        if gain < 0:
            for i in range(cols):
                folded[o, i] = line[i]
        else:
            gains, shifts, part = theta[gain : gain + cols], theta[shift : shift + cols], moved[o]
            for i in range(cols):
                folded[o, i] = line[i] * gains[i]
            for i in range(cols):
                part += line[i] * shifts[i]
            moved[o] = part


@compile_unit(fastmath=FLAGS)
def unfold(theta: X1, matrix: int, bias: int, gain: int, shift: int, folded: X2, moved: X1, gradient: X1) -> None:
    wide()
    rows, cols = folded.shape
    for o in range(rows):
        gradient[bias + o] = moved[o]
    if gain < 0:
        for o in range(rows):
            for i in range(cols):
                gradient[matrix + o * cols + i] = folded[o, i]
        return
    gains, shifts = theta[gain : gain + cols], theta[shift : shift + cols]
    dgain, dshift = gradient[gain : gain + cols], gradient[shift : shift + cols]
    for i in range(cols):
        dgain[i] = 0
        dshift[i] = 0
    for o in range(rows):
        begin, end, g = matrix + o * cols, matrix + (o + 1) * cols, moved[o]
        line, put, grown = theta[begin:end], gradient[begin:end], folded[o]
        for i in range(cols):
            put[i] = gains[i] * grown[i] + g * shifts[i]
        for i in range(cols):
            dgain[i] += line[i] * grown[i]
        for i in range(cols):
            dshift[i] += line[i] * g


@entry(fastmath=SUMS)
def norm_of(gradient: X1) -> float:
    total = 0.0
    for i in range(gradient.shape[0]):
        total += float(gradient[i]) * float(gradient[i])
    return math.sqrt(total)


@entry(fastmath=FLAGS)
def add_up(sums: X2) -> None:
    for part in range(1, sums.shape[0]):
        for i in range(sums.shape[1]):
            sums[0, i] += sums[part, i]


@entry(fastmath=FLAGS)
def adamw(
    theta: X1, gradient: X1, first: X1, second: X1, scale: float, rate: float, beta1: float, beta2: float,
    epsilon: float, decay: float, step: int,
) -> None:  # fmt: skip
    wide()
    number = theta.dtype.type
    keep, grow, hold, add = number(1 - rate * decay), number(1 - beta1), number(beta2), number(1 - beta2)
    pace, root, small = number(rate / (1 - beta1**step)), number(1 / math.sqrt(1 - beta2**step)), number(epsilon)
    clip = number(scale)
    for i in range(theta.shape[0]):
        g = clip * gradient[i]
        m = first[i] + grow * (g - first[i])
        v = hold * second[i] + add * (g * g)
        first[i] = m
        second[i] = v
        theta[i] = keep * theta[i] - pace * m / (math.sqrt(v) * root + small)
