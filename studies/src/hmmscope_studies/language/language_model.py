"""A language model of the library transformers, and its controls."""

import copy
import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import torch
from torch import nn

from hmmscope import HMM, make_process, require_process_type
from hmmscope.interop import HuggingFaceModel, pretrained
from hmmscope.schema import require
from hmmscope.seeds import numpy_generator, torch_generator

#: Name of a random model of two layers for trials, made on demand.
TINY = "tiny"
#: States and symbols of the chains.
NUM_SYMBOLS = 4
#: Number of untrained controls for readouts of the belief.
NUM_TWINS = 3


@dataclass(frozen=True)
class Reader:
    """A language model with its controls, and with names for the symbols.

    Attributes:
        source: Folder of the model, or "tiny" for a random model.
        names: Capital letters that name the symbols.
        seed: Seed of names and controls.
    """

    source: str
    names: tuple[str, ...]
    seed: int

    def read(self, length: int, separator: str) -> tuple[HuggingFaceModel, Any]:
        model, tokenizer = _opened(self.source, torch.get_default_dtype())
        return pretrained(model, self.names, tokenizer=tokenizer, length=length, separator=separator)

    def untrained(self, text: Any, draw: int) -> HuggingFaceModel:
        twin = _twin(self.source, self.seed, torch.get_default_dtype(), draw)
        return HuggingFaceModel(twin, symbols=text.symbol_tokens)

    def shuffled(self, text: Any) -> HuggingFaceModel:
        """Return the model with the entries of each weight matrix randomly permuted."""
        twin = _twin(self.source, self.seed, torch.get_default_dtype(), None)
        return HuggingFaceModel(twin, symbols=text.symbol_tokens)


def reader_of(source: str, num_symbols: int, seed: int, chain: int = 0) -> Reader:
    """Return a reader with letters drawn for chain number `chain`.

    Raises:
        InputError: The folder contains no model, or transformers is not installed.
    """
    advice = "must be the folder of a language model; python -m hmmscope.interop.smollm2 smollm2-135m writes one"
    needed = ("config.json", "tokenizer.json")
    known = source == TINY or all((Path(source) / name).is_file() for name in needed)
    require(known, "measurements.pretrained", advice, source)
    found = importlib.util.find_spec("transformers") is not None
    require(found, "measurements.pretrained", "needs transformers: pip install 'hmmscope[pretrained]'", source)
    drawn = numpy_generator(seed, "names", chain).choice(list(ascii_uppercase), num_symbols, replace=False)
    return Reader(source, tuple(str(name) for name in drawn), seed)


@dataclass(frozen=True)
class LazyChainExample:
    """A lazy noisy chain and its reader.

    Attributes:
        seed: Seed of parameters and samples.
        reader: Language model with letters for the symbols.
    """

    stay: float
    noise: float
    seed: int
    reader: Reader

    @property
    def about(self) -> dict[str, Any]:
        return {"stay": self.stay, "noise": self.noise}

    @property
    def hmm(self) -> HMM:
        return require_process_type(
            make_process("lazy-chain", num_states=NUM_SYMBOLS, seed=self.seed, **self.about), HMM
        )


def chains_of(source: str, seed: int, stays: Sequence[float], noises: Sequence[float]) -> list[LazyChainExample]:
    pairs = [(stay, noise) for stay in stays for noise in noises]
    readers = [reader_of(source, NUM_SYMBOLS, seed, place) for place in range(len(pairs))]
    return [LazyChainExample(*pair, seed * len(pairs) + place, readers[place]) for place, pair in enumerate(pairs)]


def facts_of(model: HuggingFaceModel) -> dict[str, Any]:
    digest, weights = hashlib.sha256(), list(model.model.parameters())
    for one in weights:
        digest.update(one.detach().contiguous().cpu().numpy().tobytes())
    return {"weights": sum(one.numel() for one in weights), "sha256": digest.hexdigest()}


@lru_cache(maxsize=1)
def _opened(source: str, dtype: torch.dtype) -> tuple[nn.Module, Any]:
    import tokenizers

    if source == TINY:
        return _tiny()
    model, _ = pretrained(source, ("A", "B"))
    return model.model, tokenizers.Tokenizer.from_file(str(Path(source) / "tokenizer.json"))


@lru_cache(maxsize=NUM_TWINS + 1)
@torch.no_grad()
def _twin(source: str, seed: int, dtype: torch.dtype, draw: int | None) -> nn.Module:
    own: Any = _opened(source, dtype)[0]
    if draw is not None:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(torch_generator(seed, "language-twin", draw).get_state())
            made: nn.Module = type(own)(copy.deepcopy(own.config)).eval()
        return made
    twin, generator = copy.deepcopy(own), torch_generator(seed, "shuffled-weights")
    for weights in twin.parameters():
        order = torch.randperm(weights.numel(), generator=generator)
        weights.copy_(weights.flatten()[order].reshape(weights.shape))
    return twin


def _tiny() -> tuple[nn.Module, Any]:
    import tokenizers
    import transformers

    words = {name: token for token, name in enumerate(["?", ",", *ascii_uppercase])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": None, "eos_token_id": None, "initializer_range": 0.5}
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(torch_generator(0, "tiny-language-model").get_state())
        config = transformers.LlamaConfig(vocab_size=len(words), **sizes, **ends)
        return transformers.LlamaForCausalLM(config).eval(), tokenizer
