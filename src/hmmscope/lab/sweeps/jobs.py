"""One run of a sweep in a fresh process, what came of it, and where it is. All engines share this.

A `worker` is told a folder and a name, and reads the rest from grid.json: no object travels. The locks are the kernel's,
which end with the process that holds them; what no process of the sweep holds any more was left by a killed one.
"""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
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
_LOG_TAIL = 1 << 16
_SAID = re.compile(r"error\[(\d+)\] .*")

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
    """The run folder, as `pipeline.train` writes it."""
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
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL))
        step = int(json.loads(file.read(_LOG_TAIL).splitlines()[-1])["step"])
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


# ---------------------------------------------------------------------------------------------------------------------
# The worker as its parent sees it


class Job:
    """A worker process. What it prints is added to logs/NAME.log.

    Args:
        out: folder of the sweep.
        name: of the run.
        silence: seconds without a sign of it after which it is killed; None for as long as it takes.
    """

    def __init__(self, out: Path, name: str, silence: float | None = None) -> None:
        self._name, self._out = name, Path(os.path.abspath(out))
        self._silence = silence
        self._log = self._out / "logs" / f"{name}.log"
        store.make_folder(self._log.parent)
        log = disk.open_own(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            self._begin = os.fstat(log).st_size
            # A session of its own: Ctrl-C reaches the parent alone, which then tells its workers once.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hmmscope.lab.sweeps.worker", str(self._out), name],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=worker_environment(),
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._watch = Watch(self._out, name)

    @property
    def pid(self) -> int:
        """Of the worker."""
        return self._process.pid

    def poll(self) -> Outcome | None:
        """How it ended, or None while it is at work; one that is silent too long is killed."""
        code = self._process.poll()
        if code is not None:
            return self._outcome(code)
        if self._silence is None or self._watch.silent() <= self._silence:
            return None
        self._process.kill()
        outcome = self._outcome(self._process.wait())
        rule = f"killed after {self._silence:g} s without a step (silence)"
        return replace(outcome, reason=rule) if outcome.kind == "failed" else outcome

    def terminate(self) -> None:
        """Tell it to save and stop."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> Outcome:
        """How it ended; it is killed if it does not within that time."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return self._outcome(code)

    def _outcome(self, code: int) -> Outcome:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        if code == 0:
            reason = "ended without a result"
        elif code < 0:
            hint = " (was there enough memory?)" if -code == signal.SIGKILL else ""
            reason = f"killed by {_signal_name(-code)}{hint}"
        else:
            reason = self._said().get(code, f"exit code {code}")
        return outcome_of(self._out, self._name, code, reason)

    def _said(self) -> dict[int, str]:
        """Its last line of each error by exit code, without the folder, so that it is the same wherever the sweep lies."""
        with suppress(HmmscopeError), disk.reading(self._log, own=True) as file:
            file.seek(max(self._begin, os.fstat(file.fileno()).st_size - _LOG_TAIL))
            lines = file.read(_LOG_TAIL).decode(errors="replace").splitlines()
            found = [match for line in lines if (match := _SAID.match(line.replace(f"{self._out}/", "")))]
            return {int(match[1]): match[0] for match in found}
        return {}


def outcome_of(out: Path, name: str, code: int, reason: str) -> Outcome:
    """The end of a worker as that of its run, which is done if the worker had finished it."""
    return Outcome(name, 0, "") if is_done(out, name) else Outcome(name, code, reason)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def worker_environment() -> dict[str, str]:
    """The environment of a worker: ours, with one thread, and alone."""
    kept = {key: value for key, value in os.environ.items() if key not in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
    one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return kept | one


def attend(out: str, name: str, silence: float | None = None) -> tuple[str, int, str]:
    """Run a worker to its end: the fields of `Outcome`. On an exception it is told to stop, and waited for.

    What engines send to other machines; paths must mean the same there.
    """
    job = Job(Path(out), name, silence)
    try:
        while (outcome := job.poll()) is None:
            time.sleep(0.05)
    except BaseException:
        job.terminate()
        job.wait(GRACE)
        raise
    return astuple(outcome)
