"""Figures as data, which `hmmscope.lab.report` draws.

    series = Series(name="Transformer", x=(0, 1), y=(0.2, 0.5), low=(0.1, 0.4), high=(0.3, 0.6), role="model")
    panel = Lines(title="8 states", x_label="demonstrations", y_label="accuracy", series=(series,))
    Figure(name="accuracy", title="In context", caption="Bands are 95% intervals over 3 seeds.", panels=(panel,))

All numbers must be finite; only cells of a heat map may be None.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hmmscope.errors import InputError
from hmmscope.lab.evidence.effects import Effect
from hmmscope.schema import parse_spec, require, require_known, spec_to_data, unknown_name

Role = Literal["model", "optimum", "ceiling", "baseline", "control", "other", "unfinished"]
MOST_CHOICES = 5
ROLES: tuple[Role, ...] = ("model", "optimum", "ceiling", "baseline", "control", "other", "unfinished")


@dataclass(frozen=True, kw_only=True)
class Series:
    """A series of values, with intervals if known.

    The role sets the style: `model`; `optimum`; `ceiling` (a predictor with more information than the model);
    `baseline` (a simpler predictor); `control` (such as an untrained model); `unfinished` (an unconverged model).

    Args:
        name: name in the legend.
        x: positions on the x axis in `Lines`; empty in `Bars`.
        y: values.
        low, high: ends of the intervals, or None.
        role: role of the series, see above.

    Raises:
        InputError: unequal lengths, low > high, a non-finite number, or an unknown role.
    """

    name: str
    x: tuple[float, ...] = ()
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    role: Role = "other"

    def __post_init__(self) -> None:
        _check_values(self, self.name)

    @classmethod
    def of(cls, effects: Sequence[Effect], name: str, role: Role = "other", x: Sequence[float] = ()) -> "Series":
        """Return a series of effects with their intervals: a curve over `x`, or bars if `x` is empty."""
        ends = [
            (one.value if one.low is None else one.low, one.value if one.high is None else one.high) for one in effects
        ]
        known = any(one.low is not None for one in effects)
        low, high = zip(*ends, strict=True) if known else (None, None)
        return cls(name=name, role=role, x=tuple(x), y=tuple(one.value for one in effects), low=low, high=high)

    def choice(self, *values: str, name: str = "") -> "ExplorerCurve":
        """Return the series as an `ExplorerCurve` with a value for each setting of the `Explorer`."""
        return ExplorerCurve(values=values, x=self.x, y=self.y, low=self.low, high=self.high, role=self.role, name=name)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Base class of panels."""

    title: str


@dataclass(frozen=True, kw_only=True)
class Lines(Panel):
    """A panel with curves over a common x axis.

    Args:
        title: title above the panel, or empty.
        x_label, y_label: quantities on the axes, with their units.
        series: the curves, at least one.
        y_min, y_max: ends of the y axis; None for ends that fit the values.
        log_x, log_y: whether the x axis and the y axis are logarithmic.
    """

    x_label: str
    y_label: str
    series: tuple[Series, ...]
    y_min: float | None = None
    y_max: float | None = None
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        _check_series(self.series)
        for series in self.series:
            require(len(series.x) > 0, f"{series.name}: x", "must have at least one value", len(series.x))
        _check_axis(self)

    @property
    def num_hidden(self) -> int:
        return _num_hidden(self, self.series)

    @property
    def num_cut(self) -> int:
        return _num_cut(self, self.series)


