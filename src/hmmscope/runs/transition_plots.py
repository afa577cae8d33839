"""The transition graph of an HMM, with dwell times."""

from typing import Any

import numpy as np

from hmmscope.processes.process import Process
from hmmscope.reprs import needed
from hmmscope.runs.given_rows import GivenRows
from hmmscope.runs.plot_style import new_axes, state_colours
from hmmscope.runs.row_values import duration_text
from hmmscope.runs.state_answers import dwell_rows, predict, state_names, state_table, transitions_of

#: Most states of a graph (models with more states are drawn as a matrix), and the smallest probability with an arrow.
MOST_NODES, LEAST_ARROW = 10, 0.005


def transitions(hmm: Process, given: GivenRows | None = None, *, ax: Any = None, figsize: Any = None) -> Any:
    """Plot states as a graph: areas show their frequencies, labels their mean durations, arrows their transitions.

    Arrows show P(next state | the state changes). A model with more than ten states is drawn as a transition matrix.
    """
    rows = state_table(hmm, given)
    matrix = transitions_of(hmm).numpy()
    if len(rows) > MOST_NODES:
        return _matrix(hmm, matrix, ax, figsize)
    axes = new_axes(ax, figsize or (5.0, 4.4))
    axes.set(aspect="equal", xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_visible(False)
    shares = np.nan_to_num(np.array([row["share"] for row in rows]), nan=1 / len(rows))
    places, radii = _layout(len(rows), shares)
    colours = state_colours(hmm)
    patches = needed("matplotlib.patches", "plot")
    for i in range(len(rows)):
        leaves = 1 - matrix[i, i]
        for j in range(len(rows)):
            share = matrix[i, j] / leaves if leaves > 0 and i != j else 0.0
            if share >= LEAST_ARROW:
                _arrow(axes, patches, places[i], places[j], radii[i], radii[j], share, colours[i])
    for state, (row, name) in enumerate(zip(rows, state_names(hmm), strict=True)):
        axes.add_patch(
            patches.Circle(places[state], radii[state], facecolor=colours[state], edgecolor="white", zorder=3)
        )
        _label(axes, places[state], radii[state], name, row)
    span = 1.0 + max(radii) + 0.42
    axes.set(xlim=(-span, span), ylim=(-span if len(rows) > 2 else -1.0, span if len(rows) > 2 else 1.0))
    return axes


def durations(hmm: Process, given: GivenRows | None = None, *, ax: Any = None, figsize: Any = None) -> Any:
    axes = new_axes(ax, figsize or (5.6, 3.6))
    longest = max(2, min(200, int(3 * np.nan_to_num(max(dwell_rows(hmm)), posinf=60.0)) + 1))
    if hmm.visits is not None:
        laws = hmm.visits.durations.numpy()
    else:
        stays = transitions_of(hmm).diagonal().numpy()[:, None]
        laws = (1 - stays) * stays ** np.arange(longest)
    seen = None if given is None else _visit_lengths(predict(hmm, given).per_sequence(), laws.shape)
    steps = np.arange(1, laws.shape[1] + 1)
    for state, (name, colour) in enumerate(zip(state_names(hmm), state_colours(hmm), strict=True)):
        axes.plot(steps, laws[state], "-", color=colour, label=name)
        if seen is not None and seen[state].sum():
            axes.plot(steps, seen[state] / seen[state].sum(), "o", markersize=4, color=colour)
    axes.set(xlabel="length of a visit (rows)", ylabel="probability", ylim=(0, None))
    axes.legend(frameon=False, fontsize="small")
    return axes


def _visit_lengths(paths: Any, shape: tuple[int, ...]) -> Any:
    counts = np.zeros(shape)
    for path in paths:
        edges = np.flatnonzero(np.diff(path)) + 1
        lengths = np.diff(edges)
        np.add.at(counts, (path[edges[:-1]], np.minimum(lengths, shape[1]) - 1), lengths <= shape[1])
    return counts


def _layout(count: int, shares: Any) -> tuple[Any, Any]:
    radii = np.clip(0.62 * np.sqrt(shares), 0.13, 0.46) * min(1.0, 4.5 / max(count, 1) + 0.25)
    if count == 1:
        return np.zeros((1, 2)), radii
    begin = np.pi if count == 2 else np.pi / 2
    angles = begin - 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(angles), np.sin(angles)], 1), radii


def _arrow(axes: Any, patches: Any, start: Any, end: Any, near: float, far: float, share: float, colour: Any) -> None:
    away = end - start
    length = float(np.hypot(*away))
    bend = 0.17
    across = np.array([away[1], -away[0]]) / length
    middle = (start + end) / 2 + across * bend * length
    first, last = _towards(start, middle, near + 0.02), _towards(end, middle, far + 0.05)
    style = patches.ArrowStyle("-|>", head_length=5 + 3 * share, head_width=2.2 + 2 * share)
    path = needed("matplotlib.path", "plot").Path
    axes.add_patch(
        patches.FancyArrowPatch(
            path=path([first, middle, last], [path.MOVETO, path.CURVE3, path.CURVE3]),
            arrowstyle=style,
            linewidth=0.6 + 3.0 * share,
            color=colour,
            alpha=0.9,
            zorder=2,
        )
    )
    if share < 0.995:
        at = 0.36 * first + 0.48 * middle + 0.16 * last + across * 0.085
        axes.text(*at, f"{share:.2f}".lstrip("0"), ha="center", va="center", fontsize=8, color="0.25")


def _towards(start: Any, end: Any, distance: float) -> Any:
    away = end - start
    return start + away / np.hypot(*away) * distance


def _label(axes: Any, place: Any, radius: float, name: str, row: dict[str, Any]) -> None:
    dwell = row["dwell_rows"]
    lasts = f"{dwell:,.3g} rows" if np.isfinite(dwell) else "always"
    if "dwell_time" in row:
        lasts = duration_text(row["dwell_time"])
    share = "" if np.isnan(row["share"]) else f"{100 * row['share']:.0f} %, "
    sign = -1 if place[1] < -0.05 else 1
    away = place + np.array([0.0, sign * (radius + 0.06)])
    axes.text(
        *away,
        f"{name}\n{share}{lasts}",
        ha="center",
        va="bottom" if sign > 0 else "top",
        fontsize=8.5,
        linespacing=1.25,
        zorder=4,
    )


def _matrix(hmm: Process, matrix: Any, ax: Any, figsize: Any) -> Any:
    axes = new_axes(ax, figsize or (5.0, 4.4))
    image = axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
    axes.figure.colorbar(image, ax=axes, label="P(next state | state)", shrink=0.8)
    axes.set(xlabel="next state", ylabel="state")
    if (hmm.states is not None or hmm.visits is not None) and len(matrix) <= 30:
        axes.set_xticks(range(len(matrix)), state_names(hmm), rotation=90, fontsize="small")
        axes.set_yticks(range(len(matrix)), state_names(hmm), fontsize="small")
    return axes
