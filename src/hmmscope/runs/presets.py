"""Named configurations of the runs in the papers."""

from typing import Any

from hmmscope.schema import require_known
from hmmscope.training.recipes import limits_recipe, multitask_recipe

_LIMITS = {
    "process": {"name": "cyclic-det"},
    "layout": {"name": "sequences", "length": 120, "placeholder": True},
    "target": "belief",
}


def _limits_transformer(num_layers: int) -> dict[str, Any]:
    model = {
        "name": "decoder",
        "num_layers": num_layers,
        "width": 512,
        "num_heads": 8,
        "positions": "learned",
        "input_features": True,
        "dropout": 0.1,
    }
    return {**_LIMITS, "model": model, "training": limits_recipe(num_layers)}


def _multitask() -> dict[str, Any]:
    return {
        "process": {
            "name": "random-mixture",
            "num_components": 8192,
            "num_states": 128,
            "num_symbols": 16,
            "transition_concentration": 0.01,
            "emission_concentration": 0.01,
        },
        "layout": {"name": "prompts", "num_demonstrations": 15, "demonstration_length": 16, "test_length": 16},
        "model": {"name": "roformer", "num_layers": 16, "num_heads": 16, "width": 1024},
        "training": multitask_recipe(),
    }


#: One-line description of each preset.
PRESETS = {
    "multitask": "RoFormer on a mixture of 8192 HMMs, as published ([MultiTask] §5)",
    "limits-rnn": "ReLU RNN on the beliefs of Cyclic-DET, 5 million trajectories, 100 epochs ([Limits] App. C)",
} | {
    f"limits-transformer-{n}": f"{n}-layer Transformer on beliefs of Cyclic-DET, with a curriculum ([Limits] App. C.1)"
    for n in range(1, 8)
}


def preset(name: str) -> dict[str, Any]:
    """Return the configuration of a preset as plain data.

    Raises:
        InputError: Unknown name.
    """
    require_known("preset", name, PRESETS)
    if name == "multitask":
        return _multitask()
    if name == "limits-rnn":
        return {**_LIMITS, "model": {"name": "rnn", "width": 64}, "training": limits_recipe()}
    return _limits_transformer(int(name.rpartition("-")[2]))
