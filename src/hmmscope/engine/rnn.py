"""Loss and gradient of the compiled recurrent network, equivalent to `models.recurrent`.

    h_t = f(in x_t + bias + recur h_{t-1}),  z_t = head h_t

f is ReLU or tanh; x_t is the input, or h_t of the layer below. A panel (see `chunks`) is one position. Hidden states
have shape (layer, 1 + step, width, sample).
"""

from typing import NamedTuple

from hmmscope.engine.bfloat16_maps import RNNBfloat16Maps, add_map, add_products, map_backward, map_forward, paired
from hmmscope.engine.chunks import StepInputs, labels_of_panel, loss_and_gradient, read, read_backward
from hmmscope.engine.functions import tangent
from hmmscope.engine.maps import add_rows, turn_map
from hmmscope.kernels.compile_units import I1, I2, X1, X2, X3, X4, compile_unit, entry
from hmmscope.kernels.products import FLAGS, wide


class RNNStepShape(NamedTuple):
    relu: int
    steps: int
    samples: int


class CellMaps(NamedTuple):
    """Linear maps of all layers of a recurrent network.

    `table` and `place` are those of `chunks.read`. Shapes: recur (layer, width, width); initial states (layer, width);
    head (output, width); above the first layer: feed (layer - 1, width, width) and bias (layer - 1, width).
    """

    recur: X3
    feed: X3
    bias: X2
    initial: X2
    table: X2
    place: X2
    head: X2
    head_bias: X1
    recur_across: X3
    feed_across: X3


class CellWork(NamedTuple):
    h: X4
    dh: X3
    turn: X2
    rows: X2
    panel: X2
    lines: X2
    z: X2
    y: X2
    zeros: X1
    halves: RNNBfloat16Maps


@compile_unit(fastmath=FLAGS)
def _apply(relu: int, h: X2) -> None:
    wide()
    zero = h.dtype.type(0)
    for i in range(h.shape[0]):
        if relu:
            for j in range(h.shape[1]):
                h[i, j] = zero if h[i, j] < zero else h[i, j]
        else:
            for j in range(h.shape[1]):
                h[i, j] = tangent(h[i, j])


@compile_unit(fastmath=FLAGS)
def _apply_backward(relu: int, h: X2, dh: X2) -> None:
    wide()
    zero, one = h.dtype.type(0), h.dtype.type(1)
    for i in range(h.shape[0]):
        if relu:
            for j in range(h.shape[1]):
                dh[i, j] = dh[i, j] if h[i, j] > zero else zero
        else:
            for j in range(h.shape[1]):
                dh[i, j] *= one - h[i, j] * h[i, j]


@entry(fastmath=FLAGS)
def recurrent_chunk(
    shape: RNNStepShape, maps: CellMaps, sums: CellMaps, work: CellWork, asked: StepInputs, first: int, count: int
) -> float:
    steps, samples, zeros, dh = shape.steps, shape.samples, work.zeros, work.dh
    layers, width = maps.initial.shape
    halves, left, right = work.halves, work.halves.left, work.halves.right
    for layer in range(layers):
        h = work.h[layer]
        for i in range(width):
            h[0, i] = maps.initial[layer, i]
        if layer == 0:
            read(asked, first, count, steps, samples, maps.table, maps.place, work.rows, h[1:])
        for step in range(steps):
            if layer:
                below = work.h[layer - 1, step + 1]
                m, bias = maps.feed[layer - 1], maps.bias[layer - 1]
                map_forward(m, halves.feed_forward, layer - 1, bias, below, samples, False, h[step + 1], right)
            map_forward(
                maps.recur[layer], halves.recur_forward, layer, zeros, h[step], samples, True, h[step + 1], right
            )
            _apply(shape.relu, h[step + 1])
    loss = 0.0
    for step in range(steps):
        labels_of_panel(asked, first, count, samples, step, samples, samples, work.y, work.lines[3])
        loss += loss_and_gradient(
            work.h[layers - 1, step + 1], samples, maps.head, maps.head_bias, work.z, work.y, work.lines[3], asked.kind,
            dh[step], sums.head, sums.head_bias, work.turn, work.lines[0], work.lines[1], zeros,
        )  # fmt: skip
    for layer in range(layers - 1, -1, -1):
        h, across, back = work.h[layer], maps.recur_across, halves.recur_backward
        for step in range(steps - 1, -1, -1):
            _apply_backward(shape.relu, h[step + 1], dh[step])
            if step:
                map_backward(across, back, layer, dh[step], samples, True, dh[step - 1], zeros, right)
        map_backward(across, back, layer, dh[0], samples, False, work.panel, zeros, right)
        add_rows(work.panel.reshape(1, width, samples), 1, samples, sums.initial[layer])
        add_products(back, dh, h[:steps], steps, samples, work.turn, sums.recur[layer], zeros, left, right)
        if layer == 0:
            read_backward(asked, first, count, steps, samples, sums.table, sums.place, work.rows, dh)
            continue
        below, total, bias = work.h[layer - 1, 1:], sums.feed[layer - 1], sums.bias[layer - 1]
        add_map(back, dh, below, steps, samples, work.turn, total, bias, zeros, left, right)
        for step in range(steps):
            map_backward(
                maps.feed_across, halves.feed_backward, layer - 1, dh[step], samples, False, work.panel, zeros, right
            )
            for i in range(width):
                for j in range(samples):
                    dh[step, i, j] = work.panel[i, j]
    return loss


