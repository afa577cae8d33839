"""Worker processes for tasks, and the fork server that starts them: python -m hmmscope.lab.worker

The server imports all modules once and forks a worker for each task. It sends the worker's process id, and later its
exit code, to the parent process through a socket; when the socket closes, the worker saves its work and stops.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress

from hmmscope.errors import code_and_line
from hmmscope.lab.experiments.seeded import PartTask
from hmmscope.lab.sweeps.run_task import RunTask
from hmmscope.lab.tasks.task import BUSY, Task, TaskLocked
from hmmscope.system_info import environment
from hmmscope.text import in_a_line

_MESSAGE = 1 << 16
#: Task classes by their attribute `kind`.
_KINDS: dict[str, type[Task]] = {task.kind: task for task in (RunTask, PartTask)}


def task_of(message: bytes) -> Task:
    given = json.loads(message)
    return _KINDS[given.pop("kind")].read(**given)


def _stop_with_parent() -> None:
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def run(message: bytes) -> int:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm warns all processes; the parent answers with SIGTERM
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        task_of(message).do()
        return 0
    except TaskLocked as error:
        return say(BUSY, str(error))
    except Exception as error:
        code, line = code_and_line(error)
        if code == 70 or isinstance(error, OSError):
            traceback.print_exc()
        return say(code, line)


def say(code: int, message: str) -> int:
    with suppress(OSError):  # the disk of the log may be full
        print(f"error[{code}] {in_a_line(' '.join(message.split()))}", file=sys.stderr, flush=True)
    return code


def main() -> None:
    asked, (ended, wake) = socket.socket(fileno=0), socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm warns all processes; the parent answers
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
        line, log = given
        with suppress(Exception):  # the task reports the error itself
            task_of(message).prepare()
        gc.freeze()  # workers share the present objects
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
            _work(message)
        os.close(log)
        workers[pid] = socket.socket(fileno=line)
        _tell(workers[pid], pid)


def _tell(line: socket.socket, number: int) -> None:
    with suppress(OSError):  # the parent has ended
        line.send(b"%d\n" % number)


def _work(message: bytes) -> None:
    code = 70
    try:
        code = run(message)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
