"""The rehearsal of a user's model: it finds what would make numbers wrong, names it, and leaves the model as it was."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.lab.cli import main
from hmmscope.models.rehearsal import SAMPLES, Asked, is_of_library, rehearse
from hmmscope.seeds import torch_generator

MESS3 = hs.make_process("mess3")
CORPUS = hs.ProcessDataset(MESS3, 12, stream="evaluate")
TABLE = nn.Embedding.from_pretrained(torch.tensor([[1.0, 0.0, 0.2], [0.1, 0.8, 0.0], [0.0, 0.3, 0.9]]))
FEW: dict[str, Any] = {"num_samples": 16, "baselines": False}


class GPT(nn.Module):
    """An embedding, learned positions, two layers that mean over the past, and a head."""

    def __init__(self, block_size: int = 32, num_tokens: int = 3, width: int = 6) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(num_tokens, width), nn.Embedding(block_size, width)
        self.blocks = nn.ModuleList(Past(width) for _ in range(2))
        self.head = nn.Linear(width, 3)
        for weights in self.parameters():  # other ones may have a loss that rises with position
            nn.init.normal_(weights, 0.0, 0.3, torch_generator(0, "weights"))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def counting(model: nn.Module) -> nn.Module:
    """A model with attributes that count something else than its vocabulary."""
    model.num_tokens = model.vocab_size = 1  # type: ignore[assignment]
    return model


class Changed(nn.Module):
    def __init__(self, change: Callable) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(x)


class Past(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = torch.arange(1, x.shape[1] + 1)[:, None]
        return x + self.linear(x.cumsum(1) / count).tanh()


class Raw(nn.Module):
    """Tables without an embedding: tokens and positions are rows of parameters."""

    def __init__(self, num_tokens: int, num_positions: int) -> None:
        super().__init__()
        self.tokens, self.positions = (nn.Parameter(torch.randn(n, 4)) for n in (num_tokens, num_positions))
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.tokens[tokens] + self.positions[: tokens.shape[1]])


class Remembering(nn.Module):
    """A recurrent network that begins where its last call ended, and whose norm counts calls in every mode."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rnn, self.head = nn.Embedding(3, 5), nn.GRU(5, 5, batch_first=True), nn.Linear(5, 3)
        self.norm, self.state, self.seen = nn.BatchNorm1d(5), torch.ones(1, 1, 5), [0]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.norm.train()
        self.seen.append(len(tokens))
        x, state = self.rnn(self.embedding(tokens), self.state.expand(1, len(tokens), -1).contiguous())
        self.state = state.mean(1, keepdim=True)
        return self.head(self.norm(x.flatten(0, 1)).view_as(x))


