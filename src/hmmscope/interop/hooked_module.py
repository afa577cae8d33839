"""Hook points for any module from tokens to logits."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hmmscope.axes import Tensor
from hmmscope.errors import InputError
from hmmscope.models.adapted import call_on_tokens, named_module, title_of
from hmmscope.models.base import HookPoint
from hmmscope.models.failing import POSITION_LIMITS, read_number
from hmmscope.models.hooks import (
    AttentionHookPoint,
    AttentionHooks,
    FunctionInterceptor,
    ModuleHooks,
    Pass,
    reading,
    writing,
)
from hmmscope.models.kept_state import undisturbed

#: Samples and positions of the calls, unequal to distinguish the axes; fewer positions for short contexts.
_SIZES = ((2, 5), (2, 4), (2, 3), (3, 2), (2, 1))


class HookedModule(nn.Module):
    """A user's module, unchanged, with this library's hook points::

        residual.0      input of the first layer
        residual.<l>    output of layer l, (batch, time, feature)
        blocks.<l>.attention.logits, .pattern (batch, head, query, key) and .mixed (head outputs, (batch, time, width)),
        l from 0, in layers with one softmax over keys

    The layers are the longest list of modules that return (batch, time, feature). Without such a list, the layers
    are those of recurrent modules, or else all top-level modules that return (batch, time, feature), except the last.

    Args:
        module: map from tokens (batch, time) to logits.

    Raises:
        InputError: the module fails on a few tokens, or no layers are found.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        module = named_module(module)
        self.module, self.training, self.__dict__["adapted"] = module, module.training, module
        self._begin, self._layers, self._attended = _TracedCalls(module).layers()
        self.residual = nn.ModuleList(HookPoint() for _ in range(len(self._layers) + 1))
        self.blocks = nn.ModuleList(nn.ModuleDict() for _ in self._layers)
        for place, block in zip(self._layers, self.blocks, strict=True):
            if place.path in self._attended:
                block.add_module("attention", AttentionHookPoint(mixed=self._attended[place.path].mixed))

    def forward(self, *inputs: Any, **options: Any) -> Any:
        with self.connected():
            if len(inputs) == 1 and isinstance(inputs[0], Tensor):
                return call_on_tokens(self.module, inputs[0], given=options)
            return self.module(*inputs, **options)

    @contextmanager
    def connected(self) -> Iterator[nn.Module]:
        within: dict[nn.Module, ModuleHooks] = {}
        between: dict[nn.Module, list[tuple[HookPoint, bool]]] = {}
        with ExitStack() as stack:
            first = self.module.get_submodule(self._begin.path)
            hook = reading(self.residual[0], time_first=self._begin.time_first)
            stack.callback(first.register_forward_pre_hook(hook, with_kwargs=True).remove)
            for place, tap, block in zip(self._layers, self.residual[1:], self.blocks, strict=True):
                part = self.module.get_submodule(place.path)
                if place.last:
                    hook_after = writing(tap, time_first=place.time_first)
                    stack.callback(part.register_forward_hook(hook_after).remove)
                else:
                    between.setdefault(part, []).append((tap, place.time_first))  # type: ignore[arg-type]
                attention: Any
                for attention in block.children():
                    if attention.is_hooked:
                        writer = self.module.get_submodule(self._attended[place.path].path)
                        stack.callback(
                            writer.register_forward_hook(writing(attention, time_first=place.time_first)).remove
                        )
                    if attention.is_hooked_within:
                        within[part] = AttentionHooks(attention)
            heard = {part: taps for part, taps in between.items() if any(tap.is_hooked for tap, _ in taps)}
            within |= {part: _Between(taps) for part, taps in heard.items()}
            if within:
                stack.enter_context(FunctionInterceptor(within))
            yield self.module

    def __repr__(self) -> str:
        heads = sum(isinstance(part, AttentionHookPoint) for part in self.modules())
        return f"HookedModule({title_of(self.module)}, {len(self._layers)} layers, {heads} with attention)"


@dataclass(frozen=True)
class _StreamLocation:
    path: str
    time_first: bool = False
    last: bool = True


@dataclass(frozen=True)
class _Attended:
    path: str
    mixed: bool


class _Between(ModuleHooks):
    def __init__(self, taps: list[tuple[HookPoint, bool]]) -> None:
        self._taps = taps

    def between(self, layer: int, states: Tensor) -> Tensor:
        tap, time_first = self._taps[layer]
        found: Tensor = tap(states.transpose(0, 1)).transpose(0, 1) if time_first else tap(states)
        return found


class _Attention(ModuleHooks):
    def __init__(self, samples: int, positions: int) -> None:
        self.count, self.shown, self._sizes = 0, 0, (samples, positions, positions)

    def softmax(self, softmax: Pass, logits: Tensor) -> Tensor:
        self.count += (logits.shape[0], *logits.shape[2:]) == self._sizes
        return softmax(logits)

    def mixed(self, mixed: Tensor) -> Tensor:
        self.shown += 1
        return mixed


