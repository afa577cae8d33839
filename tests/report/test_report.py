"""Figures, their two renderings, and the page: what it shows, and that no text in it can act (F4, F5, F6, F8, A4)."""

import base64
import hashlib
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from hmmscope.errors import DamagedError, InputError
from hmmscope.lab.cli import main
from hmmscope.lab.evidence.figure import Figure
from hmmscope.lab.evidence.verdicts import DECIDED, answer_of
from hmmscope.lab.report import formatting as text
from hmmscope.lab.report import interactive, page, plots, series_style
from hmmscope.lab.report.folder import read_experiment
from hmmscope.storage import store
from report_cases import (
    KINDS,
    WRONG,
    Tree,
    a_figure,
    attributes,
    demo_figures,
    folder,  # noqa: F401 - fixtures
    heat,
    line,
    lines,
    render,
)

# ---------------------------------------------------------------------------------------------------------------------
# Figures


@pytest.mark.parametrize("figure", demo_figures(), ids=lambda figure: figure.name)
def test_a_figure_survives_json(figure: Figure) -> None:
    assert Figure.from_data(json.loads(json.dumps(figure.to_data()))) == figure


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


@pytest.mark.drawn(8)
@pytest.mark.parametrize("kind", KINDS)
def test_both_renderers_draw_every_kind(kind: str) -> None:
    figure = a_figure(KINDS[kind](), name="f")
    assert len(plots.draw(figure).axes) >= 1
    files = plots.figure_files(figure)
    assert files["pdf"].startswith(b"%PDF")
    image = Image.open(io.BytesIO(files["png"]))
    assert image.width > 500
    assert len(image.convert("L").getcolors()) > 8
    data = interactive.figure_data(figure)
    assert len(data["panels"]) == len(figure.panels)
    assert json.dumps(data, allow_nan=False)


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
    everywhere = [series_style.styles(figure) for figure in demo_figures()]
    assert len({found["model", "Transformer"] for found in everywhere if ("model", "Transformer") in found}) == 1
    optimum = {how for found in everywhere for (role, _), how in found.items() if role == "optimum"}
    assert len(optimum) == 1
    assert optimum.pop().color == "#000000"


