"""Export to and import from the Hugging Face layout: the same logits, the same activations, the same scores."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import hmmscope as hs
from hmmscope.analysis.activations import capture
from hmmscope.cli import main
from hmmscope.config import config_from_data
from hmmscope.errors import DamagedError, InputError, RefusedError, ResourceError
from hmmscope.interop import (
    export_huggingface,
    from_huggingface,
    read_record,
    to_huggingface,
    to_transformer_lens,
)
from hmmscope.interop import exported as exported_module
from hmmscope.interop.exported import folded_bias
from hmmscope.interop.huggingface import HuggingFaceModel
from hmmscope.models.attention import RotaryTable
from hmmscope.models.base import Ports
from hmmscope.models.decoder import Decoder, DecoderSpec
from hmmscope.models.make import build_model
from hmmscope.seeds import torch_generator

LENGTH, SYMBOLS, TOKENS = 12, 5, 6
SMALL = {"num_layers": 2, "num_heads": 2, "width": 8}

#: Options of every kind that has a layout.
GRID = {
    "learned": ("decoder", {}),
    "learned-bare": ("decoder", {"input_features": False, "dropout": 0.0, "mlp_ratio": 2}),
    "sinusoidal": ("decoder", {"positions": "sinusoidal"}),
    "sinusoidal-bare": ("decoder", {"positions": "sinusoidal", "input_features": False}),
    "features-only": ("decoder", {"positions": "none"}),
    "no-positions": ("decoder", {"positions": "none", "input_features": False}),
    "unscaled": ("decoder", {"scale_attention": False, "num_heads": 1}),
    "attention-only": ("decoder", {"attention_only": True}),
    "rotary": ("decoder", {"positions": "rotary", "input_features": False, "rotary_base": 500.0}),
    "rotary-unscaled": ("decoder", {"positions": "rotary", "input_features": False, "scale_attention": False}),
    "rotary-attention-only": ("decoder", {"positions": "rotary", "input_features": False, "attention_only": True}),
    "roformer": ("roformer", {"num_layers": 3, "mlp_ratio": 1}),
}
ROTARY = {name for name, (kind, fields) in GRID.items() if kind == "roformer" or fields.get("positions") == "rotary"}

#: Float32: rounding. Float64: rounding, but transformers computes rotations in float32 whatever the type of the weights.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
ROTATIONS = 1e-6


def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """With biases and gains that are not what a fresh model has, so that none can be forgotten."""
    generator = torch_generator(seed, "weights")
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.copy_(1 + 0.3 * torch.randn(module.weight.shape, generator=generator))
            bias = getattr(module, "bias", None)
            if isinstance(bias, torch.Tensor):
                bias.copy_(0.3 * torch.randn(bias.shape, generator=generator))
    return model.eval()


def made(name: str, dtype: torch.dtype = torch.float32, **options) -> Decoder:
    kind, fields = GRID[name]
    sizes = {"num_symbols": SYMBOLS, "num_tokens": TOKENS, "max_length": LENGTH} | options
    model = hs.make_model(kind, seed=1, **sizes, **(SMALL | fields))
    assert isinstance(model, Decoder)
    return shaken(model).to(dtype)


def tokens(count: int = 3, length: int = LENGTH, below: int = TOKENS) -> torch.Tensor:
    return torch.randint(below, (count, length), generator=torch_generator(2, "weights"))


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    return (one - other).abs().max().item()


def streams(model: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
    names = [name for name, _ in model.named_modules() if name.startswith("residual.")]
    return list(capture(model, names, inputs).values())


def refuses(call, *parts: str, kind: type[Exception] = InputError) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An exported roformer."""
    export_huggingface(made("roformer"), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two short runs on prompts, which have a delimiter."""
    base = {
        "process": {"name": "random-mixture", "num_components": 3, "num_states": 3, "num_symbols": 4},
        "layout": {"name": "prompts", "num_demonstrations": 2, "demonstration_length": 3, "test_length": 6},
        "training": {"num_steps": 60, "batch_size": 8, "learning_rate": 0.01, "warmup_steps": 5, "device": "cpu"},
    }
    paths = {}
    for name, fields in {"decoder": {}, "roformer": {}}.items():
        paths[name] = tmp_path_factory.mktemp("runs") / name
        hs.train(config_from_data(base | {"model": {"name": name, **SMALL, **fields}}), paths[name], num_samples=8)
    return paths


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
    assert len(answer.hidden_states) == len(ours)
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
    monkeypatch.setattr(exported_module, "GPT_NEOX", replace(exported_module.GPT_NEOX, fused_by_head=False))
    assert apart(to_huggingface(model)(inputs).logits[..., :SYMBOLS], model(inputs)) > 1e-3


@pytest.mark.parametrize("name", ["decoder", "roformer"])
def test_trained_models_score_the_same(name: str, trained: dict[str, Path], tmp_path: Path) -> None:
    """`evaluate` and `probe` take the opened model as it is."""
    library = pytest.importorskip("transformers")
    run = hs.load_run(trained[name])
    export_huggingface(run, tmp_path / "model")
    opened = library.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    corpus = run.corpus()
    model = run.model.eval()
    inputs = corpus[0:32].tokens
    with torch.no_grad():
        assert opened(inputs).logits.shape[2] == run.model.ports.num_tokens == 5
        assert apart(opened(inputs).logits[..., :4], model(inputs)) < 1e-5
    ours, theirs = (hs.evaluate(m, corpus, num_samples=32) for m in (model, opened))
    assert theirs.loss == pytest.approx(ours.loss, abs=1e-6)
    assert theirs.excess == pytest.approx(ours.excess, abs=1e-6)
    start, blocks = (
        ("transformer.drop", "transformer.h") if name == "decoder" else ("gpt_neox.emb_dropout", "gpt_neox.layers")
    )
    layers = [start, *(f"{blocks}.{i}" for i in range(2))]
    options = {"target": "previous-1", "num_samples": 64}
    found = zip(hs.probe(model, corpus, **options), hs.probe(opened, corpus, layers=layers, **options), strict=True)
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
    assert back.ports == model.ports
    assert back.dropout.rate == model.dropout.rate
    pattern = "blocks.0.attention.pattern"
    assert apart(*(capture(m, [pattern], inputs)[pattern] for m in (back, model))) < within
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
        lambda: export_huggingface(made("learned"), tmp_path / "x", max_length=LENGTH + 1), "max_length", "12 positions"
    )


def test_more_outputs_than_tokens(tmp_path: Path) -> None:
    """A model of beliefs has a state for an output, and there may be more states than symbols."""
    ports = Ports(num_outputs=7, num_tokens=3, max_length=LENGTH)
    model = shaken(build_model(DecoderSpec(**SMALL), ports))
    export_huggingface(model, tmp_path / "model")
    back, inputs = from_huggingface(tmp_path / "model"), tokens(below=3)
    assert back.ports == ports
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
        refuses(lambda: folded_bias(head, before), "head.bias", "do not span")
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
    refuses(lambda: export_huggingface(made("learned"), folder / "no" / "x"), "there is no folder")
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
    assert from_huggingface(folder, num_symbols=3).ports.num_outputs == 3
    refuses(lambda: from_huggingface(folder, num_symbols=0), "num_symbols")
    refuses(lambda: from_huggingface(folder, num_symbols=TOKENS + 1), "num_symbols")
    refuses(lambda: read_record(folder), "hmmscope.json")
    refuses(lambda: from_huggingface(tmp_path / "nowhere"), "there is no folder")
    config = json.loads((folder / "config.json").read_text())
    changes = {
        "layers.3": {"num_hidden_layers": 4},
        "width 16": {"hidden_size": 16},
        "heads": {"num_attention_heads": "2"},
    }
    for part, change in changes.items():
        (folder / "config.json").write_text(json.dumps(config | change))
        refuses(lambda: from_huggingface(folder), part, kind=DamagedError)


@pytest.mark.parametrize(
    "part, kind, options",
    [
        ("norm", "decoder", {"norm": "none"}),
        ("causal", "decoder", {"causal": False}),
        ("input_features", "decoder", {"positions": "rotary"}),
        ("feedback_width", "decoder", {"feedback_width": 2}),
        ("input_width", "decoder", {"input_width": 3, "num_tokens": None}),
        ("head.bias", "decoder", {"num_symbols": 12, "num_tokens": 12}),
        ("softmax attention", "linear-attention", {}),
        ("Recurrent", "lstm", {}),
    ],
)
def test_what_has_no_layout_is_refused(part: str, kind: str, options: dict, tmp_path: Path) -> None:
    sizes = {"num_symbols": SYMBOLS, "num_tokens": TOKENS, "max_length": LENGTH}
    small = SMALL if kind != "lstm" else {"num_layers": 1, "width": 8}
    model = shaken(hs.make_model(kind, **(sizes | small | options)))
    refuses(lambda: export_huggingface(model, tmp_path / "model"), part)
    assert not list(tmp_path.iterdir())


def test_export_verb(trained: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "model"
    assert main(["export", str(trained["roformer"]), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "GPT-NeoX" in printed
    assert "first 4" in printed
    run, record = hs.load_run(trained["roformer"]), read_record(out)
    assert record["run"]["process_digest"] == run.process.digest
    assert config_from_data(record["run"]["config"]) == run.config
    inputs = run.corpus()[0:4].tokens
    assert apart(from_huggingface(out)(inputs), run.model.eval()(inputs)) < 1e-5
    assert main(["export", str(trained["roformer"]), "--out", str(out)]) == 3
    assert main(["export", str(tmp_path / "nothing"), "--out", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err.count("error[") == 2


def test_symbols_of_a_run(tmp_path: Path) -> None:
    data = {
        "process": {"name": "file", "path": "umbrella"},
        "layout": {"name": "sequences", "length": 6},
        "model": {"name": "decoder", **SMALL},
        "training": {"num_steps": 1, "batch_size": 2, "warmup_steps": 1, "device": "cpu"},
    }
    run = hs.train(config_from_data(data), tmp_path / "run", num_samples=4)
    export_huggingface(run, tmp_path / "model")
    assert read_record(tmp_path / "model")["run"]["symbols"] == list(run.process.symbols)


# ---------------------------------------------------------------------------------------------------------------------
# Models of others


def foreign(name: str) -> nn.Module:
    """A small causal model whose weights our generator drew."""
    library = pytest.importorskip("transformers")
    sizes = {"vocab_size": TOKENS, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    extra = {
        "llama": {"intermediate_size": 16, "num_key_value_heads": 1, "max_position_embeddings": 64},
        "gpt2": {"n_positions": 64, "activation_function": "gelu_new"},
        "gpt_neox": {"intermediate_size": 16, "max_position_embeddings": 64},
        "gpt_neo": {
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global"], 2]],
            "max_position_embeddings": 64,
        },
    }[name]
    if name == "gpt_neo":
        sizes = {"vocab_size": TOKENS, "hidden_size": 8}
    with torch.random.fork_rng(devices=[]):
        model = library.AutoModelForCausalLM.from_config(library.AutoConfig.for_model(name, **sizes, **ends, **extra))
    generator = torch_generator(3, "weights")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.mean() + 0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "gpt_neo"])
@torch.no_grad()
def test_foreign_models_have_taps(name: str, tmp_path: Path) -> None:
    theirs, inputs = foreign(name), tokens()
    answer = theirs(inputs, output_hidden_states=True)
    hooks = [len(module._forward_hooks) for module in theirs.modules()]
    model = from_huggingface(theirs, num_symbols=SYMBOLS)
    assert isinstance(model, HuggingFaceModel)
    assert apart(model(inputs), answer.logits[..., :SYMBOLS]) == 0
    found = streams(model, inputs)
    assert len(found) == 3
    for own, other in zip(found[:2], answer.hidden_states, strict=False):  # theirs of the last layer is after its norm
        assert apart(own, other) == 0
    theirs.save_pretrained(tmp_path / "model")
    assert apart(from_huggingface(tmp_path / "model", num_symbols=SYMBOLS)(inputs), model(inputs)) < 1e-6
    assert [len(module._forward_hooks) for module in theirs.modules()] == hooks

    handle = model.residual[2].register_forward_hook(lambda module, args, output: torch.zeros_like(output))
    changed = model(inputs)
    handle.remove()
    assert apart(changed[:, :1].expand_as(changed), changed) < 1e-6  # nothing of the tokens is left
    assert apart(changed, model(inputs)) > 1e-3


def test_foreign_models_under_the_instruments() -> None:
    process = hs.make_process("random-hmm", num_states=3, num_symbols=TOKENS, seed=0)
    corpus = hs.Corpus(process, length=10, stream="evaluate")
    theirs = foreign("llama")
    model = from_huggingface(theirs)
    assert hs.evaluate(model, corpus, num_samples=16).loss == hs.evaluate(theirs, corpus, num_samples=16).loss
    layers = ["model.embed_tokens", "model.layers.0", "model.layers.1"]
    options = {"target": "previous-0", "num_samples": 64}
    own, other = hs.probe(model, corpus, **options), hs.probe(theirs, corpus, layers=layers, **options)
    assert [row["accuracy"] for row in own] == [row["accuracy"] for row in other]
    assert [row["layer_name"] for row in own][:3] == ["residual.0", "residual.1", "residual.2"]
    assert own[0]["accuracy"] > 0.99  # the embedding holds the token


@torch.no_grad()
def test_foreign_models_with_cache_and_positions() -> None:
    model, inputs = from_huggingface(foreign("gpt2")), tokens()
    whole, cache = model(inputs), {}
    parts = torch.cat([model(inputs[:, :5], cache=cache), model(inputs[:, 5:], cache=cache)], 1)
    assert apart(parts, whole) < 1e-6
    assert apart(model(inputs, torch.arange(LENGTH)), whole) == 0
    assert apart(model(inputs, torch.arange(LENGTH).flip(0)), whole) > 1e-3


def test_foreign_models_that_cannot_be_wrapped() -> None:
    library = pytest.importorskip("transformers")
    theirs = foreign("llama")
    refuses(lambda: from_huggingface(theirs.model), "no head")
    refuses(lambda: from_huggingface(nn.Linear(2, 2)), "no config")
    refuses(lambda: from_huggingface(theirs, num_symbols=TOKENS + 1), "num_symbols")
    refuses(lambda: from_huggingface(theirs, layers="model.nothing"), "layers", "model.layers")
    assert len(from_huggingface(theirs, layers="model.layers").residual) == 3
    theirs.config.num_hidden_layers = 7
    refuses(lambda: from_huggingface(theirs), "layers", "model.layers")
    sizes = {"vocab_size": TOKENS, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    with torch.random.fork_rng(devices=[]):
        both = library.T5ForConditionalGeneration(library.T5Config(**sizes))
    refuses(lambda: from_huggingface(both), "encoder-decoder")


def test_a_gpt2_that_is_ours_comes_back_as_ours() -> None:
    """Whoever made it: with exact GELU and our dropout it is a decoder, tied or not."""
    library = pytest.importorskip("transformers")
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": LENGTH, "vocab_size": TOKENS, "attn_pdrop": 0.0}
    with torch.random.fork_rng(devices=[]):
        theirs = library.GPT2LMHeadModel(
            library.GPT2Config(activation_function="gelu", scale_attn_weights=False, **sizes)
        )
    shaken(theirs)
    model = from_huggingface(theirs)
    assert isinstance(model, Decoder)
    assert model.blocks[0].attention.scale == 1.0
    with torch.no_grad():
        assert apart(model(tokens()), theirs(tokens()).logits) < 1e-5


# ---------------------------------------------------------------------------------------------------------------------
# TransformerLens and nnsight


def test_without_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

    model = made("learned")
    monkeypatch.setattr("importlib.import_module", absent)
    refuses(lambda: to_huggingface(model), "hmmscope[models]", kind=ResourceError)
    refuses(lambda: to_transformer_lens(model), "hmmscope[lens]", kind=ResourceError)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", GRID)
@torch.no_grad()
def test_transformer_lens_gives_the_same(name: str, dtype: torch.dtype) -> None:
    pytest.importorskip("transformer_lens")
    model, inputs = made(name, dtype), tokens()
    bridge = to_transformer_lens(SimpleNamespace(model=model))
    logits, cache = bridge.run_with_cache(inputs)
    within = max(TOLERANCE[dtype], ROTATIONS if name in ROTARY else 0.0)
    assert apart(logits[..., :SYMBOLS], model(inputs)) < within
    *before, last = streams(model, inputs)
    for layer, own in enumerate(before):
        assert apart(cache[f"blocks.{layer}.hook_resid_pre"], own) < within
        pattern = f"blocks.{layer}.attention.pattern"
        assert apart(cache[f"blocks.{layer}.attn.hook_pattern"], capture(model, [pattern], inputs)[pattern]) < within
    assert apart(cache[f"blocks.{len(before) - 1}.hook_resid_post"], last) < within


@torch.no_grad()
def test_transformer_lens_opens_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bridges = pytest.importorskip("transformer_lens.model_bridge")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    bridge = bridges.TransformerBridge.boot_transformers(str(folder), device="cpu")
    assert apart(bridge(tokens())[..., :SYMBOLS], made("roformer")(tokens())) < 1e-5


@torch.no_grad()
def test_nnsight_traces_theirs_and_ours() -> None:
    nnsight = pytest.importorskip("nnsight")
    model, inputs = made("learned"), tokens()
    traced = nnsight.NNsight(to_huggingface(model))
    with traced.trace(inputs):
        stream = traced.transformer.h[0].output.save()
        logits = traced.lm_head.output.save()
    assert apart(logits[..., :SYMBOLS], model(inputs)) < 1e-5
    own = nnsight.NNsight(model)
    with own.trace(inputs):
        tapped = own.residual[1].output.save()
    assert apart(tapped, streams(model, inputs)[1]) == 0
    assert apart(stream if isinstance(stream, torch.Tensor) else stream[0], tapped) < 1e-5


def test_a_copied_folder_is_the_same(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    assert read_record(tmp_path / "copy") == read_record(folder)
