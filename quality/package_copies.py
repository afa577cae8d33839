"""Run tests on a copy of the package, in a process forked from one that has imported everything but the package."""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

import forking


def run(root: Path, options: list[str], cache: Path | None) -> tuple[int | None, str]:
    """Run pytest with `root` before the installed package on the path; return its exit code and output.

    Args:
        root: Folder that contains the folder `hmmscope`.
        options: Arguments of pytest.
        cache: Folder of compiled functions; None stores them next to their source files.
    """
    with tempfile.NamedTemporaryFile("r", dir=root) as printed:
        process = forking.start(_run, root, options, cache, printed.name)
        process.join()
        return process.exitcode, printed.read()


def _run(root: Path, options: list[str], cache: Path | None, printed: str) -> None:
    import numba
    import pytest

    os.environ.update(PYTHONPATH=str(root), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
    os.environ.pop("PYTEST_ADDOPTS", None)  # of the outer pytest
    sys.dont_write_bytecode = True  # otherwise a fault of the same length, written in the same second, would be missed
    sys.path.insert(0, str(root))
    if cache is not None:
        os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = str(cache)
    with open(printed, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            code = pytest.main(options)
            import hmmscope

            assert Path(hmmscope.__file__).parent == root / "hmmscope", "not the copy"
    os._exit(int(code))
