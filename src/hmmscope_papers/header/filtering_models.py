"""The architectures that header-filtering compares, and what each is trained and measured with."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FilteringArchitecture:
    """A model by its fields; widths are those at which it has about 52,000 weights.

    Attributes:
        title: in figures and sentences.
        model: name and fields.
        rate: of learning, see protocols/README.md.
        engine: that takes its steps: the compiled one where it covers the model.
        compile: let torch compile the model, where that takes a third off its steps.
        any_length: whether it can be read beyond the length of its training.
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
#: Whom the questions are about: measured first.
HEADLINE = ("rnn", "lstm", "transformer")


def title(name: str) -> str:
    """Of an architecture, in figures and sentences."""
    return ARCHITECTURES[name].title
