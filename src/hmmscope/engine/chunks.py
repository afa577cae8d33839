"""Memory layout of a chunk of samples, and computation of input, norms, head and loss.

Column n = t * samples + b is position t of sample b (one SIMD lane). Panels are groups of `panel` columns, so F
features per column are an array (panels, F, panel). Padding has zero loss weight.
"""

import math
from typing import NamedTuple

from hmmscope.engine.functions import exponential
from hmmscope.engine.maps import columns_of, mapped, mapped_back
from hmmscope.engine.tiles import transpose
from hmmscope.kernels.compile_units import I1, I2, X1, X2, X3, compile_unit
from hmmscope.kernels.products import FLAGS, SUMS, product, wide


class StepInputs(NamedTuple):
    """Inputs and labels of a training step; either `tokens` or `vectors` is empty, and so is either `ids` or `values`.

    Attributes:
        tokens, vectors: Inputs, of shapes (sample, step) and (sample, step, input).
        ids, values: Labels: class numbers (sample, labelled step), negative for none; or vectors (sample, labelled
            step, output).
        columns: Index of each step among the labelled steps; -1 for a step without a label.
        kind: 0 for cross-entropy, 1 for squared error.
    """

    tokens: I2
    vectors: X3
    ids: I2
    values: X3
    columns: I1
    weight: float
    kind: int


@compile_unit(fastmath=FLAGS)
def read(
    asked: StepInputs, first: int, count: int, steps: int, samples: int, table: X2, place: X2, rows: X2, x: X3
) -> None:
    """Write x = table[token] + place[position] or, for vectors, x = place[position] + sum_i vector_i table[i].

    Args:
        first, count: First sample, and number of samples.
        rows: Work array (panel, width).
        x: Output (panels, width, panel).
    """
    wide()
    panels, width, size = x.shape
    tokens, vectors = asked.tokens, asked.vectors
    last, inputs = len(asked.columns) - 1, vectors.shape[2]
    for panel in range(panels):
        used = columns_of(panel, steps, samples, size)
        for column in range(used):
            step, lane = divmod(panel * size + column, samples)
            sample, step = first + min(lane, count - 1), min(step, last)
            if inputs == 0:
                token = tokens[sample, step]
                for i in range(width):
                    rows[column, i] = table[token, i] + place[step, i]
            else:
                for i in range(width):
                    rows[column, i] = place[step, i]
                for k in range(inputs):
                    number = vectors[sample, step, k]
                    for i in range(width):
                        rows[column, i] += number * table[k, i]
        transpose(used, width, rows, 0, width, x, panel * width * size, size)


@compile_unit(fastmath=FLAGS)
def read_backward(
    asked: StepInputs, first: int, count: int, steps: int, samples: int, table: X2, place: X2, rows: X2, dx: X3
) -> None:
    wide()
    panels, width, size = dx.shape
    tokens, vectors, inputs = asked.tokens, asked.vectors, asked.vectors.shape[2]
    for panel in range(panels):
        used = columns_of(panel, steps, samples, size)
        transpose(width, used, dx, panel * width * size, size, rows, 0, width)
        for column in range(used):
            step, lane = divmod(panel * size + column, samples)
            if lane >= count or step >= len(asked.columns):
                continue
            for i in range(width):
                place[step, i] += rows[column, i]
            if inputs == 0:
                token = tokens[first + lane, step]
                for i in range(width):
                    table[token, i] += rows[column, i]
            else:
                for k in range(inputs):
                    number = vectors[first + lane, step, k]
                    for i in range(width):
                        table[k, i] += number * rows[column, i]


@compile_unit(fastmath=FLAGS)
def normalise(normed: int, x: X2, used: int, hat: X2, scale: X1, mean: X1) -> None:
    """Write hat = (x - mean) scale with scale = 1/sqrt(variance + 1e-5) per column, or hat = x if not `normed`."""
    wide()
    if normed == 0:
        for i in range(x.shape[0]):
            for j in range(used):
                hat[i, j] = x[i, j]
        return
    width = x.shape[0]
    share, small, one = x.dtype.type(1 / width), x.dtype.type(1e-5), x.dtype.type(1)
    for j in range(used):
        mean[j] = 0
        scale[j] = 0
    for i in range(width):
        for j in range(used):
            mean[j] += x[i, j]
    for j in range(used):
        mean[j] *= share
    for i in range(width):
        for j in range(used):
            centred = x[i, j] - mean[j]
            hat[i, j] = centred
            scale[j] += centred * centred
    for j in range(used):
        scale[j] = one / math.sqrt(scale[j] * share + small)
    for i in range(width):
        for j in range(used):
            hat[i, j] *= scale[j]


