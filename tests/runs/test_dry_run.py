"""What a training will take, said before it is begun; and the presets it is asked for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hmmscope.datasets.targets import make_target
from hmmscope.errors import InputError, ResourceError
from hmmscope.lab import cli
from hmmscope.lab.experiments import forecast as forecasts
from hmmscope.lab.experiments.planning import plan_of
from hmmscope.models.base import parameter_count
from hmmscope.processes.random_hmm import RandomMixtureSpec
from hmmscope.runs.config import config_from_data
from hmmscope.runs.dry_run import GPU_RATE, GPU_STEP, as_text, estimate, require_room
from hmmscope.runs.pipeline import model_io_of, untrained_model
from hmmscope.runs.presets import PRESETS, preset
from hmmscope.runs.training import train
from hmmscope.training.engines import CPU_RATE, CPU_STEP, Choice, Timing

TINY: dict[str, Any] = {
    "process": {"name": "cyclic-det", "num_symbols": 2},
    "layout": {"name": "sequences", "length": 8, "placeholder": True},
    "target": "belief",
    "model": {"name": "decoder", "num_layers": 1, "num_heads": 2, "width": 16},
    "training": {"num_steps": 12, "batch_size": 4, "device": "cpu"},
}


def test_counts_by_hand() -> None:
    config = config_from_data(TINY)
    process = config.process.build()
    found = estimate(config)
    assert (found.samples, found.tokens) == (48, 48 * 9)
    assert found.parameters == parameter_count(untrained_model(config, process))
    each = config.model.cost(model_io_of(config, make_target(config.target, process, config.layout)), 9).flops
    assert found.flops == pytest.approx(48 * each)
    assert found.steps_measured == 0
    assert found.seconds == pytest.approx(12 * CPU_STEP + found.flops / CPU_RATE)
    assert found.gpu_seconds == pytest.approx(12 * GPU_STEP + found.flops / GPU_RATE)
    text = "\n".join(as_text(found, config))
    assert f"about {found.seconds:.1f} seconds on this processor, assuming 4e10 operations per second and core" in text
    assert "GPU time     about 0.1 seconds, assuming 2e13 operations per second, plus 10 ms per step (one" in text


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a training step was taken")


@pytest.fixture
def counting_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No step, neither to time it nor to choose an engine; no model; no pool of 8192 HMMs, which takes half a minute."""
    monkeypatch.delenv("HMMSCOPE_ENGINE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("runs.dry_run.train_step", "runs.dry_run.build_model", "runs.timings._measured"):
        monkeypatch.setattr(f"hmmscope.{name}", _refuse)
    monkeypatch.setattr("hmmscope.system_info.free_memory", lambda: 2**45)
    built = RandomMixtureSpec.build
    monkeypatch.setattr(
        RandomMixtureSpec, "build", lambda self: built(self) if self.num_components < 100 else _refuse()
    )


@pytest.mark.usefixtures("counting_only")
@pytest.mark.parametrize("name", ["multitask-fig1", "limits-fig2"])
def test_an_estimate_at_the_papers_scale_counts_operations_once_per_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    monkeypatch.setattr(
        forecasts, "estimate", lambda config, **given: counted.append(config) or estimate(config, **given)
    )
    lines = [*forecasts.forecast(name, "paper", {}, (0, 1))]
    assert counted == [*plan_of(name, "paper", {}, (0, 1)).of_seed(0).values()]
    assert any(line.startswith("GPU time     about") for line in lines)


@pytest.mark.usefixtures("counting_only")
@pytest.mark.parametrize(
    "line",
    [
        pytest.param(("run", "multitask-fig1", "--scale", "paper"), marks=pytest.mark.long),
        pytest.param(("run", "limits-fig2", "--scale", "paper"), marks=pytest.mark.long),
        pytest.param(("run", "limits-fig3", "--scale", "medium"), marks=pytest.mark.long),
        ("train", "multitask"),
    ],
    ids=" ".join,
)
def test_a_dry_run_takes_no_step_and_builds_no_model(line: tuple[str, ...], capsys: pytest.CaptureFixture) -> None:
    assert cli.main([*line, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert ("GPU time     about" in said) == (line[-1] != "medium")
    assert ("of one thread" in said) == (line[-1] == "medium")


def test_steps_are_timed_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr("hmmscope.runs.dry_run.train_step", lambda *_: taken.append(1))
    assert cli.main(["run", "limits-fig3", "--scale", "smoke", "--dry-run", "--measure", "--plan.layers", "1"]) == 0
    assert taken


def test_a_curriculum_reads_less() -> None:
    config = config_from_data(TINY, {"training.curriculum": "2,4,8"})
    found = estimate(config)
    assert found.tokens == 4 * 4 * (3 + 5 + 9)
    assert found.samples == 48
    uneven = estimate(config_from_data(TINY, {"training.curriculum": "2,8", "training.num_steps": "5"}))
    assert uneven.tokens == 4 * (2 * 3 + 3 * 9)


def test_epochs_of_a_fixed_set() -> None:
    found = estimate(config_from_data(TINY, {"training.num_trajectories": "10"}))
    assert found.samples == 4 * 10  # three steps an epoch, the last with two samples
    staged = {"training.num_trajectories": "10", "training.curriculum": "2,8"}
    assert estimate(config_from_data(TINY, staged)).tokens == 2 * 10 * 3 + 2 * 10 * 9


def test_the_naive_algorithm_costs_its_passes() -> None:
    plain = estimate(config_from_data(TINY, {"training.block_length": "3"}))
    naive = estimate(
        config_from_data(TINY, {"training.block_length": "3", "training.block_algorithm": "naive"}), measure=False
    )
    assert naive.flops == pytest.approx(3 * plain.flops)


def test_measured_on_this_machine() -> None:
    found = estimate(config_from_data(TINY), measure=True)
    assert found.steps_measured >= 1
    assert found.seconds > 0
    text = "\n".join(as_text(found, config_from_data(TINY)))
    for word in ("parameters   ", "12 of 4 samples", "432 in 48 samples", "FLOPs", "GiB for a step", "tokens/s"):
        assert word in text
    assert f"about {found.memory_bytes / 2**30:.2f} GiB for a step" in text
    assert found.other_precision == "bfloat16"
    assert f"bfloat16 would be {found.seconds / found.other_seconds:.2f} times as fast here" in text
    other = estimate(config_from_data(TINY, {"training.precision": "bfloat16"}), measure=True)
    assert other.other_precision == "float32"


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    changes = ["--layout.length", "6", "--training.batch_size", "2"]
    assert cli.main(["train", "limits-rnn", "--dry-run", *changes]) == 0
    assert "parameters   4,933" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_out_is_asked_for(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["train", "limits-rnn"]) == 2
    assert capsys.readouterr().err == "error[2] out: missing; give a new folder for the run, --out DIR (or --dry-run)\n"


def test_a_step_that_cannot_fit_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    changes = {"training.batch_size": "100000000", "training.num_steps": "10"}
    with pytest.raises(ResourceError, match=r"a training step: needs .* GiB .*training\.accumulation_steps"):
        estimate(config_from_data(TINY, changes))
    with pytest.raises(ResourceError, match="a training step: needs"):
        train(config_from_data(TINY, changes), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_on_the_disk_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_from_data(TINY)
    monkeypatch.setattr("hmmscope.system_info.shutil.disk_usage", lambda path: SimpleNamespace(free=200_000))
    require_room([config], tmp_path / "pool", here=True)
    for refused in (
        lambda: train(config_from_data(TINY, {"training.num_steps": "1000000"}), tmp_path / "run"),
        lambda: require_room([config] * 10, tmp_path / "pool", here=True),
    ):
        with pytest.raises(ResourceError, match="on the disk of"):
            refused()
    large = config_from_data(TINY, {"training.batch_size": "100000000"})
    with pytest.raises(ResourceError, match="a training step: needs"):
        require_room([config, large], tmp_path / "pool", here=True)
    monkeypatch.undo()
    require_room([large], tmp_path / "pool", here=False)  # trained elsewhere
    assert list(tmp_path.iterdir()) == []


def test_a_long_step_is_timed_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    each = estimate(config_from_data(TINY)).flops
    monkeypatch.setattr("hmmscope.runs.dry_run._STEP", each / 48 * 2.5)
    found = estimate(config_from_data(TINY, {"training.num_grains": "2"}), measure=True)
    assert found.samples_measured == 2
    assert " of 2 samples)" in "\n".join(as_text(found, config_from_data(TINY)))


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_configurations(name: str) -> None:
    config = config_from_data(preset(name))
    assert config.training.num_steps > 1000
    if name.startswith("limits-transformer"):
        assert config.model.num_layers == int(name[-1])
        assert len(config.training.curriculum) == 8 - config.model.num_layers
    assert cli.main(["show", name]) == 0


def test_unknown_preset(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(InputError, match="did you mean 'multitask'"):
        preset("multitsk")
    assert cli.main(["train", "limits-rn", "--out", "x"]) == 2
    assert "did you mean 'limits-rnn'" in capsys.readouterr().err


def test_presets_are_listed(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["show", "presets"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in PRESETS)


def test_what_chose_the_engine_of_a_long_step_says_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample leaves most lanes of the compiled engine empty."""
    config = config_from_data(TINY, {"training.engine": "auto", "training.num_steps": "1000"})
    monkeypatch.setattr("hmmscope.runs.dry_run._STEP", 1.0)
    timing = Timing(compiled=2.0, torch=9.0, samples=3)
    monkeypatch.setattr("hmmscope.runs.dry_run.engine_of", lambda *_, **__: Choice("compiled", "measured", timing))
    found = estimate(config, measure=True, compare=False)
    assert (found.samples_measured, found.seconds) == (3, pytest.approx(2.0 * found.samples / 3))
