"""A run that takes over a shorter one ends as if it had been trained alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.runs.config import RunConfig, configure
from hmmscope.storage.rundir import RunDir, read_journal

WSD = {"schedule": "wsd", "warmup_steps": 2, "batch_size": 4, "evaluate_every": 4, "evaluate_samples": 4}


def recipe(num_steps: int, **changes: Any) -> RunConfig:
    model = {"name": "decoder", "num_layers": 1, "width": 16, "num_heads": 2, "dropout": 0.0}
    training = WSD | {"num_steps": num_steps, "checkpoint_every": 5} | changes
    return configure("dishonest-casino", length=6, model=model, training=training, seed=3)


def bits(folder: Path) -> tuple[bytes, bytes, bytes]:
    """Weights, moments and metrics at the end."""
    last = folder / "checkpoints" / f"step-{RunDir.open(folder).checkpoint_steps()[-1]:09d}"
    return (
        (last / "model.safetensors").read_bytes(),
        (last / "optimiser.safetensors").read_bytes(),
        (folder / "metrics.jsonl").read_bytes(),
    )


@pytest.mark.drawn(1)
@pytest.mark.parametrize("engine", ["torch", "compiled"])
def test_a_chain_of_budgets_ends_in_the_bits_of_runs_that_begin_at_nothing(tmp_path: Path, engine: str) -> None:
    before = None
    for num_steps in (12, 24):
        config = recipe(num_steps, engine=engine)
        alone = hs.train(config, tmp_path / f"alone-{num_steps}")
        chained = hs.train(config, tmp_path / f"chained-{num_steps}", options=hs.TrainOptions(warm_start=before))
        assert bits(chained.path) == bits(alone.path)
        assert chained.summary == alone.summary
        before = chained.path
    saved = {row["step"]: row for row in read_journal(tmp_path / "chained-24" / "timing.jsonl") if "step" in row}
    assert list(saved) == [15, 20, 24]  # of its own steps: those up to 10 are taken over
    spent = saved[24]["processor_seconds"] - saved[15]["processor_seconds"]
    assert chained.seconds_per_step == pytest.approx(spent / 9)
    assert RunDir.open(tmp_path / "chained-24").checkpoint_steps() == [20, 24]  # a longer one may begin at 20


def test_another_engine_goes_on_where_one_stopped(tmp_path: Path) -> None:
    """From the same checkpoint both engines reach the same weights, but for rounding."""
    short = hs.train(recipe(12, engine="torch"), tmp_path / "short")
    ends = [
        hs.train(recipe(24, engine=engine), tmp_path / engine, options=hs.TrainOptions(warm_start=short.path)).summary[
            "loss"
        ]
        for engine in ("torch", "compiled")
    ]
    assert ends[0] == pytest.approx(ends[1], rel=1e-5)  # rounding of float32 in 14 steps
    steps = [row["step"] for row in read_journal(tmp_path / "compiled" / "timing.jsonl") if "step" in row]
    assert steps == [15, 20, 24]


def test_the_last_common_step_is_where_rates_part(tmp_path: Path) -> None:
    """The end of the shorter one, after its decay, is not common; nor is an evaluation of its last step."""
    short = hs.train(recipe(12), tmp_path / "short")
    constant = hs.train(recipe(11, schedule="constant"), tmp_path / "constant")
    for other in (short, constant):
        assert RunDir.open(other.path).checkpoint_steps()[-1] >= 11
        hs.train(recipe(24), tmp_path / f"from-{other.path.name}", options=hs.TrainOptions(warm_start=other.path))
        assert RunDir.open(tmp_path / f"from-{other.path.name}").checkpoint_steps()[0] <= 20
        assert bits(tmp_path / f"from-{other.path.name}") == bits(tmp_path / "from-short")


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"learning_rate": 0.5}, "has another configuration (training.learning_rate: 0.001 -> 0.5)"),
        ({"batch_size": 8}, "has another configuration (training.batch_size: 4 -> 8)"),
        ({"schedule": "cosine"}, "with checkpoints of steps 10, 12) shares only the first 3 steps"),
    ],
)
def test_another_beginning_is_refused_before_there_is_a_folder(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    hs.train(recipe(12), tmp_path / "short")
    with pytest.raises(InputError, match="warm_start: ") as found:
        hs.train(recipe(24, **changes), tmp_path / "long", options=hs.TrainOptions(warm_start=tmp_path / "short"))
    assert said in str(found.value)
    assert not (tmp_path / "long").exists()


def test_another_seed_is_refused(tmp_path: Path) -> None:
    hs.train(recipe(12), tmp_path / "short")
    with pytest.raises(InputError, match=r"has another configuration \(seed: 3 -> 4\)"):
        hs.train(replace(recipe(24), seed=4), tmp_path / "long", options=hs.TrainOptions(warm_start=tmp_path / "short"))
