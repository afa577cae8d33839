"""Engines of sweeps under attack: killed processes, races, signals; Ray and Slurm where they are installed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import forking
from hmmscope.errors import InputError, ResourceError
from hmmscope.lab.sweeps.grid import GridPoint, expand, make_folder
from hmmscope.lab.sweeps.run_task import RunTask
from hmmscope.lab.sweeps.sweeping import run_sweep
from hmmscope.lab.tasks.driver import ProgressListener
from hmmscope.lab.tasks.local import LocalExecutor
from hmmscope.lab.tasks.task import BUSY, Outcome
from hmmscope.processes.files import load_process
from hmmscope.storage import store
from sweeps_crash import BASE, children

SCRIPT = Path(__file__).with_name("sweeps_crash.py")
LONG = {"base": BASE | {"training": BASE["training"] | {"num_steps": 10**6, "evaluate_every": 0}}, "seeds": 2}


def script(folder: Path, *modes: str, timeout: float = 500) -> dict[str, Any]:
    done = forking.run([str(SCRIPT), str(folder), *modes], timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def until(true: Callable[[], object], seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "never became true"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def small(rates: int = 2) -> list[GridPoint]:
    return expand({"base": BASE, "vary": {"training.learning_rate": [f"{k + 1}e-3" for k in range(rates)]}})


def check_attack(found: dict[str, Any], kills: int, runs: int) -> None:
    """Nothing lost, nothing doubled, nothing left, and the table is that of the undisturbed sweep, byte for byte."""
    assert sum(found["killed"].values()) == kills
    assert found["killed"]["driver"] > 0
    assert found["killed"]["worker"] > 0
    assert found["killed"]["server"] > 0
    assert found["sweeps"]
    for sweep in found["sweeps"]:
        assert sweep["same"]
        assert sweep["files"] == 1 + 7 * runs  # the table; metrics, evaluation, summary and the four of a checkpoint
        assert sweep["once"]
        assert sweep["left"] == []
        assert sweep["folders"] == runs + 1
        assert sweep["reason"].startswith("error[6] step 2: loss is not finite")


@pytest.mark.long
def test_killed_workers_and_drivers_change_no_byte(tmp_path: Path) -> None:
    check_attack(script(tmp_path, "attack=8:6")["attack"], 8, 6)


@pytest.fixture(scope="module", params=[(4, 3), pytest.param((16, 8), marks=pytest.mark.slow)], ids=["few", "many"])
def raced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Races of so many workers and drivers, in one process, so that torch is imported once."""
    workers, drivers = request.param
    found = script(tmp_path_factory.mktemp("raced"), f"race={workers}", f"drivers={drivers}")
    return found | {"workers": workers, "number": drivers}


def test_of_workers_that_race_for_a_run_one_wins(raced: dict[str, Any]) -> None:
    found, losers = raced["race"], raced["workers"] - 1
    assert found["losers"] == [BUSY] * losers
    assert found["codes"] == [0] + [BUSY] * losers
    assert found["done"]


def test_drivers_at_once_make_one_sweep(raced: dict[str, Any]) -> None:
    assert raced["drivers"] == {"codes": [5] * raced["number"], "same": True}  # 5: one run diverges


@pytest.mark.soak
def test_long_attack(tmp_path: Path) -> None:
    check_attack(script(tmp_path, "attack=60:40", timeout=3000)["attack"], 60, 40)


@pytest.mark.soak
def test_many_runs_take_no_more_than_few(tmp_path: Path) -> None:
    found = script(tmp_path, "growth=300", timeout=1500)["growth"]
    assert found["at_once"] <= 2
    assert found["bytes"] < 5 << 20
    assert found["descriptors"] <= 2  # the pipe of a worker that was still there, or was not


# --------------------------------------------------------------------------------------------------------------------
# Real processes


