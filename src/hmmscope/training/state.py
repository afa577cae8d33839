"""The state of a training: weights and AdamW moments, by parameter name, on a device and on disk."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from hmmscope.axes import Tensor
from hmmscope.datasets.process_dataset import Batch
from hmmscope.errors import DamagedError, ResourceError
from hmmscope.reprs import Shown
from hmmscope.storage.rundir import RunDir
from hmmscope.training.distributed import ProcessGroup


class Moments:
    """What AdamW remembers.

    Attributes:
        state: by parameter, as `torch.optim.AdamW` has it: ``step``, ``exp_avg``, ``exp_avg_sq``.
    """

    def __init__(self) -> None:
        self.state: dict[Tensor, dict[str, Tensor]] = defaultdict(dict)


def save_state(
    model: torch.nn.Module,
    moments: Moments,
    run: RunDir | None,
    step: int,
    world: ProcessGroup | None = None,
    milestones: Collection[int] = (),
) -> None:
    """A checkpoint of weights and AdamW moments, whole, whatever processes hold parts of them; all take part.

    Args:
        run: of the leader; None in the others.
        milestones: steps whose checkpoints stay.

    Raises:
        ResourceError: processes that should have the same weights do not, to the bit.
    """
    world = world or ProcessGroup()
    names = dict(model.named_parameters())
    copies = world.size > 1 and not any(hasattr(parameter, "full_tensor") for parameter in names.values())
    weights = _gathered(model.state_dict(), world)
    if copies and not world.agree(_sum_of_bits(weights)):
        rule = "the machines are of different types, or one is faulty; train on equal ones"
        raise ResourceError(f"step {step}: the processes have come to different weights; {rule}")
    held = {
        f"{m}.{name}": moments.state[p].get(m, torch.zeros_like(p))  # none if no gradient ever reached it
        for name, p in names.items()
        for m in ("exp_avg", "exp_avg_sq")
    }
    held = _gathered(held, world)
    if run is not None:
        run.save_checkpoint(step, {"model": weights, "optimiser": held}, {}, milestones=milestones)


def restore_weights(model: torch.nn.Module, run: RunDir | None, world: ProcessGroup | None = None) -> "Restored":
    """Load the weights of the newest checkpoint, which the leader reads, and cut the metrics to its length."""
    world = world or ProcessGroup()
    found = run.load_checkpoint() if run is not None else None
    tensors: dict[str, torch.Tensor] = {}
    if run is not None and found is None:
        run.metrics.truncate(0)
    elif run is not None and found is not None:
        load_weights(model, found[1].get("model", {}))
        tensors = found[1].get("optimiser", {})
        _check_names_and_shapes("optimiser.safetensors", _moments(model), tensors)
        run.metrics.truncate(found[2]["journal_length"])
    step = world.share(0 if found is None else found[0])
    if step and world.size > 1:
        model.load_state_dict({name: world.share_tensor(tensor) for name, tensor in model.state_dict().items()})
        tensors = {name: world.share_tensor(tensors.get(name, like)) for name, like in _moments(model).items()}
    return Restored(step, tensors)


@dataclass(frozen=True, repr=False)
class Restored(Shown):
    """Where a training goes on.

    Attributes:
        step: steps taken; 0 for a new run.
        moments: of AdamW, by parameter, none for a new run.
    """

    step: int
    moments: dict[str, torch.Tensor]

    def into(self, model: torch.nn.Module, moments: Moments) -> None:
        """Write what AdamW remembered of the parameters of `model`, of which each process may hold a part."""
        if not self.step:
            return
        for name, parameter in model.named_parameters():
            moments.state[parameter] = {
                "step": torch.tensor(float(self.step), device=parameter.device),
                "exp_avg": _like(parameter, self.moments[f"exp_avg.{name}"]),
                "exp_avg_sq": _like(parameter, self.moments[f"exp_avg_sq.{name}"]),
            }


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of which each process may hold a part, put together; all processes take part."""
    full: Any = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this process holds."""
    part: Any = getattr(tensor, "to_local", None)
    return tensor if part is None else part()


def _gathered(tensors: Mapping[str, torch.Tensor], world: ProcessGroup) -> dict[str, torch.Tensor]:
    """Whole tensors; those that had to be put together on the processor, one after the other, and the leader's only."""
    held = {}
    for name, tensor in tensors.items():
        full = whole(tensor)
        if full is tensor:
            held[name] = tensor
        elif world.leader:
            held[name] = full.cpu()
    return held


def _like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """`value` on the device of the parameter, in parts if that is."""
    value = value.to(parameter.device)
    if not hasattr(parameter, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = parameter
    return distribute_tensor(value, sharded.device_mesh, sharded.placements)


def _moments(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What the moments look like."""
    return {f"{m}.{name}": p for name, p in model.named_parameters() for m in ("exp_avg", "exp_avg_sq")}


def load_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Copy weights by name; a missing, surplus or wrongly shaped one is a DamagedError that names it."""
    _check_names_and_shapes("model.safetensors", model.state_dict(), weights)
    model.load_state_dict(weights)


def _sum_of_bits(tensors: Mapping[str, torch.Tensor]) -> int:
    """A number that weights which differ by little do not share: the sum of their bits, read as integers."""
    total = 0
    for tensor in tensors.values():
        bits = tensor.detach().contiguous().view(torch.uint8).view(-1)
        size = 8 if len(bits) % 8 == 0 else 4 if len(bits) % 4 == 0 else 1
        total += int(bits.view({8: torch.int64, 4: torch.int32, 1: torch.uint8}[size]).sum(dtype=torch.int64))
    return total % 2**62


def _check_names_and_shapes(file: str, own: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> None:
    for name in [*own, *found]:
        if name not in found or name not in own or own[name].shape != found[name].shape:
            raise DamagedError(f"{file}: {name} is missing, unknown or of another shape than the config says")


def resolve_device(
    device: Literal["auto", "cpu", "cuda"], engine: Literal["auto", "compiled", "torch"] = "auto"
) -> Literal["cpu", "cuda"]:
    """ "auto" as cuda where there is one, but for the engine of the processor; ResourceError if cuda is absent."""
    if device == "auto" and engine == "compiled":
        return "cpu"
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ResourceError("training.device: cuda was asked for and no CUDA device is present; use cpu or auto")
    if device == "auto":
        return "cuda" if available else "cpu"
    return device


def move(batch: Batch, device: torch.device) -> Batch:
    """The batch on a device."""
    components = None if batch.components is None else batch.components.to(device)
    return Batch(batch.tokens.to(device), batch.observations.to(device), batch.states.to(device), components)
