"""Figures for papers: one column wide for one panel, a page wide for more; as PDF and PNG, byte for byte the same."""

import io
import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from hmmscope.evidence.clouds import unpack_colours, unpack_places
from hmmscope.evidence.figures import Bars, Cloud, Explorer, Figure, Heatmap, Lines, Panel, Points
from hmmscope.report import look
from hmmscope.report.explorer import first_text, without_choices
from hmmscope.report.look import Key, Look
from hmmscope.report.text import shorten
from hmmscope.text import visible

COLUMN, PAGE = 3.4, 7.0  # widths in inches, of most two-column papers
_HANDLE, _GAP = 2.2, 1.4  # of the legend: length of a handle, and between columns, in units of the font size
_EM = 7.5 / 72
_MARKERS = {"circle": "o", "square": "s", "triangle-up": "^", "triangle-down": "v", "diamond": "D", "x": "x"}
_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": look.INK,
    "axes.labelcolor": look.INK,
    "axes.edgecolor": look.GREY,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.color": look.GREY,
    "ytick.color": look.GREY,
    "xtick.labelcolor": look.INK,
    "ytick.labelcolor": look.INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": 7.5,
    "pdf.fonttype": 42,
    "lines.scale_dashes": False,
}


def draw(figure: Figure) -> Canvas:
    """`figure` as Matplotlib draws it, independent of the caller's settings; pyplot is not touched."""
    with _style():
        return _draw(figure)


def figure_files(figure: Figure, mark: str | None = None) -> dict[str, bytes]:
    """The bytes of ``NAME.pdf`` and ``NAME.png`` by suffix. Equal figures, marks and versions give equal bytes.

    Both have the layout of the PDF, which takes as long as the drawing and is computed once.

    Args:
        figure: to draw.
        mark: text without spaces that both keep among their metadata.
    """
    with _style():
        canvas = _draw(figure)
        pdf = _saved(canvas, "pdf", {"CreationDate": None, "Creator": None, "Producer": None, "Keywords": mark})
        canvas.set_layout_engine("none")
        return {"pdf": pdf, "png": _saved(canvas, "png", {"Software": None, "Comment": mark})}


def _saved(canvas: Canvas, suffix: str, metadata: dict[str, str | None]) -> bytes:
    stream = io.BytesIO()
    canvas.savefig(stream, format=suffix, dpi=220, metadata=metadata)
    return stream.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    with matplotlib.style.context(["default", _STYLE]):
        yield


def _draw(chosen: Figure) -> Canvas:
    figure = without_choices(chosen)
    count = len(figure.panels)
    columns = {1: 1, 2: 2, 4: 2}.get(count, 3)
    rows = math.ceil(count / columns)
    found = look.looks(figure)
    width = COLUMN if columns == 1 else PAGE
    names = [_wrapped(name, width) for _, name in found]
    legend_columns = _legend_columns(names, width)
    legend_height = _legend_height(names, legend_columns)
    canvas = Canvas(
        figsize=(width, rows * (2.3 if columns < 3 else 2.0) + legend_height),
        layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.04, wspace=0.04),
    )
    for number, panel in enumerate(figure.panels, 1):
        axes = canvas.add_subplot(rows, columns, number)
        _draw_panel(axes, panel, found, width / columns)
        _draw_titles(axes, panel.title, chosen.panels[number - 1], width / columns)
    if found:
        bars = all(not isinstance(panel, Lines) for panel in figure.panels)
        handles = [_handle(one, how, bars) for one, how in found.items()]
        legend = canvas.legend(
            handles,
            ["" for _ in handles],
            loc="outside lower center",
            ncols=legend_columns,
            frameon=False,
            handlelength=_HANDLE,
            columnspacing=_GAP,
            labelspacing=0.3,
        )
        for text, name in zip(legend.get_texts(), names, strict=True):
            text.set_text(_plain(name))  # set here: the constructor drops names that begin with an underscore
    return canvas


