"""Combination of figures with the same name from several experiments into one figure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hmmscope.lab.evidence.figure import (
    MOST_CHOICES,
    Bars,
    DenseScatter,
    Explorer,
    ExplorerCurve,
    Figure,
    Heatmap,
    Lines,
    Panel,
    Series,
)
from hmmscope.lab.report.formatting import shorten

_REFERENCES = ("optimum", "ceiling", "baseline")


def compare(figures: Mapping[str, list[Figure]]) -> list[Figure]:
    """Return a combined figure for each figure name that at least two experiments have.

    A combined figure shows models, labelled by experiment, and references (such as the optimum) equal in all.

    Args:
        figures: Figures of each experiment, by the experiment's name on the page.
    """
    names = dict.fromkeys(figure.name for group in figures.values() for figure in group)
    found = []
    for name in names:
        same = {label: figure for label, group in figures.items() for figure in group if figure.name == name}
        panels = _panels(same)
        if len(same) > 1 and panels:
            first = next(iter(same.values()))
            text = f"The panels show the models of {len(same)} runs."
            if any(isinstance(panel, Lines | Bars | Explorer) for panel in panels):
                text += " Reference curves are shown only if they are equal in all runs."
            if any(isinstance(panel, Heatmap) for panel in panels):
                text += " Adjacent heat maps share a colour scale; maps of differences have a separate scale."
            found.append(Figure(name=name, title=f"Compared: {first.title}", caption=text, panels=tuple(panels)))
    return found


def _panels(same: Mapping[str, Figure]) -> list[Panel]:
    titles = [[panel.title for panel in figure.panels] for figure in same.values()]
    panels: list[Panel] = []
    if all(len(set(group)) == len(group) for group in titles):
        shared = [title for title in titles[0] if all(title in group for group in titles)]
        for title in shared:
            panels += _merge({label: _titled(figure, title) for label, figure in same.items()})
    if not panels:
        for i in range(min(map(len, titles))):
            panels += _merge({label: figure.panels[i] for label, figure in same.items()})
    return panels


def _titled(figure: Figure, title: str) -> Panel:
    return next(panel for panel in figure.panels if panel.title == title)


def _merge(panels: Mapping[str, Panel]) -> Sequence[Panel]:
    first = next(iter(panels.values()))
    if any(_frame(panel) != _frame(first) for panel in panels.values()):
        return []
    if isinstance(first, Heatmap):
        return _heatmaps({label: panel for label, panel in panels.items() if isinstance(panel, Heatmap)})
    if isinstance(first, DenseScatter):
        return [replace(panel, title=_title(label, panel)) for label, panel in panels.items()]
    if isinstance(first, Explorer):
        if len(first.choices) == MOST_CHOICES:
            return []  # no space for the list of experiments
        return [_explorer({label: panel for label, panel in panels.items() if isinstance(panel, Explorer)})]
    if isinstance(first, Bars):
        bars = [panel for panel in panels.values() if isinstance(panel, Bars)]
        common = [one for one in first.categories if all(one in panel.categories for panel in bars)]
        if not common or any(len(set(panel.categories)) < len(panel.categories) for panel in bars):
            return []
        panels = {label: _restricted(panel, common) for label, panel in panels.items() if isinstance(panel, Bars)}
    return _series({label: panel for label, panel in panels.items() if isinstance(panel, Lines | Bars)})


def _series(panels: Mapping[str, Lines | Bars]) -> Sequence[Panel]:
    first = next(iter(panels.values()))
    roles = [{one.role for one in panel.series} for panel in panels.values()]
    wanted = "model" if any("model" in found for found in roles) else "other"
    series: list[Series] = []
    for label, panel in panels.items():
        models = [one for one in panel.series if one.role == wanted]
        series += [replace(one, name=label if len(models) == 1 else f"{label}: {one.name}") for one in models]
    if not series:
        return []
    taken = {one.name for one in series}
    for one in first.series:
        everywhere = all(one in panel.series for panel in panels.values())
        if one.role in _REFERENCES and everywhere and one.name not in taken:
            series.append(one)
    return [replace(first, series=tuple(series))]


def _restricted(panel: Bars, categories: list[str]) -> Bars:
    at = [panel.categories.index(one) for one in categories]

    def some(values: tuple[float, ...] | None) -> tuple[float, ...] | None:
        return None if values is None else tuple(values[i] for i in at)

    series = tuple(replace(one, y=some(one.y) or (), low=some(one.low), high=some(one.high)) for one in panel.series)
    return replace(panel, categories=tuple(categories), series=series)


def _heatmaps(panels: Mapping[str, Heatmap]) -> list[Panel]:
    values = [z for panel in panels.values() for row in panel.z for z in row if z is not None]
    values += [end for panel in panels.values() for end in (panel.z_min, panel.z_max) if end is not None]
    low, high = (min(values), max(values)) if values else (None, None)
    if low == high:
        low = high = None
    beside: list[Panel] = [
        replace(panel, title=_title(label, panel), z_min=low, z_max=high) for label, panel in panels.items()
    ]
    if len(panels) == 2:
        one, two = panels.values()
        first, second = shorten(list(panels))
        if (one.x, one.y) == (two.x, two.y):
            z = tuple(
                tuple(None if a is None or b is None else b - a for a, b in zip(*rows, strict=True))
                for rows in zip(one.z, two.z, strict=True)
            )
            title = _title(f"{second} minus {first}", one)
            beside.append(replace(one, title=title, z=z, z_min=None, z_max=None, z_label=f"change in {one.z_label}"))
    return beside


def _explorer(panels: Mapping[str, Explorer]) -> Explorer:
    first = next(iter(panels.values()))
    shared = [one for one in first.curves if one.role in _REFERENCES and all(one in p.curves for p in panels.values())]
    curves = [replace(one, values=("", *one.values), name=_own_name(first, one)) for one in shared]
    own = [
        replace(one, values=(label, *one.values), name=f"{one.name}, {label}" if one.name else "")
        for label, panel in panels.items()
        for one in panel.curves
        if one not in shared
    ]
    choices = (_fresh("run", first.choices), *first.choices)
    return replace(first, choices=choices, curves=(*own, *curves), overlay=choices[0])


def _own_name(panel: Explorer, curve: ExplorerCurve) -> str:
    return curve.name or curve.values[panel.choices.index(panel.overlay)]


def _fresh(name: str, taken: tuple[str, ...]) -> str:
    while name in taken:
        name = f"{name} "
    return name


def _title(label: str, panel: Panel) -> str:
    return f"{panel.title}: {label}" if panel.title else label


def _frame(panel: Panel) -> tuple[object, ...]:
    if isinstance(panel, Lines):
        return Lines, panel.x_label, panel.y_label, panel.log_x, panel.log_y
    if isinstance(panel, Bars):
        return Bars, panel.y_label
    if isinstance(panel, Explorer):
        return Explorer, panel.x_label, panel.y_label, panel.log_x, panel.log_y, panel.choices
    if isinstance(panel, Heatmap):
        return Heatmap, panel.x_label, panel.y_label, panel.z_label
    return (type(panel),)
