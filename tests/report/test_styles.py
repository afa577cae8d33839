"""Figures as files for papers, talks and the web, and triangles of many beliefs."""

import itertools
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb

from cli_cases import assert_one_line, call  # noqa: F401 - fixture
from hmmscope.errors import ResourceError
from hmmscope.lab.evidence import scatter_data
from hmmscope.lab.evidence.figure import Figure
from hmmscope.lab.evidence.scatter_data import BeliefPlane
from hmmscope.lab.evidence.verdicts import VERDICTS
from hmmscope.lab.report import interactive, latex, plots, series_style
from hmmscope.storage import store
from report_cases import a_figure, bars, demo_figures, demo_folder, heat, line, lines

PAGES = Path(plots.__file__).parent
#: How colours appear to readers without one kind of cone: Machado, Oliveira and Fernandes (2009), severity 1.
BLINDNESS = {
    "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritan": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, seen: Any) -> np.ndarray:
    """CIELAB of a colour as somebody sees it."""
    part = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    light = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(XYZ @ np.clip(np.array(seen) @ light, 1e-4, 1) / XYZ.sum(1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("kind", BLINDNESS)
def test_colours_differ_for_colour_blind_readers(kind: str) -> None:
    corners = [to_hex(colour) for colour in scatter_data.CERTAIN]
    models = [
        one.color for one in series_style.styles_of([("model", name) for name in ("one", "two", "three")]).values()
    ]
    for colours in (corners, models):
        seen = [lab(colour, BLINDNESS[kind]) for colour in colours]
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 15  # about 2 can be noticed


def test_lines_of_retrieval_and_untrained_models_differ_on_a_dark_page() -> None:
    """All are solid lines; the page mixes their colours with white."""
    share = float(re.findall(r"const LIGHTER = ([0-9.]+);", (PAGES / "chart.js").read_text())[0])
    keys: list[Any] = [("model", "model"), ("baseline", "n-gram"), ("control", "untrained"), ("other", "retrieval")]
    dark = [
        lab(to_hex(np.array(to_rgb(one.color)) * (1 - share) + share), np.eye(3))
        for one in series_style.styles_of(keys).values()
    ]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(dark, 2)) > 20


@pytest.mark.parametrize("theme", ["", ':root[data-theme="dark"] '])
def test_every_answer_has_a_pill_in_both_themes(theme: str) -> None:
    one = re.escape(theme) + r"\.([\w-]+)"
    rules = re.findall(
        rf"^({one}(?:, {one})*) {{ background: #\w+; color: #\w+; }}$", (PAGES / "page.css").read_text(), re.M
    )
    coloured = set(re.findall(r"\.([\w-]+)", " ".join(rule[0] for rule in rules)))
    assert {verdict.replace(" ", "-") for verdict in VERDICTS} <= coloured


def test_the_live_page_begins_with_play_and_explains_a_readout_near_the_average() -> None:
    template = (PAGES / "live" / "live.html.j2").read_text()
    assert 0 < template.index(">Play</button>") < template.index("<figure")  # the first page shows the beginning
    assert "R² ${r2.toFixed(2)}, so this stays near the average" in (PAGES / "live" / "explore.js").read_text()


def test_red_and_green_would_not_pass() -> None:
    red, green = (lab(colour, BLINDNESS["deutan"]) for colour in ("#d1495b", "#3a9a5b"))
    assert np.linalg.norm(red - green) < 5


DRAWN = [name for name, style in plots.STYLES.items() if "pgf" not in style.endings]


@pytest.mark.parametrize("style", DRAWN)
def test_letters_of_a_pdf_are_letters_of_embedded_fonts(style: str) -> None:
    files = plots.figure_files(demo_figures()[1], style=style)
    assert set(files) == set(plots.STYLES[style].endings)
    if "pdf" in files:
        assert b"/Type3" not in files["pdf"]
        assert files["pdf"].count(b"/FontFile2") >= 1
        assert b"/Subtype /Image" not in files["pdf"]
        drawn = b"".join(zlib.decompress(one) for one in streams(files["pdf"]) if one[:1] == b"x")
        assert re.search(rb"\bT[jJ]\b", drawn)
    else:
        assert b">Transformer</text>" in files["svg"]
        assert b"<image" not in files["svg"]


def streams(pdf: bytes) -> list[bytes]:
    return re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)


