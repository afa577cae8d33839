"""The live page in a browser: it computes what torch and the library compute, and does what the reader asks."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from browsing import Watched, browser  # noqa: F401 - fixture
from hmmscope.analysis.activations import capture_activations, residual_layers
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.mixture_posterior import filter_mixture
from hmmscope.kernels.context_counts import context_counts, ngram_laws
from hmmscope.runs.pipeline import Run
from live_cases import CASES, made

pytestmark = pytest.mark.e2e

LAWS = """(inputs) => inputs.map((tokens) => {
  const memory = explorer.session.network.begin();
  const steps = tokens.map((token) => explorer.session.network.step(memory, token));
  return steps.map(({ law, streams }) => [[...law], streams.map((one) => [...one])]);
})"""
OBSERVED = """(sequences) => sequences.map((symbols) => {
  const { session } = explorer;
  session.clear();
  return symbols.map((symbol) => {
    if (!session.type(symbol)) throw Error("impossible");
    const { known, optimum, ngram } = session.moments.at(-1);
    return { belief: [...known.belief], posterior: [...known.posterior], next: [...optimum], ngram: [...ngram] };
  });
})"""


@pytest.fixture(scope="module", params=CASES)
def case(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    return made(tmp_path_factory.mktemp("live"), request.param)


@pytest.fixture(scope="module")
def mess3_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("live"), "roformer")[1]


@pytest.fixture(scope="module")
def whole_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page with everything that is measured of the run."""
    root = tmp_path_factory.mktemp("look")
    return made(root, "roformer")[0].look(root / "look.html").path


def test_the_network_is_that_of_torch_on_100_random_inputs(browser: Any, case: tuple[Run, Path]) -> None:
    run, file = case
    watched = Watched(browser, file)
    tokens = torch.randint(run.model.vocab_size, (100, 18), generator=torch.Generator().manual_seed(2))
    found = watched.page.evaluate(LAWS, tokens.tolist())
    names = residual_layers(run.model)
    with torch.no_grad():
        laws = run.model.eval()(tokens).softmax(-1).numpy()
        streams = capture_activations(run.model, names, tokens)
    shown = np.array([[law for law, _ in sample] for sample in found])
    assert laws.std() > 0.01
    np.testing.assert_allclose(shown, laws, atol=1e-4)  # float32 in torch, float64 in the page
    for layer, name in enumerate(names):
        shown = np.array([[layers[layer] for _, layers in sample] for sample in found])
        np.testing.assert_allclose(shown, streams[name].detach().numpy(), atol=1e-4, rtol=1e-4)
    watched.assert_quiet()


def test_observer_and_ngram_are_those_of_the_library(browser: Any, case: tuple[Run, Path]) -> None:
    run, file = case
    watched = Watched(browser, file)
    seen = run.dataset("evaluate")[0:6].observations
    starts = torch.from_numpy(run.config.layout.reset_mask)
    found = watched.page.evaluate(OBSERVED, seen.tolist())

    def shown(what: str) -> Any:
        return np.array([[moment[what] for moment in sample] for sample in found])

    if len(run.process.component_weights) == 1:
        exact = filter_beliefs(run.process, seen, reset_mask=starts)
        np.testing.assert_allclose(shown("belief"), exact.beliefs, atol=1e-9)
        np.testing.assert_allclose(shown("next"), exact.next_observation, atol=1e-9)
    else:
        mixed = filter_mixture(run.process, seen, reset_mask=starts)
        np.testing.assert_allclose(shown("posterior"), mixed.component_posterior, atol=1e-9)
        np.testing.assert_allclose(shown("next"), mixed.next_observation, atol=1e-9)
        position = run.config.layout.position_in_sequence
        counted = ngram_laws(context_counts(seen.numpy(), position, run.process.num_symbols, 1), [1.0, 1.0])
        np.testing.assert_allclose(shown("ngram")[:, :-1], counted[:, 1:, 1], atol=1e-9)


def test_of_many_symbols_the_likeliest_are_shown(browser: Any, tmp_path: Path) -> None:
    watched = Watched(browser, made(tmp_path, "bare")[1])
    rows = watched.page.locator(".law")
    seen = np.array([rows.nth(v).is_visible() for v in range(rows.count())])
    assert (len(seen), seen.sum()) == (20, 12)
    laws = watched.page.evaluate("['model', 'optimum', 'ngram'].map((kind) => [...(explorer.moment[kind] ?? [])])")
    largest = np.max([law for law in laws if law], 0)
    assert largest[~seen].max() <= largest[seen].min()
    assert watched.page.locator(".rest").inner_text().startswith("and 8 other symbols, each at most ")
    watched.assert_fits()


def test_what_the_process_says_has_its_law(browser: Any, mess3_page: Path) -> None:
    watched = Watched(browser, mess3_page)
    pairs = watched.page.evaluate(
        """() => { const { process } = explorer.session, uniform = Numbers.generator(5), counts = [[0,0,0],[0,0,0],[0,0,0]];
        let hidden = { component: 0, state: 0 };
        for (let t = 0; t < 60000; t++) {
          const { symbol, next } = process.speak(hidden, uniform);
          counts[hidden.state][symbol]++; hidden = { component: 0, state: next };
        } return counts; }"""
    )
    law = np.array(pairs) / np.sum(pairs, 1, keepdims=True)
    stay, other = 0.9 * 0.7 + 0.1 * 0.15, 0.9 * 0.15 + 0.05 * 0.7 + 0.05 * 0.15
    expected = np.full((3, 3), other) + (stay - other) * np.eye(3)
    np.testing.assert_allclose(law, expected, atol=0.015)  # five standard deviations of 20000 draws


