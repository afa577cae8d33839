"""The built documentation as static files: every link within it leads somewhere. `make docs` comes first."""

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

from browsing import browser  # noqa: F401 - fixture

pytestmark = pytest.mark.e2e

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"


class Links(HTMLParser):
    """What a page links to, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.links += [found[name] or "" for name in ("href", "src") if found.get(name)]
        self.places |= {found[name] or "" for name in ("id", "name") if found.get(name)}


@cache
def read(page: Path) -> Links:
    return Links(page.read_text(encoding="utf-8"))


def broken(root: Path) -> list[str]:
    """Links that lead to no file, or to no place in it."""
    found = []
    for page in sorted(root.rglob("*.html")):
        for link in read(page).links:
            path, place = urldefrag(link)
            if ":" in path.split("/")[0] or path.startswith("//") or link == "#":
                continue
            target = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            missing = not target.is_file() or (place and target.suffix == ".html" and place not in read(target).places)
            if missing:
                found.append(f"{page.relative_to(root)}: {link}")
    return found


def test_links_of_the_documentation_lead_somewhere() -> None:
    assert (SITE / "index.html").is_file(), "build the documentation first: make docs"
    assert len(list(SITE.rglob("*.html"))) > 50
    assert broken(SITE) == []


def test_the_site_stands_on_its_own() -> None:
    """No page asks another server for a script, a style, a font or a picture."""
    for page in SITE.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not any(f'{name}="{scheme}://' in text for name in ("src",) for scheme in ("http", "https")), page
        assert '<link rel="stylesheet" type="text/css" href="http' not in text, page


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#here">b</a><a href="c.html">c</a><img src="https://x.org/y.png">')
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1>')
    assert broken(tmp_path) == ["a.html: b.html#here", "a.html: c.html"]


@pytest.mark.parametrize("width", [1400, 390])
def test_the_live_page_on_the_first_page_is_cut_between_its_parts(browser: Any, width: int) -> None:
    """No control of it lies half outside of its frame."""
    page = browser.new_context(viewport={"width": width, "height": 1200}).new_page()
    page.goto((SITE / "index.html").as_uri())
    frame = page.locator("iframe.live").element_handle().content_frame()
    frame.wait_for_load_state()
    cut = """() => [...document.querySelectorAll("button, label, figure, svg, canvas")]
      .map((part) => [part.textContent.trim().slice(0, 30), part.getBoundingClientRect()])
      .filter(([, box]) => box.height && box.top < innerHeight && box.bottom > innerHeight).map(([name]) => name)"""
    assert frame.evaluate(cut) == []
