"""Runs of a sweep that one worker trains together: which, how many, what fails with them, and what of their numbers."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hmmscope import cli
from hmmscope.errors import InputError, RefusedError
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.storage import store
from hmmscope.storage.rundir import RunDir
from hmmscope.sweeps import jobs, worker
from hmmscope.sweeps.driver import run_sweep
from hmmscope.sweeps.engines import EngineOptions
from hmmscope.sweeps.grid import Point, expand, make_folder
from hmmscope.sweeps.jobs import Outcome, Unit, names_of
from hmmscope.sweeps.packs import PACKABLE, Packs, kind_of, largest_pack, parse_pack
from hmmscope.sweeps.table import table_rows, table_text
from sweeps_crash import BASE, NUM_STEPS
from sweeps_packed_crash import KILLS, SPOILT_STEP

SEEDS = {"base": BASE, "seeds": 6, "instances": True}
#: float32 sums in another order, and AdamW divides such rounding errors by small gradients; 6 steps.
ROUNDING = 1e-3


class Told:
    """An engine whose workers end as they are told: an exit code for each of the units in order, then all is well."""

    def __init__(self, out: Path, codes: Sequence[int] = (), free: int = 2) -> None:
        self.out, self.codes, self.places = out, list(codes), free
        self.submitted: list[Unit] = []
        self.queue: list[Unit] = []

    @property
    def active(self) -> int:
        return sum(len(names_of(unit)) for unit in self.queue)

    @property
    def free(self) -> int:
        return self.places - len(self.queue)

    def submit(self, units: Sequence[Unit]) -> None:
        self.queue += units
        self.submitted += units

    def finished(self) -> list[Outcome]:
        units, self.queue = self.queue, []
        return [outcome for unit in units for outcome in self._end(unit)]

    def _end(self, unit: Unit) -> list[Outcome]:
        code = self.codes.pop(0) if self.codes else 0
        if code == 0:
            for name in names_of(unit):
                with RunDir.create(jobs.run_folder(self.out, name), {}) as run:
                    run.mark_done({})
        return jobs.outcomes_of(self.out, names_of(unit), code, f"error[{code}] told to" if code else "")

    def stop(self) -> None:
        pass


def config(model: str, *, device: str = "cpu", **fields: Any) -> RunConfig:
    sizes = {"num_heads": 2} if model in ("decoder", "roformer", "linear-attention") else {}
    return config_from_data(
        BASE | {"model": {"name": model, "width": 64, **sizes, **fields}, "training": {"device": device}}
    )


# --------------------------------------------------------------------------------------------------------------------
# What is put together


def test_the_value_of_the_option() -> None:
    assert [parse_pack(text) for text in ("off", "auto", "1", "8")] == [1, None, 1, 8]
    for text in ("", "many", "0", "1025", "2.5", "-1"):
        with pytest.raises(InputError, match=r"^pack: must be "):
            parse_pack(text)
    assert EngineOptions().most_together == 1
    with pytest.raises(InputError, match=r"^pack: must be a number of runs, auto or off, got 'on'"):
        EngineOptions(pack="on")


def test_auto_packs_what_the_rules_name(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_processor = {name for name in PACKABLE if largest_pack(config(name), None) > 1}
    assert on_a_processor == {"rnn"}
    assert largest_pack(config("rnn", nonlinearity="tanh"), None) == 8
    wide = config("rnn", device="cpu")
    assert largest_pack(replace(wide, model=replace(wide.model, width=65)), None) == 1  # type: ignore[type-var]
    assert {name for name in PACKABLE if largest_pack(config(name, device="cuda"), None) == 8} == set(PACKABLE)
    broad = config("decoder", device="cuda")
    assert largest_pack(replace(broad, model=replace(broad.model, width=132)), None) == 1  # type: ignore[type-var]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert largest_pack(config("lstm", device="auto"), None) == 8
    assert largest_pack(config("lstm", device="cpu"), None) == 1


def test_a_number_packs_whatever_has_a_packed_form() -> None:
    assert [largest_pack(config(name), 4) for name in PACKABLE] == [4] * len(PACKABLE)
    assert largest_pack(config("rnn", learn_initial=True), 4) == 1
    compiled = config("decoder")
    assert largest_pack(replace(compiled, training=replace(compiled.training, compile=True)), 4) == 1


def test_packs_are_of_runs_that_differ_in_their_seeds() -> None:
    points = expand(SEEDS | {"vary": {"training.learning_rate": ["1e-3", "3e-4"], "model.width": ["8", "16"]}})
    kinds = [kind_of(point.config) for point in points]
    assert [len(set(kinds[begin : begin + 6])) for begin in range(0, 24, 6)] == [1] * 4
    assert len(set(kinds)) == 4
    assert kind_of(expand({"base": BASE, "seeds": 1})[0].config) == kind_of(
        expand({"base": BASE, "seeds": 2})[1].config
    )


@pytest.mark.parametrize(
    "runs, places, pack, sizes",
    [
        (8, 2, None, [4, 4]),  # two processors have work
        (20, 2, None, [6, 7, 7]),  # as few packs as there can be, of about one size
        (9, 2, None, [4, 5]),
        (6, 8, None, [1] * 6),
        (6, 1, 4, [3, 3]),
        (6, 1, None, [6]),
        (6, 1, 1, [1] * 6),
    ],
)
def test_packs_leave_no_place_empty(runs: int, places: int, pack: int | None, sizes: list[int]) -> None:
    points = expand(SEEDS | {"seeds": runs})
    packs = Packs({point.name: point.config for point in points}, pack)
    units = list(packs.units([point.name for point in points], places))
    assert [len(unit) for unit in units] == sizes
    assert [name for unit in units for name in unit] == [point.name for point in points]


def test_what_has_no_mates_is_alone() -> None:
    points = expand({"base": BASE, "vary": {"model.name": ["rnn", "lstm"]}, "seeds": 2})
    (one, two, three, four) = names = [point.name for point in points]
    packs = Packs({point.name: point.config for point in points}, None)
    assert list(packs.units(names, 1)) == [(one, two), (three,), (four,)]
    packs.part([two])
    assert list(packs.units([two, four, one], 1)) == [(two,), (four,), (one,)]


# --------------------------------------------------------------------------------------------------------------------
# What is tried again


@pytest.mark.parametrize(
    "codes, retries, sizes, states",
    [
        ([], 2, [3, 3], "done"),
        ([-9, -9], 2, [3, 3, 3, 3], "done"),  # tried again together
        ([-9] * 4, 2, [3, 3, 3, 3, 1, 1, 1, 1, 1, 1], "done"),  # and then by themselves
        ([5, 5], 0, [3, 3, 1, 1, 1, 1, 1, 1], "done"),  # no retries: who is to blame is seen by itself
        ([2, 2], 2, [3, 3, 1, 1, 1, 1, 1, 1], "done"),  # bad input of a pack is that of any one run
        ([6, 6], 2, [3, 3], "failed"),  # a run of a pack whose numbers are not finite
        ([2, 2] + [70] * 100, 1, [3, 3] + [1] * 12, "failed"),  # by itself, as always
    ],
)
def test_a_pack_that_fails_is_tried_again_and_then_parted(
    tmp_path: Path, codes: list[int], retries: int, sizes: list[int], states: str
) -> None:
    points, out = expand(SEEDS), tmp_path / "sweep"
    engine = Told(out, codes)
    rows = run_sweep(points, out, engine, retries=retries, pack=8)
    assert [len(names_of(unit)) for unit in engine.submitted] == sizes
    assert all(isinstance(unit, str) or len(unit) > 1 for unit in engine.submitted)
    assert [row["state"] for row in rows] == [states] * 6


def test_nothing_is_packed_unless_asked(tmp_path: Path) -> None:
    points, out = expand(SEEDS), tmp_path / "sweep"
    engine = Told(out)
    run_sweep(points, out, engine)
    assert engine.submitted == [point.name for point in points]


def test_what_is_done_or_in_work_elsewhere_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmmscope.sweeps.driver._SECONDS_ELSEWHERE", 0.0)
    points, out = expand(SEEDS), tmp_path / "sweep"
    names = [point.name for point in points]
    make_folder(out, points)
    with RunDir.create(jobs.run_folder(out, names[1]), {}) as run:
        run.mark_done({})
    other = RunDir.create(jobs.run_folder(out, names[3]), {})
    engine = Told(out, free=1)

    class Watcher:
        def update(self, counts: dict[str, int]) -> None:
            assert sum(counts.values()) == 6
            if counts["done"] == 5:
                other.mark_done({})
                other.unlock()

        def done(self, name: str) -> None:
            pass

        def failed(self, outcome: Outcome, attempts: int, again: bool) -> None:
            raise AssertionError(outcome)

    run_sweep(points, out, engine, watcher=Watcher(), pack=8)
    assert engine.submitted == [(names[0], names[2], names[4], names[5])]


# --------------------------------------------------------------------------------------------------------------------
# Workers


def test_a_pack_says_of_each_run_what_became_of_it(tmp_path: Path) -> None:
    """Lines of a worker's log, read by its parent."""
    names = ("first", "second", "third", "fourth")
    for name in names:
        store.make_folder(jobs.run_folder(tmp_path, name))
    (jobs.run_folder(tmp_path, "first") / "done.json").write_text("{}")
    job = jobs.Job.__new__(jobs.Job)
    job.names, job._out, job._begin = names, tmp_path, 4
    job._log = tmp_path / "log"
    job._process = type("Ended", (), {"stdin": type("Pipe", (), {"close": lambda self: None})()})()  # type: ignore[assignment]
    job._log.write_text(
        "old\n"
        f"run second error[6] {tmp_path}/runs/second: not finite\n"
        "run third error[75] another process\n"
        "run first error[6] finished by another meanwhile\n"
        "error[6] one of them\n"
    )
    ended = job._outcomes(6)
    assert ended[1:] == [
        Outcome("second", 6, "error[6] runs/second: not finite"),
        Outcome("third", jobs.BUSY, "error[75] another process"),
        Outcome("fourth", 6, "error[6] one of them"),
    ]
    assert ended[0].kind == "done"
    assert [one.reason for one in job._outcomes(-9)[3:]] == ["killed by SIGKILL (was there enough memory?)"]
    assert [one.reason for one in job._outcomes(0)[3:]] == ["ended without a result"]


