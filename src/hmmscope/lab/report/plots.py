"""Drawing of figures for papers, talks and the web, with reproducible bytes."""

import io
import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from hmmscope.lab.evidence.figure import Bars, DenseScatter, Explorer, Figure, Heatmap, Lines, Panel
from hmmscope.lab.evidence.scatter_data import unpack_colours, unpack_places
from hmmscope.lab.report import latex, series_style
from hmmscope.lab.report.explorer import first_text, without_choices
from hmmscope.lab.report.formatting import shorten
from hmmscope.lab.report.series_style import Key, SeriesStyle
from hmmscope.lab.report.shared_axes import shared
from hmmscope.text import visible


@dataclass(frozen=True)
class Style:
    """Size, fonts and file types of a drawn figure.

    Attributes:
        column: Width in inches of a figure with one panel.
        page: Width in inches of a figure with several panels.
        size: Factor of the size of text (8 points at 1) and of the width of lines.
        height: Factor of the height of a panel (2.3 inches at 1).
        fonts: Font families in order of preference.
        mathematics: Font of exponents and formulas.
        endings: Endings of the files to write, such as "pdf".
    """

    column: float
    page: float
    size: float
    height: float
    fonts: tuple[str, ...]
    mathematics: str
    endings: tuple[str, ...]


_SANS = ("DejaVu Sans", "sans-serif")
STYLES = {
    "paper": Style(3.4, 7.0, 1.0, 1.0, ("STIXGeneral", "DejaVu Sans"), "stix", ("pdf", "png")),  # two columns, Times
    "talk": Style(6.4, 12.6, 1.8, 1.7, _SANS[:1], "dejavusans", ("pdf", "png")),  # half a slide of 13.3 inches, or all
    "web": Style(3.4, 7.0, 1.0, 1.0, _SANS, "dejavusans", ("svg", "png")),
    "latex": Style(3.4, 7.0, 1.0, 1.0, ("STIXGeneral", "DejaVu Sans"), "stix", ("pgf",)),  # letters of the document
}
_HANDLE, _GAP = 2.2, 1.4  # of the legend: length of a handle, and between columns, in units of the font size
_EM = 7.5 / 72
_MOST_POINTS, _MOST_CELLS = 1000, 4000  # drawn as strokes; more become an embedded picture
_MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle-up": "^",
    "triangle-down": "v",
    "diamond": "D",
    "x": "x",
    "ring": "o",
}
_SIZES = {
    "font.size": 8,
    "axes.titlesize": 8.5, "axes.linewidth": 0.6, "xtick.labelsize": 7.5, "ytick.labelsize": 7.5,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 2.5, "ytick.major.size": 2.5,
    "legend.fontsize": 7.5,
}  # fmt: skip
_STYLE = {
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": series_style.INK,
    "axes.labelcolor": series_style.INK,
    "axes.edgecolor": series_style.GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": series_style.GREY,
    "ytick.color": series_style.GREY,
    "xtick.labelcolor": series_style.INK,
    "ytick.labelcolor": series_style.INK,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "hmmscope",
    "lines.scale_dashes": False,
}


def draw(figure: Figure, style: str = "paper") -> Canvas:
    with _style(STYLES[style]):
        return _draw(figure, STYLES[style])


def figure_files(figure: Figure, mark: str | None = None, style: str = "paper") -> dict[str, bytes]:
    """Return the reproducible bytes of a figure's files by ending; `mark` is text for their metadata."""
    metadata = {
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None, "Keywords": mark},
        "svg": {"Date": None, "Creator": None, "Keywords": mark},
        "png": {"Software": None, "Comment": mark},
    }
    found = {}
    if _by_latex(STYLES[style]) and _has_picture(figure):
        return figure_files(figure, mark, "paper")
    if _by_latex(STYLES[style]):
        latex.require_latex()
    with _style(STYLES[style]):
        canvas = _draw(figure, STYLES[style])
        if not _by_latex(STYLES[style]):  # LaTeX measures text itself
            _lay_out(canvas)
        for ending in STYLES[style].endings:
            stream = io.BytesIO()
            about: dict[str, Any] = {"metadata": metadata[ending]} if ending in metadata else {}
            canvas.savefig(stream, format=ending, dpi=220, **about)
            found[ending] = stream.getvalue()
    return found


