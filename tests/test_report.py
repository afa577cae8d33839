"""Figures, their two renderings, and the page: what it shows, and that no text in it can act (F4, F5, F6, F8, A4)."""

import base64
import errno
import hashlib
import io
import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from PIL import Image

from hmmscope import disk, store
from hmmscope.errors import DamagedError, InputError, RefusedError, ResourceError
from hmmscope.figures import Bars, Figure, Heatmap, Lines, Panel, Series
from hmmscope.report import interactive, look, page, plots, text
from hmmscope.report.compare import compare
from hmmscope.report.folder import read_experiment

# ---------------------------------------------------------------------------------------------------------------------
# An experiment of invented numbers, alike in shape to what quickstart makes


def demo_figures(seed: int = 0, shift: float = 0.0) -> list[Figure]:
    """Figures with every kind of panel and every role; `shift` moves the model."""
    generator = np.random.default_rng(seed)

    def wobble(size: int, scale: float) -> np.ndarray:
        return generator.normal(size=size) * scale

    def series(name: str, role: Any, x: Any, y: Any, width: Any = None) -> Series:
        ends = {} if width is None else {"low": tuple(y - width), "high": tuple(y + width)}
        return Series(name=name, role=role, x=tuple(x), y=tuple(y), **ends)

    shots = np.arange(0, 17)
    rise = 1 - np.exp(-shots / 3.2)
    accuracy = (
        series("Transformer", "model", shots, 0.11 + (0.46 - shift) * rise + wobble(17, 0.006), 0.012 + 0.012 * rise),
        series("Bayes mixture", "optimum", shots, 0.12 + 0.49 * (1 - np.exp(-shots / 2.6))),
        series("component known", "ceiling", shots, np.full(17, 0.635)),
        series("2-gram of the prompt", "baseline", shots, 0.08 + 0.30 * (1 - np.exp(-shots / 5)) + wobble(17, 0.004)),
        series("most frequent", "baseline", shots, 0.10 + 0.09 * (1 - np.exp(-shots / 4))),
    )
    surprise = tuple(
        replace(one, y=tuple(2.9 - 2.6 * value for value in one.y), low=None, high=None) for one in accuracy
    )
    steps = np.unique(np.round(np.geomspace(1, 20000, 120)))
    excess = 2.2 / (1 + (steps / 300) ** 1.4) + 0.02 + shift
    training = (
        series("Transformer", "model", steps, excess * np.exp(wobble(len(steps), 0.05)), 0.2 * excess),
        series("LSTM", "model", steps, 2.4 / (1 + (steps / 900) ** 1.1) + 0.12, 0.02 + 0.1 * excess),
        series("untrained", "control", steps[[0, -1]], np.array([2.3, 2.3])),
    )
    layers = np.arange(0, 9)
    bump = np.exp(-((layers - 5) ** 2) / 8)
    probes = (
        Lines(
            title="component", x_label="layer", y_label="probe accuracy", y_min=0, y_max=1,
            series=(
                series("Transformer", "model", layers, 0.15 + (0.7 - shift) * bump, np.full(9, 0.03)),
                series("Bayes posterior", "optimum", layers, np.full(9, 0.91)),
                series("untrained model", "control", layers, np.full(9, 0.16) + wobble(9, 0.01), np.full(9, 0.02)),
                series("shuffled labels", "control", layers, np.full(9, 0.125)),
            ),
        ),
        Lines(
            title="belief state", x_label="layer", y_label="R² of the belief", y_min=0, y_max=1,
            series=(
                series("Transformer", "model", layers, 0.2 + 0.72 * (1 - np.exp(-layers / 2)), np.full(9, 0.02)),
                series("untrained model", "control", layers, np.full(9, 0.21), np.full(9, 0.02)),
            ),
        ),
    )  # fmt: skip
    heads = Heatmap(
        title="", x_label="head", y_label="layer", z_label="excess loss (nats)",
        x=tuple(range(8)), y=tuple(range(8)),  # type: ignore[arg-type]
        z=tuple(tuple(float(value) for value in row) for row in 0.4 * generator.random((8, 8)) ** 6),
    )  # fmt: skip
    offsets = np.arange(0, 33)
    attention = tuple(
        Lines(
            title=title, x_label="offset into the past", y_label="attention" if i == 0 else "",
            series=(series("Transformer", "model", offsets, np.exp(-((offsets - i) ** 2) / (1 + 3 * i)), 0.02),),
            y_min=0,
        )
        for i, title in enumerate(("layer 0", "layer 1", "layer 2"))
    )  # fmt: skip
    summary = Bars(
        title="", y_label="accuracy at 16 demonstrations", categories=("2 states", "4 states", "8 states"),
        series=(
            Series(name="Transformer", role="model", y=(0.71, 0.64, 0.57), low=(0.69, 0.62, 0.54), high=(0.73, 0.66, 0.59)),
            Series(name="LSTM", role="model", y=(0.70, 0.58, 0.41), low=(0.68, 0.55, 0.37), high=(0.72, 0.60, 0.45)),
            Series(name="2-gram of the prompt", role="baseline", y=(0.61, 0.49, 0.38)),
            Series(name="Bayes mixture", role="optimum", y=(0.73, 0.67, 0.61)),
            Series(name="component known", role="ceiling", y=(0.74, 0.69, 0.635)),
        ),
    )  # fmt: skip
    signed = Heatmap(
        title="", x_label="offset", y_label="layer", z_label="change of log-likelihood (nats)",
        x=tuple(f"−{i}" for i in range(24)), y=("embedding", *(f"layer {i}" for i in range(5))),
        z=tuple((*(math.sin(i * j / 9) * math.exp(-j / 9) for j in range(23)), None) for i in range(6)),
    )  # fmt: skip
    return [
        Figure(
            name="in-context", title="In-context learning reaches the Bayes optimum",
            caption="Next-observation accuracy and loss against the number of demonstrations in the prompt. "
            "Bands: 95% intervals over 3 seeds. The optimum averages over all 64 components exactly.",
            panels=(
                Lines(title="accuracy", x_label="demonstrations", y_label="accuracy", series=accuracy, y_min=0),
                Lines(title="loss", x_label="demonstrations", y_label="nats per token", series=surprise),
            ),
        ),
        Figure(
            name="training", title="Excess loss over the optimum during training",
            caption="KL divergence from the exact next-observation distribution, held-out prompts.",
            panels=(
                Lines(title="", x_label="step", y_label="excess loss (nats)", series=training, log_x=True, log_y=True),
            ),
        ),
        Figure(name="probes", title="What each layer knows", caption="Linear probes.", panels=probes),
        Figure(name="heads", title="Shuffling one head", caption="Excess loss after shuffling.", panels=(heads,)),
        Figure(name="attention", title="Where the heads look", caption="Mean weight by offset.", panels=attention),
        Figure(name="states", title="More states are harder", caption="Dashes: the optimum.", panels=(summary,)),
        Figure(name="patching", title="Patching", caption="Both signs, one missing column.", panels=(signed,)),
    ]  # fmt: skip


