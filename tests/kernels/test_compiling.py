"""Processes that start together compile a function once between them."""

import fcntl
import gc
import os
import pickle
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numba
import pytest

from hmmscope.kernels.compiling import alone, part

MODULE = """
import sys
from hmmscope.kernels.compiling import kernel

@kernel()
def inner(x):
    return x + 1.0

@kernel()
def outer(x):
    return 2.0 * inner(x)

print("ready", flush=True)
sys.stdin.readline()
print(outer(3.0), sum(outer.stats.cache_misses.values()) + sum(inner.stats.cache_misses.values()))
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "doubled.py"
    path.write_text(MODULE)
    return path


def start(module: Path) -> subprocess.Popen:
    code = "import doubled"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(module.parent), *sys.path])}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, env=environment, text=True)


@pytest.mark.long
def test_who_waits_reads_what_the_first_has_kept(module: Path) -> None:
    processes = [start(module), start(module)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    said = sorted(process.communicate()[0].split() for process in processes)
    assert said == [["8.0", "0"], ["8.0", "2"]]


@pytest.mark.long
def test_a_cache_that_names_a_class_that_is_gone_is_compiled_anew(module: Path) -> None:
    """As after an upgrade that renamed a class among the arguments."""
    assert start(module).communicate("\n")[0].split()[1:] == ["8.0", "2"]
    indices = [*module.parent.rglob("*.nbi")]
    assert len(indices) == 2
    for index in indices:
        with index.open("rb") as file:
            version = pickle.load(file)
        index.write_bytes(pickle.dumps(version, protocol=-1) + b"chmmscope.kernels.compiling\nEntries\n.")
    assert start(module).communicate("\n")[0].split()[1:] == ["8.0", "2"]
    assert start(module).communicate("\n")[0].split()[1:] == ["8.0", "0"]


def test_what_stands_in_other_files_is_compiled_meanwhile(module: Path) -> None:
    with alone(SimpleNamespace(__wrapped__=start)):
        for path, free in ((Path(__file__), False), (module, True)):
            with path.open() as file, nullcontext() if free else pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_garbage_waits_until_it_is_compiled() -> None:
    function = SimpleNamespace(__wrapped__=start)

    def fail() -> None:
        with alone(function):
            with alone(function):  # compiled because the other calls it
                pass
            assert not gc.isenabled()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert gc.isenabled()
    gc.disable()
    with alone(function):
        pass
    still = not gc.isenabled()  # who had no collector gets none
    gc.enable()
    assert still


def test_a_part_becomes_machine_code_only_within_what_calls_it() -> None:
    @part()
    def twice(x):  # type: ignore[no-untyped-def]
        return 2.0 * x

    @numba.njit
    def outer(x):  # type: ignore[no-untyped-def]
        return twice(twice(x)) + 1.0

    assert outer(3.0) == 13.0
    (compiled,) = twice.overloads.values()
    assert not compiled.library._codegen._engine.is_symbol_defined(compiled.fndesc.llvm_func_name)
    with pytest.raises(KeyError):
        twice(3.0)
