"""Export to and import from the Hugging Face layout: the same logits, the same activations, the same scores."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import hmmscope as hs
from comparing import refuses
from hmmscope.analysis.activations import capture_activations
from hmmscope.analysis.untrained_controls import draw_controls
from hmmscope.errors import DamagedError, RefusedError
from hmmscope.interop import export_huggingface, exported, from_huggingface, read_record, to_huggingface
from hmmscope.interop.exported import folded_bias
from hmmscope.lab.cli import main
from hmmscope.models.attention import RotaryTable
from hmmscope.models.base import ModelIO, build_model
from hmmscope.models.decoder import Decoder, DecoderSpec
from hmmscope.runs.config import config_from_data
from huggingface_cases import (  # noqa: F401 - fixtures
    GRID,
    LENGTH,
    ROTARY,
    ROTATIONS,
    SMALL,
    SYMBOLS,
    TOKENS,
    TOLERANCE,
    apart,
    folder,
    made,
    shaken,
    streams,
    tokens,
    trained,
)

# ---------------------------------------------------------------------------------------------------------------------
# Opened by transformers


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", GRID)
@torch.no_grad()
def test_auto_model_gives_the_same_logits_and_streams(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    library = pytest.importorskip("transformers")
    model, inputs = made(name, dtype), tokens()
    export_huggingface(model, tmp_path / "model")
    opened = library.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert opened.dtype == dtype
    answer = opened(inputs, output_hidden_states=True)
    assert answer.logits.shape == (*inputs.shape, TOKENS)
    within = max(TOLERANCE[dtype], ROTATIONS if name in ROTARY else 0.0)
    assert apart(answer.logits[..., :SYMBOLS], model(inputs)) < within
    assert not answer.logits[..., SYMBOLS:].any()
    ours = streams(model, inputs)
    assert all(apart(theirs, own) < within for theirs, own in zip(answer.hidden_states, ours, strict=True))


@pytest.mark.parametrize("name", sorted(ROTARY))
@torch.no_grad()
def test_rotary_models_differ_by_the_rotations_only(name: str) -> None:
    """With rotations in float64 in place of theirs, the rest agrees to float64."""
    pytest.importorskip("transformers")
    model, inputs = made(name, torch.float64), tokens()
    opened = to_huggingface(model)
    before = apart(opened(inputs).logits[..., :SYMBOLS], model(inputs))

    class Exact(nn.Module):
        def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            table = RotaryTable(4, model.rotary.base)
            angles = table.at(position_ids[0], torch.float64)
            return angles[0][None], torch.cat([-angles[1][:, :2], angles[1][:, 2:]], -1)[None]

    opened.gpt_neox.rotary_emb = Exact()
    after = apart(opened(inputs).logits[..., :SYMBOLS], model(inputs))
    assert after < 1e-12 < before


@torch.no_grad()
def test_a_wrong_layout_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused rows in the other order give other logits: the comparison can fail."""
    pytest.importorskip("transformers")
    model, inputs = made("roformer"), tokens()
    monkeypatch.setattr(exported, "GPT_NEOX", replace(exported.GPT_NEOX, fused_by_head=False))
    assert apart(to_huggingface(model)(inputs).logits[..., :SYMBOLS], model(inputs)) > 1e-3


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["decoder", "roformer"])
def test_trained_models_score_the_same(name: str, trained: dict[str, Path], tmp_path: Path) -> None:
    """`evaluate` and `probe` take the opened model as it is."""
    library = pytest.importorskip("transformers")
    run = hs.load_run(trained[name])
    export_huggingface(run, tmp_path / "model")
    opened = library.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    dataset = run.dataset()
    model = run.model.eval()
    inputs = dataset[0:32].tokens
    with torch.no_grad():
        assert opened(inputs).logits.shape[2] == run.model.model_io.vocab_size == 5
        assert apart(opened(inputs).logits[..., :4], model(inputs)) < 1e-5
    ours, theirs = (hs.evaluate(m, dataset, num_samples=32) for m in (model, opened))
    assert theirs.loss == pytest.approx(ours.loss, abs=1e-6)
    assert theirs.excess == pytest.approx(ours.excess, abs=1e-6)
    start, blocks = (
        ("transformer.drop", "transformer.h") if name == "decoder" else ("gpt_neox.emb_dropout", "gpt_neox.layers")
    )
    layers = [start, *(f"{blocks}.{i}" for i in range(2))]
    options = {"target": "previous-1", "num_samples": 64}
    found = zip(hs.probe(model, dataset, **options), hs.probe(opened, dataset, layers=layers, **options), strict=True)
    for own, other in found:
        # Activations differ by rounding, which may turn a few of the 16 x 2 test answers.
        assert other["accuracy"] == pytest.approx(own["accuracy"], abs=0.07)
        assert {k: own[k] for k in ("chance", "ceiling", "labels")} == {
            k: other[k] for k in ("chance", "ceiling", "labels")
        }


