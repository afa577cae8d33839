"""Processes that have the libraries at once: each is forked from one that has imported them, a server for each test process.

What is started is otherwise a new interpreter: nothing of hmmscope is loaded, and nothing of the tests.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

LIBRARIES = ["torch", "numba", "scipy.stats", "safetensors.torch", "rich", "yaml"]
LIBRARIES += ["hypothesis", "beartype", "jaxtyping", "pytest"]


#: No threads in a process that forks.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


def start(work: Callable[..., object], *arguments: Any) -> BaseProcess:
    """A process that does some work, which must stand at the top of a module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    process = context.Process(target=work, args=arguments)
    with patch.dict(os.environ, ONE_THREAD):  # which the server reads as it loads the libraries
        process.start()
    return process


def run(
    words: list[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 500
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run([sys.executable, *words], capture_output=True, text=True, ...)``.

    Args:
        words: a script, or ``-c`` and code, or ``-m`` and a module, and the arguments of it.
        env: instead of this process's own.
        cwd: where it runs, if not here.
        timeout: seconds after which it is killed, and the test fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, error = Path(folder, "out"), Path(folder, "error")
        process = start(_interpret, words, dict(os.environ if env is None else env), cwd or Path.cwd(), out, error)
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(words, timeout)
        return subprocess.CompletedProcess(words, process.exitcode, out.read_text(), error.read_text())


def stop() -> None:
    """End the server; whoever waits for this process is then told the time of the server's processes too."""
    forkserver._forkserver._stop()


def seconds() -> float:
    """Processor time of this process, of those that it has waited for, and of its server with those that have ended."""
    server, used = forkserver._forkserver._forkserver_pid, sum(os.times()[:4])
    if server is not None:
        fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
        used += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return used


def _interpret(words: list[str], env: dict[str, str], cwd: Path, out: Path, error: Path) -> None:
    """What the interpreter does with its command line."""
    import torch

    for stream, path in ((1, out), (2, error)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:] = [*(part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part), *_libraries()]
    torch.set_num_threads(1)
    kind, *rest = words
    if kind == "-c":
        sys.argv, code = ["-c", *rest[1:]], rest[0]
        sys.path.insert(0, "")
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        sys.argv = [*rest]
        sys.path.insert(0, str(cwd))
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(kind).resolve().parent))
        runpy.run_path(kind, run_name="__main__")


def _libraries() -> list[str]:
    """Where an interpreter looks that has been told nothing: not the folders of the tests."""
    tests = Path(__file__).resolve().parent
    return [path for path in sys.path if path and not Path(path).resolve().is_relative_to(tests)]
