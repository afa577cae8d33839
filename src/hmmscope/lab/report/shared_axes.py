"""A common y axis for panels of the same quantity in a row."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from hmmscope.lab.evidence.figure import Bars, Lines, Panel


def share_axes(drawn: Sequence[Axes], panels: Sequence[Panel], columns: int) -> None:
    """Give panels of the same quantity in a row one y axis, if each panel's values fill half of that axis."""
    groups: dict[tuple[int, str, str], list[Axes]] = {}
    for number, (axes, panel) in enumerate(zip(drawn, panels, strict=True)):
        if isinstance(panel, Lines | Bars) and panel.y_label:
            groups.setdefault((number // columns, panel.y_label, axes.get_yscale()), []).append(axes)
    for (_, _, scale), same in groups.items():
        ends = np.array([axes.get_ylim() for axes in same])
        whole = np.array([ends[:, 0].min(), ends[:, 1].max()])
        sides, side = (np.ptp(np.log(x) if scale == "log" else x, axis=-1) for x in (ends, whole))
        if (sides >= side / 2).all():
            for axes in same:
                axes.set_ylim(*whole)
