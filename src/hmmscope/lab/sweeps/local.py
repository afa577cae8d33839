"""The engine of one machine: a few worker processes at a time."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from hmmscope.lab.sweeps.jobs import GRACE, Job, Outcome
from hmmscope.schema import require


class LocalEngine:
    """Worker processes on this machine, one a run.

    Args:
        out: folder of the sweep.
        jobs: how many at a time; by default as many as processors that this process may use.
        silence: seconds without a step after which a worker is killed, and its run tried again.
    """

    def __init__(self, out: Path, jobs: int | None = None, *, silence: float | None = None) -> None:
        self._out, self._silence = out, silence
        self._slots = jobs if jobs is not None else len(os.sched_getaffinity(0))
        require(1 <= self._slots <= 1024, "jobs", "must be in [1, 1024]", jobs)
        self._jobs: list[Job] = []

    @property
    def active(self) -> int:
        """Runs that are at work."""
        return len(self._jobs)

    @property
    def free(self) -> int:
        """How many more workers to start now."""
        return self._slots - len(self._jobs)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [job.pid for job in self._jobs]

    def submit(self, names: Sequence[str]) -> None:
        """Start a worker for each."""
        for name in names:
            self._jobs.append(Job(self._out, name, self._silence))

    def finished(self) -> list[Outcome]:
        """Outcomes since the last call."""
        ended = [(job, job.poll()) for job in self._jobs]
        self._jobs = [job for job, outcome in ended if outcome is None]
        return [outcome for _, outcome in ended if outcome is not None]

    def stop(self) -> None:
        """Tell the workers to save and stop, and wait until all have ended."""
        for job in self._jobs:
            job.terminate()
        deadline = time.monotonic() + GRACE
        for job in self._jobs:
            job.wait(max(0.0, deadline - time.monotonic()))
        self._jobs = []
