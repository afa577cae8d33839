"""Every kind of page under axe, the checker of accessibility: no serious fault, light and dark, on a desk and on a phone."""

from pathlib import Path
from typing import Any

import pytest

from browsing import Watched, browser  # noqa: F401 - fixture
from hmmscope.lab.report.page import write_page
from hmmscope.lab.verbs.pages import kept_results
from live_cases import made
from report_cases import demo_folder

axe_playwright = pytest.importorskip("axe_playwright_python.sync_playwright")
pytestmark = pytest.mark.e2e

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"


def faults(watched: Watched) -> list[str]:
    """The serious and critical ones, each with the first element that has it."""
    found = axe_playwright.Axe().run(watched.page).response["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html']} {one['nodes'][0]['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pages")
    folders = [demo_folder(root / "first"), demo_folder(root / "second", seed=1, shift=0.1)]
    return {
        "report": write_page(folders[:1], root / "report.html"),
        "compared": write_page(folders, root / "compared.html"),
        "stored": write_page([kept_results("limits-table3")], root / "stored.html"),
        "live triangle": made(root, "roformer")[1],
        "live mixture": made(root, "sinusoidal")[1],
        "look": made(root / "whole", "gru")[0].look(root / "look.html").path,
    }


@pytest.mark.parametrize("name", ["report", "compared", "stored", "live triangle", "live mixture", "look"])
@pytest.mark.parametrize("width, scheme", [(1400, "light"), (390, "dark")])
def test_pages_have_no_serious_fault(browser: Any, pages: dict[str, Path], name: str, width: int, scheme: Any) -> None:
    watched = Watched(browser, pages[name], viewport={"width": width, "height": 844}, color_scheme=scheme)
    watched.page.locator("details").evaluate_all("all => all.forEach((one) => (one.open = true))")
    assert faults(watched) == []
    watched.page.context.close()


@pytest.mark.timeout(3600)  # several hundred pages
@pytest.mark.parametrize("width, scheme", [(1400, "light"), (390, "dark")])
def test_no_page_of_the_documentation_has_a_serious_fault(browser: Any, width: int, scheme: Any) -> None:
    assert SITE.is_dir(), "build the documentation first: make docs"
    faulty = {}
    for path in sorted(SITE.rglob("*.html")):
        watched = Watched(browser, path, viewport={"width": width, "height": 844}, color_scheme=scheme)
        faulty[str(path.relative_to(SITE))] = faults(watched)
        watched.page.context.close()
    assert {name: found for name, found in faulty.items() if found} == {}


def test_a_fault_is_found(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(
        "<!DOCTYPE html><html lang=en><title>t</title><main><h1>t</h1><button></button></main>"
    )
    assert [one.partition(":")[0] for one in faults(Watched(browser, tmp_path / "bad.html"))] == ["button-name"]