def _lay_out(canvas: Canvas) -> None:
    engine = canvas.get_layout_engine()
    assert engine is not None
    canvas.dpi = 72  # points, as letters are measured for PDF and SVG
    engine.execute(canvas)
    canvas.set_layout_engine(None)


@contextmanager
def _style(style: Style) -> Iterator[None]:
    sizes = {name: value * style.size for name, value in _SIZES.items()}
    fonts: dict[str, Any] = {"font.family": list(style.fonts), "mathtext.fontset": style.mathematics}
    fonts |= {"pgf.rcfonts": not _by_latex(style), "pgf.texsystem": latex.PROGRAM}
    with matplotlib.style.context(["default", _STYLE | sizes | fonts]):
        yield


def _by_latex(style: Style) -> bool:
    return "pgf" in style.endings


def _has_picture(figure: Figure) -> bool:
    clouds = (len(unpack_places(panel.places[-1])) for panel in figure.panels if isinstance(panel, DenseScatter))
    cells = (len(panel.z) * len(panel.x) for panel in figure.panels if isinstance(panel, Heatmap))
    return max(clouds, default=0) > _MOST_POINTS or max(cells, default=0) > _MOST_CELLS


def _sized(value: float) -> float:
    return value * matplotlib.rcParams["font.size"] / _SIZES["font.size"]


def _draw(chosen: Figure, style: Style) -> Canvas:
    figure = without_choices(chosen)
    columns = series_style.columns(figure)
    rows = math.ceil(len(figure.panels) / columns)
    found = series_style.styles(figure)
    width = style.column if columns == 1 else style.page
    names = [_wrapped(name, width) for _, name in found]
    legend_columns = _legend_columns(names, width)
    height = style.height * {1: 2.3, 2: 2.3, 3: 2.0, 4: 1.7, 5: 1.5}[columns]
    canvas = Canvas(
        figsize=(width, rows * height + _legend_height(names, legend_columns)),
        layout=ConstrainedLayoutEngine(w_pad=_sized(0.06), h_pad=_sized(0.04), wspace=0.04),
    )
    drawn = [canvas.add_subplot(rows, columns, number + 1) for number in range(len(figure.panels))]
    for axes, panel, given in zip(drawn, shared(figure.panels, columns), chosen.panels, strict=True):
        _draw_panel(axes, panel, found, width / columns)
        _draw_titles(axes, panel.title, given, width / columns)
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
            text.set_text(_plain(name))  # the constructor drops names that start with an underscore
    return canvas


