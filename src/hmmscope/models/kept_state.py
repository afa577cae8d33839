"""Saved state of a user's module, to restore it after test calls."""

import random
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from hmmscope.axes import Tensor
from hmmscope.models.adapted import parts_of
from hmmscope.models.base import evaluating

#: Module attributes that are not user state.
_STRUCTURE = frozenset(
    {
        *("_parameters", "_modules", "_buffers", "training", "_flat_weights"),
        *(name for name in vars(nn.Module()) if "hooks" in name),
    }
)
#: Random generators.
_RANDOM = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
#: Longest container with elements that are restored too.
_MOST_ELEMENTS = 10_000


class KeptState:
    """Buffers, plain attributes with their contents, and hooks of a model."""

    def __init__(self, model: nn.Module) -> None:
        self._parts = [part for part in parts_of(model) if not isinstance(part, torch.jit.ScriptModule)]
        self._buffers = [dict(part._buffers) for part in self._parts]
        self._plain = [{k: v for k, v in vars(part).items() if k not in _STRUCTURE} for part in self._parts]
        known = {id(one) for part in self._parts for one in (part, *part._parameters.values())}
        own = {type(part).__module__.partition(".")[0] for part in self._parts} - {"torch"}
        values = [value for kept in (*self._buffers, *self._plain) for value in kept.values()]
        self._copies = {id(value): (value, _copied(value)) for value in _reachable(values, known, own)}
        self._hooks = [
            (part, name, hooks)
            for part in self._parts
            for name in ("_forward_hooks", "_forward_pre_hooks")
            if (hooks := vars(part)[name])
        ]
        self.disables = any(_others(hooks) for _, _, hooks in self._hooks)
        self._names = {id(part): name for name, part in model.named_modules()}

    def outside_state(self) -> list[str]:
        found = []
        for part, buffers, plain in zip(self._parts, self._buffers, self._plain, strict=True):
            lost = plain | {name: buffers[name] for name in part._non_persistent_buffers_set if name in buffers}
            for name, value in lost.items():
                if self._differ(value, getattr(part, name, None), set()):
                    found.append(f"{self._names.get(id(part), '')}.{name}".lstrip("."))
        return found

    def _differ(self, value: Any, now: Any, seen: set[int]) -> bool:
        if type(value) is not type(now):
            return True
        if isinstance(value, int | float | complex | str | bytes):
            return value != now
        if id(value) in seen:
            return False
        seen.add(id(value))
        before, now = self._copies.get(id(value), (value, value))[1], _copied(now)
        if isinstance(before, Tensor):
            return not equal_values(before, now)
        if isinstance(before, np.ndarray):
            return not np.array_equal(before, now)
        if isinstance(before, dict):
            return before.keys() != now.keys() or any(self._differ(one, now[key], seen) for key, one in before.items())
        if isinstance(before, list | tuple | deque):
            return len(before) != len(now) or any(self._differ(*pair, seen) for pair in zip(before, now, strict=True))
        if isinstance(before, set):
            return before != now
        inside = getattr(value, "__dict__", None)
        return id(inside) in self._copies and self._differ(inside, vars(now), seen)

    def put_back(self) -> None:
        for part, buffers, plain in zip(self._parts, self._buffers, self._plain, strict=True):
            part._buffers.clear()
            part._buffers.update(buffers)
            for name in [name for name in vars(part) if name not in _STRUCTURE and name not in plain]:
                del vars(part)[name]
            vars(part).update(plain)
        for value, copy in self._copies.values():
            _restore(value, copy)

    @contextmanager
    def without_hooks(self) -> Iterator[None]:
        """Disable the user's forward hooks in the ``with`` block, but not torch's own hooks, which compute weights."""
        for part, name, hooks in self._hooks:
            own = _others(hooks)
            vars(part)[name] = OrderedDict((key, hook) for key, hook in hooks.items() if key not in own)
        try:
            yield
        finally:
            self.with_hooks()

    def with_hooks(self) -> None:
        for part, name, hooks in self._hooks:
            vars(part)[name] = hooks
        self.disables = False


def _others(hooks: Mapping[int, Any]) -> list[int]:
    own = ("torch.", f"{__package__.partition('.')[0]}.analysis.interventions.rehearse")
    names = {key: f"{getattr(hook, '__module__', '')}.{getattr(hook, '__name__', '')}" for key, hook in hooks.items()}
    return [key for key, name in names.items() if not name.startswith(own)]


def _reachable(values: list[Any], known: set[int], own: set[str]) -> Iterator[Any]:
    stack, seen = values, set(known)
    while stack:
        value = stack.pop()
        if id(value) in seen or (isinstance(value, Tensor) and value.is_meta):
            continue
        seen.add(id(value))
        if isinstance(value, (Tensor, np.ndarray, dict, list, set, deque, *_RANDOM)):
            yield value
        elif isinstance(value, nn.Module | SimpleNamespace) or type(value).__module__.partition(".")[0] in own:
            stack += [vars(value)] if hasattr(value, "__dict__") and not isinstance(value, type) else []
        if isinstance(value, dict | list | tuple | deque) and len(value) <= _MOST_ELEMENTS:
            stack += value.values() if isinstance(value, dict) else value


def equal_values(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    one, other = (part.to_dense() if part.layout is not torch.strided else part for part in (one, other))
    return torch.equal(one.nan_to_num(), other.nan_to_num())


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator | np.random.RandomState):
        return value.get_state()
    return value.copy() if isinstance(value, np.ndarray | dict | list | set | deque) else value


def _restore(value: Any, copy: Any) -> None:
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = copy
    elif isinstance(value, random.Random):
        value.setstate(copy)
    elif isinstance(value, torch.Generator | np.random.RandomState):
        value.set_state(copy)
    elif isinstance(value, Tensor):
        if value.shape != copy.shape:
            value.data = copy.clone()
        elif not equal_values(value, copy):
            value.copy_(copy)
    elif isinstance(value, np.ndarray):
        if value.flags.writeable:
            value[...] = copy
    elif isinstance(value, list):
        value[:] = copy
    else:
        value.clear()
        value.extend(copy) if isinstance(value, deque) else value.update(copy)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[KeptState]:
    """Put a model in evaluation mode without gradients and hooks in the ``with`` block, then restore its state."""
    kept = KeptState(model)
    with evaluating(model), torch.no_grad(), kept.without_hooks():
        try:
            yield kept
        finally:
            kept.put_back()
