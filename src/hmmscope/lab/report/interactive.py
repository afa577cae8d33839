"""Conversion of figures to plain data for ``chart.js``, which draws them as SVG in the browser."""

from typing import Any

from hmmscope.lab.evidence.figure import Bars, DenseScatter, Explorer, Figure, Heatmap, Lines, Panel
from hmmscope.lab.report import series_style
from hmmscope.lab.report.explorer import MOST_CURVES, MOST_REFERENCES, REFERENCES, views
from hmmscope.lab.report.formatting import shorten
from hmmscope.lab.report.series_style import Key, SeriesStyle
from hmmscope.lab.report.shared_axes import shared
from hmmscope.text import visible

_MOST_ROWS = 14  # maximum y labels of a heat map


def figure_data(figure: Figure) -> dict[str, Any]:
    found, columns = series_style.styles(figure), series_style.columns(figure)
    return {
        "name": figure.name,
        "columns": columns,
        "bars": not any(isinstance(panel, Lines) for panel in figure.panels),
        "looks": [style_data(*one) for one in found.items()],
        "panels": [panel_data(panel, list(found), columns) for panel in shared(figure.panels, columns)],
        "colours": _colours(figure),
    }


def _colours(figure: Figure) -> list[str]:
    found, before = [], ""
    for panel in figure.panels:
        own = panel.colours if isinstance(panel, DenseScatter) else before
        found.append("" if own == before else own)
        before = own
    return found


def style_data(key: Key, how: SeriesStyle) -> dict[str, Any]:
    role, name = key
    return {
        "name": visible(name),
        "role": role,
        "color": how.color,
        "width": 1.25 * how.width,
        "dash": [1.25 * length for length in how.dash],
        "path": series_style.MARKER_PATHS.get(how.marker, ""),
        "opacity": how.opacity,
        "level": how.level,
        "mark": role in series_style.MARKS,
    }


def panel_data(panel: Panel, order: list[Key], columns: int = 1) -> dict[str, Any]:
    if isinstance(panel, Explorer):
        return {"kind": "explorer", "title": visible(panel.title), **_axes(panel), **_explorer(panel)}
    if isinstance(panel, Lines | Bars):
        values = [
            {"look": order.index(series_style.key(one)), "x": one.x, "y": one.y, "low": one.low, "high": one.high}
            for one in panel.series
        ]
        kind = {"kind": "lines", **_axes(panel)} if isinstance(panel, Lines) else {"kind": "bars", **_bar_axes(panel)}
        return {**kind, "title": visible(panel.title), "series": values}
    if isinstance(panel, Heatmap):
        return {"kind": "heatmap", "title": visible(panel.title), **_heatmap(panel, columns)}
    assert isinstance(panel, DenseScatter)
    options = {"name": visible(panel.slider), "options": [visible(one) for one in panel.frames]}
    kept = {"places": panel.places, "outline": panel.outline, "corners": [visible(one) for one in panel.corners]}
    last = len(panel.frames) - 1
    return {"kind": "cloud", "title": visible(panel.title), "frame": last, "first": last, **options, **kept}


def _axes(panel: Lines | Explorer) -> dict[str, Any]:
    curves = panel.series if isinstance(panel, Lines) else panel.curves
    return {
        "x_label": visible(panel.x_label),
        "y_label": visible(panel.y_label),
        "log_x": panel.log_x,
        "log_y": panel.log_y,
        "y_min": panel.y_min,
        "y_max": panel.y_max,
        "floor": series_style.log_floor_of(curves) if panel.log_y else None,
        "ticks": series_style.log_ticks(x for curve in curves for x in curve.x) if panel.log_x else None,
        "whole": all(x.is_integer() for curve in curves for x in curve.x),
    }


def _bar_axes(panel: Bars) -> dict[str, Any]:
    names = [visible(one) for one in panel.categories]
    ends = {"y_min": panel.y_min, "y_max": panel.y_max}
    return {"y_label": visible(panel.y_label), "categories": names, "short": shorten(names), **ends}


def _heatmap(panel: Heatmap, columns: int) -> dict[str, Any]:
    name, low, high = series_style.color_range(panel)
    shown = {
        "x": series_style.thinned(panel.x, series_style.MOST_LABELS[columns]),
        "y": series_style.thinned(panel.y, _MOST_ROWS),
    }
    labels = {"x": [visible(one) for one in panel.x], "y": [visible(one) for one in panel.y]}
    return {
        **{f"{axis}_label": visible(getattr(panel, f"{axis}_label")) for axis in "xyz"},
        **labels,
        "shown": shown,
        "short": {axis: shorten([labels[axis][i] for i in shown[axis]]) for axis in "xy"},
        "z": panel.z,
        "low": low,
        "high": high,
        "signed": name == "RdBu",
    }


def _explorer(panel: Explorer) -> dict[str, Any]:
    numbers = [{value: i for i, value in enumerate(panel.options(choice))} for choice in panel.choices]
    shown = {}
    for view in views(panel):
        order = {one: i for i, one in enumerate(view.styles)}
        shown[str(sum(1 << i for i in view.open))] = {
            "looks": [style_data(*one) for one in view.styles.items()],
            "of": [order[one] for one in view.keys],
        }
    return {
        "choices": [_choice(panel, name) for name in panel.choices],
        "curves": [
            {
                "values": [found.get(value) for value, found in zip(curve.values, numbers, strict=True)],
                "reference": curve.role in REFERENCES,
                **{axis: [_digits(value) for value in getattr(curve, axis)] for axis in "xy"},
                **{
                    end: ends and [_digits(y) for y in ends]
                    for end in ("low", "high")
                    for ends in [getattr(curve, end)]
                },
            }
            for curve in panel.curves
        ],
        "views": shown,
        "overlay": panel.choices.index(panel.overlay),
        "most": [MOST_CURVES, MOST_REFERENCES],
    }


def _choice(panel: Explorer, name: str) -> dict[str, Any]:
    options = panel.options(name)
    overlaid = name == panel.overlay and len(options) > 1
    return {
        "name": visible(name),
        "options": [visible(one) for one in options],
        "first": None if overlaid else options.index(panel.first(name)),
        "slider": not overlaid and len(options) > 2 and all(_is_number(one) for one in options),
    }


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _digits(value: float) -> float:
    return float(f"{value:.6g}")