def test_styles_differ_in_width_letters_and_strokes() -> None:
    one, row = a_figure(lines()), a_figure(lines(), lines(y_label="z"))
    found = {name: plots.draw(one, name) for name in DRAWN}
    assert {name: canvas.get_figwidth() for name, canvas in found.items()} == {"paper": 3.4, "talk": 6.4, "web": 3.4}
    assert {name: plots.draw(row, name).get_figwidth() for name in DRAWN} == {"paper": 7, "talk": 12.6, "web": 7}
    sizes = {name: canvas.axes[0].xaxis.label.get_size() for name, canvas in found.items()}
    widths = {name: canvas.axes[0].lines[0].get_linewidth() for name, canvas in found.items()}
    assert sizes["talk"] == pytest.approx(1.8 * sizes["paper"])
    assert widths["talk"] == pytest.approx(1.8 * widths["paper"])
    assert found["paper"].axes[0].xaxis.label.get_fontfamily()[0] == "STIXGeneral"


@pytest.mark.parametrize("style", DRAWN)
@pytest.mark.filterwarnings("error")
def test_letters_that_a_font_lacks_are_taken_from_the_next(style: str) -> None:
    plots.draw(a_figure(lines(y_label="γ⁴ and Ŵ₊")), style).draw_without_rendering()


def test_each_file_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, draw = [], plots.Canvas.draw

    def counted(canvas: plots.Canvas, renderer: Any) -> None:
        drawn.append(canvas)
        draw(canvas, renderer)

    monkeypatch.setattr(plots.Canvas, "draw", counted)
    assert len(plots.figure_files(a_figure(lines()), style="web")) == len(drawn)


HOSTILE = r"\input{/etc/passwd} 5 % of $x_1^2$ & #{} ~ < > | ⁴ ₊ Ŵ γ Δ Σ ‖v‖ − – ☃"


def found_by_latex(name: str) -> bool:
    """Whether a file of a package is installed."""
    return subprocess.run(["kpsewhich", name], capture_output=True).returncode == 0


def test_text_for_latex_is_no_command() -> None:
    assert latex.as_latex(r"\a{b}_^") == r"\textbackslash{}a\{b\}\_\textasciicircum{}"
    assert latex.as_latex("γ⁴, 5 %") == r"\ensuremath{\gamma}\textsuperscript{4}, 5 \%"
    assert latex.as_latex("Ŵ₊☃") == r"\^{W}\textsubscript{+}U+2603"


@pytest.mark.skipif(shutil.which(latex.PROGRAM) is None or not found_by_latex("pgf.sty"), reason="needs LaTeX with PGF")
def test_figures_for_latex_compile_in_a_document(tmp_path: Path) -> None:
    figure = a_figure(lines(title=HOSTILE, y_label=HOSTILE), bars(), heat())
    files = plots.figure_files(figure, style="latex")
    (tmp_path / "one.pgf").write_bytes(files["pgf"])
    document = [r"\documentclass{article}", r"\usepackage{pgf}", r"\def\mathdefault#1{#1}", r"\begin{document}"]
    (tmp_path / "all.tex").write_text("\n".join([*document, r"\input{one.pgf}", r"\end{document}"]))
    words = [latex.PROGRAM, "-halt-on-error", "-no-shell-escape", "-interaction=batchmode", "all.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, (tmp_path / "all.log").read_text()[-2000:]
    assert "root:" not in (tmp_path / "all.log").read_text()


def test_without_latex_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ResourceError, match="style: latex needs pdflatex"):
        plots.figure_files(a_figure(lines()), style="latex")
    assert set(plots.figure_files(cloud(1001, 1), style="latex")) == {"pdf", "png"}  # holds a picture


@pytest.mark.long
def test_figures_are_written_under_the_names_that_pages_give_them(call: Callable, tmp_path: Path) -> None:
    demo_folder(tmp_path / "one", num_figures=1)
    demo_folder(tmp_path / "two", num_figures=1)
    before = sorted((tmp_path / "one").rglob("*"))
    called = call("report", "one", "--style", "web", "--figures", "out")
    assert (called.code, called.error) == (0, "")
    assert called.out == "out/quickstart-in-context.svg\nout/quickstart-in-context.png\n"
    assert sorted((tmp_path / "one").rglob("*")) == before
    assert_one_line(call("report", "one", "--figures", "out", "--style", "pape"), 2)
    assert_one_line(call("report", "one", "two", "--figures", "out"), 2)
    about = store.read_json(tmp_path / "two" / "experiment.json")
    store.write_json(tmp_path / "two" / "experiment.json", about | {"experiment": "../elsewhere"})
    assert_one_line(call("report", "two", "--figures", "out"), 4)
    (tmp_path / "out" / "quickstart-in-context.svg").unlink()
    (tmp_path / "out" / "quickstart-in-context.svg").symlink_to(tmp_path / "one" / "experiment.json")
    assert_one_line(call("report", "one", "--style", "web", "--figures", "out"), 3)


