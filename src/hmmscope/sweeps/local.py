"""The engine of one machine: a few worker processes at a time."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from hmmscope.schema import require
from hmmscope.sweeps.jobs import GRACE, Job, Outcome, Unit


class LocalEngine:
    """Worker processes on this machine, each a run or a pack of runs.

    Args:
        out: folder of the sweep.
        jobs: how many at a time; by default as many as processors that this process may use.
    """

    def __init__(self, out: Path, jobs: int | None = None) -> None:
        self._out = out
        self._slots = jobs if jobs is not None else len(os.sched_getaffinity(0))
        require(1 <= self._slots <= 1024, "jobs", "must be in [1, 1024]", jobs)
        self._jobs: list[Job] = []

    @property
    def places(self) -> int:
        """Workers at a time."""
        return self._slots

    @property
    def active(self) -> int:
        """Runs that are at work."""
        return sum(len(job.names) for job in self._jobs)

    @property
    def free(self) -> int:
        """How many more workers to start now."""
        return self._slots - len(self._jobs)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [job.pid for job in self._jobs]

    def submit(self, units: Sequence[Unit]) -> None:
        """Start a worker for each."""
        for unit in units:
            self._jobs.append(Job(self._out, unit))

    def finished(self) -> list[Outcome]:
        """Outcomes since the last call."""
        ended = [(job, job.poll()) for job in self._jobs]
        self._jobs = [job for job, outcomes in ended if outcomes is None]
        return [outcome for _, outcomes in ended for outcome in outcomes or ()]

    def stop(self) -> None:
        """Tell the workers to save and stop, and wait until all have ended."""
        for job in self._jobs:
            job.terminate()
        deadline = time.monotonic() + GRACE
        for job in self._jobs:
            job.wait(max(0.0, deadline - time.monotonic()))
        self._jobs = []
