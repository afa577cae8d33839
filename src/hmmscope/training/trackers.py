"""Experiment trackers behind one interface: TensorBoard, Weights & Biases, trackio. Off unless asked for.

A tracker is told what the run folder's metrics.jsonl holds anyway; it is no part of a run's configuration, and a run
gives the same bits with and without one.
"""

import importlib
import warnings
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hmmscope.errors import InputError
from hmmscope.schema import unknown_name

#: Name, and what to install for it.
TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}


@runtime_checkable
class Tracker(Protocol):
    """Takes the numbers of each step."""

    def log(self, step: int, record: dict[str, float]) -> None: ...

    def close(self) -> None: ...


def make_tracker(name: str, run_folder: Path, config: dict[str, Any]) -> Tracker:
    """The tracker called `name` for a run.

    TensorBoard's files go to ``tensorboard/`` in the run folder; the others store where they are set up to, under the
    project "hmmscope" and the folder's name.

    Raises:
        InputError: an unknown name, or a tracker that is not installed.
    """
    module = tracker_module(name)
    if name == "tensorboard":
        return _TensorBoard(module, run_folder / "tensorboard")
    return _Hosted(module, run_folder.name, config)


def tracker_module(name: str) -> Any:
    """What a tracker is made with; InputError for an unknown name, or if it is not installed."""
    if name not in TRACKERS:
        raise unknown_name("tracker", name, TRACKERS)
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
    """wandb, and trackio, which has the same functions."""

    def __init__(self, module: Any, name: str, config: dict[str, Any]) -> None:
        self._module = module
        module.init(project="hmmscope", name=name, config=config)

    def log(self, step: int, record: dict[str, float]) -> None:
        self._module.log(record, step=step)

    def close(self) -> None:
        self._module.finish()


class FailSafeTracker:
    """A tracker whose failures do not stop the training: the first one is warned about, and it is asked no more."""

    def __init__(self, tracker: Tracker | None) -> None:
        self._tracker = tracker

    def log(self, record: dict[str, Any]) -> None:
        """A record of metrics.jsonl."""
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
            warnings.warn(f"tracker: {type(error).__name__}: {reason}; the training goes on without it", stacklevel=2)
            self._tracker = None
