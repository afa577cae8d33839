"""Models of other libraries as the instruments take them."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.interop.lens import TransformerLensModel
from hmmscope.interop.tapped import HuggingFaceModel, TappedModel

_WITH_TAPS: dict[str, Callable[[nn.Module], TappedModel]] = {
    "transformers": HuggingFaceModel,
    "transformer_lens": TransformerLensModel,
}


@registry.adapter("taps")
def with_taps(model: Any, layers: Sequence[str] | None = None) -> Any:
    """A model of transformers or TransformerLens behind its taps; anything else as it is.

    It stays as it is where `layers` are names of its own modules, and where it cannot have taps: instruments that look at
    predictions alone need none.
    """
    if not isinstance(model, nn.Module) or isinstance(model, TappedModel):
        return model
    if layers and set(layers) <= {name for name, _ in model.named_modules()}:
        return model
    for library in (cls.__module__.partition(".")[0] for cls in type(model).__mro__):
        if library in _WITH_TAPS:
            try:
                return _WITH_TAPS[library](model)
            except InputError:
                return model
    return model
