"""Sweeps whose processes are killed, and races; run as a script: sweeps_crash.py FOLDER MODE=NUMBER ...

One process with torch imported forks the drivers, and these their fork servers, so that a kill costs milliseconds. All else
is the real thing: logs, sockets, signals, exit codes. It prints one JSON object.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hmmscope.errors import HmmscopeError
from hmmscope.lab import worker
from hmmscope.lab.sweeps.grid import GridPoint, expand, make_folder
from hmmscope.lab.sweeps.run_task import RunTask
from hmmscope.lab.sweeps.sweeping import run_sweep
from hmmscope.lab.sweeps.table import table_rows
from hmmscope.lab.tasks import local
from hmmscope.lab.tasks.driver import ProgressListener
from hmmscope.lab.tasks.local import LocalExecutor
from hmmscope.runs import training
from hmmscope.storage.rundir import RunDir, read_journal

NUM_STEPS = 6

BASE: dict[str, Any] = {
    "process": {"name": "random-hmm", "num_states": 3, "num_symbols": 4},
    "layout": {"name": "sequences", "length": 8},
    "model": {"name": "rnn", "width": 8},
    "training": {
        "num_steps": NUM_STEPS,
        "batch_size": 4,
        "warmup_steps": 1,
        "checkpoint_every": 2,
        "evaluate_every": 3,
        "evaluate_samples": 4,
        "device": "cpu",
    },
}


def points_of(number: int) -> list[GridPoint]:
    """So many runs, and one more that diverges."""
    also = [{"training.learning_rate": "1e38", "training.warmup_steps": 0, "seed": 0}]
    rates = [f"{k + 1}e-3" for k in range(number)]
    return expand({"base": BASE, "vary": {"training.learning_rate": rates}, "also": also})


class Forked:
    """In place of subprocess.Popen: the same fork server, forked from this process, which has imported everything."""

    def __init__(self, command: list[str], *, stdin: int, env: dict[str, str], **_: Any) -> None:
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_DFL)
                os.dup2(stdin, 0)
                os.closerange(3, 256)
                os.environ.update(env)
                worker.main()
            finally:
                os._exit(0)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.01)
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork(work: Callable[[], int]) -> int:
    """The process id of a child that ends with the code that `work` returns, or that of its error."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = work()
    except HmmscopeError as error:
        code = error.exit_code
    finally:
        os._exit(code)


def drive(points: list[GridPoint], out: Path, at_once: int = 2) -> int:
    """A driver from beginning to end; 5 if a run failed, as the command line says it."""
    rows = run_sweep(points, out, LocalExecutor(at_once))
    return 5 if any(row["state"] != "done" for row in rows) else 0


def complete(points: list[GridPoint], out: Path) -> bool:
    """Whether all runs but the diverging one are done."""
    return sum(RunTask(out, point.name).is_done() for point in points) == len(points) - 1


