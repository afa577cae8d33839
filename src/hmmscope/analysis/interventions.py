"""Interventions: edits of the outputs of named modules.

    with intervene(model, {"residual.2": add(direction, positions=-1)}):
        changed = model(tokens)

    source = capture_activations(model, ["residual.2"], other_tokens)["residual.2"]
    with intervene(model, {"residual.2": patch(source)}):
        patched = model(tokens)

An edit maps an activation to a tensor of equal shape. Gradients flow through edits.

Source: activation patching as in Vig et al. (2020) and Meng et al. (2022); ablation by means and by other samples as in
Wang et al. (2023) and Chan et al. (2022).
"""

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd.function import FunctionCtx
from torch.utils import checkpoint

from hmmscope import registry
from hmmscope.analysis.activations import modules_named, require_module
from hmmscope.analysis.devices import on_device
from hmmscope.analysis.rehearsing import rehearsed_on
from hmmscope.axes import Float, Tensor
from hmmscope.errors import InputError
from hmmscope.models.adapted import named_module, run_eagerly
from hmmscope.schema import shown

#: Maps an activation to its replacement of the same shape.
Edit = Callable[[Tensor], Tensor]
#: Samples or positions: one, several, a slice, a mask, or None for all.
Index = int | slice | Sequence[int] | Tensor | None


@contextmanager
def intervene(
    model: nn.Module, edits: Mapping[str, Edit | Sequence[Edit]], *, device: Any = None
) -> Iterator[nn.Module]:
    """Edit the outputs of named modules in the ``with`` block.

    Args:
        model: any module.
        edits: map from names of activations (``residual.1``) or modules to an edit, or to several edits in order.
        device: device on which the model runs in the block.

    Raises:
        InputError: a name is unknown, or an edit is not callable. In the forward pass: an output is not a tensor, an
            edit returns no tensor or another shape, or activation checkpointing is on.
    """
    require_module(model)
    taken = registry.adapted(model, list(edits))
    # extra calls would disturb a connection to the activations of another library
    plain = taken is model or taken is named_module(model)
    handles = [model.register_forward_pre_hook(_rehearse_once())] if plain else []
    try:
        for name, module in modules_named(taken, edits, field="edits").items():
            chosen = edits[name]
            in_turn = tuple(chosen) if isinstance(chosen, list | tuple) else (chosen,)
            if not all(map(callable, in_turn)):
                raise InputError(f"edits: {name} must be a function or a list of functions, got {shown(chosen)}")
            handles.append(module.register_forward_hook(_hook(name, in_turn)))
        with on_device(model, device), run_eagerly(model), nullcontext() if plain else taken.connected():
            yield model
    finally:
        for handle in handles:
            handle.remove()


def _rehearse_once() -> Callable[[nn.Module, tuple[Any, ...]], None]:
    calls = itertools.count()

    def rehearse(model: nn.Module, inputs: tuple[Any, ...]) -> None:
        if len(inputs) == 1 and isinstance(inputs[0], Tensor) and inputs[0].ndim == 2 and next(calls) == 0:
            for line in rehearsed_on(model, inputs[0]):
                warnings.warn(line, stacklevel=2)

    return rehearse


def _hook(name: str, edits: tuple[Edit, ...]) -> Callable[[nn.Module, Any, Any], Any]:
    def change(module: nn.Module, inputs: Any, output: Any) -> Any:
        if _recomputed():
            rule = "backward() would recompute this activation without the edit (activation checkpointing)"
            ways = (
                "turn checkpointing off, for example by model.gradient_checkpointing_disable(), or use torch.no_grad()"
            )
            raise InputError(f"edits: {name} cannot be edited, because {rule}; {ways}")
        first = output[0] if isinstance(output, tuple) else output
        if not isinstance(first, Tensor):
            raise InputError(f"edits: {name} must return a tensor, or a tuple that starts with one, got {shown(first)}")
        changed = first
        for edit in edits:
            changed = edit(changed)
            if not isinstance(changed, Tensor):
                raise InputError(f"edits: the edit of {name} must return a tensor, got {shown(changed)}")
        if changed.shape != first.shape:
            raise InputError(
                f"edits: the edit of {name} must keep its shape {tuple(first.shape)}, got {tuple(changed.shape)}"
            )
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    return change


def _recomputed() -> bool:
    if torch.compiler.is_compiling():  # the compiled module includes the edit
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename == checkpoint.__file__ and torch.is_grad_enabled():
            return True
        if code.co_name in ("forward", "backward") and code.co_varnames[:1] not in ((), ("self",)):
            first: Any = frame.f_locals.get(code.co_varnames[0])
            own = isinstance(first, FunctionCtx)  # inside a torch.autograd.Function
            if own and (any(first.needs_input_grad) if code.co_name == "forward" else torch.is_grad_enabled()):
                return True
        frame = frame.f_back
    return False


