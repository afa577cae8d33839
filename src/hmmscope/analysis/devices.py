"""Choice of the device for a measurement."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import nn

from hmmscope.errors import InputError
from hmmscope.models.adapted import parts_of
from hmmscope.schema import check_options, shown

T = TypeVar("T")


def takes_device(function: T) -> T:
    """Add the keyword `device` to an instrument: the device on which the model runs."""
    run = cast("Callable[..., Any]", function)
    own = inspect.signature(run)

    @functools.wraps(run)
    def measure(model: Any, *args: Any, device: Any = None, **options: Any) -> Any:
        check_options(own.parameters, options)
        with on_device(model, device):
            return run(model, *args, **options)

    added = inspect.Parameter("device", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None")
    measure.__signature__ = own.replace(parameters=[*own.parameters.values(), added])  # type: ignore[attr-defined]
    return cast("T", measure)


def about_of(
    model: Any, dataset: Any, num_samples: int | None, *, seed: int | None = None, layers: Any = None
) -> dict[str, Any]:
    length = getattr(getattr(dataset, "layout", None), "num_observations", None)
    weights = model.parameters() if isinstance(model, nn.Module) else iter(())
    found = {
        "length": None if length is None else int(length),
        "samples": num_samples,
        "seed of samples": getattr(dataset, "seed", None),
        "seed": seed,
        "layers": None if layers is None else list(layers),
        "device": str(next((one.device for one in weights), torch.device("cpu"))),
    }
    return {name: value for name, value in found.items() if value is not None}


@contextmanager
def on_device(model: Any, device: Any) -> Iterator[None]:
    if device is None:
        yield
        return
    wanted, module = _device(device), model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not isinstance(module, nn.Module):
        raise InputError(f"device: needs a module or a run to move, got {shown(model)}; load a folder with hs.load_run")
    held = [one for part in parts_of(module) for one in (*part.parameters(False), *part.buffers(False))]
    before = {one.device for one in held}
    if len(before) > 1:
        raise InputError(f"device: must be omitted, because the model is on {len(before)} devices")
    if not before or before == {wanted}:
        yield
        return
    module.to(wanted)
    try:
        yield
    finally:
        module.to(before.pop())


def _device(device: Any) -> torch.device:
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, TypeError, ValueError, OverflowError, AssertionError) as error:
        reason = " ".join(str(error).split())[:100]
        raise InputError(f"device: {shown(device)} is not available here ({reason}); use cpu") from None
    if found.type == "meta":
        raise InputError("device: must be a device that stores values, got 'meta'; use cpu")
    return (
        torch.device(found.type, torch.cuda.current_device()) if found.type == "cuda" and found.index is None else found
    )
