"""Looking at a model: the page shows what the instruments measure, and what it cannot know stands on it."""

import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import hmmscope as hs
from hmmscope.analysis.activations import model_outputs, to_probs
from hmmscope.errors import InputError
from hmmscope.lab.cli import main
from hmmscope.lab.model_page.description_panel import architecture, explained
from hmmscope.lab.model_page.intervention_panel import pushed, used
from hmmscope.lab.model_page.model_page import ModelPage, look
from hmmscope.lab.report.look_page import of_use, sentence

RRXOR, MESS3 = hs.make_process("rrxor"), hs.make_process("mess3")
FEW: dict[str, Any] = {"length": 12, "num_samples": 24, "options": hs.InstrumentOptions(num_points=120)}


class Own(nn.Module):
    """An embedding, a recurrent module and a head, with time first inside."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, num_symbols: int = 3, **options: Any) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(num_symbols, 5), nn.Linear(6, num_symbols)
        self.layers = kind(5, 6, **options)  # type: ignore[call-arg]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens.T))[0].transpose(0, 1))


class Gated(Own):
    """The same with one thing more, which a page does not know of."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens).tanh()


class Filter(nn.Module):
    """The exact answer, of the belief that stands in its one layer."""

    def __init__(self, process: hs.LabelledHMM) -> None:
        super().__init__()
        self.process, self.residual = process, nn.ModuleList([nn.Identity()])
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        belief = self.residual[0](hs.filter_beliefs(self.process, tokens).beliefs.float())
        return (belief.double().clamp_min(0) @ self.process.params.predictive()[0]).clamp_min(1e-9).log() * self.scale


def test_losses_are_those_of_evaluate() -> None:
    model = hs.make_model("rnn", num_symbols=2, width=6)
    page = look(model, RRXOR, **FEW)
    held_out = hs.ProcessDataset(RRXOR, 12, stream="evaluate")
    score = hs.evaluate(model, held_out, num_samples=24)
    by_role = {row["role"]: row["value"] for row in page.losses}
    assert by_role["model"] == pytest.approx(score.loss)
    assert by_role["exact"] == pytest.approx(score.bayes_loss)
    assert by_role["ngram"] == pytest.approx(score.baseline[1])  # type: ignore[index]
    assert {"model", "exact", "ngram", "twin"} == set(by_role)
    assert "above the exact optimum" in page.html()
    above = {row["role"]: row["above"]["value"] for row in page.losses}
    assert above["model"] == pytest.approx(score.loss - score.bayes_loss)  # type: ignore[operator]
    assert above["exact"] == 0.0
    gap = by_role["ngram"] - by_role["model"]
    assert page.data["ahead"]["value"] == pytest.approx(gap)
    widths = [row["above"]["high"] - row["above"]["low"] for row in page.losses if row["role"] == "model"]
    assert widths[0] < page.losses[1]["high"] - page.losses[1]["low"] + page.losses[0]["high"] - page.losses[0]["low"]


@pytest.mark.drawn(2, of="pages")
def test_layers_hold_what_geometry_reads_beside_twins_and_before_training(tmp_path: Path) -> None:
    run = hs.train(RRXOR, tmp_path / "run", model="rnn", length=12, num_steps=3)
    page = run.look(tmp_path / "look.html")
    assert isinstance(page, ModelPage)
    assert page.path == tmp_path / "look.html"
    rows = [
        row
        for row in hs.probe(run.model, run.dataset("probe"), target="belief", num_samples=512)
        if row["labels"] == "true"
    ]
    for own, row in zip(page.layers, rows, strict=True):
        assert own["r2"] == pytest.approx(row["r2"], abs=1e-9)
        assert own["twins"] == pytest.approx(row["twins"], abs=0.05)  # of other draws
    first = look(run.untrained(), run.dataset("probe"), options=hs.InstrumentOptions(num_points=100), num_samples=8)
    assert [row["r2_before"] for row in page.layers] == pytest.approx([row["r2"] for row in first.layers])
    assert "this network with its initial weights" in page.html()
    told = page.data["beliefs"]
    live = page.data["live"]
    assert live["beyond"] == {key: told[key] for key in ("verdict", "text", "r2", "twins")}
    for own, readout in zip(page.layers, live["readouts"], strict=True):  # one number for one thing
        assert (readout["name"], readout["belief"]["twins"]) == (own["name"], own["twins"])
        assert readout["belief"]["r2"] == pytest.approx(own["r2"], abs=1e-9)
    assert "R² here is computed over all sequences" not in page.html()
    assert "This page has two n-gram baselines" in page.html()
    assert (
        "for the untrained controls (the same architecture with other initial weights) with their range" in page.html()
    )
    assert "residual.1 the output of that layer" in page.html()