@pytest.mark.drawn(1, of="processes")
def test_ctrl_c_saves_and_leaves_no_worker(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """SIGINT to the whole group, as a terminal sends it; then a part of the grid is gone on with by another engine call."""
    (tmp_path / "grid.yaml").write_text(json.dumps(LONG))
    out, points = tmp_path / "sweep", expand(LONG)
    command = [sys.executable, "-m", "hmmscope.lab.cli", "sweep", str(tmp_path / "grid.yaml")]
    command += ["--out", str(out), "--jobs", "2"]
    driver = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: driver.poll() is not None or all(RunTask(out, p.name).saved() for p in points))
    (server,) = children(driver.pid)
    workers = children(server)
    assert [RunTask(out, p.name).state() for p in points] == ["running", "running"]
    os.killpg(driver.pid, signal.SIGINT)
    _, error = driver.communicate(timeout=100)
    assert driver.returncode == 130
    assert error.startswith(f"plan: 2 runs, 2 seeds, 0, 1\nerror[130] {out}: stopped by the signal SIGINT; repeat the")
    assert len(workers) == 2
    assert not any(map(alive, [server, *workers]))
    assert [RunTask(out, p.name).state() for p in points] == ["partial", "partial"]
    logs = [(out / "logs" / f"{p.name}.log").read_text() for p in points]
    assert all(log.startswith("error[143] ") and "stopped by SIGTERM after step" in log for log in logs)
    assert not (out / "table.jsonl").exists()


@pytest.mark.drawn(1, of="processes")
def test_a_killed_driver_takes_its_workers_along(tmp_path: Path) -> None:
    out, points = tmp_path / "sweep", expand(LONG | {"seeds": 1})
    make_folder(out, points)
    code = "import sys; from hmmscope.lab.tasks.local import attend; from hmmscope.lab.sweeps.run_task import RunTask as T; "
    code += "attend(T.read(out=sys.argv[1], name=sys.argv[2]))"
    driver = subprocess.Popen([sys.executable, "-c", code, str(out), points[0].name])
    until(lambda: RunTask(out, points[0].name).saved())
    (server,) = children(driver.pid)
    (worker,) = children(server)
    driver.kill()
    driver.wait()
    until(lambda: not alive(worker) and not alive(server))
    assert RunTask(out, points[0].name).state() == "partial"
    assert "stopped by SIGTERM" in (out / "logs" / f"{points[0].name}.log").read_text()


@pytest.mark.long
@pytest.mark.drawn(1, of="processes")
def test_workers_say_why_they_fail(tmp_path: Path) -> None:
    """A process file that is not there; a killed worker; and a run folder with other content."""
    out = tmp_path / "sweep"
    load_process("umbrella").save(tmp_path / "none.json")
    missing = {"process": {"name": "file", "path": str(tmp_path / "none.json")}}
    points = [*expand({"base": BASE | missing}), *expand(LONG | {"seeds": 1}), *small(1)]
    make_folder(out, points)
    (tmp_path / "none.json").unlink()
    with (out / "runs" / points[2].name).open("w") as file:
        file.write("a file\n")
    engine = LocalExecutor(3)
    engine.submit([RunTask(out, point.name) for point in points])
    assert (engine.active, engine.free) == (3, 0)
    until(lambda: RunTask(out, points[1].name).saved())
    victim = engine.pids[1]
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    ended: list[Outcome] = []
    until(lambda: ended.extend(engine.finished()) or len(ended) == 3)
    found = {outcome.name: outcome for outcome in ended}
    assert found[points[0].name].exit_code == 2
    assert found[points[0].name].reason == f"error[2] process: no file {tmp_path}/none.json"
    assert found[points[0].name].final
    assert found[points[1].name] == Outcome(points[1].name, -9, "killed by SIGKILL (was there enough memory?)")
    assert not found[points[1].name].final
    assert found[points[2].name].kind == "failed"
    assert found[points[2].name].reason.startswith(f"error[2] runs/{points[2].name}: no such run folder")
    assert engine.active == 0
    for name, reason in (
        (points[1].name, "the exit code is unknown, because the fork server was killed"),
        (points[0].name, "error[2]"),
    ):
        step = RunTask(out, name).saved()
        engine.submit([RunTask(out, name)])  # a server that was killed is started again
        if name == points[1].name:
            until(lambda step=step: RunTask(out, points[1].name).saved() > step)
            (worker,) = engine.pids
            assert worker is not None
            os.kill(parent(worker), signal.SIGKILL)
            os.kill(worker, signal.SIGKILL)
        until(lambda: ended.extend(engine.finished()) or engine.active == 0)
        assert ended[-1].reason.startswith(reason)
    engine.stop()