@entry(fastmath=FLAGS)
def recurrent_maps(theta: X1, layers: I2, ends: I1, maps: CellMaps) -> None:
    inputs, width = maps.table.shape
    for layer in range(layers.shape[0]):
        feed, recur, bias, other = layers[layer]
        for i in range(width):
            total = theta[bias + i] + theta[other + i]
            if layer:
                maps.bias[layer - 1, i] = total
            else:
                for step in range(maps.place.shape[0]):
                    maps.place[step, i] = total
                for k in range(inputs):
                    maps.table[k, i] = theta[feed + i * inputs + k]
            maps.initial[layer, i] = theta[ends[0] + layer * width + i] if ends[0] >= 0 else 0
            for k in range(width):
                maps.recur[layer, i, k] = theta[recur + i * width + k]
                if layer:
                    maps.feed[layer - 1, i, k] = theta[feed + i * width + k]
        if len(maps.recur_across):
            turn_map(maps.recur[layer], maps.recur_across[layer])
            if layer:
                turn_map(maps.feed[layer - 1], maps.feed_across[layer - 1])
    for v in range(maps.head.shape[0]):
        maps.head_bias[v] = theta[ends[2] + v]
        for i in range(width):
            maps.head[v, i] = theta[ends[1] + v * width + i]


@entry(fastmath=FLAGS)
def recurrent_halves(maps: CellMaps, halves: RNNBfloat16Maps) -> None:
    for layer in range(len(halves.recur_forward)):
        paired(maps.recur[layer], halves.recur_forward[layer], halves.recur_backward[layer])
        if layer:
            paired(maps.feed[layer - 1], halves.feed_forward[layer - 1], halves.feed_backward[layer - 1])


@entry(fastmath=FLAGS)
def recurrent_gradient(layers: I2, ends: I1, sums: CellMaps, gradient: X1) -> None:
    inputs, width = sums.table.shape
    for layer in range(layers.shape[0]):
        feed, recur, bias, other = layers[layer]
        for i in range(width):
            if layer:
                total = sums.bias[layer - 1, i]
            else:
                total = sums.place[0, i]
                for step in range(1, sums.place.shape[0]):
                    total += sums.place[step, i]
                for k in range(inputs):
                    gradient[feed + i * inputs + k] = sums.table[k, i]
            gradient[bias + i] = total
            gradient[other + i] = total
            if ends[0] >= 0:
                gradient[ends[0] + layer * width + i] = sums.initial[layer, i]
            for k in range(width):
                gradient[recur + i * width + k] = sums.recur[layer, i, k]
                if layer:
                    gradient[feed + i * width + k] = sums.feed[layer - 1, i, k]
    for v in range(sums.head.shape[0]):
        gradient[ends[2] + v] = sums.head_bias[v]
        for i in range(width):
            gradient[ends[1] + v * width + i] = sums.head[v, i]
