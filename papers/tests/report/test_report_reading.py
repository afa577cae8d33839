"""What a reader of the page meets: hover, ticks, labels, colours, long tables, print, and folders that have no page."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmmscope.errors import InputError
from hmmscope.lab.evidence.figure import Figure
from hmmscope.lab.evidence.rows import Rows
from hmmscope.lab.report import interactive, plots, series_style
from hmmscope.lab.report.explorer import MOST_CURVES, selected, still
from hmmscope.lab.report.folder import read_experiment
from hmmscope.lab.report.formatting import format_cell, shorten
from hmmscope.storage import store
from hmmscope_papers.multitask import fig2, fig7
from report_cases import (
    Tree,
    a_figure,
    bars,
    curve,
    demo_folder,
    explorer,
    folder,  # noqa: F401 - fixture
    heat,
    line,
    lines,
    render,
    write_figure,
)


def contrast(color: str) -> float:
    """With white, by WCAG 2.1."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05)


# ---------------------------------------------------------------------------------------------------------------------
# Hover


# ---------------------------------------------------------------------------------------------------------------------
# Axes and labels


def test_labels_are_cut_in_the_middle_and_stay_apart() -> None:
    found = shorten(["linear-attention (1)", "linear-attention (3)", "rnn"])
    assert found == ["linear-at…tion (1)", "linear-at…tion (3)", "rnn"]
    middle = ["a model with 2 layers and rotary positions", "a model with 3 layers and rotary positions"]
    first, second = shorten(middle)
    assert first != second
    assert max(map(len, shorten([f"{'x' * 50}{i:02d}{'y' * 50}" for i in range(20)]))) <= 102
    assert len(set(shorten(["one label, given twice", "one label, given twice"]))) == 1
    assert shorten(["ab…yz", "abcdefghijklmnopqrstuvwxyz"], 5) == [
        "ab…yz",
        shorten(["abcdefghijklmnopqrstuvwxyz"], 7)[0],
    ]


def test_labels_of_bars_stay_apart_in_both_renderings() -> None:
    panel = bars(categories=("linear-attention (1)", "linear-attention (3)"))
    assert len(set(interactive.panel_data(panel, list(series_style.styles(a_figure(panel))))["short"])) == 2
    (axes,) = plots.draw(a_figure(panel)).axes
    assert len({label.get_text() for label in axes.get_xticklabels()}) == 2


@pytest.mark.parametrize(("columns", "most"), [(1, 16), (2, 10), (3, 6)])
def test_a_heat_map_has_as_many_labels_as_fit(columns: int, most: int) -> None:
    panel = heat(x=range(33), y=("c",), z=((0.5,) * 33,))
    assert most / 2 < len(interactive.panel_data(panel, [], columns)["short"]["x"]) <= most


# ---------------------------------------------------------------------------------------------------------------------
# Curves


def test_every_colour_stands_out_from_the_page() -> None:
    depths = [f"{depth} layers" for depth in range(1, 13)]
    names = [*(f"a: {one}" for one in depths), *(f"b: {one}" for one in depths), *(f"c: {one}" for one in depths)]
    found = series_style.styles(a_figure(lines(series=tuple(line(name=name) for name in names))))
    assert min(contrast(how.color) for how in found.values()) > 2.3
    controls = series_style.styles(a_figure(lines(series=tuple(line(name=name, role="control") for name in "abc"))))
    assert min(contrast(how.color) for how in controls.values()) > 3


def test_what_is_unfinished_has_rings_and_no_line() -> None:
    figure = a_figure(lines(series=(line(), line(name="not converged", role="unfinished"))))
    how = series_style.styles(figure)["unfinished", "not converged"]
    assert (how.width, how.marker) == (0.0, "ring")
    assert series_style.MARKER_PATHS["ring"].count("M") == 2  # a disc with a hole, on the page
    model, rings = plots.draw(figure).axes[0].get_lines()
    assert (rings.get_linestyle(), rings.get_markerfacecolor()) == ("None", "none")
    assert rings.get_markersize() > model.get_markersize()
    assert rings.get_zorder() > model.get_zorder()


def test_a_crowd_leaves_the_bands_of_models_as_they_are() -> None:
    roles: tuple[Any, ...] = ("model", "baseline")
    few, many = (
        series_style.styles(
            a_figure(lines(series=tuple(line(name=f"{role} {i}", role=role) for role in roles for i in range(n))))
        )
        for n in (2, 6)
    )
    assert many["model", "model 0"].opacity == few["model", "model 0"].opacity
    assert many["baseline", "baseline 0"].opacity < few["baseline", "baseline 0"].opacity


def test_a_band_that_reaches_zero_says_that_it_is_cut(tmp_path: Path) -> None:
    series = (line(low=(-0.1, 0.4), high=(1, 1)),)
    assert lines(series=series, log_y=True).num_cut == 1
    assert lines(series=series).num_cut == 0
    assert explorer(curve(low=(0, 0), high=(1, 1)), log_y=True).num_cut == 2
    path = demo_folder(tmp_path / "run", num_figures=0)
    write_figure(path / "figures" / "00-f", a_figure(lines(series=series, log_y=True)))
    assert "At 1 point the interval reaches zero or below; its lower end is not shown" in Tree(render([path])).text


def test_large_numbers_along_an_axis_are_short() -> None:
    many = tuple(float(x) for x in np.linspace(60_000, 1_300_000, 20))
    for x, shown in ((many, {"100k", "200k", "500k", "1M"}), ((20_000.0, 1_000_000.0), {"20k", "1M"})):
        (axes,) = plots.draw(a_figure(lines(series=(line(x=x, y=x),), log_x=True))).axes
        assert shown <= {label.get_text() for label in axes.get_xticklabels()}