def demo_folder(path: Path, seed: int = 0, shift: float = 0.0, **about: Any) -> Path:
    """A folder as an experiment leaves it."""
    document = {
        "experiment": "quickstart",
        "title": "A small Transformer learns hidden Markov models in context",
        "summary": "A Transformer of 0.6 M parameters is trained on prompts from a mixture of 64 hidden Markov models "
        "and judged on held-out prompts beside the exact Bayes mixture, which is the best any predictor can do.",
        "scale": "small",
        "created": "2026-11-21",
        "version": "0.1.0",
        "config": {"training": {"steps": 20000, "learning_rate": 0.001}, "model": {"name": "roformer", "width": 128}},
        "command": "hmmscope run quickstart --scale small --out runs/quickstart",
        "facts": [
            {"name": "parameters", "value": "560,000"},
            {"name": "process", "value": "64 components, 8 states, 8 symbols"},
            {"name": "training tokens", "value": "163.8 M"},
            {"name": "seeds", "value": "3"},
            {"name": "wall time", "value": "4 min 12 s, 2 cores"},
        ],
        "invalid": None,
        "intervals": "Intervals are 95% bootstrap intervals over seeds and sequences.",
        **about,
    }
    findings = [
        {
            "title": "In-context accuracy reaches the optimum", "verdict": "reproduced", "unit": "",
            "text": "With 16 demonstrations the model has 0.93 of the accuracy that the Bayes mixture has.",
            "value": 0.9312, "low": 0.9104, "high": 0.9497,
        },
        {
            "title": "The loss plateaus before it falls", "verdict": "not reproduced", "unit": "steps",
            "text": "No plateau of 500 steps was seen at this scale.", "value": 140, "low": 60, "high": 240,
        },
        {
            "title": "Deeper layers hold the component", "verdict": "inconclusive", "unit": "nats",
            "text": "The interval of the difference between layers 3 and 5 contains zero.",
            "value": 0.0123, "low": -0.004, "high": 0.031,
        },
        {
            "title": "One head carries the copy", "verdict": "found", "unit": "", "value": None, "low": None, "high": None,
            "text": "Shuffling head 3 of layer 2 costs more than all others together.",
        },
    ]  # fmt: skip
    for folder in (path / "figures", path / "tables"):
        folder.mkdir(parents=True)
    store.write_json(path / "experiment.json", document)
    store.write_json(path / "findings.json", findings)
    for number, figure in enumerate(demo_figures(seed, shift)):
        write_figure(path / "figures" / f"{number:02d}-{figure.name}", figure)
    rows = [
        {"demonstrations": i, "model": 0.1 + i / 1e3, "kind": "held out", "loss": None if i == 3 else 2e5 / (i + 1)}
        for i in range(250)
    ]
    store.write_table(path / "tables" / "in-context.jsonl", rows)
    return path