@dataclass(frozen=True, kw_only=True)
class Bars(Panel):
    """A panel with groups of bars; series with the role optimum or ceiling are lines across groups.

    Args:
        y_label: quantity on the y axis, with its unit.
        categories: labels of the groups.
        series: at least one series, with a `y` for every category and empty `x`.
        title, y_min, y_max: see `Lines`.
    """

    y_label: str
    categories: tuple[str, ...]
    series: tuple[Series, ...]
    y_min: float | None = None
    y_max: float | None = None

    def __post_init__(self) -> None:
        _set(self, "categories", _labels(self.categories))
        _check_series(self.series)
        require(len(self.categories) > 0, "categories", "must have at least one", len(self.categories))
        for series in self.series:
            count = len(self.categories)
            require(len(series.y) == count, f"{series.name}: y", f"must have {count} values", len(series.y))
            require(not series.x, f"{series.name}: x", "must be empty in Bars", series.x)
        _check_range(self, "y_min", "y_max")


@dataclass(frozen=True, kw_only=True)
class Heatmap(Panel):
    """A panel with a matrix as colours; row 0 is on top.

    Args:
        title: see `Lines`.
        x_label, y_label: meanings of the columns and rows.
        z_label: meaning of the colours, with the unit.
        x, y: labels of the columns and rows.
        z: values z[row][column]; None for an empty cell.
        z_min, z_max: values of the first and last colour; None for the smallest and largest value.
    """

    x_label: str
    y_label: str
    z_label: str
    x: tuple[str, ...]
    y: tuple[str, ...]
    z: tuple[tuple[float | None, ...], ...]
    z_min: float | None = None
    z_max: float | None = None

    def __post_init__(self) -> None:
        _set(self, "x", _labels(self.x))
        _set(self, "y", _labels(self.y))
        _set(self, "z", tuple(_numbers(row, f"z[{i}]", missing=True) for i, row in enumerate(self.z)))
        require(len(self.x) > 0, "x", "must have at least one label", len(self.x))
        require(len(self.y) > 0, "y", "must have at least one label", len(self.y))
        require(len(self.z) == len(self.y), "z", f"must have {len(self.y)} rows", len(self.z))
        for i, row in enumerate(self.z):
            require(len(row) == len(self.x), f"z[{i}]", f"must have {len(self.x)} columns", len(row))
        _check_range(self, "z_min", "z_max")


@dataclass(frozen=True, kw_only=True)
class DenseScatter(Panel):
    """A panel with many coloured points in the unit square; a slider selects a set of points (frame).

    Args:
        title: see `Lines`.
        slider: label of the slider, such as "step".
        frames: names of the frames; the last frame is shown at first.
        places: positions of the points in each frame, from `scatter_data.pack_places`.
        colours: colours of the points, from `pack_colours`.
        corners: names at the corners of a triangle to draw; empty for none.
        outline: positions of the corners, packed like `places`.
    """

    slider: str
    frames: tuple[str, ...]
    places: tuple[str, ...]
    colours: str
    corners: tuple[str, ...] = ()
    outline: str = ""

    def __post_init__(self) -> None:
        _set(self, "frames", _labels(self.frames))
        _set(self, "places", tuple(self.places))
        require(len(self.frames) > 0, "frames", "must have at least one", len(self.frames))
        require(len(self.places) == len(self.frames), "places", f"must have {len(self.frames)} parts", len(self.places))
        for i, place in enumerate(self.places):
            same = len(place) == len(self.colours) > 0 and not len(place) % 4
            plain = _BASE64.fullmatch(place + self.colours + self.outline) is not None
            require(plain, "places, colours", "must be base64", place[:40])
            require(same, f"places[{i}]", f"must have {len(self.colours)} characters, 4 per point", len(place))
        require(len(self.corners) in (0, 3), "corners", "must be empty or have three names", self.corners)
        require(len(self.outline) == 4 * len(self.corners), "outline", "must have one point per corner", self.outline)