@pytest.mark.long
@pytest.mark.drawn(2, of="pages")
def test_a_module_of_a_known_kind_runs_in_the_page_and_any_other_does_not() -> None:
    for kind, options in (
        (nn.LSTM, {"num_layers": 2}),
        (nn.GRU, {}),
        (nn.RNN, {"nonlinearity": "relu", "bias": False}),
    ):
        model = Own(kind, **options)
        live = look(model, MESS3, **FEW).data["live"]
        assert live["model"]["cell"] == {nn.LSTM: "lstm", nn.GRU: "gru", nn.RNN: "relu"}[kind]
        packed = live["tensors"]["layers.0.weight_hh_l0"]
        weights = np.frombuffer(base64.b64decode(packed["data"]), packed["type"]).reshape(packed["shape"])
        np.testing.assert_array_equal(weights, model.layers.weight_hh_l0.detach())
    other = look(Gated(), MESS3, **FEW)  # the same parts, other answers
    assert other.data["live"] is None
    assert any("the page cannot run this model" in line for line in other.unknown)


def test_one_sequence_and_one_intervention_stand_in_for_a_model_that_does_not_run() -> None:
    model = Gated()
    page = look(model, MESS3, **FEW)
    trace, sample = page.data["trace"], hs.ProcessDataset(MESS3, 12, stream="evaluate")[0:1]
    with torch.no_grad():
        laws = to_probs(model, model_outputs(model, sample.tokens, 3))[0]
    np.testing.assert_allclose(trace["model"], laws, atol=1e-4)
    exact = hs.filter_beliefs(MESS3, sample.observations)
    np.testing.assert_allclose(trace["belief"], exact.beliefs[0], atol=1e-4)
    np.testing.assert_allclose(trace["exact"], exact.next_observation[0], atol=1e-4)
    assert page.data["push"]["layer"] == page.data["beliefs"]["best"]


def test_a_model_that_uses_its_belief_goes_where_it_is_pushed() -> None:
    found = pushed(Filter(RRXOR), hs.ProcessDataset(RRXOR, 12, stream="probe"), "residual.0")
    np.testing.assert_allclose(found["model"], found["exact"], atol=2e-3)
    assert np.abs(np.array(found["model"][0][-1]) - found["free"]).max() > 0.05
    deaf = hs.make_model("rnn", num_symbols=2, width=4)
    with torch.no_grad():
        deaf.head.weight.zero_()
    still = pushed(deaf, hs.ProcessDataset(RRXOR, 12, stream="probe"), "residual.1")
    np.testing.assert_allclose(still["model"], np.broadcast_to(still["free"], np.shape(still["model"])), atol=1e-5)


