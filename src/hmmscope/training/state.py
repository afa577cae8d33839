"""Training state: weights and optimiser state, on a device and on disk."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from hmmscope.axes import Tensor
from hmmscope.datasets.process_dataset import Batch
from hmmscope.errors import DamagedError, InputError, ResourceError
from hmmscope.models.user_module import UserModule
from hmmscope.models.weight_names import matched
from hmmscope.reprs import Shown
from hmmscope.schema import shown
from hmmscope.storage.rundir import RunDir
from hmmscope.training.distributed import ProcessGroup


class Moments:
    """State of AdamW or of another optimiser.

    Attributes:
        state: For each parameter ``step``, ``exp_avg`` and ``exp_avg_sq``, as in `torch.optim.AdamW`.
        without_decay: Parameters without weight decay.
        optimizers: Torch optimisers that replace AdamW.
    """

    def __init__(
        self, without_decay: Collection[Tensor] = (), optimizers: Sequence[torch.optim.Optimizer] = ()
    ) -> None:
        self.state: dict[Tensor, dict[str, Tensor]] = defaultdict(dict)
        self.without_decay, self.optimizers = frozenset(without_decay), tuple(optimizers)


def save_state(
    model: torch.nn.Module,
    moments: Moments,
    run: RunDir | None,
    step: int,
    world: ProcessGroup | None = None,
    milestones: Collection[int] = (),
) -> None:
    world = world or ProcessGroup()
    names = dict(model.named_parameters())
    copies = world.size > 1 and not any(hasattr(parameter, "full_tensor") for parameter in names.values())
    weights = _gathered(tensors_of(model), world)
    if copies and not world.agree(_sum_of_bits(weights)):
        rule = "the machines are of different types, or one is faulty; train on equal machines"
        raise ResourceError(f"step {step}: the processes have different weights; {rule}")
    numbers: dict[str, Any] = {}
    if moments.optimizers:
        held, numbers = _held_by(model, moments)
    else:
        held = {
            f"{m}.{name}": moments.state[p].get(m, torch.zeros_like(p))  # zeros if no gradient has reached it
            for name, p in names.items()
            for m in ("exp_avg", "exp_avg_sq")
        }
    held, state = _gathered(held, world), {"optimizer": numbers} if numbers else {}
    if run is not None:
        run.save_checkpoint(step, {"model": weights, "optimiser": held}, state, milestones=milestones)


def restore_weights(
    model: torch.nn.Module, run: RunDir | None, world: ProcessGroup | None = None, *, adamw: bool = True
) -> "Restored":
    world = world or ProcessGroup()
    found = run.load_checkpoint() if run is not None else None
    tensors: dict[str, torch.Tensor] = {}
    if run is not None and found is None:
        run.metrics.truncate(0)
    elif run is not None and found is not None:
        load_weights(model, found[1].get("model", {}))
        tensors = _renamed(model, found[1].get("optimiser", {}))
        if adamw:
            _check_names_and_shapes("optimiser.safetensors", _moments(model), tensors)
        run.metrics.truncate(found[2]["journal_length"])
    step = world.share(0 if found is None else found[0])
    if step and world.size > 1:
        shared = {name: world.share_tensor(tensor) for name, tensor in tensors_of(model).items()}
        model.load_state_dict(model.state_dict() | shared)
        kinds = {name: [list(one.shape), str(one.dtype).removeprefix("torch.")] for name, one in tensors.items()}
        empty = {
            name: torch.empty(shape, dtype=getattr(torch, kind)) for name, (shape, kind) in world.share(kinds).items()
        }
        tensors = {name: world.share_tensor(tensors.get(name, one)) for name, one in empty.items()}
    return Restored(step, tensors, world.share({} if found is None else found[2].get("optimizer", {})))


@dataclass(frozen=True, repr=False)
class Restored(Shown):
    """A restored training state.

    Attributes:
        step: Number of steps taken; 0 for a new run.
        moments: AdamW moments by parameter, or the tensors of other optimisers; empty for a new run.
        numbers: Plain numbers in the state of other optimisers.
    """

    step: int
    moments: dict[str, torch.Tensor]
    numbers: dict[str, Any] = field(default_factory=dict)

    def into(self, model: torch.nn.Module, moments: Moments) -> None:
        if not self.step:
            return
        if moments.optimizers:
            return _restore(model, moments, self.moments, self.numbers)
        for name, parameter in model.named_parameters():
            moments.state[parameter] = {
                "step": torch.tensor(float(self.step), device=parameter.device),
                "exp_avg": copied_to(parameter, self.moments[f"exp_avg.{name}"]),
                "exp_avg_sq": copied_to(parameter, self.moments[f"exp_avg_sq.{name}"]),
            }


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the full tensor of a possibly sharded tensor; all processes must call this function."""
    full: Any = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def local(tensor: torch.Tensor) -> torch.Tensor:
    part: Any = getattr(tensor, "to_local", None)
    return tensor if part is None else part()


def _gathered(tensors: Mapping[str, torch.Tensor], world: ProcessGroup) -> dict[str, torch.Tensor]:
    held = {}
    for name, tensor in tensors.items():
        full = whole(tensor)
        if full is tensor:
            held[name] = tensor
        elif world.leader:
            held[name] = full.cpu()
    return held


