"""Hook points for models of other libraries, without changing these models."""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hmmscope.axes import Cache, Feedback, Float, Float64, Inputs, Int64, Positions, Tensor
from hmmscope.errors import InputError
from hmmscope.models.base import HookPoint, ModelIO, SequenceModel, check_inputs
from hmmscope.models.hooks import (
    AttentionHookPoint,
    AttentionHooks,
    FunctionInterceptor,
    ModuleHooks,
    Pass,
    eager,
    reading,
    writing,
)
from hmmscope.models.kept_state import undisturbed
from hmmscope.models.user_module import logits_of
from hmmscope.schema import require

#: Tokens in the call that finds the parts; no head has this width.
_REHEARSED = 5


class LibraryModel(SequenceModel):
    """A `SequenceModel` around a language model of another library; it returns only the symbols' outputs.

    Layers, MLPs and positions are found by the library's configuration or hook points.

    ``residual.0`` is the input of the first layer, ``residual.<l>`` the output of layer l. ``blocks.<l>.attention`` and
    ``blocks.<l>.mlp`` (l from 0) are the terms that block l adds to the residual stream.
    ``blocks.<l>.attention.logits``, ``.pattern`` (batch, head, query, key) and ``.mixed`` (batch, time, width) are the
    attention logits, the attention weights and the head outputs.

    Args:
        model: model of the other library.
        vocabulary: number of tokens that the model reads.
        max_length: number of positions that the model reads, or None for no limit.
        num_symbols: keep only the first `num_symbols` outputs (default: all).
        symbols: token of each symbol, instead of `num_symbols`.
        call: function from tokens to the model's output, used if no positions are passed (default: `model`).
    """

    wraps = "model"
    call: Callable[[Tensor], Any] | None

    def __init__(
        self,
        model: nn.Module,
        vocabulary: int,
        max_length: int | None,
        num_symbols: int | None,
        symbols: Sequence[int] | None,
        call: Callable[[Tensor], Any] | None = None,
    ) -> None:
        super().__init__()
        self.__dict__["call"] = call  # not a submodule
        if symbols is not None:
            require(num_symbols is None, "num_symbols", "must be omitted if symbols are passed", num_symbols)
            known = len(set(symbols)) == len(symbols) > 0 and all(0 <= token < vocabulary for token in symbols)
            require(known, "symbols", f"must be different tokens in [0, {vocabulary})", list(symbols)[:20])
            num_symbols = len(symbols)
        num_outputs = vocabulary if num_symbols is None else num_symbols
        require(1 <= num_outputs <= vocabulary, "num_symbols", f"must be in [1, {vocabulary}]", num_outputs)
        self.model_io = ModelIO(num_outputs=num_outputs, vocab_size=vocabulary, max_length=max_length)
        self.num_symbols, self.vocab_size = num_outputs, vocabulary
        self.model, self.training = model, model.training  # so that instruments restore the mode
        self._outputs = slice(num_outputs) if symbols is None else list(symbols)

    def forward(
        self, inputs: Inputs, positions: Positions = None, *, feedback: Feedback = None, cache: Cache = None
    ) -> Float[Tensor, "batch time output"]:
        check_inputs(self.model_io, inputs, feedback)
        time = inputs.shape[1]
        if cache is not None:
            if positions is None:
                begin = cache["inputs"].shape[1] if cache else 0
                positions = torch.arange(begin, begin + time, device=inputs.device)
            positions = positions.expand(len(inputs), -1)
            if cache:
                inputs = torch.cat([cache["inputs"], inputs], 1)
                positions = torch.cat([cache["positions"], positions], 1)
            cache["inputs"], cache["positions"] = inputs, positions
        with self.connected():
            outputs = self._wanted(inputs, None if positions is None else positions.expand(len(inputs), -1))
        return outputs[:, -time:]

    def __repr__(self) -> str:
        taps = sum(isinstance(module, HookPoint) for module in self.modules())
        read = f"{type(self.model).__name__}, reads {self.vocab_size} tokens, predicts {self.num_symbols}"
        return f"{type(self).__name__}({read}, {len(list(self.residual)) - 1} layers, {taps} hook points)"

    def share_of_outputs(self, inputs: Int64[Tensor, "batch time"]) -> Float64[Tensor, "batch time"]:
        """Return the total softmax probability of the symbols' tokens among all tokens."""
        check_inputs(self.model_io, inputs, None)
        return self._logits(inputs, None).double().softmax(-1)[..., self._outputs].sum(-1)

    @contextmanager
    def connected(self) -> Iterator[nn.Module]:
        """Yield the original model with active hook points."""
        with ExitStack() as stack:
            self._connect(stack)
            yield self.model

    @abstractmethod
    def _connect(self, stack: ExitStack) -> None:
        """Activate the hook points until `stack` is closed."""

    @abstractmethod
    def _logits(self, inputs: Tensor, positions: Tensor | None) -> Tensor:
        """Return logits (batch, time, vocabulary)."""

    def _wanted(self, inputs: Tensor, positions: Tensor | None) -> Tensor:
        return self._logits(inputs, positions)[..., self._outputs]


