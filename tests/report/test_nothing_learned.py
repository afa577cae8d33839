"""No page, table or line says of a network that learned nothing that it holds or learned something.

Networks as they were drawn, and after one step, go through all that speaks of a network: the page of the run, the live page,
the rows of the instruments, the page of a study. Sentences that praise are found by their words in the text that a reader
sees; what only says how something is measured, or what is not so, praises nothing.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hmmscope as hs
from hmmscope.analysis.geometry import geometry
from hmmscope.lab.cli import main
from hmmscope.lab.report.page import write_page
from hmmscope.runs import live
from hmmscope.runs.pipeline import Run

MODELS = {
    "rnn": {"name": "rnn", "width": 32},
    "roformer": {"name": "roformer", "num_layers": 2, "num_heads": 2, "width": 16},
}
#: What is said of whoever learned something.
PRAISE = re.compile(
    r"\b(learn(s|ed|t)|begun to learn|knows?|holds?|can be read|put\b.*\binto|tracks?|has found|recognis\w+|understands?"
    r"|retrieves?|beats|reproduced|(?<!no )better|more than before)\b"
)
#: In the same sentence: it is not so, or not told, or a rule is explained.
DENIED = re.compile(
    r"\b(no|not|nothing|never|neither|nobody|whether|untrained|before training|twins|would|who|what|where|how|if"
    r"|than those of)\b",
    re.IGNORECASE,
)


def sentences(text: str) -> Iterator[str]:
    """What stands between full stops, line by line."""
    for line in text.splitlines():
        yield from (one.strip() for one in re.split(r"(?<=[.!?])\s+(?=[A-Z*])", line) if one.strip())


def praise(text: str) -> list[str]:
    """The sentences that praise a network."""
    return [one for one in sentences(text) if PRAISE.search(one) and not DENIED.search(one)]


def read(page: Path) -> str:
    """The text of a page."""
    text = re.sub(r"(?s)<(script|style)\b.*?</\1>|<!--.*?-->", " ", page.read_text())
    return (
        html.unescape(re.sub(r"</?(b|i|em|code|span|a|sub|sup)\b[^>]*>", "", text))
        .replace("<", "\n<")
        .replace(">", ">\n")
    )


@pytest.fixture(
    scope="module", params=[(name, steps) for name in MODELS for steps in ("untrained", "one step")], ids=" ".join
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    name, steps = request.param
    out, rate = tmp_path_factory.mktemp("nothing") / "run", 1e-12 if steps == "untrained" else 1e-2
    training = {"num_steps": 1, "batch_size": 32, "warmup_steps": 0, "learning_rate": rate}
    given = {"layout": {"name": "sequences", "length": 16}, "model": MODELS[name], "training": training}
    options = [f"--{section}.{key}={value}" for section, keys in given.items() for key, value in keys.items()]
    assert main(["train", "mess3", "--out", str(out), "--quiet", *options]) == 0
    return hs.load_run(out)


def test_pages_praise_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EXAMPLES", 2000)
    said = read(hs.look(run, num_samples=64, num_points=200).save(tmp_path / "look.html"))
    assert "The network was never told of states." in said
    assert praise(said) == []
    assert praise(read(write_page([run.path], tmp_path / "report.html"))) == []


def test_rows_and_objects_praise_nothing(run: Run) -> None:
    said = [repr(run)]
    for rows in (
        hs.probe(run.model, run.corpus("probe"), num_samples=256),
        geometry(run.model, run.corpus("probe")),
    ):
        top = [row for row in rows if row.get("labels", row.get("targets")) == "true"]
        said += [str(row["beyond_twins"]) for row in top]
        assert top
        for row in top:  # a share that a reader would take for something learned
            assert row["share"] is None or row["share_low"] <= 0 or row["share"] < 0.02, row
    assert praise("\n".join(said)) == []


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    rows = ["".join("ab" if rng.random() < 0.5 else "cc" for _ in range(6 + k % 7)) for k in range(80)]
    data = hs.SequenceData(rows, unit="characters", title="pairs")
    options: dict[str, Any] = {"length": 12, "states": (1, 2), "restarts": 1, "iterations": 5, "order": 2}
    return hs.study(data, tmp_path_factory.mktemp("study") / "pairs", networks=("rnn",), max_steps=1, **options).path


def test_a_study_praises_no_network_of_one_step(study: Path, tmp_path: Path) -> None:
    said = read(write_page([study], tmp_path / "report.html"))
    assert "network" in said
    assert [one for one in praise(said) if "network" in one.lower()] == []


def test_praise_is_found() -> None:
    """What a page once said of an RNN after one step, and what one says of networks that did learn."""
    once = "It learned to guess the next symbol, and inside it the same belief can be read: R² 0.99."
    assert praise(once) == [once]
    assert len(praise("The HMM's belief is read better after training. The best network beats the best HMM.")) == 2
    assert praise("Of the belief it holds no more than before training: 0.00. What it learned is not told.") == []
