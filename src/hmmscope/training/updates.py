"""One training update: loss, gradient in parts of the batch, gradient norm, optimiser step."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn
from torch.optim.adamw import adamw

from hmmscope.axes import Float, Tensor
from hmmscope.datasets.process_dataset import Batch, LabelledBatch
from hmmscope.datasets.targets import Target
from hmmscope.errors import NonFiniteError
from hmmscope.models.block_cot import block_outputs
from hmmscope.schema import require
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.schedules import learning_rate
from hmmscope.training.spec import TrainingSpec
from hmmscope.training.state import Moments, local, whole


def judged_outputs(
    model: nn.Module, batch: Batch, target: Target, *, block_length: int = 0, block_algorithm: str = "two-phase"
) -> Float[Tensor, "batch judged output"]:
    """Return a model's outputs at positions with labels, with block chain-of-thought if `block_length` is positive."""
    require(isinstance(batch, Batch), "batch", "must be a Batch", batch)
    require(isinstance(target, Target), "target", "must be a Target, which hmmscope.make_target returns", target)
    num_columns = int(target.token_positions[-1]) + 1
    inputs = batch.tokens[:, :num_columns]
    if inputs.is_floating_point():
        inputs = inputs.to(next(model.parameters()).dtype)
    if block_length:
        outputs = block_outputs(model, inputs, kind=target.kind, block_length=block_length, algorithm=block_algorithm)
    else:
        outputs = model(inputs)
    return (
        outputs if len(target.token_positions) == num_columns else outputs[:, target.token_positions_on(outputs.device)]
    )


def target_loss(
    model: nn.Module, batch: Batch, target: Target, *, block_length: int = 0, block_algorithm: str = "two-phase"
) -> Float[Tensor, ""]:
    """Return the mean loss over positions with labels (cross-entropy or -log density in nats, or squared error).

    Args:
        model: map from tokens or vectors to outputs.
        batch: samples, such as `dataset[0:64]`.
        target: see `make_target`.
        block_length, block_algorithm: see `TrainingSpec`.
    """
    outputs = judged_outputs(model, batch, target, block_length=block_length, block_algorithm=block_algorithm)
    return target.loss(outputs, batch.labels if isinstance(batch, LabelledBatch) else target.labels(batch))