@compile_unit(fastmath=FLAGS)
def normalise_backward(normed: int, hat: X2, scale: X1, dhat: X2, used: int, dx: X2, mean: X1, along: X1) -> None:
    """Add scale (dhat - mean(dhat) - hat mean(hat dhat)) to dx, or add dhat if not `normed`."""
    wide()
    if normed == 0:
        for i in range(dx.shape[0]):
            for j in range(used):
                dx[i, j] += dhat[i, j]
        return
    width = hat.shape[0]
    share = hat.dtype.type(1 / width)
    for j in range(used):
        mean[j] = 0
        along[j] = 0
    for i in range(width):
        for j in range(used):
            mean[j] += dhat[i, j]
            along[j] += dhat[i, j] * hat[i, j]
    for j in range(used):
        mean[j] *= share
        along[j] *= share
    for i in range(width):
        for j in range(used):
            dx[i, j] += scale[j] * (dhat[i, j] - mean[j] - hat[i, j] * along[j])


@compile_unit()
def labels_of_panel(
    asked: StepInputs, first: int, count: int, samples: int, panel: int, used: int, width: int, y: X2, w: X1
) -> None:
    """Write the labels of a panel to `y` (output, panel), and their loss weights to `w` (panel,)."""
    ids, values, columns, weight = asked.ids, asked.values, asked.columns, asked.weight
    for v in range(y.shape[0]):
        for j in range(used):
            y[v, j] = 0
    for j in range(used):
        step, lane = divmod(panel * width + j, samples)
        w[j] = 0
        if lane >= count or step >= len(columns) or columns[step] < 0:
            continue
        if values.shape[2] == 0 and ids[first + lane, columns[step]] < 0:
            continue
        w[j] = weight
        if values.shape[2] == 0:
            y[ids[first + lane, columns[step]], j] = weight
        else:
            for v in range(y.shape[0]):
                y[v, j] = weight * values[first + lane, columns[step], v]


@compile_unit(fastmath=SUMS)
def cross_entropy(z: X2, y: X2, used: int, top: X1, total: X1, mass: X1) -> float:
    """Return the weighted loss of logits z, and replace z by the gradient softmax(z) sum_v y_v - y."""
    wide()
    one = z.dtype.type(1)
    loss = 0.0
    for j in range(used):
        top[j] = z[0, j]
        total[j] = 0
        mass[j] = 0
    for v in range(1, z.shape[0]):
        for j in range(used):
            top[j] = z[v, j] if z[v, j] > top[j] else top[j]
    for v in range(z.shape[0]):
        for j in range(used):
            z[v, j] -= top[j]
            mass[j] += y[v, j]
            total[j] += exponential(z[v, j])
    for v in range(z.shape[0]):
        for j in range(used):
            loss -= y[v, j] * z[v, j]
    for j in range(used):
        loss += mass[j] * math.log(total[j])
    for j in range(used):
        mass[j] *= one / total[j]
    for v in range(z.shape[0]):
        for j in range(used):
            z[v, j] = exponential(z[v, j]) * mass[j] - y[v, j]
    return loss


@compile_unit(fastmath=SUMS)
def squared_error(z: X2, y: X2, used: int, w: X1) -> float:
    loss = 0.0
    none, two = z.dtype.type(0), z.dtype.type(2)
    for v in range(z.shape[0]):
        for j in range(used):
            z[v, j] = z[v, j] - y[v, j] / w[j] if w[j] != none else none
    for v in range(z.shape[0]):
        for j in range(used):
            loss += w[j] * z[v, j] * z[v, j]
    for v in range(z.shape[0]):
        for j in range(used):
            z[v, j] *= two * w[j]
    return loss


@compile_unit(fastmath=SUMS)
def loss_and_gradient(
    hat: X2, used: int, head: X2, bias: X1, z: X2, y: X2, w: X1, kind: int, dhat: X2,
    total: X2, total_bias: X1, turn: X2, top: X1, mass: X1, zeros: X1,
) -> float:  # fmt: skip
    outputs, size = z.shape
    width = hat.shape[0]
    mapped(head, bias, hat, used, False, z)
    if kind == 0:
        loss = cross_entropy(z, y, used, top, w, mass)
    else:
        loss = squared_error(z, y, used, w)
    mapped_back(head, z, used, False, dhat, zeros)
    transpose(width, used, hat, 0, size, turn, 0, width)
    product(outputs, width, 1, used, z, 0, size, 1, 0, turn, 0, width, 0, total, 0, width, True, zeros, 0)
    for v in range(outputs):
        part = z.dtype.type(0)
        for j in range(used):
            part += z[v, j]
        total_bias[v] += part
    return loss
