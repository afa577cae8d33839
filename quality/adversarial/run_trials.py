"""Trials of trainings, sweeps and commands that get a signal; the final result must not depend on it."""

import mmap
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import distributed_script as several
import sweeps_crash
import training_crash
from hmmscope import TrainOptions
from hmmscope.lab.sweeps import grid
from hmmscope.lab.sweeps.run_task import RunTask
from hmmscope.lab.tasks import local
from hmmscope.runs.config import config_from_data
from hmmscope.runs.training import train
from hmmscope.training import updates
from training_crash import fork, wait
from trials import Report, trial


@trial("trainings")
def trainings(folder: Path, number: int, rng: random.Random) -> Report:
    """Kill trainings at random times and resume them: the deterministic files must have the same bytes at the end."""
    report = Report("G3", "trainings killed at random times and resumed: weights, optimizer moments, metrics and score")
    found = training_crash.kills(folder, number, rng.randrange(2**30))
    report.trials = found["killed"]
    for name in found["different"]:
        report.found(f"{name} ends with other bytes")
    report.note = f"{found['runs']} trainings, killed at {found['instants']} different steps"
    return report


@trial("resizes")
def resizes(folder: Path, number: int, rng: random.Random) -> Report:
    """Stop a training of one process and resume it with two, four and one processes: the files must have the same bytes."""
    report = Report("G4", "trainings stopped at random steps and resumed, with 1, 2, 4 and 1 processes")
    several.verb.train = several.trained  # type: ignore[assignment]
    last, settings = several.NUM_STEPS, several.EXACT
    several.train(folder / "whole", 1, settings)
    whole = several.fingerprint(folder / "whole" / "run", last)
    for at in range(number):
        place, killed = folder / str(at), rng.random() < 0.5
        stops = sorted(rng.sample(range(8, last), 3))  # the first checkpoint is at step 7
        for size, step in zip((1, 2, 4), stops, strict=True):
            end = several.die if killed else lambda: os.kill(os.getpid(), signal.SIGTERM)
            ended = several.train(place, size, settings, before=several.at_step(step, rng.randrange(size), end))
            if 0 in ended["codes"]:
                report.found(f"{size} processes did not stop at step {step}: {ended['codes']}")
        ended = several.train(place, 1, settings)
        report.trials += 1
        if ended["codes"] != [0] or several.fingerprint(place / "run", last) != whole:
            report.found(f"ended at {stops}, {'killed' if killed else 'terminated'}: {ended}")
        shutil.rmtree(place)
    return report


@trial("interrupts")
def interrupts(folder: Path, number: int, rng: random.Random) -> Report:
    """Send SIGINT or SIGTERM to a training: it must exit without a traceback, and resume to the same bytes."""
    report = Report("G19", "SIGINT and SIGTERM at random times of a training")
    found = training_crash.signals(folder, number, rng.randrange(2**30))
    report.trials = number
    for repeat, code, error in found["wrong"]:
        report.found(f"{repeat}: {code}: {error}")
    report.note = "exit codes " + ", ".join(f"{code}: {count}" for code, count in sorted(found["ended"].items()))
    return report


@trial("starts")
def starts(folder: Path, number: int, rng: random.Random) -> Report:
    """Send SIGINT to a command at any time from its start to its end: no traceback, and no wrong exit code."""
    report = Report("G19", "Ctrl-C at a random time of the process `hmmscope show`")
    begun = time.monotonic()
    words = [sys.executable, "-m", "hmmscope", "show", "models"]
    subprocess.run(words, capture_output=True, check=True)
    whole, early = time.monotonic() - begun, 0
    for _ in range(number):
        report.trials += 1
        child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(rng.uniform(0, 1.2 * whole))
        child.send_signal(signal.SIGINT)
        error, code = child.communicate()[1], child.returncode
        if "hmmscope" not in error and "Traceback" in error:
            early += 1  # Python itself was still starting
        elif "Traceback" in error or code not in (0, 130, -signal.SIGINT):
            report.found(f"{code}: {error[-200:]}")
    report.note = f"{early} more arrived while Python itself was starting, which prints a traceback of its own"
    report.trials -= early
    return report


@trial("sweeps")
def sweeps(folder: Path, number: int, rng: random.Random) -> Report:
    """Kill processes of local sweeps: the table must have the same bytes, with each run once and no process left."""
    report = Report("G17", "workers, fork servers and drivers of local sweeps killed at random times")
    real = local.subprocess.Popen
    local.subprocess.Popen = sweeps_crash.Forked  # type: ignore[misc, assignment]
    try:
        warm = sweeps_crash.points_of(1)
        sweeps_crash.make_folder(folder / "warm", warm)
        RunTask(folder / "warm", warm[0].name).do()
        found = sweeps_crash.attack(folder, number, 4, rng.randrange(2**30))
    finally:
        local.subprocess.Popen = real  # type: ignore[misc]
    killed = found["killed"]
    report.trials = sum(killed.values())
    for at, sweep in enumerate(found["sweeps"]):
        wrong = [key for key in ("same", "once") if not sweep[key]] + ["left"] * bool(sweep["left"])
        if wrong or sweep["folders"] != 5:
            report.found(f"sweep {at}: {', '.join(wrong)} {sweep}")
    victims = f"{killed['worker']} workers, {killed['server']} fork servers and {killed['driver']} drivers"
    report.note = f"{victims}, in {len(found['sweeps'])} sweeps"
    return report


