"""The state of a training: weights and AdamW moments, by parameter name, on a device and on disk."""

from collections.abc import Mapping
from typing import Literal

import torch

from hmmscope.corpora.corpus import Batch
from hmmscope.errors import DamagedError, ResourceError
from hmmscope.rundir import RunDir


def save_state(model: torch.nn.Module, optimiser: torch.optim.Optimizer, run: RunDir, step: int) -> None:
    """A checkpoint of weights and AdamW moments."""
    moments = {}
    for name, parameter in model.named_parameters():
        state = optimiser.state[parameter]
        moments[f"exp_avg.{name}"], moments[f"exp_avg_sq.{name}"] = state["exp_avg"], state["exp_avg_sq"]
    run.save_checkpoint(step, {"model": dict(model.state_dict()), "optimiser": moments}, {})


def restore_state(
    model: torch.nn.Module, optimiser: torch.optim.Optimizer, run: RunDir, device: torch.device
) -> int:
    """Load the newest checkpoint, cut the metrics to its length, and return its step; 0 if there is none."""
    found = run.load_checkpoint()
    if found is None:
        run.metrics.truncate(0)
        return 0
    step, tensors, state = found
    load_weights(model, tensors.get("model", {}))
    moments = {f"{m}.{n}": p for n, p in model.named_parameters() for m in ("exp_avg", "exp_avg_sq")}
    _check_names_and_shapes("optimiser.safetensors", moments, tensors.get("optimiser", {}))
    for name, parameter in model.named_parameters():
        optimiser.state[parameter] = {
            "step": torch.tensor(float(step), device=device),
            "exp_avg": tensors["optimiser"][f"exp_avg.{name}"].to(device),
            "exp_avg_sq": tensors["optimiser"][f"exp_avg_sq.{name}"].to(device),
        }
    run.metrics.truncate(state["journal_length"])
    return step


def load_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Copy weights by name; a missing, surplus or wrongly shaped one is a DamagedError that names it."""
    _check_names_and_shapes("model.safetensors", model.state_dict(), weights)
    model.load_state_dict(weights)


def _check_names_and_shapes(file: str, own: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> None:
    for name in [*own, *found]:
        if name not in found or name not in own or own[name].shape != found[name].shape:
            raise DamagedError(f"{file}: {name} is missing, unknown or of another shape than the config says")


def resolve_device(device: Literal["auto", "cpu", "cuda"]) -> Literal["cpu", "cuda"]:
    """ "auto" as cuda where there is one; ResourceError if cuda is asked for and absent."""
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
