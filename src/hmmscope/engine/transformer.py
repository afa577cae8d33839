"""Loss and gradient of the compiled Transformer decoder, equivalent to `models.decoder`.

x_0 = table[token] + place[position];
x <- x + out attention(qkv hat(x));   x <- x + back gelu(hidden hat(x));
z = head hat(x), where hat(x) is normalised x, or x itself
"""

from typing import NamedTuple

from hmmscope.engine.bfloat16_maps import Bfloat16Maps, add_map, add_products, map_backward, map_forward, paired
from hmmscope.engine.causal_attention import HeadBuffers, attend, attend_backward
from hmmscope.engine.chunks import (
    StepInputs,
    labels_of_panel,
    loss_and_gradient,
    normalise,
    normalise_backward,
    read,
    read_backward,
)
from hmmscope.engine.folding import fold, unfold
from hmmscope.engine.functions import gelu
from hmmscope.engine.maps import add_rows, columns_of, turn_map
from hmmscope.engine.tiles import transpose
from hmmscope.kernels.compile_units import I1, I2, X1, X2, X3, X4, compile_unit, entry
from hmmscope.kernels.products import FLAGS, wide


class Shape(NamedTuple):
    """Sizes and constants of a training step; `hidden` is 0 without an MLP."""

    heads: int
    hidden: int
    normed: int
    steps: int
    samples: int
    scale: float


class Maps(NamedTuple):
    """Linear maps of all layers with folded norms: weights (layer, out, in) and biases (layer, out).

    Fields ending in `across` are transposes (layer, in, out); `place` is (step, width), `table` (token or input,
    width).
    """

    qkv: X3
    qkv_bias: X2
    out: X3
    out_bias: X2
    hidden: X3
    hidden_bias: X2
    back: X3
    back_bias: X2
    head: X2
    head_bias: X1
    table: X2
    place: X2
    qkv_across: X3
    out_across: X3
    hidden_across: X3
    back_across: X3


class Work(NamedTuple):
    """Work arrays of a chunk; arrays that the backward pass needs have a layer axis."""

    x: X3
    hat: X4
    scale: X3
    qkv: X4
    mixed: X4
    hat2: X4
    scale2: X3
    slope: X4
    active: X4
    turn: X2
    rows: X2
    panel: X2
    lines: X2
    z: X2
    y: X2
    head: HeadBuffers
    cos: X2
    sin: X2
    none: X2
    zeros: X1
    halves: Bfloat16Maps


@compile_unit(fastmath=FLAGS)
def _activate(h: X2, used: int, active: X2) -> None:
    wide()
    for i in range(h.shape[0]):
        for j in range(used):
            value, slope = gelu(h[i, j])
            active[i, j] = value
            h[i, j] = slope


@compile_unit(fastmath=FLAGS)
def _forward_layer(shape: Shape, maps: Maps, work: Work, layer: int) -> None:
    panels, _, size = work.x.shape
    steps, samples, top, halves = shape.steps, shape.samples, work.lines, work.halves
    right = halves.right
    for panel in range(panels):
        used, x, hat = columns_of(panel, steps, samples, size), work.x[panel], work.hat[layer, panel]
        normalise(shape.normed, x, used, hat, work.scale[layer, panel], top[0])
        qkv = work.qkv[layer, panel]
        map_forward(maps.qkv[layer], halves.qkv_forward, layer, maps.qkv_bias[layer], hat, used, False, qkv, right)
    attend(
        work.qkv[layer], shape.heads, shape.scale, work.cos, work.sin, work.none, samples, steps,
        work.head, top[0], work.zeros, work.mixed[layer],
    )  # fmt: skip
    for panel in range(panels):
        used, x, hat = columns_of(panel, steps, samples, size), work.x[panel], work.hat2[layer, panel]
        mixed = work.mixed[layer, panel]
        map_forward(maps.out[layer], halves.out_forward, layer, maps.out_bias[layer], mixed, used, True, x, right)
        if shape.hidden == 0:
            continue
        slope, active = work.slope[layer, panel], work.active[layer, panel]
        normalise(shape.normed, x, used, hat, work.scale2[layer, panel], top[0])
        map_forward(
            maps.hidden[layer], halves.hidden_forward, layer, maps.hidden_bias[layer], hat, used, False, slope, right
        )
        _activate(slope, used, active)
        map_forward(maps.back[layer], halves.back_forward, layer, maps.back_bias[layer], active, used, True, x, right)