def test_typing_moves_the_belief_and_the_keyboard_does_all(browser: Any, mess3_page: Path) -> None:
    watched = Watched(browser, mess3_page)
    page = watched.page
    page.get_by_role("button", name="New", exact=True).click()
    strip = page.get_by_role("slider", name="position in the sequence")
    strip.focus()
    for _ in range(4):
        page.keyboard.press("1")
    assert strip.get_attribute("aria-valuenow") == "4"
    said = page.locator("[data-part=said]")
    assert said.text_content().startswith("After 1, the exact belief gives state B ")
    before = page.locator(".dot.exact").get_attribute("style")
    page.keyboard.press("ArrowLeft")
    assert strip.get_attribute("aria-valuenow") == "3"
    assert page.locator(".dot.exact").get_attribute("style") != before
    page.keyboard.press("2")  # another future from here
    assert strip.get_attribute("aria-valuemax") == "4"
    page.get_by_role("button", name="Next", exact=True).focus()
    page.keyboard.press("Enter")
    assert strip.get_attribute("aria-valuenow") == "5"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")  # Play
    page.get_by_role("button", name="Pause").wait_for()
    page.locator("[aria-valuenow='7']").wait_for()
    watched.assert_quiet()


def test_heads_are_taken_away_and_beliefs_pushed(browser: Any, mess3_page: Path) -> None:
    watched = Watched(browser, mess3_page)
    page = watched.page
    law = "[...explorer.moment.model]"
    plain = page.evaluate(law)
    page.get_by_role("button", name="layer 1, head 2").click()
    assert page.evaluate(law) != plain
    page.get_by_role("button", name="Undo my changes").click()
    assert page.evaluate(law) == plain
    page.get_by_role("button", name="to B", exact=True).click()
    pushed = page.evaluate("[...explorer.session.readouts[2].belief.read(explorer.moment.streams[2])]")
    np.testing.assert_allclose(pushed, [0.05, 0.9, 0.05], atol=1e-3)
    assert page.evaluate(law) != plain
    assert "was replaced by another" in page.locator("[data-part=said]").text_content()
    dot = page.locator(".dot.held").bounding_box()
    page.mouse.move(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2)
    page.mouse.down()
    page.mouse.move(dot["x"] + 60, dot["y"] - 90, steps=3)
    page.mouse.up()
    assert page.evaluate("explorer.session.push.belief[1]") < 0.85
    watched.assert_quiet()


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_shows_its_first_picture_early(
    browser: Any, whole_page: Path, width: int, scheme: Any
) -> None:
    watched = Watched(browser, whole_page, viewport={"width": width, "height": 844}, color_scheme=scheme)
    watched.assert_fits()
    assert watched.page.get_by_role("button", name="Play").bounding_box()["y"] < 600
    assert watched.page.locator(".triangle canvas").first.bounding_box()["y"] < 800
    watched.page.locator("[data-when=before]").click()
    assert "before training" in watched.page.locator(".maps figcaption").nth(1).inner_text()
    page = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
    watched.assert_quiet()


@pytest.mark.parametrize("width", [390, 820, 1600])
def test_a_story_of_five_steps_says_one_thing_and_does_one(browser: Any, mess3_page: Path, width: int) -> None:
    watched = Watched(browser, mess3_page, viewport={"width": width, "height": 844})
    page = watched.page
    steps, said, act = (
        page.locator("[data-step]"),
        page.locator("[data-tale]:not([hidden])"),
        page.locator("[data-part=try]"),
    )
    assert page.get_by_role("button", name="Play").bounding_box()["y"] < 800
    seen = []
    for n, changed in enumerate(
        (
            "explorer.session.length",
            "explorer.host.classList.contains('secret')",
            "explorer.shown",
            "explorer.layer",
            "JSON.stringify(explorer.session.push)",
        )
    ):
        steps.nth(n).focus()
        page.keyboard.press("Enter")
        assert [steps.nth(i).get_attribute("aria-current") for i in range(5)] == [None] * n + ["step"] + [None] * (
            4 - n
        )
        assert said.count() == 1
        seen.append(said.inner_text())
        before = page.evaluate(changed)
        act.focus()
        page.keyboard.press("Enter")
        assert page.evaluate(changed) != before, changed
    assert len(set(seen)) == 5
    watched.assert_fits()
    watched.assert_quiet()


def test_bars_of_losses_begin_at_zero_and_no_interval_is_rounded_away(browser: Any, whole_page: Path) -> None:
    watched = Watched(browser, whole_page, viewport={"width": 1400, "height": 844})
    data = watched.page.evaluate("JSON.parse(document.getElementById('look-data').textContent)")
    above = {row["role"]: row["above"]["value"] for row in data["losses"]}
    widths = {
        role: watched.page.locator(f"[data-part=losses] i.{role}").bounding_box()["width"]
        for role in ("model", "ngram")
    }
    assert widths["model"] / widths["ngram"] == pytest.approx(above["model"] / above["ngram"], rel=0.05)
    for text in watched.page.locator("[data-part=losses] .value, .maps figcaption").all_inner_texts():
        for low, high in re.findall(r"\[(-?[\d.]+), (-?[\d.]+)\]", text):
            assert low != high, text