def write_figure(stem: Path, figure: Figure) -> None:
    store.write_json(stem.with_suffix(".json"), figure.to_data())
    for suffix, data in plots.figure_files(figure).items():
        stem.with_suffix(f".{suffix}").write_bytes(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_folder(tmp_path_factory.mktemp("runs") / "quickstart")


# ---------------------------------------------------------------------------------------------------------------------
# Figures


@pytest.mark.parametrize("figure", demo_figures(), ids=lambda figure: figure.name)
def test_a_figure_survives_json(figure: Figure) -> None:
    assert Figure.from_data(json.loads(json.dumps(figure.to_data()))) == figure


def line(**changes: Any) -> Series:
    return Series(**{"name": "m", "x": (1.0, 2.0), "y": (0.5, 0.6), "role": "model", **changes})


def lines(**changes: Any) -> Lines:
    return Lines(**{"title": "", "x_label": "x", "y_label": "y", "series": (line(),), **changes})


def heat(**changes: Any) -> Heatmap:
    labels = {"title": "", "x_label": "", "y_label": "", "z_label": ""}
    return Heatmap(**{**labels, "x": ("a", "b"), "y": ("c",), "z": ((1.0, None),), **changes})


def bars(**changes: Any) -> Bars:
    return Bars(**{"title": "", "y_label": "y", "categories": ("a", "b"), "series": (line(x=()),), **changes})


def a_figure(*panels: Panel, **changes: Any) -> Figure:
    return Figure(**{"name": "f", "title": "t", "caption": "c", "panels": panels or (lines(),), **changes})


WRONG: dict[str, Callable[[], Any]] = {
    "lengths of x and y": lambda: line(x=(1.0,)),
    "lengths of y and low": lambda: line(low=(0.1,), high=(0.9,)),
    "low without high": lambda: line(low=(0.1, 0.1)),
    "low above high": lambda: line(low=(0.9, 0.1), high=(0.8, 0.9)),
    "nan": lambda: line(y=(math.nan, 1.0)),
    "infinity": lambda: line(x=(0.0, math.inf)),
    "role": lambda: line(role="modell"),
    "lines without x": lambda: lines(series=(line(x=()),)),
    "lines without series": lambda: lines(series=()),
    "one name twice": lambda: lines(series=(line(), line())),
    "range": lambda: lines(y_min=1.0, y_max=0.0),
    "logarithm of zero": lambda: lines(log_y=True, y_min=0.0),
    "bars with x": lambda: bars(series=(line(),)),
    "bars and categories": lambda: bars(categories=("a",)),
    "rows": lambda: heat(z=()),
    "columns": lambda: heat(z=((1.0,),)),
    "nan in a heat map": lambda: heat(z=((1.0, math.nan),)),
    "no panel": lambda: a_figure(panels=()),
    "name with a slash": lambda: a_figure(name="../f"),
    "not a panel": lambda: a_figure(panels=(Panel(title=""),)),
    "kind": lambda: Figure.from_data({**a_figure().to_data(), "panels": [{"kind": "pie"}]}),
    "kind that is a list": lambda: Figure.from_data({**a_figure().to_data(), "panels": [{"kind": []}]}),
    "unknown key": lambda: Figure.from_data({**a_figure().to_data(), "colour": "red"}),
    "missing key": lambda: Figure.from_data({"name": "f", "panels": []}),
    "not a mapping": lambda: Figure.from_data([]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_figure_is_refused_in_one_line(wrong: str) -> None:
    with pytest.raises(InputError) as caught:
        WRONG[wrong]()
    assert "\n" not in str(caught.value)


def test_an_error_names_the_path_of_the_field() -> None:
    data = a_figure().to_data()
    data["panels"][0]["series"][0]["rolle"] = "model"
    with pytest.raises(InputError, match=r"figure\.panels\[0\]\.series\[0\]\.rolle.*did you mean 'role'"):
        Figure.from_data(data)


def test_numbers_of_numpy_become_floats_and_labels_text() -> None:
    assert type(line(y=np.float32([0.5, 0.25])).y[1]) is float
    assert heat(x=(1, 2)).x == ("1", "2")


# ---------------------------------------------------------------------------------------------------------------------
# Two renderings

KINDS: dict[str, Callable[[], Panel]] = {
    "lines": lines,
    "one point": lambda: lines(series=(line(x=(1,), y=(2,)),)),
    "logarithmic": lambda: lines(series=(line(low=(-0.1, 0), high=(1, 1)),), log_x=True, log_y=True),
    "logarithmic, nothing above zero": lambda: lines(series=(line(x=(-1, 0), y=(0, -1)),), log_x=True, log_y=True),
    "range": lambda: lines(y_min=0.0),
    "bars": bars,
    "bars with intervals": lambda: bars(series=(line(x=(), low=(0, 0), high=(1, 1)), line(x=(), name="b"))),
    "marks only": lambda: bars(series=(line(x=(), role="optimum"),)),
    "heatmap": heat,
    "heatmap of both signs": lambda: heat(z=((-1, 1),)),
    "heatmap of nothing": lambda: heat(z=((None, None),)),
    "heatmap of one value": lambda: heat(z=((2.0, 2.0),)),
    "large heatmap": lambda: heat(x=range(200), y=range(40), z=[[i * j for j in range(200)] for i in range(40)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_both_renderers_draw_every_kind(kind: str) -> None:
    figure = a_figure(KINDS[kind](), name="f")
    assert len(plots.draw(figure).axes) >= 1
    files = plots.figure_files(figure)
    assert files["pdf"].startswith(b"%PDF")
    image = Image.open(io.BytesIO(files["png"]))
    assert image.width > 500
    assert len(image.convert("L").getcolors()) > 8
    plot = interactive.panel_plot(figure.panels[0], look.looks(figure))
    assert plot["data"]
    assert json.dumps(plot, allow_nan=False)


def test_equal_figures_give_equal_bytes_whatever_the_settings_of_the_caller() -> None:
    figure = demo_figures()[2]
    first = plots.figure_files(figure)
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 20, "axes.grid": True, "lines.linewidth": 9}):
        assert plots.figure_files(figure) == first
    assert dict(matplotlib.rcParams) == before
    assert b"CreationDate" not in first["pdf"]
    assert b"/Producer" not in first["pdf"]


def test_a_role_has_one_look_everywhere() -> None:
    everywhere = [look.looks(figure) for figure in demo_figures()]
    assert len({found["model", "Transformer"] for found in everywhere if ("model", "Transformer") in found}) == 1
    optimum = {how for found in everywhere for (role, _), how in found.items() if role == "optimum"}
    assert len(optimum) == 1
    assert optimum.pop().color == "#000000"


def test_series_of_one_figure_can_be_told_apart_without_colour() -> None:
    series = [line(name=f"{role} {i}", role=role) for role in ("model", "baseline", "control") for i in range(4)]
    shapes = {
        role: [
            (how.dash, how.marker)
            for (r, _), how in look.looks(a_figure(lines(series=tuple(series)))).items()
            if r == role
        ]
        for role in ("model", "baseline")
    }
    assert all(len(set(found)) == 4 for found in shapes.values())


def test_points_a_logarithmic_axis_cannot_show_are_counted() -> None:
    assert lines(series=(line(x=(0, 1), y=(1, -1)),), log_y=True, log_x=True).num_hidden == 2
    assert lines(series=(line(x=(0, 1), y=(1, -1)),)).num_hidden == 0


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (0.9312, 0.9104, 0.9497, ("0.931", "0.910, 0.950")),
        (-0.0012, -0.004, 0.031, ("−0.001", "−0.004, 0.031")),
        (140.0, 60.0, 240.0, ("140", "60, 240")),
        (560000.0, None, None, ("560,000", None)),
        (2.0, 2.0, 2.0, ("2", "2, 2")),
    ],
)
def test_numbers_have_the_digits_their_interval_supports(
    value: float, low: float | None, high: float | None, expected: tuple[str, str | None]
) -> None:
    assert text.format_interval(value, low, high) == expected


# ---------------------------------------------------------------------------------------------------------------------
# The page


class Tree(HTMLParser):
    """Tags with their attributes, the text, and the text of scripts, of a page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text, self.scripts = "", [""]
        self._inside = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, [(name, "" if name == "alt" else value) for name, value in attrs]))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", []))
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", []))

    def unknown_decl(self, data: str) -> None:
        self.tags.append(("declaration", []))


def attributes(tree: Tree) -> list[tuple[str, str]]:
    return [(name, value or "") for _, attrs in tree.tags for name, value in attrs]


def test_the_page_shows_everything(folder: Path, tmp_path: Path) -> None:
    out = page.write_page([folder], tmp_path / "page.html")
    assert out == tmp_path / "page.html"
    source = out.read_text(encoding="utf-8")
    tree = Tree(source)
    experiment = read_experiment(folder)
    about = experiment.about
    for shown in (about.title, about.summary, about.command, about.version, about.intervals, about.created):
        assert shown
        assert shown in tree.text
    for fact in about.facts:
        assert fact.name in tree.text
        assert fact.value in tree.text
    for finding in experiment.findings:
        assert finding.title in tree.text
        assert finding.text in tree.text
        assert finding.verdict in tree.text
    assert "0.931" in tree.text
    assert "95% interval [0.910, 0.950]" in tree.text
    assert '"learning_rate": 0.001' in tree.text
    places = [source.index(f">{drawn.figure.title}<") for drawn in experiment.figures]
    assert places == sorted(places)
    for drawn in experiment.figures:
        assert drawn.figure.caption in tree.text
        assert base64.b64encode(drawn.png).decode() in source
    count = sum(len(drawn.figure.panels) for drawn in experiment.figures)
    assert len([1 for name, _ in attributes(tree) if name == "data-plot"]) == count
    assert len(json.loads(tree.scripts[1])) == count
    assert source.count("<tr>") == 201
    assert "The first 200 of 250 rows." in tree.text
    assert "quickstart/tables/in-context.jsonl" in tree.text
    assert "INVALID" not in tree.text


def test_the_page_fetches_nothing_and_its_policy_allows_only_its_scripts(folder: Path, tmp_path: Path) -> None:
    source = page.write_page([folder], tmp_path / "page.html").read_text(encoding="utf-8")
    tree = Tree(source)
    _data, bundle, script = tree.scripts[1:]
    policy = next(value for name, value in attributes(tree) if name == "content" and "default-src" in value)
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in (bundle, script)]
    assert re.findall(r"'sha256-([^']*)'", policy) == digests
    assert policy.startswith("default-src 'none'; ")
    assert "img-src data:;" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'unsafe-inline'" not in policy
    assert source.count(bundle) == 1
    assert "plotly.js" in bundle[:200]
    rest = source.replace(bundle, "")
    assert "http:" not in rest
    assert "https:" not in rest
    assert "@import" not in rest
    assert "url(" not in rest
    for name, value in attributes(tree):
        assert not name.startswith("on")
        assert name not in ("src", "href", "srcset", "action") or value.startswith(("data:image/png;base64,", "#"))
    assert str(tmp_path) not in source
    assert str(folder.parent) not in source


def test_an_invalid_run_is_banned_on_top(tmp_path: Path, folder: Path) -> None:
    other = copy_of(folder, tmp_path / "leaky", lambda about: about | {"invalid": "z = -7.2 below the optimum"})
    alone = render([other])
    assert alone.index("INVALID: z = -7.2 below the optimum") < alone.index("<h1>")
    both = render([folder, other])
    assert both.index("INVALID: leaky: z = -7.2 below the optimum") < both.index("<h1>")


def test_several_experiments_are_compared(tmp_path: Path, folder: Path) -> None:
    other = copy_of(folder, tmp_path / "second", lambda about: about | {"title": "Another"})
    source = render([folder, other])
    text = Tree(source).text
    assert "Compared: In-context learning reaches the Bayes optimum" in text
    assert 'href="#experiment-1"' in source
    assert 'id="experiment-2"' in source
    assert "Another" in text
    first, second = (read_experiment(path) for path in (folder, other))
    merged = compare({"a": [d.figure for d in first.figures], "b": [d.figure for d in second.figures]})
    assert [figure.name for figure in merged] == ["in-context", "training", "probes", "attention", "states"]
    panel = merged[0].panels[0]
    assert isinstance(panel, Lines)
    assert [(one.name, one.role) for one in panel.series] == [
        ("a", "model"), ("b", "model"), ("Bayes mixture", "optimum"), ("component known", "ceiling"),
        ("2-gram of the prompt", "baseline"), ("most frequent", "baseline"),
    ]  # fmt: skip


def test_references_that_differ_are_not_compared() -> None:
    def one(optimum: float) -> list[Figure]:
        return [a_figure(lines(series=(line(), line(name="Bayes", y=(optimum, optimum), role="optimum"))))]

    (same,) = compare({"a": one(0.7), "b": one(0.7)})
    (differ,) = compare({"a": one(0.7), "b": one(0.8)})
    assert [series.name for series in same.panels[0].series] == ["a", "b", "Bayes"]  # type: ignore[attr-defined]
    assert [series.name for series in differ.panels[0].series] == ["a", "b"]  # type: ignore[attr-defined]
    other_axis = [a_figure(lines(x_label="another"))]
    assert compare({"a": one(0.7), "b": other_axis}) == []
    assert compare({"a": one(0.7), "b": [a_figure(name="g")]}) == []


def test_folders_of_one_name_are_told_apart(tmp_path: Path, folder: Path) -> None:
    paths = [copy_of(folder, tmp_path / parent / "run", lambda about: about) for parent in ("a", "b")]
    source = render(paths)
    assert "a/run" in source
    assert "b/run" in source
    assert str(tmp_path) not in source
    with pytest.raises(InputError, match="twice"):
        page.write_page([paths[0], paths[0]], tmp_path / "page.html")


def copy_of(folder: Path, path: Path, change: Callable[[dict], dict]) -> Path:
    """A folder with the same figures and other words about it."""
    (path / "figures").mkdir(parents=True)
    for file in (folder / "figures").iterdir():
        (path / "figures" / file.name).write_bytes(file.read_bytes())
    (path / "findings.json").write_bytes((folder / "findings.json").read_bytes())
    store.write_json(path / "experiment.json", change(store.read_json(folder / "experiment.json")))
    return path


def render(folders: list[Path]) -> str:
    """The page without the weight of Plotly."""
    return page.render_page([read_experiment(path) for path in folders], "\n/* plotly */")


def test_the_page_is_the_same_each_time(folder: Path, tmp_path: Path) -> None:
    first, second = (page.write_page([folder], tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert first == second


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = page.write_page([folder], tmp_path / "page.html")
    before = out.read_bytes()

    def full(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "write", full)
    with pytest.raises(ResourceError, match="No space left"):
        page.write_page([folder], out)
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    monkeypatch.undo()
    with pytest.raises(RefusedError):
        page.write_page([folder], tmp_path)


def test_without_plotly_the_error_says_what_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ResourceError) as caught:
        page.write_page([folder], tmp_path / "page.html")
    assert str(caught.value) == "the page needs plotly: pip install 'hmmscope[report]'"
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------------------------------------------
# Damage


def edited(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        store.write_json(path / name, change(store.read_json(path / name)))

    return edit


def first_finding(**changes: Any) -> Callable[[Path], None]:
    return edited("findings.json", lambda found: [{**found[0], **changes}])


FIGURE = "figures/00-in-context.json"
DAMAGE: dict[str, tuple[type[Exception], str, Callable[[Path], Any]]] = {
    "no experiment.json": (InputError, "experiment.json", lambda path: (path / "experiment.json").unlink()),
    "no findings.json": (InputError, "findings.json", lambda path: (path / "findings.json").unlink()),
    "no png": (InputError, "00-in-context.png", lambda path: (path / FIGURE).with_suffix(".png").unlink()),
    "cut": (DamagedError, "experiment.json", lambda path: (path / "experiment.json").write_text('{"experi')),
    "list": (DamagedError, "experiment.json", lambda path: (path / "experiment.json").write_text("[]")),
    "missing title": (DamagedError, "experiment.json.*title", edited("experiment.json", lambda d: {
        key: value for key, value in d.items() if key != "title"})),
    "number as title": (DamagedError, "experiment.json.*title", edited("experiment.json", lambda d: d | {"title": 3})),
    "unknown key": (DamagedError, "experiment.json.*html", edited("experiment.json", lambda d: d | {"html": "<b>"})),
    "config": (DamagedError, "experiment.json.*config", edited("experiment.json", lambda d: d | {"config": "x"})),
    "facts": (DamagedError, "experiment.json.*facts", edited("experiment.json", lambda d: d | {"facts": [1]})),
    "verdict": (DamagedError, "findings.json.*verdict.*'proved'", first_finding(verdict="proved")),
    "half an interval": (DamagedError, "findings.json.*low", first_finding(high=None)),
    "interval of nothing": (DamagedError, "findings.json.*value", first_finding(value=None)),
    "findings": (DamagedError, "findings.json", lambda path: (path / "findings.json").write_text('{"a": 1}')),
    "nan": (DamagedError, "findings.json", lambda path: (path / "findings.json").write_text("[NaN]")),
    "figure": (DamagedError, FIGURE, edited(FIGURE, lambda d: d | {"name": "a/b"})),
    "figure of text": (DamagedError, FIGURE, lambda path: (path / FIGURE).write_text('"a"')),
    "not a png": (DamagedError, "not a PNG", lambda path: (path / FIGURE).with_suffix(".png").write_text("<svg>")),
    "table": (DamagedError, "t.jsonl:2", lambda path: (path / "tables" / "t.jsonl").write_text('{"a": 1}\n[1]\n')),
    "cut table": (DamagedError, "t.jsonl:1", lambda path: (path / "tables" / "t.jsonl").write_text('{"a": 1}')),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_line_that_names_the_file(damage: str, folder: Path, tmp_path: Path) -> None:
    path = copy_of(folder, tmp_path / "run", lambda about: about)
    (path / "tables").mkdir()
    error, message, spoil = DAMAGE[damage]
    spoil(path)
    with pytest.raises(error, match=message) as caught:
        page.write_page([path], tmp_path / "page.html")
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "page.html").exists()


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    for name in ("experiment.json", FIGURE, "figures/00-in-context.png"):
        path = copy_of(folder, tmp_path / name.replace("/", "-"), lambda about: about)
        (path / name).rename(tmp_path / "elsewhere")
        (path / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(DamagedError, match="link"):
            read_experiment(path)


def test_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs the folder"):
        page.write_page([], tmp_path / "page.html")
    with pytest.raises(InputError, match="not a folder"):
        page.write_page([tmp_path / "none"], tmp_path / "page.html")


# ---------------------------------------------------------------------------------------------------------------------
# Hostile text (F4, F5, F8)

HOSTILE = [
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", "</SCRIPT ><img src=x onerror=alert(1)>",
    "<!--", "-->", "<!--<script>", "]]>", "<![CDATA[<b>]]>", "</style><style>*{display:none}", "</title><h1>x",
    '"><svg onload=alert(1)>', "'><svg onload=alert(1)>", '" onmouseover="alert(1)', "' onfocus='alert(1)' autofocus='",
    "` onclick=alert(1) `", "<img src=https://example.org/x.png>", "<a href=javascript:alert(1)>x</a>",
    "<iframe srcdoc='<script>alert(1)</script>'>", "<base href=//example.org>", "<meta http-equiv=refresh content=0>",
    "<link rel=stylesheet href=//example.org>", "<form action=//example.org><input>", "</pre></details></main>",
    "<plaintext>", "<textarea>", "<noscript><p title='</noscript><img src=x>'>", "<math><mi//xlink:href='x'>",
    "{{ 7*7 }}", "{% raw %}", "{{ ''.__class__.__mro__ }}", "${alert(1)}", "%{customdata[0]}", "%3Cscript%3E",
    "&lt;script&gt;", "&#60;b&#62;", "\u2028alert(1)\u2029", "\x1b[31mred\x1b[0m", "\x1b]8;;x\x07link", "\x00null",
    "\x85next\x9bline", "\ud800", "\u202eevil\u2066", "\ufeff<b>", "$x_1$", "$\\frac{", "\\$", "_hidden",
    "line\nbreak\ttab", "<b>bold</b><br><sup>1</sup>", "__proto__", "constructor", "=1+1", "😀 мир 中文",
]  # fmt: skip


def hostile_folder(path: Path, payload: str) -> Path:
    """An experiment with `payload` wherever text can stand."""
    for folder in (path / "figures", path / "tables"):
        folder.mkdir(parents=True)
    p = payload
    about = {
        "experiment": p, "title": p, "summary": p, "scale": p, "created": p, "version": p, "command": p,
        "config": {p: {p: [p, 1]}}, "facts": [{"name": p, "value": p}], "invalid": p, "intervals": p,
    }  # fmt: skip
    finding = {
        "title": p,
        "text": p,
        "verdict": "found",
        "value": 1.5,
        "low": 1.0,
        "high": 2.0,
        "unit": p,
    }
    roles = ("model", "optimum", "baseline")
    series = tuple(line(name=f"{p}{i}", role=role, low=(0, 0), high=(1, 1)) for i, role in enumerate(roles))
    panels = (
        lines(title=p, x_label=p, y_label=p, series=series),
        bars(title=p, y_label=p, categories=(p, p), series=tuple(replace(one, x=()) for one in series)),
        heat(title=p, x_label=p, y_label=p, z_label=p, x=(p, p), y=(p,)),
    )
    # Written as JSON with escapes, as a stranger would: the halves of surrogate pairs cannot be written otherwise.
    (path / "experiment.json").write_text(json.dumps(about))
    (path / "findings.json").write_text(json.dumps([finding]))
    figure = a_figure(*panels, title=p, caption=p)
    (path / "figures" / "00-f.json").write_text(json.dumps(figure.to_data()))
    (path / "figures" / "00-f.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (path / "tables" / "t.jsonl").write_text(json.dumps({p: p, "other": [p]}) + "\n")
    return path


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(render([hostile_folder(tmp_path_factory.mktemp("twin") / "run", "harmless")]))


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_shown_and_nothing_else(payload: str, harmless: Tree, tmp_path: Path) -> None:
    source = render([hostile_folder(tmp_path / "run", payload)])
    tree = Tree(source)
    assert tree.tags == harmless.tags
    assert text.visible(payload) in tree.text
    assert len(tree.scripts) == len(harmless.scripts)
    assert tree.scripts[2:] == harmless.scripts[2:]
    assert not re.search(r"[<>&\u2028\u2029]", tree.scripts[1])
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", source)
    for string in strings(json.loads(tree.scripts[1])):
        assert "<" not in string.replace("<extra></extra>", ""), "Plotly would read a tag"


def test_hostile_file_and_folder_names_are_shown_too(tmp_path: Path, harmless: Tree) -> None:
    path = hostile_folder(tmp_path / '"><img src=x onerror=alert(1)>', "harmless")
    (path / "tables" / "t.jsonl").rename(path / "tables" / "<b>'\x1b[31m.jsonl")
    tree = Tree(render([path]))
    assert tree.tags == harmless.tags
    assert "<b>'\\x1b[31m" in tree.text
    assert '"><img src=x onerror=alert(1)>' in tree.text


def test_the_comparison_of_trees_would_see_an_element_or_an_attribute() -> None:
    assert Tree("<p>&lt;b&gt;</p>").tags == Tree("<p>b</p>").tags
    assert Tree("<p><b></p>").tags != Tree("<p>b</p>").tags
    assert Tree("<p onclick=a>b</p>").tags != Tree("<p>b</p>").tags


def test_hostile_text_is_drawn_as_it_is(tmp_path: Path) -> None:
    for payload in ("$x_1$", "$\\frac{", "\\$", "_hidden", "\x1b[31m", "\ud800", "{{ 7*7 }}"):
        series = tuple(line(name=f"{payload}{i}") for i in range(2))
        figure = a_figure(
            lines(title=payload, x_label=payload, series=series), heat(x=(payload, payload), z_label=payload)
        )
        canvas = plots.draw(figure)
        names = [entry.get_text().replace(r"\$", "$") for entry in canvas.legends[0].get_texts()]
        assert names == [text.visible(one.name) for one in series]
        assert plots.figure_files(figure)["pdf"]


def strings(value: Any) -> list[str]:
    """Every text in plain data, keys among them."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [one for pair in value.items() for part in pair for one in strings(part)]
    return [one for part in value for one in strings(part)] if isinstance(value, list) else []
