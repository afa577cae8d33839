"""The runs that the experiments of [MultiTask] share: a RoFormer trained on prompts from a mixture of HMMs.

Figures 1, 2, 3 and 7 look into one trained model, so all of them take its configuration from here, and the pool trains it
once for each seed.
"""

from typing import Any

from hmmscope.training.recipes import multitask_recipe

#: Numbers of each scale: process, layout, model, training.
_SCALES: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {
        "process": {"num_components": 4, "num_states": 4, "num_symbols": 4},
        "layout": {"num_demonstrations": 3, "demonstration_length": 6, "test_length": 6},
        "model": {"num_layers": 2, "num_heads": 2, "width": 16},
        "training": {"num_steps": 20, "batch_size": 8, "warmup_steps": 5, "evaluate_every": 10, "checkpoint_every": 15},
    },
    "small": {
        "process": {"num_components": 40, "num_states": 8, "num_symbols": 8},
        "layout": {"num_demonstrations": 15, "demonstration_length": 6, "test_length": 6},
        "model": {"num_layers": 4, "num_heads": 4, "width": 96},
        "training": {"num_steps": 1200, "learning_rate": 3e-3},
    },
    "gpu": {
        "process": {"num_components": 256, "num_states": 32, "num_symbols": 8},
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
#: Of the rows of transition and emission matrices; the paper does not state it.
CONCENTRATION = {"smoke": 0.1, "small": 0.1, "gpu": 0.03, "paper": 0.01}


def multitask_config(scale: str, **changes: dict[str, Any]) -> dict[str, Any]:
    """The run of [MultiTask] as plain configuration.

    Args:
        scale: "smoke", "small", "gpu" or "paper".
        changes: to the sections ``process``, ``layout``, ``model`` and ``training``.

    Source: [MultiTask] App. B.1 (8192 HMMs of 128 states and 16 symbols; 131,072 prompts, each once; 16 layers, 16 heads,
    width 1024). Not stated there: the laws of the matrices, lengths, the optimiser; the reduced scales are ours.
    """
    numbers, concentration = _SCALES[scale], CONCENTRATION[scale]
    law = {"transition_concentration": concentration, "emission_concentration": concentration}
    first: dict[str, dict[str, Any]] = {
        "process": {"name": "random-mixture", **law},
        "layout": {"name": "prompts"},
        "model": {"name": "roformer"},
        "training": {},
    }
    return {key: start | numbers[key] | changes.get(key, {}) for key, start in first.items()}
