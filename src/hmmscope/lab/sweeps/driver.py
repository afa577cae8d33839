"""The loop of a sweep: what waits is submitted, what fails is tried again, what another process does is waited for.

There is no database. What is done, running or begun is read off the run folders, so a sweep may be killed at any instant,
started again, extended, moved to another engine, or worked on from several machines that share its folder.
"""

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hmmscope.errors import FullDiskError, ResourceError
from hmmscope.lab.sweeps.grid import Point, begin_work, extend_folder, load_points, make_folder
from hmmscope.lab.sweeps.jobs import (
    Heartbeat,
    Outcome,
    Watch,
    clear_failure,
    heartbeat,
    in_use,
    is_done,
    newest_step,
    taking_part,
    write_failure,
)
from hmmscope.lab.sweeps.table import table_rows, write_results
from hmmscope.schema import require
from hmmscope.storage.seals import check_seal
from hmmscope.training.signals import Interrupted, deferred_signals

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_ELSEWHERE = 1.0
_SECONDS_BETWEEN_BEATS = 5.0
#: With fewer bytes free a disk is full: another attempt would end in the same way, and so would the record of this one.
_FULL = 1 << 20


class Engine(Protocol):
    """Where workers run."""

    @property
    def active(self) -> int:
        """Runs submitted and not finished."""

    @property
    def free(self) -> int:
        """How many more runs to submit now."""

    def submit(self, names: Sequence[str]) -> None:
        """Begin these runs, or queue them."""

    def finished(self) -> list[Outcome]:
        """Outcomes since the last call."""

    def stop(self) -> None:
        """Tell all workers to save and stop, and wait for them."""


class Watcher(Protocol):
    """Is told what happens; see `table.Board`."""

    def update(self, counts: dict[str, int]) -> None:
        """How many runs are done, running, failed, waiting."""

    def done(self, name: str) -> None:
        """A run is complete."""

    def failed(self, outcome: Outcome, attempts: int, again: bool) -> None:
        """An attempt failed; it is tried again or not."""

    def at_work(self, beats: dict[str, Heartbeat]) -> None:
        """What the runs at work last said, now and then."""


def run_sweep(
    points: Sequence[Point],
    out: Path,
    engine: Engine,
    *,
    retries: int = 2,
    watcher: Watcher | None = None,
    shared: bool = False,
) -> list[dict]:
    """Train every point of a grid, and write OUT/table.jsonl.

    Args:
        points: of `grid.expand`.
        out: a new folder, or that of the same sweep, or of a part of it.
        engine: where the workers run.
        retries: further attempts at a run that failed, in this call. Bad input, damaged files and non-finite numbers are not
            tried again. An attempt that saved new steps before it ended does not count.
        watcher: is told what happens.
        shared: the folder is a pool of runs of several grids: others stay, and no table is written.

    Returns:
        the rows of the table, see `table.table_rows`; failed runs are among them.

    Raises:
        RefusedError: `out` is something else, or has runs that `points` has not.
        FullDiskError: the workers have ended.
        Interrupted: SIGINT or SIGTERM; the workers have saved and ended.
    """
    require(0 <= retries <= 1000, "retries", "must be in [0, 1000]", retries)
    out = out.absolute()
    if not shared and _is_finished(out, points):
        return table_rows(out, points)
    try:
        make_folder(out, list(points), shared=shared)
        with taking_part(out), deferred_signals() as received:
            extend_folder(out, list(points), shared=shared)
            begin_work(out, points)
            _Sweep([point.name for point in points], out, engine, retries, watcher).run(received)
            write_results(out, shared=shared)
            rows = table_rows(out, points)
    finally:
        engine.stop()
    return rows


def _is_finished(out: Path, points: Sequence[Point]) -> bool:
    """Whether the folder has all these runs, sealed, and cannot be written; there is then nothing to write."""
    if not os.path.lexists(out / "grid.json") or os.access(out, os.W_OK):
        return False
    names = {point.name for point in load_points(out)}
    return check_seal(out) is not None and all(point.name in names and is_done(out, point.name) for point in points)