def test_a_run_that_another_process_has_drops_out(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    points, out = expand(SEEDS), tmp_path / "sweep"
    names = tuple(point.name for point in points[:3])
    make_folder(out, points)
    other = RunDir.create(jobs.run_folder(out, names[1]), points[1].config.to_data())
    worker.work_together(out, names)
    assert [jobs.is_done(out, name) for name in names] == [True, False, True]
    assert capsys.readouterr().err == f"run {names[1]} error[{jobs.BUSY}] another process is at work on it\n"
    assert all(RunDir.open(jobs.run_folder(out, names[k])).done["packed"] for k in (0, 2))  # type: ignore[index]
    other.unlock()


def test_a_lock_of_an_instant_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever had it is not seen any more: the whole pack is looked at again. Another configuration is refused."""
    points, out = expand(SEEDS), tmp_path / "sweep"
    names = tuple(point.name for point in points[:2])
    make_folder(out, points)
    monkeypatch.setattr(worker, "in_use", lambda out, name: False)
    with RunDir.create(jobs.run_folder(out, names[1]), points[1].config.to_data()), pytest.raises(worker._Busy):
        worker.work_together(out, names)
    assert not jobs.is_done(out, names[0])
    store.remove_folder(jobs.run_folder(out, names[1]))
    with RunDir.create(jobs.run_folder(out, names[1]), points[2].config.to_data()), pytest.raises(RefusedError):
        worker.work_together(out, names)


def test_begun_by_itself_and_gone_on_with_in_a_pack(tmp_path: Path) -> None:
    """One is done, one is begun, and says "cpu" where the grid says "auto"; the others are new."""
    points = expand(SEEDS | {"base": BASE | {"training": BASE["training"] | {"device": "auto"}}})
    out, names = tmp_path / "sweep", tuple(point.name for point in points[:4])
    make_folder(out, points)
    for name in names[:2]:
        worker.work(out, name)
    (jobs.run_folder(out, names[1]) / "done.json").unlink()
    before = (jobs.run_folder(out, names[0]) / "done.json").read_bytes()
    worker.work_together(out, names)
    assert (jobs.run_folder(out, names[0]) / "done.json").read_bytes() == before
    assert [row.get("packed") for row in table_rows(out, points)[:4]] == [None, True, True, True]


# --------------------------------------------------------------------------------------------------------------------
# Sweeps in packs, with real workers (forked)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script says of all its sweeps."""
    command = [sys.executable, str(Path(__file__).with_name("sweeps_packed_crash.py"))]
    command.append(str(tmp_path_factory.mktemp("packed")))
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=jobs.worker_environment())
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def same_rows(rows: list[dict], expected: list[dict]) -> None:
    """Equal rows, numbers to rounding."""
    assert len(rows) == len(expected)
    for row, other in zip(rows, expected, strict=True):
        numbers = {key: value for key, value in row.items() if isinstance(value, float)}
        rest = {key: value for key, value in row.items() if key not in numbers and key != "packed"}
        assert rest == {key: value for key, value in other.items() if key in rest}
        assert {*numbers, *rest} == {*other} - {"packed"}
        assert numbers == pytest.approx({key: other[key] for key in numbers}, rel=ROUNDING)


