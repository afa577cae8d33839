"""Workers, and the fork server that they come from: python -m hmmscope.lab.sweeps.worker

The server imports everything once and forks a worker for each run, so that a thousand short runs pay one import. Each has a
process of its own all the same, with its own memory, log, signals and exit code. It trains with `training.train`, whose lock
lets one process at a time write a run. The standard input of a worker is a socket on which its parent says nothing: when it
closes, however the parent ends, the worker saves and stops, so that none is left behind. On the other end the parent reads
the worker's process id and, when it has ended, its exit code; see `hmmscope.lab.sweeps.local`.
"""

import gc
import os
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hmmscope.errors import HmmscopeError, RefusedError, code_and_line
from hmmscope.lab.sweeps.grid import check_run, load_point
from hmmscope.lab.sweeps.jobs import BUSY, is_done, run_folder, taking_part
from hmmscope.machine import environment
from hmmscope.runs.config import RunConfig
from hmmscope.runs.training import train
from hmmscope.runs.warming import warm_up
from hmmscope.storage.rundir import RunDir
from hmmscope.text import in_a_line

_MESSAGE = 1 << 16
#: Kinds of models whose kernels are compiled and loaded here.
_WARM: set[type] = set()


class _Busy(Exception):
    """Another process writes the run."""


def prepare(out: Path, name: str) -> None:
    """What the workers of runs like this one would each do for themselves: compile and load the kernels."""
    with suppress(Exception):  # the run itself says what is wrong
        warm_up([load_point(out, name).config], _WARM)


def work(out: Path, name: str) -> None:
    """Train a run of the sweep to its end, from its newest checkpoint if there is one.

    Raises:
        _Busy: another process is at work on it.
        HmmscopeError: see `hmmscope.runs.training.train`.
    """
    point = load_point(out, name)
    path = run_folder(out, name)
    if is_done(out, name):
        return
    try:
        train(_as_begun(point.config, path), path, resume=True, quiet=True)
    except RefusedError as error:
        if not _same_run(path, point.config):
            raise
        raise _Busy(str(error)) from error


def _as_begun(config: RunConfig, path: Path) -> RunConfig:
    """With the device and the engine that the run began on, if it was begun: its bits depend on them."""
    if not os.path.lexists(path / "config.json"):
        return config
    begun = RunDir.open(path).config.get("training", {})
    device, engine = begun.get("device", config.training.device), begun.get("engine", "torch")
    return replace(config, training=replace(config.training, device=device, engine=engine))


def _same_run(path: Path, config: RunConfig) -> bool:
    """Whether the folder holds this configuration, so that the refusal was for its lock."""
    with suppress(HmmscopeError):
        check_run(path, config)
        return True
    return False


def _stop_with_parent() -> None:
    """Wait until standard input closes, which it does when the parent ends, and then be told to stop."""
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def run(out: str, name: str) -> int:
    """What a worker process does; its exit code is that of the command line, or `BUSY`."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm's warning goes to all; the parent answers it with SIGTERM
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        with taking_part(Path(out)):
            work(Path(out), name)
        return 0
    except _Busy as error:
        return say(BUSY, str(error))
    except Exception as error:
        code, line = code_and_line(error)
        if code == 70 or isinstance(error, OSError):
            traceback.print_exc()
        return say(code, line)


def say(code: int, message: str) -> int:
    """Tell the parent why this worker ends; see `local.Job`."""
    with suppress(OSError):  # the log lies on the same disk, which may be full
        print(f"error[{code}] {in_a_line(' '.join(message.split()))}", file=sys.stderr, flush=True)
    return code


def main() -> None:
    """The fork server: fork workers until nobody can ask for one any more. Its standard input is a socket, too."""
    asked, (ended, wake) = socket.socket(fileno=0), socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm's warning goes to all; the parent answers it
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake.fileno())
    workers: dict[int, socket.socket] = {}
    environment()
    while True:
        ready, _, _ = select.select([asked, ended], [], [])
        if ended in ready:
            ended.recv(_MESSAGE)
            for pid in [pid for pid in workers if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)]:
                _tell(workers[pid], os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                workers.pop(pid).close()
        if asked not in ready:
            continue
        message, given, _, _ = socket.recv_fds(asked, _MESSAGE, 2)
        if not message:
            return
        (line, log), (out, _, name) = given, os.fsdecode(message).partition("\0")
        prepare(Path(out), name)
        gc.freeze()  # what is here now is not looked at by workers, so that they share it
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (ended, wake, *workers.values()):
                other.close()
            for target, source in enumerate((line, log, log)):
                os.dup2(source, target)
            os.close(line)
            os.close(log)
            _work(out, name)
        os.close(log)
        workers[pid] = socket.socket(fileno=line)
        _tell(workers[pid], pid)


def _tell(line: socket.socket, number: int) -> None:
    with suppress(OSError):  # its parent has ended
        line.send(b"%d\n" % number)


def _work(out: str, name: str) -> None:
    """The life of a worker."""
    code = 70
    try:
        code = run(out, name)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
