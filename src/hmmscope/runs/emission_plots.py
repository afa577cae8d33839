"""Plots of the emission distributions of an HMM."""

from typing import Any

import numpy as np
import torch

from hmmscope.processes.process import Process
from hmmscope.reprs import needed
from hmmscope.runs.given_rows import GivenRows
from hmmscope.runs.plot_style import new_axes, state_colours
from hmmscope.runs.state_answers import (
    channels_of,
    chosen_coordinates,
    coordinate_names,
    emission_rows,
    num_shown,
    predict,
    state_names,
    state_table,
)
from hmmscope.schema import require

#: Largest numbers of symbols and of states that are drawn as bars; larger models are drawn as a heat map.
MOST_BARS, MOST_GROUPS = 12, 6
#: Most points of a scatter plot.
MOST_POINTS = 3000


def emissions(
    hmm: Any, given: GivenRows | None = None, *, ax: Any = None, coordinates: Any = None, figsize: Any = None
) -> Any:
    """Plot the emissions of each state.

    Symbol probabilities are bars or, if many, a heat map. One coordinate of vectors is drawn as each state's density (for
    counts, probability) times the state's frequency, over a histogram of the data. Two coordinates are drawn as ellipses
    of one and two standard deviations, or for counts as error bars of one.

    Args:
        hmm, given: The model, and observations that are drawn behind the distributions.
        ax, figsize: Axes, or size of a new figure in inches.
        coordinates: Names or numbers of one or two coordinates, or of channels (default: the first two numbers).
    """
    axes = new_axes(ax, figsize or (5.6, 4.0))
    if not hmm.real_valued:
        _bars(axes, hmm, emission_rows(hmm).numpy(), hmm.symbols or tuple(map(str, range(hmm.num_symbols))))
        return axes
    chosen, names = chosen_coordinates(hmm, given, coordinates), coordinate_names(hmm, given)
    count = len(names) - len(hmm.sizes)
    chosen = chosen[: min(2, count)] if coordinates is None and count else chosen
    if channels := [channels_of(hmm, names)[place - count] for place in chosen if place >= count]:
        require(len(channels) == len(chosen), "coordinates", "must be only numbers or only channels", coordinates)
        labels = [f"{name}={symbol}" for name, symbols, _ in channels for symbol in symbols]
        _bars(axes, hmm, torch.cat([law for _, _, law in channels], 1).numpy(), labels)
        return axes
    require(len(chosen) in (1, 2), "coordinates", "must be one or two", coordinates)
    rows = None if given is None else torch.cat(list(given.sequences))[:, chosen].numpy()
    shares = np.nan_to_num(np.array([row["share"] for row in state_table(hmm, given)]), nan=1 / hmm.num_states)
    if len(chosen) == 1:
        draw = _counts if hmm.density == "poisson" else _densities
        draw(axes, hmm, chosen[0], rows, shares)
        axes.set(xlabel=names[chosen[0]], ylabel="probability" if hmm.density == "poisson" else "density")
        axes.legend(frameon=False, fontsize="small")
        return axes
    _points(axes, hmm, given, rows)
    (_rates if hmm.density == "poisson" else _ellipses)(axes, hmm, chosen)
    axes.set(xlabel=names[chosen[0]], ylabel=names[chosen[1]])
    return axes


def _bars(axes: Any, hmm: Process, law: Any, symbols: Any) -> None:
    count = num_shown(hmm)
    if len(symbols) > MOST_BARS or count > MOST_GROUPS:
        _heat(axes, hmm, law, symbols)
        return
    wide = 0.8 / count
    for state, (name, colour) in enumerate(zip(state_names(hmm), state_colours(hmm), strict=True)):
        at = np.arange(len(symbols)) + (state - (count - 1) / 2) * wide
        axes.bar(at, law[state], wide * 0.94, color=colour, label=name)
    axes.set_xticks(range(len(symbols)), symbols)
    axes.set(xlabel="symbol", ylabel="P(symbol | state)")
    axes.legend(frameon=False, fontsize="small")


def _heat(axes: Any, hmm: Process, law: Any, symbols: Any) -> None:
    image = axes.imshow(law, cmap="Blues", vmin=0, aspect="auto", interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, label="P(symbol | state)", shrink=0.9)
    if len(symbols) <= 40:
        turned = max(map(len, symbols)) > 2
        axes.set_xticks(range(len(symbols)), symbols, rotation=90 if turned else 0, fontsize="small")
    if num_shown(hmm) <= 30:
        axes.set_yticks(range(num_shown(hmm)), state_names(hmm), fontsize="small")
    axes.set(xlabel="symbol")