def test_rows_are_those_of_runs_by_themselves_to_rounding(found: dict[str, Any]) -> None:
    same_rows(found["together"], found["alone"])
    assert [row.get("packed") for row in found["together"]] == [True] * 6 + [None]
    assert all("packed" not in row for row in found["alone"])
    assert found["together"][6] == found["alone"][6]
    assert found["together"][6]["reason"].startswith("error[6] step 2: loss is not finite")
    assert table_text(found["together"])[0] == table_text(found["alone"])[0]
    with pytest.raises(AssertionError):
        same_rows(found["together"], [row | {"loss": 1.01 * (row["loss"] or 1)} for row in found["alone"]])


def test_a_member_that_stops_is_a_failed_run_alone(found: dict[str, Any]) -> None:
    spoilt = found["spoilt"]
    reason = f"error[6] step {SPOILT_STEP}: loss is not finite (loss nan); the step was not taken, lower learning_rate"
    assert spoilt["states"] == ["done", "failed", "done"] * 2
    assert [one for one in spoilt["reasons"] if one] == [f"{reason}, in a pack of 3"] * 2
    assert spoilt["failures"] == [[f"{reason}, in a pack of 3", 1, False]] * 2
    assert spoilt["again"] == ["done"] * 6
    assert spoilt["steps"] == [list(range(1, NUM_STEPS + 1))] * 6


