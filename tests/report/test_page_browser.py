"""The page in a browser, from disk: it draws every figure, fetches nothing, and runs nothing that it was given (F4, F6)."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from browsing import Watched, browser  # noqa: F401 - fixture
from hmmscope.lab.report.page import write_page
from report_cases import a_figure, demo_folder, packed, write_figure

pytestmark = pytest.mark.e2e

#: Of a picture, how far right anything is drawn in it.
RIGHTMOST = """async (address) => {
  const image = new Image();
  image.src = address;
  await image.decode();
  const pen = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height }).getContext("2d");
  pen.drawImage(image, 0, 0);
  const { data } = pen.getImageData(0, 0, image.width, image.height);
  let right = 0;
  for (let at = 3; at < data.length; at += 4) if (data[at]) right = Math.max(right, ((at - 3) / 4) % image.width);
  return right / image.width;
}"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page")
    folders = [demo_folder(root / "first"), demo_folder(root / "second", seed=1, shift=0.1)]
    return write_page(folders, root / "page.html")


def panels(watched: Watched) -> Any:
    """The panels that are drawn."""
    return watched.page.locator("[data-figure] .plot > svg")


def test_every_figure_is_drawn_without_network_or_complaint(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file, viewport={"width": 1400, "height": 900})
    assert panels(watched).count() == 14 + 14 + 20
    assert all(panels(watched).nth(i).locator("path, rect, image").count() for i in range(14))
    watched.assert_fits()
    watched.assert_quiet()


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_lead_figure_stands_in_the_first_600_pixels(browser: Any, tmp_path: Path, width: int, scheme: Any) -> None:
    file = write_page([demo_folder(tmp_path / "one")], tmp_path / "page.html")
    watched = Watched(browser, file, viewport={"width": width, "height": 844}, color_scheme=scheme)
    assert panels(watched).first.bounding_box()["y"] < 600
    watched.assert_fits()
    watched.assert_quiet()


def test_the_legend_hides_a_series_in_every_panel_of_its_figure(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file)
    figure = watched.page.locator("#experiment-1 figure").first
    curves = figure.locator(".plot path[stroke]")
    before = curves.count()
    button = figure.get_by_role("button", name="2-gram of the prompt")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert curves.count() == before - 2
    button.press("Enter")
    assert curves.count() == before
    watched.assert_quiet()


def test_lists_and_sliders_of_an_explorer_choose_its_curves(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file)
    box = watched.page.locator("#experiment-1 figure", has=watched.page.locator("select"))
    task, model, length = (box.get_by_label(name) for name in ("task", "model", "length"))
    legend = box.locator(".choices + .legend button")
    curves = box.locator(".plot path[stroke]")
    assert legend.all_text_contents() == ["1 layer", "2 layers", "3 layers", "Bayes filter"]
    legend.nth(1).click()
    assert curves.count() == 3
    task.select_option("1")
    assert legend.nth(1).get_attribute("aria-pressed") == "false"
    legend.nth(1).click()
    assert curves.count() == 4
    length.select_option("")
    assert model.input_value() == ""
    assert legend.all_text_contents()[:3] == ["16, 1 layer", "32, 1 layer", "16, 2 layers"]
    assert curves.count() == 7
    watched.assert_quiet()


def test_hovering_tells_values_in_every_panel_with_the_axis_and_so_do_the_arrow_keys(
    browser: Any, page_file: Path
) -> None:
    watched = Watched(browser, page_file)
    figure = watched.page.locator("#experiment-1 figure").first
    first, second = figure.locator(".tip").all()
    figure.locator(".plot > svg").first.hover()
    assert first.is_visible()
    assert second.is_visible()
    shown = first.text_content()
    assert re.search(r"demonstrations \d+Transformer", shown)
    assert "Transformer" in shown
    assert "[" in shown
    figure.locator(".plot > svg").nth(1).focus()
    watched.page.keyboard.press("End")
    assert "demonstrations 16" in second.text_content()
    watched.page.keyboard.press("Escape")
    assert not second.is_visible()
    watched.assert_quiet()


def test_the_slider_of_a_cloud_shows_another_layer_and_leaves_its_neighbour(browser: Any, tmp_path: Path) -> None:
    folder = demo_folder(tmp_path / "one", num_figures=0)
    clouds = packed(slider="layer", frames=("embedding", "layer 1")), packed()
    write_figure(folder / "figures" / "00-clouds", a_figure(*clouds, name="clouds"))
    watched = Watched(browser, write_page([folder], tmp_path / "page.html"), viewport={"width": 390, "height": 844})
    layer, step = (watched.page.get_by_role("slider", name=name) for name in ("layer", "step"))
    drawn = watched.page.locator("[data-figure] .plot > svg image")

    def pictures() -> list[str]:
        return [drawn.nth(i).get_attribute("href") for i in range(2)]

    def right_edge() -> float:
        """Of the first picture, where its rightmost point is, as a share of the width."""
        return float(watched.page.evaluate(RIGHTMOST, drawn.first.get_attribute("href")))

    assert layer.get_attribute("aria-valuetext") == "layer 1"  # the last frame is shown at first
    assert step.get_attribute("aria-valuetext") == "8"
    first, before, narrow = drawn.count(), pictures(), right_edge()
    assert first == 2
    layer.focus()
    watched.page.keyboard.press("ArrowLeft")
    assert layer.get_attribute("aria-valuetext") == "embedding"
    assert watched.page.locator("label output").first.text_content() == "embedding"
    assert layer.evaluate("(slider) => slider === document.activeElement")  # and can be moved on
    after = pictures()
    assert after[0] != before[0]
    assert after[1] == before[1]
    assert narrow < 0.6 < right_edge()  # the embedding's points reach the right end
    watched.page.keyboard.press("End")
    assert pictures() == before
    watched.assert_fits()
    watched.assert_quiet()


def test_a_belief_is_pointed_at_in_every_triangle(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file)
    figure = watched.page.locator("#experiment-1-triangle")
    first, second = figure.locator(".plot > svg").all()
    box = first.bounding_box()
    assert box["width"] == pytest.approx(box["height"], abs=2)
    first.hover(position={"x": box["width"] / 2, "y": box["height"] / 2})
    places = [svg.locator("circle[visibility=visible]").bounding_box()["x"] for svg in (first, second)]
    assert 0 < places[0] - box["x"] < box["width"] < places[1] - box["x"]
    told = figure.locator(".tip").first.inner_text().split()
    assert told[::2] == ["A", "B", "C"]
    assert abs(sum(map(float, told[1::2])) - 1) < 0.02
    watched.assert_quiet()


def test_figures_and_tables_can_be_taken_away(browser: Any, page_file: Path) -> None:
    watched = Watched(browser, page_file, accept_downloads=True)
    figure = watched.page.locator("#experiment-1 figure").first
    with watched.page.expect_download() as svg:
        figure.get_by_role("button", name="SVG").click()
    assert svg.value.suggested_filename == "quickstart-in-context.svg"
    root = ElementTree.fromstring(Path(svg.value.path()).read_text(encoding="utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in ElementTree.tostring(root, encoding="unicode")
    with watched.page.expect_download() as table:
        figure.get_by_role("button", name="CSV").click()
    lines = Path(table.value.path()).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "panel,series,x,y,low,high"
    assert len(lines) == 1 + 2 * 5 * 17
    details = watched.page.locator("#experiment-1 details", has=watched.page.locator("[data-table]")).first
    details.locator("summary").click()
    with watched.page.expect_download() as rows:
        details.get_by_role("button", name="CSV").click()
    assert len(Path(rows.value.path()).read_text(encoding="utf-8").splitlines()) == 201