class _TracedCalls:
    def __init__(self, module: nn.Module) -> None:
        self.module = module
        limit = read_number(module, POSITION_LIMITS)
        first: Exception | None = None
        for samples, positions in [*_SIZES, *([] if limit is None else [(2 + (limit[1] == 2), limit[1])])]:
            try:
                self._run(samples, positions)
                return
            except Exception as error:
                first = first or error
        reason, name = " ".join(str(first).split())[:200], title_of(module)
        raise InputError(f"model: {name} fails on tokens {_SIZES[0]}: {reason}") from first

    def layers(self) -> tuple[_StreamLocation, list[_StreamLocation], dict[str, "_Attended"]]:
        for candidates in (self._longest_list(), self._recurrent(), self._top()):
            if candidates:
                first = candidates[0]
                once = [place.path for place in candidates if self.attention[place.path].count == 1]
                return (
                    _StreamLocation(first.path, self.read[first.path]),
                    candidates,
                    {path: self._attends(path) for path in once},
                )
        raise InputError(f"layers: no module of {title_of(self.module)} returns a tensor (batch, time, feature)")

    def _attends(self, path: str) -> "_Attended":
        parts = [f"{path}.{name}" for name, _ in self.module.get_submodule(path).named_children()]
        part = next((part for part in parts if self.attention[part].count and part in self.given), path)
        return _Attended(part, self.attention[path].shown == 1)

    def _longest_list(self) -> list[_StreamLocation]:
        best: list[str] = []
        for path, part in self.module.named_modules():
            if not isinstance(part, nn.ModuleList | nn.Sequential):
                continue
            names = [f"{path}.{name}" if path else name for name, _ in part.named_children()]
            blocks = [name for name in names if name in self.given and name in self.read]
            same = len({self.given[name] for name in blocks}) == 1 and len({*map(self._kind, names)}) == 1
            plain = all(self._kind(name).startswith("torch.nn.modules.") for name in blocks) and not any(
                isinstance(self.module.get_submodule(name), nn.TransformerEncoderLayer | nn.RNNBase) for name in blocks
            )
            if len(blocks) == len(names) > len(best) and same and not plain:
                best = blocks
        if any(isinstance(self.module.get_submodule(name), nn.RNNBase) for name in best):
            return []  # recurrent modules may have several layers
        return [_StreamLocation(name, self.given[name][0]) for name in sorted(best, key=self.called.index)]

    def _kind(self, name: str) -> str:
        cls = type(self.module.get_submodule(name))
        return f"{cls.__module__}.{cls.__qualname__}"

    def _recurrent(self) -> list[_StreamLocation]:
        found = []
        for name in self.called:
            part = self.module.get_submodule(name)
            if isinstance(part, nn.RNNBase) and name in self.given and name in self.read:
                within = part.num_layers if not part.bidirectional else 1
                time_first = self.given[name][0]
                found += [_StreamLocation(name, time_first, last=layer == within - 1) for layer in range(within)]
        return found

    def _top(self) -> list[_StreamLocation]:
        prefix = ""
        while True:
            depth = prefix.count(".") + bool(prefix)
            own = [name for name in self.called if name.startswith(prefix) and name[len(prefix) :].count(".") == 0]
            found = [name for name in own if name in self.given and name in self.read]
            if len(found) > 1:
                return [_StreamLocation(name, self.given[name][0]) for name in found[:-1]]
            inside = found or own
            deeper = [name for name in self.called if inside and name.startswith(f"{inside[0]}.")]
            if not deeper or depth > 20:
                return []
            prefix = f"{inside[0]}."

    def _run(self, samples: int, positions: int) -> None:
        self.sizes = samples, positions
        self.given: dict[str, tuple[bool, int]] = {}  # time-first, and width
        self.called: list[str] = []
        self.read: dict[str, bool] = {}  # whether the input is time-first
        device = next((p.device for p in self.module.parameters()), None)
        tokens = torch.zeros(samples, positions, dtype=torch.int64, device=device)
        times: dict[str, int] = {}
        parts = [(name, part) for name, part in self.module.named_modules() if name]
        listeners: dict[nn.Module, ModuleHooks] = {}
        self.attention = {
            name: _Attention(samples, positions) for name, _ in parts
        }  # softmaxes over keys in each module
        with undisturbed(self.module), ExitStack() as stack:
            for name, part in parts:
                before, after = self._reads(name), self._gives(name, times)
                stack.callback(part.register_forward_pre_hook(before, with_kwargs=True).remove)
                stack.callback(part.register_forward_hook(after).remove)
                listeners[part] = _Chain(name, self.attention)
            stack.enter_context(FunctionInterceptor(listeners))
            call_on_tokens(self.module, tokens)
        for name, count in times.items():
            if count > 1:  # a call per symbol is not a stream
                self.given.pop(name, None)

    def _reads(self, name: str) -> Any:
        def note(module: nn.Module, args: tuple, options: dict[str, Any]) -> None:
            found = args[0] if args else next(iter(options.values()), None)
            axes = self._axes_of(found)
            if axes is not None:
                self.read[name] = axes
            elif isinstance(found, Tensor) and not found.is_floating_point() and found.ndim == 2:
                self.read.pop(name, None)

        return note

    def _gives(self, name: str, times: dict[str, int]) -> Any:
        def note(module: nn.Module, args: tuple, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            times[name] = times.get(name, 0) + 1
            axes = self._axes_of(first)
            if axes is not None:
                self.called += [] if name in self.called else [name]
                self.given[name] = (axes, first.shape[2])

        return note

    def _axes_of(self, x: Any) -> bool | None:
        if not isinstance(x, Tensor) or x.ndim != 3 or not x.is_floating_point():
            return None
        return {self.sizes: False, self.sizes[::-1]: True}.get((x.shape[0], x.shape[1]))


class _Chain(ModuleHooks):
    def __init__(self, name: str, counts: dict[str, _Attention]) -> None:
        parts = name.split(".")
        self._around = [counts[own] for end in range(len(parts)) if (own := ".".join(parts[: end + 1])) in counts]

    def softmax(self, softmax: Pass, logits: Tensor) -> Tensor:
        for count in self._around:
            count.softmax(lambda given: given, logits)
        return softmax(logits)

    def mixed(self, mixed: Tensor) -> Tensor:
        for count in self._around:
            count.mixed(mixed)
        return mixed
