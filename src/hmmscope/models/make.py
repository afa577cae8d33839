"""Models by name."""

from typing import Any

from hmmscope import registry
from hmmscope.models.base import SequenceModel
from hmmscope.schema import require
from hmmscope.seeds import torch_generator


def make_model(
    name: str, *, num_symbols: int, num_tokens: int | None = None, seed: int = 0, **fields: Any
) -> SequenceModel:
    """Build a registered model with fresh weights, ``make_model("roformer", num_symbols=16, num_layers=4, ...)``.

    Args:
        name: of the architecture.
        num_symbols: size of the output.
        num_tokens: size of the input vocabulary, if it has a delimiter beside the symbols (``corpus.num_tokens``).
        seed: of the weights.
        fields: of the architecture's spec.

    Raises:
        InputError: an unknown name or field, or a value out of range.
    """
    return build_model(registry.build_spec("model", {"name": name, **fields}, "model"), num_symbols, num_tokens, seed)


def build_model(spec: Any, num_symbols: int, num_tokens: int | None = None, seed: int = 0) -> SequenceModel:
    """The model of a spec, with weights from the named stream (seed, "weights")."""
    num_tokens = num_symbols if num_tokens is None else num_tokens
    require(1 <= num_symbols <= num_tokens, "num_tokens", f"must be at least num_symbols = {num_symbols}", num_tokens)
    model: SequenceModel = spec.build(num_symbols, num_tokens, torch_generator(seed, "weights"))
    return model
