"""One run of a sweep in a process of its own, what came of it, and where it is. All engines share this.

A `worker` is told a folder and a name, and reads the rest from grid.json: no object travels. The locks are the kernel's,
which end with the process that holds them; what no process of the sweep holds any more was left by a killed one.
"""

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hmmscope.errors import DamagedError, HmmscopeError
from hmmscope.storage import disk, store
from hmmscope.storage.rundir import RunDir

#: Exit code of a worker whose run another process is at work on.
BUSY = 75
#: Exit codes of which another attempt would end in the same way: bad input, refused, damaged, non-finite numbers.
_FINAL = {2, 3, 4, 6}
_STOPPED = {130, 143, -signal.SIGINT, -signal.SIGTERM}
#: Seconds that a worker has to finish its step and save, when it is told to stop.
GRACE = 30.0
LOG_TAIL = 1 << 16

State = Literal["done", "failed", "running", "partial", "waiting"]


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a run ended.

    Attributes:
        name: of the run.
        exit_code: of the worker; negative for the signal that ended it.
        reason: in a line; empty if it is done.
    """

    name: str
    exit_code: int
    reason: str

    @property
    def kind(self) -> Literal["done", "busy", "stopped", "failed"]:
        """Done; another process has the run; told to stop (its work is saved); or anything else."""
        if self.exit_code == 0 and not self.reason:
            return "done"
        if self.exit_code == BUSY:
            return "busy"
        return "stopped" if self.exit_code in _STOPPED else "failed"

    @property
    def final(self) -> bool:
        """Whether another attempt would fail in the same way."""
        return self.exit_code in _FINAL


# ---------------------------------------------------------------------------------------------------------------------
# What the folder says


def run_folder(out: Path, name: str) -> Path:
    """The run folder, as `hmmscope.runs.training.train` writes it."""
    return out / "runs" / name


def is_done(out: Path, name: str) -> bool:
    """Whether the run is complete."""
    return os.path.lexists(run_folder(out, name) / "done.json")


def in_use(out: Path, name: str) -> bool:
    """Whether a process holds the run's lock. (It looks by a shared lock of an instant: who is refused the lock because of
    it is `BUSY`, and tried again.)"""
    path = run_folder(out, name) / "lock"
    if not os.path.lexists(path):
        return False
    with disk.reading(path, own=True) as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def taking_part(out: Path) -> Iterator[None]:
    """Hold the shared lock of a sweep, as all its processes do. Whoever comes alone removes what killed ones left."""
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


def newest_step(out: Path, name: str) -> int:
    """Step of the newest checkpoint; 0 if there is none."""
    with suppress(OSError, HmmscopeError):
        return max(RunDir(run_folder(out, name), {}).checkpoint_steps(), default=0)
    return 0


@dataclass(frozen=True)
class Heartbeat:
    """What a run at work last said: ``step 120, 35 s ago, process 123 on host``."""

    step: int | None
    age: float
    process: str

    def __str__(self) -> str:
        step = "no step yet" if self.step is None else f"step {self.step}"
        return ", ".join(
            [step, f"{max(0, round(self.age))} s ago", *([f"process {self.process}"] * bool(self.process))]
        )


def heartbeat(out: Path, name: str, silent: float | None = None) -> Heartbeat:
    """How far a run at work is, how long ago it was last seen to change, and where it runs.

    Who has watched it says how long it has been `silent`, see `Watch`; else the clock of its files says so.
    """
    folder, step, process = run_folder(out, name), None, ""
    unknown = suppress(OSError, HmmscopeError, LookupError, ValueError, TypeError)
    with unknown, disk.reading(folder / "metrics.jsonl", own=True) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL))
        step = int(json.loads(file.read(LOG_TAIL).splitlines()[-1])["step"])
    with suppress(HmmscopeError):
        process = disk.read_bytes(folder / "lock", own=True, limit=1000).decode(errors="replace").strip()
    if silent is None:
        silent = time.time() - max((changed for changed, _ in _signs(out, name)), default=0) / 1e9
    return Heartbeat(step, silent, process)


class Watch:
    """How long nothing of a run has been seen to change.

    It is counted by a clock that nobody sets, from the last look that saw a change: neither a wall clock that jumps nor the
    clock of another machine, which dates the files, makes a run silent.
    """

    def __init__(self, out: Path, name: str) -> None:
        self._out, self._name = out, name
        self._seen, self._since = _signs(out, name), time.monotonic()

    def silent(self) -> float:
        """Seconds, after a look."""
        if (seen := _signs(self._out, self._name)) != self._seen:
            self._seen, self._since = seen, time.monotonic()
        return time.monotonic() - self._since


def _signs(out: Path, name: str) -> list[tuple[int, int]]:
    """When the journal, the lock and the log of a run changed, as their file system says (ns), and their sizes."""
    found = []
    for path in (run_folder(out, name) / "metrics.jsonl", run_folder(out, name) / "lock", out / "logs" / f"{name}.log"):
        with suppress(OSError):
            about = path.stat()
            found.append((about.st_mtime_ns, about.st_size))
    return found


def failure_path(out: Path, name: str) -> Path:
    """Where the record of a failed run is; beside the run folders, since a run may fail before it has one."""
    return out / "failures" / f"{name}.json"


def write_failure(out: Path, outcome: Outcome, attempts: int) -> None:
    """Record why a run failed: ``reason``, ``exit_code`` (negative: a signal) and ``attempts``."""
    if not os.path.isdir(out / "failures"):
        store.make_folder(out / "failures")
    record = {"reason": outcome.reason, "exit_code": outcome.exit_code, "attempts": attempts}
    store.write_json(failure_path(out, outcome.name), record)


def clear_failure(out: Path, name: str) -> None:
    """Forget why a run failed, since it is tried again."""
    with suppress(FileNotFoundError):
        disk.unlink(failure_path(out, name))


def failure_of(out: Path, name: str) -> dict | None:
    """The record of `write_failure`, or None."""
    path = failure_path(out, name)
    if not os.path.lexists(path):
        return None
    record = store.read_json(path, own=True)
    if not isinstance(record, dict) or record.keys() != {"reason", "exit_code", "attempts"}:
        raise DamagedError(f"{path}: not the record of a failure")
    return record


def state_of(out: Path, name: str) -> State:
    """Where a run is, read off its folder and its lock."""
    if is_done(out, name):
        return "done"
    if in_use(out, name):
        return "running"
    if failure_of(out, name) is not None:
        return "failed"
    return "partial" if os.path.lexists(run_folder(out, name)) else "waiting"


def outcome_of(out: Path, name: str, code: int, reason: str) -> Outcome:
    """The end of a worker as that of its run, which is done if the worker had finished it."""
    return Outcome(name, 0, "") if is_done(out, name) else Outcome(name, code, reason)
