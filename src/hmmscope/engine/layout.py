"""Work arrays of the compiled engine; their sizes are checked here because compiled loops do not check bounds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hmmscope.engine.bfloat16_maps import PAIRS, Bfloat16Maps, RNNBfloat16Maps
from hmmscope.engine.causal_attention import HeadBuffers
from hmmscope.engine.rnn import CellMaps, CellWork
from hmmscope.engine.sizes import Sizes
from hmmscope.engine.transformer import Maps, Work
from hmmscope.errors import InputError
from hmmscope.kernels.compile_units import load_late
from hmmscope.kernels.products import LANES

Array = NDArray[Any]
_Maps = TypeVar("_Maps", Maps, CellMaps)

#: Widest panel, most samples per chunk, and bytes of activations per chunk that fit the cache.
PANEL, MOST, CACHE = 64, 64, 2**20

_ALIGNED = 64  # bytes: a cache line


@dataclass(frozen=True)
class ChunkPlan:
    """A batch in `chunks` (first sample, number of samples), padded to `lanes` samples and `steps` positions."""

    steps: int
    lanes: int
    chunks: tuple[tuple[int, int], ...]


def plan(sizes: Sizes, steps: int, batch: int, threads: int, itemsize: int) -> ChunkPlan:
    if steps < 1 or batch < 1:
        raise InputError(f"batch: needs at least one sample and one position, got {batch} samples of {steps} positions")
    fits = CACHE // (steps * sizes.numbers_of_column * itemsize) if sizes.heads else MOST  # a recursion streams
    most = max(LANES, min(MOST, fits // LANES * LANES))
    count = max(-(-batch // most), min(threads, -(-batch // LANES)))
    each = -(-batch // count)
    chunks = tuple((first, min(each, batch - first)) for first in range(0, batch, each))
    lanes = _lanes(each, sizes.heads)
    together = max(1, LANES // lanes)
    return ChunkPlan(-(-steps // together) * together, lanes, chunks)


def pieces(sizes: Sizes, batch: int) -> list[slice]:
    rest = batch % LANES
    if batch < LANES or not rest or _lanes(rest, sizes.heads) == LANES:
        return [slice(0, batch)]
    return [slice(0, batch - rest), slice(batch - rest, batch)]


def _lanes(samples: int, heads: int) -> int:
    for lanes in (1, 2, 4, 8):
        if samples <= lanes < LANES and heads and heads % (LANES // lanes) == 0:
            return lanes
    return -(-samples // LANES) * LANES


def empty(shape: Sequence[int], dtype: np.dtype, poison: bool = False) -> Array:
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 3 * _ALIGNED, np.uint8)  # with padding, so that arrays never seem to overlap
    begin = -raw.ctypes.data % _ALIGNED
    array = raw[begin : begin + size].view(dtype).reshape(shape)
    if poison:
        array.fill(np.nan)
    return array


def decoder_shapes(sizes: Sizes, steps: int, *, across: bool) -> Maps:
    s = sizes
    layers, width, hidden = s.layers, s.width, s.hidden
    also = layers if across else 0
    return Maps(
        qkv=(layers, 3 * width, width),
        qkv_bias=(layers, 3 * width),
        out=(layers, width, width),
        out_bias=(layers, width),
        hidden=(layers, hidden, width),
        hidden_bias=(layers, hidden),
        back=(layers, width, hidden),
        back_bias=(layers, width),
        head=(s.outputs, width),
        head_bias=(s.outputs,),
        table=(s.inputs, width),
        place=(steps, width),
        qkv_across=(also, width, 3 * width),
        out_across=(also, width, width),
        hidden_across=(also, width, hidden),
        back_across=(also, hidden, width),
    )


def recurrent_shapes(sizes: Sizes, steps: int, *, across: bool) -> CellMaps:
    s = sizes
    also = s.layers if across else 0
    return CellMaps(
        recur=(s.layers, s.width, s.width),
        feed=(s.layers - 1, s.width, s.width),
        bias=(s.layers - 1, s.width),
        initial=(s.layers, s.width),
        table=(s.inputs, s.width),
        place=(steps, s.width),
        head=(s.outputs, s.width),
        head_bias=(s.outputs,),
        recur_across=(also, s.width, s.width),
        feed_across=(max(also - 1, 0), s.width, s.width),
    )


def carved(flat: Array, shapes: _Maps) -> _Maps:
    views, begin = [], 0
    for shape in shapes:
        size = math.prod(shape)
        views.append(flat[begin : begin + size].reshape(shape))
        begin += size
    assert begin == len(flat)
    return type(shapes)(*views)


def numbers_of(shapes: Maps | CellMaps) -> int:
    return sum(math.prod(shape) for shape in shapes)


def halves_of(sizes: Sizes, dtype: np.dtype, poison: bool = False, *, rounded: bool) -> Bfloat16Maps:
    layers, width, hidden = sizes.layers if rounded else 0, sizes.width, sizes.hidden
    maps = [(layers, *m) for m in ((3 * width, width), (width, width), (hidden, width), (width, hidden))]
    return Bfloat16Maps(*_pairs(maps, dtype, poison))


def decoder_work(
    sizes: Sizes,
    lanes: int,
    cos: Array,
    sin: Array,
    steps: int,
    halves: Bfloat16Maps,
    dtype: np.dtype,
    poison: bool = False,
) -> Work:
    columns, head = steps * lanes, sizes.width // sizes.heads
    panel, block = min(PANEL, columns), min(steps, 4 if steps < 32 else 8)
    panels, layers, width, hidden = -(-columns // panel), sizes.layers, sizes.width, sizes.hidden
    for rotation in (cos, sin):
        if rotation.shape not in ((0, head), (steps, head)) or rotation.dtype != dtype:
            raise InputError(
                f"rotation: must be ({steps}, {head}) of {dtype}, got {rotation.shape} of {rotation.dtype}"
            )

    def of(*shape: int) -> Array:
        return empty(shape, dtype, poison)

    def by_layer(features: int) -> Array:
        return of(layers, panels, features, panel)

    if len(halves.qkv_forward):
        rows, columns = max(3 * width, hidden), panels * panel
        halves = halves._replace(left=of(columns * rows // 2), right=of(max(columns * width, panel * rows) // 2))
    return Work(
        x=of(panels, width, panel),
        hat=by_layer(width),
        scale=of(layers, panels, panel),
        qkv=by_layer(3 * width),
        mixed=by_layer(width),
        hat2=by_layer(width),
        scale2=of(layers, panels, panel),
        slope=by_layer(hidden),
        active=by_layer(hidden),
        turn=of(panels * panel, width),
        rows=of(panel, width),
        panel=of(max(width, hidden), panel),
        lines=of(4, panel),
        z=of(sizes.outputs, panel),
        y=of(sizes.outputs, panel),
        head=HeadBuffers(*(of(steps, head, LANES) for _ in range(7)), *(of(block * steps * LANES) for _ in range(2))),
        cos=cos,
        sin=sin,
        none=np.empty((0, head), dtype),
        zeros=np.zeros(max(3 * width, hidden, sizes.outputs, LANES), dtype),
        halves=halves,
    )


def cell_halves_of(sizes: Sizes, dtype: np.dtype, poison: bool = False, *, rounded: bool) -> RNNBfloat16Maps:
    layers, width = sizes.layers if rounded else 0, sizes.width
    return RNNBfloat16Maps(*_pairs([(layers, width, width), (max(layers - 1, 0), width, width)], dtype, poison))


def _pairs(maps: list[tuple[int, int, int]], dtype: np.dtype, poison: bool) -> list[Array]:
    if maps[0][0]:
        load_late(dtype, *PAIRS)
    found = []
    for layers, rows, cols in maps:
        found += [empty(shape, dtype, poison) for shape in ((layers, rows, cols // 2), (layers, rows // 2, cols))]
    return [*found, np.empty(0, dtype), np.empty(0, dtype)]


def recurrent_work(
    sizes: Sizes, lanes: int, steps: int, halves: RNNBfloat16Maps, dtype: np.dtype, poison: bool = False
) -> CellWork:
    def of(*shape: int) -> Array:
        return empty(shape, dtype, poison)

    if len(halves.recur_forward):
        halves = halves._replace(**{side: of(steps * lanes * sizes.width // 2) for side in ("left", "right")})
    return CellWork(
        h=of(sizes.layers, steps + 1, sizes.width, lanes),
        dh=of(steps, sizes.width, lanes),
        turn=of(steps * lanes, sizes.width),
        rows=of(lanes, sizes.width),
        panel=of(sizes.width, lanes),
        lines=of(4, lanes),
        z=of(sizes.outputs, lanes),
        y=of(sizes.outputs, lanes),
        zeros=np.zeros(max(sizes.width, sizes.outputs), dtype),
        halves=halves,
    )
