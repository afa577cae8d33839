"""The papers' recipes and curricula, against numbers computed by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hmmscope.errors import InputError
from hmmscope.training.recipes import doubling_curriculum, limits_recipe, multitask_recipe
from hmmscope.training.schedules import learning_rate, sample_numbers, training_tokens
from hmmscope.training.spec import TrainingSpec


def spec(data: dict, **changes: object) -> TrainingSpec:
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return TrainingSpec(**{**fields, **changes})


@pytest.mark.parametrize(
    "num_layers, lengths",
    [
        (1, (2, 4, 8, 16, 32, 64, 120)),
        (2, (4, 8, 16, 32, 64, 120)),
        (3, (8, 16, 32, 64, 120)),
        (4, (16, 32, 64, 120)),
        (5, (32, 64, 120)),
        (6, (64, 120)),
        (7, (120,)),
    ],
)
def test_doubling_curriculum(num_layers: int, lengths: tuple[int, ...]) -> None:
    assert doubling_curriculum(num_layers, 120) == lengths


def test_no_deeper_curriculum() -> None:
    with pytest.raises(InputError, match=r"num_layers: must be in \[1, 7\]"):
        doubling_curriculum(8, 120)


@pytest.mark.parametrize(
    "num_layers, stages",
    [
        (1, [14] * 6 + [16]),
        (2, [16] * 5 + [20]),
        (3, [20] * 5),
        (4, [25] * 4),
        (5, [33, 33, 34]),
        (6, [50, 50]),
        (7, [100]),
    ],
)
def test_epochs_of_the_stages(num_layers: int, stages: list[int]) -> None:
    recipe = spec(limits_recipe(num_layers))
    per_epoch = {1: 4883, 2: 4883, 3: 4883, 4: 9766, 5: 9766, 6: 19532, 7: 19532}[num_layers]
    assert recipe.steps_per_epoch == per_epoch
    assert recipe.num_epochs == 100
    found = [recipe.stage_length(epoch * per_epoch, 120) for epoch in range(100)]
    ends = [recipe.stage_length(epoch * per_epoch + per_epoch - 1, 120) for epoch in range(100)]
    assert found == ends
    assert found == [
        n for n, times in zip(doubling_curriculum(num_layers, 120), stages, strict=True) for _ in range(times)
    ]


@pytest.mark.parametrize(
    "num_layers, cost", [(1, 0.307), (2, 0.365), (3, 0.400), (4, 0.483), (5, 0.604), (6, 0.767), (7, 1.0)]
)
def test_cost_of_the_curriculum(num_layers: int, cost: float) -> None:
    recipe = spec(limits_recipe(num_layers))
    steps = range(0, recipe.num_steps, recipe.steps_per_epoch)
    tokens = sum(recipe.stage_length(step, 120) for step in steps)
    assert tokens / (100 * 120) == pytest.approx(cost, abs=5e-4)


def test_learning_rate_of_limits() -> None:
    recipe = spec(limits_recipe(7))
    assert learning_rate(recipe, 0) == 1e-7
    assert learning_rate(recipe, 1000) == pytest.approx(1e-7 + (1e-3 - 1e-7) / 4)
    assert learning_rate(recipe, 4000) == pytest.approx(1e-3)
    for epoch, rate in [(19, 1e-3), (20, 5e-4), (39, 5e-4), (40, 2.5e-4), (60, 1.25e-4), (80, 6.25e-5), (99, 6.25e-5)]:
        assert learning_rate(recipe, epoch * 19532 + 19531) == pytest.approx(rate)


def test_a_fixed_set_is_seen_once_an_epoch_in_an_order_of_its_own() -> None:
    recipe = TrainingSpec(num_steps=9, batch_size=4, num_trajectories=10, warmup_steps=0)
    assert (recipe.steps_per_epoch, recipe.num_epochs) == (3, 3)
    epochs = [np.concatenate([sample_numbers(recipe, 5, 3 * epoch + i) for i in range(3)]) for epoch in range(3)]
    assert [len(sample_numbers(recipe, 5, step)) for step in range(3)] == [4, 4, 2]
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(10))
    assert not np.array_equal(epochs[0], epochs[1])
    assert sample_numbers(recipe, 5, 4).tolist() == epochs[1][4:8].tolist()  # whatever was asked before
    assert sample_numbers(recipe, 6, 4).tolist() != epochs[1][4:8].tolist()


def test_fresh_samples() -> None:
    recipe = TrainingSpec(num_steps=9, batch_size=4, epoch_steps=3)
    assert (recipe.steps_per_epoch, recipe.num_epochs) == (3, 3)
    assert [sample_numbers(recipe, 5, step).tolist() for step in (0, 7)] == [[0, 1, 2, 3], [28, 29, 30, 31]]


def test_stages_of_a_run_without_epochs() -> None:
    recipe = TrainingSpec(num_steps=11, curriculum=(2, 4, 16))
    assert [recipe.stage_length(step, 9) for step in range(11)] == [2] * 3 + [4] * 3 + [9] * 5
    kept = 2 * 3 + 4 * 3 + 9 * 5
    assert training_tokens(recipe, 10, 9) == recipe.batch_size * (kept + 11)  # a placeholder stands before each sample
    whole = replace(recipe, curriculum=())
    assert training_tokens(whole, 10, 9) == recipe.batch_size * 11 * 10


def test_constant_rate() -> None:
    recipe = TrainingSpec(num_steps=9, warmup_steps=2, learning_rate=0.5, schedule="constant")
    assert [learning_rate(recipe, step) for step in range(4)] == [0.25, 0.5, 0.5, 0.5]


def test_warm_up_stable_decay() -> None:
    recipe = TrainingSpec(num_steps=12, warmup_steps=2, learning_rate=0.6, schedule="wsd")
    by_hand = [0.3, *[0.6] * 9, 0.4, 0.2]
    assert [learning_rate(recipe, step) for step in range(12)] == pytest.approx(by_hand, rel=1e-12)
    assert (recipe.decay_step, recipe.log_checkpoint_steps) == (10, (10,))
    assert replace(recipe, num_steps=1).log_checkpoint_steps == (1,)


def test_multitask_sees_each_prompt_once() -> None:
    recipe = spec(multitask_recipe())
    assert recipe.num_steps * recipe.batch_size == 131_072
    assert (recipe.num_epochs, recipe.steps_per_epoch, recipe.learning_rate) == (64, 64, 3e-4)
    assert multitask_recipe(width=96)["learning_rate"] == 1e-3


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"num_trajectories": 10, "epoch_steps": 5}, "epoch_steps: must be 0 if num_trajectories is set"),
        ({"accumulation_steps": 3}, "accumulation_steps: must divide batch_size = 32"),
        ({"curriculum": (4, 0)}, "curriculum: must be lengths >= 1"),
        ({"num_steps": 2, "curriculum": (2, 4, 8)}, "curriculum: must have at most 2 stages"),
        ({"num_steps": 4, "epoch_steps": 2, "curriculum": (2, 4, 8)}, "curriculum: must have at most 2 stages"),
        ({"block_length": -1}, "block_length: must be in"),
        ({"num_trajectories": 2**28}, "num_trajectories: must be in"),
        ({"num_steps": "x"}, "num_steps: must be an integer, got 'x'"),
        ({"num_steps": "20"}, "num_steps: must not be text, got '20'"),
        ({"batch_size": 2.5}, "batch_size: must be an integer, got 2.5"),
        ({"learning_rate": math.nan}, "learning_rate: must be finite"),
        ({"betas": (0.9, "x")}, r"betas\[1\]: must be a number, got 'x'"),
        ({"compile": 1}, "compile: must be true or false, got 1"),
        ({"engine": "fast"}, "engine: unknown 'fast'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_numbers_are_refused(changes: dict, word: str) -> None:
    with pytest.raises(InputError, match=word):
        TrainingSpec(**changes)


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_numpy_are_numbers() -> None:
    recipe = TrainingSpec(num_steps=np.int64(7), learning_rate=np.float32(0.5))  # type: ignore[arg-type]
    assert (recipe.num_steps, recipe.learning_rate) == (7, 0.5)