def _draw_titles(axes: Axes, title: str, panel: Panel, width: float) -> None:
    text = _wrapped(first_text(panel), width) if isinstance(panel, Explorer) else ""
    if text:
        axes.annotate(
            _plain(text), (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", fontsize=_sized(7),
            color=series_style.GREY, va="bottom",
        )  # fmt: skip
    if title:
        said = _plain(_wrapped(title, width - _sized(0.12), _sized(_SIZES["axes.titlesize"]), "bold"))
        axes.set_title(said, pad=_sized(4 + 9 * (text.count("\n") + bool(text))))


def _draw_panel(axes: Axes, panel: Panel, found: Mapping[Key, SeriesStyle], width: float) -> None:
    if isinstance(panel, Lines):
        _draw_lines(axes, panel, found)
    elif isinstance(panel, Bars):
        _draw_bars(axes, panel, found, width)
    elif isinstance(panel, Heatmap):
        _draw_heatmap(axes, panel, width)
    elif isinstance(panel, DenseScatter):
        _draw_cloud(axes, panel)


def _draw_lines(axes: Axes, panel: Lines, found: Mapping[Key, SeriesStyle]) -> None:
    floor = series_style.log_floor(panel) if panel.log_y else -np.inf
    for series in panel.series:
        how = found[series_style.key(series)]
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
            markevery=max(1, len(x) // series_style.MOST_MARKERS),
            zorder=2 + how.level,
            clip_on=how.marker != "ring",
        )
    axes.set_xlabel(_plain(panel.x_label))
    axes.set_ylabel(_plain(panel.y_label))
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=series_style.RULE, linewidth=_sized(0.6))
    if panel.log_x:
        axes.set_xscale("log", nonpositive="mask")
    elif all(x.is_integer() for series in panel.series for x in series.x):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    if panel.log_y:
        axes.set_yscale("log", nonpositive="mask")
    ticks = series_style.log_ticks(x for series in panel.series for x in series.x) if panel.log_x else None
    if ticks:
        axes.set_xticks(ticks, [_short(tick, None) for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif not panel.log_x:
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
    axes.margins(x=0.02)
    axes.set_ylim(panel.y_min, panel.y_max)
    if panel.log_x and not ticks:
        _log_ticks(axes.xaxis)
    if panel.log_y:
        _log_ticks(axes.yaxis)


def _log_ticks(axis: Axis) -> None:
    low, high = axis.get_view_interval()
    if series_style.few_decades((low, high)):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high >= 5 * low else MaxNLocator(5))
        axis.set_major_formatter(FuncFormatter(_short))
    axis.set_minor_formatter(NullFormatter())


def _draw_bars(axes: Axes, panel: Bars, found: Mapping[Key, SeriesStyle], width: float) -> None:
    bars = [series for series in panel.series if series.role not in series_style.MARKS]
    positions = np.arange(len(panel.categories))
    for series in panel.series:
        how = found[series_style.key(series)]
        y = np.array(series.y)
        if series.role in series_style.MARKS:
            axes.hlines(
                y, positions - 0.42, positions + 0.42, colors=how.color, linewidth=_sized(how.width),
                linestyle=(0, tuple(map(_sized, how.dash))), zorder=5,
            )  # fmt: skip
            continue
        size = 0.76 / len(bars)
        x = positions + (bars.index(series) - (len(bars) - 1) / 2) * size
        axes.bar(x, y, size * 0.92, color=how.color, zorder=2)
        if series.low is not None and series.high is not None:
            error = np.maximum(0, [y - np.array(series.low), np.array(series.high) - y])
            thick, cap = _sized(0.8), _sized(1.5)
            axes.errorbar(x, y, error, fmt="none", ecolor=series_style.INK, elinewidth=thick, capsize=cap, zorder=4)
    axes.set_xlim(-0.5, len(positions) - 0.5)
    axes.set_ylabel(_plain(panel.y_label))
    axes.grid(axis="y", color=series_style.RULE, linewidth=_sized(0.6))
    axes.tick_params(axis="x", length=0)
    _x_labels(axes, panel.categories, list(range(len(positions))), width)
    axes.set_ylim(panel.y_min, panel.y_max)


def _draw_heatmap(axes: Axes, panel: Heatmap, width: float) -> None:
    name, low, high = series_style.color_range(panel)
    colors = matplotlib.colormaps[name].with_extremes(bad=series_style.MISSING)
    values = np.ma.masked_invalid([[np.nan if value is None else value for value in row] for row in panel.z])
    image = axes.pcolormesh(values, cmap=colors, vmin=low, vmax=high, rasterized=values.size > _MOST_CELLS)
    axes.set_facecolor(series_style.MISSING)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    rows = series_style.thinned(panel.y, 15)
    axes.set_yticks([row + 0.5 for row in rows], [_plain(one) for one in shorten([panel.y[row] for row in rows])])
    _x_labels(
        axes, panel.x, series_style.thinned(panel.x, 12 if width > 3 else series_style.MOST_LABELS[3]), width, shift=0.5
    )
    axes.set_xlabel(_plain(panel.x_label))
    axes.set_ylabel(_plain(panel.y_label))
    axes.spines[:].set_visible(False)
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.03, aspect=22)
    bar.outline.set_visible(False)
    assert bar.solids is not None
    bar.solids.set_rasterized(bool(matplotlib.rcParams["pgf.rcfonts"]))  # LaTeX takes no picture inside a drawing
    bar.ax.tick_params(length=0)
    bar.set_label(_plain(panel.z_label))


def _draw_cloud(axes: Axes, panel: DenseScatter) -> None:
    places, colours = unpack_places(panel.places[-1]), unpack_colours(panel.colours)
    size = _sized(min(3.0, max(0.35, 10 / len(places) ** 0.35))) ** 2
    axes.scatter(places[:, 0], places[:, 1], c=colours, s=size, linewidths=0, rasterized=len(places) > _MOST_POINTS)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_axis_off()
    if not panel.corners:
        return
    corners = unpack_places(panel.outline)
    axes.fill(*corners.T, fill=False, edgecolor=series_style.GREY, linewidth=_sized(0.6), zorder=0)
    for (x, y), name in zip(corners, panel.corners, strict=True):
        above = y > corners[:, 1].mean()
        axes.annotate(
            _plain(name), (x, y), (0, _sized(3 if above else -3)), textcoords="offset points", ha="center",
            va="bottom" if above else "top", fontsize=_sized(7.5), color=series_style.INK, annotation_clip=False,
        )  # fmt: skip


