"""Loop over tasks: submit waiting tasks, retry failed tasks, and wait for tasks that other processes run."""

import shutil
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from hmmscope.errors import FullDiskError, ResourceError
from hmmscope.lab.tasks.task import Heartbeat, Outcome, StallTimer, Task, attempt
from hmmscope.schema import require
from hmmscope.training.signals import Interrupted, deferred_signals

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_ELSEWHERE = 1.0
_SECONDS_BETWEEN_BEATS = 5.0
#: Free bytes below which the disk counts as full, because neither a retry nor a record of the failure would fit.
_FULL = 1 << 20


class Executor(Protocol):
    """Interface of executors of tasks."""

    @property
    def active(self) -> int:
        """Return the number of submitted tasks that have not finished."""

    @property
    def free(self) -> int:
        """Return how many more tasks may be submitted now."""

    def submit(self, tasks: Sequence[Task]) -> None:
        """Start or queue tasks."""

    def finished(self) -> list[Outcome]:
        """Return the outcomes of tasks that ended since the last call."""

    def stop(self) -> None:
        """Ask all workers to save and stop, and wait until they have ended."""


class InProcessExecutor:
    """Executor that runs tasks in this process, one after the other."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._outcomes: list[Outcome] = []

    @property
    def active(self) -> int:
        return len(self._outcomes)

    @property
    def free(self) -> int:
        return 1 - len(self._outcomes)

    def submit(self, tasks: Sequence[Task]) -> None:
        self._outcomes += [attempt(task, self._quiet) for task in tasks]

    def finished(self) -> list[Outcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def stop(self) -> None:
        """Do nothing."""


class ProgressListener:
    """Interface for objects that show the progress of tasks, such as `table.Board`."""

    def update(self, counts: dict[str, int]) -> None:
        """Receive the numbers of done, running, failed and waiting tasks."""

    def done(self, name: str) -> None:
        """Receive the name of a completed task."""

    def failed(self, outcome: Outcome, attempts: int, again: bool) -> None:
        """Receive the outcome of a failed attempt; `again` is true if the task will be retried."""

    def at_work(self, beats: dict[str, Heartbeat]) -> None:
        """Receive the progress of running tasks from time to time."""


def do_tasks(
    tasks: Sequence[Task], executor: Executor, *, retries: int, watcher: ProgressListener | None = None
) -> None:
    require(0 <= retries <= 1000, "retries", "must be in [0, 1000]", retries)
    try:
        signals: AbstractContextManager[Sequence[int]]
        signals = nullcontext(()) if isinstance(executor, InProcessExecutor) else deferred_signals()
        with signals as received:
            _Loop(tasks, executor, retries, watcher or ProgressListener()).run(received)
    finally:
        executor.stop()


class _Loop:
    def __init__(self, tasks: Sequence[Task], executor: Executor, retries: int, watcher: ProgressListener) -> None:
        self._tasks = {task.name: task for task in tasks}
        self._executor, self._retries, self._watcher = executor, retries, watcher
        self._waiting = [task for task in tasks if not task.is_done()]
        self._elsewhere: list[Task] = []
        self._begun: set[str] = set()
        self._failed: set[str] = set()
        self._attempts: Counter[str] = Counter()
        self._saved = {task.name: task.saved() for task in self._waiting}
        self._looked, self._listened = 0.0, time.monotonic()
        self._watches: dict[str, StallTimer] = {}
        for task in self._waiting:
            task.clear_failure()

    def run(self, received: Sequence[int]) -> None:
        while self._waiting or self._elsewhere or self._executor.active:
            if received:
                self._executor.stop()
                name, out = signal.Signals(received[0]).name, next(iter(self._tasks.values())).out
                raise Interrupted(f"{out}: stopped by the signal {name}; repeat the command to resume", received[0])
            for outcome in self._executor.finished():
                self._take(self._tasks[outcome.name], outcome)
            self._look_elsewhere()
            begun = self._submit()
            self._tell()
            if not begun:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        self._tell()

    def _submit(self) -> bool:
        free = self._executor.free if self._waiting else 0
        chosen: list[Task] = []
        while self._waiting and len(chosen) < free:
            task = self._waiting.pop(0)
            if self._is_ours(task):
                chosen.append(task)
        if chosen:
            self._begun |= {task.name for task in chosen}
            self._executor.submit(chosen)
        return bool(chosen)

    def _is_ours(self, task: Task) -> bool:
        if task.is_done():
            self._watcher.done(task.name)
        elif task.in_use():
            self._elsewhere.append(task)
        else:
            return True
        return False

    def _take(self, task: Task, outcome: Outcome) -> None:
        name = task.name
        self._begun.discard(name)
        if outcome.kind == "done":
            self._watcher.done(name)
        elif outcome.kind == "busy":
            self._elsewhere.append(task)
        elif not outcome.final and task.saved() > self._saved[name]:  # it made progress
            self._saved[name] = task.saved()
            self._waiting.append(task)
        else:
            if outcome.exit_code == ResourceError.exit_code and shutil.disk_usage(task.out).free < _FULL:
                raise FullDiskError(
                    f"{task.out}: the disk is full ({outcome.reason}); free space and repeat the command to resume"
                )
            self._attempts[name] += 1
            again = not outcome.final and self._attempts[name] <= self._retries
            if again:
                self._waiting.append(task)
            else:
                self._failed.add(name)
                task.write_failure(outcome, self._attempts[name])
            self._watcher.failed(outcome, self._attempts[name], again)

    def _look_elsewhere(self) -> None:
        if not self._elsewhere or time.monotonic() - self._looked < _SECONDS_ELSEWHERE:
            return
        self._looked = time.monotonic()
        seen, self._elsewhere = self._elsewhere, []
        self._waiting += [task for task in seen if self._is_ours(task)]

    def _tell(self) -> None:
        running = self._executor.active + len(self._elsewhere)
        waiting, failed = len(self._waiting), len(self._failed)
        done = len(self._tasks) - running - waiting - failed
        self._watcher.update({"done": done, "running": running, "failed": failed, "waiting": waiting})
        if time.monotonic() - self._listened > _SECONDS_BETWEEN_BEATS:
            self._listened = time.monotonic()
            names = sorted([*self._begun, *(task.name for task in self._elsewhere)])
            at_work = [self._tasks[name] for name in names if self._tasks[name].in_use()]
            self._watches = {task.name: self._watches.get(task.name) or StallTimer(task) for task in at_work}
            self._watcher.at_work({task.name: task.heartbeat(self._watches[task.name].silent()) for task in at_work})
