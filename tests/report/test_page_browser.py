"""The page in a browser, from disk: it draws every figure, fetches nothing, and runs nothing that it was given (F4, F6)."""

from pathlib import Path
from typing import Any

import pytest

from browsing import Watched, browser  # noqa: F401 - fixture
from hmmscope.report.page import write_page
from report_cases import HOSTILE, demo_folder, hostile_folder

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page")
    folders = [demo_folder(root / "first"), demo_folder(root / "second", seed=1, shift=0.1)]
    return write_page(folders, root / "page.html")


def wait_for_plots(watched: Watched) -> int:
    """Waits until each panel has drawn; returns how many there are."""
    count: int = watched.page.locator("[data-plot]").count()
    # By a locator, since the content policy forbids the evaluation that wait_for_function polls with.
    watched.page.locator("[data-plot] .cartesianlayer .subplot").nth(count - 1).wait_for(state="attached")
    return count


def test_every_figure_is_drawn_without_network_or_complaint(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file, viewport={"width": 1200, "height": 900})
    count = wait_for_plots(watched)
    assert count == 13 + 13 + 18
    assert watched.page.locator(".js-plotly-plot").count() == count
    assert watched.page.locator("figure.live").count() == watched.page.locator("figure").count()
    assert watched.page.locator("img.picture:visible").count() == 0
    assert watched.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert watched.page.evaluate("document.querySelector('#experiment-1 [data-plot]').layout.yaxis.range[0]") == 0
    watched.assert_quiet()


def test_the_legend_hides_a_series_in_every_panel_of_its_figure(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file)
    wait_for_plots(watched)
    figure = watched.page.locator("#experiment-1 figure").first
    curves = figure.locator(".scatterlayer .trace")
    before = curves.count()
    button = figure.get_by_role("button", name="2-gram of the prompt")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert curves.count() == before - 2
    button.click()
    assert curves.count() == before
    watched.assert_quiet()


def test_the_lists_of_an_explorer_choose_its_curves(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file)
    wait_for_plots(watched)
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
    watched.assert_quiet()


def test_hovering_shows_the_value_with_its_interval(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file)
    wait_for_plots(watched)
    panel = watched.page.locator("#experiment-1 [data-plot]").first
    panel.scroll_into_view_if_needed()
    panel.hover()
    label = panel.locator(".hoverlayer")
    label.get_by_text("Transformer").wait_for()
    shown = label.text_content()
    assert "[" in shown
    assert "component known" in shown
    watched.assert_quiet()


def test_without_scripts_the_pictures_are_shown(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file, java_script_enabled=False)
    figures = watched.page.locator("figure").count()
    assert watched.page.locator("img.picture:visible").count() == figures > 0
    assert watched.page.locator(".interactive:visible").count() == 0


def test_a_narrow_screen_does_not_scroll_sideways(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file, viewport={"width": 390, "height": 800})
    wait_for_plots(watched)
    assert watched.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    watched.assert_quiet()


def test_hostile_text_does_nothing(browser: Any, tmp_path: Path) -> None:
    harmless = None
    for number, payload in enumerate(["harmless", *HOSTILE]):
        folder = hostile_folder(tmp_path / str(number), payload)
        file = write_page([folder], tmp_path / f"{number}.html")
        watched = Watched(browser, file)
        wait_for_plots(watched)
        tags = (
            "() => [...document.querySelectorAll('main *')].filter(e => !e.closest('[data-plot]')).map(e => e.tagName)"
        )
        found = (
            watched.page.evaluate(tags),
            watched.page.locator("[data-plot] a, [data-plot] b, [data-plot] img").count(),
        )
        harmless = harmless or found
        assert found == harmless, payload
        watched.assert_quiet()
        watched.page.context.close()
