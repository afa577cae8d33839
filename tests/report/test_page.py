"""The page: several experiments, damage, and text that is hostile (F4, F5, F6, F8, A4)."""

import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest

from hmmscope.errors import DamagedError, InputError, RefusedError, ResourceError
from hmmscope.lab.evidence.figure import Figure, Lines
from hmmscope.lab.report import page, plots
from hmmscope.lab.report.compare import compare
from hmmscope.lab.report.folder import read_experiment
from hmmscope.storage import disk
from hmmscope.text import visible
from report_cases import (  # noqa: F401 - fixtures
    DAMAGE,
    FIGURE,
    HOSTILE,
    Tree,
    a_figure,
    copy_of,
    folder,
    harmless,
    heat,
    hostile_folder,
    line,
    lines,
    render,
    strings,
)


@pytest.mark.long
@pytest.mark.drawn(2, of="whole pages")
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
    merged = compare({"a": list(first.figures), "b": list(second.figures)})
    assert [figure.name for figure in merged] == [figure.name for figure in first.figures]
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
    for name in ("experiment.json", FIGURE):
        path = copy_of(folder, tmp_path / name.replace("/", "-"), lambda about: about)
        (path / name).rename(tmp_path / "elsewhere")
        (path / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(DamagedError, match="link"):
            read_experiment(path)


def test_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder is given"):
        page.write_page([], tmp_path / "page.html")
    with pytest.raises(InputError, match="not a folder"):
        page.write_page([tmp_path / "none"], tmp_path / "page.html")


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_shown_and_nothing_else(payload: str, harmless: Tree, tmp_path: Path) -> None:
    source = render([hostile_folder(tmp_path / "run", payload)])
    tree = Tree(source)
    assert tree.tags == harmless.tags
    assert visible(payload) in tree.text
    assert len(tree.scripts) == len(harmless.scripts)
    assert tree.scripts[2:] == harmless.scripts[2:]
    assert not re.search(r"[<>&\u2028\u2029]", tree.scripts[1])
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", source)
    for string in strings(json.loads(tree.scripts[1])):
        assert visible(string) == string


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


@pytest.mark.long
@pytest.mark.drawn(2, of="whole pages")
def test_hostile_text_is_drawn_as_it_is(tmp_path: Path) -> None:
    for payload in ("$x_1$", "$\\frac{", "\\$", "_hidden", "\x1b[31m", "\ud800", "{{ 7*7 }}"):
        series = tuple(line(name=f"{payload}{i}") for i in range(2))
        figure = a_figure(
            lines(title=payload, x_label=payload, series=series), heat(x=(payload, payload), z_label=payload)
        )
        canvas = plots.draw(figure)
        names = [entry.get_text().replace(r"\$", "$") for entry in canvas.legends[0].get_texts()]
        assert names == [visible(one.name) for one in series]
        assert plots.figure_files(figure)["pdf"]