def edited(change: Edit, *, samples: Index = None, positions: Index = None) -> Edit:
    """Return an edit restricted to some samples (axis 0) and positions (axis 1).

    Args:
        change: function from an activation to an activation of the same shape.
        samples: indices of the edited samples (default: all).
        positions: indices of the edited positions (default: all).
    """

    def apply(x: Tensor) -> Tensor:
        if samples is None and positions is None:
            return change(x)
        rows = torch.zeros(x.shape[0], dtype=torch.bool, device=x.device)
        rows[slice(None) if samples is None else samples] = True
        columns = torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
        columns[slice(None) if positions is None else positions] = True
        mask = rows[:, None] & columns
        return torch.where(mask.reshape(*mask.shape, *[1] * (x.ndim - 2)), change(x), x)

    return apply


def patch(values: Float[Tensor, "*shape"], *, samples: Index = None, positions: Index = None) -> Edit:
    """Return an edit that replaces the activation by `values`, broadcast to its shape."""
    return edited(lambda x: values.to(x).expand_as(x), samples=samples, positions=positions)


def add(vector: Float[Tensor, "*shape"], *, samples: Index = None, positions: Index = None) -> Edit:
    """Return an edit that adds a vector, or one per sample and position, to the activation."""
    return edited(lambda x: x + vector.to(x), samples=samples, positions=positions)


def project_out(
    directions: Float[Tensor, "direction width"],
    *,
    mean: Float[Tensor, " width"] | None = None,
    samples: Index = None,
    positions: Index = None,
) -> Edit:
    """Return an edit that sets the activation's component in the span of `directions` to `mean`'s component, or to 0.

    x - (x - mean) Q Q^T   for an orthonormal basis Q
    """
    basis_DR = span(directions)

    def change(x: Tensor) -> Tensor:
        own = basis_DR.to(x)
        centred = x if mean is None else x - mean.to(x)
        return x - centred @ own @ own.T

    return edited(change, samples=samples, positions=positions)


def move_within(
    directions: Float[Tensor, "direction width"],
    values: Float[Tensor, "*shape"],
    *,
    samples: Index = None,
    positions: Index = None,
) -> Edit:
    """Return an edit that sets the activation's component in the span of `directions` to the component of `values`.

    x + (values - x) Q Q^T   for an orthonormal basis Q
    """
    basis_DR = span(directions)

    def change(x: Tensor) -> Tensor:
        own = basis_DR.to(x)
        return x + (values.to(x) - x) @ own @ own.T

    return edited(change, samples=samples, positions=positions)


def ablate_head(
    head: int,
    num_heads: int,
    *,
    by: Float[Tensor, "*shape"] | None = None,
    samples: Index = None,
    positions: Index = None,
) -> Edit:
    """Return an edit of ``attention.mixed`` that replaces one head's output by zeros, or by this head's output in `by`.

    Args:
        head: index of the head, from 0.
        num_heads: number of heads in the layer.
        by: activation, such as a mean, that broadcasts to (batch, time, width) (default: zeros).
        samples, positions: see `edited`.
    """
    if not 0 <= head < num_heads:
        raise InputError(f"head: must be in [0, {num_heads}), got {head}")

    def change(x: Tensor) -> Tensor:
        if x.shape[-1] % num_heads:
            raise InputError(f"num_heads: must divide the width {x.shape[-1]}, got {num_heads}")
        size = x.shape[-1] // num_heads
        of_head = torch.arange(x.shape[-1], device=x.device) // size == head
        return torch.where(of_head, torch.zeros_like(x) if by is None else by.to(x).expand_as(x), x)

    return edited(change, samples=samples, positions=positions)


def set_pattern(pattern: Float[Tensor, "*shape"], *, head: int | None = None, samples: Index = None) -> Edit:
    """Return an edit that sets the attention pattern (batch, head, query, key) of one head or all heads."""

    def change(x: Tensor) -> Tensor:
        wanted = pattern.to(x).expand_as(x)
        if head is None:
            return wanted
        chosen = (torch.arange(x.shape[1], device=x.device) == head).reshape(-1, 1, 1)
        return torch.where(chosen, wanted, x)

    return edited(change, samples=samples)


def span(directions: Float[Tensor, "direction width"]) -> Float[Tensor, "width rank"]:
    """Return an orthonormal basis (width, rank), float64, of the span of `directions`."""
    rounding = 10 * max(directions.shape) * torch.finfo(directions.dtype).eps
    rows = torch.atleast_2d(directions).double()
    if not rows.isfinite().all():
        raise InputError("directions: must be finite")
    if not len(rows):
        return rows.T
    _, sizes, basis_RD = torch.linalg.svd(rows, full_matrices=False)
    return basis_RD[sizes > rounding * sizes.max()].T
