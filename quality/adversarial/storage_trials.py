"""Trials of storage: kills, power cuts, disk errors and races."""

import errno
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rundir_crash
from hmmscope.errors import HmmscopeError
from hmmscope.storage import disk, store
from hmmscope.storage.rundir import RunDir
from rundir_cases import OPERATIONS, leftovers, power_violation, small_tensors, train_under_record
from rundir_faults import crash_states, failing, materialise
from trials import Report, trial


@trial("kills")
def kills(folder: Path, number: int, rng: random.Random) -> Report:
    """Kill a process that saves checkpoints, half of the times at a random time and half before a chosen disk operation."""
    report = Report("G1", "SIGKILL while checkpoints are saved")
    (folder / "instants").mkdir()
    found = rundir_crash.kills(folder / "instants", number - number // 2, rng.randrange(2**30), "ours")
    report.trials += found["killed"]
    if found["violation"]:
        report.found(found["violation"])
    struck = found["interrupted"]
    path = folder / "operations"
    with RunDir.create(path, {}) as run:
        run.metrics.append({"step": 1})
        run.save_checkpoint(1, rundir_crash.tensors_at(1), {"note": 1})
    for fatal in range(number // 2):
        pid, read = rundir_crash.fork(lambda pipe, fatal=fatal: _die_before(fatal % 60, path, pipe))  # type: ignore[misc]
        os.waitpid(pid, 0)
        with os.fdopen(read) as pipe:
            acknowledged = max([0, *(int(line) for line in pipe.read().split())])
        struck += bool(leftovers(path / "checkpoints"))
        report.trials += 1
        wrong = rundir_crash.violation(path, acknowledged)
        if wrong:
            report.found(f"before operation {fatal % 60}: {wrong}")
            shutil.rmtree(path)
            with RunDir.create(path, {}):
                pass
    report.note = f"{struck} of them during a save"
    return report


def _die_before(fatal: int, path: Path, pipe: int) -> None:
    count = 0

    def fatal_at(real: Callable) -> Callable:
        def operation(*args: Any) -> Any:
            nonlocal count
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return real(*args)

        return operation

    for name in OPERATIONS:
        setattr(disk, name, fatal_at(getattr(disk, name)))
    rundir_crash.train(path, pipe)


@trial("power-losses")
def power_losses(folder: Path, number: int, rng: random.Random) -> Report:
    """Simulate power cuts at any point of a short run, with unsynced data kept, lost or corrupted."""
    report = Report(
        "G2",
        "simulated power cut: unsynced data is kept, lost or corrupted; unsynced changes of names are kept up to some point",
    )
    patch = pytest.MonkeyPatch()
    (folder / "record").mkdir()
    log = train_under_record(folder / "record", patch)
    seen: set[int] = set()
    for acknowledged, tree in crash_states(log, rng, number):
        report.trials += 1
        key = hash((acknowledged, repr(tree)))
        if key in seen:
            continue
        seen.add(key)
        materialise(tree, folder / "state")
        if wrong := power_violation(folder / "state", acknowledged):
            report.found(wrong)
        shutil.rmtree(folder / "state")
    report.note = f"{len(seen)} of the states are distinct"
    return report


@trial("errors")
def errors(folder: Path, number: int, rng: random.Random) -> Report:
    """Let each disk operation of writing a file, folder or checkpoint fail with five errors, alone or with later ones."""
    report = Report("G7", "a disk error at each operation of each kind of write")
    codes = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES)
    jobs = [
        (work, name, code, lasting) for work in _WORKS for name in OPERATIONS for code in codes for lasting in (0, 1)
    ]
    rng.shuffle(jobs)
    for work, name, code, lasting in jobs:
        for at in range(100):
            if report.trials >= number:
                return report
            place = folder / str(report.trials)
            place.mkdir()
            if not _failing_work(report, place, work, name, code, at, bool(lasting)):
                break
    return report


def _failing_work(report: Report, place: Path, work: str, name: str, code: int, at: int, lasting: bool) -> bool:
    """Make one attempt; return False if the work has at most `at` operations of that name."""
    prepare, act, check = _WORKS[work]
    prepare(place)
    real = getattr(disk, name)
    fault = failing(real, at, code)

    def always(*args: Any) -> Any:
        if fault.left < 0:
            raise OSError(code, os.strerror(code))
        return fault(*args)

    setattr(disk, name, always if lasting else fault)
    failed = None
    try:
        act(place)
    except HmmscopeError as error:
        failed = error
    except Exception as error:
        report.found(f"{work}: {name} {at} {errno.errorcode[code]}: {type(error).__name__}: {error}")
    finally:
        setattr(disk, name, real)
    struck = fault.left < 0
    if struck:
        report.trials += 1
        wrong = check(place, failed)
        if wrong:
            report.found(f"{work}: {name} {at} {errno.errorcode[code]}: {wrong}")
    shutil.rmtree(place)
    return struck


def _old_or_new(path: Path, failed: Exception | None) -> str | None:
    found = path.read_bytes()
    if found not in (b"old", b"new"):
        return f"{path.name} is neither the old nor the new file"
    return None if failed or found == b"new" else "reported as written, but is not"


def _folder_or_none(path: Path, failed: Exception | None) -> str | None:
    if not path.exists():
        return None if failed else "reported as made, but is not"
    try:
        store.verify_folder(path)
    except HmmscopeError as error:
        return str(error)
    return None


def _make(place: Path) -> None:
    with store.new_folder(place / "made") as inside:
        store.write_json(inside / "a.json", {"a": 1})
        store.make_folder(inside / "deep")
        store.write_text(inside / "deep" / "b", "b")


def _begun(place: Path) -> None:
    with RunDir.create(place / "run", {}) as run:
        for step in (1, 2):
            run.metrics.append({"step": step})
            run.save_checkpoint(step, small_tensors(step), {"note": step})


def _saved(place: Path) -> None:
    with RunDir.open(place / "run", lock=True) as run:
        run.metrics.append({"step": 3})
        run.save_checkpoint(3, small_tensors(3), {"note": 3})
        run.mark_done({"steps": 3})


def _whole_run(place: Path, failed: Exception | None) -> str | None:
    try:
        with RunDir.open(place / "run", lock=True) as run:
            found = run.load_checkpoint()
            if found is None or found[0] < 2 or found[2]["note"] != found[0]:
                return "a committed checkpoint is lost"
            if failed is None and run.done is None:
                return "reported as done, but is not"
            if leftovers(run.path):
                return "leftovers"
    except HmmscopeError as error:
        return str(error)
    return None


_WORKS: dict[str, tuple[Callable, Callable, Callable]] = {
    "file": (
        lambda place: (place / "file").write_bytes(b"old"),
        lambda place: store.write_bytes(place / "file", b"new"),
        lambda place, failed: _old_or_new(place / "file", failed),
    ),
    "folder": (lambda place: None, _make, lambda place, failed: _folder_or_none(place / "made", failed)),
    "run": (_begun, _saved, _whole_run),
}


@trial("races")
def races(folder: Path, number: int, rng: random.Random) -> Report:
    """Let eight processes create the same run: exactly one must succeed."""
    report = Report("G18", "eight processes that create the same run at once")
    found = rundir_crash.race(folder, number)
    report.trials = number
    for winners in found["winners"]:
        if winners != 1:
            report.found(f"{winners} won")
    if not set(found["codes"]) <= {0, 3}:
        report.found(f"exit codes {json.dumps(found['codes'])}")
    if hidden := [name for name in found["names"] if name.startswith(".")]:
        report.found(f"left over: {hidden[0]}")
    return report
