"""Register and run the trials of the laboratory, and define their report."""

import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Report:
    """Result of one trial: many attempts to break one guarantee.

    Attributes:
        goal: Identifier in the table, G1 to G34.
        attack: Short description.
        trials: Number of attempts.
        broken: Findings, one line each, at most 20.
        violations: Number of findings.
        note: Details for the reader, such as exit codes, the longest time or the largest memory.
        seconds: Processor time.
    """

    goal: str
    attack: str
    trials: int = 0
    broken: list[str] = field(default_factory=list)
    violations: int = 0
    note: str = ""
    seconds: float = 0.0

    def found(self, what: str) -> None:
        self.violations += 1
        if len(self.broken) < 20:
            self.broken.append(" ".join(what.split())[:300])

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


#: Maps an empty folder, a number of attempts and a random generator to a report.
Trial = Callable[[Path, int, random.Random], Report]
TRIALS: dict[str, Trial] = {}


def trial(name: str) -> Callable[[Trial], Trial]:
    """Register a trial under the name of its command-line option."""

    def register(function: Trial) -> Trial:
        TRIALS[name] = function
        return function

    return register


def conduct(name: str, folder: Path, number: int, seed: int) -> Report:
    """Run a trial and measure the processor time of it and its children; an exception of the trial is a violation."""
    begun = _processor_seconds()
    folder.mkdir(parents=True)
    try:
        report = TRIALS[name](folder, number, random.Random(seed))
    except Exception:
        report = Report("", name)
        report.found(f"the trial failed: {traceback.format_exc()[-280:]}")
    report.seconds = round(_processor_seconds() - begun, 1)
    return report


def _processor_seconds() -> float:
    import os

    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@contextmanager
def clocked(report: Report, what: str, most: float) -> Iterator[None]:
    """Report a violation if the block takes more than `most` seconds of processor time."""
    begun = time.process_time()
    yield
    if (taken := time.process_time() - begun) > most:
        report.found(f"{what}: {taken:.2f} s")


#: Largest processor time of one attempt, in seconds.
LONGEST = 5.0


class _HangError(BaseException):
    pass


@contextmanager
def bounded(report: Report, what: str) -> Iterator[None]:
    """Report a violation if the block takes more than `LONGEST` seconds of processor time, or does not end."""

    def ring(*_: Any) -> None:
        raise _HangError

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, 4 * LONGEST)
    begun = time.process_time()
    try:
        yield
    except _HangError:
        report.found(f"{what}: hangs")
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    if (taken := time.process_time() - begun) > LONGEST:
        report.found(f"{what}: {taken:.1f} s")


def place_of(error: BaseException) -> str:
    """Return the file and line of the innermost frame of the traceback in our packages."""
    found, step = "", error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if "/src/hmmscope" in name:
            found = f"{name.partition('/src/')[2]}:{step.tb_lineno}"
        step = step.tb_next
    return found
