"""Models that the experiments of [MultiTask] share: RoFormers trained on prompts of a pool of HMMs.

Figures 1, 2, 3 and 7 use the same models. K cycles and K emission matrices make K^2 HMMs, half of them for training.
Scale "paper" has one model, on the paper's pool.
"""

from typing import Any

from hmmscope.schema import require
from hmmscope.training.recipes import multitask_recipe

#: Parameters by scale: process, layout, model, training.
_SCALES: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {
        "process": {"num_states": 8, "num_symbols": 4},
        "layout": {"num_demonstrations": 3, "demonstration_length": 6, "test_length": 6},
        "model": {"num_layers": 2, "num_heads": 2, "width": 16},
        "training": {"num_steps": 20, "batch_size": 8, "warmup_steps": 5, "evaluate_every": 10, "checkpoint_every": 15},
    },
    "small": {
        "process": {"num_states": 16, "num_symbols": 8},
        "layout": {"num_demonstrations": 5, "demonstration_length": 8, "test_length": 8},
        "model": {"num_layers": 4, "num_heads": 4, "width": 64},
        "training": {"num_steps": 3000, "learning_rate": 3e-3, "checkpoint_every": 500},
    },
    "medium": {
        "process": {"num_states": 12, "num_symbols": 6},
        "layout": {"num_demonstrations": 5, "demonstration_length": 8, "test_length": 8},
        "model": {"num_layers": 6, "num_heads": 4, "width": 64},
        "training": {"num_steps": 12000, "learning_rate": 3e-3, "checkpoint_every": 500, "milestones": 20},
    },
    "gpu": {
        "process": {"num_states": 32, "num_symbols": 8},
        "layout": {"num_demonstrations": 15, "demonstration_length": 8, "test_length": 8},
        "model": {"num_layers": 8, "num_heads": 8, "width": 256},
        "training": {"num_steps": 4000, "batch_size": 128, "learning_rate": 1e-3, "precision": "bfloat16"},
    },
    "paper": {
        "process": {"num_components": 8192, "num_states": 128, "num_symbols": 16},
        "layout": {"num_demonstrations": 15, "demonstration_length": 16, "test_length": 16},
        "model": {"num_layers": 16, "num_heads": 16, "width": 1024},
        "training": {**multitask_recipe(), "evaluate_every": 512, "checkpoint_every": 1024, "precision": "bfloat16"},
    },
}
#: Samples per batch of measurements.
BATCH = 64
#: Largest distance of the probes for earlier observations.
MAX_DISTANCE = 4
#: K, the number of cycles and of emissions, of the models of each scale; 0 for the paper's pool.
PARTS = {"smoke": [2, 3], "small": [8, 96], "medium": [16, 32, 96, 224], "gpu": [32, 256], "paper": [0]}
#: States and symbols of the cycles of each scale; claims are about the first, see `setting.SEPARATES`.
CYCLES = {scale: [f"{own['process']['num_states']}/{own['process']['num_symbols']}"] for scale, own in _SCALES.items()}
CYCLES["medium"] += ["8/4", "16/8"]
#: Concentration of the paper's transition and emission rows, which the paper does not state.
CONCENTRATION = 0.01


def multitask_config(scale: str, num_parts: int, **changes: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of one run of [MultiTask] as plain data.

    Args:
        scale: "smoke", "small", "medium", "gpu" or "paper".
        num_parts: number K of cycles and of emissions; 0 for the paper's pool.
        changes: changes to the sections ``process``, ``layout``, ``model`` and ``training``.

    Source: [MultiTask] Appendix B.1 (8192 HMMs of 128 states and 16 symbols; 131,072 prompts, each once; 16 layers, 16
    heads, width 1024). Distributions, lengths, optimiser and reduced scales are our choice.
    """
    process: dict[str, Any] = {"name": "composed-cycles", "num_parts": num_parts}
    if not num_parts:
        law = {"transition_concentration": CONCENTRATION, "emission_concentration": CONCENTRATION}
        process = {"name": "random-mixture", **law}
    first = {"process": process, "layout": {"name": "prompts"}, "model": {"name": "roformer"}, "training": {}}
    return {key: start | _SCALES[scale][key] | changes.get(key, {}) for key, start in first.items()}


def multitask_plan(scale: str, parts: list[int], cycles: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """Return configurations by label: the first of `cycles` with every K in `parts`, other cycles with the last K.

    Args:
        scale: see `multitask_config`.
        parts: values of K.
        cycles: kinds of cycles, such as ``"12/6"`` for 12 states and 6 symbols (default: set by the scale).

    Raises:
        InputError: a kind of cycles is invalid.
    """
    cycles = cycles or CYCLES[scale][:1]
    found = {}
    for own in cycles:
        sizes = own.split("/")
        good = len(sizes) == 2 and all(map(str.isdecimal, sizes))
        require(good, "plan.cycles", "must be states/symbols, such as 12/6", own)
        process = {"num_states": int(sizes[0]), "num_symbols": int(sizes[1])}
        for k in parts if own == cycles[0] else parts[-1:]:
            name = f"K = {k}" if k else "model"
            found[name if len(cycles) == 1 else f"{own}, {name}"] = multitask_config(scale, k, process=process)
    return found
