"""Display of probability matrices: small matrices as numbers, large ones as pictures."""

import math
from collections.abc import Sequence
from html import escape

from hmmscope.axes import Float64, Tensor
from hmmscope.text import in_brief
from hmmscope.ties import steady

#: Largest matrix that is shown as numbers.
FEW_ROWS, FEW_COLUMNS = 10, 12
#: Largest pictures (rows, columns) on a terminal and on a page; larger matrices are max-pooled.
_TEXT, _PAGE = (40, 72), (96, 96)
#: Longest name, in characters.
_NAME = 14
#: Smallest probability of each shade.
_SHADES = ((0.6, "█"), (0.3, "▓"), (0.1, "▒"), (0.02, "░"))
LEGEND = ", ".join(f"{mark} from {least:g}" for least, mark in reversed(_SHADES))


def brief_names(names: Sequence[str] | None, count: int, kind: str) -> list[str]:
    shown = [f"{kind}{number}" for number in range(count)] if names is None else names
    return [in_brief(name, _NAME) for name in shown]


def probability_text(value: float) -> str:
    """Return a probability with three decimals, or up to six so that it does not look like 0 or 1."""
    value = steady(value)
    least = min(value, 1 - value)
    return f"{value:.{math.ceil(-math.log10(least) - 1e-9) if 5e-7 <= least < 5.001e-4 else 3}f}"


def as_text(title: str, rows: Sequence[str], columns: Sequence[str], law: Float64[Tensor, "row column"]) -> list[str]:
    if len(rows) <= FEW_ROWS and len(columns) <= FEW_COLUMNS:
        cells = [list(map(probability_text, row)) for row in law.tolist()]
        left = max(map(len, (title, *rows)))
        wide = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        table = [(title, columns), *zip(rows, cells, strict=True)]
        return [
            f"  {name:<{left}}  {'  '.join(f'{cell:>{size}}' for cell, size in zip(line, wide, strict=True))}".rstrip()
            for name, line in table
        ]
    small = _pooled(law, *_TEXT)
    marks = ["".join(next((mark for least, mark in _SHADES if value >= least), " ") for value in row) for row in small]
    names = rows if len(marks) == len(rows) else [""] * len(marks)
    left = max(map(len, names))
    said = [f"  {name:<{left}}  |{line}|" for name, line in zip(names, marks, strict=True)]
    return [f"  {title} ({len(rows)} × {len(columns)}; {LEGEND})", *said]


def as_html(title: str, rows: Sequence[str], columns: Sequence[str], law: Float64[Tensor, "row column"]) -> str:
    if len(rows) <= FEW_ROWS and len(columns) <= FEW_COLUMNS:
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        lines = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>{''.join(map(_cell, row))}</tr>"
            for name, row in zip(rows, law.tolist(), strict=True)
        )
        return f"<table><caption>{escape(title)}</caption><tr><th></th>{head}</tr>{lines}</table>"
    small = _pooled(law, *_PAGE)
    height, width = len(small), len(small[0])
    groups: dict[int, list[str]] = {}
    for y, row in enumerate(small):
        for x, value in enumerate(row):
            if value >= 0.005:
                groups.setdefault(max(1, round(8 * value**0.5)), []).append(f"M{x} {y}h1v1h-1z")
    drawn = "".join(f"<path fill-opacity='{shade / 8:g}' d='{''.join(d)}'/>" for shade, d in sorted(groups.items()))
    scale = max(2, min(8, 480 // width))
    return (
        f"<figure style='display:inline-block;margin:0.5em'><figcaption>{escape(title)} ({len(rows)} × {len(columns)})"
        f"</figcaption><svg role='img' aria-label='{escape(title)}' viewBox='0 0 {width} {height}' width='{scale * width}' "
        f"height='{scale * height}' fill='currentColor' shape-rendering='crispEdges'>"
        f"<rect width='{width}' height='{height}' fill-opacity='0.05'/>{drawn}</svg></figure>"
    )


def _cell(value: float) -> str:
    style = f"background:rgba(64,128,208,{0.6 * value:.2f})"
    return f"<td style='{style}'>{probability_text(value)}</td>"


def _pooled(probs: Float64[Tensor, "row column"], most_rows: int, most_columns: int) -> list[list[float]]:
    rows, columns = (-(-size // most) for size, most in zip(probs.shape, (most_rows, most_columns), strict=True))
    parts = [band.amax(0) for band in probs.split(rows)]
    return [[float(block.max()) for block in band.split(columns)] for band in parts]
