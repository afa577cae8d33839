"""Workers of one machine: how they are started, what came of each, and the executor that keeps a few of them at work.

A fork server imports everything once and forks a worker for each task, see `hmmscope.lab.worker`.
"""

import functools
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, replace

from hmmscope.errors import HmmscopeError
from hmmscope.lab.tasks.task import GRACE, Outcome, StallTimer, Task
from hmmscope.schema import require
from hmmscope.storage import disk, store

_TAIL = 1 << 16
_SAID = re.compile(r"error\[(\d+)\] .*")
#: Exit code of a worker that nobody saw end.
_UNSEEN = 70


class ForkServer:
    """The server as its user sees it: started with the first worker, and again if it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def fork(self, task: Task, log: int) -> socket.socket:
        """Have a worker forked for a task, which writes to the file `log`; the end of its socket that tells of it."""
        ours, theirs = socket.socketpair()
        with theirs:
            message = json.dumps({"kind": task.kind} | task.given()).encode()
            try:
                socket.send_fds(self._started(), [message], [theirs.fileno(), log])
            except OSError:  # it was killed this instant
                self.close()
                socket.send_fds(self._started(), [message], [theirs.fileno(), log])
        return ours

    def _started(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._socket is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                # A session of its own: Ctrl-C reaches the parent alone, which then tells its workers once.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "hmmscope.lab.worker"],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=_one_thread(),
                    start_new_session=True,
                )
            self._socket = ours
        return self._socket

    def close(self) -> None:
        """End it; its workers go on."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._socket = None


def _one_thread() -> dict[str, str]:
    """The environment of workers: ours, with one thread, alone, and without a CUDA that forks would find spoilt."""
    kept = {key: value for key, value in os.environ.items() if key not in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
    one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return kept | one | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


class Job:
    """A worker process. What it prints is added to logs/NAME.log.

    Args:
        server: forks it.
        task: what it does.
        heartbeat_timeout: seconds without a sign of it after which it is killed; None for as long as it takes.
    """

    def __init__(self, server: ForkServer, task: Task, heartbeat_timeout: float | None = None) -> None:
        self._task, self._silence = task, heartbeat_timeout
        store.make_folder(task.log.parent)
        log = disk.open_own(task.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            self._begin = os.fstat(log).st_size
            self._line = server.fork(task, log)
        finally:
            os.close(log)
        self._told = b""
        self._watch = StallTimer(task)

    @property
    def pid(self) -> int | None:
        """Of the worker, once it is forked."""
        self._hear(0)
        return self._numbers[0] if self._numbers else None

    def poll(self) -> Outcome | None:
        """How it ended, or None while it is at work; one that is silent too long is killed."""
        if self._hear(0):
            return self._outcome()
        if self._silence is None or self._watch.silent() <= self._silence:
            return None
        outcome = self.wait(0)
        rule = f"killed after {self._silence:g} s without a step (silence)"
        return replace(outcome, reason=rule) if outcome.kind == "failed" else outcome

    def terminate(self) -> None:
        """Tell it to save and stop."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def wait(self, seconds: float) -> Outcome:
        """How it ended; it is killed if it does not within that time."""
        if not self._hear(seconds) and self._numbers:
            with suppress(ProcessLookupError):
                os.kill(self._numbers[0], signal.SIGKILL)
            self._hear(None)
        return self._outcome()

    @property
    def _numbers(self) -> list[int]:
        """The process id and the exit code, as far as they are known."""
        return [int(line) for line in self._told.split(b"\n")[:-1]]

    def _hear(self, seconds: float | None) -> bool:
        """Whether it has ended, by then: it said so, or nobody is there any more who could."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while len(self._numbers) < 2:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._line], [], [], left)[0]:
                return False
            said = self._line.recv(100)
            if not said:
                break
            self._told += said
        return True

    def _outcome(self) -> Outcome:
        self._line.close()
        if len(self._numbers) < 2:
            reason = "ended unseen: the process that starts workers was killed (was there enough memory?)"
            return self._task.outcome(_UNSEEN, reason)
        code = self._numbers[1]
        if code == 0:
            reason = "ended without a result"
        elif code < 0:
            hint = " (was there enough memory?)" if -code == signal.SIGKILL else ""
            reason = f"killed by {_signal_name(-code)}{hint}"
        else:
            reason = self._said().get(code, f"exit code {code}")
        return self._task.outcome(code, reason)

    def _said(self) -> dict[int, str]:
        """Its last line of each error by exit code, without the folder, so that it is the same wherever that lies."""
        with suppress(HmmscopeError), disk.reading(self._task.log, managed=True) as file:
            file.seek(max(self._begin, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read(_TAIL).decode(errors="replace").splitlines()
            found = [match for line in lines if (match := _SAID.match(line.replace(f"{self._task.out}/", "")))]
            return {int(match[1]): match[0] for match in found}
        return {}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@functools.cache
def _server() -> ForkServer:
    """That of this process, which lives as long: a Ray worker attends to one run after the other."""
    return ForkServer()


def attend(task: Task, heartbeat_timeout: float | None = None) -> tuple[str, int, str]:
    """Run a worker to its end: the fields of `Outcome`. On an exception it is told to stop, and waited for.

    What executors send to other machines; paths must mean the same there.
    """
    job = Job(_server(), task, heartbeat_timeout)
    try:
        while (outcome := job.poll()) is None:
            time.sleep(0.05)
    except BaseException:
        job.terminate()
        job.wait(GRACE)
        raise
    return astuple(outcome)


class LocalExecutor:
    """Worker processes on this machine, one a task.

    Args:
        jobs: how many at a time; by default as many as processors that this process may use.
        heartbeat_timeout: seconds without a step after which a worker is killed, and its task tried again.
    """

    def __init__(self, jobs: int | None = None, *, heartbeat_timeout: float | None = None) -> None:
        self._silence, self._server = heartbeat_timeout, ForkServer()
        self._slots = jobs if jobs is not None else len(os.sched_getaffinity(0))
        require(1 <= self._slots <= 1024, "jobs", "must be in [1, 1024]", jobs)
        self._jobs: list[Job] = []

    @property
    def active(self) -> int:
        """Tasks that are at work."""
        return len(self._jobs)

    @property
    def free(self) -> int:
        """How many more workers to start now."""
        return self._slots - len(self._jobs)

    @property
    def pids(self) -> list[int | None]:
        """Process ids of the workers, as far as they are forked."""
        return [job.pid for job in self._jobs]

    def submit(self, tasks: Sequence[Task]) -> None:
        """Start a worker for each."""
        self._jobs += [Job(self._server, task, self._silence) for task in tasks]

    def finished(self) -> list[Outcome]:
        """Outcomes since the last call."""
        ended = [(job, job.poll()) for job in self._jobs]
        self._jobs = [job for job, outcome in ended if outcome is None]
        return [outcome for _, outcome in ended if outcome is not None]

    def stop(self) -> None:
        """Tell the workers to save and stop, and wait until all have ended."""
        for job in self._jobs:
            job.terminate()
        if None in self.pids:  # the server is compiling, and not yet asked for these
            self._server.close()
        deadline = time.monotonic() + GRACE
        for job in self._jobs:
            job.wait(max(0.0, deadline - time.monotonic()))
        self._jobs = []
        self._server.close()
