"""What a trial of the laboratory is, and what it reports."""

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
    """What came of many attempts at breaking one thing.

    Attributes:
        goal: of the table, G1 to G34.
        attack: in a few words.
        trials: how many attempts.
        broken: what was found, one line each, at most 20 of them.
        violations: how many attempts found something.
        note: what a reader should know: how many struck in the middle, worst time, worst memory.
        seconds: of processor time.
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


#: A trial is given a folder of its own, how many attempts, and what draws them.
Trial = Callable[[Path, int, random.Random], Report]
TRIALS: dict[str, Trial] = {}


def trial(name: str) -> Callable[[Trial], Trial]:
    """Register a trial under the name of its option."""

    def register(function: Trial) -> Trial:
        TRIALS[name] = function
        return function

    return register


def conduct(name: str, folder: Path, number: int, seed: int) -> Report:
    """A trial, with the processor time that it and its children took; one that breaks down is a violation."""
    begun = _processor_seconds()
    folder.mkdir(parents=True)
    try:
        report = TRIALS[name](folder, number, random.Random(seed))
    except Exception:
        report = Report("", name)
        report.found(f"the trial broke down: {traceback.format_exc()[-280:]}")
    report.seconds = round(_processor_seconds() - begun, 1)
    return report


def _processor_seconds() -> float:
    import os

    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@contextmanager
def clocked(report: Report, what: str, most: float) -> Iterator[None]:
    """A violation if it takes more than `most` seconds of processor time."""
    begun = time.process_time()
    yield
    if (taken := time.process_time() - begun) > most:
        report.found(f"{what}: {taken:.2f} s")


#: Processor time of one attempt at a reader or option.
LONGEST = 5.0


class _HangError(BaseException):
    pass


@contextmanager
def bounded(report: Report, what: str) -> Iterator[None]:
    """A violation if an attempt takes more than its processor time, or never ends."""

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
    """The last line of ours that it went through."""
    found, step = "", error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if "/src/hmmscope" in name:
            found = f"{name.partition('/src/')[2]}:{step.tb_lineno}"
        step = step.tb_next
    return found
