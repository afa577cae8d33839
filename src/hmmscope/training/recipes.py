"""The papers' training recipes, as fields of a TrainingSpec."""

from typing import Any

from hmmscope.schema import require

#: Batch size of a [Limits] Transformer by number of layers; the paper gives the numbers, not the assignment.
LIMITS_BATCH = {1: 1024, 2: 1024, 3: 1024, 4: 512, 5: 512, 6: 256, 7: 256}


def doubling_curriculum(num_layers: int, length: int, *, deepest: int = 7) -> tuple[int, ...]:
    """Return the sample length of each stage s = 0 .. deepest - num_layers: min(2^(num_layers + s), length).

    `deepest`: number of layers of the deepest Transformer. Source: [Limits] §4.2 and App. C.1.
    """
    require(1 <= num_layers <= deepest, "num_layers", f"must be in [1, {deepest}]", num_layers)
    return tuple(min(2 ** (num_layers + stage), length) for stage in range(deepest + 1 - num_layers))


def limits_recipe(
    num_layers: int | None = None,
    *,
    length: int = 120,
    num_trajectories: int = 5_000_000,
    num_epochs: int = 100,
    curriculum: bool = True,
) -> dict[str, Any]:
    """Return the [Limits] recipe for a Transformer of `num_layers` layers; None means the RNN.

    Source: [Limits] §4.1 and App. C.1.
    """
    batch_size = 256 if num_layers is None else LIMITS_BATCH.get(num_layers, 256)
    return {
        "num_steps": num_epochs * -(-num_trajectories // batch_size),
        "batch_size": batch_size,
        "num_trajectories": num_trajectories,
        "schedule": "halving",
        "learning_rate": 1e-3,
        "warmup_steps": 4000,
        "warmup_from": 1e-7,
        "halve_every": 20,
        "betas": [0.9, 0.999],
        "weight_decay": 0.01,
        "gradient_clip": 0.0,
        "curriculum": list(doubling_curriculum(num_layers, length)) if curriculum and num_layers else [],
    }


def multitask_recipe(*, width: int = 1024) -> dict[str, Any]:
    """Return the [MultiTask] recipe: 64 epochs of 64 steps of 32 prompts, each prompt seen once.

    Source: [MultiTask] App. B.1. Optimiser, learning rate, schedule and clipping are not in the paper.
    """
    return {
        "num_steps": 4096,
        "batch_size": 32,
        "epoch_steps": 64,
        "schedule": "cosine",
        "learning_rate": 3e-4 if width > 128 else 1e-3,
        "warmup_steps": 200,
        "final_fraction": 0.05,
        "betas": [0.9, 0.98],
        "weight_decay": 0.01,
        "gradient_clip": 1.0,
    }
