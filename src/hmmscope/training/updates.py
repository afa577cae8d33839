"""One update: the gradient of a batch in grains, its norm, AdamW."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from hmmscope.axes import Tensor
from hmmscope.corpora.corpus import Batch
from hmmscope.corpora.targets import Target
from hmmscope.errors import NonFiniteError
from hmmscope.training.distributed import World
from hmmscope.training.objectives import target_loss
from hmmscope.training.spec import TrainingSpec
from hmmscope.training.state import Moments, Optimiser, local, whole


def make_optimiser(model: nn.Module, spec: TrainingSpec) -> Optimiser:
    """Fused AdamW on all parameters, or what the compiled engine needs of it."""
    if spec.engine == "compiled":
        return Moments()
    return torch.optim.AdamW(
        model.parameters(),
        lr=spec.learning_rate,
        betas=(spec.betas[0], spec.betas[1]),
        eps=spec.epsilon,
        weight_decay=spec.weight_decay,
        fused=True,
    )


def autocast(spec: TrainingSpec, device: torch.device) -> AbstractContextManager:
    """bfloat16 matrix products where the spec asks for them."""
    if spec.precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def grains(batch: Batch, num_grains: int) -> Sequence[Batch]:
    """Equal parts of a batch, in order."""
    return [batch] if num_grains == 1 else parts(batch, -(-len(batch.tokens) // num_grains))


def parts(batch: Batch, size: int) -> Sequence[Batch]:
    """Parts of a batch of `size` samples each, in order; the last one may be smaller."""
    cuts = [slice(begin, begin + size) for begin in range(0, len(batch.tokens), size)]
    components = batch.components
    return [
        Batch(batch.tokens[c], batch.observations[c], batch.states[c], None if components is None else components[c])
        for c in cuts
    ]


def loss_of_grain(model: nn.Module, batch: Batch, target: Target, spec: TrainingSpec, weight: float) -> Tensor:
    """Loss of a part of a batch, whose gradient is added to that of the parts before; returned detached."""
    with autocast(spec, batch.tokens.device):
        loss = target_loss(model, batch, target, block_length=spec.block_length, block_algorithm=spec.block_algorithm)
    if weight != 1.0:
        loss = loss * weight
    loss.backward()
    return loss.detach()


def update(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    loss: Tensor,
    rate: float,
    clip: float,
    step: int,
    world: World | None = None,
) -> tuple[float, float]:
    """Take the step if loss and gradient are finite; both, as they were before it.

    Loss and gradient are those of all processes together, so that all of them decide alike.

    Raises:
        NonFiniteError: names the step and the parameter; nothing is changed.
    """
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norm = whole(torch.nn.utils.get_total_norm(list(gradients.values())))
    size, total = loss.item(), norm.item()
    if not (abs(size) < float("inf") and total < float("inf")):
        raise not_finite(model, size, step, world)
    if clip:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), clip, norm)
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.step()
    return size, total


def not_finite(model: nn.Module, loss: float, step: int, world: World | None = None) -> NonFiniteError:
    """What to raise for a loss or gradient that is not finite; all processes take part."""
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    found = [not local(gradient).isfinite().all() for gradient in gradients.values()]
    number = (world or World()).largest(len(found) - found.index(True) if True in found else 0)
    bad = list(gradients)[-number] if number else "all together"
    what = f"gradient of {bad}" if abs(loss) < float("inf") else "loss"
    return NonFiniteError(
        f"step {step + 1}: {what} is not finite (loss {loss}); the step was not taken, lower learning_rate"
    )