def test_use_is_told_of_many_sequences_beside_random_changes() -> None:
    dataset = hs.ProcessDataset(RRXOR, 12, stream="probe")
    found = used(Filter(RRXOR), dataset, "residual.0")
    assert found["low"] > 0.99 > 0.5 > found["random"]["high"]
    assert of_use({"used": found, "learned": None}).endswith("So the model uses the encoded belief.")
    nothing = {"used": found, "learned": {"verdict": "nothing"}}
    assert "So " not in of_use(nothing)
    deaf = hs.make_model("rnn", num_symbols=2, width=4)
    with torch.no_grad():
        deaf.head.weight.zero_()
    told = of_use({"used": used(deaf, dataset, "residual.1"), "learned": None})
    assert told.endswith("So there is no evidence that the model uses the belief.")
    assert "disturbs" not in told
    away = {"used": used(deaf, dataset, "residual.1"), "learned": None}
    away["used"]["random"] |= {"low": -0.4, "high": -0.2}
    assert "such a change only disturbs the prediction" in of_use(away)
    assert "In 64 held-out sequences, at 2 positions each, residual.1 was made to encode" in told


@pytest.mark.parametrize(
    ("r2", "word"), [(0.99, "nearly all"), (0.19, "little"), (0.3, "a part"), (0.0, "next to nothing")]
)
def test_the_headline_says_how_much_an_r2_is_and_who_is_ahead(r2: float, word: str) -> None:
    number = {"value": 0.1, "low": 0.05, "high": 0.15}
    losses = [{"role": role, "above": number} for role in ("exact", "model", "ngram")]
    beliefs = {"r2": r2, "twins": 0.075, "best": "residual.3", "verdict": "more", "text": "0.12 [0.10, 0.15] of it"}
    data = {"invalid": None, "losses": losses, "unit": "nats", "learned": None, "beliefs": beliefs, "ahead": number}
    said = sentence(data)
    assert (
        f"An affine map of residual.3, the output of layer 3, recovers {word} of the belief: R² is {r2:.3f} (1 " in said
    )
    assert "the untrained controls, the same architecture with other initial weights, have R² 0.075" in said
    assert "the model's loss is lower than that of the n-gram baseline by 0.100 [0.050, 0.150]" in said
    assert "higher than that of the n-gram baseline by 0.100 [0.050, 0.150]" in sentence(
        data | {"ahead": {"value": -0.1, "low": -0.15, "high": -0.05}}
    )
    assert "no difference from the n-gram baseline is detected" in sentence(data | {"ahead": number | {"low": -0.05}})


def test_a_page_says_what_its_model_is() -> None:
    told = architecture(hs.make_model("roformer", num_symbols=3, num_layers=2, num_heads=2, width=8))
    assert told == "Decoder: 2 layers, 2 attention heads, width 8, 1,811 parameters."
    assert f"{sum(p.numel() for p in Own().parameters())} parameters" in architecture(Own())
    assert architecture(Own()).startswith("Own: embedding = Embedding(3, 5), head = Linear(")
    assert "blocks = ModuleList of 1 module" in architecture(nn.ModuleDict({"blocks": nn.ModuleList([nn.ReLU()])}))
    assert architecture(nn.Linear(2, 2)) == "Linear: 6 parameters."


def test_a_page_says_what_its_process_is() -> None:
    found = explained(RRXOR)
    assert "two fair bits, then their XOR, repeated" in found["words"]
    assert "5 hidden states and 2 symbols" in found["words"]
    assert [row[0] for row in found["table"]["rows"]] == list("SABXY")
    assert found["table"]["rows"][0] == ["S", "A .5", "B .5"]
    assert found["table"]["rows"][4] == ["Y", "–", "S 1"]
    source = look(hs.make_model("rnn", num_symbols=2, width=4), RRXOR, **FEW).html()
    assert "What RRXOR is" in source
    assert "<td>A .5</td>" in source
    umbrella = explained(hs.load_process("umbrella"))
    assert umbrella["table"]["columns"] == ["state", "emits", "then goes to"]
    pool = explained(hs.make_process("composed-cycles", num_parts=4))
    assert "one of 8 HMMs (components)" in pool["words"]
    assert pool["table"] is None