class TimeFirst(nn.Module):
    """Reads (time, batch) where it is given (batch, time)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rnn, self.head = nn.Embedding(3, 5), nn.GRU(5, 5), nn.Linear(5, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0])


@pytest.mark.parametrize(
    ("model", "length", "line"),
    [
        (lambda x: TABLE(x).transpose(0, 1), 17, "batch and time are swapped"),  # 16 samples of 16 tokens
        (lambda x: TABLE(x).transpose(1, 2), 4, "time is the last axis"),  # as many tokens as symbols
        (lambda x: TABLE(x).permute(1, 2, 0), 17, r"must map tokens .* to logits \(batch, time, symbol\)"),
    ],
)
def test_exchanged_axes_are_found_where_sizes_agree(model: Callable, length: int, line: str) -> None:
    dataset = hs.ProcessDataset(MESS3, length, stream="evaluate")
    with pytest.raises(InputError, match=line):
        hs.evaluate(model, dataset, **FEW)


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (lambda x: TABLE(x.roll(-1, 1)), "the model is not causal: its output at position"),
        (lambda x: TABLE(x) + TABLE(x).mean(1, keepdim=True), "the model is not causal"),
        (lambda x: TABLE(x) + TABLE(x[:, -3:-2]), "the model is not causal"),
        (lambda x: F.dropout(TABLE(x), 0.3), "random in evaluation mode"),
        (lambda x: TABLE(x) + float(np.random.rand()), "random in evaluation mode"),  # noqa: NPY002 - what is found
        (Remembering(), "because it keeps state between calls"),
        (lambda x: TABLE(x) + TABLE(x).mean(0, keepdim=True), "depend on other samples of the batch"),
        (TimeFirst(), "depend on other samples of the batch"),
        (lambda x: TABLE(x).softmax(-1), "the model returns probabilities"),
        (lambda x: 9 * F.one_hot(x, 3).float(), "check whether its outputs are shifted"),
    ],
)
def test_a_model_that_would_mislead_is_warned_of(model: Callable, line: str) -> None:
    score = hs.evaluate(model, CORPUS, **FEW)
    assert any(line in told for told in score.warnings), score.warnings
    assert line in repr(score)
    assert ("INVALID: " in repr(score)) == ("not causal" in str(score.warnings))
    assert "length 12" in repr(score)


@pytest.mark.parametrize(
    "model",
    [
        lambda x: TABLE(x),
        lambda x: TABLE(x).log_softmax(-1),
        lambda x: TABLE(x).cumsum(1),
        lambda x: torch.where(F.one_hot(x, 3) > 0, -torch.inf, TABLE(x)),
        GPT(12),
        counting(GPT(12)),
        torch.ao.quantization.quantize_dynamic(GPT(12), {nn.Linear}),  # it rounds by the largest value of a batch
    ],
)
def test_a_right_model_is_not_warned_of(model: Callable) -> None:
    assert hs.evaluate(model, CORPUS, **FEW).warnings == ()


def test_a_sticky_process_is_no_shift() -> None:
    sticky = hs.HMM([0.5, 0.5], [[0.75, 0.25], [0.25, 0.75]], [[1.0, 0.0], [0.0, 1.0]])
    log = torch.tensor([[0.75, 0.25], [0.25, 0.75]]).log()
    assert hs.evaluate(lambda x: log[x], hs.ProcessDataset(sticky, 40, stream="evaluate"), **FEW).warnings == ()


def test_a_rehearsal_leaves_the_model_as_it_was() -> None:
    model, calls = Remembering(), []
    model.train()
    model.norm.eval()
    model.register_forward_hook(lambda module, args, output: calls.append(len(output)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tokens, state, seen = CORPUS[0:SAMPLES].tokens, model.state, list(model.seen)
    numbers = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002 - what is put back
    hooks = dict(model._forward_hooks)
    assert rehearse(model, tokens, Asked())
    assert model.training
    assert not model.norm.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.state is state
    assert torch.equal(state, torch.ones(1, 1, 5))
    assert model.seen == seen
    assert dict(model._forward_hooks) == hooks
    assert calls == []
    assert torch.equal(numbers[0], torch.get_rng_state())
    assert all(np.array_equal(one, two) for one, two in zip(numbers[1], np.random.get_state(), strict=True))  # noqa: NPY002
    assert all(parameter.grad is None for parameter in model.parameters())


def test_edits_of_a_whole_batch_are_not_rehearsed() -> None:
    model, tokens = GPT(12), CORPUS[0:16].tokens
    there = hs.capture_activations(model, ["blocks.0"], tokens[:, :11])["blocks.0"]
    with hs.intervene(model, {"blocks.0": lambda x: x * 0 + there.flip(0)}):
        assert hs.evaluate(model, CORPUS, **FEW).loss > 0


def test_intervene_rehearses_the_model_before_its_first_call() -> None:
    tokens, edit = CORPUS[0:7].tokens, {"blocks.0": lambda x: 0 * x}

    class Leaking(GPT):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return super().forward(tokens.roll(-1, 1))

    model = Leaking()
    with hs.intervene(model, edit), pytest.warns(UserWarning, match="not causal"):
        model(tokens)
    with warnings.catch_warnings(), hs.intervene(GPT(12), edit) as right:
        warnings.simplefilter("error")
        right(tokens[:, :11])
    with hs.intervene(model, edit), warnings.catch_warnings():
        warnings.simplefilter("error")  # `evaluate` rehearses, and its result has the warnings
        assert "not causal" in hs.evaluate(model, CORPUS, **FEW).warnings[0]
    with hs.intervene(GPT(8), edit) as short, pytest.raises(InputError, match="has 8 positions"):
        short(tokens)


def test_models_of_the_library_are_not_rehearsed() -> None:
    assert is_of_library(hs.make_model("rnn", num_symbols=3, width=4))
    assert not is_of_library(nn.Sequential(TABLE))
    assert not is_of_library(GPT())


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (GPT(8), r"model: has 8 positions \(its embedding pos\) but the samples have 11 tokens; .* length <= 8"),
        (
            GPT(32, 2),
            "model: does not know token 2 of the samples; its embedding tok has 2 entries but needs 3 or more",
        ),
        (Raw(3, 8), "the model runs on 8 tokens per sample but not on 11; use samples with length <= 8"),
        (Raw(2, 32), "the model runs on tokens up to 1, not on token 2"),
        (lambda x, mask: x, r"needs more arguments than the tokens \(mask\)"),
        (lambda batch: batch["input_ids"], r"fails on tokens \(\d, 11\)"),
    ],
)
def test_a_failure_has_its_own_cause(model: Any, line: str) -> None:
    with pytest.raises(InputError, match=line):
        hs.evaluate(model, CORPUS, **FEW)


def test_weights_without_numbers_are_one_line() -> None:
    with torch.device("meta"):
        model = GPT()
    with pytest.raises(InputError, match=r"model: tok.weight of GPT is on the meta device"):
        hs.evaluate(model, CORPUS, **FEW)
    with pytest.raises(InputError, match=r"model: tok.weight of GPT is on the meta device"):
        hs.capture_activations(model, ["residual.1"], CORPUS[0:2].tokens)
    model = GPT()
    model.register_buffer("scale", torch.ones(3, device="meta"), persistent=False)
    with pytest.raises(
        InputError, match=r"^model: scale of GPT is on the meta device, without values; build the model on"
    ):
        hs.probe(model, CORPUS, num_samples=8)
    with pytest.raises(InputError, match="model: Sequential has lazy modules"):
        hs.evaluate(nn.Sequential(TABLE, nn.LazyLinear(3)), CORPUS, **FEW)


def test_every_entrance_names_the_embedding_that_failed(tmp_path: Path) -> None:
    dataset = hs.ProcessDataset(MESS3, 12, stream="probe")
    for entrance in (
        lambda: hs.look(GPT(8), "mess3", length=12),
        lambda: hs.belief_map(GPT(8), "mess3", length=12),
        lambda: hs.probe(GPT(8), dataset, target="previous-1", num_samples=16),
        lambda: hs.train("mess3", tmp_path / "run", model=GPT(8), length=12, num_steps=1),
        lambda: hs.capture_activations(GPT(8), ["blocks.0"], dataset[0:2].tokens),
    ):
        with pytest.raises(InputError, match=r"model: has 8 positions \(its embedding pos\)"):
            entrance()


def test_a_context_of_four_has_a_stream() -> None:
    dataset = hs.ProcessDataset(MESS3, 4, stream="probe")
    found = hs.belief_map(GPT(4), dataset, num_samples=16, options=hs.InstrumentOptions(num_points=10, num_controls=0))
    assert found.layer.startswith("residual.")
    assert "length=4" in repr(found)


def test_a_stream_that_is_not_found_says_why() -> None:
    class Short(nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            raise ValueError("no five tokens")

    with pytest.raises(
        InputError, match=r"found no residual stream in the model, which fails on tokens \(2, 5\) \(no five"
    ):
        hs.analysis.residual_layers(Short())


def test_instruments_carry_warnings_and_take_modules_without_logits() -> None:
    class Leaking(GPT):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return super().forward(tokens.roll(-1, 1))

    class Stream(GPT):
        def forward(self, tokens: torch.Tensor) -> Any:
            return {"last": super().forward(tokens)}

    asked: dict[str, Any] = {"target": "previous-1", "num_samples": 16, "options": hs.InstrumentOptions(num_controls=0)}
    rows = hs.probe(Leaking(), CORPUS, **asked)
    assert "not causal" in rows.warnings[0]
    assert "warning: the model is not causal" in repr(rows)
    assert hs.probe(Stream(), CORPUS, layers=["blocks.1"], **asked).warnings == ()
    assert hs.belief_map(
        Leaking(), "mess3", length=8, num_samples=16, options=hs.InstrumentOptions(num_points=10, num_controls=0)
    ).warnings
    for change, line in [
        (lambda x: x + torch.inf, "outputs are NaN or infinite, first at position 0"),
        (
            lambda x: torch.where(torch.arange(x.shape[1])[:, None] > 4, torch.nan, x),
            "outputs are NaN or infinite, first at position 5",
        ),
        (lambda x: x[:, -1], r"to \(3, 3\) instead of outputs of all positions"),
        (lambda x: x[:, -1:], r"to \(3, 1, 3\) instead of outputs of all positions"),
    ]:
        model = GPT()
        model.head = nn.Sequential(model.head, Changed(change))
        (told,) = hs.probe(model, CORPUS, layers=["blocks.1"], **asked).warnings
        assert re.search(line, told)
        with hs.intervene(model, {"blocks.0": lambda x: x}), pytest.warns(UserWarning, match=line):
            model(CORPUS[0:5].tokens[:, :8])


def test_layers_with_time_first_are_refused_where_a_batch_is_as_long() -> None:
    class Model(TimeFirst):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(self.embedding(tokens.T))[0]).transpose(0, 1)

    dataset = hs.ProcessDataset(MESS3, 64, stream="probe")
    with pytest.raises(InputError, match=r"layers: must give \(batch, time, feature\)"):
        hs.probe(
            Model(),
            dataset,
            target="previous-1",
            layers=["head"],
            num_samples=64,
            options=hs.InstrumentOptions(num_controls=0),
        )


def test_layers_with_channels_before_time_are_refused_where_they_are_as_many() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.conv, self.head = nn.Embedding(3, 12), nn.Conv1d(12, 12, 3), nn.Linear(12, 3)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.conv(F.pad(self.embedding(tokens).transpose(1, 2), (2, 0))).transpose(1, 2))

    few = {"num_samples": 16, "options": hs.InstrumentOptions(num_controls=0)}
    with pytest.raises(InputError, match=r"^layers: must give .* on tokens \(3, 11\), got \(3, 12, 11\)$"):
        hs.probe(Model(), CORPUS, layers=["conv"], **few)
    assert hs.probe(Model(), CORPUS, layers=["embedding"], **few)


def test_a_length_is_asked_for_unless_the_model_states_it(tmp_path: Path) -> None:
    model = GPT(64)
    model.config = {"block_size": 64}  # type: ignore[assignment]
    line = r"length: GPT does not state its training length; .* the model has 64 positions \(block_size\)"
    with pytest.raises(InputError, match=line):
        hs.look(model, "mess3")
    model.config["train_length"] = 6  # type: ignore[operator]
    few: dict[str, Any] = {"num_samples": 16, "options": hs.InstrumentOptions(num_points=10, num_controls=0)}
    assert hs.belief_map(model, "mess3", **few).length == 6
    run = hs.train("mess3", tmp_path / "run", model="rnn", length=7, num_steps=1)
    assert hs.belief_map(run.model, "mess3", **few).length == 7
    assert hs.belief_map(hs.load_run(tmp_path / "run").model, "mess3", **few).length == 7


def test_a_loss_that_rises_with_position_is_warned_of() -> None:
    def untrained_late(tokens: torch.Tensor) -> torch.Tensor:
        late = torch.arange(tokens.shape[1])[:, None] >= 12
        return torch.where(late, 9 * F.one_hot((tokens + 1) % 3, 3), TABLE(tokens))

    dataset = hs.ProcessDataset(MESS3, 19, stream="evaluate")
    (line,) = hs.evaluate(untrained_late, dataset, **FEW).warnings
    assert "the loss above the optimum rises with position" in line
    assert hs.evaluate(lambda x: TABLE(x), dataset, **FEW).warnings == ()


def test_warnings_stand_on_the_page_and_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.embedding, self.head = nn.Embedding(3, 4), nn.Linear(4, 3)\n\n    def forward(self, tokens):\n"
        "        return self.head(self.embedding(tokens).flip(1))\n"
    )
    assert main(["look", "mine.py:Net", "mess3", "-o", "x.html"]) == 2
    assert "length: Net does not state its training length" in capsys.readouterr().err
    assert main(["look", "mine.py:Net", "mess3", "--length", "9", "--samples", "8", "-o", "x.html"]) == 0
    assert "warning: the model is not causal" in capsys.readouterr().out
    page = Path("x.html").read_text()
    assert "Warning: the model is not causal" in page
    assert "INVALID: " in page


def test_a_bidirectional_model_of_the_library_is_invalid() -> None:
    models = [hs.make_model("decoder", num_symbols=3, causal=causal, max_length=12) for causal in (True, False)]
    told = [hs.evaluate(model, CORPUS, **FEW).invalid for model in models]
    assert told == [
        None,
        "the model is not causal: it has causal = false, so its losses do not measure predictions; mask later tokens",
    ]


def test_training_warns_before_it_begins(tmp_path: Path) -> None:
    class Leaking(GPT):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return super().forward(tokens.roll(-1, 1))

    with pytest.warns(UserWarning, match="the model is not causal"):
        hs.train("mess3", tmp_path / "run", model=Leaking(), length=9, num_steps=1)

    class Exchanged(GPT):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return super().forward(tokens).transpose(0, 1)

    batch = {"batch_size": 9}
    with pytest.raises(InputError, match="batch and time are swapped"):
        hs.train("mess3", tmp_path / "other", model=Exchanged(), length=9, num_steps=1, training=batch)