def fingerprint(points: list[GridPoint], out: Path) -> dict[str, str]:
    """Digests of the table and of everything that a seed fixes in the finished runs."""
    files = [out / "table.jsonl"]
    for point in points[:-1]:
        run = RunTask(out, point.name).folder
        files += [run / "metrics.jsonl", run / "evaluation.jsonl", run / "done.json"]
        files += sorted((run / "checkpoints" / f"step-{NUM_STEPS:09d}").iterdir())
    return {str(file.relative_to(out)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def children(pid: int) -> list[int]:
    """The children of a process, from /proc."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def attack(folder: Path, number: int, runs: int, seed: int = 7) -> dict:
    """Kill processes of three kinds `number` times at random instants, and finish the sweeps that the kills fell in."""
    points = points_of(runs)
    whole = folder / "whole"
    begun = time.perf_counter()
    os.waitpid(fork(lambda: drive(points, whole)), 0)
    duration = time.perf_counter() - begun
    assert complete(points, whole), table_rows(whole, points)
    rng = random.Random(seed)
    killed, drivers, sweeps, results = {"worker": 0, "server": 0, "driver": 0}, 0, 0, []
    while sum(killed.values()) < number:
        sweeps += 1
        out = folder / f"attacked{sweeps}"
        drivers += attack_one(points, out, number, killed, min(0.4, duration / 6), rng)
        os.waitpid(fork(lambda out=out: drive(points, out)), 0)  # type: ignore[misc]  # alone: removes what was left
        results.append(
            {
                "same": fingerprint(points, whole) == fingerprint(points, out),
                "files": len(fingerprint(points, out)),
                "left": [
                    str(p) for where in (out, out / "runs") for p in where.iterdir() if p.name.startswith(".tmp-")
                ],
                "once": all(steps_of(out, point) == list(range(1, NUM_STEPS + 1)) for point in points[:-1]),
                "reason": table_rows(out, points)[-1]["reason"],
                "folders": len(list((out / "runs").iterdir())),
            }
        )
    return {"killed": killed, "drivers": drivers, "sweeps": results}


def attack_one(
    points: list[GridPoint], out: Path, number: int, killed: dict[str, int], longest: float, rng: random.Random
) -> int:
    """Start drivers until all runs are done, and kill meanwhile, up to `number` in all; returns how many drivers."""
    for drivers in range(1, 100 + number):
        driver, status = fork(lambda: drive(points, out)), None
        while status is None:
            kind = "nobody"
            if sum(killed.values()) < number:
                time.sleep(rng.uniform(0, longest))
                wanted = ("worker", "worker", "driver", "worker", "server", "driver")[sum(killed.values()) % 6]
                servers = children(driver)
                victims = {"driver": [driver], "server": servers}.get(
                    wanted, [worker for server in servers for worker in children(server)]
                )
                if victims:
                    kind = wanted
                    os.kill(rng.choice(victims), signal.SIGKILL)
                    killed[kind] += 1
            else:
                time.sleep(0.05)
            ended, code = os.waitpid(driver, 0 if kind == "driver" else os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if ended else None
        assert status in (5, -signal.SIGKILL), status
        if status == 5 and complete(points, out):
            return drivers
    raise AssertionError("the sweep does not end")


def steps_of(out: Path, point: GridPoint) -> list[int]:
    """The steps in a run's journal."""
    return [record["step"] for record in read_journal(RunTask(out, point.name).folder / "metrics.jsonl")]


def race_for_a_run(folder: Path, number: int) -> dict:
    """So many workers begin one run at once; the winner goes on when all others have ended."""
    points = points_of(1)
    out, go, name = folder / "run-race", folder / "go", points[0].name
    make_folder(out, points)
    train_model = training.train_model

    def patient(*args: Any, **options: Any) -> None:
        while not go.exists():
            time.sleep(0.02)
        train_model(*args, **options)

    training.train_model = patient
    silent, (held, _) = os.open(folder / "log", os.O_WRONLY | os.O_CREAT), os.pipe()

    def race() -> int:
        for target, source in enumerate((held, silent, silent)):
            os.dup2(source, target)
        return worker.run(json.dumps({"kind": "run", "out": str(out), "name": name}).encode())

    racing, codes = [fork(race) for _ in range(number)], []
    deadline = time.monotonic() + 120
    while len(codes) < number - 1 and time.monotonic() < deadline:
        ended, status = os.waitpid(-1, os.WNOHANG)
        codes += [os.waitstatus_to_exitcode(status)] if ended in racing else []
        time.sleep(0.02)
    losers = list(codes)
    go.write_text("")
    codes = sorted([*codes, os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1])])
    return {"losers": losers, "codes": codes, "done": RunTask(out, name).is_done(), "state": RunTask(out, name).state()}


def race_of_drivers(folder: Path, number: int) -> dict:
    """So many drivers begin one sweep at once."""
    points = points_of(3)
    out = folder / "driver-race"
    pids = [fork(lambda: drive(points, out, 1)) for _ in range(number)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    os.waitpid(fork(lambda: drive(points, folder / "alone")), 0)
    return {"codes": codes, "same": fingerprint(points, out) == fingerprint(points, folder / "alone")}


def growth(folder: Path, number: int) -> dict:
    """Bytes that the driver grows by, and descriptors and threads that it keeps, in a sweep of `number` empty runs."""
    train_it = RunTask.do

    def nothing(task: RunTask, **_: bool) -> None:
        with RunDir.create(task.folder, {}) as run:
            run.mark_done({})

    RunTask.do = nothing  # type: ignore[method-assign, assignment]
    seen = []

    class Eyes(ProgressListener):
        done_so_far, most = 0, 0

        def update(self, counts: dict[str, int]) -> None:
            self.most = max(self.most, *(len(children(server)) for server in children(os.getpid())), 0)

        def done(self, name: str) -> None:
            self.done_so_far += 1
            if self.done_so_far in (50, number):
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                seen.append((pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))))

        def failed(self, *_: Any) -> None:
            raise AssertionError

    points, eyes, out = points_of(number - 1), Eyes(), folder / "many"
    run_sweep(points, out, LocalExecutor(2), watcher=eyes)
    RunTask.do = train_it  # type: ignore[method-assign]
    (early, open_early), (late, open_late) = seen
    return {"bytes": late - early, "descriptors": open_late - open_early, "at_once": eyes.most}


if __name__ == "__main__":
    torch.set_num_threads(1)
    local.subprocess.Popen = Forked  # type: ignore[misc, assignment]
    folder = Path(sys.argv[1])
    warm = points_of(1)
    make_folder(folder / "warm", warm)
    RunTask(folder / "warm", warm[0].name).do()  # imports, compiled kernels
    found: dict[str, Any] = {}
    for mode, _, number in (word.partition("=") for word in sys.argv[2:]):
        if mode == "attack":
            kills, runs = number.split(":")
            found[mode] = attack(folder, int(kills), int(runs))
        else:
            modes = {"race": race_for_a_run, "drivers": race_of_drivers, "growth": growth}
            found[mode] = modes[mode](folder, int(number))
    print(json.dumps(found))
