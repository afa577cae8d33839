"""No page, table or notebook says of what learned nothing that it holds or learned something.

Networks as they were drawn, after one step, and trained on the answers of other prompts, a constant answer and the best
that counts go through all that speaks of a network: the page of the run, the live page, the rows of the instruments, the
page of a study, the notebooks; a sweep has a table of losses and no page. Sentences that praise are found by the verdicts
by which pages choose them, and by their words in the text that a reader sees; what only says how something is measured, or
what is not so, praises nothing.
"""

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hmmscope as hs
from hmmscope.analysis import TunedNgrams
from hmmscope.analysis.geometry import geometry
from hmmscope.lab.cli import main
from hmmscope.lab.report.page import write_page
from hmmscope.runs import page_export
from hmmscope.runs.pipeline import Run
from hmmscope.training.trainer import BatchSchedule
from overclaim_phrases import praise, sentences

MODELS = {
    "rnn": {"name": "rnn", "width": 32},
    "roformer": {"name": "roformer", "num_layers": 2, "num_heads": 2, "width": 16},
}


def read(page: Path) -> str:
    """The text of a page."""
    text = re.sub(r"(?s)<(script|style)\b.*?</\1>|<!--.*?-->", " ", page.read_text())
    return (
        html.unescape(re.sub(r"</?(b|i|em|code|span|a|sub|sup)\b[^>]*>", "", text))
        .replace("<", "\n<")
        .replace(">", ">\n")
    )


#: Steps and learning rate of what learned nothing.
NOTHING = {"untrained": (1, 1e-12), "one step": (1, 1e-2), "other prompts": (30, 1e-2)}
CASES = [(name, steps) for name in MODELS for steps in ("untrained", "one step")] + [("rnn", "other prompts")]


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    name, kind = request.param
    out, (steps, rate) = tmp_path_factory.mktemp("nothing") / "run", NOTHING[kind]
    training = {"num_steps": steps, "batch_size": 32, "warmup_steps": 0, "learning_rate": rate}
    given = {"layout": {"name": "sequences", "length": 16}, "model": MODELS[name], "training": training}
    options = [f"--{section}.{key}={value}" for section, keys in given.items() for key, value in keys.items()]
    with pytest.MonkeyPatch.context() as patch:
        if kind == "other prompts":
            batch = BatchSchedule.batch
            patch.setattr(BatchSchedule, "batch", lambda *asked: _mispaired(*batch(*asked)))
        assert main(["train", "mess3", "--out", str(out), "--quiet", *options]) == 0
    return hs.load_run(out)


def _mispaired(batch: Any, target: Any) -> tuple[Any, Any]:
    """Each prompt is read with the answers of the next one."""
    return replace(batch, tokens=batch.tokens.roll(1, 0)), target


@pytest.mark.drawn(2)
def test_pages_praise_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_export, "EXAMPLES", 2000)
    look = hs.look(run, num_samples=64, options=hs.InstrumentOptions(num_points=200))
    assert look.data["learned"]["verdict"] == look.data["live"]["learned"]["verdict"] == "nothing"
    for told in (look.data["beliefs"], look.data["live"]["beyond"]):  # by the luck of a draw, or of few samples
        told |= {"verdict": "more", "text": "0.14 [0.01, 0.25] of what 3 untrained controls leave unexplained"}
    said = read(look.save(tmp_path / "look.html"))
    for words in ("cannot be determined whether training made it", "is unknown whether training made this layer"):
        assert said.count(f"Because the model has learned nothing, it {words} hold the belief: 0.14") == 1
    assert "Behind each symbol is a hidden state, which the network never sees." in said
    assert praise(said) == []


@pytest.mark.drawn(2)
def test_rows_and_objects_praise_nothing(run: Run) -> None:
    said = [repr(run)]
    for rows in (hs.probe(run.model, run.dataset("probe"), num_samples=256), geometry(run.model, run.dataset("probe"))):
        top = [row for row in rows if row.get("labels", row.get("targets")) == "true"]
        said += [str(row["beyond_twins"]) for row in top]
        assert top
        for row in top:  # a share that a reader would take for something learned
            assert row["share"] is None or row["share_low"] <= 0 or row["share"] < 0.02, row
    assert praise("\n".join(said)) == []


