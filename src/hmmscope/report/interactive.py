"""Panels as data for Plotly, which runs in the reader's browser; nothing of Plotly is needed here.

Positions are numbers with text as tick labels throughout, so that bars and cells lie as in `plots`. Plotly reads its
texts as a small dialect of HTML, hence `_text`.
"""

import base64
import html
from math import log10
from typing import Any

import matplotlib
from matplotlib.colors import to_hex, to_rgb

from hmmscope.evidence.figures import Bars, Explorer, Heatmap, Lines, Panel, Points
from hmmscope.report import look
from hmmscope.report.explorer import MOST_CURVES, MOST_REFERENCES, REFERENCES, still, views
from hmmscope.report.look import Key, Look
from hmmscope.report.plots import points_image
from hmmscope.report.text import shorten
from hmmscope.text import visible

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_PIXELS = 1.25  # a line of one point, as wide on the page as it seems in print
#: More points than this are one picture: the content policy forbids the shaders with which Plotly would draw them.
_MOST_POINTS = 3000
_ROOM = {1: 78, 2: 46, 3: 28}  # characters along x, by panels side by side
_MOST_ROWS = {1: 16, 2: 14, 3: 12}  # labels along y of a heat map
_VALUE, _INTERVAL = "%{y:.4~g}", "[%{customdata[0]:.4~g}, %{customdata[1]:.4~g}]"
#: More curves than this tell their values one at a time: all at once would cover the panel.
MOST_UNIFIED = 5


def panel_plot(panel: Panel, found: dict[Key, Look], columns: int = 1) -> dict[str, Any]:
    """Traces and layout of a panel, one of `columns` side by side. A trace's legendgroup numbers it within `found`."""
    more = {}
    if isinstance(panel, Lines):
        traces, axes = _lines(panel, found)
    elif isinstance(panel, Explorer):
        traces, axes = [], _line_axes(still(panel), [x for curve in panel.curves for x in curve.x])
        more = {"explorer": _explorer(panel)}
    elif isinstance(panel, Points):
        traces, axes = _points(panel)
    elif isinstance(panel, Bars):
        traces, axes = _bars(panel, found, _ROOM[columns])
    else:
        assert isinstance(panel, Heatmap)
        traces, axes = _heatmap(panel, columns)
    layout = {
        "font": {"family": _FONT, "size": 12, "color": look.INK},
        "margin": {"l": 56, "r": 12, "t": 10, "b": 46},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "hoverlabel": {
            "bgcolor": "#ffffff",
            "bordercolor": look.RULE,
            "font": {"size": 12, "color": look.INK},  # which is the border's colour otherwise
            "namelength": -1,
        },
        "dragmode": "zoom",
        **axes,
    }
    return {"data": traces, "layout": layout, **more}


def _lines(panel: Lines, found: dict[Key, Look]) -> tuple[list[dict], dict]:
    bands, curves = [], []
    order = list(found)
    floor = look.log_floor(panel) if panel.log_y else float("-inf")
    unified = len(panel.series) <= MOST_UNIFIED
    for series in sorted(panel.series, key=lambda series: found[look.key(series)].level):
        how, group = found[look.key(series)], str(order.index(look.key(series)))
        curve: dict[str, Any] = {
            "type": "scatter",
            "mode": "lines+markers" if how.marker or len(series.x) == 1 else "lines",
            "name": _text(series.name),
            "legendgroup": group,
            "x": series.x,
            "y": series.y,
            "line": _line(how),
            "marker": {
                "symbol": how.marker or "circle",
                "size": 6,
                "color": how.color,
                "maxdisplayed": look.MOST_MARKERS,
            },
            "hovertemplate": _hover(unified=unified, interval=series.low is not None),
        }
        if series.low is not None and series.high is not None:
            low, high = ([max(floor, value) for value in ends] for ends in (series.low, series.high))
            bands.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": _text(series.name),
                    "legendgroup": group,
                    "x": [*series.x, *reversed(series.x)],
                    "y": [*high, *reversed(low)],
                    "fill": "toself",
                    "fillcolor": _transparent(how),
                    "line": {"width": 0},
                    "hoverinfo": "skip",
                }
            )
            curve["customdata"] = list(zip(series.low, series.high, strict=True))
        curves.append(curve)
    positions = [x for series in panel.series for x in series.x]
    return [*bands, *curves], _line_axes(panel, positions)


def _hover(*, unified: bool, interval: bool) -> str:
    """What a curve says of a point; x stands above where all curves speak at once."""
    return ("" if unified else "%{x:,.6~r}: ") + _VALUE + (f"  {_INTERVAL}" if interval else "")


def _line_axes(panel: Lines, positions: list[float]) -> dict[str, Any]:
    x_axis: dict[str, Any] = {**_axis(panel.x_label), "showgrid": False, "hoverformat": ",.6~r"}
    if all(x.is_integer() for x in positions) and max(positions) - min(positions) <= 8 and not panel.log_x:
        x_axis["dtick"] = 1
    if panel.log_x:
        x_axis |= _log_axis(positions)
    if panel.log_x and (ticks := look.log_ticks(positions)):
        x_axis |= {"tickmode": "array", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
    y_axis = _value_axis(panel.y_label, panel.y_min, panel.y_max, log=panel.log_y)
    if panel.log_y:
        ends = [end for end in (panel.y_min, panel.y_max) if end is not None]
        values = [y for series in panel.series for y in (*series.y, *(series.low or ()), *(series.high or ()))]
        y_axis |= _log_axis([*values, *ends])
    unified = len(panel.series) <= MOST_UNIFIED
    return {"xaxis": x_axis, "yaxis": y_axis, "hovermode": "x unified" if unified else "closest"}


def _log_axis(values: list[float]) -> dict[str, Any]:
    """Ticks at powers of ten alone, unless there would be hardly one."""
    return {"type": "log"} | ({} if look.few_decades(values) else {"dtick": 1})


def _explorer(panel: Explorer) -> dict[str, Any]:
    """The curves, and for each set of choices at "all" the names of the curves with their looks; the script draws them."""
    numbers = [{value: i for i, value in enumerate(panel.options(choice))} for choice in panel.choices]
    styles: dict[Look, int] = {}
    shown = {}
    for view in views(panel):
        order = {one: i for i, one in enumerate(view.looks)}
        shown[str(sum(1 << i for i in view.open))] = {
            "names": [_text(name) for _, name in view.looks],
            "looks": [styles.setdefault(how, len(styles)) for how in view.looks.values()],
            "of": [order[one] for one in view.keys],
        }
    return {
        "curves": [
            {
                "values": [found.get(value) for value, found in zip(curve.values, numbers, strict=True)],
                "reference": curve.role in REFERENCES,
                "x": [_digits(x) for x in curve.x],
                "y": [_digits(y) for y in curve.y],
                "low": curve.low and [_digits(y) for y in curve.low],
                "high": curve.high and [_digits(y) for y in curve.high],
            }
            for curve in panel.curves
        ],
        "looks": [
            {
                "line": _line(how),
                "marker": how.marker,
                "path": look.MARKER_PATHS.get(how.marker, ""),
                "level": how.level,
                "band": _transparent(how),
            }
            for how in styles
        ],
        "views": shown,
        "floor": look.log_floor_of(panel.curves) if panel.log_y else None,
        "overlay": panel.choices.index(panel.overlay),
        "most": [MOST_CURVES, MOST_REFERENCES],
        "markers": look.MOST_MARKERS,
        "unified": MOST_UNIFIED,
        "hover": {
            f"{unified}{interval}": _hover(unified=bool(unified), interval=bool(interval))
            for unified in (0, 1)
            for interval in (0, 1)
        },
    }


def _points(panel: Points) -> tuple[list[dict], dict]:
    count = len(panel.x)
    ends = []
    for values in (panel.x, panel.y):
        room = 0.04 * (max(values) - min(values)) or 0.5
        ends.append((min(values) - room, max(values) + room))
    axes: dict[str, Any] = {"xaxis": _axis(panel.x_label), "yaxis": _axis(panel.y_label), "hovermode": "closest"}
    for axis, (low, high) in zip((axes["xaxis"], axes["yaxis"]), ends, strict=True):
        axis |= {"range": [low, high], "showgrid": False, "visible": panel.frame}
    axes["yaxis"] |= {"scaleanchor": "x", "scaleratio": 1}
    if count <= _MOST_POINTS:
        marker = {"color": panel.colours, "size": 3 if count > 500 else 5}
        hover = "%{x:.4~g}, %{y:.4~g}<extra></extra>"
        trace = {"type": "scatter", "mode": "markers", "x": panel.x, "y": panel.y, "marker": marker}
        return [trace | {"hovertemplate": hover}], axes
    (left, right), (bottom, top) = ends
    image = base64.b64encode(points_image(panel, (ends[0], ends[1]))).decode()
    axes["images"] = [
        {
            "source": f"data:image/png;base64,{image}", "xref": "x", "yref": "y", "x": left, "y": top,
            "sizex": right - left, "sizey": top - bottom, "sizing": "stretch", "layer": "above",
        }
    ]  # fmt: skip
    corners = {"x": [left, right], "y": [bottom, top], "opacity": 0, "hoverinfo": "skip"}
    return [{"type": "scatter", "mode": "markers", **corners}], axes


def _bars(panel: Bars, found: dict[Key, Look], room: int) -> tuple[list[dict], dict]:
    traces = []
    order = list(found)
    bars = [series for series in panel.series if series.role not in look.MARKS]
    positions = range(len(panel.categories))
    names = [_text(one) for one in panel.categories]
    for series in panel.series:
        how = found[look.key(series)]
        shared = {"name": _text(series.name), "legendgroup": str(order.index(look.key(series)))}
        intervals = series.low is not None and series.high is not None
        low, high = series.low or (None,) * len(names), series.high or (None,) * len(names)
        limits: list[Any] = list(zip(low, high, names, strict=True))
        hover = "%{customdata[2]}: " + _VALUE + (f"  {_INTERVAL}" if intervals else "")
        if series.role in look.MARKS:
            x = [end for i in positions for end in (i - 0.42, i + 0.42, None)]
            y = [end for value in series.y for end in (value, value, None)]
            traces.append({"type": "scatter", "mode": "lines", **shared, "x": x, "y": y, "line": _line(how)})
            traces[-1] |= {"customdata": [end for end in limits for _ in range(3)], "hovertemplate": hover}
            continue
        size = 0.76 / len(bars)
        shift = (bars.index(series) - (len(bars) - 1) / 2) * size
        bar: dict[str, Any] = {
            "type": "bar",
            **shared,
            "x": [i + shift for i in positions],
            "y": series.y,
            "width": size * 0.92,
            "marker": {"color": how.color},
            "customdata": limits,
            "hovertemplate": hover,
        }
        if series.low is not None and series.high is not None:
            bar["error_y"] = {
                "type": "data",
                "symmetric": False,
                "array": [max(0.0, high - value) for value, high in zip(series.y, series.high, strict=True)],
                "arrayminus": [max(0.0, value - low) for value, low in zip(series.y, series.low, strict=True)],
                "color": look.INK,
                "thickness": 1.2,
                "width": 2,
            }
        traces.append(bar)
    axes = {
        "barmode": "overlay",
        "hovermode": "closest",
        "xaxis": {
            **_axis(""),
            **_labels(panel.categories, list(positions)),
            **_angle(panel.categories, list(positions), room),
            "showgrid": False,
            "ticks": "",
            "range": [-0.5, len(positions) - 0.5],
        },
        "yaxis": _value_axis(panel.y_label, panel.y_min, panel.y_max, log=False),
    }
    return traces, axes


def _heatmap(panel: Heatmap, beside: int) -> tuple[list[dict], dict]:
    name, low, high = look.color_range(panel)
    colors = matplotlib.colormaps[name]
    trace = {
        "type": "heatmap",
        "z": panel.z,
        "zmin": low,
        "zmax": high,
        "colorscale": [[i / 10, to_hex(colors(i / 10))] for i in range(11)],
        "customdata": [[[_text(y), _text(x)] for x in panel.x] for y in panel.y],
        "hovertemplate": "%{customdata[0]}, %{customdata[1]}: %{z:.4~g}<extra></extra>",
        "hoverongaps": False,
        "colorbar": {
            "title": {"text": _text(panel.z_label), "side": "right"},
            "thickness": 10,
            "outlinewidth": 0,
            "ticks": "",
            "nticks": 6,
        },
    }
    rows, columns = look.thinned(panel.y, _MOST_ROWS[beside]), look.thinned(panel.x, look.MOST_LABELS[beside])
    axes = {
        "plot_bgcolor": look.MISSING,
        "hovermode": "closest",
        "xaxis": {
            **_axis(panel.x_label),
            **_labels(panel.x, columns),
            **_angle(panel.x, columns, _ROOM[beside]),
            "showgrid": False,
            "ticks": "",
        },
        "yaxis": {
            **_axis(panel.y_label),
            **_labels(panel.y, rows),
            "showgrid": False,
            "ticks": "",
            "range": [len(panel.y) - 0.5, -0.5],
        },
    }
    return [trace], axes


def _axis(title: str) -> dict[str, Any]:
    return {
        "title": {"text": _text(title), "standoff": 8},
        "automargin": True,
        "zeroline": False,
        "showline": True,
        "linecolor": look.GREY,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": look.GREY,
        "gridcolor": look.RULE,
        "exponentformat": "power",
        "fixedrange": False,
    }


def _value_axis(title: str, low: float | None, high: float | None, *, log: bool) -> dict[str, Any]:
    """An axis that ends at `low` and `high` where they are given, and otherwise beyond the values."""
    axis = {**_axis(title), "hoverformat": ".4~g"}
    if log:
        low, high = (None if end is None else log10(end) for end in (low, high))
    elif low == 0:
        axis["rangemode"] = "tozero"
    ends = {"minallowed": low, "maxallowed": high}
    axis["autorangeoptions"] = {end: value for end, value in ends.items() if value is not None}
    return axis


def _labels(labels: tuple[str, ...], shown: list[int]) -> dict[str, Any]:
    return {
        "tickmode": "array",
        "tickvals": shown,
        "ticktext": [_text(one) for one in shorten([labels[i] for i in shown])],
    }


def _angle(labels: tuple[str, ...], shown: list[int], room: int) -> dict[str, Any]:
    """Labels along x are turned where they would touch; Plotly's own choice fails in narrow panels."""
    return {"tickangle": -35 if sum(len(one) + 1 for one in shorten([labels[i] for i in shown])) > room else 0}


def _line(how: Look) -> dict[str, Any]:
    dash = ",".join(f"{length * _PIXELS:g}px" for length in how.dash) or "solid"
    return {"color": how.color, "width": how.width * _PIXELS, "dash": dash}


def _digits(value: float) -> float:
    """As many digits as a screen shows."""
    return float(f"{value:.6g}")


def _transparent(how: Look) -> str:
    red, green, blue = (round(255 * part) for part in to_rgb(how.color))
    return f"rgba({red},{green},{blue},{how.opacity})"


def _text(text: str) -> str:
    """Text that Plotly shows as it is: it decodes entities, after looking for tags and mathematics."""
    return html.escape(visible(text), quote=False).replace("$", "&#36;")