@dataclass(frozen=True, kw_only=True)
class ExplorerCurve:
    """A curve of an `Explorer`.

    Args:
        values: the value of each setting in `Explorer.choices` at which the curve appears; "" means every value.
        x: positions on the x axis.
        y: values.
        low, high: ends of the intervals, or None.
        role: role of the curve, see `Series`.
        name: name in the legend (default: the value of the setting `Explorer.overlay`; the role if that is "").
    """

    values: tuple[str, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    role: Role = "model"
    name: str = ""

    def __post_init__(self) -> None:
        _set(self, "values", _labels(self.values))
        _check_values(self, ", ".join(value for value in self.values if value) or self.role)
        require(len(self.x) > 0, f"{', '.join(self.values)}: x", "must have at least one value", len(self.x))


@dataclass(frozen=True, kw_only=True)
class Explorer(Panel):
    """A panel with curves, which the reader of a page selects by a value for each setting.

    Args:
        choices: names of one to five settings, such as ("task", "model").
        curves: at least one curve; no two with equal values, name and role.
        title, x_label, y_label, y_min, y_max, log_x, log_y: see `Lines`.
        overlay: the setting whose values are all shown at first (default: "model", else the last).
    """

    x_label: str
    y_label: str
    choices: tuple[str, ...]
    curves: tuple[ExplorerCurve, ...]
    y_min: float | None = None
    y_max: float | None = None
    log_x: bool = False
    log_y: bool = False
    overlay: str = ""

    def __post_init__(self) -> None:
        _set(self, "choices", tuple(self.choices))
        _set(self, "curves", tuple(self.curves))
        require(
            1 <= len(self.choices) <= MOST_CHOICES, "choices", f"must have 1 to {MOST_CHOICES} names", len(self.choices)
        )
        require(len(set(self.choices)) == len(self.choices), "choices", "must be distinct", self.choices)
        if not self.overlay:
            _set(self, "overlay", "model" if "model" in self.choices else self.choices[-1])
        require_known("overlay", self.overlay, self.choices)
        require(len(self.curves) > 0, "curves", "must have at least one", len(self.curves))
        for i, curve in enumerate(self.curves):
            count = len(self.choices)
            require(len(curve.values) == count, f"curves[{i}].values", f"must have {count} values", curve.values)
        for i, choice in enumerate(self.choices):
            require(
                any(curve.values[i] for curve in self.curves),
                f"curves: {choice}",
                "at least one curve must have a value for this choice",
                "none",
            )
        names = [(curve.values, curve.name, curve.role) for curve in self.curves]
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        require(twice is None, "curves", "two curves must not share values, name and role", twice)
        _check_axis(self)

    @property
    def num_hidden(self) -> int:
        """Number of points that a logarithmic axis cannot show."""
        return _num_hidden(self, self.curves)

    @property
    def num_cut(self) -> int:
        """Number of intervals that reach below a logarithmic y axis."""
        return _num_cut(self, self.curves)

    def options(self, choice: str) -> tuple[str, ...]:
        """Return the values of a setting in the curves, ascending if all are numbers."""
        index = self.choices.index(choice)
        found = tuple(dict.fromkeys(curve.values[index] for curve in self.curves if curve.values[index]))
        return tuple(sorted(found, key=float)) if all(map(_NUMBER.fullmatch, found)) else found

    def first(self, choice: str) -> str:
        index = self.choices.index(choice)
        return next(curve.values[index] for curve in self.curves if curve.values[index])


_KINDS = {"lines": Lines, "bars": Bars, "heatmap": Heatmap, "cloud": DenseScatter, "explorer": Explorer}
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/]+")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of one or several panels.

    Args:
        name: file name: letters, digits and ``. _ -``.
        title: title above the figure.
        caption: what the panels show, under which conditions, and how intervals were computed.
        panels: panels from left to right.
    """

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]

    def __post_init__(self) -> None:
        named = isinstance(self.name, str) and _NAME.fullmatch(self.name) is not None
        require(named, "name", "must be 1 to 100 letters, digits and '. _ -', and not start with '.' or '-'", self.name)
        require(len(self.panels) > 0, "panels", "must have at least one", len(self.panels))
        for i, panel in enumerate(self.panels):
            require(
                type(panel) in _KINDS.values(),
                f"panels[{i}]",
                "must be Lines, Bars, Heatmap, DenseScatter or Explorer",
                panel,
            )

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON; each panel also has the key "kind", such as "lines"."""
        kinds = {cls: kind for kind, cls in _KINDS.items()}
        panels = [{"kind": kinds[type(panel)], **spec_to_data(panel)} for panel in self.panels]
        return {**spec_to_data(self), "panels": panels}

    @classmethod
    def from_data(cls, data: Any, where: str = "figure") -> "Figure":
        """Read a figure from the data of `to_data`.

        Raises:
            InputError: an invalid key or value.
        """
        if not isinstance(data, Mapping) or not isinstance(data.get("panels"), list | tuple):
            raise InputError(f"{where}: must be a mapping with the key panels, which holds a list")
        panels = [_parse_panel(panel, f"{where}.panels[{i}]") for i, panel in enumerate(data["panels"])]
        figure: Figure = parse_spec(cls, {**data, "panels": panels}, where)
        return figure