@pytest.mark.drawn(1, of="processes")
def test_a_begun_run_keeps_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid that says "auto" goes on, elsewhere, with what the run began on."""
    automatic = expand({"base": BASE | {"training": BASE["training"] | {"device": "auto"}}})
    out, name = tmp_path / "sweep", automatic[0].name
    assert name == expand({"base": BASE})[0].name
    make_folder(out, automatic)
    RunTask(out, name).do()
    begun = store.read_json(RunTask(out, name).folder / "config.json")
    (RunTask(out, name).folder / "done.json").unlink()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    RunTask(out, name).do()
    assert begun["training"]["device"] == "cpu"
    assert store.read_json(RunTask(out, name).folder / "config.json") == begun
    assert RunTask(out, name).is_done()


# --------------------------------------------------------------------------------------------------------------------
# Ray


@pytest.fixture(scope="module")
def ray() -> None:
    """Asked for before what its tests compare with is made."""
    pytest.importorskip("ray")


@pytest.fixture(scope="module")
def submitit() -> None:
    pytest.importorskip("submitit")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The table of a small sweep on this machine."""
    out = tmp_path_factory.mktemp("local") / "sweep"
    assert [row["state"] for row in run_sweep(small(), out, LocalExecutor(2))] == ["done", "done"]
    return (out / "table.jsonl").read_bytes()


def workers_of(out: Path) -> list[int]:
    """Process ids of the workers of a sweep: whose standard output is one of its logs."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdecimal() and os.readlink(folder / "fd" / "1").startswith(f"{out}/logs/"):
                found.append(int(folder.name))
    return found


@pytest.mark.usefixtures("ray")
def test_ray_gives_the_same_table_though_a_task_is_killed(tmp_path: Path, undisturbed: bytes) -> None:
    from hmmscope.lab.tasks.ray import RayExecutor

    out, failures = tmp_path / "sweep", []
    engine = RayExecutor(2)

    class Killer(ProgressListener):
        """Kills the Ray process of the first worker it sees."""

        killed = 0

        def update(self, counts: dict[str, int]) -> None:
            if not self.killed and counts["running"]:
                until(lambda: workers_of(out))
                worker = workers_of(out)[0]
                os.kill(parent(parent(worker)), signal.SIGKILL)
                self.killed = worker

        def failed(self, outcome: Outcome, attempts: int, again: bool) -> None:
            failures.append((outcome.reason, attempts, again))

    killer = Killer()
    rows = run_sweep(small(), out, engine, watcher=killer)
    assert killer.killed
    assert not alive(killer.killed)
    assert failures == [("the Ray task was lost (WorkerCrashedError)", 1, True)]
    assert [row["state"] for row in rows] == ["done", "done"]
    assert (out / "table.jsonl").read_bytes() == undisturbed


def test_ray_stops_and_local_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from hmmscope.lab.tasks.ray import RayExecutor

    out, points = tmp_path / "sweep", expand(LONG | {"seeds": 3})
    make_folder(out, points)
    engine = RayExecutor(2)
    engine.submit([RunTask(out, point.name) for point in points])
    until(lambda: sum(RunTask(out, point.name).saved() > 0 for point in points) == 2)
    engine.stop()
    assert workers_of(out) == []
    assert sorted(RunTask(out, point.name).state() for point in points) == ["partial", "partial", "waiting"]
    assert engine.active == 0


def test_no_ray_and_no_slurm_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hmmscope.lab.tasks.ray import RayExecutor
    from hmmscope.lab.tasks.slurm import SlurmExecutor

    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(InputError, match=r"pip install 'hmmscope\[ray\]'"):
        RayExecutor()
    with pytest.raises(InputError, match=r"pip install 'hmmscope\[slurm\]'"):
        SlurmExecutor(tmp_path)


# --------------------------------------------------------------------------------------------------------------------
# Slurm


@pytest.mark.usefixtures("submitit")
def test_submitit_gives_the_same_table(tmp_path: Path, undisturbed: bytes) -> None:
    """submitit's stand-in without a queue."""
    from hmmscope.lab.tasks.slurm import SlurmExecutor

    out = tmp_path / "sweep"
    make_folder(out, small())  # the stand-in makes its folder inside at once
    rows = run_sweep(small(), out, SlurmExecutor(out, cluster="local"))
    assert [row["state"] for row in rows] == ["done", "done"]
    assert (out / "table.jsonl").read_bytes() == undisturbed


