"""A task: work that is known by a folder and a name, whose files appear whole, and what came of attempts at it.

A worker is told the kind of a task, its folder and its name, and reads the rest from the folder. What is done is seen in
the files alone. The locks are the kernel's, which end with the process that holds them; what no process holds any more was
left by a killed one.

    OUT/logs/NAME.log            what the processes said that were at work on it
    OUT/failures/NAME.json       why it failed, after how many attempts
"""

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from hmmscope.errors import DamagedError, FullDiskError, code_and_line
from hmmscope.storage import disk, store
from hmmscope.training.signals import Interrupted

#: Exit code of a worker whose task another process is at work on.
BUSY = 75
#: Exit codes of which another attempt would end in the same way: bad input, refused, damaged, non-finite numbers.
_FINAL = {2, 3, 4, 6}
_STOPPED = {130, 143, -signal.SIGINT, -signal.SIGTERM}
#: Seconds that a worker has to finish its step and save, when it is told to stop.
GRACE = 30.0

State = Literal["done", "failed", "running", "partial", "waiting"]


class TaskLocked(Exception):
    """Another process is at work on the task."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a task ended.

    Attributes:
        name: of the task.
        exit_code: of the worker; negative for the signal that ended it.
        reason: in a line; empty if it is done.
    """

    name: str
    exit_code: int
    reason: str

    @property
    def kind(self) -> Literal["done", "busy", "stopped", "failed"]:
        """Done; another process has the task; told to stop (its work is saved); or anything else."""
        if self.exit_code == 0 and not self.reason:
            return "done"
        if self.exit_code == BUSY:
            return "busy"
        return "stopped" if self.exit_code in _STOPPED else "failed"

    @property
    def final(self) -> bool:
        """Whether another attempt would fail in the same way."""
        return self.exit_code in _FINAL


@dataclass(frozen=True)
class Task(ABC):
    """A piece of work.

    Attributes:
        out: the folder that it belongs to.
        name: of it there, which can name a file.
    """

    kind: ClassVar[str]

    out: Path
    name: str

    @abstractmethod
    def is_done(self) -> bool:
        """Whether its files are there."""

    @abstractmethod
    def do(self, *, quiet: bool = True) -> None:
        """Do it, from where an earlier attempt saved it.

        Raises:
            Busy: another process is at work on it.
            HmmscopeError: why it failed.
        """

    def prepare(self) -> None:  # noqa: B027 - most tasks have nothing to prepare
        """What tasks like this one would each do for themselves, once for all that are forked from this process."""

    def in_use(self) -> bool:
        """Whether a process is at work on it."""
        return False

    def is_begun(self) -> bool:
        """Whether an attempt has left something."""
        return False

    def saved(self) -> int:
        """How far its saved work is; a number that grows."""
        return 0

    def heartbeat(self, silent: float | None = None) -> "Heartbeat":
        """How far it is, how long ago it was last seen to change, and where it runs.

        Who has watched it says how long it has been `silent`, see `StallTimer`; else the clock of its files says so.
        """
        if silent is None:
            silent = time.time() - max((changed for changed, _ in self.signs()), default=0) / 1e9
        return Heartbeat(None, silent, "")

    def growing(self) -> Sequence[Path]:
        """Files that change while it is at work, besides its log."""
        return ()

    def signs(self) -> list[tuple[int, int]]:
        """When the files that grow changed, as their file system says (ns), and their sizes."""
        found = []
        for path in (*self.growing(), self.log):
            with suppress(OSError):
                about = path.stat()
                found.append((about.st_mtime_ns, about.st_size))
        return found

    @property
    def log(self) -> Path:
        """What its workers print."""
        return self.out / "logs" / f"{self.name}.log"

    @property
    def failure_path(self) -> Path:
        """The record of its failure."""
        return self.out / "failures" / f"{self.name}.json"

    @classmethod
    def read(cls, **given: str) -> "Task":
        """The task of which `given` says all."""
        return cls(Path(given["out"]), given["name"])

    def given(self) -> dict[str, str]:
        """What `read` makes it of, on this machine or on another one where paths mean the same."""
        return {"out": str(self.out), "name": self.name}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(self.read, **self.given()), ()

    def __str__(self) -> str:
        return self.name

    def write_failure(self, outcome: Outcome, attempts: int) -> None:
        """Record why it failed: ``reason``, ``exit_code`` (negative: a signal) and ``attempts``."""
        if not os.path.isdir(self.failure_path.parent):
            store.make_folder(self.failure_path.parent)
        record = {"reason": outcome.reason, "exit_code": outcome.exit_code, "attempts": attempts}
        store.write_json(self.failure_path, record)

    def clear_failure(self) -> None:
        """Forget why it failed, since it is tried again."""
        with suppress(FileNotFoundError):
            disk.unlink(self.failure_path)

    def failure(self) -> dict | None:
        """The record of `write_failure`, or None."""
        if not os.path.lexists(self.failure_path):
            return None
        record = store.read_json(self.failure_path, managed=True)
        if not isinstance(record, dict) or record.keys() != {"reason", "exit_code", "attempts"}:
            raise DamagedError(f"{self.failure_path}: not the record of a failure")
        return record

    def state(self) -> State:
        """Where it is, read off its files and its lock."""
        if self.is_done():
            return "done"
        if self.in_use():
            return "running"
        if self.failure() is not None:
            return "failed"
        return "partial" if self.is_begun() else "waiting"

    def outcome(self, code: int, reason: str) -> Outcome:
        """The end of a worker as that of its task, which is done if the worker had finished it."""
        return Outcome(self.name, 0, "") if self.is_done() else Outcome(self.name, code, reason)


def attempt(task: Task, quiet: bool) -> Outcome:
    """Do a task in this process.

    Raises:
        Interrupted, FullDiskError: no other task would go better.
    """
    try:
        task.do(quiet=quiet)
        return Outcome(task.name, 0, "")
    except TaskLocked as error:
        return Outcome(task.name, BUSY, str(error))
    except FullDiskError as error:
        raise FullDiskError(f"{task}: {error}") from error
    except Interrupted:
        raise
    except Exception as error:
        code, line = code_and_line(error)
        return Outcome(task.name, code, f"error[{code}] {line}")


@dataclass(frozen=True)
class Heartbeat:
    """What a task at work last said: ``step 120, 35 s ago, process 123 on host``."""

    step: int | None
    age: float
    process: str

    def __str__(self) -> str:
        step = "no step yet" if self.step is None else f"step {self.step}"
        return ", ".join(
            [step, f"{max(0, round(self.age))} s ago", *([f"process {self.process}"] * bool(self.process))]
        )


class StallTimer:
    """How long nothing of a task has been seen to change.

    It is counted by a clock that nobody sets, from the last look that saw a change: neither a wall clock that jumps nor the
    clock of another machine, which dates the files, makes a task silent.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._seen, self._since = task.signs(), time.monotonic()

    def silent(self) -> float:
        """Seconds, after a look."""
        if (seen := self._task.signs()) != self._seen:
            self._seen, self._since = seen, time.monotonic()
        return time.monotonic() - self._since
