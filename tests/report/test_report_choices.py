"""Explorers, legends of many series, and runs of one experiment side by side."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from hmmscope.lab.evidence.figure import Bars, DenseScatter, Explorer, Figure, Heatmap, Lines
from hmmscope.lab.report import interactive, plots, series_style
from hmmscope.lab.report.compare import compare
from hmmscope.lab.report.differences import MOST_ROWS, config_rows, finding_rows, verdict_summary
from hmmscope.lab.report.explorer import MOST_CURVES, first_text, selected, still, views
from hmmscope.lab.report.folder import About, ExperimentFolder, Finding
from hmmscope.storage import store
from report_cases import Tree, a_figure, bars, curve, demo_folder, explorer, heat, line, lines, packed, render

DEPTHS = [f"{depth} layer{'s' * (depth > 1)}" for depth in range(1, 17)]
WORDS = [f"a model called {name}" for name in "abcdefghijklmnop"]


def many(names: list[str], panels: int = 1) -> Figure:
    series = (*(line(name=name) for name in names), line(name="Bayes optimum", role="optimum"))
    return a_figure(*(lines(title=f"panel {i}", series=series) for i in range(panels)))


# ---------------------------------------------------------------------------------------------------------------------
# Legends


@pytest.mark.drawn(4)
@pytest.mark.parametrize("count", [5, 8, 12, 16])
@pytest.mark.parametrize(
    "names", [DEPTHS, WORDS, [f"{'long ' * 14}{name}" for name in WORDS]], ids=["n", "words", "long"]
)
def test_a_legend_lies_inside_the_picture_and_below_the_panels(names: list[str], count: int) -> None:
    canvas = plots.draw(many(names[:count], panels=3 if count in (8, 16) else 1))
    FigureCanvasAgg(canvas).draw()
    whole, legend = canvas.bbox, canvas.legends[0].get_window_extent()
    assert whole.x0 <= legend.x0 < legend.x1 <= whole.x1
    assert whole.y0 <= legend.y0
    assert all(axes.get_tightbbox().y0 >= legend.y1 - 2 for axes in canvas.axes)
    assert all(axes.get_window_extent().height > 0.4 * 72 for axes in canvas.axes)


def test_ordered_names_get_colours_in_order() -> None:
    found = series_style.styles(many(DEPTHS[:7]))
    colours = [found["model", name].color for name in DEPTHS[:7]]
    light = [sum(int(one[i : i + 2], 16) * part for i, part in ((1, 0.3), (3, 0.59), (5, 0.11))) for one in colours]
    assert light == sorted(light)
    assert len(set(colours)) == 7
    shuffled = series_style.styles(many([DEPTHS[i] for i in (3, 0, 6, 1, 5, 2, 4)]))
    assert [shuffled["model", name].color for name in DEPTHS[:7]] == colours


def test_two_ordered_families_and_plain_names_stay_apart() -> None:
    names = [*(f"a: {name}" for name in DEPTHS[:4]), *(f"b: {name}" for name in DEPTHS[:4]), "LSTM", "Mamba"]
    found = series_style.styles(many(names))
    assert len({found["model", name].color for name in names}) == 10
    assert {found["model", name].dash for name in names[:4]} != {found["model", name].dash for name in names[4:8]}


def test_two_numbers_are_no_order() -> None:
    plain = series_style.styles(many(["LSTM", "RNN"]))
    assert [how.color for how in series_style.styles(many(DEPTHS[:2])).values()] == [
        how.color for how in plain.values()
    ]


@pytest.mark.parametrize("role", ["model", "baseline", "control", "other"])
def test_a_dozen_series_of_one_role_have_a_dozen_looks(role: Any) -> None:
    series = tuple(line(name=name, role=role) for name in WORDS[:12])
    found = series_style.styles(a_figure(lines(series=series)))
    assert len({(how.color, how.dash, how.marker) for how in found.values()}) == 12


# ---------------------------------------------------------------------------------------------------------------------
# Explorers

TASKS = explorer(
    *(
        curve(task, model, position)
        for task in ("matching", "copying")
        for model in DEPTHS[:3]
        for position in (16, 32)
    ),
    *(curve(task, "", "", role="optimum", name="Bayes") for task in ("matching", "copying")),
    choices=("task", "model", "position"),
)


def test_the_model_is_overlaid_at_first_and_the_text_says_the_rest() -> None:
    assert TASKS.overlay == "model"
    assert TASKS.options("position") == ("16", "32")
    picture = still(TASKS)
    assert [one.name for one in picture.series] == [*DEPTHS[:3], "Bayes"]
    assert first_text(TASKS) == "task matching, position 16; others on the page"
    assert first_text(explorer()) == ""
    assert explorer(curve("a", "b"), choices=("x", "y")).overlay == "y"


def test_the_curves_of_a_choice_and_those_that_belong_to_all() -> None:
    def shown(*chosen: str | None) -> list[tuple[str, ...]]:
        return [TASKS.curves[i].values for i in selected(TASKS, chosen)]

    assert shown("copying", DEPTHS[0], "32") == [("copying", DEPTHS[0], "32"), ("copying", "", "")]
    assert len(shown(None, None, None)) == len(TASKS.curves) == 14
    assert shown("none", DEPTHS[0], "32") == []
    crowd = explorer(*(curve("a", i) for i in range(40)), curve("a", "", role="optimum"))
    assert len(selected(crowd, (None, None))) == MOST_CURVES + 1


def test_a_view_names_a_curve_by_what_the_lists_leave_open() -> None:
    names = {view.open: [name for _, name in view.keys] for view in views(TASKS)}
    assert len(names) == 8
    assert names[()][0] == names[(1,)][0] == "1 layer"
    assert names[(0, 1)][0] == "matching, 1 layer"
    assert names[(0, 1, 2)][-1] == "copying, Bayes"
    looks = {view.open: view.styles for view in views(TASKS)}
    assert looks[()] == looks[(1,)]  # so a model keeps its colour from task to task


def test_one_name_of_two_roles_is_told_apart_in_the_picture() -> None:
    panel = explorer(curve("a", "x"), curve("a", "", role="optimum", name="x"))
    assert [one.name for one in still(panel).series] == ["x (model)", "x (optimum)"]


def test_the_page_has_all_curves_and_every_view_covers_them() -> None:
    data = interactive.panel_data(TASKS, [])
    assert len(data["curves"]) == 14
    assert data["curves"][-1]["values"] == [1, None, None]
    for view in data["views"].values():
        assert len(view["of"]) == 14
        assert max(view["of"]) < len(view["looks"])


def test_numbers_have_a_slider_and_names_a_list() -> None:
    panel = explorer(
        *(curve("a", model, place) for model in "xy" for place in (8, 1, 2)), choices=("task", "model", "position")
    )
    task, model, position = interactive.panel_data(panel, [])["choices"]
    assert (task["slider"], model["slider"], position["slider"]) == (False, False, True)
    assert (task["first"], model["first"], position["first"]) == (0, None, 2)
    assert position["options"] == ["1", "2", "8"]


def test_what_a_logarithm_hides_of_an_explorer_is_counted() -> None:
    assert explorer(curve(y=(0.0, 1.0)), log_y=True).num_hidden == 1
    assert explorer(curve(y=(0.0, 1.0))).num_hidden == 0


# ---------------------------------------------------------------------------------------------------------------------
# Runs side by side


def run(config: dict[str, Any] | None = None, findings: tuple[Finding, ...] = (), **about: str) -> ExperimentFolder:
    words = {"experiment": "e", "title": "t", "summary": "s", "scale": "small", "version": "1", "command": "c", **about}
    return ExperimentFolder(
        path=Path("x"), about=About(**words), config=config or {}, findings=findings, figures=(), tables=()
    )


def plan(steps: int, *labels: str, **sections: Any) -> dict[str, Any]:
    return {"runs": {one: {"training": {"num_steps": steps, "seed": 0}} for one in labels}, **sections}


def test_equal_configurations_differ_in_nothing() -> None:
    assert config_rows([run(plan(5, "a")), run(plan(5, "a"))]) == []


def test_one_change_in_all_models_is_one_row() -> None:
    labels = [f"layers-{i}" for i in range(7)]
    assert config_rows([run(plan(30, *labels)), run(plan(40, *labels))]) == [["training.num_steps", "30", "40"]]
    assert config_rows([run({"a": {"b": 1}}), run({"a": {"b": 1.5}, "c": None})]) == [
        ["a.b", "1", "1.5"],
        ["c", "–", "–"],
    ]


def test_models_seeds_sizes_and_scale_that_differ_are_rows() -> None:
    first = plan(30, "a", "b", seeds=[0, 1], plan={"depths": [1, 2]}, measurements={"samples": 10})
    second = plan(30, "a", "b", "c", seeds=[0], plan={"depths": [1]}, measurements={"samples": 20})
    second["runs"]["b"]["training"]["num_steps"] = 50
    assert config_rows([run(first), run(second, scale="gpu")]) == [
        ["scale", "small", "gpu"],
        ["seeds", "0, 1", "0"],
        ["plan.depths", "1, 2", "1"],
        ["measurements.samples", "10", "20"],
        ["models missing in some runs", "none", "c"],
        ["training.num_steps (b)", "30", "50"],
    ]


def test_findings_stand_beside_each_other_by_title() -> None:
    one = Finding(title="deep", text="", verdict="reproduced", value=0.5, low=0.4, high=0.6)
    two = Finding(title="deep", text="", verdict="inconclusive")
    rows = finding_rows([run(findings=(one,)), run(findings=(Finding(title="wide", text="", verdict="open"), two))])
    assert [row["title"] for row in rows] == ["deep", "wide"]
    assert [rows[0]["runs"][i]["verdict"] for i in (0, 1)] == ["reproduced", "inconclusive"]
    assert (rows[0]["runs"][0]["value"], rows[0]["runs"][0]["interval"]) == ("0.50", "0.40, 0.60")
    assert rows[1]["runs"][0] is None
    assert verdict_summary([one, one, two]) == "2 supported, 1 undecided"
    assert verdict_summary([]) == ""


def test_the_page_of_two_runs_says_what_differs(tmp_path: Path) -> None:
    folders = [
        demo_folder(tmp_path / name, num_figures=1, config=plan(steps, "model", seeds=[0, 1, 2]))
        for name, steps in (("before", 30), ("after", 40))
    ]
    findings = store.read_json(folders[1] / "findings.json")
    store.write_json(folders[1] / "findings.json", [findings[0] | {"verdict": "inconclusive"}])
    source = render(folders)
    tree = Tree(source)
    assert '<tr class="difference"><td>training.num_steps</td><td>30</td><td>40</td></tr>' in source
    assert source.count('class="difference"') == 1
    assert "1 supported, 1 contradicted, 1 undecided, 1 open" in tree.text
    assert "3 seeds" in tree.text
    start = source.index('<table class="beside">')
    beside = source[start : source.index("</table>", start)]
    assert beside.index(">before<") < beside.index(">after<")
    assert beside.count(">undecided<") == 2
    other = demo_folder(tmp_path / "other", num_figures=0, experiment="another")
    assert "Differences" not in render([folders[0], other])
    assert "Differences" not in render([folders[0]])
    again = demo_folder(tmp_path / "again", num_figures=0, config=plan(30, "model", seeds=[0, 1, 2]))
    assert "the configurations are equal" in render([folders[0], again])


def test_a_long_table_of_differences_is_cut_and_says_so(tmp_path: Path) -> None:
    configs = [{f"key{i}": i + shift for i in range(MOST_ROWS + 5)} for shift in (0, 1)]
    folders = [demo_folder(tmp_path / str(i), num_figures=0, config=config) for i, config in enumerate(configs)]
    source = render(folders)
    assert source.count('class="difference"') == MOST_ROWS
    assert "5 further values differ" in source


def merged(one: Any, two: Any) -> list[Any]:
    figures = compare({"a": [a_figure(one)], "b": [a_figure(two)]})
    return [panel for figure in figures for panel in figure.panels]


def test_heat_maps_stand_side_by_side_with_their_difference() -> None:
    first, second, change = merged(heat(z=((1.0, None),)), heat(z=((3.0, 5.0),)))
    assert [(panel.title, panel.z_min, panel.z_max) for panel in (first, second)] == [("a", 1.0, 5.0), ("b", 1.0, 5.0)]
    assert isinstance(change, Heatmap)
    assert change.title == "b minus a"
    assert change.z == ((2.0, None),)
    assert len(merged(heat(), heat(x=("a", "other")))) == 2
    assert len(merged(heat(z=((0, 0),)), heat(z=((0, 0),)))) == 3
    assert merged(heat(), heat(z_label="another unit")) == []


def test_points_stand_side_by_side() -> None:
    found = merged(packed(title="beliefs"), packed(title="beliefs"))
    assert [panel.title for panel in found] == ["beliefs: a", "beliefs: b"]
    assert all(isinstance(panel, DenseScatter) for panel in found)


def test_explorers_get_a_list_of_the_runs() -> None:
    optimum = curve("t", "", role="optimum")
    (panel,) = merged(explorer(curve("t", "m"), optimum), explorer(curve("t", "m", y=(0.1, 0.2)), optimum))
    assert isinstance(panel, Explorer)
    assert panel.choices == ("run", "task", "model")
    assert [one.values for one in panel.curves] == [("a", "t", "m"), ("b", "t", "m"), ("", "t", "")]
    assert [one.name for one in still(panel).series] == ["a", "b", "optimum"]
    named = explorer(curve("t", "m", name="own"))
    assert [one.name for one in still(merged(named, named)[0]).series] == ["own, a", "own, b"]
    full = explorer(curve(*"abcde"), choices=tuple("abcde"))
    assert merged(full, full) == []


def test_panels_are_found_by_their_titles_and_bars_by_their_categories() -> None:
    found = compare({
        "a": [a_figure(lines(title="one"), lines(title="two"))],
        "b": [a_figure(lines(title="two", series=(line(y=(0.1, 0.2)),)))],
    })  # fmt: skip
    (panel,) = found[0].panels
    assert isinstance(panel, Lines)
    assert panel.title == "two"
    assert [one.y for one in panel.series] == [(0.5, 0.6), (0.1, 0.2)]
    three = bars(categories=("b", "c", "a"), series=(line(x=(), y=(1, 2, 3), low=(0, 0, 0), high=(4, 4, 4)),))
    (both,) = merged(bars(), three)
    assert isinstance(both, Bars)
    assert both.categories == ("a", "b")
    assert [one.y for one in both.series] == [(0.5, 0.6), (3.0, 1.0)]
    assert merged(bars(), bars(categories=("x", "y"))) == []


def test_figures_without_a_model_compare_what_they_have() -> None:
    (panel,) = merged(lines(series=(line(role="other"),)), lines(series=(line(role="other"),)))
    assert [one.name for one in panel.series] == ["a", "b"]
    assert merged(lines(series=(line(role="control"),)), lines(series=(line(role="control"),))) == []
