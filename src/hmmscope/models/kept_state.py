"""Saved state of a user's module, to restore it after test calls."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from hmmscope.axes import Tensor
from hmmscope.models.adapted import parts_of
from hmmscope.models.base import evaluating

#: Module attributes that are not user state.
_STRUCTURE = frozenset(
    {"_parameters", "_modules", "_buffers", "training", *(name for name in vars(nn.Module()) if "hooks" in name)}
)
#: Mutable values.
_CHANGING = (Tensor, torch.Generator, np.random.Generator, list, dict, set)


class KeptState:
    """Buffers, plain attributes and hooks of a model."""

    def __init__(self, model: nn.Module) -> None:
        self._parts = parts_of(model)
        self._buffers = [dict(part._buffers) for part in self._parts]
        self._plain = [{k: v for k, v in vars(part).items() if k not in _STRUCTURE} for part in self._parts]
        values = [value for own in (*self._buffers, *self._plain) for value in own.values()]
        self._copies = [(value, _copied(value)) for value in values if isinstance(value, _CHANGING)]
        self._hooks = [
            (part, name, hooks)
            for part in self._parts
            for name in ("_forward_hooks", "_forward_pre_hooks")
            if (hooks := vars(part)[name])
        ]
        self.disables = any(_others(hooks) for _, _, hooks in self._hooks)
        self._names = {id(part): name for name, part in model.named_modules()}

    def outside_state(self) -> list[str]:
        """Return the names of changed attributes and buffers that a state_dict does not contain."""
        copies = {id(value): copy for value, copy in self._copies}
        found = []
        for part, buffers, plain in zip(self._parts, self._buffers, self._plain, strict=True):
            lost = plain | {name: buffers[name] for name in part._non_persistent_buffers_set if name in buffers}
            for name, value in lost.items():
                now = getattr(part, name, None)
                if _other(copies.get(id(value), value), now):
                    found.append(f"{self._names.get(id(part), '')}.{name}".lstrip("."))
        return found

    def put_back(self) -> None:
        for part, buffers, plain in zip(self._parts, self._buffers, self._plain, strict=True):
            part._buffers.clear()
            part._buffers.update(buffers)
            for name in [name for name in vars(part) if name not in _STRUCTURE and name not in plain]:
                del vars(part)[name]
            vars(part).update(plain)
        for value, copy in self._copies:
            _restore(value, copy)

    @contextmanager
    def without_hooks(self) -> Iterator[None]:
        """Disable the user's forward hooks inside the block, but not torch's, which compute weights."""
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


def _other(before: Any, now: Any) -> bool:
    if isinstance(now, torch.Generator):
        now = now.get_state()
    if isinstance(before, Tensor) and isinstance(now, Tensor):
        return before.shape != now.shape or not torch.equal(before.nan_to_num(), now.nan_to_num())
    if isinstance(before, dict) and isinstance(now, dict):
        return before.keys() != now.keys() or any(_other(value, now[key]) for key, value in before.items())
    if isinstance(before, list) and isinstance(now, list):
        return len(before) != len(now) or any(_other(*pair) for pair in zip(before, now, strict=True))
    return isinstance(before, int | float) and isinstance(now, int | float) and before != now


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, torch.Generator):
        return value.get_state()
    return value.bit_generator.state if isinstance(value, np.random.Generator) else value.copy()


def _restore(value: Any, copy: Any) -> None:
    if isinstance(value, torch.Generator):
        value.set_state(copy)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = copy
    elif isinstance(value, Tensor):
        if value.shape != copy.shape:
            value.data = copy.clone()
        elif not torch.equal(value.nan_to_num(), copy.nan_to_num()):
            value.copy_(copy)
    elif isinstance(value, list):
        value[:] = copy
    else:
        value.clear()
        value.update(copy)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[KeptState]:
    """Put a model in evaluation mode without gradients and hooks inside the block, then restore its state."""
    kept = KeptState(model)
    with evaluating(model), torch.no_grad(), kept.without_hooks():
        try:
            yield kept
        finally:
            kept.put_back()