@compile_unit(fastmath=FLAGS)
def _times(slope: X2, change: X2, used: int) -> None:
    wide()
    for i in range(slope.shape[0]):
        for j in range(used):
            slope[i, j] *= change[i, j]


@compile_unit(fastmath=FLAGS)
def _back_through_norm(shape: Shape, across: X3, back: X3, layer: int, dy: X3, hat: X3, scale: X2, work: Work) -> None:
    for panel in range(dy.shape[0]):
        used = columns_of(panel, shape.steps, shape.samples, dy.shape[2])
        map_backward(across, back, layer, dy[panel], used, False, work.panel, work.zeros, work.halves.right)
        normalise_backward(
            shape.normed, hat[panel], scale[panel], work.panel, used, work.x[panel], work.lines[0], work.lines[1]
        )


@compile_unit(fastmath=FLAGS)
def _backward_layer(shape: Shape, maps: Maps, sums: Maps, work: Work, layer: int) -> None:
    dx, steps, samples, turn, zeros = work.x, shape.steps, shape.samples, work.turn, work.zeros
    halves, left, right = work.halves, work.halves.left, work.halves.right
    panels, _, size = dx.shape
    if shape.hidden:
        slope, hat, back = work.slope[layer], work.hat2[layer], halves.back_backward
        add_rows(dx, steps, samples, sums.back_bias[layer])
        add_products(back, work.active[layer], dx, steps, samples, turn, sums.back[layer], zeros, left, right)
        for panel in range(panels):
            used = columns_of(panel, steps, samples, size)
            map_backward(maps.back_across, back, layer, dx[panel], used, False, work.panel, zeros, right)
            _times(slope[panel], work.panel, used)
        back = halves.hidden_backward
        add_map(back, slope, hat, steps, samples, turn, sums.hidden[layer], sums.hidden_bias[layer], zeros, left, right)
        _back_through_norm(shape, maps.hidden_across, back, layer, slope, hat, work.scale2[layer], work)
    mixed, qkv, hat, back = work.mixed[layer], work.qkv[layer], work.hat[layer], halves.out_backward
    add_map(back, dx, mixed, steps, samples, turn, sums.out[layer], sums.out_bias[layer], zeros, left, right)
    for panel in range(panels):
        used = columns_of(panel, steps, samples, size)
        map_backward(maps.out_across, back, layer, dx[panel], used, False, mixed[panel], zeros, right)
    attend_backward(
        mixed, qkv, shape.heads, shape.scale, work.cos, work.sin, work.none, samples, steps,
        work.head, work.lines[0], zeros,
    )  # fmt: skip
    back = halves.qkv_backward
    add_map(back, qkv, hat, steps, samples, turn, sums.qkv[layer], sums.qkv_bias[layer], zeros, left, right)
    _back_through_norm(shape, maps.qkv_across, back, layer, qkv, hat, work.scale[layer], work)


@entry(fastmath=FLAGS)
def decoder_chunk(shape: Shape, maps: Maps, sums: Maps, work: Work, asked: StepInputs, first: int, count: int) -> float:
    x, steps, samples = work.x, shape.steps, shape.samples
    layers, (panels, width, size) = maps.qkv.shape[0], x.shape
    read(asked, first, count, steps, samples, maps.table, maps.place, work.rows, x)
    for layer in range(layers):
        _forward_layer(shape, maps, work, layer)
    loss = 0.0
    hat, scale = work.rows.reshape(width, size), work.lines[2]
    for panel in range(panels):
        used = columns_of(panel, steps, samples, size)
        labels_of_panel(asked, first, count, samples, panel, used, size, work.y, work.lines[3])
        normalise(shape.normed, x[panel], used, hat, scale, work.lines[0])
        loss += loss_and_gradient(
            hat, used, maps.head, maps.head_bias, work.z, work.y, work.lines[3], asked.kind, work.panel,
            sums.head, sums.head_bias, work.turn, work.lines[0], work.lines[1], work.zeros,
        )  # fmt: skip
        x[panel] = 0
        normalise_backward(shape.normed, hat, scale, work.panel, used, x[panel], work.lines[0], work.lines[1])
    for layer in range(layers - 1, -1, -1):
        _backward_layer(shape, maps, sums, work, layer)
    read_backward(asked, first, count, steps, samples, sums.table, sums.place, work.rows, x)
    return loss


