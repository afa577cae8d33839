"""Mutants of the core: how many of them a test notices, by package."""

import contextlib
import importlib
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import table
from source_mutants import EQUIVALENT, ROOT, SRC, Mutant, drawn, tests_of
from trials import Report, Trial, trial

#: Tests of one mutant are asked, the shortest first, until they take so long together, seconds; then the process that runs
#: them is ended after so many of processor time, and of any time.
_ASKED, _PROCESSOR, _LONGEST = 15.0, 90.0, 900.0
_WORDS = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "no:timeout", "-p", "no:randomly")
#: Where modules of tests are.
_TESTS = tuple(str(ROOT / name) for name in ("tests", "quality", "papers/tests", "studies/tests"))
_MARKS = "addopts=-m 'not gpu and not e2e and not slow and not soak and not slurm'"
#: Imported once, before children are forked.
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
    """A copy of the sources, in which one file at a time is another.

    Args:
        folder: where it is made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._fail = folder, {}
        shutil.copytree(SRC.parent, folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        sys.dont_write_bytecode = False  # what is not changed is compiled once
        for name in _LIBRARIES:
            importlib.import_module(name)

    def noticed(self, mutant: Mutant, tests: Sequence[str]) -> str:
        """The test that fails with the mutant in the place of its file, and passes without it; empty if none does."""
        asked = [test for test in tests if not self._fail.get(test)]
        while asked:
            if not (first := self._failing(asked, mutant)):
                return ""
            alone = asked if first == "no end" else [first]
            if first not in self._fail:
                self._fail[first] = bool(self._failing(alone, None))
            if not self._fail[first]:
                return first
            asked = [test for test in asked if test not in alone]
        return ""

    def _failing(self, tests: Sequence[str], mutant: Mutant | None) -> str:
        """The first of these tests that fails, in a process of its own; "no end" of one that is ended."""
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
            for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):  # of the same second and size, it may be
                stale.unlink()
        shutil.rmtree(self.folder / "tests", ignore_errors=True)
        return "" if code == 0 else said.read_text() or ("no end" if code == _HANGS else tests[0])

    def _run(self, tests: Sequence[str], said: Path) -> None:
        signal.setitimer(signal.ITIMER_PROF, _PROCESSOR)  # ends it as a kill does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        os.chdir(ROOT)
        sys.path[:] = [str(self.folder / "src"), *(one for one in sys.path if not one.startswith(_TESTS))]
        os.environ["PYTHONPATH"] = sys.path[0]  # of processes that tests start
        for name, module in list(sys.modules.items()):
            file = str(getattr(module, "__file__", None) or "")
            if name.partition(".")[0].startswith("hmmscope") or file.startswith(_TESTS):
                del sys.modules[name]
        import pytest

        class First:
            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                if report.failed:
                    said.write_text(report.nodeid)

        words = [*_WORDS, "--basetemp", str(self.folder / "tests"), "-o", _MARKS, *tests]
        os._exit(pytest.main(words, plugins=[First()]))


def _waited(child: int) -> int:
    """How it ended; one that takes too long is ended, with what it started."""
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


def chosen(seconds: dict[str, float]) -> list[str]:
    """Tests in their order as long as they take no longer together than is asked, and the first in any case."""
    asked: list[str] = []
    total = 0.0
    for name, one in seconds.items():
        if not asked or total + one <= _ASKED:
            asked.append(name)
            total += one
    return asked


def of_package(package: str) -> Trial:
    def mutants_of(folder: Path, number: int, rng: random.Random) -> Report:
        """Mutants drawn by seed, each under the tests that run its line: how many are noticed."""
        report = Report("G16", table.of_mutants(package))
        room = Room(folder)
        noticed = equivalent = 0
        for mutant in drawn(package, number, rng):
            line = (SRC / mutant.file).read_text().splitlines()[mutant.line - 1].strip()
            if (mutant.file, line) in EQUIVALENT:
                equivalent += 1
                continue
            report.trials += 1
            tests = chosen(tests_of(mutant))
            if room.noticed(mutant, tests):
                noticed += 1
            else:
                report.found(f"{mutant.file}:{mutant.line}: {mutant.what}" + " (no test runs it)" * (not tests))
        report.note = f"{noticed} noticed, {equivalent} equivalent"
        return report

    return mutants_of


NAMES = {f"mutants-{package.rpartition('/')[2]}": package for package in table.MUTATED}
for name, one in NAMES.items():
    trial(name)(of_package(one))
