"""The process of one run: python -m hmmscope.lab.sweeps.worker FOLDER NAME

It trains with `pipeline.train`, whose lock lets one process at a time write a run. When the process that started it ends,
however it ends, its standard input closes; it then saves and stops, so that no worker is left behind.
"""

import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hmmscope.errors import HmmscopeError, RefusedError, code_and_line
from hmmscope.lab.sweeps.grid import check_run, load_point
from hmmscope.lab.sweeps.jobs import BUSY, is_done, run_folder, taking_part
from hmmscope.runs.config import RunConfig
from hmmscope.runs.pipeline import train
from hmmscope.storage.rundir import RunDir
from hmmscope.text import in_a_line


class _Busy(Exception):
    """Another process writes the run."""


def work(out: Path, name: str) -> None:
    """Train a run of the sweep to its end, from its newest checkpoint if there is one.

    Raises:
        _Busy: another process is at work on it.
        HmmscopeError: see `pipeline.train`.
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


def main(out: str, name: str) -> int:
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
    """Tell the parent why this worker ends; see `jobs.Job`."""
    with suppress(OSError):  # the log lies on the same disk, which may be full
        print(f"error[{code}] {in_a_line(' '.join(message.split()))}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("a worker is told the folder of its sweep and the name of its run")
    sys.exit(main(*sys.argv[1:]))
