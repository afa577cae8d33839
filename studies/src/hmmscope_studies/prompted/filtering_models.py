"""Architectures compared in header-filtering, with their settings for training and measurement."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FilteringArchitecture:
    """A model, given by its fields, with about 52,000 weights.

    Attributes:
        title: Name in figures and sentences.
        model: Name and fields of the model.
        rate: Learning rate, see protocols/README.md.
        engine: Training engine, "compiled" if it supports the model.
        compile: True uses torch.compile, which saves a third of the step time.
        any_length: True if the model reads sequences longer than in training.
    """

    title: str
    model: dict[str, Any]
    rate: float
    engine: str = "torch"
    compile: bool = False
    any_length: bool = True


_DEEP = {"num_layers": 4, "width": 32, "num_heads": 4}
_DECODER = {"name": "decoder", "input_features": False, "dropout": 0.0} | _DEEP
ARCHITECTURES: dict[str, FilteringArchitecture] = {
    "rnn": FilteringArchitecture("RNN", {"name": "rnn", "num_layers": 2, "width": 128}, 0.008, "compiled"),
    "lstm": FilteringArchitecture("LSTM", {"name": "lstm", "num_layers": 2, "width": 62}, 0.008),
    "transformer": FilteringArchitecture("Transformer", _DECODER | {"positions": "rotary"}, 0.008, "compiled"),
    "gru": FilteringArchitecture("GRU", {"name": "gru", "num_layers": 2, "width": 72}, 0.008),
    "transformer-none": FilteringArchitecture(
        "Transformer, no positions", _DECODER | {"positions": "none"}, 0.004, "compiled"
    ),
    "transformer-learned": FilteringArchitecture(
        "Transformer, learned positions", _DECODER | {"positions": "learned"}, 0.004, "compiled", any_length=False
    ),
    "linear-attention": FilteringArchitecture(
        "linear attention", {"name": "linear-attention"} | _DEEP, 0.008, compile=True
    ),
    "delta-rule": FilteringArchitecture(
        "delta rule ±", {"name": "delta-rule", "negative": True} | _DEEP, 0.008, compile=True
    ),
    "mamba2": FilteringArchitecture(
        "Mamba-2",
        {"name": "mamba2", "num_layers": 2, "width": 56, "num_heads": 4, "state_size": 32, "chunk_length": 16},
        0.008,
        compile=True,
    ),
}
#: Architectures that the claims compare: measured first.
HEADLINE = ("rnn", "lstm", "transformer")


def title(name: str) -> str:
    return ARCHITECTURES[name].title
