"""Hooks inside user modules: attention, and layers of recurrent modules."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from hmmscope.axes import Tensor
from hmmscope.models.base import HookPoint

#: Functions of which unfused attention calls one.
_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
#: Functions of which modules with several recurrent layers call one.
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)

#: Maps an activation to its replacement.
Pass = Callable[[Tensor], Tensor]


class AttentionHookPoint(HookPoint):
    """Hook point of the attention output, with submodules ``logits``, ``pattern`` and ``mixed`` as in `Attention`.

    Args:
        mixed: False omits ``mixed``, the head outputs.
    """

    def __init__(self, *, mixed: bool = True) -> None:
        super().__init__()
        self.logits, self.pattern = HookPoint(), HookPoint()
        self.mixed = HookPoint() if mixed else None

    @property
    def is_read(self) -> bool:
        return self.logits.is_hooked or self.pattern.is_hooked

    @property
    def is_hooked_within(self) -> bool:
        return self.is_read or (self.mixed is not None and self.mixed.is_hooked)


class ModuleHooks:
    """Callbacks for attention and recurrent functions of a module; this base class changes nothing."""

    def softmax(self, softmax: Pass, logits: Tensor) -> Tensor:
        return softmax(logits)

    def mixed(self, mixed: Tensor) -> Tensor:
        return mixed

    def between(self, layer: int, states: Tensor) -> Tensor:
        return states


class AttentionHooks(ModuleHooks):
    def __init__(self, tap: AttentionHookPoint) -> None:
        self._tap = tap

    def softmax(self, softmax: Pass, logits: Tensor) -> Tensor:
        found: Tensor = self._tap.pattern(softmax(self._tap.logits(minus_infinity(logits))))
        return found

    def mixed(self, mixed: Tensor) -> Tensor:
        if self._tap.mixed is None or not self._tap.mixed.is_hooked:
            return mixed
        flat = self._tap.mixed(mixed.transpose(1, 2).flatten(2))
        return flat.unflatten(2, (mixed.shape[1], -1)).transpose(1, 2)


class FunctionInterceptor(TorchFunctionMode):
    """Replaces the attention and recurrent functions that modules call, to run the modules' callbacks."""

    def __init__(self, within: Mapping[nn.Module, ModuleHooks]) -> None:
        super().__init__()
        self._within = within
        self._inside: list[ModuleHooks] = []
        self._handles: list[Any] = []

    def __enter__(self) -> "FunctionInterceptor":
        for module, listener in self._within.items():
            self._handles.append(module.register_forward_pre_hook(lambda *_, own=listener: self._inside.append(own)))
            self._handles.append(module.register_forward_hook(lambda *_: self._left(), always_call=True))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()

    def _left(self) -> None:
        self._inside.pop()

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        options = kwargs or {}
        if not self._inside:
            return func(*args, **options)
        here = self._inside[-1]
        if func in _SOFTMAX and args and args[0].ndim == 4:
            return here.softmax(lambda logits: func(logits, *args[1:], **options), args[0])
        if func is F.scaled_dot_product_attention:
            return _plainly(here, *args, **options)
        if func is F.multi_head_attention_forward:
            plain = _heads(here, inspect.signature(func).bind(*args, **options))
            return func(*args, **options) if plain is None else plain
        if func in _RECURRENT and len(args) == 9 and args[4] > 1 and not args[7]:
            return _layer_by_layer(here, func, args)
        return func(*args, **options)


