"""Initial selection and views of an `Explorer` panel, for Matplotlib and browsers.

A choice is a setting, such as the number of layers. A view shows all values of some settings at once.
"""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations

from hmmscope.lab.evidence.figure import Explorer, ExplorerCurve, Figure, Lines, Series
from hmmscope.lab.report.series_style import Key, SeriesStyle, styles_of

#: Most curves that are shown at once: curves of models, and reference curves.
MOST_CURVES, MOST_REFERENCES = 16, 6
REFERENCES = ("optimum", "ceiling", "baseline", "control")


@dataclass(frozen=True)
class View:
    """Names and styles of the curves in a view.

    Attributes:
        open: Ascending indices of the settings of which the view shows all values.
        keys: Role and name of each curve of the panel.
        styles: Style of each role and name.
    """

    open: tuple[int, ...]
    keys: tuple[Key, ...]
    styles: dict[Key, SeriesStyle]


def view(panel: Explorer, open_choices: tuple[int, ...]) -> View:
    keys = tuple((curve.role, _name(panel, curve, open_choices)) for curve in panel.curves)
    return View(open_choices, keys, styles_of(keys))


def views(panel: Explorer) -> list[View]:
    indices = range(len(panel.choices))
    return [view(panel, some) for count in range(len(indices) + 1) for some in combinations(indices, count)]


def selected(panel: Explorer, chosen: tuple[str | None, ...]) -> list[int]:
    """Return indices of curves with the chosen value of each setting (None: any), up to the most per panel."""
    fits = [
        i
        for i, curve in enumerate(panel.curves)
        if all(value is None or own in ("", value) for own, value in zip(curve.values, chosen, strict=True))
    ]
    open_choices = tuple(i for i, value in enumerate(chosen) if value is None)
    references = [i for i in fits if panel.curves[i].role in REFERENCES]
    curves = [i for i in fits if panel.curves[i].role not in REFERENCES]
    some = [
        *_turns(panel, curves, open_choices)[:MOST_CURVES],
        *_turns(panel, references, open_choices)[:MOST_REFERENCES],
    ]
    return sorted(some)


def _turns(panel: Explorer, indices: list[int], open_choices: tuple[int, ...]) -> list[int]:
    overlay = panel.choices.index(panel.overlay)
    if not open_choices:
        return indices
    index = overlay if overlay in open_choices else open_choices[0]
    seen: Counter[str] = Counter()
    turns = {}
    for i in indices:
        value = panel.curves[i].values[index]
        turns[i] = seen[value]
        seen[value] += 1
    return sorted(indices, key=turns.__getitem__)


def first_chosen(panel: Explorer) -> tuple[str | None, ...]:
    """Return the initial value of each setting: its first value, but None (all values) for `panel.overlay`."""
    return tuple(None if choice == panel.overlay else panel.first(choice) for choice in panel.choices)


def still(panel: Explorer) -> Lines:
    chosen = first_chosen(panel)
    names = view(panel, tuple(i for i, value in enumerate(chosen) if value is None)).keys
    series: dict[Key, Series] = {}
    for i in selected(panel, chosen):
        curve = panel.curves[i]
        role, name = names[i]
        series.setdefault(names[i], Series(name=name, x=curve.x, y=curve.y, low=curve.low, high=curve.high, role=role))
    return Lines(
        title=panel.title, x_label=panel.x_label, y_label=panel.y_label, series=_named_apart(series),
        y_min=panel.y_min, y_max=panel.y_max, log_x=panel.log_x, log_y=panel.log_y,
    )  # fmt: skip


def without_choices(figure: Figure) -> Figure:
    panels = tuple(still(panel) if isinstance(panel, Explorer) else panel for panel in figure.panels)
    return replace(figure, panels=panels)


def first_text(panel: Explorer) -> str:
    chosen = first_values(panel)
    if all(len(panel.options(choice)) == 1 for choice in chosen):
        return ""
    return ", ".join(f"{choice} {value}" for choice, value in chosen.items()) + "; others on the page"


def first_values(panel: Explorer) -> dict[str, str]:
    return {choice: value for choice, value in zip(panel.choices, first_chosen(panel), strict=True) if value}


def _name(panel: Explorer, curve: ExplorerCurve, open_choices: tuple[int, ...]) -> str:
    overlay = panel.choices.index(panel.overlay)
    values = [curve.values[i] for i in open_choices if i != overlay and curve.values[i]]
    return ", ".join([*values, curve.name or curve.values[overlay] or curve.role])


def _named_apart(series: dict[Key, Series]) -> tuple[Series, ...]:
    names = [name for _, name in series]
    return tuple(
        replace(one, name=f"{one.name} ({one.role})") if names.count(one.name) > 1 else one for one in series.values()
    )
