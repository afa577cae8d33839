"""Small tokenizers, trained here."""

import functools
from typing import Any

import pytest

#: "bytes" as of GPT-2, with a first token as "begun", "pieces" as of Llama, and whole "words".
TOKENIZERS = ("bytes", "begun", "pieces", "words")
_TEXT = ["the cat sat on the mat and the dog ran to | Letters: A B C D E F G H, A, B\nA\nB\nC"] * 20


@functools.cache
def tokenizer(kind: str) -> Any:
    library = pytest.importorskip("tokenizers")
    before, models, train = library.pre_tokenizers, library.models, library.trainers
    if kind == "words":
        known = ["<unk>", "A", "B", "C", "D", "E", "F", "G", "H", "Letters", ":", ",", "|"]
        made = library.Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>"))
        made.pre_tokenizer = before.Whitespace()
        return made
    made = library.Tokenizer(models.BPE())
    made.pre_tokenizer = before.Metaspace() if kind == "pieces" else before.ByteLevel(add_prefix_space=False)
    alphabet = [] if kind == "pieces" else before.ByteLevel.alphabet()
    trainer = train.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False, special_tokens=["<s>"])
    made.train_from_iterator(_TEXT, trainer)
    if kind == "begun":
        made.post_processor = library.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made