@pytest.mark.parametrize(
    ("low", "high"), [(0.31, 0.87), (3, 27), (32_000, 640_000), (0.002, 0.07), (1, 40), (1e-5, 3e4)]
)
def test_labels_of_a_logarithmic_axis_stand_apart(low: float, high: float) -> None:
    between = tuple(float(x) for x in np.linspace(low, high, 20))
    panel = lines(series=(line(x=between, y=between),), log_x=True, log_y=True)
    canvas = plots.draw(a_figure(panel, panel))
    canvas.draw_without_rendering()
    for axes in canvas.axes:
        for axis in (axes.xaxis, axes.yaxis):
            start, end = axis.get_view_interval()
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            labels = [tick.label1 for tick in ticks if start <= tick.get_loc() <= end and tick.label1.get_text()]
            boxes = [label.get_window_extent() for label in labels]
            assert len(boxes) >= 2
            assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


# ---------------------------------------------------------------------------------------------------------------------
# Explorers


def test_an_explorer_can_have_a_logarithmic_x_axis() -> None:
    panel = explorer(curve(x=(0.0, 100.0)), curve("a", "c", x=(1.0, 10.0)), log_x=True)
    assert panel.num_hidden == 1
    assert still(panel).log_x
    data = interactive.panel_data(panel, [])
    assert data["log_x"]
    assert data["ticks"] == [1.0, 10.0, 100.0]
    assert plots.draw(a_figure(panel)).axes[0].get_xscale() == "log"
    data = a_figure(panel).to_data()
    assert Figure.from_data(data).panels[0] == panel
    del data["panels"][0]["log_x"]  # as in folders of earlier versions
    assert Figure.from_data(data).panels[0] == explorer(*panel.curves)


def test_numbers_are_listed_by_size_and_the_first_curve_is_shown_first() -> None:
    panel = explorer(
        *(curve(task, model, place) for task in ("b", "a") for model in "xy" for place in (8, 1, 2, 10)),
        choices=("task", "model", "position"),
    )
    assert panel.options("position") == ("1", "2", "8", "10")
    assert panel.options("task") == ("b", "a")
    assert panel.first("position") == "8"
    data = interactive.panel_data(panel, [])["choices"]
    assert [choice["first"] for choice in data] == [0, None, 2]


def test_of_too_many_curves_each_model_has_some() -> None:
    panel = explorer(
        *(curve(task, model, place) for model in "xyz" for task in "ab" for place in range(20)),
        choices=("task", "model", "position"),
    )
    for chosen in ((None, None, None), ("a", None, None)):
        shown = [panel.curves[i].values[1] for i in selected(panel, chosen)]
        assert len(shown) == MOST_CURVES
        assert {shown.count(model) for model in "xyz"} == {5, 6}
    assert {panel.curves[i].values[0] for i in selected(panel, (None, "x", None))} == {"a", "b"}


# ---------------------------------------------------------------------------------------------------------------------
# The page


def test_lists_in_cells_are_short() -> None:
    assert format_cell([0.06612, *[0.5] * 13, 0.796]) == "15 values: 0.06612 … 0.796"
    assert format_cell([1, 2.5, None]) == "1, 2.5, –"
    assert format_cell([]) == ""


@pytest.mark.long
def test_long_tables_scroll_in_a_box_under_their_header(folder: Path) -> None:
    source = render([folder])
    assert '<div class="scroll long" tabindex="0"' in source
    assert re.search(r"\.long \{ max-height: 70vh; overflow: auto; \}", source)
    assert re.search(r"\.long th \{ position: sticky; top: 0;", source)
    assert "td.right { white-space: nowrap; }" in source


@pytest.mark.long
def test_print_keeps_the_warning(folder: Path) -> None:
    style = render([folder])
    assert ".invalid { color: #b42318; background: none; border: 2px solid; }" in style[style.index("@media print") :]


def test_folders_without_a_page_say_what_they_are(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    store.write_json(sweep / "grid.json", {})
    with pytest.raises(
        InputError, match=r"sweep: a sweep.*hmmscope sweep --table .*hmmscope report .*/runs/RUN$"
    ) as caught:
        read_experiment(sweep)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------------------------
# Heat maps side by side


def test_trained_and_untrained_maps_share_their_colours() -> None:
    most = {"trained": 0.4, "untrained": 0.02, "constructed": 1.0}
    offsets = Rows(
        {"network": network, "seed": 0, "layer": 1, "head": 0, "offset": offset, "value": value / (1 + offset),
         "gathers": True}
        for network, value in most.items() for offset in range(3)
    )  # fmt: skip
    for figure in (fig7._layers(offsets), fig7._heads(offsets)):
        assert [panel.z_max for panel in figure.panels] == [0.4, 0.4, None]  # type: ignore[attr-defined]
        assert "its own scale" in figure.caption
    assert series_style.MISSING == "#ece7df"
    assert "Beige cells have no attention" in fig7._layers(offsets).caption
    shuffle = Rows(
        {"network": network, "seed": 0, "layer": 1, "head": 0, "metric": metric, "mode": mode, "value": value}
        for network, value in most.items() for metric in ("cv", "cv_centred") for mode in ("blocks", "layer", "everywhere")
    )  # fmt: skip
    for network, scale in (("trained", 0.4), ("untrained", 0.4), ("constructed", 1.0)):
        assert {panel.z_max for panel in fig2._heads(shuffle, network).panels} == {scale}  # type: ignore[attr-defined]