def test_generate_gives_symbols_only(tmp_path: Path) -> None:
    library = pytest.importorskip("transformers")
    model = made("learned", max_length=40)
    with torch.no_grad():
        model.head.bias -= 5.0  # rows of zeros would win
    export_huggingface(model, tmp_path / "model")
    opened = library.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert opened(tokens()).logits.argmax(-1).eq(SYMBOLS).all()
    written = opened.generate(tokens(2, 4), max_new_tokens=30, do_sample=False)
    assert written.shape == (2, 34)
    assert (written[:, 4:] < SYMBOLS).all()


def test_making_a_model_leaves_the_global_generator_alone() -> None:
    pytest.importorskip("transformers")
    before = torch.get_rng_state()
    to_huggingface(made("learned"))
    assert torch.equal(torch.get_rng_state(), before)


# ---------------------------------------------------------------------------------------------------------------------
# And back


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", GRID)
@torch.no_grad()
def test_round_trip(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Needs nothing of transformers; rotations are ours again."""
    model, inputs = made(name, dtype), tokens()
    export_huggingface(model, tmp_path / "model")
    back = from_huggingface(tmp_path / "model")
    assert isinstance(back, Decoder)
    assert not back.training
    within = {torch.float32: 2e-6, torch.float64: 1e-14}[dtype]
    assert apart(back(inputs), model(inputs)) < within
    assert all(apart(a, b) < within for a, b in zip(streams(back, inputs), streams(model, inputs), strict=True))
    assert back.model_io == model.model_io
    assert back.dropout.rate == model.dropout.rate
    pattern = "blocks.0.attention.pattern"
    assert apart(*(capture_activations(m, [pattern], inputs)[pattern] for m in (back, model))) < within
    again = from_huggingface(tmp_path / "model")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), back.parameters(), strict=True))


@torch.no_grad()
def test_what_a_round_trip_keeps() -> None:
    """A model without positions reads any length; scale, lack of MLPs and base of rotation come back as such."""
    pytest.importorskip("transformers")
    free = from_huggingface(to_huggingface(made("no-positions")))
    assert free(tokens(1, 3 * LENGTH)).shape == (1, 3 * LENGTH, SYMBOLS)
    assert from_huggingface(to_huggingface(made("attention-only"))).blocks[0].mlp is None
    assert from_huggingface(to_huggingface(made("unscaled"))).blocks[1].attention.scale == 1.0
    assert from_huggingface(to_huggingface(made("rotary"))).rotary.base == 500.0
    limited = from_huggingface(to_huggingface(made("features-only")))
    refuses(lambda: limited(tokens(1, LENGTH + 1)), "max_length")


def test_positions_that_have_no_end(tmp_path: Path) -> None:
    model = made("sinusoidal-bare", max_length=None)
    refuses(lambda: export_huggingface(model, tmp_path / "model"), "max_length")
    export_huggingface(model, tmp_path / "model", max_length=30)
    back = from_huggingface(tmp_path / "model")
    assert apart(back(tokens(1, 30)), model(tokens(1, 30))) < 1e-5
    refuses(
        lambda: export_huggingface(made("learned"), tmp_path / "x", max_length=LENGTH + 1), "max_length", "at most 12"
    )


def test_more_outputs_than_tokens(tmp_path: Path) -> None:
    """A model of beliefs has a state for an output, and there may be more states than symbols."""
    ports = ModelIO(num_outputs=7, vocab_size=3, max_length=LENGTH)
    model = shaken(build_model(DecoderSpec(**SMALL), ports))
    export_huggingface(model, tmp_path / "model")
    back, inputs = from_huggingface(tmp_path / "model"), tokens(below=3)
    assert back.model_io == ports
    assert apart(back(inputs), model(inputs)) < 1e-5


def test_the_head_bias_moves_into_the_norm() -> None:
    head = nn.Linear(6, 4, dtype=torch.float64)
    before, stream = torch.linspace(-1, 1, 6).double(), torch.linspace(0, 2, 6).double()
    after = folded_bias(head, before)
    with torch.no_grad():
        assert apart(head.weight @ (stream + after), head(stream + before)) < 1e-14
    refuses(lambda: folded_bias(nn.Linear(3, 4), torch.zeros(3)), "head.bias", "num_outputs = 4 is above width = 3")
    with torch.no_grad():
        head.weight[1] = head.weight[0]
        refuses(lambda: folded_bias(head, before), "head.bias", "its weights cannot represent it")
        head.bias.zero_()
    assert apart(folded_bias(head, before), before) == 0


# ---------------------------------------------------------------------------------------------------------------------
# The folder


def test_the_folder(folder: Path) -> None:
    names = {"config.json", "model.safetensors", "generation_config.json", "hmmscope.json", "manifest.json"}
    assert {path.name for path in folder.iterdir()} == names
    record = read_record(folder)
    assert record["layout"] == "gpt_neox"
    assert record["ports"]["num_outputs"] == SYMBOLS
    assert record["run"] is None
    refuses(lambda: export_huggingface(made("learned"), folder), "exists", kind=RefusedError)
    refuses(lambda: export_huggingface(made("learned"), folder / "no" / "x"), "does not exist")
    assert {path.name for path in folder.parent.iterdir()} == {"model"}


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "hmmscope.json"])
def test_damage_is_found(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    refuses(lambda: from_huggingface(folder), name, kind=DamagedError)


def test_folders_of_others(folder: Path, tmp_path: Path) -> None:
    """Without our record and manifest the configuration has to do; what it promises has to be there."""
    for name in ("hmmscope.json", "manifest.json"):
        (folder / name).unlink()
    assert isinstance(from_huggingface(folder), Decoder)
    assert from_huggingface(folder, num_symbols=3).model_io.num_outputs == 3
    refuses(lambda: from_huggingface(folder, num_symbols=0), "num_symbols")
    refuses(lambda: from_huggingface(folder, num_symbols=TOKENS + 1), "num_symbols")
    refuses(lambda: read_record(folder), "hmmscope.json")
    refuses(lambda: from_huggingface(tmp_path / "nowhere"), "must be a folder with a config.json")
    config = json.loads((folder / "config.json").read_text())
    changes = {
        "layers.3": {"num_hidden_layers": 4},
        "width 16": {"hidden_size": 16},
        "heads": {"num_attention_heads": "2"},
    }
    for part, change in changes.items():
        (folder / "config.json").write_text(json.dumps(config | change))
        refuses(lambda: from_huggingface(folder), part, kind=DamagedError)


def test_a_copied_folder_is_the_same(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    assert read_record(tmp_path / "copy") == read_record(folder)


@pytest.mark.parametrize(
    "part, kind, options",
    [
        ("norm", "decoder", {"norm": "none"}),
        ("causal", "decoder", {"causal": False}),
        ("input_features", "decoder", {"positions": "rotary"}),
        ("feedback_width", "decoder", {"feedback_width": 2}),
        ("input_width", "decoder", {"input_width": 3, "vocab_size": None}),
        ("head.bias", "decoder", {"num_symbols": 12, "vocab_size": 12}),
        ("softmax attention", "linear-attention", {}),
        ("Recurrent", "lstm", {}),
    ],
)
def test_what_has_no_layout_is_refused(part: str, kind: str, options: dict, tmp_path: Path) -> None:
    sizes = {"num_symbols": SYMBOLS, "vocab_size": TOKENS, "max_length": LENGTH}
    small = SMALL if kind != "lstm" else {"num_layers": 1, "width": 8}
    model = shaken(hs.make_model(kind, **(sizes | small | options)))
    refuses(lambda: export_huggingface(model, tmp_path / "model"), part)
    assert not list(tmp_path.iterdir())


def test_export_verb(trained: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "model"
    assert main(["analyse", str(trained["roformer"]), "--export", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "GPT-NeoX" in printed
    assert "first 4" in printed
    run, record = hs.load_run(trained["roformer"]), read_record(out)
    assert record["run"]["process_digest"] == run.process.digest
    assert config_from_data(record["run"]["config"]) == run.config
    inputs = run.dataset()[0:4].tokens
    assert apart(from_huggingface(out)(inputs), run.model.eval()(inputs)) < 1e-5
    assert main(["analyse", str(trained["roformer"]), "--export", str(out)]) == 3
    assert main(["analyse", str(tmp_path / "nothing"), "--export", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err.count("error[") == 2


def test_symbols_of_a_run(tmp_path: Path) -> None:
    data = {
        "process": {"name": "file", "path": "umbrella"},
        "layout": {"name": "sequences", "length": 6},
        "model": {"name": "decoder", **SMALL},
        "training": {"num_steps": 1, "batch_size": 2, "warmup_steps": 1, "device": "cpu"},
    }
    run = hs.train(config_from_data(data), tmp_path / "run", options=hs.TrainOptions(num_samples=4))
    export_huggingface(run, tmp_path / "model")
    assert read_record(tmp_path / "model")["run"]["symbols"] == list(run.process.symbols)


def test_untrained_twins_of_a_raw_model_are_drawn_by_its_configuration() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=3, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=None, eos_token_id=None
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        model.transformer.wte.weight.fill_(5.0)  # as training may have left it
    found = draw_controls(model)
    tables = [model.transformer.wte.weight, *(twin.transformer.wte.weight for twin in found.models)]  # type: ignore[union-attr]
    assert (len(tables), found.reason) == (4, "")
    assert len({tuple(table.flatten().tolist()) for table in tables}) == 4
    assert all(float(table.std()) == pytest.approx(config.initializer_range, rel=0.5) for table in tables[1:])
    assert (tables[0] == 5).all()
    rows = hs.probe(model, hs.ProcessDataset(hs.make_process("mess3"), 12), num_samples=16, shuffled_labels=False)
    assert [row["layer_name"] for row in rows] == ["residual.0", "residual.1"]
    assert all("3 untrained controls" in row["beyond_twins"] for row in rows)
