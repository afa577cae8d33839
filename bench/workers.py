"""Measure trainings per hour of wall time in a sweep of small trainings, with one worker and with two."""

import tempfile
from pathlib import Path
from typing import Any

from bench.contest import Contest
from hmmscope.errors import InputError
from hmmscope.lab.sweeps.grid import expand
from hmmscope.lab.sweeps.sweeping import run_sweep
from hmmscope.lab.tasks.local import LocalExecutor

#: Trainings per sweep, and steps of each.
RUNS, STEPS = 4, 200
GRID: dict[str, Any] = {
    "base": {
        "process": {"name": "mess3"},
        "layout": {"name": "sequences", "length": 32},
        "model": {"name": "decoder", "num_layers": 2, "width": 64, "num_heads": 4, "dropout": 0.0},
        "training": {"num_steps": STEPS, "batch_size": 64, "device": "cpu", "num_threads": 1, "engine": "compiled"},
    },
    "seeds": RUNS,
}


def contests(*, peers: bool, device: str = "cpu") -> list[Contest]:
    """Measure a sweep from an empty folder to its table; there are no peers.

    Raises:
        InputError: The device is not a processor.
    """
    if device != "cpu":
        raise InputError("device: bench workers measures the processor; use cpu")
    points = expand(GRID)

    def sweep(workers: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            rows = run_sweep(points, Path(folder) / "sweep", LocalExecutor(workers))
            if any(row["state"] != "done" for row in rows):
                raise InputError("workers: a training failed")

    contest = Contest(f"sweep of {RUNS} trainings, decoder 2 x 64, 32 columns, {STEPS} steps", "steps", by_clock=True)
    contest.add("hmmscope, two workers", lambda: sweep(2), RUNS * STEPS)
    contest.add("hmmscope, one worker", lambda: sweep(1), RUNS * STEPS)
    return [contest]