def test_what_a_process_is_stays_with_its_file(tmp_path: Path) -> None:
    RRXOR.save(tmp_path / "mine.json")
    again = hs.load_process(tmp_path / "mine.json")
    assert again.about == RRXOR.about
    assert again.digest == RRXOR.digest
    assert hs.HMM([1.0], [[1.0]], [[1.0]]).about == ""


@pytest.mark.long
@pytest.mark.drawn(2, of="pages")
def test_training_and_the_page_of_a_model_need_no_matplotlib() -> None:
    """torch brings what the page is made with; only pictures as files need more."""
    code = (
        "import sys; sys.modules['matplotlib'] = sys.modules['rich'] = None\n"
        "import hmmscope.lab.model_page.model_page, hmmscope.lab.report.look_page, hmmscope.lab.verbs.look\n"
        "import hmmscope.lab.verbs.train, hmmscope.lab.verbs.sweep"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_what_cannot_be_known_says_so() -> None:
    told = "\n".join(look(Filter(RRXOR), RRXOR, **FEW).unknown)
    assert "The contribution of training is unknown: not identifiable: " in told
    assert "no softmax attention was found in Filter." in told
    data = hs.SequenceData(hs.ProcessDataset("golden-mean", 9)[0:60].observations)
    page = look(hs.make_model("rnn", num_symbols=2, width=4), data, num_samples=4)
    told = "\n".join(page.unknown)
    assert "The optimum is unknown: " in told
    assert "The belief is unknown, because the distribution of recorded" in told
    assert page.layers == []
    assert {row["role"] for row in page.losses} >= {"model", "ngram"}
    mixture = hs.make_process("random-mixture", num_components=3, num_states=3, num_symbols=3)
    assert look(Gated(), mixture, **FEW).data["push"] is None


@pytest.mark.drawn(2, of="pages")
def test_attention_is_that_of_the_model() -> None:
    pytest.importorskip("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=3, n_positions=16, n_embd=8, n_layer=2, n_head=2)).eval()
    page = look(model, MESS3, **FEW)
    heads = page.data["attention"]["heads"]
    assert [head["name"] for head in heads] == [f"layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2)]
    pattern = np.frombuffer(base64.b64decode(heads[3]["pattern"]), "u1").reshape(12, 12)
    name = "blocks.1.attention.pattern"
    expected = hs.capture_activations(model, [name], hs.ProcessDataset(MESS3, 12, stream="evaluate")[0:1].tokens)[name][
        0, 1
    ]
    np.testing.assert_allclose(pattern / 255, expected, atol=0.003)
    assert page.layers[1]["twins"] is not None
    for rows in (page.layers, page.losses):
        axes = Figure().subplots()
        assert rows.plot(ax=axes) is axes.figure
        assert (len(axes.lines[0].get_ydata()), rows.about) == (len(rows), page.about)
    axes = Figure().subplots()
    assert page.plot(ax=axes) is axes.figure
    assert page.columns() == page.losses.columns()  # what to_pandas passes on


def test_the_page_is_one_file_that_fetches_nothing_and_a_notebook_has_it_inline() -> None:
    page = look(Gated(), MESS3, **FEW)
    source = page.html()
    assert "default-src &#39;none&#39;" in source
    assert not re.search(r"(src|href)=", source.replace("default-src", ""))
    assert "<canvas" not in source  # drawn by its scripts
    assert page._repr_html_().startswith("<iframe")
    assert "Gated on Mess3" in repr(page)


OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.cell, self.head = nn.Embedding(3, 4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, tokens):
        return self.head(self.cell(self.embedding(tokens))[0])

def broken():
    raise RuntimeError("no weights here")

class Batches(Net):
    def forward(self, batch):
        return {"scores": super().forward(batch["tokens"])}

def adapted():
    import hmmscope as hs
    return hs.adapt(Batches(), lambda model, tokens: model({"tokens": tokens}), output="scores")

one = adapted()
"""


@pytest.mark.drawn(2, of="pages")
def test_the_command_line_looks_at_a_model_that_a_file_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    assert main(["look", "mine.py:Net", "mess3", "--length", "10", "--samples", "16", "-o", "x.html"]) == 0
    out = capsys.readouterr().out
    assert "page: x.html" in out
    assert "the exact optimum" in out
    assert "Net on Mess3" in (page := Path("x.html").read_text())
    assert "length 10, samples 16, seed of samples 0, seed 0, layers residual.0, residual.1, device cpu." in page
    for words, line in (
        (["mine.py", "mess3"], "model: give mine.py:NAME"),
        (["mine.py:Nest", "mess3"], "model: mine.py: unknown 'Nest'; did you mean 'Net'?"),
        (["mine.py:broken", "mess3"], "model: mine.py:broken fails (RuntimeError: no weights here)"),
        (["none.py:Net", "mess3"], "model: file 'none.py' does not exist"),
        (["nowhere", "mess3"], "model: folder 'nowhere' does not exist"),
        (["mine.py:Net"], "process: is missing, and models do not store their training process"),
        (["mine.py:Net", "mess3", "-o", "x.txt"], "out: must end in .html"),
    ):
        assert main(["look", *words]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1, error
        assert line in error


@pytest.mark.drawn(2, of="pages")
def test_every_verb_takes_an_adapted_model_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    few = ["--length", "8", "--num_samples", "16", "--target", "previous-1"]
    assert main(["analyse", "mine.py:adapted", "probe", "mess3", *few, "--out", "x.jsonl"]) == 0
    rows = [json.loads(line) for line in Path("x.jsonl").read_text().splitlines()]
    assert rows[0]["share"] is not None  # controls drawn by the function
    steps = ["--training.num_steps", "2", "--training.batch_size", "2", "-q"]
    assert main(["train", "mess3", "--model", "mine.py:adapted", "--out", "run", *steps]) == 0
    assert main(["analyse", "mine.py:one", "curves", "run", "-q"]) == 0
    assert Path("run/analysis/curves.jsonl").is_file()
    assert main(["look", "mine.py:one", "run", "-q", "-o", "x.html"]) == 0
    capsys.readouterr()
    for words, line in (
        (["train", "mess3", "--model", "lsmt"], "--model: unknown 'lsmt'; did you mean 'lstm'?"),
        (["train", "mess3", "--model", "mine.py:one", "--model.width", "8"], "--model.width: is a field of registered"),
        (["analyse", "mine.py:one", "probe", "mess3"], "length: Batches does not state its training length"),
        (["analyse", "mine.py:one", "probe", "run", "--length", "8"], "--length: is fixed by the given run"),
        (
            ["analyse", "mine.py:one", "curves", "mess3", "--sequences", "x"],
            "--sequences: needs a run, got mine.py:one",
        ),
    ):
        assert main(words) == 2
        assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"model": 3, "process": MESS3}, "model: must be a module, a run or the folder of a run, got 3"),
        ({"model": Own(), "process": MESS3, "out": "x.txt"}, "out: must end in .html"),
        (
            {"model": Own(), "process": MESS3, "options": hs.InstrumentOptions(num_points=3)},
            "num_points: must be at least 100",
        ),
        ({"model": Own(), "process": MESS3, "num_samples": 2**63}, "num_samples: must be in [1, 1048576]"),
        ({"model": Own(), "process": MESS3, "num_samples": 0}, "num_samples: must be in [1, 1048576]"),
        ({"model": Own(num_symbols=2), "process": MESS3, "length": 9}, "model: does not know token 2"),
        ({"model": nn.Linear(3, 3), "process": MESS3, "length": 9}, "model: Linear fails on tokens"),
        ({"model": Own(), "process": MESS3}, "length: Own does not state its training length; pass length="),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError, match=re.escape(line)):
        look(**arguments)
