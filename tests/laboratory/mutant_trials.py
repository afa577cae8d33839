"""Mutants of the core: how many of them a test notices, by package."""

import contextlib
import os
import random
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import torch

from mutants import EQUIVALENT, PACKAGES, ROOT, SRC, Mutant, drawn, tests_of
from trials import Report, Trial, trial

#: Tests that are asked of one mutant, and the processor time that they have together, seconds.
_MOST_TESTS, _MOST_SECONDS = 12, 120


def interval(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, right / count
    middle, half = share + z * z / (2 * count), z * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    return (middle - half) / (1 + z * z / count), (middle + half) / (1 + z * z / count)


def survives(mutant: Mutant, tests: list[str], room: Path) -> bool:
    """Whether all of these tests pass with the mutant in the place of its file, in a process of their own."""
    path = room / "src" / "hmmscope" / mutant.file
    before = path.read_text()
    path.write_text(mutant.source)
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            signal.setitimer(signal.ITIMER_PROF, _MOST_SECONDS)  # ends it as a kill does
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            os.chdir(ROOT)
            sys.path[:0] = [str(room / "src")]
            for name in [name for name in sys.modules if name.partition(".")[0] in ("hmmscope", "hmmscope_papers")]:
                del sys.modules[name]
            import pytest

            words = [
                "-x",
                "-q",
                "-n",
                "0",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:timeout",
                "--basetemp",
                str(room / "tests"),
            ]
            os._exit(pytest.main([*words, "-o", "addopts=-m 'not gpu and not e2e and not slow and not soak'", *tests]))
        os._exit(99)
    _, status = os.waitpid(child, 0)
    path.write_text(before)
    shutil.rmtree(room / "tests", ignore_errors=True)
    return os.waitstatus_to_exitcode(status) == 0


def of_package(package: str) -> Trial:
    def mutants_of(folder: Path, number: int, rng: random.Random) -> Report:
        """Mutants drawn by seed, each under tests that run its line: how many are noticed."""
        report = Report("G16", f"mutants of {package}, drawn by seed, under tests that run the line")
        shutil.copytree(SRC.parent, folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        assert np.__version__
        assert torch.__version__  # imported once, before children are forked
        noticed = equivalent = 0
        for mutant in drawn(package, number, rng):
            line = (SRC / mutant.file).read_text().splitlines()[mutant.line - 1].strip()
            tests = tests_of(package, mutant)
            rng.shuffle(tests)
            if (mutant.file, line) in EQUIVALENT:
                equivalent += 1
                continue
            report.trials += 1
            if tests and not survives(mutant, tests[:_MOST_TESTS], folder):
                noticed += 1
            else:
                report.found(f"{mutant.file}:{mutant.line}: {mutant.what}" + " (no test runs it)" * (not tests))
        low, high = interval(noticed, max(1, report.trials))
        report.note = (
            f"{noticed} of {report.trials} noticed: {noticed / max(1, report.trials):.0%} [{low:.0%}, {high:.0%}]"
        )
        report.note += f"; {equivalent} are equivalent" * bool(equivalent)
        return report

    return mutants_of


NAMES = {f"mutants-{package.rpartition('/')[2]}": package for package in PACKAGES}
for name, one in NAMES.items():
    trial(name)(of_package(one))
