"""Any model as the instruments take it: with taps under our names."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.interop.hooked_models import HookedModel, HuggingFaceModel
from hmmscope.interop.hooked_module import HookedModule
from hmmscope.interop.transformer_lens import TransformerLensModel
from hmmscope.models.base import SequenceModel

_WITH_TAPS: dict[str, Callable[[nn.Module], HookedModel]] = {
    "transformers": HuggingFaceModel,
    "transformer_lens": TransformerLensModel,
}

#: Ends of names by which a module shows that it has taps of its own.
_TAPS = (".attention.logits", ".attention.pattern")


@registry.adapter("taps")
def with_hook_points(model: Any, layers: Sequence[str] | None = None) -> Any:
    """A model behind our taps: of transformers, of TransformerLens, or any module whose stream is found.

    It stays as it is where it has taps, where `layers` are names of its own modules, and where it cannot have taps:
    instruments that look at predictions alone need none.
    """
    if not isinstance(model, nn.Module) or isinstance(model, SequenceModel | HookedModule):
        return model
    own = {name for name, _ in model.named_modules()}
    tapped = any(name.startswith("residual.") or name.endswith(_TAPS) for name in own)
    if tapped or (layers and set(layers) <= own):
        return model
    for library in (cls.__module__.partition(".")[0] for cls in type(model).__mro__):
        if library in _WITH_TAPS:
            try:
                return _WITH_TAPS[library](model)
            except InputError:
                break
    try:
        return HookedModule(model)
    except InputError:
        return model