# ---------------------------------------------------------------------------------------------------------------------
# Triangles


def cloud(count: int, num_panels: int) -> Figure:
    laws = np.random.default_rng(0).dirichlet((1, 1, 1), count)
    return a_figure(*(BeliefPlane.triangle(f"layer {i}", laws + 0.01 * i, laws, "ABC") for i in range(num_panels)))


def test_certainty_is_a_corner_and_half_belief_is_the_middle_of_an_edge() -> None:
    laws = [*np.eye(3), (0.5, 0.5, 0)]
    panel = BeliefPlane.triangle("", laws, laws)
    first, second, third, half = scatter_data.unpack_places(panel.places[0])
    np.testing.assert_allclose(scatter_data.unpack_places(panel.outline), [first, second, third])
    np.testing.assert_allclose(half, (first + second) / 2, atol=1 / scatter_data.STEPS)
    sides = [np.linalg.norm(a - b) for a, b in itertools.combinations((first, second, third), 2)]
    np.testing.assert_allclose(sides, 1 / 1.28, atol=1 / scatter_data.STEPS)
    assert len({tuple(one) for one in scatter_data.unpack_colours(panel.colours)}) == 4


def test_ten_thousand_beliefs_in_five_panels_are_small_on_the_page() -> None:
    data = interactive.figure_data(cloud(10_000, 5))
    assert data["columns"] == 5
    assert max(len(str(panel)) for panel in data["panels"]) < 41_000
    assert [bool(one) for one in data["colours"]] == [True, False, False, False, False]


def test_a_triangle_is_drawn_around_its_beliefs() -> None:
    (axes,) = plots.draw(cloud(2000, 1)).axes
    assert [patch.get_xy().shape for patch in axes.patches] == [(4, 2)]
    assert [one.get_text() for one in axes.texts] == ["A", "B", "C"]
    assert axes.collections[0].get_rasterized()


def test_panels_that_show_one_quantity_have_one_axis() -> None:
    """In pictures and on pages, over all rows; not one of another quantity, and not one that would be squashed."""
    largest = (("nats", 10.0), ("nats", 8.0), ("nats", 1.0), ("bits", 9.0))
    panels_ = [lines(y_label=label, series=(line(x=(0, 1), y=(0.0, y), low=None, high=None),)) for label, y in largest]

    def tops(*numbers: int) -> list[float]:
        chosen = a_figure(*(panels_[n] for n in numbers))
        ends = [axes.get_ylim()[1] for axes in plots.draw(chosen).axes]
        for found, panel in zip(ends, interactive.figure_data(chosen)["panels"], strict=True):
            assert panel["y_max"] is None or panel["y_max"] == found
        return ends

    one, two, four = tops(0, 1, 3)
    assert one == two != four
    assert len(set(tops(0, 1, 0, 1, 1))) == 1
    one, small = tops(0, 2)
    assert small < one / 5
    assert tops(0, 0, 0, 2, 2)[3] < one / 5 == tops(0, 0, 0, 1, 1)[3] / 5


@pytest.mark.drawn(3)
@pytest.mark.parametrize("columns", [2, 3, 5])
@pytest.mark.parametrize("style", ["paper", "talk", "web"])
def test_titles_of_panels_end_before_the_next_begins(style: str, columns: int) -> None:
    panels = tuple(
        lines(title=f"Accuracy after eight demonstrations of HMMs never seen, pool {n}") for n in range(columns)
    )
    with plots._style(plots.STYLES[style]):
        canvas = plots._draw(a_figure(*panels), plots.STYLES[style])
        renderer = FigureCanvasAgg(canvas).get_renderer()
        canvas.draw(renderer)
        boxes = [axes.get_title("left") and axes._left_title.get_window_extent(renderer) for axes in canvas.axes]
    assert all(0 <= box.x0 < box.x1 <= canvas.bbox.width for box in boxes)
    assert not any(one.overlaps(other) for n, one in enumerate(boxes) for other in boxes[:n])
