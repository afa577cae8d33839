"""Conversion of decoders to TransformerLens, and hook points for TransformerLens models."""

import importlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from torch import nn

from hmmscope.axes import Tensor
from hmmscope.errors import InputError, ResourceError
from hmmscope.interop.huggingface import to_huggingface
from hmmscope.interop.library_models import LibraryModel
from hmmscope.models.base import HookPoint
from hmmscope.models.hooks import AttentionHookPoint, Pass, minus_infinity, writing
from hmmscope.models.user_module import logits_of

#: TransformerLens hook points of a layer, by our names.
_POINTS = {
    "attention": "hook_attn_out",
    "attention.logits": "attn.hook_attn_scores",
    "attention.pattern": "attn.hook_pattern",
    "attention.mixed": "attn.hook_z",
    "mlp": "hook_mlp_out",
}


def to_transformer_lens(thing: Any, *, max_length: int | None = None) -> Any:
    """Convert a run's model or a decoder to GPT-2 or GPT-NeoX in TransformerLens, with the same logits.

    The hook ``blocks.<l>.hook_resid_pre`` of TransformerLens is hmmscope's ``residual.<l>``, ``hook_resid_post`` of the
    last block is the last residual, and ``blocks.<l>.attn.hook_pattern`` is ``blocks.<l>.attention.pattern``.

    Args:
        thing: `Run` or decoder.
        max_length: number of positions, for a model without a limit.

    Returns:
        A ``transformer_lens.model_bridge.TransformerBridge``.

    Raises:
        InputError: the model has a part that GPT-2 and GPT-NeoX lack.
        ResourceError: TransformerLens 4 is not installed.
    """
    try:
        sources = importlib.import_module("transformer_lens.model_bridge.sources")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("transformer_lens"):
            raise
        raise ResourceError("model: its conversion needs TransformerLens 4: pip install 'hmmscope[lens]'") from None
    model = to_huggingface(thing, max_length=max_length)
    architecture = type(model).__name__
    return sources.build_bridge_from_module(model, architecture, hf_config=model.config, model_name="hmmscope")


class TransformerLensModel(LibraryModel):
    """A TransformerLens model; see `LibraryModel`.

    Args:
        model: ``TransformerBridge``, or another model with ``cfg`` and ``hook_dict``.
        num_symbols, symbols, call: see `LibraryModel`.

    Raises:
        InputError: the model has another type, or the outputs are invalid.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        num_symbols: int | None = None,
        symbols: Sequence[int] | None = None,
        call: Callable[[Tensor], Any] | None = None,
    ) -> None:
        config: Any = getattr(model, "cfg", None)
        if config is None or not hasattr(model, "hook_dict"):
            raise InputError(
                f"model: must be a TransformerLens model, but {type(model).__name__} has no cfg or hook_dict"
            )
        super().__init__(model, config.d_vocab, getattr(config, "n_ctx", None), num_symbols, symbols, call)
        depth, points = config.n_layers, self._points()
        self._names = {"residual.0": "blocks.0.hook_resid_pre"}
        self._names |= {f"residual.{layer + 1}": f"blocks.{layer}.hook_resid_post" for layer in range(depth)}
        self.residual, self.blocks = nn.ModuleList(HookPoint() for _ in range(depth + 1)), nn.ModuleList()
        for layer in range(depth):
            there = {own: name for own, point in _POINTS.items() if (name := f"blocks.{layer}.{point}") in points}
            self._names |= {f"blocks.{layer}.{own}": name for own, name in there.items()}
            parts = {
                own: AttentionHookPoint() if f"{own}.pattern" in there else HookPoint()
                for own in there
                if "." not in own
            }
            self.blocks.append(nn.ModuleDict(parts))

    def _points(self) -> dict[str, nn.Module]:
        found: dict[str, nn.Module] = self.model.hook_dict  # type: ignore[assignment]
        return found

    def _logits(self, inputs: Tensor, positions: Tensor | None) -> Tensor:
        if self.call is not None and positions is None:
            return logits_of(self.call(inputs), inputs, 1, whole=True)
        placed = {} if positions is None else {"position_ids": positions}
        found: Tensor = self.model(inputs, **placed)
        return found

    def _connect(self, stack: ExitStack) -> None:
        points = self._points()
        for own, name in self._names.items():
            tap: Any = self.get_submodule(own)
            if tap.is_hooked:
                stack.callback(points[name].register_forward_hook(writing(_as_ours(tap, own))).remove)


def _as_ours(tap: nn.Module, own: str) -> Pass:
    if own.endswith(".logits"):
        return lambda given: tap(minus_infinity(given))
    return (lambda given: tap(given.flatten(2)).view_as(given)) if own.endswith(".mixed") else tap