@entry(fastmath=FLAGS)
def decoder_maps(theta: X1, blocks: I2, ends: I1, fixed: X2, features: X2, maps: Maps) -> None:
    """Compute `maps` from the parameters.

    Args:
        theta: All parameters in one flat vector.
        blocks: For each layer the offsets in `theta` of gain and shift, qkv, out, gain and shift, hidden, back; each
            map is followed by its bias.
        ends: Offsets in `theta` of position table, embedding and bias, map of `features`, last gain and shift, head and
            bias, or -1 where absent; then the number of rows of the position table.
        fixed: Position embedding without parameters, such as sinusoids (step, width).
        features: `models.decoder.input_features` (step, 3).
    """
    for layer in range(blocks.shape[0]):
        b = blocks[layer]
        fold(theta, b[2], b[3], b[0], b[1], maps.qkv[layer], maps.qkv_bias[layer])
        fold(theta, b[4], b[5], -1, -1, maps.out[layer], maps.out_bias[layer])
        if maps.hidden.shape[1]:
            fold(theta, b[8], b[9], b[6], b[7], maps.hidden[layer], maps.hidden_bias[layer])
            fold(theta, b[10], b[11], -1, -1, maps.back[layer], maps.back_bias[layer])
        if len(maps.qkv_across):
            turn_map(maps.qkv[layer], maps.qkv_across[layer])
            turn_map(maps.out[layer], maps.out_across[layer])
            turn_map(maps.hidden[layer], maps.hidden_across[layer])
            turn_map(maps.back[layer], maps.back_across[layer])
    fold(theta, ends[6], ends[7], ends[4], ends[5], maps.head, maps.head_bias)
    inputs, width = maps.table.shape
    vectors = ends[2] >= 0
    for k in range(inputs):
        for i in range(width):
            maps.table[k, i] = theta[ends[1] + (i * inputs + k if vectors else k * width + i)]
    for step in range(maps.place.shape[0]):
        for i in range(width):
            number = fixed[step, i]
            if ends[0] >= 0:
                number += theta[ends[0] + step * width + i]
            if vectors:
                number += theta[ends[2] + i]
            if ends[3] >= 0:
                for f in range(3):
                    number += theta[ends[3] + 3 * i + f] * features[step, f]
            maps.place[step, i] = number


@entry(fastmath=FLAGS)
def decoder_halves(maps: Maps, halves: Bfloat16Maps) -> None:
    for layer in range(len(halves.qkv_forward)):
        paired(maps.qkv[layer], halves.qkv_forward[layer], halves.qkv_backward[layer])
        paired(maps.out[layer], halves.out_forward[layer], halves.out_backward[layer])
        if maps.hidden.shape[1]:
            paired(maps.hidden[layer], halves.hidden_forward[layer], halves.hidden_backward[layer])
            paired(maps.back[layer], halves.back_forward[layer], halves.back_backward[layer])


@entry(fastmath=FLAGS)
def decoder_gradient(theta: X1, blocks: I2, ends: I1, features: X2, sums: Maps, gradient: X1) -> None:
    for layer in range(blocks.shape[0]):
        b = blocks[layer]
        unfold(theta, b[2], b[3], b[0], b[1], sums.qkv[layer], sums.qkv_bias[layer], gradient)
        unfold(theta, b[4], b[5], -1, -1, sums.out[layer], sums.out_bias[layer], gradient)
        if sums.hidden.shape[1]:
            unfold(theta, b[8], b[9], b[6], b[7], sums.hidden[layer], sums.hidden_bias[layer], gradient)
            hidden, width = sums.back.shape[1:]
            transpose(hidden, width, sums.back[layer], 0, width, gradient, b[10], hidden)
            for i in range(width):
                gradient[b[11] + i] = sums.back_bias[layer, i]
    unfold(theta, ends[6], ends[7], ends[4], ends[5], sums.head, sums.head_bias, gradient)
    inputs, width = sums.table.shape
    vectors = ends[2] >= 0
    for k in range(inputs):
        for i in range(width):
            gradient[ends[1] + (i * inputs + k if vectors else k * width + i)] = sums.table[k, i]
    for i in range(width):
        total = sums.place[0, i]
        for step in range(1, sums.place.shape[0]):
            total += sums.place[step, i]
        if vectors:
            gradient[ends[2] + i] = total
        if ends[3] >= 0:
            for f in range(3):
                part = sums.place[0, i] * features[0, f]
                for step in range(1, sums.place.shape[0]):
                    part += sums.place[step, i] * features[step, f]
                gradient[ends[3] + 3 * i + f] = part
    if ends[0] >= 0:
        for step in range(ends[8]):
            for i in range(width):
                read_here = step < sums.place.shape[0]
                gradient[ends[0] + step * width + i] = sums.place[step, i] if read_here else 0
