"""A GPU that is not there: runs code on the processor and fails where a real device would, or would be slow.

Tensors made with ``device="cuda"``, or moved there, and all that is computed from them, are ghosts. They say that they are
on cuda:9, cannot become NumPy arrays, and may not meet ordinary tensors of one or more axes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from hmmscope.kernels import gpu

DEVICE = torch.device("cuda", 9)  # a number that no machine has, so that nothing kept for it is taken for a real one
_alive: dict[int, torch.Tensor] = {}  # all ghosts, kept, so that no number is given again
_DEVICE_OF = torch.Tensor.device.__get__


class MixedDevices(AssertionError):
    """A ghost met an ordinary tensor."""


class _Ghosts(TorchFunctionMode):
    def is_ghost(self, thing: object) -> bool:
        return isinstance(thing, torch.Tensor) and id(thing) in _alive

    def made(self, result):
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                _alive[id(leaf)] = leaf
        return result

    def plain(self, result):
        """A result on the processor is another tensor than the ghost it came from."""
        return result.clone() if self.is_ghost(result) else result

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func is _DEVICE_OF or (name == "__get__" and getattr(func, "__self__", None) is torch.Tensor.device):
            return DEVICE if self.is_ghost(args[0]) else func(*args, **kwargs)
        if name in ("numpy", "__array__") and self.is_ghost(args[0]):
            raise TypeError("can't convert cuda:9 device type tensor to numpy")
        if name in ("cpu", "to", "cuda"):
            return self.move(name, func, args, kwargs)
        target = kwargs.pop("device", None)
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        ghosts = any(self.is_ghost(leaf) for leaf in leaves)
        if ghosts and any(leaf.ndim and not self.is_ghost(leaf) for leaf in leaves):
            raise MixedDevices(f"{name}: " + ", ".join(f"{tuple(leaf.shape)} {self.is_ghost(leaf)}" for leaf in leaves))
        wanted = torch.device(target).type == "cuda" if target is not None else ghosts
        return (self.made if wanted else self.plain)(func(*args, **kwargs))

    def move(self, name, func, args, kwargs):
        target = kwargs.pop("device", None)
        rest = []
        for extra in args[1:]:
            if isinstance(extra, str | torch.device):
                target = extra
            else:
                rest.append(extra)
        there = name == "cuda" or (self.is_ghost(args[0]) if target is None else torch.device(target).type == "cuda")
        if name == "cpu":
            there = False
        result = args[0].to(*rest, **kwargs) if rest or kwargs else args[0].view_as(args[0])
        return self.made(result) if there else self.plain(result)


@contextmanager
def ghost_device(monkeypatch, free_bytes: int = 2**26) -> Iterator[_Ghosts]:
    """While this lasts, cuda:9 seems to exist, with so much free memory, and to be the current device."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free_bytes, free_bytes))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: DEVICE.index + 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: DEVICE.index)
    monkeypatch.setattr(gpu, "installed", lambda: False)
    with _Ghosts() as ghosts:
        yield ghosts
