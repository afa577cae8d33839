"""Figures of the same name from several experiments, drawn in one."""

from collections.abc import Mapping
from dataclasses import replace

from hmmscope.figures import Bars, Figure, Lines, Panel, Series

_REFERENCES = ("optimum", "ceiling", "baseline")


def compare(figures: Mapping[str, list[Figure]]) -> list[Figure]:
    """A figure "Compared: ..." for each name that two experiments or more have, in the order of the first.

    Its series are the models, named by their experiment, and each reference that is the same in all of them: where
    the optimum differs, the excess over it is what can be compared, and no line would say so.

    Args:
        figures: those of each experiment, by the name it goes by on the page.
    """
    names = dict.fromkeys(figure.name for group in figures.values() for figure in group)
    found = []
    for name in names:
        same = {label: figure for label, group in figures.items() for figure in group if figure.name == name}
        panels = [panel for panel in _panels(same) if panel is not None]
        if len(same) > 1 and panels:
            first = next(iter(same.values()))
            text = f"The models of {len(same)} experiments; references where they are the same in all of them."
            found.append(Figure(name=name, title=f"Compared: {first.title}", caption=text, panels=tuple(panels)))
    return found


def _panels(same: Mapping[str, Figure]) -> list[Panel | None]:
    counts = {len(figure.panels) for figure in same.values()}
    return [_merge({label: figure.panels[i] for label, figure in same.items()}) for i in range(min(counts))]


def _merge(panels: Mapping[str, Panel]) -> Panel | None:
    """One panel of the models of all; None if they are not of one kind, or have no common axis."""
    first = next(iter(panels.values()))
    if not isinstance(first, Lines | Bars) or any(_frame(panel) != _frame(first) for panel in panels.values()):
        return None
    series: list[Series] = []
    for label, panel in panels.items():
        assert isinstance(panel, Lines | Bars)
        models = [one for one in panel.series if one.role == "model"]
        series += [replace(one, name=label if len(models) == 1 else f"{label}: {one.name}") for one in models]
    if not series:
        return None
    taken = {one.name for one in series}
    for one in first.series:
        everywhere = all(isinstance(panel, Lines | Bars) and one in panel.series for panel in panels.values())
        if one.role in _REFERENCES and everywhere and one.name not in taken:
            series.append(one)
    return replace(first, series=tuple(series))


def _frame(panel: Panel) -> tuple[object, ...]:
    """What must agree for two panels to share their axes."""
    if isinstance(panel, Lines):
        return Lines, panel.x_label, panel.y_label, panel.log_x, panel.log_y
    if isinstance(panel, Bars):
        return Bars, panel.y_label, panel.categories
    return (type(panel),)
