"""Draw the pictures of docs/processes.md: a transition diagram, and beliefs in the simplex.

Run from the root of the repository:

    OMP_NUM_THREADS=1 python scripts/draw_processes.py --out docs/img

The first is [Limits] Fig. 1 for an instance of Cyclic-DET with four states and two actions. The second shows exact
beliefs of a random HMM with three states, one point per observation.
"""

import argparse
import math
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch

import hmmscope as hs
from hmmscope.lab.report.series_style import GREY, INK, RULE
from hmmscope.processes.cycles import transition_edges

COLORS = ("#0072b2", "#d55e00", "#009e73")
DIAGRAM_SEED, SIMPLEX_SEED = 0, 4
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]])


def draw_cyclic_det(path: Path) -> None:
    """Draw states on a circle, with a colour and line style for each action."""
    process = hs.make_process("cyclic-det", num_states=4, num_symbols=2, distinct=True, seed=DIAGRAM_SEED)
    assert isinstance(process, hs.LabelledHMM)
    assert process.states is not None
    assert process.symbols is not None
    figure, axes = plt.subplots(figsize=(4.2, 4.2))
    angles = math.pi / 2 - 2 * math.pi * np.arange(process.num_states) / process.num_states
    places = np.stack([np.cos(angles), np.sin(angles)], 1)
    for edge in transition_edges(process):
        arrow = FancyArrowPatch(
            places[edge.state],
            places[edge.next_state],
            arrowstyle="-|>",
            mutation_scale=15,
            shrinkA=19,
            shrinkB=19,
            connectionstyle=f"arc3,rad={0.14 + 0.16 * edge.symbol}",
            color=COLORS[edge.symbol],
            linewidth=1.6,
            linestyle=("-", (0, (4, 2)))[edge.symbol],
        )
        axes.add_patch(arrow)
    for state, place in enumerate(places):
        axes.add_patch(Circle(place, 0.16, facecolor="white", edgecolor=INK, linewidth=1.3, zorder=3))
        axes.text(*place, process.states[state], ha="center", va="center", fontsize=12, color=INK, zorder=4)
    axes.annotate(
        "start",
        places[0] + [0, 0.17],
        places[0] + [0, 0.42],
        ha="center",
        color=GREY,
        fontsize=10,
        arrowprops={"arrowstyle": "-|>", "color": GREY},
    )
    for action, name in enumerate(process.symbols):
        axes.plot([], [], color=COLORS[action], linestyle=("-", (0, (4, 2)))[action], linewidth=1.6, label=name)
    axes.legend(frameon=False, loc="lower center", ncols=2, bbox_to_anchor=(0.5, -0.06), fontsize=11)
    _finish(figure, axes, path, (-1.45, 1.45), (-1.45, 1.5))


def draw_simplex(path: Path) -> None:
    """Draw beliefs about three states in a triangle, coloured by the last symbol."""
    hmm = hs.make_process("ran-hmm", num_states=3, num_symbols=3, seed=SIMPLEX_SEED)
    assert isinstance(hmm, hs.HMM)
    observations = hs.ProcessDataset(hmm, length=40, seed=0)[0:400].observations
    points = hs.filter_beliefs(hmm, observations).beliefs.numpy() @ CORNERS
    figure, axes = plt.subplots(figsize=(4.6, 4.2))
    axes.plot(*CORNERS[[0, 1, 2, 0]].T, color=GREY, linewidth=1)
    for share in (0.25, 0.5, 0.75):
        for a, b, c in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
            ends = [share * CORNERS[a] + (1 - share) * CORNERS[other] for other in (b, c)]
            axes.plot(*np.array(ends).T, color=RULE, linewidth=0.7, zorder=0)
    for symbol, marker in enumerate("osD"):
        chosen = points[(observations == symbol).numpy()]
        axes.scatter(
            *chosen.T,
            s=5,
            color=COLORS[symbol],
            alpha=0.35,
            linewidths=0,
            marker=marker,
            label=f"after symbol {symbol}",
        )
    for state, (corner, (dx, dy)) in enumerate(zip(CORNERS, ((-0.04, -0.05), (0.04, -0.05), (0, 0.04)), strict=True)):
        axes.text(corner[0] + dx, corner[1] + dy, f"state {state}", ha="center", va="center", fontsize=10, color=INK)
    legend = axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(-0.06, 1.02), fontsize=9, markerscale=2.5)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)
    _finish(figure, axes, path, (-0.15, 1.15), (-0.1, 0.95))


def _finish(figure: plt.Figure, axes: Axes, path: Path, x: tuple[float, float], y: tuple[float, float]) -> None:
    axes.set(xlim=x, ylim=y, aspect="equal")
    axes.axis("off")
    figure.savefig(
        path,
        dpi=130,
        bbox_inches="tight",
        facecolor="white",
        metadata={"Date": None} if path.suffix == ".svg" else None,
    )
    plt.close(figure)
    print(f"{path}: {path.stat().st_size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    matplotlib.rcParams["svg.hashsalt"] = "hmmscope"
    draw_cyclic_det(out / "cyclic-det.svg")
    draw_simplex(out / "ran-hmm-beliefs.png")


if __name__ == "__main__":
    main()