class _Sweep:
    """The state of the loop."""

    def __init__(self, names: list[str], out: Path, engine: Engine, retries: int, watcher: Watcher | None) -> None:
        self._out, self._engine, self._retries, self._watcher = out, engine, retries, watcher
        self._total = len(names)
        self._waiting = [name for name in names if not is_done(out, name)]
        self._elsewhere: list[str] = []
        self._begun: set[str] = set()
        self._failed: set[str] = set()
        self._attempts: Counter[str] = Counter()
        self._steps = {name: newest_step(out, name) for name in self._waiting}
        self._looked, self._listened = 0.0, time.monotonic()
        self._watches: dict[str, Watch] = {}
        for name in self._waiting:
            clear_failure(out, name)

    def run(self, received: list[int]) -> None:
        while self._waiting or self._elsewhere or self._engine.active:
            if received:
                self._engine.stop()
                name = signal.Signals(received[0]).name
                rule = f"stopped by {name}; the same command goes on"
                raise Interrupted(f"{self._out}: {rule}", received[0])
            for outcome in self._engine.finished():
                self._take(outcome)
            self._look_elsewhere()
            self._submit()
            self._tell()
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        self._tell()

    def _submit(self) -> None:
        free = self._engine.free if self._waiting else 0
        chosen: list[str] = []
        while self._waiting and len(chosen) < free:
            name = self._waiting.pop(0)
            if self._is_ours(name):
                chosen.append(name)
        if chosen:
            self._engine.submit(chosen)
            self._begun |= set(chosen)

    def _is_ours(self, name: str) -> bool:
        """Whether a run is to be trained; it may have been done meanwhile, or be in work elsewhere."""
        if is_done(self._out, name):
            self._done(name)
        elif in_use(self._out, name):
            self._elsewhere.append(name)
        else:
            return True
        return False

    def _take(self, outcome: Outcome) -> None:
        name = outcome.name
        self._begun.discard(name)
        if outcome.kind == "done":
            self._done(name)
        elif outcome.kind == "busy":
            self._elsewhere.append(name)
        elif not outcome.final and newest_step(self._out, name) > self._steps[name]:  # it came further than before
            self._steps[name] = newest_step(self._out, name)
            self._waiting.append(name)
        else:
            if outcome.exit_code == ResourceError.exit_code and shutil.disk_usage(self._out).free < _FULL:
                raise FullDiskError(f"{self._out}: the disk is full ({outcome.reason}); the same command goes on")
            self._attempts[name] += 1
            again = not outcome.final and self._attempts[name] <= self._retries
            if again:
                self._waiting.append(name)
            else:
                self._failed.add(name)
                write_failure(self._out, outcome, self._attempts[name])
            if self._watcher is not None:
                self._watcher.failed(outcome, self._attempts[name], again)

    def _look_elsewhere(self) -> None:
        """Runs that another process had: done by now, or free again."""
        if not self._elsewhere or time.monotonic() - self._looked < _SECONDS_ELSEWHERE:
            return
        self._looked = time.monotonic()
        still = []
        for name in self._elsewhere:
            if is_done(self._out, name):
                self._done(name)
            elif in_use(self._out, name):
                still.append(name)
            else:
                self._waiting.append(name)
        self._elsewhere = still

    def _done(self, name: str) -> None:
        if self._watcher is not None:
            self._watcher.done(name)

    def _tell(self) -> None:
        if self._watcher is not None:
            running = self._engine.active + len(self._elsewhere)
            waiting, failed = len(self._waiting), len(self._failed)
            done = self._total - running - waiting - failed
            self._watcher.update({"done": done, "running": running, "failed": failed, "waiting": waiting})
            if time.monotonic() - self._listened > _SECONDS_BETWEEN_BEATS:
                self._listened = time.monotonic()
                at_work = [name for name in [*self._begun, *self._elsewhere] if in_use(self._out, name)]
                self._watches = {name: self._watches.get(name) or Watch(self._out, name) for name in sorted(at_work)}
                beats = {name: heartbeat(self._out, name, watch.silent()) for name, watch in self._watches.items()}
                self._watcher.at_work(beats)