def _parse_panel(data: Any, where: str) -> Panel:
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise unknown_name(f"{where}.kind", kind, _KINDS)
    panel: Panel = parse_spec(_KINDS[kind], {key: value for key, value in data.items() if key != "kind"}, where)
    return panel


def _set(record: Any, field: str, value: Any) -> None:
    object.__setattr__(record, field, value)


def _numbers(values: Iterable[Any], where: str, *, missing: bool = False) -> tuple[Any, ...]:
    numbers = []
    for i, value in enumerate(values):
        number = None if missing and value is None else float(value)
        require(number is None or math.isfinite(number), f"{where}[{i}]", "must be finite", number)
        numbers.append(number)
    return tuple(numbers)


def _labels(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(value if isinstance(value, str) else f"{value:g}" for value in values)


def _check_values(values: Any, name: str) -> None:
    require_known("role", values.role, ROLES)
    for field in ("x", "y", "low", "high"):
        if getattr(values, field) is not None:
            _set(values, field, _numbers(getattr(values, field), f"{name}: {field}"))
    count = len(values.y)
    require(
        (values.low is None) == (values.high is None), f"{name}: low", "must be given together with high", values.low
    )
    require(len(values.x) in (0, count), f"{name}: x", f"must have {count} values", len(values.x))
    if values.low is not None and values.high is not None:
        for field in ("low", "high"):
            length = len(getattr(values, field))
            require(length == count, f"{name}: {field}", f"must have {count} values", length)
        for i, (low, high) in enumerate(zip(values.low, values.high, strict=True)):
            require(low <= high, f"{name}: low[{i}]", f"must not be above high, {high!r}", low)


def _check_series(series: tuple[Series, ...]) -> None:
    require(len(series) > 0, "series", "must have at least one", len(series))
    names = [one.name for one in series]
    require(len(set(names)) == len(names), "series", "must have distinct names", names)


def _num_hidden(panel: Lines | Explorer, curves: Iterable[Series | ExplorerCurve]) -> int:
    points = [point for curve in curves for point in zip(curve.x, curve.y, strict=True)]
    return sum((panel.log_x and x <= 0) or (panel.log_y and y <= 0) for x, y in points)


def _num_cut(panel: Lines | Explorer, curves: Iterable[Series | ExplorerCurve]) -> int:
    return sum(low <= 0 for curve in curves for low in curve.low or ()) if panel.log_y else 0


def _check_range(panel: Any, low: str, high: str) -> None:
    least, most = getattr(panel, low), getattr(panel, high)
    require(least is None or most is None or least < most, low, f"must be below {high}, {most!r}", least)


def _check_axis(panel: Any) -> None:
    _check_range(panel, "y_min", "y_max")
    bound = panel.y_max if panel.y_min is None else panel.y_min
    require(not panel.log_y or bound is None or bound > 0, "y_min", "must be > 0 on a logarithmic axis", bound)
