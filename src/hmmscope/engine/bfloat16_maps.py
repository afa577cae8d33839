"""Linear maps in bfloat16: operands are rounded and packed into pairs; sums are float32.

If the packed maps are empty, the functions call `engine.maps`.
"""

from typing import NamedTuple

from hmmscope.engine.maps import BLOCK, STRIPE, add_outer, add_rows, mapped, turned
from hmmscope.kernels import pairs
from hmmscope.kernels.compile_units import X1, X2, X3, compile_unit, lazy_compile_unit

#: Compiled only for bfloat16 training.
PAIRS = pairs_in_rows, pairs_of_rows, product_of_pairs = (
    lazy_compile_unit(pairs.pairs_in_rows),
    lazy_compile_unit(pairs.pairs_of_rows),
    lazy_compile_unit(pairs.product_of_pairs),
)


class Bfloat16Maps(NamedTuple):
    """Packed maps by layer, and buffers for their operands; empty unless training uses bfloat16.

    For a map (out, in), fields ending in `forward` pack pairs of columns (out, in / 2); fields ending in `backward`
    pack pairs of rows (out / 2, in).
    """

    qkv_forward: X3
    qkv_backward: X3
    out_forward: X3
    out_backward: X3
    hidden_forward: X3
    hidden_backward: X3
    back_forward: X3
    back_backward: X3
    left: X1
    right: X1


class RNNBfloat16Maps(NamedTuple):
    recur_forward: X3
    recur_backward: X3
    feed_forward: X3
    feed_backward: X3
    left: X1
    right: X1


@compile_unit()
def paired(m: X2, ahead: X2, back: X2) -> None:
    rows, cols = m.shape
    pairs_in_rows(rows * cols // 2, m, 0, ahead, 0)
    pairs_of_rows(rows // 2, cols, m, 0, cols, back, 0, cols)


@compile_unit()
def map_forward(m: X2, ahead: X3, layer: int, bias: X1, x: X2, used: int, add: bool, y: X2, right: X1) -> None:
    if len(ahead) == 0:
        mapped(m, bias, x, used, add, y)
        return
    rows, size, half = m.shape[0], x.shape[1], m.shape[1] // 2
    pairs_of_rows(half, used, x, 0, size, right, 0, size)
    product_of_pairs(
        rows, used, 1, half, ahead, layer * rows * half, half, 1, 0, right, 0, size, 0, y, 0, size, add, bias, 0
    )


@compile_unit()
def map_backward(across: X3, back: X3, layer: int, dy: X2, used: int, add: bool, dx: X2, zeros: X1, right: X1) -> None:
    if len(back) == 0:
        mapped(across[layer], zeros, dy, used, add, dx)
        return
    half, cols, size = back.shape[1], back.shape[2], dy.shape[1]
    pairs_of_rows(half, used, dy, 0, size, right, 0, size)
    for begin in range(0, half, BLOCK):
        terms, a, before = min(BLOCK, half - begin), (layer * half + begin) * cols, add or begin > 0
        product_of_pairs(
            cols, used, 1, terms, back, a, 1, cols, 0, right, begin * size, size, 0, dx, 0, size, before, zeros, 0
        )


@compile_unit()
def add_map(
    back: X3, dy: X3, x: X3, steps: int, samples: int, turn: X2, total: X2, bias: X1, zeros: X1, left: X1, right: X1
) -> None:
    add_rows(dy, steps, samples, bias)
    add_products(back, dy, x, steps, samples, turn, total, zeros, left, right)


@compile_unit()
def add_products(
    back: X3, dy: X3, x: X3, steps: int, samples: int, turn: X2, total: X2, zeros: X1, left: X1, right: X1
) -> None:
    turned(x, steps, samples, turn)
    panels, width, size = x.shape
    if len(back) == 0:
        add_outer(dy, turn, steps, samples, width, total, zeros)
        return
    rows, half = dy.shape[1], size // 2
    whole = (steps * samples) // size
    last, at = (steps * samples - whole * size) // 2, rows * half
    pairs_in_rows(panels * at, dy, 0, left, 0)
    for i in range(0, width, STRIPE):
        across, b = min(STRIPE, width - i), panels * half * i
        panel = half * across
        pairs_of_rows(panels * half, across, turn, 2 * b, across, right, b, across)
        product_of_pairs(
            rows, across, whole, half, left, 0, half, 1, at, right, b, across, panel, total, i, width, True, zeros, 0
        )
        product_of_pairs(
            rows, across, min(last, 1), last, left, whole * at, half, 1, 0,
            right, b + whole * panel, across, 0, total, i, width, True, zeros, 0,
        )  # fmt: skip
