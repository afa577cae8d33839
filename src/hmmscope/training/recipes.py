"""The papers' training recipes as data: fields of a TrainingSpec."""

from typing import Any

from hmmscope.schema import require

#: Samples a step of a Transformer of [Limits], by number of layers. The paper gives the three numbers, not who has which.
LIMITS_BATCH = {1: 1024, 2: 1024, 3: 1024, 4: 512, 5: 512, 6: 256, 7: 256}


def doubling_curriculum(num_layers: int, length: int, *, deepest: int = 7) -> tuple[int, ...]:
    """Lengths of the deepest + 1 - num_layers stages, which begin at 2^num_layers and double up to `length`.

    For 120 observations: 2, 4, 8, 16, 32, 64, 120 with one layer; 16, 32, 64, 120 with four; 120 with seven.

    Source: [Limits] §4.2 and App. C.1 (8 - L stages).
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
    """How [Limits] trains a Transformer of `num_layers` layers, or its RNN (None).

    AdamW with torch's defaults; from 1e-7 to 1e-3 over 4000 steps, halved every 20 epochs; no gradient clipping; a fixed
    set of trajectories, reshuffled at each epoch (10^6 of them for RanHMM, RanLDS and block chain-of-thought).

    Source: [Limits] §4.1 and App. C.1. Not stated there: which depth has which batch size.
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
    """How [MultiTask] trains: 64 epochs of 64 steps of 32 prompts, so that each of 131,072 prompts is seen once.

    Source: [MultiTask] App. B.1. Not stated there: the optimiser, its learning rate (here 3e-4, or 1e-3 up to width 128),
    the schedule and the clipping.
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