def _x_labels(axes: Axes, labels: tuple[str, ...], shown: list[int], width: float, shift: float = 0) -> None:
    short = shorten([labels[i] for i in shown])
    room = width - _sized(0.9)
    crowded = _sized(0.075) * sum(len(one) + 1 for one in short) > room
    upright = _sized(0.25) * len(short) > room  # slanted lines of text would lie on each other
    turned = {"rotation": 90 if upright else 35, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    turned |= {"va": "center"} if crowded and upright else {}
    axes.set_xticks([i + shift for i in shown], [_plain(one) for one in short], **turned)  # type: ignore[arg-type]


def _line(how: SeriesStyle) -> dict[str, Any]:
    return {
        "color": how.color,
        "linewidth": _sized(how.width),
        "linestyle": (0, tuple(map(_sized, how.dash))) if how.dash else "-" if how.width else "none",
        "markersize": _sized(6.4 if how.marker == "ring" else 3.2),
        "markeredgewidth": _sized(0.8) if how.marker in ("x", "cross", "ring") else 0,
        "markerfacecolor": "none" if how.marker == "ring" else how.color,
    }


def _handle(one: Key, how: SeriesStyle, bars: bool) -> Line2D | Patch:
    if bars and one[0] not in series_style.MARKS:
        return Patch(color=how.color)
    marker = _MARKERS.get(how.marker, "P") if how.marker else ""
    return Line2D([], [], **_line(how), marker=marker)


def _legend_columns(names: list[str], width: float) -> int:
    sizes = [(_HANDLE + 0.8 + _GAP) * _sized(_EM) + max(_inches(line) for line in name.split("\n")) for name in names]
    for columns in range(len(sizes), 1, -1):
        if sum(max(sizes[i] for i in column) for column in _filled(len(sizes), columns)) <= 0.98 * width:
            return columns
    return 1


def _legend_height(names: list[str], columns: int) -> float:
    lines = [name.count("\n") + 1 for name in names]
    return max((_sized(0.17) * sum(lines[i] for i in column) for column in _filled(len(names), columns)), default=0.0)


def _filled(count: int, columns: int) -> list[range]:
    rows, more = divmod(count, columns)
    starts = [i * rows + min(i, more) for i in range(columns + 1)]
    return [range(start, end) for start, end in itertools.pairwise(starts) if end > start]


def _wrapped(text: str, width: float, size: float | None = None, weight: str = "normal") -> str:
    room, lines = width - _sized(0.5), [""]
    for word in visible(text).split():
        for part in textwrap.wrap(word, max(1, int(room / _inches("n", size, weight)))):
            longer = f"{lines[-1]} {part}".strip()
            if not lines[-1] or _inches(longer, size, weight) <= room:
                lines[-1] = longer
            else:
                lines.append(part)
    return "\n".join(lines)


def _inches(text: str, size: float | None = None, weight: str = "normal") -> float:
    drawn = matplotlib.rcParams["legend.fontsize"] if size is None else size
    return _length(visible(text), tuple(matplotlib.rcParams["font.family"]), drawn, weight)


@lru_cache(maxsize=10_000)
def _length(text: str, families: tuple[str, ...], size: float, weight: str) -> float:
    properties = FontProperties(family=families, size=size, weight=weight)
    return float(text_to_path.get_text_width_height_descent(text, properties, ismath=False)[0]) / 72


def _short(value: float, _: object) -> str:
    for least, step, unit, letter in ((1_000_000, 10_000, 1_000_000, "M"), (10_000, 100, 1_000, "k")):
        if abs(value) >= least and (value / step).is_integer():
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def _plain(text: str) -> str:
    if not matplotlib.rcParams["pgf.rcfonts"]:
        return latex.as_latex(visible(text))
    return visible(text).replace("$", r"\$")
