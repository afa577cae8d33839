"""Trackers: told the numbers of the metrics, and never in the way."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.runs.training import train
from hmmscope.training.trackers import FailSafeTracker, make_tracker


class Told(ModuleType):
    """A module like wandb that remembers its calls."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple] = []

    def init(self, **options: Any) -> None:
        self.calls.append(("init", options))

    def log(self, record: dict, step: int) -> None:
        self.calls.append(("log", step, record))

    def finish(self) -> None:
        self.calls.append(("finish",))


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_hosted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Told(name)
    monkeypatch.setitem(sys.modules, name, module)
    tracker = FailSafeTracker(make_tracker(name, Path("runs/first"), {"seed": 3}))
    tracker.log({"step": 7, "loss": 0.5, "learning_rate": 1})
    tracker.close()
    assert module.calls == [
        ("init", {"project": "hmmscope", "name": "first", "config": {"seed": 3}}),
        ("log", 7, {"loss": 0.5, "learning_rate": 1.0}),
        ("finish",),
    ]


def test_a_tracker_that_is_not_there_is_refused_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    for name, said in (("wandb", "is not installed; pip install wandb"), ("wandbb", "did you mean 'wandb'")):
        with pytest.raises(InputError, match=said):
            train(
                hs.make_process("mess3"),
                tmp_path / "run",
                model="rnn",
                length=4,
                num_steps=1,
                options=hs.TrainOptions(tracker=name),
            )
    assert list(tmp_path.iterdir()) == []


def test_tensorboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []

    class Writer:
        def __init__(self, folder: str) -> None:
            calls.append(folder)

        def add_scalar(self, *args: Any) -> None:
            calls.append(args)

        def close(self) -> None:
            calls.append("closed")

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    tracker = FailSafeTracker(make_tracker("tensorboard", tmp_path, {}))
    tracker.log({"step": 1, "loss": 2.0})
    tracker.close()
    assert calls == [str(tmp_path / "tensorboard"), ("loss", 2.0, 1), "closed"]


def test_unknown_and_missing_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"tracker: .*did you mean 'wandb'"):
        make_tracker("wand", Path("x"), {})
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match="tracker: wandb is not installed; pip install wandb"):
        make_tracker("wandb", Path("x"), {})


def test_a_failing_tracker_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Told("wandb")
    monkeypatch.setitem(sys.modules, "wandb", module)
    tracker = FailSafeTracker(make_tracker("wandb", Path("x"), {}))
    monkeypatch.setattr(module, "log", lambda *args, **options: 1 / 0)
    with pytest.warns(UserWarning, match="tracker: ZeroDivisionError: division by zero; training continues"):
        tracker.log({"step": 1, "loss": 1.0})
    tracker.log({"step": 2, "loss": 1.0})
    tracker.close()
    assert [call[0] for call in module.calls] == ["init"]


def test_without_a_tracker() -> None:
    tracker = FailSafeTracker(None)
    tracker.log({"step": 1, "loss": 1.0})
    tracker.close()