def _draw_titles(axes: Axes, title: str, panel: Panel, width: float) -> None:
    """The title and, of an explorer, what was chosen for the picture."""
    text = _wrapped(first_text(panel), width) if isinstance(panel, Explorer) else ""
    if text:
        axes.annotate(
            _plain(text), (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", fontsize=7,
            color=look.GREY, va="bottom",
        )  # fmt: skip
    if title:
        axes.set_title(_plain(title), pad=4 + 9 * (text.count("\n") + 1 if text else 0))


def _draw_panel(axes: Axes, panel: Panel, found: Mapping[Key, Look], width: float) -> None:
    if isinstance(panel, Lines):
        _draw_lines(axes, panel, found)
    elif isinstance(panel, Bars):
        _draw_bars(axes, panel, found, width)
    elif isinstance(panel, Heatmap):
        _draw_heatmap(axes, panel, width)
    elif isinstance(panel, Points):
        _draw_points(axes, panel)
    elif isinstance(panel, Cloud):
        places, colours = unpack_places(panel.places[-1]), unpack_colours(panel.colours)
        axes.scatter(*places.T, c=colours, s=max(0.15, 3000 / len(places)), linewidths=0, rasterized=True)
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.set_axis_off()


def _draw_lines(axes: Axes, panel: Lines, found: Mapping[Key, Look]) -> None:
    floor = look.log_floor(panel) if panel.log_y else -np.inf
    for series in panel.series:
        how = found[look.key(series)]
        x, y = np.array(series.x), np.array(series.y)
        if series.low is not None and series.high is not None:
            low, high = np.maximum(series.low, floor), np.maximum(series.high, floor)
            axes.fill_between(x, low, high, color=how.color, alpha=how.opacity, linewidth=0, zorder=how.level / 10)
        marks = _MARKERS.get(how.marker, "P") if how.marker else ("o" if len(x) == 1 else "")
        axes.plot(
            x,
            y,
            **_line(how),
            marker=marks,
            markevery=max(1, len(x) // look.MOST_MARKERS),
            markersize=3.2,
            zorder=2 + how.level,
        )
    axes.set_xlabel(_plain(panel.x_label))
    axes.set_ylabel(_plain(panel.y_label))
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=look.RULE, linewidth=0.6)
    if panel.log_x:
        axes.set_xscale("log", nonpositive="mask")
    elif all(x.is_integer() for series in panel.series for x in series.x):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    if panel.log_y:
        axes.set_yscale("log", nonpositive="mask")
    if panel.log_x and (ticks := look.log_ticks(x for series in panel.series for x in series.x)):
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif not panel.log_x:
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
    axes.margins(x=0.02)
    axes.set_ylim(panel.y_min, panel.y_max)


def _draw_bars(axes: Axes, panel: Bars, found: Mapping[Key, Look], width: float) -> None:
    bars = [series for series in panel.series if series.role not in look.MARKS]
    positions = np.arange(len(panel.categories))
    for series in panel.series:
        how = found[look.key(series)]
        y = np.array(series.y)
        if series.role in look.MARKS:
            axes.hlines(
                y, positions - 0.42, positions + 0.42, colors=how.color, linewidth=how.width,
                linestyle=(0, how.dash), zorder=5,
            )  # fmt: skip
            continue
        size = 0.76 / len(bars)
        x = positions + (bars.index(series) - (len(bars) - 1) / 2) * size
        axes.bar(x, y, size * 0.92, color=how.color, zorder=2)
        if series.low is not None and series.high is not None:
            error = np.maximum(0, [y - np.array(series.low), np.array(series.high) - y])
            axes.errorbar(x, y, error, fmt="none", ecolor=look.INK, elinewidth=0.8, capsize=1.5, zorder=4)
    axes.set_xlim(-0.5, len(positions) - 0.5)
    axes.set_ylabel(_plain(panel.y_label))
    axes.grid(axis="y", color=look.RULE, linewidth=0.6)
    axes.tick_params(axis="x", length=0)
    _x_labels(axes, panel.categories, list(range(len(positions))), width)
    axes.set_ylim(panel.y_min, panel.y_max)


def _draw_heatmap(axes: Axes, panel: Heatmap, width: float) -> None:
    name, low, high = look.color_range(panel)
    colors = matplotlib.colormaps[name].with_extremes(bad=look.MISSING)
    values = np.ma.masked_invalid([[np.nan if value is None else value for value in row] for row in panel.z])
    image = axes.pcolormesh(values, cmap=colors, vmin=low, vmax=high, rasterized=values.size > 4000)
    axes.set_facecolor(look.MISSING)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    rows = look.thinned(panel.y, 12)
    axes.set_yticks([row + 0.5 for row in rows], [_plain(one) for one in shorten([panel.y[row] for row in rows])])
    _x_labels(axes, panel.x, look.thinned(panel.x, 12 if width > 3 else look.MOST_LABELS[3]), width, shift=0.5)
    axes.set_xlabel(_plain(panel.x_label))
    axes.set_ylabel(_plain(panel.y_label))
    axes.spines[:].set_visible(False)
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.03, aspect=22)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0)
    bar.set_label(_plain(panel.z_label))


