"""Our decoders in TransformerLens."""

import importlib
from typing import Any

from hmmscope.errors import ResourceError
from hmmscope.interop.huggingface import to_huggingface


def to_transformer_lens(thing: Any, *, max_length: int | None = None) -> Any:
    """A TransformerLens model with the logits of a run's model or of a decoder, without a tokenizer.

    ``blocks.<l>.hook_resid_pre`` is ``residual.<l>``, the last block's ``hook_resid_post`` the last tap, and
    ``blocks.<l>.attn.hook_pattern`` is ``blocks.<l>.attention.pattern``. Nothing is centred or folded beyond what
    `as_exported` says; ``enable_compatibility_mode()`` of the result does that.

    Args:
        thing: a `Run`, or a decoder.
        max_length: positions of a model that has no limit of its own (default: its ports' max_length).

    Returns:
        A ``transformer_lens.model_bridge.TransformerBridge``, in the type and on the device of the model.

    Raises:
        InputError: the architecture has no layout that TransformerLens reads; one line names the field.
        ResourceError: TransformerLens 4 is not installed.
    """
    try:
        sources = importlib.import_module("transformer_lens.model_bridge.sources")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("transformer_lens"):
            raise
        raise ResourceError("this needs TransformerLens 4: pip install 'hmmscope[lens]'") from None
    model = to_huggingface(thing, max_length=max_length)
    architecture = type(model).__name__
    return sources.build_bridge_from_module(model, architecture, hf_config=model.config, model_name="hmmscope")
