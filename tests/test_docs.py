"""The documentation stays small and whole: words, entries of the side bar, pages that are reached, links."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
#: Pages elsewhere that are written by hand, and what is written by hand of pages that are made.
ALSO = [DOCS / "notebooks/index.md", *sorted(DOCS.glob("experiments/notes/*.md"))]
#: Made by scripts: the gallery, the sheet of ten headlines, the table of faults, and the names of the interface.
MADE = {"gallery.md", "headline-review.md", "laboratory.md", "migration.md", "reference.md"}
MOST_WORDS, MOST_ENTRIES = 30_000, 16


def prose(text: str) -> str:
    """A page without what stands in fences and without what a script made of it."""
    text = re.sub(r"<!-- [\w -]+: made by .*? -->.*?<!-- end -->", "", text, flags=re.DOTALL)
    return re.sub(r"^(`{3,}|:{3,})[^\n]*\n.*?^\1\s*$", "", text, flags=re.MULTILINE | re.DOTALL)


def num_words(text: str) -> int:
    """Words and numbers of what was written by hand; rules and bars of tables are none."""
    return sum(re.search(r"\w", word) is not None for word in prose(text).split())


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
    by_hand = [page for page in PAGES if page.name not in MADE] + ALSO
    counted = {f"{page.parent.name}/{page.name}": num_words(page.read_text("utf-8")) for page in by_hand}
    assert sum(counted.values()) <= MOST_WORDS, sorted(counted.items(), key=lambda item: -item[1])


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
    text = prose(page.read_text("utf-8"))
    for target, anchor in re.findall(r"\]\(([\w./-]*\.md)?#([\w-]+)\)", text):
        there = page.parent / target if target else page
        if there.suffix == ".md" and "experiments" not in there.parts:
            assert anchor in slugs(there.read_text("utf-8")), f"{page.name}: {target}#{anchor}"


def test_the_checks_see_what_is_wrong(tmp_path: Path) -> None:
    assert prose("a b\n```python\nc d e\n```\nf <!-- x: made by y --> g h <!-- end -->").split() == ["a", "b", "f"]
    assert slugs("# How many states?\n```\n# no\n```\n## `report`, look") == {"how-many-states", "report-look"}


def test_the_table_of_speeds_is_as_the_command_writes_it(tmp_path: Path) -> None:
    """`python scripts/draw_speed.py results/bench/people-*.json.xz --out FOLDER --page docs/speed.md` makes it."""
    spec = importlib.util.spec_from_file_location("draw_speed", ROOT / "scripts" / "draw_speed.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = tmp_path / "speed.md"
    page.write_text((DOCS / "speed.md").read_text("utf-8"), "utf-8")
    script.put_table(page, [script.read(path) for path in sorted((ROOT / "results" / "bench").glob("people-*.xz"))])
    assert page.read_text("utf-8") == (DOCS / "speed.md").read_text("utf-8")
    assert page.read_text("utf-8").count("| filter_beliefs, 4 states, 1 x 1000000 |") == 1