class HuggingFaceModel(LibraryModel):
    """A causal language model of transformers; see `LibraryModel`.

    In hook names, ``attention`` is a layer's only submodule with softmax attention, ``mlp`` its only other submodule
    with weights. While attention logits or patterns are hooked, "eager" attention replaces fused attention.

    Args:
        model: module from ``input_ids`` to an object with ``.logits``.
        num_symbols, symbols, call: see `LibraryModel`.
        layers: see `from_huggingface`.

    Raises:
        InputError: the model is an encoder-decoder, has invalid outputs or no layers, or fails in a trial call.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        num_symbols: int | None = None,
        symbols: Sequence[int] | None = None,
        layers: str | None = None,
        call: Callable[[Tensor], Any] | None = None,
    ) -> None:
        config: Any = getattr(model, "config", None)
        if getattr(config, "is_encoder_decoder", False):
            raise InputError(f"model: must be a causal language model, got the encoder-decoder {type(model).__name__}")
        head = getattr(model, "get_output_embeddings", None)
        if head is None or head() is None:
            raise InputError(f"model: must have a language-model head, but {type(model).__name__} has none")
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        vocabulary = getattr(text, "vocab_size", None)
        if not isinstance(vocabulary, int):
            raise InputError(f"model: must read tokens, but {type(model).__name__} has no config.vocab_size")
        limit = getattr(text, "max_position_embeddings", None)
        max_length = limit if isinstance(limit, int) and limit > 0 else None
        super().__init__(model, vocabulary, max_length, num_symbols, symbols, call)
        path = _layers_of(model, getattr(text, "num_hidden_layers", None), layers)
        self._layers = [f"{path}.{number}" for number in range(len(model.get_submodule(path)))]  # type: ignore[arg-type]
        self.residual = nn.ModuleList(HookPoint() for _ in range(len(self._layers) + 1))
        accepted = inspect.signature(model.forward).parameters
        self._options = {"use_cache": False} if "use_cache" in accepted else {}
        self._placed = {"position_ids", "attention_mask"} & set(accepted)
        self._parts = self._found_parts()
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {name: HookPoint() if part.out is None else AttentionHookPoint() for name, part in parts.items()}
            )
            for parts in self._parts
        )

    def _logits(self, inputs: Tensor, positions: Tensor | None) -> Tensor:
        placed = {}
        if (
            positions is not None and "position_ids" in self._placed
        ):  # without a mask, transformers assumes packed sequences
            whole = {"position_ids": positions, "attention_mask": torch.ones_like(inputs)}
            placed = {name: whole[name] for name in self._placed}
        if self.call is not None and positions is None:
            return logits_of(self.call(inputs), inputs, 1, whole=True)
        found: Tensor = self.model(input_ids=inputs, **self._options, **placed).logits
        return found

    def _wanted(self, inputs: Tensor, positions: Tensor | None) -> Tensor:
        head: Any = self.model.get_output_embeddings()  # type: ignore[operator]
        if not isinstance(self._outputs, list) or type(head) is not nn.Linear:
            return super()._wanted(inputs, positions)
        whole: dict[str, Any] = dict(head._parameters)
        head._parameters.update({name: None if rows is None else rows[self._outputs] for name, rows in whole.items()})
        try:
            return self._logits(inputs, positions)
        finally:
            head._parameters.update(whole)

    def _connect(self, stack: ExitStack) -> None:
        layers = [self.model.get_submodule(path) for path in self._layers]
        stack.callback(layers[0].register_forward_pre_hook(reading(self.residual[0]), with_kwargs=True).remove)
        for layer, tap in zip(layers, self.residual[1:], strict=True):
            stack.callback(layer.register_forward_hook(writing(tap)).remove)
        within: dict[nn.Module, ModuleHooks] = {}
        for layer, parts, taps in zip(layers, self._parts, self.blocks, strict=True):
            for name, part in parts.items():
                tap, module = taps[name], layer.get_submodule(part.path)  # type: ignore[index]
                if tap.is_hooked:
                    stack.callback(module.register_forward_hook(writing(tap)).remove)
                if part.out is None:
                    continue
                if tap.mixed.is_hooked:
                    out = module.get_submodule(part.out)
                    stack.callback(out.register_forward_pre_hook(reading(tap.mixed), with_kwargs=True).remove)
                if tap.is_read:
                    within[module] = AttentionHooks(tap)
        if within:
            stack.enter_context(eager(self.model))
            stack.enter_context(FunctionInterceptor(within))

    def _found_parts(self) -> list[dict[str, "_Part"]]:
        layers = [self.model.get_submodule(path) for path in self._layers]
        called: list[list[str]] = [[] for _ in layers]  # modules with own matrices, in order
        attending: list[list[str]] = [[] for _ in layers]  # children with a softmax over keys
        device = next((p.device for p in self.model.parameters()), None)
        tokens = torch.zeros(
            1, min(_REHEARSED, self.model_io.max_length or _REHEARSED), dtype=torch.int64, device=device
        )
        try:
            with undisturbed(self.model), ExitStack() as stack:
                stack.enter_context(eager(self.model))
                within: dict[nn.Module, ModuleHooks] = {}
                for layer, own_called, own_attending in zip(layers, called, attending, strict=True):
                    for name, child in layer.named_children():
                        within[child] = _Noting(own_attending, name, tokens.shape[1])
                    for path, module in layer.named_modules():
                        if path and any(p.ndim > 1 for p in module.parameters(recurse=False)):
                            stack.callback(module.register_forward_pre_hook(_calling(own_called, path)).remove)
                stack.enter_context(FunctionInterceptor(within))
                self._logits(tokens, None)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"model: {type(self.model).__name__} fails on tokens {tuple(tokens.shape)}: {reason}"
            ) from error
        return [_parts_of(*found) for found in zip(called, attending, strict=True)]


@dataclass(frozen=True)
class _Part:
    path: str
    out: str | None = None


def _parts_of(called: list[str], attending: list[str]) -> dict[str, _Part]:
    children = list(dict.fromkeys(path.partition(".")[0] for path in called))
    found = {}
    for child in children:
        inside = [path.partition(".")[2] for path in called if path.partition(".")[0] == child]
        if attending == [child]:
            found["attention"] = _Part(child, inside[-1])
        elif len(attending) == 1 and len(children) == 2:
            found["mlp"] = _Part(child)
        else:
            found[child] = _Part(child)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Calls


def _calling(called: list[str], path: str) -> Callable[..., None]:
    def note(module: nn.Module, args: tuple) -> None:
        called.append(path)

    return note


class _Noting(ModuleHooks):
    def __init__(self, attending: list[str], name: str, length: int) -> None:
        self._attending, self._name, self._length = attending, name, length

    def softmax(self, softmax: Pass, logits: Tensor) -> Tensor:
        if logits.shape[2:] == (self._length, self._length) and self._name not in self._attending:
            self._attending.append(self._name)
        return softmax(logits)


def _layers_of(model: nn.Module, count: int | None, name: str | None) -> str:
    lists = {path: module for path, module in model.named_modules() if isinstance(module, nn.ModuleList) and path}
    if name is None:
        fitting = [path for path, module in lists.items() if len(module) and len(module) == count]
        if not fitting:
            raise InputError(
                f"layers: no layers were found in {type(model).__name__}; name one of {', '.join(lists) or 'none'}"
            )
        return fitting[0]
    if not len(lists.get(name, [])):
        raise InputError(f"layers: {name!r} is not a list of layers; the model has {', '.join(lists) or 'none'}")
    return name