class Says(nn.Module):
    """A predictor of symbols as a network: the best that counts on prompts like these, or what it says of no context."""

    def __init__(self, corpus: hs.ProcessDataset, constant: bool) -> None:
        super().__init__()
        self.corpus, self.counting, self.constant = corpus, TunedNgrams.tuned(corpus, num_samples=64), constant
        self.embed = nn.Embedding(corpus.num_symbols + 1, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        size, batch = self.corpus.num_symbols, len(tokens)
        if self.constant:
            return torch.zeros(batch, tokens.shape[1], size)
        seen = torch.cat([tokens, tokens[:, :1]], 1) % size
        read = hs.ProcessDataset(self.corpus.process, length=seen.shape[1])[0:batch]
        laws = self.counting.probs(
            hs.ProcessDataset(self.corpus.process, length=seen.shape[1]), replace(read, observations=seen)
        )
        return laws[self.counting.ngram].log().float()


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "counting"])
def test_a_page_praises_no_constant_answer_and_nothing_that_counts(constant: bool, tmp_path: Path) -> None:
    dataset = hs.ProcessDataset(hs.make_process("mess3"), length=16, stream="counting")
    look = hs.look(
        Says(dataset, constant), "mess3", length=16, num_samples=64, options=hs.InstrumentOptions(num_points=200)
    )
    assert praise(read(look.save(tmp_path / "look.html"))) == []
    assert look.data["beliefs"] is None or look.data["beliefs"]["verdict"] != "more"


#: Who learned nothing, as notebooks name them.
_NOBODY = re.compile(
    r"\b(untrained|one step|random (network|weights)|twins?|constant answer|shuffled|count(s|ing)|n-grams?)\b"
)
_CLAIMED = re.compile(r"\b(has )?(learned|learnt|tracks|knows|holds|understands|has found)\b")
_NOT_IT = re.compile(r"\b(no more|nothing|not|less|leave|than|beside|whether|what|before)\b")


def test_no_notebook_says_that_what_learned_nothing_holds_something() -> None:
    found = []
    for path in sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            told = "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""
            told += "\n".join("".join(one.get("text", "")) for one in cell.get("outputs", ()))
            found += [
                (path.name, one)
                for one in sentences(told.replace("\n", " "))
                if _NOBODY.search(one) and _CLAIMED.search(one)
            ]
    assert [one for one in found if not _NOT_IT.search(one[1])] == []


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    rows = ["".join("ab" if rng.random() < 0.5 else "cc" for _ in range(6 + k % 7)) for k in range(80)]
    data = hs.SequenceData(rows, unit="characters", title="pairs")
    options: dict[str, Any] = {"length": 12, "states": (1, 2), "restarts": 1, "iterations": 5, "order": 2}
    return hs.study(data, tmp_path_factory.mktemp("study") / "pairs", networks=("rnn",), max_steps=1, **options).path


@pytest.mark.long
def test_a_study_praises_no_network_of_one_step(study: Path, tmp_path: Path) -> None:
    said = read(write_page([study], tmp_path / "report.html"))
    assert "network" in said
    assert [one for one in praise(said) if "network" in one.lower()] == []


def test_praise_is_found() -> None:
    """What a page once said of an RNN after one step, and what one says of networks that did learn."""
    lucky = "Training put more of the belief into it than an untrained network holds: 0.14."
    assert praise(lucky) == [lucky]
    once = "It learned to guess the next symbol, and inside it the same belief can be read: R² 0.99."
    assert praise(once) == [once]
    assert len(praise("The HMM's belief is read better after training. The best network beats the best HMM.")) == 2
    assert praise("Of the belief it holds no more than before training: 0.00. What it learned is not told.") == []
