"""The loop over tasks: what waits is submitted, what fails is tried again, what another process does is waited for.

There is no database. What is done, running or begun is read off the folders, so the work may be killed at any instant,
started again, extended, moved to another executor, or shared by several machines.
"""

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
#: With fewer bytes free a disk is full: another attempt would end in the same way, and so would the record of this one.
_FULL = 1 << 20


class Executor(Protocol):
    """Where tasks are done."""

    @property
    def active(self) -> int:
        """Tasks submitted and not finished."""

    @property
    def free(self) -> int:
        """How many more tasks to submit now."""

    def submit(self, tasks: Sequence[Task]) -> None:
        """Begin these tasks, or queue them."""

    def finished(self) -> list[Outcome]:
        """Outcomes since the last call."""

    def stop(self) -> None:
        """Tell all workers to save and stop, and wait for them."""


class InProcessExecutor:
    """The executor that is this process, one task after the other. A signal ends it as it ends the work itself."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._outcomes: list[Outcome] = []

    @property
    def active(self) -> int:
        """The task whose outcome was not asked for."""
        return len(self._outcomes)

    @property
    def free(self) -> int:
        """One at a time."""
        return 1 - len(self._outcomes)

    def submit(self, tasks: Sequence[Task]) -> None:
        """Do them."""
        self._outcomes += [attempt(task, self._quiet) for task in tasks]

    def finished(self) -> list[Outcome]:
        """Outcomes since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def stop(self) -> None:
        """There is nobody else to tell."""


class ProgressListener:
    """Is told what happens; see `table.Board`."""

    def update(self, counts: dict[str, int]) -> None:
        """How many tasks are done, running, failed, waiting."""

    def done(self, name: str) -> None:
        """A task is complete."""

    def failed(self, outcome: Outcome, attempts: int, again: bool) -> None:
        """An attempt failed; it is tried again or not."""

    def at_work(self, beats: dict[str, Heartbeat]) -> None:
        """What the tasks at work last said, now and then."""


def do_tasks(
    tasks: Sequence[Task], executor: Executor, *, retries: int, watcher: ProgressListener | None = None
) -> None:
    """Do all that is not done, and stop the executor; each that failed has a record of its failure.

    Args:
        tasks: in the order in which they are begun; the names differ.
        executor: where.
        retries: further attempts at a task that failed, in this call. Bad input, damaged files and non-finite numbers are
            not tried again. An attempt that saved new work before it ended does not count.
        watcher: is told what happens.

    Raises:
        FullDiskError: the workers have ended.
        Interrupted: SIGINT or SIGTERM; the workers have saved and ended.
    """
    require(0 <= retries <= 1000, "retries", "must be in [0, 1000]", retries)
    try:
        signals: AbstractContextManager[Sequence[int]]
        signals = nullcontext(()) if isinstance(executor, InProcessExecutor) else deferred_signals()
        with signals as received:
            _Loop(tasks, executor, retries, watcher or ProgressListener()).run(received)
    finally:
        executor.stop()


class _Loop:
    """The state of the loop."""

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
                raise Interrupted(f"{out}: stopped by {name}; the same command goes on", received[0])
            for outcome in self._executor.finished():
                self._take(self._tasks[outcome.name], outcome)
            self._look_elsewhere()
            begun = self._submit()
            self._tell()
            if not begun:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        self._tell()

    def _submit(self) -> bool:
        """Whether something was submitted."""
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
        """Whether a task is to be done; it may be done meanwhile, or be in work elsewhere."""
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
        elif not outcome.final and task.saved() > self._saved[name]:  # it came further than before
            self._saved[name] = task.saved()
            self._waiting.append(task)
        else:
            if outcome.exit_code == ResourceError.exit_code and shutil.disk_usage(task.out).free < _FULL:
                raise FullDiskError(f"{task.out}: the disk is full ({outcome.reason}); the same command goes on")
            self._attempts[name] += 1
            again = not outcome.final and self._attempts[name] <= self._retries
            if again:
                self._waiting.append(task)
            else:
                self._failed.add(name)
                task.write_failure(outcome, self._attempts[name])
            self._watcher.failed(outcome, self._attempts[name], again)

    def _look_elsewhere(self) -> None:
        """Tasks that another process had: done by now, or free again."""
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
