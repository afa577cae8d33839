"""Pretrained language models on symbols that are written as text."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import hmmscope as hs
from comparing import refuses
from hmmscope.errors import ResourceError
from hmmscope.interop import pretrained, to_huggingface
from hmmscope.lab.experiments.running import run_experiment
from hmmscope.storage import store
from hmmscope_studies.beyond_multitask.in_context import NAME
from huggingface_cases import LENGTH, SYMBOLS, made
from tokenizer_cases import tokenizer

opening = sys.modules["hmmscope.interop.pretrained"]  # whose function has its name
HMM = hs.make_process("random-hmm", num_states=3, num_symbols=SYMBOLS, seed=0)


def language_model(kind: str = "bytes", max_length: int = 64) -> nn.Module:
    """A small GPT-2 for a tokenizer of ours."""
    library = pytest.importorskip("transformers")
    sizes = {"vocab_size": tokenizer(kind).get_vocab_size(), "n_embd": 16, "n_layer": 2, "n_head": 2}
    ends = {"bos_token_id": None, "eos_token_id": None}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251 - put back at the end
        model = library.GPT2LMHeadModel(library.GPT2Config(n_positions=max_length, **sizes, **ends))
    return model.eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A language model with its tokenizer."""
    path = tmp_path / "language-model"
    language_model().save_pretrained(path)
    library = pytest.importorskip("transformers")
    library.PreTrainedTokenizerFast(tokenizer_object=tokenizer("bytes")).save_pretrained(path)
    return path


def test_a_model_of_ours_scores_the_same_through_text() -> None:
    """Exported, behind a tokenizer that numbers its symbols otherwise."""
    library = pytest.importorskip("tokenizers")
    own = made("roformer")
    words = {name: token for token, name in enumerate("ABCDEF")}
    words_of = library.Tokenizer(library.models.WordLevel(words, unk_token="F"))
    words_of.pre_tokenizer = library.pre_tokenizers.Whitespace()
    model, text = pretrained(to_huggingface(own), list("ABCDE"), tokenizer=words_of, length=LENGTH)
    native = hs.evaluate(own, hs.ProcessDataset(HMM, length=LENGTH, stream="evaluate"), num_samples=16)
    found = hs.evaluate(model, hs.ProcessDataset(HMM, layout=text, stream="evaluate"), num_samples=16)
    assert found.positions.tolist() == native.positions.tolist()
    for row, other in zip(native.table(), found.table(), strict=True):
        assert row == pytest.approx(other, abs=1e-6)


def test_a_gguf_file_is_opened_with_its_own_tokenizer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As transformers opens it, here by the name alone; what is read is no quantised model."""
    theirs, asked = language_model(), []
    theirs.config.quantization_config = {"bits": 4}

    def opened(what: object) -> SimpleNamespace:
        return SimpleNamespace(from_pretrained=lambda folder, **named: asked.append((folder, named)) or what)

    library = SimpleNamespace(AutoTokenizer=opened(tokenizer("bytes")), AutoModelForCausalLM=opened(theirs))
    monkeypatch.setattr(opening, "transformers", lambda: library)
    monkeypatch.setattr(opening.importlib.util, "find_spec", lambda name: name)
    model, text = pretrained(tmp_path, SYMBOLS, gguf_file="small.gguf", length=6)
    assert [(folder, named["gguf_file"]) for folder, named in asked] == [(str(tmp_path), "small.gguf")] * 2
    expected = pretrained(theirs, SYMBOLS, tokenizer=tokenizer("bytes"), length=6)[0]
    inputs = hs.ProcessDataset(HMM, layout=text)[0:2].tokens
    torch.testing.assert_close(model(inputs), expected(inputs))
    monkeypatch.setattr(opening.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ResourceError, match=r"small\.gguf needs gguf and accelerate"):
        pretrained(tmp_path, SYMBOLS, gguf_file="small.gguf")


@pytest.mark.parametrize("separator", ["spaces", "commas"])
@torch.no_grad()
def test_the_law_is_that_of_the_names_where_they_are_predicted(separator: str) -> None:
    theirs = language_model("begun")
    model, text = pretrained(theirs, SYMBOLS, tokenizer=tokenizer("begun"), length=6, separator=separator)
    batch = hs.ProcessDataset(HMM, layout=text, stream="evaluate")[0:1]
    encoded = tokenizer("begun").encode(text.text(batch.observations[0]))
    logits = theirs(torch.tensor([encoded.ids])).logits[0]
    score = hs.evaluate(model, hs.ProcessDataset(HMM, layout=text, stream="evaluate"), num_samples=1, baselines=False)
    names = list(text.symbol_tokens)
    for judged, time in enumerate(text.predicted_observations):
        place = encoded.char_to_token(encoded.offsets[text.token_positions[time]][1] - 1)
        law = logits[place - 1, names].double().softmax(-1)
        expected = -law[batch.observations[0, time]].log().item()
        assert score.measures["model"]["loss"][0, judged] == pytest.approx(expected, abs=1e-6)
    share = model.share_of_outputs(batch.tokens)
    assert share[0].tolist() == pytest.approx(logits.softmax(-1)[:, names].sum(-1).tolist(), abs=1e-6)


@torch.no_grad()
def test_the_head_computes_the_names_alone() -> None:
    """A vocabulary is most of a small model's head; its weights, which the embedding shares, are as before afterwards."""
    theirs = language_model()
    model, text = pretrained(theirs, SYMBOLS, tokenizer=tokenizer("bytes"), length=6)
    tokens = hs.ProcessDataset(HMM, layout=text)[0:2].tokens
    given, weights = [], theirs.lm_head.weight
    handle = theirs.lm_head.register_forward_hook(lambda head, inputs, output: given.append(output.shape[-1]))
    found = model(tokens)
    whole = theirs(tokens).logits
    handle.remove()
    assert given == [SYMBOLS, tokenizer("bytes").get_vocab_size()]
    assert (found - whole[..., list(text.symbol_tokens)]).abs().max() < 1e-6
    assert theirs.lm_head.weight is weights is theirs.transformer.wte.weight


