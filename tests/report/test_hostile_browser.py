"""Text that acts, in every page that a browser opens: nothing of it runs, is fetched or becomes an element (F6)."""

import shutil
from pathlib import Path
from typing import Any

import kept_results
import pytest

from browsing import Watched, browser  # noqa: F401 - fixture
from hmmscope.lab.evidence.ledger import ledger
from hmmscope.lab.report.ledger_page import render_ledger
from hmmscope.lab.report.page import write_page
from hmmscope.runs.page_export import live_data
from hmmscope.storage import seals, store
from hmmscope_studies.benchmark import board
from live_cases import made, write_live_page
from report_cases import HOSTILE, hostile_folder

pytestmark = pytest.mark.e2e
RESULTS = kept_results.RESULTS / "small"

#: What a reader does with a page: all lists, all buttons but those that take a file away or never end, all places.
WORK = """() => {
  const skip = /^(SVG|PNG|CSV|JSON|Play|Pause)$/;
  document.querySelectorAll("details").forEach((one) => { one.open = true; });
  document.querySelectorAll("select").forEach((list) => [...list.options].forEach((option) => {
    list.value = option.value;
    list.dispatchEvent(new Event("change", { bubbles: true }));
  }));
  document.querySelectorAll("svg").forEach((svg) => {
    const { x, y, width, height } = svg.getBoundingClientRect();
    const at = { clientX: x + width / 2, clientY: y + height / 2, bubbles: true };
    ["pointerover", "pointermove", "mousemove"].forEach((kind) => svg.dispatchEvent(new PointerEvent(kind, at)));
    svg.dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true }));
  });
  for (const button of document.querySelectorAll("button")) {
    if (button.isConnected && !skip.test(button.textContent.trim())) button.click();
  }
}"""
#: All but the marks of pictures, whose number follows the length of words; what acts counts there, too.
ELEMENTS = """() => [...document.querySelectorAll("body *")].filter((one) => !one.closest("svg")).map((one) => one.tagName)
  .concat([...document.querySelectorAll("svg :is(a, script, image, foreignObject, style)")].map((one) => one.tagName))"""


def worked(browser: Any, file: Path) -> list[str]:
    """The elements of a page, opened and worked; it must have been quiet."""
    watched = Watched(browser, file)
    watched.page.evaluate(WORK)
    watched.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    watched.assert_quiet()
    found: list[str] = watched.page.evaluate(ELEMENTS)
    watched.page.context.close()
    return found


@pytest.fixture(scope="module")
def harmless_report(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("plain")
    return worked(browser, write_page([hostile_folder(root / "run", "harmless")], root / "page.html"))


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_a_report(browser: Any, payload: str, harmless_report: list[str], tmp_path: Path) -> None:
    file = write_page([hostile_folder(tmp_path / "run", payload)], tmp_path / "page.html")
    assert worked(browser, file) == harmless_report


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return live_data(made(tmp_path_factory.mktemp("live"), "roformer")[0])


def live_page(data: dict[str, Any], text: str, file: Path) -> Path:
    """The live page of a run with `text` in every name."""
    names = {key: [f"{text}{at}" for at in range(3)] for key in ("symbols", "states")}
    process = data["process"] | names | {"title": text, "source": text}
    return write_live_page(data | {"title": text, "process": process, "model": data["model"] | {"name": text}}, file)


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_a_live_page(browser: Any, payload: str, live: dict[str, Any], tmp_path: Path) -> None:
    if not is_text(payload):
        pytest.skip("no name of a process holds half of a surrogate pair: its file is not read")
    harmless = worked(browser, live_page(live, "harmless", tmp_path / "harmless.html"))
    assert worked(browser, live_page(live, payload, tmp_path / "page.html")) == harmless


def is_text(payload: str) -> bool:
    """Whether it can be written as UTF-8."""
    return not any("\ud800" <= letter <= "\udfff" for letter in payload)


@pytest.mark.parametrize("payload", [one for one in HOSTILE if is_text(one) and not set(one) & {"/", "\0"}])
def test_a_ledger(browser: Any, payload: str, tmp_path: Path) -> None:
    """Its claims are ours; of strangers are the names of folders, and what their tables say."""
    found = []
    for name in ("harmless", payload):
        kept = tmp_path / name
        shutil.copytree(RESULTS / "limits-table1", kept)
        about = store.read_json(kept / "experiment.json")
        seals.remove_seal(kept)
        store.write_json(kept / "experiment.json", about | {"scale": name, "version": name, "created": name})
        file = tmp_path / "page.html"
        file.write_text(render_ledger(ledger([kept])))
        found.append(worked(browser, file))
    assert found[0] == found[1]


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_a_leaderboard(browser: Any, payload: str, tmp_path: Path) -> None:
    cards, found = board.read_cards(Path(kept_results.__file__).parents[1] / "studies" / "results" / "hmm-bench"), []
    for text in ("harmless", payload.encode(errors="replace").decode()):
        (tmp_path / "page.html").write_text(
            board.page([card | {"name": f"{text}{at}"} for at, card in enumerate(cards)])
        )
        found.append(worked(browser, tmp_path / "page.html"))
    assert found[0] == found[1]


def test_what_acts_is_seen(browser: Any, tmp_path: Path) -> None:
    """The tests above can fail."""
    file = tmp_path / "page.html"
    for body in (
        "<script>alert(1)</script>",
        "<img src=https://example.org/x.png>",
        "<button onclick='alert(1)'>x</button>",
    ):
        file.write_text(f"<!doctype html><title>x</title><body>{body}")
        with pytest.raises(AssertionError):
            worked(browser, file)
