"""What the tests of report share."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmmscope.errors import DamagedError, InputError
from hmmscope.lab.evidence.figure import (
    Bars,
    DenseScatter,
    Explorer,
    ExplorerCurve,
    Figure,
    Heatmap,
    Lines,
    Panel,
    Series,
)
from hmmscope.lab.evidence.scatter_data import CORNERS, BeliefPlane, pack_colours, pack_places
from hmmscope.lab.report import page, plots
from hmmscope.lab.report.folder import read_experiment
from hmmscope.storage import store

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
    curves = [
        ExplorerCurve(values=(task, model, length), x=(0, 1, 2), y=(0.2, 0.3, 0.4 + length / 100 - shift))
        for task in ("matching", "copying") for model in ("1 layer", "2 layers", "3 layers") for length in (16, 32)
    ]  # fmt: skip
    curves += [
        ExplorerCurve(values=(task, "", ""), x=(0, 2), y=(0.7, 0.7), role="optimum", name="Bayes filter")
        for task in ("matching", "copying")
    ]
    choose = Explorer(
        title="", x_label="epoch", y_label="accuracy", choices=("task", "model", "length"), curves=tuple(curves)
    )
    corners = generator.dirichlet((1, 1, 1), 40)
    beliefs = (
        BeliefPlane.triangle("exact", corners, corners),
        BeliefPlane.triangle("layer 1", 0.9 * corners + 0.03, corners),
    )
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
        Figure(name="choose", title="Every model", caption="By task and length.", panels=(choose,)),
        Figure(name="triangle", title="Beliefs", caption="Each in its own colour.", panels=beliefs),
    ]  # fmt: skip


def demo_folder(path: Path, seed: int = 0, shift: float = 0.0, num_figures: int = 9, **about: Any) -> Path:
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
            "title": "One head carries the copy", "verdict": "open", "unit": "", "value": None, "low": None, "high": None,
            "text": "Shuffling head 3 of layer 2 costs more than all others together.",
        },
    ]  # fmt: skip
    for folder in (path / "figures", path / "tables"):
        folder.mkdir(parents=True)
    store.write_json(path / "experiment.json", document)
    store.write_json(path / "findings.json", findings)
    for number, figure in enumerate(demo_figures(seed, shift)[:num_figures]):
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


def line(**changes: Any) -> Series:
    return Series(**{"name": "m", "x": (1.0, 2.0), "y": (0.5, 0.6), "role": "model", **changes})


def lines(**changes: Any) -> Lines:
    return Lines(**{"title": "", "x_label": "x", "y_label": "y", "series": (line(),), **changes})


def heat(**changes: Any) -> Heatmap:
    labels = {"title": "", "x_label": "", "y_label": "", "z_label": ""}
    return Heatmap(**{**labels, "x": ("a", "b"), "y": ("c",), "z": ((1.0, None),), **changes})


def bars(**changes: Any) -> Bars:
    return Bars(**{"title": "", "y_label": "y", "categories": ("a", "b"), "series": (line(x=()),), **changes})


def packed(**changes: Any) -> DenseScatter:
    """Six points, before and after."""
    corners = [[x, y] for x in (0.0, 1.0) for y in (0.0, 0.5, 1.0)]
    places = tuple(pack_places([[scale * x, y] for x, y in corners]) for scale in (1.0, 0.5))
    colours = pack_colours([[0.2, 0.5, 0.9]] * 6)
    return DenseScatter(
        **{"title": "", "slider": "step", "frames": (0, 8), "places": places, "colours": colours, **changes}
    )


def curve(*values: Any, **changes: Any) -> ExplorerCurve:
    return ExplorerCurve(**{"values": values or ("a", "b"), "x": (1.0, 2.0), "y": (0.5, 0.6), **changes})


def explorer(*curves: ExplorerCurve, **changes: Any) -> Explorer:
    labels = {"title": "", "x_label": "x", "y_label": "y", "choices": ("task", "model")}
    return Explorer(**{**labels, "curves": curves or (curve(),), **changes})


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
    "a cloud without a frame": lambda: packed(frames=(), places=()),
    "a frame without points": lambda: packed(frames=(0, 8, 9)),
    "a frame of fewer points": lambda: packed(places=(pack_places([[0, 0]]),) * 2),
    "two corners": lambda: packed(corners=("A", "B"), outline="AAAABBBB"),
    "corners without places": lambda: packed(corners=("A", "B", "C")),
    "places that are no base64": lambda: packed(places=("<b>!" * 6,) * 2),
    "no curve": lambda: explorer(curves=()),
    "no choice": lambda: explorer(curve("a"), choices=()),
    "six choices": lambda: explorer(curve(*"abcdef"), choices=tuple("abcdef")),
    "one choice twice": lambda: explorer(choices=("task", "task")),
    "values and choices": lambda: explorer(curve("a")),
    "a choice without values": lambda: explorer(curve("a", "")),
    "a curve twice": lambda: explorer(curve(), curve()),
    "overlay": lambda: explorer(overlay="depth"),
    "curve without points": lambda: curve(x=(), y=()),
    "role of a curve": lambda: curve(role="modell"),
    "low above high of a curve": lambda: curve(low=(0.9, 0.1), high=(0.8, 0.9)),
    "logarithm of zero in an explorer": lambda: explorer(log_y=True, y_min=0.0),
    "name with a slash": lambda: a_figure(name="../f"),
    "not a panel": lambda: a_figure(panels=(Panel(title=""),)),
    "kind": lambda: Figure.from_data({**a_figure().to_data(), "panels": [{"kind": "pie"}]}),
    "kind that is a list": lambda: Figure.from_data({**a_figure().to_data(), "panels": [{"kind": []}]}),
    "unknown key": lambda: Figure.from_data({**a_figure().to_data(), "colour": "red"}),
    "missing key": lambda: Figure.from_data({"name": "f", "panels": []}),
    "not a mapping": lambda: Figure.from_data([]),
}


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
    "packed points": packed,
    "beliefs": lambda: BeliefPlane.triangle("", np.eye(3), np.eye(3)),
    "one belief": lambda: BeliefPlane.triangle("", [[0.2, 0.3, 0.5]], [[0.2, 0.3, 0.5]]),
    "many beliefs": lambda: BeliefPlane.triangle("", np.full((4000, 3), 1 / 3), np.full((4000, 3), 1 / 3)),
    "explorer": explorer,
    "explorer with intervals": lambda: explorer(
        curve(low=(0, 0), high=(1, 1)), curve("a", "c", role="optimum"), log_y=True
    ),
    "large heatmap": lambda: heat(x=range(200), y=range(40), z=[[i * j for j in range(200)] for i in range(40)]),
}


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
        self.tags.append(
            (tag, [(name, "" if name in ("aria-label", "data-table") else value) for name, value in attrs])
        )
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


def copy_of(folder: Path, path: Path, change: Callable[[dict], dict]) -> Path:
    """A folder with the same figures and other words about it."""
    (path / "figures").mkdir(parents=True)
    for file in (folder / "figures").iterdir():
        (path / "figures" / file.name).write_bytes(file.read_bytes())
    (path / "findings.json").write_bytes((folder / "findings.json").read_bytes())
    store.write_json(path / "experiment.json", change(store.read_json(folder / "experiment.json")))
    return path


def render(folders: list[Path]) -> str:
    """The page of these folders."""
    return page.render_page([read_experiment(path) for path in folders])


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
    "table": (DamagedError, "t.jsonl:2", lambda path: (path / "tables" / "t.jsonl").write_text('{"a": 1}\n[1]\n')),
    "cut table": (DamagedError, "t.jsonl:1", lambda path: (path / "tables" / "t.jsonl").write_text('{"a": 1}')),
}  # fmt: skip


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
    finding = {"title": p, "text": p, "verdict": "open", "value": 1.5, "low": 1.0, "high": 2.0, "unit": p}
    roles = ("model", "optimum", "baseline")
    series = tuple(line(name=f"{p}{i}", role=role, low=(0, 0), high=(1, 1)) for i, role in enumerate(roles))
    panels = (
        lines(title=p, x_label=p, y_label=p, series=series),
        bars(title=p, y_label=p, categories=(p, p), series=tuple(replace(one, x=()) for one in series)),
        heat(title=p, x_label=p, y_label=p, z_label=p, x=(p, p), y=(p,)),
        packed(title=p, slider=p, frames=(p, f"{p} 2"), corners=(p, p, p), outline=pack_places(CORNERS)),
        explorer(
            curve(p, f"{p}1"), curve(p, f"{p}2"), curve(p, "", name=p, role="optimum"),
            title=p, x_label=p, y_label=p, choices=(p, f"{p}1"),
        ),
    )  # fmt: skip
    # Written as JSON with escapes, as a stranger would: the halves of surrogate pairs cannot be written otherwise.
    (path / "experiment.json").write_text(json.dumps(about))
    (path / "findings.json").write_text(json.dumps([finding]))
    figure = a_figure(*panels, title=p, caption=p)
    (path / "figures" / "00-f.json").write_text(json.dumps(figure.to_data()))
    (path / "tables" / "t.jsonl").write_text(json.dumps({p: p, "other": [p]}) + "\n")
    return path


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(render([hostile_folder(tmp_path_factory.mktemp("twin") / "run", "harmless")]))


def strings(value: Any) -> list[str]:
    """Every text in plain data, keys among them."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [one for pair in value.items() for part in pair for one in strings(part)]
    return [one for part in value for one in strings(part)] if isinstance(value, list) else []
