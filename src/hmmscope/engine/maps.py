"""Linear maps of a chunk's columns, and their gradients; `chunks` explains the memory layout."""

from hmmscope.engine.tiles import transpose
from hmmscope.kernels.compile_units import X1, X2, X3, compile_unit
from hmmscope.kernels.compiling import part
from hmmscope.kernels.products import LANES, SUMS, VECTORS, product, wide

#: Columns per tile.
STRIPE = VECTORS * LANES

#: Terms per block of a sum in `mapped_back`, so that its rows stay cached.
BLOCK = 128

#: Columns, and rows of a map, per block of a gradient sum, so that its operands stay cached.
COLUMNS, ROWS = 512, 192


@part()
def columns_of(panel, steps, samples, width):  # type: ignore[no-untyped-def]
    return min(width, steps * samples - panel * width)


@compile_unit()
def mapped(m: X2, bias: X1, x: X2, used: int, add: bool, y: X2) -> None:
    rows, cols = m.shape
    size = x.shape[1]
    product(rows, used, 1, cols, m, 0, cols, 1, 0, x, 0, size, 0, y, 0, size, add, bias, 0)


@compile_unit()
def turn_map(m: X2, across: X2) -> None:
    rows, cols = m.shape
    transpose(rows, cols, m, 0, cols, across, 0, rows)


@compile_unit()
def mapped_back(m: X2, dy: X2, used: int, add: bool, dx: X2, zeros: X1) -> None:
    rows, cols = m.shape
    size = dy.shape[1]
    for begin in range(0, rows, BLOCK):
        height, before = min(BLOCK, rows - begin), add or begin > 0
        product(
            cols, used, 1, height, m, begin * cols, 1, cols, 0, dy, begin * size, size, 0, dx, 0, size, before, zeros, 0
        )


@compile_unit(fastmath=SUMS)
def add_rows(x: X3, steps: int, samples: int, total: X1) -> None:
    wide()
    for panel in range(x.shape[0]):
        used = columns_of(panel, steps, samples, x.shape[2])
        for i in range(x.shape[1]):
            part = x.dtype.type(0)
            for j in range(used):
                part += x[panel, i, j]
            total[i] += part


@compile_unit()
def turned(x: X3, steps: int, samples: int, result: X2) -> None:
    panels, width, size = x.shape
    for panel in range(panels):
        used = columns_of(panel, steps, samples, size)
        for i in range(0, width, STRIPE):
            across = min(STRIPE, width - i)
            place = panels * size * i + panel * size * across
            transpose(across, used, x, (panel * width + i) * size, size, result, place, across)


@compile_unit()
def add_outer(dy: X3, x: X2, steps: int, samples: int, width: int, total: X2, zeros: X1) -> None:
    rows, size = dy.shape[1:]
    whole, group = (steps * samples) // size, max(1, COLUMNS // size)
    last, at = steps * samples - whole * size, rows * size
    for first in range(0, whole, group):
        count = min(group, whole - first)
        for row in range(0, rows, ROWS):
            height, a = min(ROWS, rows - row), first * at + row * size
            for i in range(0, width, STRIPE):
                across = min(STRIPE, width - i)
                panel, to = size * across, row * width + i
                b = len(dy) * size * i + first * panel
                product(
                    height, across, count, size, dy, a, size, 1, at, x, b, across, panel,
                    total, to, width, True, zeros, 0,
                )  # fmt: skip
    for i in range(0, width, STRIPE):
        across = min(STRIPE, width - i)
        a, b = whole * at, len(dy) * size * i + whole * size * across
        product(rows, across, min(last, 1), last, dy, a, size, 1, 0, x, b, across, 0, total, i, width, True, zeros, 0)