def test_runs_of_a_pack_that_dies_twice_are_tried_by_themselves(found: dict[str, Any]) -> None:
    deadly = found["deadly"]
    killed = "killed by SIGKILL (was there enough memory?)"
    for name in deadly["names"]:
        assert [one[1:] for one in deadly["failures"] if one[0] == name] == [[killed, 1, True], [killed, 2, True]]
    assert deadly["rows"] == found["alone"][:4]  # to the bit: they were trained by themselves


def test_killed_packs_lose_nothing_and_double_nothing(found: dict[str, Any]) -> None:
    attack = found["attack"]
    assert sum(attack["killed"].values()) >= KILLS
    assert attack["killed"]["worker"] > 0
    assert attack["killed"]["driver"] > 0
    for sweep in attack["sweeps"]:
        same_rows(sweep["rows"], found["alone"])
        assert sweep["steps"] == [list(range(1, NUM_STEPS + 1))] * 6
        assert sweep["left"] == []
        assert sweep["folders"] == 7
    assert any(row.get("packed") for sweep in attack["sweeps"] for row in sweep["rows"])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "grid.yaml").write_text(json.dumps(SEEDS))
    out = tmp_path / "sweep"
    engine = Told(out)
    monkeypatch.setattr("hmmscope.sweeps.engines.LocalEngine", lambda out, jobs: engine)
    assert cli.main(["sweep", str(tmp_path / "grid.yaml"), "--out", str(out), "--pack", "auto", "-q"]) == 0
    assert [len(names_of(unit)) for unit in engine.submitted] == [3, 3]
    capsys.readouterr()
    assert cli.main(["sweep", str(tmp_path / "grid.yaml"), "--out", "x", "--pack", "some"]) == 2
    assert capsys.readouterr().err == "error[2] pack: must be a number of runs, auto or off, got 'some'\n"


# --------------------------------------------------------------------------------------------------------------------
# Other engines: a pack travels as a tuple of names


def pack_of_two(tmp_path: Path) -> tuple[list[Point], Path]:
    points, out = expand(SEEDS | {"seeds": 2}), tmp_path / "sweep"
    make_folder(out, points)
    return points, out


def test_ray_trains_a_pack(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from hmmscope.sweeps.ray import RayEngine

    points, out = pack_of_two(tmp_path)
    rows = run_sweep(points, out, RayEngine(out, 1), pack=8)
    assert [(row["state"], row.get("packed")) for row in rows] == [("done", True)] * 2


def test_submitit_trains_a_pack(tmp_path: Path) -> None:
    """submitit's stand-in without a queue."""
    pytest.importorskip("submitit")
    from hmmscope.sweeps.slurm import SlurmEngine

    points, out = pack_of_two(tmp_path)
    rows = run_sweep(points, out, SlurmEngine(out, 1, cluster="local"), pack=8)
    assert [(row["state"], row.get("packed")) for row in rows] == [("done", True)] * 2


def test_what_travels_back_from_another_machine(tmp_path: Path) -> None:
    """`attend` with a real worker process."""
    points, out = pack_of_two(tmp_path)
    names = tuple(point.name for point in points)
    assert jobs.attend(str(out), names) == [(name, 0, "") for name in names]
    logs = [(out / "logs" / f"{name}.log").read_text() for name in names]
    assert logs == ["", f"trained together with {names[0]}, see {names[0]}.log\n"]
