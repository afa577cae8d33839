"""Tasks: units of work with a folder, a name and atomically written files; and outcomes of attempts.

A worker receives the type, folder and name of a task, and reads the rest from the folder.

    OUT/logs/NAME.log            output of the task's workers
    OUT/failures/NAME.json       reason of the task's failure, and number of attempts
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

#: Exit code of a worker whose task another process is running.
BUSY = 75
#: Exit codes after which a task is not retried: bad input, refused, damaged, non-finite numbers.
_FINAL = {2, 3, 4, 6}
_STOPPED = {130, 143, -signal.SIGINT, -signal.SIGTERM}
#: Seconds that a worker has to finish its step and save after it is asked to stop.
GRACE = 30.0

State = Literal["done", "failed", "running", "partial", "waiting"]


class TaskLocked(Exception):
    """Raised when another process is running the task."""


@dataclass(frozen=True)
class Outcome:
    """The result of an attempt at a task.

    Attributes:
        name: Name of the task.
        exit_code: Exit code of the worker, or minus the number of the signal that ended it.
        reason: Reason of a failure in one line; empty if the task is done.
    """

    name: str
    exit_code: int
    reason: str

    @property
    def kind(self) -> Literal["done", "busy", "stopped", "failed"]:
        """Return "done", "busy" (another process runs the task), "stopped" (saved when asked to stop), or "failed"."""
        if self.exit_code == 0 and not self.reason:
            return "done"
        if self.exit_code == BUSY:
            return "busy"
        return "stopped" if self.exit_code in _STOPPED else "failed"

    @property
    def final(self) -> bool:
        return self.exit_code in _FINAL


@dataclass(frozen=True)
class Task(ABC):
    """A unit of work with files as results.

    Attributes:
        out: Folder that holds the task.
        name: Name of the task in the folder, a valid file name.
    """

    kind: ClassVar[str]

    out: Path
    name: str

    @abstractmethod
    def is_done(self) -> bool:
        """Return whether the task's results exist."""

    @abstractmethod
    def do(self, *, quiet: bool = True) -> None:
        """Run the task; resume from saved work if there is any.

        Raises:
            TaskLocked: Another process runs the task.
            HmmscopeError: The task fails; the message is the reason.
        """

    def prepare(self) -> None:  # noqa: B027 - most tasks have nothing to prepare
        """Do work that similar tasks share, such as compilation, before worker processes are forked."""

    def in_use(self) -> bool:
        return False

    def is_begun(self) -> bool:
        return False

    def saved(self) -> int:
        return 0

    def heartbeat(self, silent: float | None = None) -> "Heartbeat":
        """Return the task's step, the seconds since its files last changed, and the process that runs it.

        `silent` gives the seconds, from a `StallTimer` (default: from the files' modification times).
        """
        if silent is None:
            silent = time.time() - max((changed for changed, _ in self.signs()), default=0) / 1e9
        return Heartbeat(None, silent, "")

    def growing(self) -> Sequence[Path]:
        return ()

    def signs(self) -> list[tuple[int, int]]:
        found = []
        for path in (*self.growing(), self.log):
            with suppress(OSError):
                about = path.stat()
                found.append((about.st_mtime_ns, about.st_size))
        return found

    @property
    def log(self) -> Path:
        return self.out / "logs" / f"{self.name}.log"

    @property
    def failure_path(self) -> Path:
        return self.out / "failures" / f"{self.name}.json"

    @classmethod
    def read(cls, **given: str) -> "Task":
        return cls(Path(given["out"]), given["name"])

    def given(self) -> dict[str, str]:
        return {"out": str(self.out), "name": self.name}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(self.read, **self.given()), ()

    def __str__(self) -> str:
        return self.name

    def write_failure(self, outcome: Outcome, attempts: int) -> None:
        if not os.path.isdir(self.failure_path.parent):
            store.make_folder(self.failure_path.parent)
        record = {"reason": outcome.reason, "exit_code": outcome.exit_code, "attempts": attempts}
        store.write_json(self.failure_path, record)

    def clear_failure(self) -> None:
        with suppress(FileNotFoundError):
            disk.unlink(self.failure_path)

    def failure(self) -> dict | None:
        if not os.path.lexists(self.failure_path):
            return None
        record = store.read_json(self.failure_path, managed=True)
        if not isinstance(record, dict) or record.keys() != {"reason", "exit_code", "attempts"}:
            raise DamagedError(f"{self.failure_path}: not a failure record")
        return record

    def state(self) -> State:
        if self.is_done():
            return "done"
        if self.in_use():
            return "running"
        if self.failure() is not None:
            return "failed"
        return "partial" if self.is_begun() else "waiting"

    def outcome(self, code: int, reason: str) -> Outcome:
        return Outcome(self.name, 0, "") if self.is_done() else Outcome(self.name, code, reason)


def attempt(task: Task, quiet: bool) -> Outcome:
    """Run a task in this process, and return the outcome of the attempt.

    Raises:
        Interrupted, FullDiskError: The work is interrupted, or the disk is full, so other tasks cannot run either.
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
    """The progress of a running task; its text is ``step 120, 35 s ago, process 123 on host``."""

    step: int | None
    age: float
    process: str

    def __str__(self) -> str:
        step = "no step yet" if self.step is None else f"step {self.step}"
        return ", ".join(
            [step, f"{max(0, round(self.age))} s ago", *([f"process {self.process}"] * bool(self.process))]
        )


class StallTimer:
    """Timer of the seconds since a task last changed its files, by a monotonic clock."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._seen, self._since = task.signs(), time.monotonic()

    def silent(self) -> float:
        if (seen := self._task.signs()) != self._seen:
            self._seen, self._since = seen, time.monotonic()
        return time.monotonic() - self._since
