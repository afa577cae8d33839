"""What is kept of the time of training steps on a machine: asked once, for each shape, until a version changes."""

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from hmmscope.datasets.targets import make_target
from hmmscope.models.base import ModelIO
from hmmscope.runs import timings
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.runs.pipeline import model_io_of
from hmmscope.training.engines import SHORT, Timing


def config(**training: int) -> tuple[RunConfig, ModelIO]:
    data = {
        "process": {"name": "random-hmm", "num_states": 4, "num_symbols": 5},
        "model": {"name": "rnn", "width": 16},
        "layout": {"name": "sequences", "length": 5},
        "training": {"device": "cpu", "batch_size": 4, **training},
    }
    run = config_from_data(data)
    return run, model_io_of(run, make_target(run.target, run.process.build(), run.layout))


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """The configurations that were measured, with a cache of their own."""
    asked: list[RunConfig] = []

    def instead(run: RunConfig, ports: ModelIO) -> tuple[dict[str, float], float]:
        asked.append(run)
        return {"compiled": 1.0, "torch": float(1 + len(asked)), "samples": 4}, 3.0

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(timings, "_measured", instead)
    return asked


def kept(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "hmmscope").glob("timings-*.json")
    return file


def test_a_shape_is_measured_once(measured: list[RunConfig], tmp_path: Path) -> None:
    run, ports = config()
    assert timings.timing(run, ports, SHORT) == Timing(1.0, 2.0, 4) == timings.timing(run, ports, 1e9)
    longer, _ = config(num_steps=10**6)  # the same steps
    assert timings.timing(longer, ports, 1e9) == Timing(1.0, 2.0, 4)
    assert len(measured) == 1
    larger, _ = config(batch_size=8)
    assert timings.timing(larger, ports, 1e9) == Timing(1.0, 3.0, 4)
    text = json.loads(kept(tmp_path).read_text())
    assert {"processor", "instructions", "hmmscope", "torch", "numba"} <= set(text["machine"])
    assert len(text["steps"]) == 2


def test_what_is_short_depends_on_what_measuring_took_and_stays_so(measured: list[RunConfig]) -> None:
    (run, ports), (other, _) = config(num_steps=7), config(batch_size=8)
    assert timings.timing(run, ports, 4.0) is None  # nobody has compiled here yet
    assert timings.timing(other, ports, SHORT) is not None
    assert timings.timing(run, ports, 4.0) is None  # as before, though it would pay now
    assert timings.timing(config(num_steps=8)[0], ports, 4.0) is not None  # measuring took 3 s
    assert timings.timing(config(num_steps=9, batch_size=16)[0], ports, 2.9) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-9],
        lambda text: text.replace('"torch": 2.0', '"torch": "fast"'),
        lambda text: text.replace('"samples": 4', '"others": 4'),
        lambda text: text.replace('"compiled": 1.0', '"compiled": 0'),
        lambda text: text.replace('"hmmscope": "', '"hmmscope": "9'),
        lambda text: "[]",
    ],
)
def test_what_is_damaged_or_of_another_version_is_measured_again(
    spoil: Callable[[str], str], measured: list[RunConfig], tmp_path: Path
) -> None:
    run, ports = config()
    timings.timing(run, ports, SHORT)
    before = kept(tmp_path).read_text()
    assert spoil(before) != before
    kept(tmp_path).write_text(spoil(before))
    assert timings.timing(run, ports, SHORT) == Timing(1.0, 3.0, 4)
    assert json.loads(kept(tmp_path).read_text())["steps"] != json.loads(before)["steps"]


def test_without_a_place_to_write_nothing_is_kept(
    measured: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    run, ports = config()
    assert [timings.timing(run, ports, SHORT) for _ in range(2)] == [Timing(1.0, 2.0, 4), Timing(1.0, 3.0, 4)]


def test_steps_of_both_engines_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(timings, "_SECONDS", 0.0)
    run, ports = config()
    found = timings.timing(run, ports, SHORT)
    assert found.samples == 4
    assert min(found.compiled, found.torch) > 0
    assert found.faster()[0] in str(found)


@pytest.mark.parametrize(("num_threads", "seconds"), [(1, 1.0), (2, 100.0)])
def test_one_thread_is_timed_by_the_processor_and_several_by_the_clock(
    num_threads: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = SimpleNamespace(process_time=count(0.0, 1.0).__next__, perf_counter=count(0.0, 100.0).__next__)
    monkeypatch.setattr(timings, "time", clocks)
    found, _ = timings._measured(*config(num_threads=num_threads))
    assert (found["compiled"], found["torch"]) == (seconds, seconds)