def _draw_points(axes: Axes, panel: Points) -> None:
    count = len(panel.x)
    size = min(12.0, max(0.6, 6000 / count))
    axes.scatter(panel.x, panel.y, c=panel.colours, s=size, linewidths=0, rasterized=count > 1000)
    axes.set_aspect("equal", adjustable="datalim" if panel.frame else "box")
    axes.set_xlabel(_plain(panel.x_label))
    axes.set_ylabel(_plain(panel.y_label))
    if not panel.frame:
        axes.set_axis_off()


def _x_labels(axes: Axes, labels: tuple[str, ...], shown: list[int], width: float, shift: float = 0) -> None:
    """Labels below the axis, turned if `width` inches do not hold them side by side."""
    short = shorten([labels[i] for i in shown])
    crowded = 0.075 * sum(len(one) + 1 for one in short) > width - 0.9
    upright = 0.25 * len(short) > width - 0.9  # slanted lines of text would lie on each other
    turned = {"rotation": 90 if upright else 35, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    turned |= {"va": "center"} if crowded and upright else {}
    axes.set_xticks([i + shift for i in shown], [_plain(one) for one in short], **turned)  # type: ignore[arg-type]


def _line(how: Look) -> dict[str, Any]:
    return {
        "color": how.color,
        "linewidth": how.width,
        "linestyle": (0, how.dash) if how.dash else "-",
        "markeredgewidth": 0.8 if how.marker in ("x", "cross") else 0,
    }


def _handle(one: Key, how: Look, bars: bool) -> Line2D | Patch:
    if bars and one[0] not in look.MARKS:
        return Patch(color=how.color)
    marker = _MARKERS.get(how.marker, "P") if how.marker else ""
    return Line2D([], [], **_line(how), marker=marker, markersize=3.2)


def _legend_columns(names: list[str], width: float) -> int:
    """As many columns as `width` inches hold; Matplotlib fills them from top to bottom, the first with one more."""
    sizes = [(_HANDLE + 0.8 + _GAP) * _EM + max(_inches(line) for line in name.split("\n")) for name in names]
    for columns in range(len(sizes), 1, -1):
        if sum(max(sizes[i] for i in column) for column in _filled(len(sizes), columns)) <= width:
            return columns
    return 1


def _legend_height(names: list[str], columns: int) -> float:
    """In inches, of the highest column."""
    lines = [name.count("\n") + 1 for name in names]
    return max((0.17 * sum(lines[i] for i in column) for column in _filled(len(names), columns)), default=0.0)


def _filled(count: int, columns: int) -> list[range]:
    """Which of `count` entries stand in each column."""
    rows, more = divmod(count, columns)
    starts = [i * rows + min(i, more) for i in range(columns + 1)]
    return [range(start, end) for start, end in itertools.pairwise(starts) if end > start]


def _wrapped(name: str, width: float) -> str:
    """A name in as many lines as `width` inches ask for."""
    room = int((width - 0.5) / _inches("n"))
    return "\n".join(textwrap.wrap(visible(name), room)) if _inches(name) > width - 0.5 else name


@lru_cache(maxsize=10_000)
def _inches(text: str) -> float:
    """How long a line of the legend is."""
    size, _, _ = text_to_path.get_text_width_height_descent(visible(text), FontProperties(size=7.5), ismath=False)
    return float(size) / 72


def _short(value: float, _: object) -> str:
    """A tick such as 20000 as 20k."""
    return f"{value / 1000:g}k" if abs(value) >= 10_000 and (value / 100).is_integer() else f"{value:g}"


def _plain(text: str) -> str:
    """Text that Matplotlib shows as it is: no mathematics between dollars, no control characters."""
    return visible(text).replace("$", r"\$")