def _plainly(
    here: ModuleHooks,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
    logits = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
        logits = logits.masked_fill(future, -torch.inf)
    if attn_mask is not None:
        masked = attn_mask.dtype == torch.bool
        logits = logits.masked_fill(~attn_mask, -torch.inf) if masked else (logits + attn_mask).to(logits.dtype)
    pattern = here.softmax(lambda given: given.softmax(-1), logits) if logits.ndim == 4 else logits.softmax(-1)
    mixed = F.dropout(pattern, dropout_p, training=dropout_p > 0) @ value
    return here.mixed(mixed) if mixed.ndim == 4 else mixed


def _heads(here: ModuleHooks, bound: inspect.BoundArguments) -> tuple[Tensor, Tensor | None] | None:
    bound.apply_defaults()
    own = SimpleNamespace(**bound.arguments)
    query, num_heads, padding, mask = own.query, own.num_heads, own.key_padding_mask, own.attn_mask
    more = own.bias_k is not None or own.bias_v is not None or own.add_zero_attn or own.use_separate_proj_weight
    if more or own.in_proj_weight is None or query.ndim != 3 or own.key.shape != query.shape:
        return None
    time, batch = query.shape[:2]
    biases = [None] * 3 if own.in_proj_bias is None else own.in_proj_bias.chunk(3)
    parts = zip((query, own.key, own.value), own.in_proj_weight.chunk(3), biases, strict=True)
    q, k, v = (F.linear(x, weight, bias).unflatten(2, (num_heads, -1)).permute(1, 2, 0, 3) for x, weight, bias in parts)
    if mask is not None and mask.ndim == 3:
        mask = mask.view(batch, num_heads, time, time)
    given = [one for one in (mask, None if padding is None else padding[:, None, None]) if one is not None]
    for number, one in enumerate(given):  # in torch, True forbids attention
        added = q.new_zeros(one.shape).masked_fill(one, -torch.inf) if one.dtype == torch.bool else one
        mask = added if number == 0 or mask is None else mask + added
    seen: list[Tensor] = []

    class Kept(ModuleHooks):
        def softmax(self, softmax: Pass, logits: Tensor) -> Tensor:
            seen.append(here.softmax(softmax, logits))
            return seen[-1]

        def mixed(self, mixed: Tensor) -> Tensor:
            return here.mixed(mixed)

    rate = own.dropout_p if own.training else 0.0
    mixed = _plainly(Kept(), q, k, v, mask, rate, own.is_causal and mask is None)
    out = F.linear(mixed.permute(2, 0, 1, 3).flatten(2), own.out_proj_weight, own.out_proj_bias)
    return out, None if not own.need_weights else seen[0].mean(1) if own.average_attn_weights else seen[0]


def _layer_by_layer(here: ModuleHooks, func: Callable[..., Any], args: tuple) -> Any:
    x, begin, weights, bias, num_layers, dropout, train, _, batch_first = args
    states = tuple(begin) if isinstance(begin, tuple | list) else (begin,)
    ends: list[tuple[Tensor, ...]] = []
    each = len(weights) // num_layers
    for layer in range(num_layers):
        first = tuple(state[layer : layer + 1].contiguous() for state in states)
        own = list(weights[layer * each : (layer + 1) * each])
        given = first if len(first) > 1 else first[0]
        x, *last = func(x, given, own, bias, 1, 0.0, train, False, batch_first)
        ends.append(tuple(last))
        if layer + 1 < num_layers:
            x = F.dropout(here.between(layer, x), dropout, training=train)
    return (x, *(torch.cat(parts) for parts in zip(*ends, strict=True)))


def minus_infinity(logits: Tensor) -> Tensor:
    """Replace values near the lowest finite number, which mark masked keys, by -inf, unless all keys are masked."""
    hidden = logits <= torch.finfo(logits.dtype).min / 2
    return logits.masked_fill(hidden & ~hidden.all(-1, keepdim=True), -torch.inf)


@contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    configs: dict[int, Any] = {
        id(found): found for module in model.modules() if (found := getattr(module, "config", None))
    }
    kinds = [(config, getattr(config, "_attn_implementation", None)) for config in configs.values()]
    before = [(config, kind) for config, kind in kinds if kind is not None]
    try:
        for config, _ in before:
            config._attn_implementation = "eager"
        yield
    finally:
        for config, own in before:
            config._attn_implementation = own


def writing(tap: Pass, *, time_first: bool = False) -> Callable[..., Any]:

    def wrote(module: nn.Module, args: tuple, output: Any) -> Any:
        if isinstance(output, tuple):
            return (_placed(tap, output[0], time_first), *output[1:])
        return _placed(tap, output, time_first)

    return wrote


def reading(tap: Pass, *, time_first: bool = False) -> Callable[..., Any]:

    def read(module: nn.Module, args: tuple, options: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        if args:
            return (_placed(tap, args[0], time_first), *args[1:]), options
        name = "hidden_states" if "hidden_states" in options else next(iter(options))
        return args, options | {name: _placed(tap, options[name], time_first)}

    return read


def _placed(tap: Pass, activation: Tensor, time_first: bool) -> Tensor:
    return tap(activation.transpose(0, 1)).transpose(0, 1) if time_first else tap(activation)