def test_series_of_one_figure_can_be_told_apart_without_colour() -> None:
    series = [line(name=f"{role} {i}", role=role) for role in ("model", "baseline", "control") for i in range(4)]
    shapes = {
        role: [
            (how.dash, how.marker)
            for (r, _), how in series_style.styles(a_figure(lines(series=tuple(series)))).items()
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


@pytest.mark.long
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
        assert answer_of(finding.verdict) in tree.text
    assert "0.931" in tree.text
    assert "95% interval [0.910, 0.950]" in tree.text
    assert '"learning_rate": 0.001' in tree.text
    places = [source.index(f">{figure.title} <") for figure in experiment.figures]
    assert places == sorted(places)
    for figure in experiment.figures:
        assert figure.caption in tree.text
    data = json.loads(tree.scripts[1])
    assert [one["name"] for one in data] == [f"quickstart-{figure.name}" for figure in experiment.figures]
    assert [len(one["panels"]) for one in data] == [len(figure.panels) for figure in experiment.figures]
    assert [value for name, value in attributes(tree) if name == "data-figure"] == [str(i) for i in range(len(data))]
    assert source.count("<tr>") == 201
    assert "The first 200 of 250 rows." in tree.text
    assert "quickstart/tables/in-context.jsonl" in tree.text
    assert "INVALID" not in tree.text


@pytest.mark.long
def test_the_page_fetches_nothing_and_its_policy_allows_only_its_scripts(folder: Path, tmp_path: Path) -> None:
    source = page.write_page([folder], tmp_path / "page.html").read_text(encoding="utf-8")
    tree = Tree(source)
    _data, *scripts = tree.scripts[1:]
    policy = next(value for name, value in attributes(tree) if name == "content" and "default-src" in value)
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    assert len(scripts) == 3
    assert re.findall(r"'sha256-([^']*)'", policy) == digests
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe-eval" not in policy
    assert "script-src 'unsafe-inline'" not in policy
    rest = source.replace("http://www.w3.org/2000/svg", "")  # the name of SVG, which nothing fetches
    assert "http:" not in rest
    assert "https:" not in rest
    assert "@import" not in rest
    assert "url(" not in rest.replace("url(#", "")
    for name, value in attributes(tree):
        assert not name.startswith("on")
        assert name not in ("src", "href", "srcset", "action") or value.startswith("#")
    assert str(tmp_path) not in source
    assert str(folder.parent) not in source


def test_the_page_is_small(folder: Path, tmp_path: Path) -> None:
    assert len(page.write_page([folder], tmp_path / "page.html").read_bytes()) < 400_000


def test_report_writes_nothing_into_its_inputs(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(folder, mine)
    for drawing in (*mine.rglob("*.pdf"), *mine.rglob("*.png")):
        drawing.unlink()
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    assert main(["report", str(mine), "-o", str(tmp_path / "page.html")]) == 0
    assert {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()} == before


def test_a_page_of_the_smallest_scale_says_so_and_has_no_verdicts(folder: Path, tmp_path: Path) -> None:
    """Also one whose folder was written when that scale still had verdicts."""
    smoke = tmp_path / "smoke"
    shutil.copytree(folder, smoke)
    about = store.read_json(smoke / "experiment.json")
    store.write_json(smoke / "experiment.json", about | {"scale": "smoke"})
    source = render([smoke])
    labels = re.findall(r'class="label ([a-z-]+)"', source)
    assert set(labels) == {"not-tested"} != set(re.findall(r'class="label ([a-z-]+)"', render([folder])))
    assert source.index('class="unjudged"') < source.index("<h1>")
    assert 'class="unjudged"' not in render([folder])


def test_the_page_says_what_was_asked_and_found_before_its_figure(folder: Path) -> None:
    source = render([folder])
    experiment = read_experiment(folder)
    places = [source.index(f"<b>{experiment.findings[0].title}</b>"), source.index('data-figure="0"')]
    places += [source.index(experiment.about.summary[:40]), source.index('aria-label="Contents"')]
    assert places == sorted(places)
    for folded in (experiment.about.command, '"learning_rate": 0.001'):
        at = source.index(folded.replace('"', "&#34;"))
        assert source.rfind("<details>", 0, at) > source.rfind("</details>", 0, at)


def test_every_link_of_the_contents_has_its_place(folder: Path) -> None:
    found = attributes(Tree(render([folder])))
    targets = [value for name, value in found if name == "id"]
    assert len(set(targets)) == len(targets)
    links = {value[1:] for name, value in found if name == "href"}
    assert links
    assert links <= set(targets)


def test_a_live_section_stands_in_the_page_of_its_experiment(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(folder, mine)
    process = {"states": ["a", "b"], "mixture": False}
    data = {"title": "rnn", "model": {"heads": 0}, "tensors": {}, "process": process, "layout": {}}
    data["readouts"] = [{"belief": {"r2": 0.3}}, {"belief": {"r2": None}}]
    store.write_json(mine / "live.json", data)
    source = render([mine])
    assert 'id="live-data"' in source
    assert "It cannot be determined whether training made it hold the belief: it was not measured." in source
    more = {"verdict": "more", "text": "0.20 [0.10, 0.30] of what", "r2": 0.3, "twins": 0.1}
    store.write_json(mine / "live.json", data | {"beyond": more, "learned": {"verdict": "most", "text": "97 %"}})
    said = "a part of the belief can be decoded, more than from untrained networks: 0.20 [0.10, 0.30] of what"
    assert f"{said} (R² 0.300, untrained 0.100)." in render([mine])
    for wrong in ({"beyond": more | {"r2": None}}, {"beyond": {"verdict": "more"}}, {"learned": 1}):
        store.write_json(mine / "live.json", data | wrong)
        with pytest.raises(DamagedError, match=r"live.json: key '(beyond|learned)' must be a mapping with texts"):
            render([mine])
    store.write_json(mine / "live.json", data)
    assert "class Explorer" in source
    assert 'id="live-data"' not in render([mine, folder])
    store.write_json(mine / "live.json", data | {"readouts": [{"belief": 1}]})
    with pytest.raises(DamagedError, match=r"live.json: key 'readouts' must be a list"):
        render([mine])
    store.write_json(mine / "live.json", {"model": 1})
    with pytest.raises(DamagedError, match=r"live.json: must be a mapping"):
        render([mine])


def test_a_page_leads_with_what_was_decided(folder: Path) -> None:
    """A claim that no data decided, whose text explains a precondition, follows the others."""
    one = read_experiment(folder)
    decided = next(finding for finding in one.findings if finding.verdict in DECIDED)
    waits = replace(decided, verdict="not tested", title="It waits.", text="A gate failed. It is long.")
    source = page.render_page([replace(one, findings=(waits, decided))])
    lead = source[source.index('<p class="lead">') :].partition("</p>")[0]
    assert decided.title in lead
    assert decided.text.partition(".")[0] not in lead
    assert "A gate failed" not in page.render_page([replace(one, findings=(waits,))]).partition('data-figure="0"')[0]
