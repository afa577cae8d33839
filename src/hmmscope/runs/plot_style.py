"""Figures and colours of HMM plots."""

from typing import Any

from hmmscope.processes.process import Process
from hmmscope.reprs import needed

#: Colours of the first states, which colour-blind readers can tell apart (Okabe and Ito, 2008), and of secondary lines.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F")
MUTED = "0.65"


def state_colours(hmm: Process) -> list[Any]:
    count = hmm.num_states if hmm.visits is None else len(hmm.visits.names)
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    wheel = needed("matplotlib", "plot").colormaps["turbo"]
    return [wheel((state + 0.5) / count) for state in range(count)]


def new_figure(figsize: tuple[float, float]) -> Any:
    needed("matplotlib", "plot")
    return needed("matplotlib.pyplot", "plot").figure(figsize=figsize, layout="constrained")


def new_axes(ax: Any, figsize: tuple[float, float]) -> Any:
    axes = new_figure(figsize).subplots() if ax is None else ax
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes
