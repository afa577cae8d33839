"""Training of the runs of a sweep as tasks; each point of grid.json becomes a folder OUT/runs/NAME."""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from hmmscope.errors import HmmscopeError, RefusedError
from hmmscope.lab.sweeps.grid import check_run, load_point, load_points
from hmmscope.lab.tasks.task import Heartbeat, Task, TaskLocked
from hmmscope.runs.compile_ahead import warm_up
from hmmscope.runs.config import RunConfig
from hmmscope.runs.training import TrainOptions, train
from hmmscope.storage import disk, store
from hmmscope.storage.rundir import RunDir

_TAIL = 1 << 16
#: Types of models whose kernels this process has compiled.
_WARM: set[type] = set()


@dataclass(frozen=True)
class RunTask(Task):
    """The task of training one run."""

    kind: ClassVar[str] = "run"

    @property
    def folder(self) -> Path:
        return self.out / "runs" / self.name

    def is_done(self) -> bool:
        return os.path.lexists(self.folder / "done.json")

    def is_begun(self) -> bool:
        return os.path.lexists(self.folder)

    def in_use(self) -> bool:
        path = self.folder / "lock"
        if not os.path.lexists(path):
            return False
        with disk.reading(path, managed=True) as file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def saved(self) -> int:
        with suppress(OSError, HmmscopeError):
            return max(RunDir(self.folder, {}).checkpoint_steps(), default=0)
        return 0

    def growing(self) -> Sequence[Path]:
        return (self.folder / "metrics.jsonl", self.folder / "lock")

    def heartbeat(self, silent: float | None = None) -> Heartbeat:
        step, process = None, ""
        unknown = suppress(OSError, HmmscopeError, LookupError, ValueError, TypeError)
        with unknown, disk.reading(self.folder / "metrics.jsonl", managed=True) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            step = int(json.loads(file.read(_TAIL).splitlines()[-1])["step"])
        with suppress(HmmscopeError):
            process = disk.read_bytes(self.folder / "lock", managed=True, limit=1000).decode(errors="replace").strip()
        return replace(super().heartbeat(silent), step=step, process=process)

    def prepare(self) -> None:
        if not torch.cuda.is_available():
            warm_up([load_point(self.out, self.name).config], _WARM)

    def do(self, *, quiet: bool = True) -> None:
        with taking_part(self.out):
            point = load_point(self.out, self.name)
            if self.is_done():
                return
            try:
                begin = shorter(self.out, point.config)
                train(
                    _as_begun(point.config, self.folder),
                    self.folder,
                    resume=True,
                    options=TrainOptions(warm_start=begin, quiet=quiet),
                )
            except RefusedError as error:
                if not _same_run(self.folder, point.config):
                    raise
                raise TaskLocked(str(error)) from error


def shorter(out: Path, config: RunConfig) -> Path | None:
    """For the schedule "wsd", return the longest finished run equal to `config` except for fewer steps; else None."""
    if config.training.schedule != "wsd":
        return None
    found = [
        (steps, RunTask(out, point.name).folder)
        for point in load_points(out)
        if (steps := point.config.training.num_steps) < config.training.num_steps
        and replace(config, training=replace(config.training, num_steps=steps)) == point.config
        and RunTask(out, point.name).is_done()
    ]
    return max(found, default=(0, None))[1]


def _as_begun(config: RunConfig, path: Path) -> RunConfig:
    if not os.path.lexists(path / "config.json"):
        return config
    begun = RunDir.open(path).config.get("training", {})
    device, engine = begun.get("device", config.training.device), begun.get("engine", "torch")
    return replace(config, training=replace(config.training, device=device, engine=engine))


def _same_run(path: Path, config: RunConfig) -> bool:
    with suppress(HmmscopeError):
        check_run(path, config)
        return True
    return False


@contextmanager
def taking_part(out: Path) -> Iterator[None]:
    """Hold a sweep's shared lock; if no other process does, first remove leftovers of killed processes."""
    with disk.writing(out, 0):
        lock = disk.open_own(out / "lock", os.O_RDWR | os.O_CREAT)
    try:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for folder in (out, out / "runs", out / "failures"):
                if folder.is_dir() and not folder.is_symlink():
                    store.remove_leftovers(folder)
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield
    finally:
        os.close(lock)