def _densities(axes: Any, hmm: Any, coordinate: int, rows: Any, shares: Any) -> None:
    each = [hmm.gaussians(state) for state in range(hmm.num_states)]
    ends = [
        float(mean[coordinate] + way * 3.5 * own[coordinate, coordinate] ** 0.5)
        for parts in each
        for _, mean, own in parts
        for way in (-1, 1)
    ]
    grid = np.linspace(min(ends), max(ends), 600)
    if rows is not None:
        seen = rows[~np.isnan(rows[:, 0]), 0]
        axes.hist(seen, bins="auto" if len(seen) < 20_000 else 100, density=True, color="0.85", zorder=0)
    total = np.zeros_like(grid)
    for state, (name, colour) in enumerate(zip(state_names(hmm), state_colours(hmm), strict=True)):
        law = sum(
            weight * _normal(grid, float(mean[coordinate]), float(own[coordinate, coordinate]))
            for weight, mean, own in each[state]
        )
        total += shares[state] * law
        axes.fill_between(grid, shares[state] * law, color=colour, alpha=0.25, linewidth=0)
        axes.plot(grid, shares[state] * law, color=colour, linewidth=1.8, label=name)
    axes.plot(grid, total, color="0.2", linewidth=1.0, linestyle=":", label="all states")
    axes.set_ylim(bottom=0)


def _normal(grid: Any, mean: float, variance: float) -> Any:
    return np.exp(-((grid - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)


def _counts(axes: Any, hmm: Any, coordinate: int, rows: Any, shares: Any) -> None:
    rates = hmm.means[:, coordinate].numpy()
    low = int(max(0, np.floor(min(rate - 4 * rate**0.5 for rate in rates))))
    high = int(np.ceil(max(rate + 4 * rate**0.5 for rate in rates)) + 1)
    step = max(1, (high - low) // 400)
    grid = np.arange(low, high + 1, step)
    if rows is not None:
        seen = rows[~np.isnan(rows[:, 0]), 0]
        values, counts = np.unique(seen, return_counts=True)
        axes.bar(values, counts / len(seen), width=0.9, color="0.85", zorder=0)
    for state, (name, colour) in enumerate(zip(state_names(hmm), state_colours(hmm), strict=True)):
        logs = (
            grid * np.log(max(rates[state], 1e-300)) - rates[state] - torch.lgamma(torch.from_numpy(grid + 1.0)).numpy()
        )
        style = {"marker": "o", "markersize": 3} if len(grid) <= 60 else {}
        axes.plot(grid, shares[state] * np.exp(logs), color=colour, linewidth=1.5, label=name, **style)
    axes.set_ylim(bottom=0)


def _points(axes: Any, hmm: Process, given: GivenRows | None, rows: Any) -> None:
    if given is None:
        return
    colours = np.array(state_colours(hmm), dtype=object)
    path = np.asarray(predict(hmm, given))
    keep = np.flatnonzero(~np.isnan(rows).any(1) & (path >= 0))
    keep = keep[:: -(-len(keep) // MOST_POINTS) or 1]
    axes.scatter(*rows[keep].T, s=6, c=list(colours[path[keep]]), alpha=0.45, linewidths=0, zorder=1)


def _ellipses(axes: Any, hmm: Any, chosen: list[int]) -> None:
    patches = needed("matplotlib.patches", "plot")
    for state, (name, colour) in enumerate(zip(state_names(hmm), state_colours(hmm), strict=True)):
        for number, (weight, mean, own) in enumerate(hmm.gaussians(state)):
            centre = mean[chosen].numpy()
            values, vectors = np.linalg.eigh(own.numpy()[np.ix_(chosen, chosen)])
            angle = float(np.degrees(np.arctan2(*vectors[::-1, 1])))
            for deviations in (2, 1):
                width, height = 2 * deviations * np.sqrt(np.maximum(values[::-1], 0))
                label = name if deviations == 1 and number == 0 else None
                axes.add_patch(
                    patches.Ellipse(
                        centre,
                        width,
                        height,
                        angle=angle,
                        facecolor=(*_rgb(colour), 0.10 if deviations == 2 else 0.16),
                        edgecolor=(*_rgb(colour), 0.35 + 0.65 * weight),
                        linewidth=1.6,
                        label=label,
                        zorder=2,
                    )
                )
            axes.plot(*centre, "+", color="0.1", markersize=7, zorder=3)
    axes.autoscale_view()
    axes.legend(frameon=False, fontsize="small")


def _rgb(colour: Any) -> Any:
    return needed("matplotlib.colors", "plot").to_rgb(colour)


def _rates(axes: Any, hmm: Any, chosen: list[int]) -> None:
    means = hmm.means.numpy()[:, chosen]
    spreads = hmm.variances.numpy()[:, chosen] ** 0.5
    for state, (name, colour) in enumerate(zip(state_names(hmm), state_colours(hmm), strict=True)):
        x, y = means[state]
        axes.errorbar(
            x, y, xerr=spreads[state, 0], yerr=spreads[state, 1], fmt="o", color=colour, label=name, capsize=3
        )
    axes.legend(frameon=False, fontsize="small")