def test_instruments_read_at_the_names() -> None:
    model, text = pretrained(language_model(), SYMBOLS, tokenizer=tokenizer("bytes"), length=12, separator="commas")
    dataset = hs.ProcessDataset(HMM, layout=text, stream="probe")
    rows = hs.probe(model, dataset, target="previous-0", num_samples=64, shuffled_labels=False)
    assert [row["layer_name"] for row in rows] == ["residual.0", "residual.1", "residual.2"]
    assert rows[0]["accuracy"] > 0.99
    assert hs.attention_map(model, dataset, num_samples=4)[0]["layer"] == 1


def test_demonstrations_of_text_are_shuffled() -> None:
    """Behind a tokenizer that makes the same tokens of a prompt, a model of ours answers every question in the same way."""
    library = pytest.importorskip("tokenizers")
    own = made("roformer", max_length=64)
    words = library.models.WordLevel({name: token for token, name in enumerate("ABCDE;")}, unk_token=";")
    words = library.Tokenizer(words)
    words.pre_tokenizer = library.pre_tokenizers.Whitespace()
    sizes = {"num_demonstrations": 3, "demonstration_length": 4, "prefix": "; ", "delimiter": " ; "}
    model, text = pretrained(to_huggingface(own), list("ABCDE"), tokenizer=words, length=4, **sizes)
    dataset = hs.ProcessDataset(HMM, layout=text)
    plain = hs.ProcessDataset(HMM, layout=hs.PromptLayout(num_demonstrations=3, demonstration_length=4, test_length=4))
    assert dataset[0:2].tokens.equal(plain[0:2].tokens)
    for mode in ("blocks", "everywhere"):
        found, native = (
            hs.shuffle_test(net, samples, num_samples=4, num_permutations=3, mode=mode)
            for net, samples in ((model, dataset), (own, plain))
        )
        for row, other in zip(found, native, strict=True):
            assert row == pytest.approx(other, abs=1e-5)
    assert native[-1]["value"] > 0
    alone = pretrained(to_huggingface(own), list("ABCDE"), tokenizer=words, length=8)[1]
    refuses(lambda: hs.shuffle_test(model, hs.ProcessDataset(HMM, layout=alone)), "at least two demonstrations")


def test_a_folder_is_opened_with_its_tokenizer(folder: Path) -> None:
    model, text = pretrained(folder, 3, length=10)
    assert model.model_io.num_outputs == 3
    assert text.names == ("A", "B", "C")
    assert pretrained(str(folder), ["the", "cat"], length=2)[1].symbol_tokens != text.symbol_tokens[:2]
    refuses(lambda: pretrained(folder, 3, length=65), "length", "65", "64")
    refuses(lambda: pretrained(language_model(), 3), "tokenizer: is missing; pass")
    (folder / "tokenizer.json").unlink()
    refuses(lambda: pretrained(folder, 3, length=10), "cannot open a tokenizer")


def test_the_experiment_measures_it(folder: Path, tmp_path: Path) -> None:
    overrides = {"measurements.pretrained": str(folder), "measurements.separators": "spaces,commas"}
    few = {"measurements.mixing": "0.5", "training.num_steps": "1", "training.device": "cpu"}
    run_experiment(NAME, "smoke", tmp_path / "out", overrides=overrides | few, seeds=1, quiet=True)
    rows = store.read_table(tmp_path / "out" / "tables" / "predictions.jsonl")
    for network in ("pretrained, spaces", "pretrained, commas"):
        kept = {row["metric"]: row["value"] for row in rows if (row["network"], row["position"]) == (network, 8)}
        assert kept.keys() == {"accuracy", "loss", "excess", "share"}
        assert 0 < kept["share"] < 0.1  # it knows nothing of the task
    of_spaces, of_commas = (
        [row["value"] for row in rows if row["network"] == f"pretrained, {name}"] for name in ("spaces", "commas")
    )
    assert of_spaces != of_commas
