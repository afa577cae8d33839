"""Tests on a copy of the package in a process of its own, forked from one that has imported all but the package."""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

import forking


def run(root: Path, options: list[str], cache: Path | None) -> tuple[int | None, str]:
    """Exit code and output of pytest where `root` comes before the installed package.

    Args:
        root: holds the folder `hmmscope`.
        options: of pytest.
        cache: where compiled functions are kept; None: beside their files.
    """
    with tempfile.NamedTemporaryFile("r", dir=root) as printed:
        process = forking.start(_run, root, options, cache, printed.name)
        process.join()
        return process.exitcode, printed.read()


def _run(root: Path, options: list[str], cache: Path | None, printed: str) -> None:
    import numba
    import pytest

    os.environ.update(PYTHONPATH=str(root), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
    os.environ.pop("PYTEST_ADDOPTS", None)  # of whoever runs the tests about these tests
    sys.dont_write_bytecode = True  # a fault of the same length within the same second would not be seen
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