#: Seconds without a step after which a worker of the long sweep is killed.
_SILENCE = 5.0


@trial("runs")
def runs(folder: Path, number: int, rng: random.Random) -> Report:
    """Kill or stop one worker in a hundred of a long sweep: each run must equal that of an undisturbed sweep."""
    report = Report("G17", "runs of one sweep in which one worker in a hundred is killed, or stopped forever")
    grid_of = {"base": sweeps_crash.BASE, "vary": {"seed": list(range(number))}}
    points, outs = grid.expand(grid_of, {}), [folder / "whole", folder / "attacked"]
    struck = {signal.SIGKILL: 0, signal.SIGSTOP: 0}
    thresholds = sorted(rng.randrange(number) for _ in range(max(1, number // 100)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local.subprocess, "Popen", sweeps_crash.Forked)
        for out in outs:
            driver = fork(lambda out=out: _drive(points, out))  # type: ignore[misc]
            left, status = list(thresholds) if out.name == "attacked" else [], None
            while status is None:
                time.sleep(0.002 if left else 0.05)
                begun = len(os.listdir(out / "runs")) if (out / "runs").exists() else 0
                servers = sweeps_crash.children(driver)
                if (
                    left
                    and begun > left[0]
                    and (victims := [one for pid in servers for one in sweeps_crash.children(pid)])
                ):
                    number_of = (signal.SIGKILL, signal.SIGSTOP)[len(left) % 2]
                    os.kill(rng.choice(victims), number_of)
                    struck[number_of] += 1
                    left.pop(0)
                ended, code = os.waitpid(driver, os.WNOHANG)
                status = os.waitstatus_to_exitcode(code) if ended else None
            if status:
                report.found(f"{out.name}: the driver ended with {status}")
    report.trials = number
    # `fingerprint` omits the last point, because it diverges in other sweeps
    whole, attacked = (sweeps_crash.fingerprint([*points, points[0]], out) for out in outs)
    for name in sorted(whole.keys() | attacked.keys()):
        if whole.get(name) != attacked.get(name):
            report.found(f"{name} differs")
    steps = list(range(1, sweeps_crash.NUM_STEPS + 1))
    for point in points:
        if sweeps_crash.steps_of(outs[1], point) != steps:
            report.found(f"{point.name}: steps {sweeps_crash.steps_of(outs[1], point)}")
    if extra := {path.name for path in (outs[1] / "runs").iterdir()} ^ {point.name for point in points}:
        report.found(f"left or lost: {sorted(extra)[:3]}")
    report.note = f"{struck[signal.SIGKILL]} workers killed, {struck[signal.SIGSTOP]} stopped"
    return report


def _drive(points: Any, out: Path) -> int:
    rows = sweeps_crash.run_sweep(points, out, sweeps_crash.LocalExecutor(2, heartbeat_timeout=_SILENCE))
    return int(any(row["state"] != "done" for row in rows))


#: Configuration with checkpoints of 9.7 MB (weights and two moments each) and short steps.
_HEAVY = training_crash.CONFIG | {
    "model": {"name": "roformer", "num_layers": 1, "num_heads": 2, "width": 256, "mlp_ratio": 4},
    "training": training_crash.CONFIG["training"] | {"num_steps": 8, "checkpoint_every": 4, "evaluate_every": 8},
}
#: Largest additional processor time of a resumption, in seconds.
_DEAREST = 2.0


@trial("resumptions")
def resumptions(folder: Path, number: int, rng: random.Random) -> Report:
    """Kill trainings after a checkpoint and resume them: compare their processor time with uninterrupted trainings."""
    report = Report(
        "G21", "trainings with 10 MB of state, killed and resumed: processor time compared with uninterrupted ones"
    )
    config, wholes, costs = config_from_data(_HEAVY), [], []

    def spent(path: Path, before: Callable[[], object] = int) -> float:
        def work() -> None:
            before()
            train(config, path, resume=True, options=TrainOptions(num_samples=4))

        used = os.wait4(training_crash.fork(work), 0)[2]
        return used.ru_utime + used.ru_stime

    train(config, folder / "warm", options=TrainOptions(num_samples=4))
    for at in range(number):
        wholes.append(spent(folder / f"whole{at}"))
        path, step = folder / f"killed{at}", rng.randrange(5, 9)
        costs.append(spent(path, lambda step=step: _die_in(step)) + spent(path))  # type: ignore[misc]
        report.trials += 1
        shutil.rmtree(path)
    whole = statistics.median(wholes)
    for cost in costs:
        if cost - whole > _DEAREST:
            report.found(f"a resumption cost {cost - whole:.2f} s of processor time")
    ratio, dearest = statistics.median(costs) / whole, max(costs) - whole
    report.note = (
        f"{ratio:.2f} times the processor time of {whole:.2f} s; the most expensive resumption {dearest:.2f} s"
    )
    return report


def _die_in(step: int) -> None:
    """Kill this process at a training step."""
    loss, calls = updates.target_loss, 0

    def deadly(*given: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss(*given, **options)

    updates.target_loss = deadly


@trial("drivers")
def drivers(folder: Path, number: int, rng: random.Random) -> Report:
    """Let two drivers extend one sweep at once: only one may be in the locked section, and the grid must get all points."""
    report = Report(
        "G18", "two drivers that extend one sweep at once; each waits for the other inside the locked section"
    )
    sides = [["1e-3", "2e-3"], ["1e-3", "2e-3", "3e-3"]]
    grids = [grid.expand({"base": None, "vary": {"training.learning_rate": side}}, {}) for side in sides]
    for attempt in range(number):
        out, inside = folder / str(attempt), mmap.mmap(-1, 4)  # number inside, whether two were inside, who has started
        grid.make_folder(out, grids[0], shared=True)

        def extend(side: int, out: Path = out, inside: mmap.mmap = inside) -> None:
            real = grid._read_grid

            def read(where: Path) -> Any:
                inside[0] += 1
                until = time.monotonic() + 0.15
                while time.monotonic() < until:  # long enough for the other to enter if it could
                    inside[1] |= inside[0] > 1
                    time.sleep(0.001)
                inside[0] -= 1
                return real(where)

            grid._read_grid = read  # type: ignore[assignment]
            inside[2 + side] = 1
            while not (inside[2] and inside[3]):  # on a busy machine one may start much later
                time.sleep(0.001)
            grid.extend_folder(out, grids[side], shared=True)
            os._exit(0)

        children = [fork(lambda side=side: extend(side)) for side in (0, 1)]  # type: ignore[misc]
        codes = [wait(child) for child in children]
        report.trials += 1
        names = {point.name for point in grid.load_points(out)}
        if codes != [0, 0] or inside[1] or names != {point.name for point in grids[1]}:
            report.found(f"{codes}: {'two were inside' if inside[1] else f'{len(names)} points'}")
    return report


class _Asleep:
    """Replacement of the fork server with a worker that sleeps until it is killed."""

    def fork(self, task: Any, log: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        child = fork(lambda: time.sleep(600))
        theirs.send(b"%d\n" % child)

        def tell() -> None:
            with theirs:
                theirs.send(b"%d\n" % wait(child))

        threading.Thread(target=tell, daemon=True).start()
        return ours


@trial("jumps")
def jumps(folder: Path, number: int, rng: random.Random) -> Report:
    """Let the wall clock and file dates jump: a watched worker must be killed if and only if it makes no progress."""
    report = Report("G31", "wall clocks and file dates that jump by hours and days while a worker is watched")
    limit, killed = 10.0, 0
    for at in range(number):
        task = RunTask(folder / str(at), "run")
        journal = task.folder / "metrics.jsonl"
        journal.parent.mkdir(parents=True)
        wall, now = 1.8e9, 1000.0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time", lambda: wall)  # noqa: B023 - the value at the time of the call
            patch.setattr(time, "monotonic", lambda: now)  # noqa: B023
            job, seen, outcome = local.Job(_Asleep(), task, heartbeat_timeout=limit), now, None  # type: ignore[arg-type]
            for look in range(20):
                now += rng.uniform(0.1, 8)
                wall += rng.choice((0, 0, 3600, -3600, 86400, -86400))
                if rng.random() < 0.6:
                    with journal.open("a") as file:
                        file.write("{}\n")
                    date_of_file = wall + rng.choice((0, 3600, -3600))
                    os.utime(journal, (date_of_file, date_of_file))
                    seen = now
                outcome = job.poll()
                if (outcome is not None) != (now - seen > limit):
                    report.found(
                        f"look {look}: {'killed' if outcome else 'alive'} after {now - seen:.1f} s of {limit:g}"
                    )
                if outcome is not None:
                    break
            killed += outcome is not None
            if outcome is None:
                job.wait(0)
        report.trials += 1
        shutil.rmtree(task.out)
    report.note = f"{killed} stalled and were killed, the others survived 20 checks"
    return report
