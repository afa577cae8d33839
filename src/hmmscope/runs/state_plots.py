"""Plots of HMMs and of their fits, drawn with Matplotlib."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hmmscope.errors import InputError
from hmmscope.processes.process import Process
from hmmscope.reprs import needed
from hmmscope.runs.emission_plots import emissions
from hmmscope.runs.given_rows import GivenRows, given_rows
from hmmscope.runs.plot_style import MUTED, new_axes, new_figure, state_colours
from hmmscope.runs.row_values import stamps_of
from hmmscope.runs.state_answers import (
    channels_of,
    chosen_coordinates,
    constant_inputs,
    coordinate_names,
    num_shown,
    predict,
    predict_proba,
    state_names,
)
from hmmscope.runs.transition_plots import durations, transitions
from hmmscope.schema import require, require_known

#: Most panels of a plot of observations, and the number of rows above which points are not drawn.
MOST_PANELS, MANY_ROWS = 8, 1500
#: Options of plots; any other option describes how to read the observations.
OPTIONS = ("sequence", "coordinates", "figsize")


def plot(hmm: Process, kind: str = "overview", x: Any = None, *, ax: Any = None, **options: Any) -> Any:
    require_known("kind", kind, KINDS)
    own, reading = split_options(options)
    given = None if x is None else given_rows(hmm, x, **reading)
    if x is None and reading:
        raise InputError(f"{next(iter(reading))}: describes how to read x, but x is missing; pass x")
    if given is None and kind in OF_ROWS:
        raise InputError(f"x: {kind!r} needs observations; pass x=")
    if kind in OF_INPUTS and hmm.num_inputs is not None:
        return _by_input(KINDS[kind], hmm, ax, **own)
    return KINDS[kind](hmm, given, ax=ax, **own)


def _by_input(draw: Callable[..., Any], hmm: Process, ax: Any, *, figsize: Any = None) -> Any:
    if ax is not None:
        raise InputError("ax: this plot has one panel per input; leave ax out, or plot hmm.given_input(0)")
    parts = constant_inputs(hmm)[:MOST_PANELS]
    figure = new_figure(figsize or (4.8 * len(parts), 4.2))
    for axes, (name, part) in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
        draw(part, None, ax=axes)
        axes.set_title(name)
    return figure


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    own = {name: value for name, value in options.items() if name in OPTIONS}
    return own, {name: value for name, value in options.items() if name not in OPTIONS}


def observations(
    hmm: Process, given: GivenRows, *, ax: Any = None, sequence: Any = 0, coordinates: Any = None, figsize: Any = None
) -> Any:
    """Plot one sequence over time, on a background with the colours of its most likely states.

    Args:
        hmm, given: The model and the observations.
        ax, figsize: Axes of a single coordinate, or size of a new figure in inches.
        sequence: Index or name of the sequence.
        coordinates: Names or numbers of the coordinates (default: all, or only the first if `ax` is given).
    """
    one, place = _chosen(given, sequence)
    path = np.asarray(predict(hmm, one))
    if not hmm.real_valued:
        axes = new_axes(ax, figsize or (9.0, 2.8))
        _symbols(axes, hmm, one, path, place)
        _legend(axes, hmm, path, one)
        return axes
    shown = chosen_coordinates(hmm, given, coordinates)
    if ax is not None:
        panels = [ax]
        shown = shown[:1] if coordinates is None else shown
        require(len(shown) == 1, "coordinates", "must name one coordinate if ax is given", coordinates)
    else:
        shown = shown[:MOST_PANELS]
        figure = new_figure(figsize or (9.0, 1.0 + 1.7 * len(shown)))
        panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0].tolist()
    names = coordinate_names(hmm, given)
    channels = {name: symbols for name, symbols, _ in channels_of(hmm, names)}
    for axes, coordinate in zip(panels, shown, strict=True):
        values = one.sequences[0][:, coordinate].numpy()
        _spans(axes, hmm, path, place, np.isnan(values))
        if symbols := channels.get(names[coordinate]):
            axes.set_yticks(range(len(symbols)), symbols)
        else:
            axes.plot(place, values, color="0.2", linewidth=0.7 if len(values) > 300 else 1.0)
        if len(values) <= MANY_ROWS or symbols:
            axes.scatter(place, values, s=7, c=[state_colours(hmm)[state] for state in path], zorder=3, linewidths=0)
        axes.set_ylabel(names[coordinate])
    _along(panels[-1], given, place)
    _legend(panels[0], hmm, path, one)
    return panels[0] if len(panels) == 1 else panels[0].figure


def probabilities(hmm: Process, given: GivenRows, *, ax: Any = None, sequence: Any = 0, figsize: Any = None) -> Any:
    one, place = _chosen(given, sequence)
    found = np.asarray(predict_proba(hmm, one))
    axes = new_axes(ax, figsize or (9.0, 2.2))
    axes.stackplot(place, found.T, colors=state_colours(hmm), labels=state_names(hmm), linewidth=0)
    axes.set(ylim=(0, 1), ylabel="P(state | data)")
    axes.margins(x=0)
    _along(axes, given, place)
    _legend(axes, hmm, np.arange(num_shown(hmm)), one)
    return axes


def overview(hmm: Process, given: GivenRows | None, *, ax: Any = None, figsize: Any = None, **options: Any) -> Any:
    if ax is not None:
        raise InputError("ax: the overview has several plots; leave ax out, or choose a kind, such as 'transitions'")
    parts = constant_inputs(hmm)[:MOST_PANELS]
    if given is None:
        figure = new_figure(figsize or (9.0, 4.0 * len(parts)))
        _details(hmm, None, parts, figure, figure.add_gridspec(len(parts), 2, width_ratios=(1, 1.2)), 0)
        return figure
    figure = new_figure(figsize or (10.0, 3.8 + 3.8 * len(parts)))
    grid = figure.add_gridspec(2 + len(parts), 2, height_ratios=(1.3, 0.7, *[2.0] * len(parts)), width_ratios=(1, 1.2))
    top = figure.add_subplot(grid[0, :])
    below = figure.add_subplot(grid[1, :], sharex=top)
    observations(hmm, given, ax=top, **options)
    probabilities(hmm, given, ax=below, **{name: own for name, own in options.items() if name == "sequence"})
    top.set_xlabel("")
    top.tick_params(labelbottom=False)
    below.get_legend().remove()
    below.set_title("", loc="left")
    _details(hmm, given, parts, figure, grid, 2)
    return figure


def _details(hmm: Process, given: GivenRows | None, parts: Any, figure: Any, grid: Any, row: int) -> None:
    for number, (name, part) in enumerate(parts):
        left, rows = figure.add_subplot(grid[row + number, 0]), given if part is hmm else None
        transitions(part, rows, ax=left)
        count = hmm.num_symbols - len(hmm.sizes) if hmm.real_valued else 0  # type: ignore[attr-defined]
        kinds = [None, range(count, hmm.num_symbols)] if 0 < count < hmm.num_symbols else [None]  # numbers, channels
        cells = grid[row + number, 1].subgridspec(len(kinds), 1)
        for cell, coordinates in zip(cells, kinds, strict=True):
            emissions(part, rows, ax=figure.add_subplot(cell), coordinates=coordinates).set_title(name)
        left.set_title(name)


def convergence(fit: Any, *, ax: Any = None, figsize: Any = None) -> Any:
    found = fit.fits.get(fit.num_states)
    if found is None or not found.history:
        raise InputError("kind: 'convergence' needs restarts, but a fit to a stream has none; fit without stream=True")
    axes = new_axes(ax, figsize or (6.0, 3.6))
    ends = [history[-1] for history in found.history]
    best = int(np.argmax(ends))
    least = 1e-3
    order = [number for number in range(len(ends)) if number != best] + [best]
    for number in order:
        below = np.maximum(max(ends) - np.array(found.history[number]), least)
        chosen = number == best
        style: dict[str, Any] = {"color": "#0072B2", "linewidth": 2.0} if chosen else {"color": MUTED, "linewidth": 1.0}
        axes.plot(np.arange(len(below)), below, label="best" if chosen else None, **style)
        axes.plot(len(below) - 1, below[-1], "o", markersize=4, color=style["color"])
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(yscale="log", xlabel="iteration", ylabel="nats below the best log-likelihood")
    agreed = "the best two agree" if found.restarts_agree else f"the best two differ by {found.restart_gap:.2g} nats"
    axes.set_title(f"{len(ends)} restart{'s' * (len(ends) > 1)} of {fit.num_states} states: {agreed}")
    axes.legend(frameon=False)
    return axes


def num_states(fit: Any, *, ax: Any = None, figsize: Any = None) -> Any:
    if fit.support is None:
        raise InputError("kind: 'num_states' needs several numbers of states; fit with num_states=[1, 2, 3]")
    axes = new_axes(ax, figsize or (6.0, 3.6))
    sizes, chosen = sorted(fit.fits), fit.num_states
    shares = [fit.support.shares[size] for size in sizes]
    colours = ["#0072B2" if size == chosen else "#9ecae1" for size in sizes]
    axes.bar(sizes, shares, color=colours, width=0.6)
    for size, share in zip(sizes, shares, strict=True):
        axes.annotate(f"{share:.2g}" if share >= 5e-3 else "<.005", (size, share), ha="center", va="bottom", fontsize=8)
    rule = "BIC" if fit.support.why else "evidence"
    axes.set(ylim=(0, 1.12), xlabel="number of states", ylabel=f"probability (by {rule})", xticks=sizes)
    other = axes.twinx()
    bics = np.array([fit.fits[size].bic for size in sizes])
    other.plot(sizes, bics - bics.min(), "o-", color="#D55E00", markersize=4, linewidth=1.2)
    other.set_ylabel("BIC above the smallest", color="#D55E00")
    other.tick_params(axis="y", colors="#D55E00")
    other.set_ylim(bottom=-0.07 * float(np.ptp(bics)))
    other.spines["top"].set_visible(False)
    low, high = fit.interval
    axes.set_title(f"{chosen} state{'s' * (chosen != 1)} by BIC; 95 % interval {low} to {high}")
    return axes


def _chosen(given: GivenRows, sequence: int | str) -> tuple[GivenRows, Any]:
    """Return a sequence, named if there are several, and the places of its rows on the horizontal axis."""
    count = len(given.sequences)
    names = tuple(map(str, given.names or range(count)))
    if isinstance(sequence, str):
        require_known("sequence", sequence, names)
        sequence = names.index(sequence)
    require(-count <= sequence < count, "sequence", f"must be in [0, {count})", sequence)
    sequence %= count
    begin = sum(given.lengths[:sequence])
    rows = slice(begin, begin + given.lengths[sequence])
    stamps = stamps_of(given.index)
    labels = np.asarray(given.index) if stamps is None else stamps
    place = labels[rows] if labels.dtype.kind in "iufM" else np.arange(given.lengths[sequence])
    inputs = None if given.inputs is None else [given.inputs[sequence]]
    title = (f"sequence {names[sequence]}",) * (count > 1)
    return GivenRows([given.sequences[sequence]], columns=given.columns, inputs=inputs, names=title), place


def _along(axes: Any, given: GivenRows, place: Any) -> None:
    if place.dtype.kind == "M":
        dates = needed("matplotlib.dates", "plot")
        locator = dates.AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    else:
        name = getattr(given.index, "name", None)
        axes.set_xlabel(name or "time")
    axes.margins(x=0)


def _spans(axes: Any, hmm: Process, path: Any, place: Any, missing: Any) -> None:
    at = needed("matplotlib.dates", "plot").date2num(place) if place.dtype.kind == "M" else place.astype(float)
    middles = (at[1:] + at[:-1]) / 2
    edges = np.concatenate([at[:1], middles, at[-1:]])
    changes = (path[1:] != path[:-1]) | (missing[1:] != missing[:-1])
    begins = np.flatnonzero(np.concatenate([[True], changes]))
    ends = np.append(begins[1:], len(path))
    for state, colour in enumerate(state_colours(hmm)):
        for gap, alpha in ((False, 0.28), (True, 0.1)):
            own = (path[begins] == state) & (missing[begins] == gap)
            spans = [(edges[a], edges[b] - edges[a]) for a, b in zip(begins[own], ends[own], strict=True)]
            look = {"facecolor": colour, "alpha": alpha, "linewidth": 0, "zorder": 0}
            if spans or not gap:
                axes.broken_barh(spans, (0, 1), transform=axes.get_xaxis_transform(), **look)


def _symbols(axes: Any, hmm: Process, one: GivenRows, path: Any, place: Any) -> None:
    rows = one.sequences[0].numpy()
    colours = np.array(state_colours(hmm))
    _spans(axes, hmm, path, place, rows < 0)
    size = float(np.clip(4000 / max(1, len(path)), 3, 22))
    seen = rows >= 0
    axes.scatter(place[seen], rows[seen], s=size, c=colours[path[seen]], linewidths=0, zorder=3)
    count = hmm.num_symbols
    if hmm.symbols and count <= 30:
        axes.set_yticks(range(count), hmm.symbols)
    elif count <= 12:
        axes.set_yticks(range(count))
    axes.set(ylabel="symbol", ylim=(-0.6, count - 0.4))
    if one.inputs is not None:
        _input_strip(axes, hmm, one.inputs[0].numpy(), place)
    _along(axes, one, place)


def _input_strip(axes: Any, hmm: Any, inputs: Any, place: Any) -> None:
    count = hmm.num_inputs
    for number, name in enumerate(hmm.input_names):
        own = inputs == number
        grey = str(0.8 * (1 - number / max(1, count - 1)))
        axes.scatter(place[own], np.full(own.sum(), -1.0), marker="s", s=18, c=grey, label=name, linewidths=0)
    handles, names = axes.get_legend_handles_labels()
    axes.add_artist(axes.legend(handles, names, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=6, frameon=False))
    axes.set_ylim(bottom=-1.4)


def _legend(axes: Any, hmm: Process, path: Any, one: GivenRows) -> None:
    axes.set_title("".join(one.names), loc="left")
    patches = needed("matplotlib.patches", "plot")
    shown = [state for state in range(num_shown(hmm)) if bool((path == state).any())][:12]
    names, colours = state_names(hmm), state_colours(hmm)
    handles = [patches.Patch(color=colours[state], label=names[state]) for state in shown]
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.1, "frameon": False}
    axes.legend(handles=handles, ncols=min(6, max(1, len(handles))), fontsize="small", handlelength=1.0, **place)


#: Plots that need observations.
OF_ROWS = ("observations", "probabilities")
_DRAWN = (overview, observations, probabilities, transitions, emissions, durations)
KINDS: dict[str, Callable[..., Any]] = {draw.__name__: draw for draw in _DRAWN}
#: Plots with a panel per input, for models with inputs.
OF_INPUTS = ("transitions", "emissions", "durations")
#: Plots of a fit.
OF_FITS: dict[str, Callable[..., Any]] = {"convergence": convergence, "num_states": num_states}
