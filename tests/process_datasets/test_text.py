"""Symbols as text: always the tokens that the tokenizer gives, and a clear line where that cannot be."""

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from tokenizer_cases import TOKENIZERS, tokenizer

SEPARATORS = ["spaces", "commas", "lines", "nothing", " | "]
SAMPLE = torch.tensor([[0, 1, 2, 1, 0], [2, 2, 0, 0, 1]])


@pytest.mark.parametrize("prefix", ["", "Letters: "])
@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokens_are_those_of_the_tokenizer(kind: str, separator: str, prefix: str) -> None:
    made = tokenizer(kind)
    if kind == "words" and separator == "nothing":
        with pytest.raises(InputError, match="names"):
            hs.TextLayout(tokenizer=made, names=3, length=5, separator=separator, prefix=prefix)
        return
    text = hs.TextLayout(tokenizer=made, names=3, length=5, separator=separator, prefix=prefix)
    tokens = text.tokens(SAMPLE, 3)
    assert tokens.shape == (2, text.context_length)
    for row, sample in zip(tokens, SAMPLE, strict=True):
        assert row.tolist() == made.encode(text.text(sample)).ids[: text.context_length]
    names = torch.tensor(text.symbol_tokens)[SAMPLE]
    assert tokens[:, text.token_positions[1:]].equal(names[:, 1:])
    first_too = len(text.head) > 0 and text.first_tokens == text.symbol_tokens
    assert text.predicted_observations.tolist() == list(range(0 if first_too else 1, 5))


@pytest.mark.parametrize("separator, delimiter", [("spaces", "lines"), ("commas", "lines"), ("spaces", " | ")])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_demonstrations_are_the_tokens_of_the_tokenizer(kind: str, separator: str, delimiter: str) -> None:
    made, sizes = tokenizer(kind), {"length": 4, "num_demonstrations": 2, "demonstration_length": 3}
    if kind == "words" and delimiter == "lines":
        delimiter = ":"  # it knows no lines
    if kind == "pieces" and delimiter == "lines":  # it joins the end of a line with what follows
        with pytest.raises(InputError, match="delimiter: must give the same tokens between any two names"):
            hs.TextLayout(tokenizer=made, names=3, separator=separator, delimiter=delimiter, **sizes)
        return
    text = hs.TextLayout(tokenizer=made, names=3, separator=separator, delimiter=delimiter, **sizes)
    sample = torch.tensor([[0, 1, 2, 1, 0, 1, 2, 2, 0, 1], [2, 2, 0, 0, 1, 1, 1, 2, 0, 0]])
    tokens = text.tokens(sample, 3)
    for row, own in zip(tokens, sample, strict=True):
        assert row.tolist() == made.encode(text.text(own)).ids[: text.context_length]
    assert np.flatnonzero(text.reset_mask).tolist() == [0, 3, 6]
    begun = text.start_tokens == text.symbol_tokens
    assert set(range(1, 10)) - set(text.predicted_observations.tolist()) == (set() if begun else {3, 6})
    assert tokens[:, text.token_positions[text.predicted_observations]].equal(
        torch.tensor(text.symbol_tokens)[sample[:, text.predicted_observations]]
    )


def test_names_are_chosen_from_any_vocabulary() -> None:
    made = tokenizer("bytes")
    assert hs.TextLayout(tokenizer=made, names=6, length=2).names == ("A", "B", "C", "D", "E", "F")
    text = hs.TextLayout(tokenizer=made, names=20, length=2)
    assert len(set(text.names)) == len(set(text.symbol_tokens)) == 20
    assert hs.TextLayout(tokenizer=made, names=["the", "cat", "mat"], length=2).names == ("the", "cat", "mat")


@pytest.mark.parametrize(
    "options, said",
    [
        ({"names": ["the", "elephant"]}, "'elephant' must be a single token"),
        ({"names": ["A B", "C"]}, "'A B' must be a single token"),
        ({"names": ["A", "A"]}, "different"),
        ({"names": []}, "different"),
        ({"names": ["A", ""]}, "different"),
        ({"names": 0}, "at least 1"),
        ({"names": 10**6}, "10000.. are needed"),
        ({"names": ["A", "z"]}, "separator: must give the same tokens between any two names"),
        ({"names": ["t", "h"], "separator": "nothing"}, "single token"),
        ({"names": 2, "length": 0}, "length"),
        ({"names": 2, "num_demonstrations": -1}, "num_demonstrations: must be at least 0"),
        ({"names": 2, "num_demonstrations": 2, "delimiter": "spaces"}, "delimiter: must differ from the separator"),
        ({"names": 2, "tokenizer": object()}, "tokenizer: must report"),
    ],
)
def test_what_is_refused(options: dict, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        hs.TextLayout(**({"tokenizer": tokenizer("bytes"), "length": 3} | options))
    assert "\n" not in str(caught.value)


def test_a_corpus_of_text_has_the_same_samples() -> None:
    process = hs.make_process("random-hmm", num_states=2, num_symbols=3, seed=0)
    text = hs.TextLayout(tokenizer=tokenizer("bytes"), names=3, length=6, separator="commas")
    dataset, plain = hs.ProcessDataset(process, layout=text), hs.ProcessDataset(process, length=6)
    assert dataset[0:4].observations.equal(plain[0:4].observations)
    assert dataset.vocab_size == tokenizer("bytes").get_vocab_size()
    assert np.diff(text.token_positions).tolist() == [2] * 5
    assert dataset.digest(2) != hs.ProcessDataset(
        process, layout=hs.TextLayout(tokenizer=tokenizer("bytes"), names=3, length=6)
    ).digest(2)
    with pytest.raises(InputError, match="names: need 3"):
        hs.ProcessDataset(process, layout=hs.TextLayout(tokenizer=tokenizer("bytes"), names=2, length=6))[0:1]
