"""Worker processes on this machine, and the executor that runs them.

A fork server forks a worker for each task; see `hmmscope.lab.worker`.
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
#: Exit code for a worker whose own exit code is unknown.
_UNSEEN = 70


class ForkServer:
    """Client of the fork server; it starts the server when needed, also after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def fork(self, task: Task, log: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            message = json.dumps({"kind": task.kind} | task.given()).encode()
            try:
                socket.send_fds(self._started(), [message], [theirs.fileno(), log])
            except OSError:  # just killed
                self.close()
                socket.send_fds(self._started(), [message], [theirs.fileno(), log])
        return ours

    def _started(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._socket is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                # A separate session: Ctrl-C reaches only the parent, which stops its workers.
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
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._socket = None


def _one_thread() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
    one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return kept | one | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


class Job:
    """A worker process that runs a task; its output is appended to logs/NAME.log.

    Args:
        server: Fork server that starts the worker.
        task: Task that the worker runs.
        heartbeat_timeout: See `ExecutorOptions`.
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
        self._hear(0)
        return self._numbers[0] if self._numbers else None

    def poll(self) -> Outcome | None:
        """Return the outcome, or None while the worker runs; kill a worker that exceeds the heartbeat timeout."""
        if self._hear(0):
            return self._outcome()
        if self._silence is None or self._watch.silent() <= self._silence:
            return None
        outcome = self.wait(0)
        rule = f"killed after {self._silence:g} s without progress (heartbeat timeout)"
        return replace(outcome, reason=rule) if outcome.kind == "failed" else outcome

    def terminate(self) -> None:
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def wait(self, seconds: float) -> Outcome:
        if not self._hear(seconds) and self._numbers:
            with suppress(ProcessLookupError):
                os.kill(self._numbers[0], signal.SIGKILL)
            self._hear(None)
        return self._outcome()

    @property
    def _numbers(self) -> list[int]:
        return [int(line) for line in self._told.split(b"\n")[:-1]]

    def _hear(self, seconds: float | None) -> bool:
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
            reason = "the exit code is unknown, because the fork server was killed (perhaps for lack of memory)"
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
    return ForkServer()


def attend(task: Task, heartbeat_timeout: float | None = None) -> tuple[str, int, str]:
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
    """Executor that runs tasks in worker processes on this machine.

    Args:
        jobs: Largest number of parallel workers (default: the number of available processors).
        heartbeat_timeout: See `ExecutorOptions`.
    """

    def __init__(self, jobs: int | None = None, *, heartbeat_timeout: float | None = None) -> None:
        self._silence, self._server = heartbeat_timeout, ForkServer()
        self._slots = jobs if jobs is not None else len(os.sched_getaffinity(0))
        require(1 <= self._slots <= 1024, "jobs", "must be in [1, 1024]", jobs)
        self._jobs: list[Job] = []

    @property
    def active(self) -> int:
        return len(self._jobs)

    @property
    def free(self) -> int:
        return self._slots - len(self._jobs)

    @property
    def pids(self) -> list[int | None]:
        return [job.pid for job in self._jobs]

    def submit(self, tasks: Sequence[Task]) -> None:
        self._jobs += [Job(self._server, task, self._silence) for task in tasks]

    def finished(self) -> list[Outcome]:
        ended = [(job, job.poll()) for job in self._jobs]
        self._jobs = [job for job, outcome in ended if outcome is None]
        return [outcome for _, outcome in ended if outcome is not None]

    def stop(self) -> None:
        for job in self._jobs:
            job.terminate()
        if None in self.pids:  # the server is compiling, and has not forked these yet
            self._server.close()
        deadline = time.monotonic() + GRACE
        for job in self._jobs:
            job.wait(max(0.0, deadline - time.monotonic()))
        self._jobs = []
        self._server.close()
