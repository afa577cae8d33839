"""Optional experiment trackers: TensorBoard, Weights & Biases, trackio."""

import importlib
import warnings
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hmmscope.errors import InputError
from hmmscope.schema import require_known

#: Package to install for each name.
TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}


@runtime_checkable
class Tracker(Protocol):
    """Interface of a tracker, which receives the metrics of each step."""

    def log(self, step: int, record: dict[str, float]) -> None: ...

    def close(self) -> None: ...


def make_tracker(name: str, run_folder: Path, config: dict[str, Any]) -> Tracker:
    module = tracker_module(name)
    if name == "tensorboard":
        return _TensorBoard(module, run_folder / "tensorboard")
    return _Hosted(module, run_folder.name, config)


def tracker_module(name: str) -> Any:
    require_known("tracker", name, TRACKERS)
    try:
        return importlib.import_module("torch.utils.tensorboard" if name == "tensorboard" else name)
    except ImportError:
        raise InputError(f"tracker: {name} is not installed; pip install {TRACKERS[name]}") from None


class _TensorBoard:
    def __init__(self, module: Any, folder: Path) -> None:
        self._writer = module.SummaryWriter(str(folder))

    def log(self, step: int, record: dict[str, float]) -> None:
        for key, value in record.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        self._writer.close()


class _Hosted:
    def __init__(self, module: Any, name: str, config: dict[str, Any]) -> None:
        self._module = module
        module.init(project="hmmscope", name=name, config=config)

    def log(self, step: int, record: dict[str, float]) -> None:
        self._module.log(record, step=step)

    def close(self) -> None:
        self._module.finish()


class FailSafeTracker:
    """A tracker that warns at its first failure and then stops, without stopping the training."""

    def __init__(self, tracker: Tracker | None) -> None:
        self._tracker = tracker

    def log(self, record: dict[str, Any]) -> None:
        numbers = {
            key: float(value) for key, value in record.items() if key != "step" and isinstance(value, int | float)
        }
        self._call("log", int(record["step"]), numbers)

    def close(self) -> None:
        self._call("close")

    def _call(self, what: str, *args: Any) -> None:
        if self._tracker is None:
            return
        try:
            getattr(self._tracker, what)(*args)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            warnings.warn(f"tracker: {type(error).__name__}: {reason}; training continues untracked", stacklevel=2)
            self._tracker = None
