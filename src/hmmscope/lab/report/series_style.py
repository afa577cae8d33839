"""Colour, line and marker of a series by its role, for Matplotlib and browsers.

Names that differ only in a number, such as "1 layer" and "2 layers", get colours from a sequential scale.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from hmmscope.lab.evidence.figure import ROLES, Bars, DenseScatter, ExplorerCurve, Figure, Heatmap, Lines, Role, Series

INK, GREY, RULE = "#1f2328", "#6b7280", "#e5e7eb"
MISSING = "#ece7df"
MARKS = ("optimum", "ceiling")  # roles that `Bars` draw as marks across their group

# Saturated for models (Okabe and Ito), muted for baselines; markers and dashes also distinguish them.
_MODEL = (
    "#0072b2", "#d55e00", "#009e73", "#b5539a", "#56b4e9", "#8a6d00",
    "#5b3fa0", "#c1272d", "#7a9a1d", "#00a0a8", "#e58bb5", "#5c4033",
)  # fmt: skip
_BASELINE = ("#b58a3c", "#6b9c8c", "#a9768f", "#7d8db5", "#8f8f55", "#b0836b")
_CONTROL = ("#8a919c", "#6f7783", "#5b636e")
_OTHER = ("#5b4b8a", "#b0566b", "#2f7d7d", "#a07020", "#4f6ea8", "#6b6b6b")
_MARKERS = ("square", "triangle-up", "diamond", "triangle-down", "x", "cross")
_MODEL_MARKERS = ("circle", "triangle-up", "square", "diamond", "triangle-down", "cross")
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (2, 2), (6, 2, 1, 2))
#: Markers as SVG paths around the middle of a box of 26 by 12.
MARKER_PATHS = {
    "circle": "M9.8 6a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z",
    "square": "M10 3h6v6h-6z",
    "triangle-up": "M13 2l3.8 6.6h-7.6z",
    "triangle-down": "M13 10l3.8-6.6h-7.6z",
    "diamond": "M13 2l4 4-4 4-4-4z",
    "x": "M10 4.4L11.4 3 13 4.6 14.6 3 16 4.4 14.4 6 16 7.6 14.6 9 13 7.4 11.4 9 10 7.6 11.6 6z",
    "cross": "M12 2h2v3h3v2h-3v3h-2V7H9V5h3z",
    "ring": "M7.4 6a5.6 5.6 0 1 0 11.2 0a5.6 5.6 0 1 0 -11.2 0zM8.6 6a4.4 4.4 0 1 1 8.8 0a4.4 4.4 0 1 1 -8.8 0z",
}
#: Colour scales for names that differ in a number, evenly spaced where the contrast to white is above 2.3.
_SCALES = (
    (
        "#440154",
        "#482071",
        "#443b84",
        "#39558c",
        "#2f6c8e",
        "#26828e",
        "#1f968b",
        "#25ab82",
        "#44bf70",
    ),  # viridis, from 0 to 0.7
    (
        "#fd8c3c",
        "#fc6c33",
        "#fc4d2a",
        "#ef3323",
        "#e2191c",
        "#cf0c21",
        "#bb0026",
        "#9d0026",
        "#800026",
    ),  # YlOrRd, from 0.5 to 1
    (
        "#cd8bc2",
        "#db6fb5",
        "#e24da1",
        "#e72989",
        "#d81b6a",
        "#c30e52",
        "#a20347",
        "#840034",
        "#67001f",
    ),  # PuRd, from 0.4 to 1
)
_CROWDED = 8  # number of series above which lines are thinner and bands of references lighter
#: Fewest decades of a logarithmic axis that has ticks only at powers of ten.
LEAST_DECADES = 2
#: Most markers along a curve.
MOST_MARKERS = 12
#: Most x labels of a heat map, by the number of panels in a row.
MOST_LABELS = {1: 16, 2: 10, 3: 6}
_ORDERED = 3  # minimum names for an ordered scale


@dataclass(frozen=True, kw_only=True)
class SeriesStyle:
    """Colour, line and marker of a series.

    Args:
        color: Colour as ``#rrggbb``.
        width: Line width in points; 0 for markers without a line.
        dash: Lengths of strokes and gaps in points; empty for a solid line.
        marker: A name in `MARKER_PATHS`, or empty for no marker.
        level: Drawing order; higher levels are drawn later.
        opacity: Opacity of the band between `low` and `high`, from 0 to 1.
    """

    color: str
    width: float
    dash: tuple[float, ...] = ()
    marker: str = ""
    level: int = 0
    opacity: float = 0.0


Key = tuple[Role, str]


def columns(figure: Figure) -> int:
    count = len(figure.panels)
    if all(isinstance(panel, DenseScatter) for panel in figure.panels):
        return count if count <= 5 else next((n for n in (5, 4, 3) if count % n == 0), 4)
    return {1: 1, 2: 2, 4: 2}.get(count, 3)


def key(series: Series) -> Key:
    return series.role, series.name


def styles(figure: Figure) -> dict[Key, SeriesStyle]:
    """Return the style of every series of `figure`, in legend order: by role, then by first occurrence."""
    panels = [panel for panel in figure.panels if isinstance(panel, Lines | Bars)]
    return styles_of(key(series) for panel in panels for series in panel.series)


def styles_of(keys: Iterable[Key]) -> dict[Key, SeriesStyle]:
    different = dict.fromkeys(keys)
    found: dict[Key, SeriesStyle] = {}
    for role in ROLES:
        names = [name for one, name in different if one == role]
        scale = _scale(names) if role in ("model", "other") else {}
        plain = iter(range(len(names)))
        for index, name in enumerate(names):
            if name in scale:
                found[role, name] = replace(_look(role, index), **scale[name])
            else:
                found[role, name] = _look(role, next(plain))
    if len(found) <= _CROWDED:
        return found
    return {
        (role, name): replace(how, width=0.75 * how.width, opacity=(1.0 if role == "model" else 0.5) * how.opacity)
        for (role, name), how in found.items()
    }


def _scale(names: list[str]) -> dict[str, dict[str, Any]]:
    families: dict[tuple[str, ...], list[tuple[float, str]]] = {}
    for name in names:
        parts = re.split(r"([0-9][0-9,]*(?:\.[0-9]+)?)", name)
        for i in range(1, len(parts), 2):
            rest = (*parts[:i], "", *parts[i + 1 :])
            family = tuple(re.sub(r"s\b", "", part) for part in rest)  # one layer, two layers
            families.setdefault(family, []).append((float(parts[i].replace(",", "")), name))
    found: dict[str, dict[str, Any]] = {}
    count = 0
    for members in sorted(families.values(), key=len, reverse=True):
        left = sorted(member for member in members if member[1] not in found)
        if len({number for number, _ in left}) < max(_ORDERED, len(left)) or count == len(_SCALES):
            continue
        for i, (_, member) in enumerate(left):
            found[member] = {"color": _between(_SCALES[count], i / (len(left) - 1)), "dash": _DASHES[count]}
        count += 1
    return found


def _look(role: str, index: int) -> SeriesStyle:
    def pick(options: tuple) -> Any:
        return options[index % len(options)]

    color = {"model": _MODEL, "baseline": _BASELINE, "control": _CONTROL, "other": _OTHER}.get(role)
    if color is None:  # optimum and ceiling: black as long as the dashes tell them apart; rings have no dashes
        color = ("#000000",) * 3 + ("#4b5563",) * 3 + ("#7a5230",) * 3
    marker = {"model": _MODEL_MARKERS, "baseline": _MARKERS, "unfinished": ("ring",)}.get(role, ("",))
    dash = {
        "model": ((),) * len(_MODEL) + ((5, 1.5),) * len(_MODEL),
        "optimum": ((4, 2), (4, 2, 1, 2), (8, 2)),
        "ceiling": ((1, 1.6), (1, 3), (1, 1, 1, 4)),
        "baseline": ((),) * len(_BASELINE) + ((4, 1.5),) * len(_BASELINE),
        "control": _DASHES,
        "other": _DASHES,
    }.get(role, ((),))
    width = {
        "model": 1.8,
        "optimum": 1.4,
        "ceiling": 1.0,
        "baseline": 1.1,
        "control": 1.1,
        "other": 2.2,
        "unfinished": 0.0,
    }.get(role, 1.2)
    level = {"control": 1, "other": 2, "baseline": 3, "ceiling": 4, "model": 5, "optimum": 6, "unfinished": 7}[role]
    return SeriesStyle(
        color=pick(color),
        width=width,
        dash=pick(dash),
        marker=pick(marker),
        level=level,
        opacity=0.18 if role == "model" else 0.08,
    )


def _between(colours: tuple[str, ...], share: float) -> str:
    place = share * (len(colours) - 1)
    before = min(int(place), len(colours) - 2)
    ends = [[int(one[i : i + 2], 16) for i in (1, 3, 5)] for one in colours[before : before + 2]]
    mixed = (round(a + (place - before) * (b - a)) for a, b in zip(*ends, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def color_range(panel: Heatmap) -> tuple[str, float, float]:
    """Return the colour map (a Matplotlib name) and the values of its two ends.

    Values of one sign range from white to blue; values of both signs from red, over white at zero, to blue.
    """
    values = [value for row in panel.z for value in row if value is not None] or [0.0]
    low = min(values) if panel.z_min is None else panel.z_min
    high = max(values) if panel.z_max is None else panel.z_max
    if low < 0 < high and min(-low, high) > 0.05 * max(-low, high):
        extent = max(-low, high)
        return "RdBu", -extent, extent
    return "Blues", low, high if high > low else low + 1


def log_floor(panel: Lines) -> float:
    """Return the lower end of bands that reach zero on a logarithmic axis: half the smallest positive value."""
    return log_floor_of(panel.series)


def log_floor_of(series: Iterable[Series | ExplorerCurve]) -> float:
    values = [value for one in series for value in (*one.y, *(one.low or ())) if value > 0]
    return 0.5 * min(values, default=1.0)


def log_ticks(positions: Iterable[float]) -> list[float] | None:
    """Return the positive values of x as ticks of a logarithmic axis if there are two to nine, else None."""
    values = sorted({x for x in positions if x > 0})
    return values if 2 <= len(values) <= 9 else None


def few_decades(values: Iterable[float]) -> bool:
    positive = [value for value in values if value > 0]
    return not positive or max(positive) < min(positive) * 10**LEAST_DECADES


def thinned(labels: tuple[str, ...], most: int) -> list[int]:
    return list(range(0, len(labels), -(-len(labels) // most)))
