"""Training configurations shared by the experiments of [Limits]: six tasks, RNN and Transformers by depth.

Reduced scales differ from the paper in length, width, steps and number of actions, and draw fresh samples. Except for
smoke, they have no curriculum, the RNN sees as many sequences as the Transformers, and the permutations of cyclic tasks
generate A5. Learning rates of small and medium were chosen on a separate seed. Claims are decided at scale medium.
"""

import math
from dataclasses import dataclass
from typing import Any

from hmmscope import Run
from hmmscope.schema import require, require_known
from hmmscope.training.recipes import doubling_curriculum, limits_recipe

#: Each task with its process, what is asked, and its name in figures.
TASKS: dict[str, tuple[str, str, str]] = {
    "ran-hmm": ("ran-hmm", "belief", "RanHMM"),
    "ran-lds": ("ran-lds", "observation", "RanLDS"),
    "cyclic-det": ("cyclic-det", "belief", "Cyclic-DET"),
    "cyclic-rnd": ("cyclic-rnd", "belief", "Cyclic-RND"),
    "matmul": ("matmul", "belief", "MatMul"),
    "cyclic-hard": ("cyclic-hard", "observation", "Cyclic-HARD"),
}
#: The tasks in the order of work: what the headlines of the paper are about first.
HEADLINES_FIRST = ("cyclic-det", "cyclic-hard", "matmul", "cyclic-rnd", "ran-hmm", "ran-lds")
#: Tasks that forget quickly: a window of constant length is enough.
FAST = ("ran-hmm", "ran-lds")


def _steps(permutations: int, soft: int, hmm: int, lds: int) -> dict[str, int]:
    return dict(zip(TASKS, (hmm, lds, permutations, soft, soft, permutations), strict=True))


@dataclass(frozen=True)
class _Scale:
    length: int
    num_symbols: int  # of cycles and products; the random tasks have five
    width: int
    num_heads: int
    batch_size: int
    learning_rate: float
    warmup_steps: int
    steps: dict[str, int]
    depths: tuple[int, ...]
    hard_samples: int
    evaluations: int = 20
    curriculum: bool = False
    group_order: int = 60  # of what the cycles generate: A5
    rates: dict[int, dict[int, float]] | None = None  # learning rates by length and layers
    samples: int = 256  # of an evaluation while training
    stages_of_fast: int = 3  # of the learning rate, of what mixes fast
    fine: tuple[str, int] | None = None  # a task that is learned within an epoch, and steps between evaluations


#: Stages of the learning rate, each half of the one before.
STAGES = 3
#: Learning rates of the scales small and medium by length and layers (0 is the RNN). scripts/choose_rates.py takes, of three
#: rates, the one with the least mean evaluation loss after 1000 steps of Cyclic-DET on seed 100, which nothing else uses.
#: Other lengths take the rates of 32.
RATES = {
    32: {0: 0.004, 1: 0.004, 2: 0.004, 3: 0.004, 4: 0.002, 5: 0.002},
    64: {0: 0.008, 1: 0.008, 2: 0.008, 3: 0.004, 4: 0.004, 5: 0.002},
}

_SCALES = {
    "smoke": _Scale(
        4, 2, 8, 2, 8, 2e-3, 4, _steps(12, 12, 12, 12), (1, 2), 64, evaluations=4, curriculum=True, group_order=0
    ),
    "small": _Scale(16, 2, 64, 4, 64, 2e-3, 300, _steps(3000, 2000, 1000, 4000), (1, 2, 3), 4096, rates=RATES),
    "medium": _Scale(
        32,
        2,
        64,
        4,
        64,
        2e-3,
        300,
        _steps(10000, 10000, 4000, 4000) | {"cyclic-hard": 20000},
        (1, 2, 3, 4, 5),
        4096,
        rates=RATES,
        samples=1024,
        stages_of_fast=5,
        fine=("ran-hmm", 20),
    ),
    "gpu": _Scale(64, 5, 256, 8, 512, 1e-3, 500, _steps(5000, 5000, 2000, 5000), (1, 2, 3, 4, 5), 16384),
}
#: Observations in the paper, and in its table of costs.
PAPER_LENGTH = 120


def depths(scale: str) -> list[int]:
    return list(range(1, 8)) if scale == "paper" else list(_SCALES[scale].depths)


def length_of(scale: str) -> int:
    return PAPER_LENGTH if scale == "paper" else _SCALES[scale].length


def label_of(task: str, num_layers: int) -> str:
    return f"{task}, RNN" if num_layers == 0 else f"{task}, {num_layers} layer{'s' * (num_layers > 1)}"


def identity(run: Run) -> dict[str, Any]:
    return {"task": run.config.process.name, "layers": run.config.model.num_layers if is_deep(run) else 0}


def is_deep(run: Run) -> bool:
    return run.config.model.name != "rnn"


def by_task(labels: list[str]) -> dict[str, list[str]]:
    parts = {task: [label for label in labels if f"{task}, " in label] for task in TASKS}
    return {task: found for task, found in parts.items() if found}


def grid(scale: str, tasks: list[str], layers: list[int], **changes: Any) -> dict[str, dict[str, Any]]:
    """Build configurations by label, for every task and every number of layers (0 for the RNN).

    Args:
        scale: See `limits_config`.
        tasks: Names in `TASKS`.
        layers: Numbers of layers.
        changes: Further arguments of `limits_config`.
    """
    return {label_of(task, n): limits_config(scale, task, n, **changes) for task in tasks for n in layers}


