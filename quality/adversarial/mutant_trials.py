"""Trials of mutants: how many of them the tests detect, by package."""

import contextlib
import importlib
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import table
from source_mutants import EQUIVALENT, ROOT, SRC, Mutant, drawn, run_heavy_tests, tests_of
from trials import Report, Trial, trial

#: Total time of the tests that run on one mutant, the shortest first: of a first round, and of a second one if no test of
#: the first has detected it. Then the limits of processor time and of wall time of the process that runs a round.
#: All in seconds.
_ROUNDS, _PROCESSOR, _LONGEST = (15.0, 60.0), 90.0, 900.0
_WORDS = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "no:timeout", "-p", "no:randomly")
#: Folders of test modules.
_TESTS = tuple(str(ROOT / name) for name in ("tests", "quality", "papers/tests", "studies/tests"))
_MARKS = "addopts=-m 'not gpu and not e2e and not slow and not soak and not slurm'"
#: Libraries imported once, before children are forked.
_LIBRARIES = (
    "torch",
    "numba",
    "scipy.stats",
    "hypothesis",
    "jaxtyping",
    "beartype",
    "pytest",
    "yaml",
    "safetensors.torch",
)
_HANGS = 98


class Room:
    """A copy of the sources in which one file at a time is replaced by a mutant.

    Args:
        folder: Folder of the copy.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._fail = folder, {}
        shutil.copytree(SRC.parent, folder / "src", ignore=shutil.ignore_patterns("*.pyc"))
        sys.dont_write_bytecode = False  # unchanged modules are compiled once
        os.environ.pop("NUMBA_CACHE_DIR", None)  # the copy has the compiled kernels beside their sources
        for name in _LIBRARIES:
            importlib.import_module(name)

    def noticed(self, mutant: Mutant, tests: Sequence[str]) -> str:
        """Return the first test that fails on the mutant but passes without it; empty if there is none."""
        asked = [test for test in tests if not self._fail.get(test)]
        while asked:
            if not (first := self._failing(asked, mutant)):
                return ""
            alone = asked if first == "no end" else [first]
            fails = self._fail.get(first)
            if fails is None:
                fails = bool(self._failing(alone, None))
            if first != "no end":  # which says nothing about other tests
                self._fail[first] = fails
            if not fails:
                return first
            asked = [test for test in asked if test not in alone]
        return ""

    def _failing(self, tests: Sequence[str], mutant: Mutant | None) -> str:
        """Run tests in a new process and return the first that fails; "no end" if the process was killed.

        pytest's exit code 5 means that the commit draws none of the tests.
        """
        said = self.folder / "failed"
        said.write_text("")
        path = self.folder / "src" / "hmmscope" / mutant.file if mutant else None
        before = path.read_text() if path else ""
        if path and mutant:
            path.write_text(mutant.source)
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                os.setpgid(0, 0)
                self._run(tests, said)
            os._exit(97)
        code = _waited(child)
        if path:
            path.write_text(before)
            for stale in (path.parent / "__pycache__").glob(
                f"{path.stem}.*"
            ):  # it may have the same time stamp and size
                stale.unlink()
        shutil.rmtree(self.folder / "tests", ignore_errors=True)
        return "" if code in (0, 5) else said.read_text() or ("no end" if code == _HANGS else tests[0])

    def _run(self, tests: Sequence[str], said: Path) -> None:
        signal.setitimer(signal.ITIMER_PROF, _PROCESSOR)  # SIGPROF kills the process
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        os.chdir(ROOT)
        sys.path[:] = [str(self.folder / "src"), *(one for one in sys.path if not one.startswith(_TESTS))]
        os.environ["PYTHONPATH"] = sys.path[0]  # for processes that tests start
        for name, module in list(sys.modules.items()):
            file = str(getattr(module, "__file__", None) or "")
            if name.partition(".")[0].startswith("hmmscope") or file.startswith(_TESTS):
                del sys.modules[name]
        import pytest

        class First:
            def pytest_sessionstart(self, session: pytest.Session) -> None:
                run_heavy_tests(session.config.pluginmanager.get_plugins())

            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                if report.failed:
                    said.write_text(report.nodeid)

        words = [*_WORDS, "--basetemp", str(self.folder / "tests"), "-o", _MARKS, *tests]
        os._exit(pytest.main(words, plugins=[First()]))


def _waited(child: int) -> int:
    """Return the exit code of a child; if it takes too long, kill it and its children."""
    until = time.monotonic() + _LONGEST
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < until:
        time.sleep(0.02)
        ended, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return _HANGS if code in (-signal.SIGPROF, -signal.SIGKILL) else code


def rounds(seconds: dict[str, float]) -> Iterator[list[str]]:
    """Yield the tests of each round: the first that is left, and further ones while their total time allows it."""
    left = dict(seconds)
    for most in _ROUNDS:
        asked: list[str] = []
        total = 0.0
        for name, one in left.items():
            if not asked or total + one <= most:
                asked.append(name)
                total += one
        if not asked:
            return
        yield asked
        left = {name: one for name, one in left.items() if name not in asked}


def of_package(package: str) -> Trial:
    def mutants_of(folder: Path, number: int, rng: random.Random) -> Report:
        """Draw mutants and run, on each, tests that execute the changed line; undetected mutants are violations."""
        report = Report("G16", table.of_mutants(package))
        room = Room(folder)
        noticed = equivalent = 0
        for mutant in drawn(package, number, rng):
            line = (SRC / mutant.file).read_text().splitlines()[mutant.line - 1].strip()
            if (mutant.file, line) in EQUIVALENT:
                equivalent += 1
                continue
            report.trials += 1
            tests = tests_of(mutant)
            if any(room.noticed(mutant, asked) for asked in rounds(tests)):
                noticed += 1
            else:
                report.found(f"{mutant.file}:{mutant.line}: {mutant.what}" + " (no test runs it)" * (not tests))
        report.note = f"{noticed} detected, {equivalent} equivalent"
        return report

    return mutants_of


NAMES = {f"mutants-{package.rpartition('/')[2]}": package for package in table.MUTATED}
for name, one in NAMES.items():
    trial(name)(of_package(one))
