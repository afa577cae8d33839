"""A common y axis for panels that show the same quantity."""

import math
from collections.abc import Sequence
from dataclasses import replace

from hmmscope.lab.evidence.figure import Bars, Lines, Panel
from hmmscope.lab.report.series_style import log_floor


def shared(panels: Sequence[Panel], columns: int) -> list[Panel]:
    """Give panels of one quantity the same y axis if the values of each panel fill at least half of it.

    Otherwise only panels in one row of the figure share an axis, under the same condition.
    """
    found = list(panels)
    groups: dict[tuple[type, str, bool], list[int]] = {}
    for number, panel in enumerate(panels):
        if isinstance(panel, Lines | Bars) and panel.y_label:
            groups.setdefault((type(panel), panel.y_label, getattr(panel, "log_y", False)), []).append(number)
    for (_, _, log), numbers in groups.items():
        rows = {
            number // columns: [one for one in numbers if one // columns == number // columns] for number in numbers
        }
        whole = [numbers] if _common(panels, numbers, log) else list(rows.values())
        for same in whole:
            if (ends := _common(panels, same, log)) is None:
                continue
            for number in same:
                found[number] = replace(panels[number], y_min=ends[0], y_max=ends[1])  # type: ignore[call-arg]
    return found


def _common(panels: Sequence[Panel], numbers: list[int], log: bool) -> tuple[float, float] | None:
    ends = [_ends(panels[number], log) for number in numbers]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    side = _side(low, high, log) / 2
    return (low, high) if len(ends) > 1 and all(_side(*one, log) >= side for one in ends) else None


def _side(low: float, high: float, log: bool) -> float:
    return math.log(high / low) if log else high - low


def _ends(panel: Panel, log: bool) -> tuple[float, float]:
    assert isinstance(panel, Lines | Bars)
    values = [value for one in panel.series for value in (*one.y, *(one.low or ()), *(one.high or ()))]
    if isinstance(panel, Lines) and log:
        values = [max(value, log_floor(panel)) for value in values]
        low, high = min(values) / 1.15, max(values) * 1.15
    else:
        values += [0.0] if isinstance(panel, Bars) else []
        room = 0.05 * (max(values) - min(values) or abs(max(values)) or 1.0)
        low, high = min(values) - room, max(values) + room
        low = 0.0 if isinstance(panel, Bars) and min(values) == 0 else low
    return low if panel.y_min is None else panel.y_min, high if panel.y_max is None else panel.y_max
