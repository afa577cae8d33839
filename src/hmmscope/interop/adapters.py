"""Hook points for models of hmmscope, other libraries and users."""

from collections.abc import Callable, Sequence
from typing import Any

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.interop.hooked_module import HookedModule
from hmmscope.interop.library_models import HuggingFaceModel, LibraryModel
from hmmscope.interop.transformer_lens import TransformerLensModel
from hmmscope.models.adapted import AdaptedModule, innermost, named_module
from hmmscope.models.base import SequenceModel
from hmmscope.models.failing import require_values
from hmmscope.models.user_module import as_module

_WITH_TAPS: dict[str, Callable[..., LibraryModel]] = {
    "transformers": HuggingFaceModel,
    "transformer_lens": TransformerLensModel,
}

#: Name endings of existing hook points.
_TAPS = (".attention.logits", ".attention.pattern")


@registry.adapter("taps")
def with_hook_points(model: Any, layers: Sequence[str] | None = None) -> Any:
    """Add hook points to a model of transformers, TransformerLens, or any module with layers.

    A model is returned unchanged if it already has hook points, or if all names in `layers` are names of its modules.
    """
    model = as_module(model)
    if isinstance(model, SequenceModel | HookedModule):
        return model
    require_values(model)
    model = named_module(model)
    own = {name for name, _ in model.named_modules()}
    tapped = any(name.startswith("residual.") or name.endswith(_TAPS) for name in own)
    if tapped or (layers and set(layers) <= own):
        return model
    inside = innermost(model)
    call = model if isinstance(model, AdaptedModule) else None
    for library in (cls.__module__.partition(".")[0] for cls in type(inside).__mro__):
        if library in _WITH_TAPS:
            try:
                return _WITH_TAPS[library](inside, call=call)
            except InputError:
                break
    try:
        return HookedModule(model)
    except InputError:
        return model
