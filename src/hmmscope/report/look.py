"""The look of a series, from its role alone: the one table that both renderers read."""

from dataclasses import dataclass
from typing import Any

from hmmscope.figures import ROLES, Bars, Figure, Heatmap, Lines, Role, Series

INK, GREY, RULE = "#1f2328", "#6b7280", "#e5e7eb"
MISSING = "#ece7df"
MARKS = ("optimum", "ceiling")  # roles that `Bars` draw as marks across their group

# Saturated for models (Okabe and Ito), muted for baselines; told apart without colour by markers and dashes.
_MODEL = ("#0072b2", "#d55e00", "#009e73", "#b5539a", "#56b4e9", "#8a6d00")
_BASELINE = ("#b58a3c", "#6b9c8c", "#a9768f", "#7d8db5", "#8f8f55", "#b0836b")
_CONTROL = ("#9ca3af", "#7c8490", "#b9bec6")
_OTHER = ("#5b4b8a", "#b0566b", "#2f7d7d", "#a07020", "#4f6ea8", "#6b6b6b")
_MARKERS = ("square", "triangle-up", "diamond", "triangle-down", "x", "cross")
_MODEL_MARKERS = ("circle", "triangle-up", "square", "diamond", "triangle-down", "cross")
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (2, 2), (6, 2, 1, 2))


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a series is drawn.

    Args:
        color: as ``#rrggbb``.
        width: of the line, in points.
        dash: lengths of stroke and gap in turn, in points; empty is a whole line.
        marker: a name of Plotly's, or empty.
        level: what is drawn over what.
        opacity: of the band; strongest for models, so that the bands of references do not bury them.
    """

    color: str
    width: float
    dash: tuple[float, ...] = ()
    marker: str = ""
    level: int = 0
    opacity: float = 0.0


Key = tuple[Role, str]


def key(series: Series) -> Key:
    """What a series is recognised by in all panels of a figure."""
    return series.role, series.name


def looks(figure: Figure) -> dict[Key, Look]:
    """The look of every series of `figure`, in the order of the legend: by role, then as they come."""
    panels = [panel for panel in figure.panels if isinstance(panel, Lines | Bars)]
    keys = dict.fromkeys(key(series) for panel in panels for series in panel.series)
    found: dict[Key, Look] = {}
    for role in ROLES:
        for index, one in enumerate(one for one in keys if one[0] == role):
            found[one] = _look(role, index)
    return found


def _look(role: str, index: int) -> Look:
    def pick(options: tuple) -> Any:
        return options[index % len(options)]

    color = {"model": _MODEL, "baseline": _BASELINE, "control": _CONTROL, "other": _OTHER}.get(role, ("#000000",))
    marker = {"model": _MODEL_MARKERS, "baseline": _MARKERS}.get(role, ("",))
    dash = {
        "model": ((),) * len(_MODEL) + ((5, 1.5),) * len(_MODEL),
        "optimum": ((4, 2), (4, 2, 1, 2), (8, 2)),
        "ceiling": ((1, 1.6), (1, 3), (1, 1, 1, 4)),
        "control": _DASHES,
        "other": _DASHES,
    }.get(role, ((),))
    width = {"model": 1.8, "optimum": 1.4, "ceiling": 1.0, "baseline": 1.1, "control": 1.1}.get(role, 1.2)
    level = {"control": 1, "other": 2, "baseline": 3, "ceiling": 4, "model": 5, "optimum": 6}[role]
    return Look(
        color=pick(color),
        width=width,
        dash=pick(dash),
        marker=pick(marker),
        level=level,
        opacity=0.18 if role == "model" else 0.08,
    )


def color_range(panel: Heatmap) -> tuple[str, float, float]:
    """The colour map (a name of Matplotlib's) and the values of its two ends.

    Values of one sign run from white to blue; values of both signs from red over white at zero to blue.
    """
    values = [value for row in panel.z for value in row if value is not None] or [0.0]
    low = min(values) if panel.z_min is None else panel.z_min
    high = max(values) if panel.z_max is None else panel.z_max
    if low < 0 < high and min(-low, high) > 0.05 * max(-low, high):
        extent = max(-low, high)
        return "RdBu", -extent, extent
    return "Blues", low, high if high > low else low + 1


def log_floor(panel: Lines) -> float:
    """Where bands that reach zero end on a logarithmic axis: half of the least value above zero."""
    values = [value for series in panel.series for value in (*series.y, *(series.low or ())) if value > 0]
    return 0.5 * min(values, default=1.0)


def x_ticks(panel: Lines) -> list[float] | None:
    """Ticks at the points themselves where a logarithmic axis has few of them; None leaves it to the renderer."""
    values = sorted({x for series in panel.series for x in series.x if x > 0})
    return values if panel.log_x and 2 <= len(values) <= 9 else None


def thinned(labels: tuple[str, ...], most: int) -> list[int]:
    """Indices of at most `most` labels, evenly spaced from the first."""
    return list(range(0, len(labels), -(-len(labels) // most)))
