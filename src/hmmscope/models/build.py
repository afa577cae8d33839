"""Models by name."""

from typing import Any

import torch

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.models.base import ModelSpec, Ports, SequenceModel
from hmmscope.schema import require
from hmmscope.seeds import torch_generator


def make_model(
    name: str,
    *,
    num_symbols: int,
    num_tokens: int | None = None,
    seed: int = 0,
    max_length: int | None = None,
    input_width: int | None = None,
    feedback_width: int = 0,
    **fields: Any,
) -> SequenceModel:
    """Build a registered model with fresh weights, ``make_model("roformer", num_symbols=16, num_layers=4, ...)``.

    Args:
        name: of the architecture.
        num_symbols: size of the output.
        num_tokens: size of the input vocabulary, if it has a delimiter beside the symbols (``corpus.num_tokens``).
        seed: of the weights.
        max_length: columns of the longest input, for architectures with learned positions or input features.
        input_width: coordinates of an input that is a vector; the model then reads no tokens.
        feedback_width: extra inputs at every position (block chain-of-thought).
        fields: of the architecture's spec.

    Raises:
        InputError: an unknown name or field, a value out of range, or a package that is not installed.
    """
    spec = registry.build_spec("model", {"name": name, **fields}, "model")
    if input_width is None:
        num_tokens = num_symbols if num_tokens is None else num_tokens
        rule = f"must be at least num_symbols = {num_symbols}"
        require(1 <= num_symbols <= num_tokens, "num_tokens", rule, num_tokens)
    elif num_tokens is not None:
        raise InputError("num_tokens, input_width: give one of them; a model reads tokens or vectors")
    ports = Ports(
        num_outputs=num_symbols,
        num_tokens=num_tokens,
        input_width=input_width,
        max_length=max_length,
        feedback_width=feedback_width,
    )
    return build_model(spec, ports, seed)


def build_model(spec: ModelSpec, ports: Ports, seed: int = 0) -> SequenceModel:
    """The model of a spec, with weights from the named stream (seed, "weights"); the global generator stays as it is."""
    with torch.random.fork_rng(devices=[]):  # layers of torch draw from it when they are made
        model = spec.build(ports, torch_generator(seed, "weights"))
    model.spec = spec
    return model