@contextmanager
def autocast(spec: TrainingSpec, device: torch.device) -> Iterator[None]:
    """Compute matrix products inside the ``with`` block with inputs rounded to `TrainingSpec.precision`."""
    if spec.precision == "bfloat16":
        with torch.autocast(device.type, torch.bfloat16):
            yield
        return
    before = torch.get_float32_matmul_precision()
    if spec.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def grains(batch: Batch, num_grains: int) -> Sequence[Batch]:
    return [batch] if num_grains == 1 else parts(batch, -(-len(batch.tokens) // num_grains))


def parts(batch: Batch, size: int) -> Sequence[Batch]:
    cuts = [slice(begin, begin + size) for begin in range(0, len(batch.tokens), size)]
    held = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return [replace(batch, **{name: part[cut] for name, part in held.items() if part is not None}) for cut in cuts]


def loss_dtype(model: nn.Module) -> torch.dtype:
    return torch.float64 if any(p.dtype == torch.float64 for p in model.parameters()) else torch.float32


def loss_of_grain(
    model: nn.Module, batch: Batch, target: Target, spec: TrainingSpec, weight: float, auxiliary: Any = None
) -> Tensor:
    with autocast(spec, batch.tokens.device):
        with nullcontext() if auxiliary is None else auxiliary.listening():
            loss = target_loss(
                model, batch, target, block_length=spec.block_length, block_algorithm=spec.block_algorithm
            )
        if auxiliary is not None:
            loss = auxiliary.terms(loss, batch)
        if weight != 1.0:
            loss = loss * weight
        total = loss if auxiliary is None else loss.sum()
        if spec.precision == "tf32":  # also in the backward pass
            total.backward()
    if spec.precision != "tf32":
        total.backward()
    return loss.detach()


def update(
    model: nn.Module,
    moments: Moments,
    spec: TrainingSpec,
    loss: Tensor,
    step: int,
    world: ProcessGroup | None = None,
    meanwhile: Callable[[], object] = bool,
) -> tuple[float, ...]:
    """Take a step if loss and gradient are finite in all processes; return loss, gradient norm and auxiliary losses.

    Args:
        meanwhile: Function without arguments, called after the step (on a GPU, after queueing it).

    Raises:
        NonFiniteError: The loss or a gradient is not finite; the model and the moments are unchanged.
    """
    parameters: list[Tensor] = [p for p in model.parameters() if p.grad is not None]
    norm = whole(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    both, skipped, found = torch.stack([*loss.reshape(-1)[:1], norm, *loss.reshape(-1)[1:]]), None, None
    sharded = any(hasattr(p, "full_tensor") for p in parameters)  # need equal types
    if queues(both) and not sharded and not moments.optimizers:
        skipped = (both - both).sum().ne(0).float()  # NaN if one is not finite
        norm = norm.nan_to_num(0.0, 0.0, 0.0)  # leaves the gradients as they are
    else:
        found = _check_finite(model, both, step, world)
    if spec.gradient_clip:
        torch.nn.utils.clip_grads_with_norm_(parameters, spec.gradient_clip, norm)
    take_step(parameters, moments, spec, learning_rate(spec, step), skipped)
    meanwhile()
    return found or _check_finite(model, both, step, world)


def queues(tensor: Tensor) -> bool:
    return tensor.device.type != "cpu"


def _check_finite(model: nn.Module, both: Tensor, step: int, world: ProcessGroup | None) -> tuple[float, ...]:
    found = both.tolist()
    if not all(map(math.isfinite, found)):
        raise not_finite(model, found[0] + sum(found[2:]), step, world)
    return tuple(found)


@torch.no_grad()
def take_step(
    parameters: list[Tensor], moments: Moments, spec: TrainingSpec, rate: float, skipped: Tensor | None = None
) -> None:
    """Take one fused AdamW step (no step if `skipped` is 1), or a step of `moments.optimizers`."""
    for optimizer in moments.optimizers:
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
            group["lr"] = group["initial_lr"] * (rate / spec.learning_rate)
        optimizer.step()
    if moments.optimizers:
        return
    for p in parameters:
        if not moments.state[p]:
            moments.state[p] = {
                "step": torch.zeros((), device=p.device),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }
    plain = [p for p in parameters if p in moments.without_decay]
    decayed = [p for p in parameters if p not in moments.without_decay] if plain else parameters
    for taken, decay in ((decayed, spec.weight_decay), (plain, 0.0)):
        states = [moments.state[p] for p in taken]
        if not taken:
            continue
        adamw(
            taken,
            [p.grad for p in taken if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            found_inf=skipped,
            amsgrad=False,
            beta1=spec.betas[0],
            beta2=spec.betas[1],
            lr=rate,
            weight_decay=decay,
            eps=spec.epsilon,
            maximize=False,
        )


def not_finite(model: nn.Module, loss: float, step: int, world: ProcessGroup | None = None) -> NonFiniteError:
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    found = [not local(gradient).isfinite().all() for gradient in gradients.values()]
    number = (world or ProcessGroup()).largest(len(found) - found.index(True) if True in found else 0)
    bad = list(gradients)[-number] if number else "all parameters"
    what = f"gradient of {bad}" if abs(loss) < float("inf") else "loss"
    place = "outputs and auxiliary losses" if what == "loss" else "backward pass"
    first = f"look for NaN or infinite values in the model's {place}, because no update precedes this step"
    return NonFiniteError(
        f"step {step + 1}: {what} is not finite (loss {loss}); the step was not taken; "
        f"{'lower learning_rate' if step else first}"
    )
