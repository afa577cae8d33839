"""The documentation stays small and whole: words, entries of the side bar, pages that are reached, links."""

import re
from pathlib import Path

import pytest

from script_modules import script

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
MOST_ENTRIES = 18

count_words = script("count_words")


def entries(page: Path) -> list[Path]:
    """What the tables of contents of a page name, in order; patterns by the pages that are there."""
    found = []
    for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        for name in (line.strip() for line in block.splitlines() if line.strip() and not line.startswith(":")):
            there = sorted(page.parent.glob(name + ".md")) if "*" in name else [page.parent / f"{name}.md"]
            found += [one for one in there if one != page]
    return found


def slugs(text: str) -> set[str]:
    """The anchors of a page's headings, as MyST makes them."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", head).strip().lower() for head in heads)
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in plain}


def test_hand_written_words_are_few() -> None:
    """`python scripts/count_words.py` prints the list: pages, notebooks and the article."""
    counted = count_words.words_by_page()
    assert {"docs/cli.md", "docs/notebooks/1-first-hmm.ipynb", "docs/article/article.tex"} <= counted.keys()
    assert sum(counted.values()) <= count_words.MOST_DOCS, sorted(counted.items(), key=lambda item: -item[1])


@pytest.mark.parametrize("name, most", [("CHANGELOG", "MOST_CHANGELOG"), ("CONTRIBUTING", "MOST_CONTRIBUTING")])
def test_pages_for_readers_of_the_repository_are_short(name: str, most: str) -> None:
    assert count_words.num_words((ROOT / f"{name}.md").read_text("utf-8")) <= getattr(count_words, most)


def test_the_side_bar_is_short_and_reaches_every_page() -> None:
    assert len(entries(DOCS / "index.md")) <= MOST_ENTRIES
    reached, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page.is_file() and page not in reached:
            reached.add(page)
            waiting += entries(page)
    pages = {*PAGES, *(DOCS / "experiments").glob("*.md")}
    assert sorted(page.name for page in pages - reached) == []


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.stem)
def test_links_lead_to_a_heading_that_is_there(page: Path) -> None:
    text = count_words.prose(page.read_text("utf-8"))
    for target, anchor in re.findall(r"\]\(([\w./-]*\.md)?#([\w-]+)\)", text):
        there = page.parent / target if target else page
        if there.suffix == ".md" and "experiments" not in there.parts:
            assert anchor in slugs(there.read_text("utf-8")), f"{page.name}: {target}#{anchor}"


def test_the_checks_see_what_is_wrong(tmp_path: Path) -> None:
    assert count_words.prose("a b\n```python\nc d e\n```\nf <!-- x: made by y --> g h <!-- end -->").split() == [
        "a",
        "b",
        "f",
    ]
    assert count_words.num_words("| a | 1.5 |\n|---|---|\n- b") == 3
    assert count_words.latex_text(
        "\\\\begin{document}\\n\\\\section{A b}\\n\\\\cite{c} d % e\\n\\\\begin{thebibliography}f"
    ).split() == ["A", "b", "d"]
    assert slugs("# How many states?\n```\n# no\n```\n## `report`, look") == {"how-many-states", "report-look"}


def test_the_table_of_speeds_is_as_the_command_writes_it(tmp_path: Path) -> None:
    """`python scripts/draw_speed.py results/bench/people-*.json.xz --out FOLDER --page PAGE` makes it."""
    draw_speed, kept = script("draw_speed"), (DOCS / "static" / "speed-table.md").read_text("utf-8")
    page = tmp_path / "speed-table.md"
    page.write_text(kept, "utf-8")
    tables = [draw_speed.read(path) for path in sorted((ROOT / "results" / "bench").glob("people-*.xz"))]
    draw_speed.put_table(page, tables)
    assert page.read_text("utf-8") == kept
    assert page.read_text("utf-8").count("| filter_beliefs, 4 states, 1 x 1000000 |") == 1
    assert "{include} static/speed-table.md" in (DOCS / "speed.md").read_text("utf-8")


def test_quoted_speeds_are_the_ranges_of_the_kept_measurements() -> None:
    draw_speed = script("draw_speed")
    tables = [draw_speed.read(path) for path in sorted((ROOT / "results" / "bench").glob("people-*.xz"))]
    for page, words in draw_speed.quoted(tables):
        assert words in " ".join((ROOT / page).read_text("utf-8").split()), page
    slow = [table | {"summary": [line | {"rate": line["rate"] / 9} for line in table["summary"]]} for table in tables]
    assert draw_speed.quoted(slow)[0] != draw_speed.quoted(tables)[0]
