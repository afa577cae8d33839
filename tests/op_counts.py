"""Counts of what a step asks of a device: operations, bytes and waits of the host. Views and empty tensors are free."""

from collections import Counter

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_FREE = ("aten::empty", "aten::new_empty", "aten::detach", "aten::_unsafe_view", "profiler::")
_CONVERSIONS = ("__bool__", "__int__", "__float__", "__index__")
_WAITS = (*_CONVERSIONS, "item", "tolist", "numpy", "cpu", "nonzero", "equal", "unique")


class OpCounts(TorchDispatchMode):
    """Operations that start a kernel, and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if not func.is_view and not name.startswith(_FREE):
            self.names[name] += 1
            leaves = pytree.tree_leaves((args, kwargs, result))
            self.bytes += sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))
        return result

    @property
    def total(self) -> int:
        return self.names.total()


class Waits(TorchFunctionMode):
    """Calls for which the host would wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in _WAITS:
            self.names.append(name)
        return func(*args, **(kwargs or {}))