def test_slurm_refuses_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    from hmmscope.lab.tasks.slurm import SlurmExecutor

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ResourceError, match="srun"):
        SlurmExecutor(tmp_path)


def squeue(*arguments: str) -> list[str]:
    command = ["squeue", "--me", "--noheader", "--array", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slurm
def test_real_slurm_gives_the_same_table(tmp_path: Path, undisturbed: bytes) -> None:
    from hmmscope.lab.tasks.slurm import SlurmExecutor

    assert shutil.which("sbatch")
    out = tmp_path / "sweep"
    rows = run_sweep(small(), out, SlurmExecutor(out, 2, parameters={"time": "10"}))
    assert [row["state"] for row in rows] == ["done", "done"]
    assert (out / "table.jsonl").read_bytes() == undisturbed


@pytest.mark.slurm
def test_real_slurm_preempts_loses_its_driver_and_stops(tmp_path: Path) -> None:
    """A warned job saves and is queued again; jobs outlive their driver; another takes them over, and SIGTERM cancels."""
    (tmp_path / "grid.yaml").write_text(json.dumps(LONG))
    out, points = tmp_path / "sweep", expand(LONG)
    command = [sys.executable, "-m", "hmmscope.lab.cli", "sweep", str(tmp_path / "grid.yaml"), "--out", str(out)]
    command += ["--executor", "slurm", "-q"]
    driver = subprocess.Popen(command)
    until(lambda: all(RunTask(out, point.name).saved() for point in points))
    first, _ = sorted(squeue("--format=%i"))
    subprocess.run(["scancel", "--signal=USR2", first], check=True)
    until(lambda: RunTask(out, points[0].name).state() == "partial")
    assert "stopped by SIGTERM after step" in (out / "logs" / f"{points[0].name}.log").read_text()
    until(lambda: squeue("--format=%i", "--states=PENDING") == [first])
    driver.kill()
    driver.wait()
    assert RunTask(out, points[1].name).state() == "running"
    driver = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until(lambda: RunTask(out, points[0].name).state() == "running")  # by the new job, or the one in the queue
    driver.send_signal(signal.SIGTERM)
    _, error = driver.communicate(timeout=100)
    assert driver.returncode == 143
    assert error.startswith("error[143] ")
    subprocess.run(["scancel", "--me"], check=True)
    until(lambda: squeue("--format=%i") == [])
    assert [RunTask(out, point.name).state() for point in points] == ["partial", "partial"]


@pytest.mark.slurm
def test_real_slurm_job_that_is_lost_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that attends to the worker is killed, so that the job leaves no result."""
    from hmmscope.lab.tasks import slurm

    monkeypatch.setattr(slurm, "_SECONDS_BETWEEN_LOOKS", 0.5)
    monkeypatch.setattr(slurm, "_SECONDS_FOR_A_RESULT", 2.0)
    out, failures = tmp_path / "sweep", []

    class Killer(ProgressListener):
        killed = False

        def update(self, counts: dict[str, int]) -> None:
            if not self.killed and counts["running"]:
                until(lambda: workers_of(out))
                os.kill(parent(parent(workers_of(out)[0])), signal.SIGKILL)
                self.killed = True

        def failed(self, outcome: Outcome, attempts: int, again: bool) -> None:
            failures.append((outcome.reason, attempts, again))

    rows = run_sweep(small(1), out, slurm.SlurmExecutor(out, 1), watcher=Killer())
    assert failures == [("the Slurm job ended without a result (killed, or its node was lost)", 1, True)]
    assert [row["state"] for row in rows] == ["done"]


@pytest.mark.parametrize(
    "key, value", [("same", False), ("once", False), ("left", ["x"]), ("folders", 8), ("files", 42)]
)
def test_the_check_of_attacks_fails(key: str, value: object) -> None:
    good = {
        "same": True,
        "once": True,
        "left": [],
        "folders": 7,
        "files": 43,
        "reason": "error[6] step 2: loss is not finite",
    }
    found = {"killed": {"driver": 1, "server": 1, "worker": 1}, "sweeps": [good]}
    check_attack(found, 3, 6)
    with pytest.raises(AssertionError):
        check_attack(found | {"sweeps": [good, good | {key: value}]}, 3, 6)
    with pytest.raises(AssertionError):
        check_attack(found, 4, 6)
