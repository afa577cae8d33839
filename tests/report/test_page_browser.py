"""The page in a browser, from disk: it draws every figure, fetches nothing, and runs nothing that it was given (F4, F6)."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hmmscope.report.page import write_page
from report_cases import HOSTILE, demo_folder, hostile_folder

sync_api = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.e2e
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page")
    folders = [demo_folder(root / "first"), demo_folder(root / "second", seed=1, shift=0.1)]
    return write_page(folders, root / "page.html")


class Watched:
    """A page with what it said, asked for and opened."""

    def __init__(self, browser: Any, file: Path, **context: Any) -> None:
        self.said: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.page = browser.new_context(**context).new_page()
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        self.page.goto(file.as_uri())

    def wait_for_plots(self) -> int:
        """Waits until each panel has drawn; returns how many there are."""
        count: int = self.page.locator("[data-plot]").count()
        # By a locator, since the content policy forbids the evaluation that wait_for_function polls with.
        self.page.locator("[data-plot] .cartesianlayer .subplot").nth(count - 1).wait_for(state="attached")
        return count

    def assert_quiet(self, file: Path) -> None:
        assert self.said == []
        assert [url for url in self.requests if not url.startswith("data:")] == [file.as_uri()]
        assert self.dialogs == []


def test_every_figure_is_drawn_without_network_or_complaint(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file, viewport={"width": 1200, "height": 900})
    count = watched.wait_for_plots()
    assert count == 13 + 13 + 18
    assert watched.page.locator(".js-plotly-plot").count() == count
    assert watched.page.locator("figure.live").count() == watched.page.locator("figure").count()
    assert watched.page.locator("img.picture:visible").count() == 0
    assert watched.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert watched.page.evaluate("document.querySelector('#experiment-1 [data-plot]').layout.yaxis.range[0]") == 0
    watched.assert_quiet(page_file)


def test_the_legend_hides_a_series_in_every_panel_of_its_figure(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file)
    watched.wait_for_plots()
    figure = watched.page.locator("#experiment-1 figure").first
    curves = figure.locator(".scatterlayer .trace")
    before = curves.count()
    button = figure.get_by_role("button", name="2-gram of the prompt")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert curves.count() == before - 2
    button.click()
    assert curves.count() == before
    watched.assert_quiet(page_file)


def test_the_lists_of_an_explorer_choose_its_curves(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file)
    watched.wait_for_plots()
    box = watched.page.locator("#experiment-1 [data-explorer]")
    task, model, length = (box.get_by_label(name) for name in ("task", "model", "length"))
    legend = box.locator("[data-legend] button")
    curves = box.locator(".scatterlayer .trace")
    assert legend.all_text_contents() == ["1 layer", "2 layers", "3 layers", "Bayes filter"]
    legend.nth(1).click()
    assert curves.count() == 3
    task.focus()
    watched.page.keyboard.press("ArrowDown")  # the lists are the browser's own, so the keyboard moves them
    assert task.input_value() == "1"
    assert legend.all_text_contents() == ["1 layer", "2 layers", "3 layers", "Bayes filter"]
    assert legend.nth(1).get_attribute("aria-pressed") == "false"
    assert curves.count() == 3
    legend.nth(1).click()
    assert curves.count() == 4
    length.select_option("")
    assert task.input_value() == "1"
    assert model.input_value() == ""
    assert legend.all_text_contents()[:3] == ["16, 1 layer", "32, 1 layer", "16, 2 layers"]
    assert curves.count() == 7
    model.select_option("2")
    assert legend.all_text_contents() == ["16, 3 layers", "32, 3 layers", "Bayes filter"]
    watched.assert_quiet(page_file)


def test_hovering_shows_the_value_with_its_interval(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file)
    watched.wait_for_plots()
    panel = watched.page.locator("#experiment-1 [data-plot]").first
    panel.scroll_into_view_if_needed()
    panel.hover()
    label = panel.locator(".hoverlayer")
    label.get_by_text("Transformer").wait_for()
    shown = label.text_content()
    assert "[" in shown
    assert "component known" in shown
    watched.assert_quiet(page_file)


def test_without_scripts_the_pictures_are_shown(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file, java_script_enabled=False)
    figures = watched.page.locator("figure").count()
    assert watched.page.locator("img.picture:visible").count() == figures > 0
    assert watched.page.locator(".interactive:visible").count() == 0


def test_a_narrow_screen_does_not_scroll_sideways(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file, viewport={"width": 390, "height": 800})
    watched.wait_for_plots()
    assert watched.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    watched.assert_quiet(page_file)


def test_hostile_text_does_nothing(browser: Any, tmp_path: Path) -> None:
    harmless = None
    for number, payload in enumerate(["harmless", *HOSTILE]):
        folder = hostile_folder(tmp_path / str(number), payload)
        file = write_page([folder], tmp_path / f"{number}.html")
        watched = Watched(browser, file)
        watched.wait_for_plots()
        tags = (
            "() => [...document.querySelectorAll('main *')].filter(e => !e.closest('[data-plot]')).map(e => e.tagName)"
        )
        found = (
            watched.page.evaluate(tags),
            watched.page.locator("[data-plot] a, [data-plot] b, [data-plot] img").count(),
        )
        harmless = harmless or found
        assert found == harmless, payload
        watched.assert_quiet(file)
        watched.page.context.close()
