"""Models of other libraries under our taps and our instruments: the same as natively, and nothing is left behind."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import hmmscope as hs
from comparing import refuses
from hmmscope.analysis.activations import capture_activations
from hmmscope.analysis.belief_interventions import belief_interventions
from hmmscope.analysis.geometry import geometry
from hmmscope.interop import (
    HuggingFaceModel,
    TransformerLensModel,
    from_huggingface,
    to_huggingface,
    to_transformer_lens,
)
from hmmscope.models.decoder import Decoder
from huggingface_cases import SYMBOLS, TOKENS, foreign, made, tokens


def in_huggingface(model: Decoder) -> HuggingFaceModel:
    """Wrapped as it is, though it could come back as ours."""
    pytest.importorskip("transformers")
    return HuggingFaceModel(to_huggingface(model), num_symbols=SYMBOLS)


def in_transformer_lens(model: Decoder) -> TransformerLensModel:
    pytest.importorskip("transformer_lens")
    return TransformerLensModel(to_transformer_lens(SimpleNamespace(model=model)), num_symbols=SYMBOLS)


WRAPPERS = [in_huggingface, in_transformer_lens]


def taps_of(model: nn.Module) -> list[str]:
    inside = (".attention", ".mlp", ".logits", ".pattern", ".mixed")
    return [
        name
        for name, _ in model.named_modules()
        if (name.startswith("residual.") or name.endswith(inside)) and not name.startswith("model")
    ]


@pytest.mark.long
@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("name", ["learned", "roformer"])
@torch.no_grad()
def test_taps_are_those_of_our_decoder(name: str, wrap: Callable) -> None:
    """Each is heard as it is natively, and what is put in its place moves the answer as it does natively."""
    own, inputs = made(name), tokens()
    other = wrap(own)
    assert taps_of(other) == sorted(taps_of(own), key=taps_of(other).index)
    answer = own(inputs)
    heard, native = (capture_activations(model, taps_of(other), inputs) for model in (other, own))
    for tap in taps_of(other):
        torch.testing.assert_close(heard[tap], native[tap], atol=1e-5, rtol=0)
        changed = []
        for model in (other, own):
            with hs.intervene(model, {tap: lambda activation: activation.flip(0)}):
                changed.append(model(inputs))
        torch.testing.assert_close(*changed, atol=1e-5, rtol=0)
        assert (changed[0] - answer).abs().max() > 1e-3, tap
    torch.testing.assert_close(other(inputs), answer, atol=1e-5, rtol=0)  # nothing stays


def measured(model: nn.Module) -> dict[str, list[dict]]:
    """All instruments on one prompt corpus."""
    process = hs.make_process("random-mixture", num_components=3, num_states=3, num_symbols=SYMBOLS, seed=0)
    layout = hs.PromptLayout(num_demonstrations=2, demonstration_length=3, test_length=3)
    dataset = hs.ProcessDataset(process, layout=layout, stream="probe")
    few = {"num_samples": 32}
    return {
        "evaluate": hs.evaluate(model, dataset, **few).table(),
        "probe": hs.probe(
            model, dataset, options=hs.InstrumentOptions(num_controls=0), **few
        ),  # each library draws its twins by a law of its own
        "geometry": geometry(model, dataset, options=hs.InstrumentOptions(num_controls=0), **few),
        "shuffle": hs.shuffle_test(model, dataset, num_samples=8, num_permutations=3),
        "shuffled positions": hs.shuffle_test(model, dataset, num_samples=8, num_permutations=3, mode="everywhere"),
        "attention": hs.attention_map(model, dataset, num_samples=8),
        "interventions": belief_interventions(
            model, dataset, num_samples=64, options=hs.InterventionOptions(num_positions=1, num_random=1)
        ),
    }


@pytest.fixture(scope="module")
def native() -> dict[str, list[dict]]:
    return measured(made("roformer"))


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_instruments_find_the_same(wrap: Callable, native: dict[str, list[dict]]) -> None:
    other = wrap(made("roformer"))
    for (instrument, expected), found in zip(native.items(), measured(other).values(), strict=True):
        assert len(found) == len(expected) > 0
        for row, other in zip(expected, found, strict=True):
            assert row == pytest.approx(other, abs=1e-3), instrument  # regressions and shares magnify rounding


@pytest.mark.parametrize("name", ["llama", "gpt_neo", "gpt_neox"])
@torch.no_grad()
def test_attention_of_other_families(name: str) -> None:
    theirs, inputs = foreign(name), tokens()
    model = from_huggingface(theirs)
    before = theirs.config._attn_implementation
    logits, pattern = (f"blocks.1.attention.{what}" for what in ("logits", "pattern"))
    found = capture_activations(model, [logits, pattern], inputs)
    assert theirs.config._attn_implementation == before
    theirs.set_attn_implementation("eager")
    expected = theirs(inputs, output_attentions=True).attentions[1]
    torch.testing.assert_close(found[pattern], expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(found[logits].softmax(-1), expected, atol=1e-6, rtol=0)
    assert (found[logits] == -torch.inf).equal(torch.ones_like(found[logits], dtype=torch.bool).triu(1))


@torch.no_grad()
def test_parts_are_named_by_what_they_do() -> None:
    parts = {name: list(from_huggingface(foreign(name)).blocks[0]) for name in ("llama", "opt", "mamba")}
    assert parts == {"llama": ["attention", "mlp"], "opt": ["attention", "fc1", "fc2"], "mamba": ["mixer"]}
    mamba, inputs = from_huggingface(foreign("mamba")), tokens()
    assert capture_activations(mamba, ["blocks.1.mixer"], inputs)["blocks.1.mixer"].shape == (*inputs.shape, 8)


@torch.no_grad()
def test_an_error_leaves_the_model_as_it_was() -> None:
    theirs = foreign("llama")
    model, before = from_huggingface(theirs), theirs.config._attn_implementation
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in theirs.modules()]

    def fails(activation: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), hs.intervene(model, {"blocks.0.attention.pattern": fails}):
        model(tokens())
    assert theirs.config._attn_implementation == before != "eager"
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in theirs.modules()] == hooks
    assert (model(tokens()) - theirs(tokens()).logits).abs().max() == 0


@torch.no_grad()
def test_outputs_are_the_tokens_of_the_symbols() -> None:
    theirs, inputs = foreign("gpt2"), tokens()
    model = from_huggingface(theirs, symbols=[4, 0])
    assert model(inputs).equal(theirs(inputs).logits[..., [4, 0]])
    assert (model.num_symbols, model.vocab_size) == (2, TOKENS)
    for wrong in ([], [0, 0], [TOKENS], [-1]):
        refuses(lambda wrong=wrong: from_huggingface(theirs, symbols=wrong), "symbols")
    refuses(lambda: from_huggingface(theirs, symbols=[1], num_symbols=1), "num_symbols")


def test_a_model_of_transformers_is_trained_and_read(tmp_path: Path) -> None:
    process = hs.make_process("random-hmm", num_states=2, num_symbols=TOKENS, seed=0)
    theirs = foreign("llama")
    before = theirs.lm_head.weight.detach().clone()
    run = hs.train(
        process, tmp_path / "run", model=theirs, length=6, num_steps=2, options=hs.TrainOptions(num_samples=8)
    )
    assert run.model is theirs
    assert not theirs.lm_head.weight.equal(before)
    rows = hs.probe(from_huggingface(run.model), run.dataset("probe"), target="previous-0", num_samples=16)
    assert rows[0]["accuracy"] > 0.9  # the embedding holds the token


def test_an_instrument_leaves_the_mode_as_it_was() -> None:
    """Or the model's dropout would begin to act."""
    theirs = foreign("gpt2")
    process = hs.make_process("random-hmm", num_states=2, num_symbols=TOKENS, seed=0)
    hs.evaluate(from_huggingface(theirs), hs.ProcessDataset(process, length=6, stream="evaluate"), num_samples=2)
    assert not theirs.training


