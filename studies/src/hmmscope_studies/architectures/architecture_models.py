"""Architectures and tasks of limits-architectures."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LimitsArchitecture:
    """A model, given by its fields, and how the experiment uses it.

    Attributes:
        title: Short name in figures, without the number of layers.
        model: Registered name and fields of the model, without its depth, width and number of heads.
        recurrent: True trains one layer with the width and recipe of the RNN of [Limits].
        has_heads: True if the model has the field `num_heads`.
        any_length: True if the model reads sequences longer than in training.
    """

    title: str
    model: dict[str, Any]
    recurrent: bool = False
    has_heads: bool = True
    any_length: bool = True


_DECODER = {"name": "decoder", "input_features": False, "dropout": 0.0}
ARCHITECTURES: dict[str, LimitsArchitecture] = {
    "rnn": LimitsArchitecture("RNN", {"name": "rnn"}, recurrent=True),
    "rnn-tanh": LimitsArchitecture("RNN tanh", {"name": "rnn", "nonlinearity": "tanh"}, recurrent=True),
    "lstm": LimitsArchitecture("LSTM", {"name": "lstm"}, recurrent=True),
    "gru": LimitsArchitecture("GRU", {"name": "gru"}, recurrent=True),
    "transformer": LimitsArchitecture("Transf.", _DECODER | {"positions": "rotary"}),
    "transformer-nope": LimitsArchitecture("Tr. no pos.", _DECODER | {"positions": "none"}),
    "transformer-learned": LimitsArchitecture("Tr. learned", {"name": "decoder", "dropout": 0.0}, any_length=False),
    "linear-attention": LimitsArchitecture("Lin. att.", {"name": "linear-attention", "positions": "none"}),
    "delta-rule": LimitsArchitecture("Δ rule", {"name": "delta-rule"}),
    "delta-rule-negative": LimitsArchitecture("Δ rule ±", {"name": "delta-rule", "negative": True}),
    "mamba": LimitsArchitecture("Mamba", {"name": "mamba"}, has_heads=False),
    "mamba2": LimitsArchitecture("Mamba-2", {"name": "mamba2", "chunk_length": 16}),
    "gated-deltanet": LimitsArchitecture("Gated Δ", {"name": "gated-deltanet", "chunk_length": 16}),
}
#: Architectures that need no optional dependency.
DEFAULT = ["rnn", "rnn-tanh", "lstm", "gru", "transformer", "linear-attention", "delta-rule", "delta-rule-negative"]
#: Title and process of each task; {} stands for the process of that name in [Limits], with the sizes of the scale.
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "cyclic-det": ("Cyclic-DET (cycles of 5 states)", {}),
    "cyclic-rnd": ("Cyclic-RND", {}),
    "matmul": ("MatMul", {}),
    "ran-hmm": ("RanHMM (forgets)", {}),
    "word-problem": ("Word problem of S3", {"name": "word-problem", "group": "S3", "num_generators": 2}),
    "word-problem-z60": ("Word problem of Z60", {"name": "word-problem", "group": "Z60", "num_generators": 2}),
    "word-problem-a5": ("Word problem of A5", {"name": "word-problem", "group": "A5", "num_generators": 2}),
    "word-problem-s5": ("Word problem of S5", {"name": "word-problem", "group": "S5", "num_generators": 2}),
    "parity": ("Parity", {"name": "word-problem", "group": "Z2"}),
    "mess3": ("Mess3 (forgets)", {"name": "mess3"}),
}


def name_of(architecture: str, layers: int) -> str:
    known = ARCHITECTURES[architecture]
    return known.title if known.recurrent else f"{known.title} {layers}"
