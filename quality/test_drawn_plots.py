"""Each plot draws what it drew when quality/drawn_plots.json was written; run this file as a script to write it again.

The file has the sums of all numbers, and a digest of all texts, of each kind of thing in each panel: positions, colours,
sizes, labels. Look at a changed plot before you write it again.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.runs.given_rows import GivenRows
from hmmscope.runs.state_plots import convergence, num_states, observations, probabilities
from kept_numbers import differing, digest

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

KEPT = Path(__file__).with_name("drawn_plots.json")
HALF, TURNS = [0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]]
CASINO = hs.load_process("dishonest-casino")
SENSORS = hs.GaussianHMM(HALF, TURNS, [[0.0, 1.0], [5.0, 9.0]], [[1.0, 1.0], [2.0, 1.0]], states=["low", "high"])
MIXTURES = hs.GaussianMixtureHMM(HALF, TURNS, [[0.25, 0.75], HALF], [[[1.0], [2]], [[5], [9]]], [[[1.0], [2]]] * 2)
COUNTS = hs.PoissonHMM(HALF, TURNS, [[2.0, 3.0], [9.0, 30.0]])
CHANNELS = hs.MultichannelHMM(HALF, TURNS, [[[0.8, 0.2], [0.1, 0.9]], [[0.5, 0.2, 0.3], [0.1, 0.8, 0.1]]])
DRIVEN = hs.InputOutputHMM(HALF, [np.eye(2), [HALF, HALF]], [[0.9, 0.1], [0.2, 0.8]], symbols=["h", "t"])
VISITS = hs.SemiMarkovHMM(HALF, [[0, 1], [1, 0]], [[0, 0.1, 0.1, 0.8], [0.9, 0.1, 0, 0]], [[0.9, 0.1], [0.1, 0.9]])
MANY = hs.HMM(np.ones(12) / 12, np.full((12, 12), 1 / 12), np.full((12, 30), 1 / 30), states=list("abcdefghijkl"))
THREE = hs.HMM([0.2, 0.3, 0.5], [[0.5, 0.3, 0.2], [0.004, 0.9, 0.096], [0, 0, 1]], np.full((3, 13), 1 / 13))
SYMBOLS = [0, 1, 5, 5, 5, 5, 2, 5, 5, 5, 0, 3]
ROWS = [[0.0, 1.0], [0.5, 1.5], [np.nan, np.nan], [5.0, 9.0], [6.0, 8.0], [5.5, np.nan], [0.1, 1.0], [0.3, 0.2]]
LONG = np.tile([[0.0, 1.0], [0.3, 1.2], [5.0, 9.0], [4.0, 8.5]], (400, 1))
DAYS = np.datetime64("2026-03-01") + np.arange(len(ROWS))
FOUND = SimpleNamespace(history=[[-9.0, -5.0, -4.0], [-8.0, -6.0], [-7.0, -4.5]], restarts_agree=False, restart_gap=0.5)
FIT = SimpleNamespace(
    fits={size: SimpleNamespace(bic=bic, **vars(FOUND)) for size, bic in ((1, 30.0), (2, 10.0), (3, 22.0))},
    num_states=2,
    support=SimpleNamespace(shares={1: 0.001, 2: 0.9, 3: 0.099}, why=""),
    interval=(2, 3),
)


DATED = GivenRows([torch.tensor(ROWS, dtype=torch.float64)], index=DAYS, columns=("one", "two"))


PLOTS: dict[str, Callable[[], Any]] = {
    "overview of symbols": lambda: CASINO.plot(x=SYMBOLS),
    "overview of a model": lambda: CASINO.plot(),
    "several sequences": lambda: CASINO.plot("observations", [SYMBOLS, SYMBOLS[::-1][:7]], sequence=1),
    "overview of numbers": lambda: SENSORS.plot(x=np.array(ROWS), sequence=0),
    "dates": lambda: observations(SENSORS, DATED),
    "many rows": lambda: SENSORS.plot("observations", LONG, coordinates=[1]),
    "probabilities": lambda: probabilities(SENSORS, DATED),
    "one coordinate": lambda: SENSORS.plot("emissions", LONG, coordinates=[1]),
    "mixtures": lambda: MIXTURES.plot("emissions"),
    "ellipses": lambda: SENSORS.plot("emissions", LONG),
    "counts": lambda: COUNTS.plot("emissions", [[1, 30], [2, 4], [9, 25], [8, 31]], coordinates=[1]),
    "few counts": lambda: COUNTS.plot("emissions", coordinates=[0]),
    "rates": lambda: COUNTS.plot("emissions", [[1, 30], [2, 4], [9, 25]]),
    "overview of channels": lambda: CHANNELS.plot(x=np.array([[0, 1], [1, 2], [0, 1], [1, 1]])),
    "inputs": lambda: DRIVEN.plot("observations", [0, 1, 1, 0, 1], inputs=[0, 1, 0, 1, 1]),
    "overview of inputs": lambda: DRIVEN.plot(),
    "transitions by input": lambda: DRIVEN.plot("transitions"),
    "durations": lambda: VISITS.plot("durations", [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]),
    "durations of a chain": lambda: CASINO.plot("durations"),
    "overview of visits": lambda: VISITS.plot(x=[0, 0, 0, 0, 1, 0, 0, 0, 1]),
    "many states": lambda: MANY.plot("transitions"),
    "many symbols": lambda: MANY.plot("emissions"),
    "three states": lambda: THREE.plot(),
    "convergence": lambda: convergence(FIT),
    "number of states": lambda: num_states(FIT),
}
#: What is read of each text, line, shape or panel, if it has it.
READ = (
    "xydata",
    "path",
    "offsets",
    "sizes",
    "array",
    "clim",
    "color",
    "facecolor",
    "edgecolor",
    "alpha",
    "zorder",
    "text",
)
READ += (
    "linewidth",
    "linestyle",
    "marker",
    "markersize",
    "fontsize",
    "rotation",
    "ha",
    "va",
    "visible",
    "mutation_scale",
)
READ += ("xlim", "ylim", "xscale", "yscale", "aspect", "xticks", "yticks", "size_inches", "frame_on", "width", "height")
READ += ("center", "angle", "extent", "segments")


def drawn(made: Any) -> dict[str, list[Any]]:
    """Return the count, two sums of all numbers, and a digest of all texts of each kind of thing in each panel."""
    figure = made if isinstance(made, Figure) else made.figure
    found = {"figure": _sums([figure])}
    for number, axes in enumerate(figure.axes):
        legends = [*filter(None, [axes.get_legend(), *(one for one in axes.artists)])]
        labels = [axis.label for axis in (axes.xaxis, axes.yaxis)]
        ticks = [*axes.get_xticklabels(), *axes.get_yticklabels()]
        parts = {"axes": [axes], "labels": [axes.title, *labels], "ticks": ticks, "spines": axes.spines.values()}
        parts |= {kind: getattr(axes, kind) for kind in ("lines", "patches", "collections", "images", "texts")}
        parts["legends"] = [text for legend in legends for text in legend.get_texts()]
        parts["keys"] = [key for legend in legends for key in legend.legend_handles]
        found |= {f"{number} {kind}": _sums(artists) for kind, artists in parts.items()}
        grid = axes.get_gridspec()
        ratios = [grid.get_width_ratios(), grid.get_height_ratios()] if grid else []
        placed = [[one._ncols, one._loc, one.borderaxespad, one.handlelength] for one in legends]
        found[f"{number} places"] = digest([ratios, placed, [one.get_position() for one in axes.texts]])
    plt.close(figure)
    return {name: own for name, own in found.items() if own[1]}


def _sums(artists: Iterable[Any]) -> list[Any]:
    return digest([getattr(artist, f"get_{name}", list)() for artist in artists for name in READ])


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_draws_what_it_drew(name: str) -> None:
    assert differing(drawn(PLOTS[name]()), json.loads(KEPT.read_text())[name]) == []


if __name__ == "__main__":
    KEPT.write_text(json.dumps({name: drawn(make()) for name, make in PLOTS.items()}, separators=(",", ":")) + "\n")
