"""Panels as data for Plotly, which runs in the reader's browser; nothing of Plotly is needed here.

Positions are numbers with text as tick labels throughout, so that bars and cells lie as in `plots`. Plotly reads its
texts as a small dialect of HTML, hence `_text`.
"""

import html
from math import log10
from typing import Any

import matplotlib
from matplotlib.colors import to_hex, to_rgb

from hmmscope.figures import Bars, Heatmap, Lines, Panel
from hmmscope.report import look
from hmmscope.report.look import Key, Look
from hmmscope.report.text import shorten, visible

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_PIXELS = 1.25  # a line of one point, as wide on the page as it seems in print
_ROOM = {1: 78, 2: 46, 3: 28}  # characters along x, by panels side by side


def panel_plot(panel: Panel, found: dict[Key, Look], columns: int = 1) -> dict[str, Any]:
    """Traces and layout of a panel, one of `columns` side by side. A trace's legendgroup numbers it within `found`."""
    if isinstance(panel, Lines):
        traces, axes = _lines(panel, found)
    elif isinstance(panel, Bars):
        traces, axes = _bars(panel, found, _ROOM[columns])
    else:
        assert isinstance(panel, Heatmap)
        traces, axes = _heatmap(panel, _ROOM[columns])
    layout = {
        "font": {"family": _FONT, "size": 12, "color": look.INK},
        "margin": {"l": 56, "r": 12, "t": 10, "b": 46},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "hoverlabel": {"bgcolor": "#ffffff", "bordercolor": look.RULE, "font": {"size": 12}, "namelength": -1},
        "dragmode": "zoom",
        **axes,
    }
    return {"data": traces, "layout": layout}


def _lines(panel: Lines, found: dict[Key, Look]) -> tuple[list[dict], dict]:
    bands, curves = [], []
    order = list(found)
    floor = look.log_floor(panel) if panel.log_y else float("-inf")
    for series in sorted(panel.series, key=lambda series: found[look.key(series)].level):
        how, group = found[look.key(series)], str(order.index(look.key(series)))
        curve: dict[str, Any] = {
            "type": "scatter",
            "mode": "lines+markers" if (how.marker and len(series.x) <= 40) or len(series.x) == 1 else "lines",
            "name": _text(series.name),
            "legendgroup": group,
            "x": series.x,
            "y": series.y,
            "line": _line(how),
            "marker": {"symbol": how.marker or "circle", "size": 6, "color": how.color},
            "hovertemplate": "%{y:.4~g}",
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
            curve["hovertemplate"] = "%{y:.4~g}  [%{customdata[0]:.4~g}, %{customdata[1]:.4~g}]"
        curves.append(curve)
    x_axis: dict[str, Any] = {**_axis(panel.x_label), "showgrid": False, "hoverformat": ".6~g"}
    positions = [x for series in panel.series for x in series.x]
    if all(x.is_integer() for x in positions) and max(positions) - min(positions) <= 8 and not panel.log_x:
        x_axis["dtick"] = 1
    if panel.log_x:
        x_axis |= {"type": "log", "dtick": 1}
    if ticks := look.x_ticks(panel):
        x_axis |= {"tickmode": "array", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
    y_axis = _value_axis(panel.y_label, panel.y_min, panel.y_max, log=panel.log_y)
    return [*bands, *curves], {"xaxis": x_axis, "yaxis": y_axis, "hovermode": "x unified"}


def _bars(panel: Bars, found: dict[Key, Look], room: int) -> tuple[list[dict], dict]:
    traces = []
    order = list(found)
    bars = [series for series in panel.series if series.role not in look.MARKS]
    positions = range(len(panel.categories))
    for series in panel.series:
        how = found[look.key(series)]
        shared = {"name": _text(series.name), "legendgroup": str(order.index(look.key(series)))}
        intervals = series.low is not None and series.high is not None
        limits = list(zip(series.low, series.high, strict=True)) if series.low and series.high else None
        hover = "%{y:.4~g}" + ("  [%{customdata[0]:.4~g}, %{customdata[1]:.4~g}]" if intervals else "")
        if series.role in look.MARKS:
            x = [end for i in positions for end in (i - 0.42, i + 0.42, None)]
            y = [end for value in series.y for end in (value, value, None)]
            traces.append({"type": "scatter", "mode": "lines", **shared, "x": x, "y": y, "line": _line(how)})
            traces[-1] |= {"hovertemplate": "%{y:.4~g}"}
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


def _heatmap(panel: Heatmap, room: int) -> tuple[list[dict], dict]:
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
    rows, columns = look.thinned(panel.y, 16), look.thinned(panel.x, 16)
    axes = {
        "plot_bgcolor": look.MISSING,
        "hovermode": "closest",
        "xaxis": {
            **_axis(panel.x_label),
            **_labels(panel.x, columns),
            **_angle(panel.x, columns, room),
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
    axis = {**_axis(title), "hoverformat": ".4~g"}
    if log:
        low, high = (None if end is None else log10(end) for end in (low, high))
        axis |= {"type": "log", "dtick": 1}
    ends = {"minallowed": low, "maxallowed": high}
    axis["autorangeoptions"] = {end: value for end, value in ends.items() if value is not None}
    return axis


def _labels(labels: tuple[str, ...], shown: list[int]) -> dict[str, Any]:
    return {"tickmode": "array", "tickvals": shown, "ticktext": [_text(shorten(labels[i])) for i in shown]}


def _angle(labels: tuple[str, ...], shown: list[int], room: int) -> dict[str, Any]:
    """Labels along x are turned where they would touch; Plotly's own choice fails in narrow panels."""
    return {"tickangle": -35 if sum(len(shorten(labels[i])) + 1 for i in shown) > room else 0}


def _line(how: Look) -> dict[str, Any]:
    dash = ",".join(f"{length * _PIXELS:g}px" for length in how.dash) or "solid"
    return {"color": how.color, "width": how.width * _PIXELS, "dash": dash}


def _transparent(how: Look) -> str:
    red, green, blue = (round(255 * part) for part in to_rgb(how.color))
    return f"rgba({red},{green},{blue},{how.opacity})"


def _text(text: str) -> str:
    """Text that Plotly shows as it is: it decodes entities, after looking for tags and mathematics."""
    return html.escape(visible(text), quote=False).replace("$", "&#36;")
