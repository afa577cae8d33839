"""Causal models of others as ours, and ours in TransformerLens and nnsight."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import hmmscope as hs
from comparing import refuses
from hmmscope.analysis.activations import capture_activations
from hmmscope.errors import InputError, ResourceError
from hmmscope.interop import HuggingFaceModel, from_huggingface, to_huggingface, to_transformer_lens
from hmmscope.interop.pretrained import pretrained
from hmmscope.models.decoder import Decoder
from huggingface_cases import (  # noqa: F401 - fixtures
    GRID,
    LENGTH,
    ROTARY,
    ROTATIONS,
    SYMBOLS,
    TOKENS,
    TOLERANCE,
    apart,
    folder,
    foreign,
    made,
    shaken,
    streams,
    tokens,
)

# ---------------------------------------------------------------------------------------------------------------------
# Models of others


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
    dataset = hs.ProcessDataset(process, length=10, stream="evaluate")
    theirs = foreign("llama")
    model = from_huggingface(theirs)
    assert hs.evaluate(model, dataset, num_samples=16).loss == hs.evaluate(theirs, dataset, num_samples=16).loss
    layers = ["model.embed_tokens", "model.layers.0", "model.layers.1"]
    options = {"target": "previous-0", "num_samples": 64}
    own, other = hs.probe(model, dataset, **options), hs.probe(theirs, dataset, layers=layers, **options)
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
    refuses(lambda: from_huggingface(theirs.model), "must have a language-model head")
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


def test_code_in_a_folder_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if a person says yes to transformers, which asks unless it is told."""
    pytest.importorskip("transformers")
    folder, canary = tmp_path / "model", tmp_path / "canary"
    folder.mkdir()
    (folder / "theirs.py").write_text(f"open({str(canary)!r}, 'w')")
    names = {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model", "AutoTokenizer": "theirs.Tokens"}
    (folder / "config.json").write_text(json.dumps({"model_type": "theirs", "auto_map": names}))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", tmp_path / "cache")
    for opened in (from_huggingface, lambda path: pretrained(path, names=("a", "b"), length=4)):
        with pytest.raises(InputError):
            opened(folder)
    assert not canary.exists()


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
        assert (
            apart(cache[f"blocks.{layer}.attn.hook_pattern"], capture_activations(model, [pattern], inputs)[pattern])
            < within
        )
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
