"""Trainings of several processes, forked from one that has torch imported: distributed_script.py FOLDER MODE ...

Each process gets the environment that torchrun gives and runs the command line. Prints one JSON object.
"""

import atexit
import json
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hmmscope import cli, commands
from hmmscope.rundir import RunDir, read_journal
from hmmscope.training import distributed, trainer, updates
from training_crash import CONFIG, fingerprint, wait

#: Sixteen samples a step of a fixed set of 90: the last step of an epoch has ten, in three grains of the four.
TRAINING = CONFIG["training"] | {"num_steps": 60, "batch_size": 16, "num_trajectories": 90, "num_grains": 4}

Work = Callable[[int], None]


def config(**training: Any) -> dict:
    """The configuration of the crash tests with numbers of its own; also ``model=``."""
    model = training.pop("model", CONFIG["model"])
    return CONFIG | {"model": model, "training": TRAINING | training}


def start(folder: Path, size: int, settings: dict, *, before: Work = lambda rank: None, out: str = "run") -> list[int]:
    """Processes of a training on their way, their words in the files ``<rank>.stderr``."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(json.dumps(settings))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    return [_fork(folder, rank, size, port, before, out) for rank in range(size)]


def _fork(folder: Path, rank: int, size: int, port: int, before: Work, out: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        for stream, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        os.environ |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        before(rank)
        code = cli.main(["train", str(folder / "config.yaml"), "--out", str(folder / out), "--resume", "-q"])
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(code)


def train(folder: Path, size: int, settings: dict, *, before: Work = lambda rank: None) -> dict:
    """What came of a training: exit codes, the lines on standard error of all, and seconds."""
    begun = time.monotonic()
    codes = [wait(pid) for pid in start(folder, size, settings, before=before)]
    return {"codes": codes, "errors": errors(folder, size), "seconds": time.monotonic() - begun}


def errors(folder: Path, size: int) -> list[str]:
    return [line for rank in range(size) for line in (folder / f"{rank}.stderr").read_text().splitlines()]


def exact(folder: Path) -> dict:
    """The same bytes from 1, 2 and 4 processes."""
    found = {}
    for size in (1, 2, 4):
        report = train(folder / str(size), size, config())
        found[str(size)] = report | {"fingerprint": fingerprint(folder / str(size) / "run")}
    return found


if __name__ == "__main__":
    assert commands
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    modes = {"exact": exact}
    reports = {}
    for mode in sys.argv[2:]:
        folder = Path(sys.argv[1]) / mode
        folder.mkdir()
        reports[mode] = modes[mode](folder)
    sys.stdout.write(json.dumps(reports) + "\n")