def test_instruments_take_models_as_they_are() -> None:
    """Of transformers and of TransformerLens, as through the wrapper; names of their own modules are names still."""
    theirs = foreign("gpt2")
    process = hs.make_process("random-mixture", num_components=2, num_states=2, num_symbols=SYMBOLS, seed=0)
    dataset = hs.ProcessDataset(
        process, layout=hs.PromptLayout(num_demonstrations=2, demonstration_length=3, test_length=3), stream="probe"
    )
    one = hs.ProcessDataset(process[0], layout=dataset.layout, stream="probe")
    for measure in (
        lambda model: hs.attention_map(model, dataset, num_samples=4),
        lambda model: hs.shuffle_test(model, dataset, num_samples=4, num_permutations=2),
        lambda model: hs.probe(model, dataset, num_samples=16),
        lambda model: hs.probe(model, one, num_samples=16, target="belief"),
        lambda model: hs.evaluate(model, dataset, num_samples=4).table(),
    ):
        rows = measure(theirs)
        assert rows == measure(HuggingFaceModel(theirs))
        assert len(rows) > 0
    named = hs.probe(theirs, dataset, num_samples=16, layers=["transformer.h.0", "transformer.h.1"])
    assert [row["layer_name"] for row in named[:2]] == ["transformer.h.0", "transformer.h.1"]


def test_transformer_lens_models_are_taken_as_they_are() -> None:
    wrapped = in_transformer_lens(made("roformer"))
    dataset = hs.ProcessDataset(
        hs.make_process("random-hmm", num_states=2, num_symbols=SYMBOLS, seed=0), length=6, stream="probe"
    )
    assert hs.attention_map(wrapped.model, dataset, num_samples=4) == hs.attention_map(wrapped, dataset, num_samples=4)


def test_what_has_no_stream_and_no_attention_says_so() -> None:
    process = hs.make_process("random-hmm", num_states=2, num_symbols=TOKENS, seed=0)
    dataset = hs.ProcessDataset(process, length=6, stream="probe")
    plain = nn.Sequential(nn.Embedding(TOKENS, 4), nn.Linear(4, TOKENS))
    refuses(lambda: hs.attention_map(plain, dataset), "found no softmax attention in Sequential")
    refuses(lambda: hs.probe(plain, dataset, target="state"), "found no residual stream", "name modules, such as 0, 1")
    refuses(lambda: TransformerLensModel(nn.Linear(2, 2)), "must be a TransformerLens model")