def copied_to(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    value = value.to(parameter.device)
    if not hasattr(parameter, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = parameter
    return distribute_tensor(value, sharded.device_mesh, sharded.placements)


def _held_by(model: torch.nn.Module, moments: Moments) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    names: dict[torch.Tensor, str] = {p: name for name, p in model.named_parameters()}
    tensors, numbers = {}, {}
    for number, optimizer in enumerate(moments.optimizers):
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{key}.{names[parameter]}"] = value
                elif isinstance(value, bool | int | float):
                    numbers[f"{key}.{names[parameter]}"] = value
                elif value is not None:
                    name = f"{type(optimizer).__name__} has {key} = {shown(value)}"
                    raise InputError(f"optimizer: {name}, which a checkpoint cannot store; use another optimizer")
        for index, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                if isinstance(value, bool | int | float) and key not in ("lr", "initial_lr"):
                    numbers[f"{number}.{index}.{key}"] = value
    return tensors, numbers


def _restore(
    model: torch.nn.Module, moments: Moments, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, Any]
) -> None:
    parameters = dict(model.named_parameters())
    owners = {p: one for one in moments.optimizers for group in one.param_groups for p in group["params"]}
    for path, value in {**tensors, **numbers}.items():
        key, _, name = path.partition(".")
        if key.isdecimal():
            index, _, key = name.partition(".")
            moments.optimizers[int(path.partition(".")[0])].param_groups[int(index)][key] = value
            continue
        parameter = parameters.get(name)
        if parameter is None or parameter not in owners:
            raise DamagedError(f"optimiser.safetensors: {path} belongs to no parameter of the optimizer")
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.ndim:
            value = copied_to(parameter, value)
        elif isinstance(value, torch.Tensor):
            group = owners[parameter].param_groups[0]
            there = value.ndim or group.get("capturable") or group.get("fused")
            value = value.to(parameter.device) if there else value.clone()
        owners[parameter].state[parameter][key] = value


def _moments(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {f"{m}.{name}": p for name, p in model.named_parameters() for m in ("exp_avg", "exp_avg_sq")}


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}


def load_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor], *, strict: bool = True) -> None:
    own = tensors_of(model)
    names = matched(own, weights) or {}
    weights = {name: weights[other] for name, other in names.items()} or weights
    if isinstance(model, UserModule):
        _check_same_module(own, weights, strict)
    else:
        _check_names_and_shapes("model.safetensors", own, weights)
    parts = {name: copied_to(own[name], weights[name]) for name in own if hasattr(own[name], "full_tensor")}
    model.load_state_dict(model.state_dict() | weights | parts)


def _check_same_module(own: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor], strict: bool) -> None:
    for name in dict.fromkeys([*own, *found]):
        short = name.removeprefix("module.")
        if name not in found or name not in own:
            owner, other = ("this module", "the run's module") if name in own else ("the run's module", "this module")
            raise InputError(f"model: only {owner} has the tensor {short!r}, not {other}; pass the run's module")
        if own[name].shape != found[name].shape:
            sizes = f"{tuple(own[name].shape)} here, but {tuple(found[name].shape)} in the run"
            raise InputError(f"model: tensor {short!r} has shape {sizes}; pass the run's module")
        if strict and own[name].dtype != found[name].dtype:
            here, there = (str(one.dtype).removeprefix("torch.") for one in (own[name], found[name]))
            raise InputError(
                f"model: {short!r} is {here} here, {there} in the run; pass that dtype, or load_run(..., strict=False)"
            )


def _renamed(model: torch.nn.Module, moments: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    parameters = [name for name, _ in model.named_parameters()]
    found = {name: value for name, value in moments.items() if "." not in name}  # unknown
    for kind in dict.fromkeys(name.partition(".")[0] for name in moments if "." in name):
        held = {name.partition(".")[2]: value for name, value in moments.items() if name.startswith(f"{kind}.")}
        names = matched(parameters, held) or {name: name for name in held}
        found |= {f"{kind}.{name}": held[other] for name, other in names.items()}
    return found


def _sum_of_bits(tensors: Mapping[str, torch.Tensor]) -> int:
    total = 0
    for tensor in tensors.values():
        bits = tensor.detach().contiguous().view(torch.uint8).view(-1)
        size = 8 if len(bits) % 8 == 0 else 4 if len(bits) % 4 == 0 else 1
        total += int(bits.view({8: torch.int64, 4: torch.int32, 1: torch.uint8}[size]).sum(dtype=torch.int64))
    return total % 2**62


def _check_names_and_shapes(file: str, own: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> None:
    for name in [*own, *found]:
        if name not in found or name not in own or own[name].shape != found[name].shape:
            raise DamagedError(f"{file}: {name} is missing, unknown or has another shape than in the config")


def resolve_device(
    device: Literal["auto", "cpu", "cuda"], engine: Literal["auto", "compiled", "torch"] = "auto"
) -> Literal["cpu", "cuda"]:
    """Return "cpu" or "cuda"; raise ResourceError if "cuda" is requested but absent."""
    if device == "auto" and engine == "compiled":
        return "cpu"
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ResourceError("training.device: cuda was requested but no CUDA device is present; use cpu or auto")
    if device == "auto":
        return "cuda" if available else "cpu"
    return device


def move(batch: Batch, device: torch.device) -> Batch:
    components = None if batch.components is None else batch.components.to(device)
    return Batch(batch.tokens.to(device), batch.observations.to(device), batch.states.to(device), components)