def limits_config(
    scale: str,
    task: str,
    num_layers: int,
    *,
    curriculum: bool | None = None,
    process: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    length: int | None = None,
) -> dict[str, Any]:
    """Return the configuration of one run of [Limits] as plain data.

    Args:
        scale: "smoke", "small", "medium", "gpu" or "paper".
        task: Name in `TASKS`.
        num_layers: Layers of the Transformer; 0 for the RNN.
        curriculum: True trains Transformers on growing prefixes (default: set by the scale).
        process, model, training: Changes to the configuration sections of these names.
        length: Number of observations per sample (default: set by the scale).

    Raises:
        InputError: The task is unknown, or the number of layers is below 0.

    Source: [Limits] Appendix C; the reduced scales are choices of this project.
    """
    require_known("plan.tasks", task, TASKS)
    require(num_layers >= 0, "plan.layers", "must be at least 0 (0: the RNN)", num_layers)
    columns = length or length_of(scale)
    name, target, _ = TASKS[task]
    return {
        "process": {"name": name, **_process(scale, task, columns), **(process or {})},
        "layout": {"name": "sequences", "length": columns, "placeholder": True},
        "target": target,
        "model": {**_model(scale, num_layers), **(model or {})},
        "training": {**_training(scale, task, num_layers, columns, curriculum), **(training or {})},
    }


def _process(scale: str, task: str, length: int) -> dict[str, Any]:
    if scale == "paper":
        found: dict[str, Any] = {}
    elif task in FAST:
        found = {"num_states": 3, "num_symbols": 3} if scale == "smoke" and task == "ran-hmm" else {}
    else:
        found = {"num_symbols": _SCALES[scale].num_symbols}
        if task != "matmul":
            found["group_order"] = _SCALES[scale].group_order
    return found | ({"prediction_rate": 1 / length} if task == "cyclic-hard" else {})


def _model(scale: str, num_layers: int) -> dict[str, Any]:
    if num_layers == 0:
        return {"name": "rnn", "width": 8 if scale == "smoke" else 64}
    transformer = {"name": "decoder", "num_layers": num_layers, "positions": "learned", "input_features": True}
    if scale == "paper":
        return transformer | {"width": 512, "num_heads": 8, "dropout": 0.1}
    sizes = _SCALES[scale]
    return transformer | {"width": sizes.width, "num_heads": sizes.num_heads, "dropout": 0.0}


def _training(scale: str, task: str, num_layers: int, length: int, curriculum: bool | None) -> dict[str, Any]:
    if curriculum is None:
        curriculum = scale == "paper" or _SCALES[scale].curriculum
    if scale == "paper":
        trajectories = 1_000_000 if task in FAST else 5_000_000
        recipe = limits_recipe(num_layers or None, length=length, num_trajectories=trajectories, curriculum=curriculum)
        epoch = -(-trajectories // recipe["batch_size"])
        samples = 32768 if task == "cyclic-hard" else 256  # its state is asked for once in T actions
        evaluated = {"evaluate_every": epoch, "evaluate_samples": samples, "checkpoint_every": epoch}
        return recipe | evaluated | _precision(scale, num_layers)
    sizes = _SCALES[scale]
    rates = {} if sizes.rates is None else sizes.rates.get(length, sizes.rates[32])
    steps = sizes.steps[task]
    epoch = max(1, steps // sizes.evaluations)
    recipe = {
        "num_steps": steps,
        "batch_size": sizes.batch_size,
        "schedule": "halving",
        "learning_rate": rates.get(num_layers, sizes.learning_rate),
        "warmup_steps": sizes.warmup_steps,
        "warmup_from": 1e-7,
        "epoch_steps": epoch,
        "halve_every": -(-sizes.evaluations // (sizes.stages_of_fast if task in FAST else STAGES)),
        "betas": [0.9, 0.999],
        "evaluate_every": sizes.fine[1] if sizes.fine and task == sizes.fine[0] else epoch,
        "evaluate_samples": sizes.hard_samples if task == "cyclic-hard" else min(sizes.samples, sizes.hard_samples),
        "checkpoint_every": max(1, steps // 4),
    }
    if curriculum and num_layers:
        deepest = max(num_layers, math.ceil(math.log2(length)))
        recipe["curriculum"] = list(doubling_curriculum(num_layers, length, deepest=deepest))
    return recipe | _precision(scale, num_layers)


def _precision(scale: str, num_layers: int) -> dict[str, Any]:
    return {"precision": "bfloat16"} if num_layers and scale in ("gpu", "paper") else {}


#: Evaluations of a shortened training.
EVALUATIONS = 20


def shortened(steps: int, evaluations: int = EVALUATIONS) -> dict[str, Any]:
    """Return changes to the section ``training`` for `steps` steps of fresh samples; no changes for 0 steps.

    Raises:
        InputError: The number of steps is negative.
    """
    require(steps >= 0, "plan.steps", "must be at least 0 (0 means the number that the scale sets)", steps)
    if steps == 0:
        return {}
    epoch = max(1, steps // evaluations)
    return {
        "num_steps": steps,
        "num_trajectories": 0,
        "epoch_steps": epoch,
        "halve_every": -(-evaluations // STAGES),
        "warmup_steps": min(300, max(1, steps // 10)),
        "evaluate_every": epoch,
        "checkpoint_every": max(1, steps // 4),
    }
