"""Packs of a sweep whose workers and drivers are killed, whose members stop; a script: sweeps_packed_crash.py FOLDER.

As `sweeps_crash`, whose forked workers it uses. It prints one JSON object.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import sweeps_crash
from hmmscope.sweeps import jobs, worker
from hmmscope.sweeps.driver import run_sweep
from hmmscope.sweeps.grid import Point, expand, make_folder
from hmmscope.sweeps.local import LocalEngine
from hmmscope.sweeps.table import table_rows
from hmmscope.training import packed
from sweeps_crash import BASE, Forked, attack_one, fork, steps_of

KILLS, MAX_SWEEPS = 6, 12
#: The second member of each pack stops at this step.
SPOILT_STEP = 4


class ForkedPack(Forked):
    """A worker of several runs: the last word of its command are their names."""

    def __init__(self, command: list[str], **options: Any) -> None:
        at = command.index("hmmscope.sweeps.worker") + 1
        super().__init__([command[at], " ".join(command[at + 1 :])], **options)


def points_of(number: int) -> list[Point]:
    """So many instances of one run, and one more that diverges."""
    also = [{"training.learning_rate": "1e38", "training.warmup_steps": 0}]
    varied = expand({"base": BASE, "seeds": number, "instances": True})
    return varied + expand({"base": BASE, "also": also})[-1:]


class Eyes:
    """What the driver tells."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, str, int, bool]] = []

    def update(self, counts: dict[str, int]) -> None:
        pass

    def done(self, name: str) -> None:
        pass

    def failed(self, outcome: jobs.Outcome, attempts: int, again: bool) -> None:
        self.failures.append((outcome.name, outcome.reason, attempts, again))


def drive(points: list[Point], out: Path, pack: int | None = 8) -> int:
    """A driver from beginning to end, in this process; 5 if a run failed."""
    rows = run_sweep(points, out, LocalEngine(out, 2), pack=pack)
    return 5 if any(row["state"] != "done" for row in rows) else 0


def spoilt(folder: Path) -> dict[str, Any]:
    """The loss of the second member of every pack becomes NaN once; what the sweep says of it, and then does of it."""
    losses, calls = packed.member_losses, 0

    def changed(*args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        found = losses(*args)
        return found * torch.tensor([1.0, float("nan"), 1.0]) if calls == SPOILT_STEP else found

    packed.member_losses = changed
    points, eyes, out = points_of(6)[:-1], Eyes(), folder / "spoilt"
    rows = run_sweep(points, out, LocalEngine(out, 2), watcher=eyes, pack=8)
    packed.member_losses = losses
    again = run_sweep(points, out, LocalEngine(out, 2), pack=8)
    return {
        "states": [row["state"] for row in rows],
        "reasons": [row["reason"] for row in rows],
        "failures": [failure[1:] for failure in eyes.failures],
        "again": [row["state"] for row in again],
        "steps": [steps_of(out, point) for point in points],
    }


def deadly(folder: Path) -> dict[str, Any]:
    """Every worker of a pack dies; a run by itself does not."""
    together = worker.train_packed
    worker.train_packed = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    points, eyes, out = points_of(4)[:-1], Eyes(), folder / "deadly"
    rows = run_sweep(points, out, LocalEngine(out, 1), watcher=eyes, retries=2, pack=8)
    worker.train_packed = together
    return {"rows": rows, "failures": eyes.failures, "names": [point.name for point in points]}


def attack(folder: Path) -> dict[str, Any]:
    """Kill workers and drivers at random instants until enough of both are, and finish the sweeps that the kills fell in."""
    points, rng = points_of(6), random.Random(11)
    sweeps_crash.drive = drive
    killed, sweeps, found = {"worker": 0, "driver": 0}, 0, []
    while (sum(killed.values()) < KILLS or not all(killed.values())) and sweeps < MAX_SWEEPS:
        sweeps += 1
        out = folder / f"attacked{sweeps}"
        attack_one(points, out, sum(killed.values()) + KILLS, killed, 0.3, rng)
        os.waitpid(fork(lambda out=out: drive(points, out)), 0)  # type: ignore[misc]  # alone: removes what was left
        places = (out, out / "runs")
        found.append(
            {
                "rows": table_rows(out, points),
                "steps": [steps_of(out, point) for point in points[:-1]],
                "left": [path.name for where in places for path in where.iterdir() if path.name.startswith(".tmp-")],
                "folders": len(list((out / "runs").iterdir())),
            }
        )
    return {"killed": killed, "sweeps": found}


if __name__ == "__main__":
    torch.set_num_threads(1)
    jobs.subprocess.Popen = ForkedPack  # type: ignore[misc, assignment]
    single = worker.main
    worker.main = lambda out, names: single(out, *names.split())  # type: ignore[assignment, misc]
    folder = Path(sys.argv[1])
    points = points_of(6)
    make_folder(folder / "warm", points)
    worker.work_together(folder / "warm", tuple(point.name for point in points[:2]))  # imports, compiled kernels
    tables: dict[str, Any] = {}
    for label, pack in (("alone", 1), ("together", 8)):
        run_sweep(points, folder / label, LocalEngine(folder / label, 2), pack=pack)
        tables[label] = table_rows(folder / label, points)
    print(json.dumps({**tables, "spoilt": spoilt(folder), "deadly": deadly(folder), "attack": attack(folder)}))
