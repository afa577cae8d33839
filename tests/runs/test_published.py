"""The presets have the numbers that the papers print."""

from typing import Any

import pytest

from hmmscope.runs.presets import PRESETS, preset


def test_the_mixture_of_multitask() -> None:
    """[MultiTask] §5 and App. B.1: 8192 HMMs of 128 states, 16 layers of width 1024, 64 epochs of 64 steps of 32 prompts."""
    data = preset("multitask")
    process = {"name": "random-mixture", "num_components": 8192, "num_states": 128, "num_symbols": 16}
    assert data["process"] == process | {"transition_concentration": 0.01, "emission_concentration": 0.01}
    assert data["layout"] == {
        **{"name": "prompts", "num_demonstrations": 15},
        **{"demonstration_length": 16, "test_length": 16},
    }
    assert data["model"] == {"name": "roformer", "num_layers": 16, "num_heads": 16, "width": 1024}
    training = data["training"]
    assert (training["num_steps"], training["batch_size"], training["epoch_steps"]) == (64 * 64, 32, 64)


@pytest.mark.parametrize("num_layers", range(1, 8))
def test_the_transformers_of_limits(num_layers: int) -> None:
    """[Limits] §4.1 and App. C.1: width 512, 8 heads, dropout 0.1, 5 million trajectories, 100 epochs, 8 - L stages."""
    data = preset(f"limits-transformer-{num_layers}")
    model: dict[str, Any] = {"name": "decoder", "num_layers": num_layers, "width": 512, "num_heads": 8, "dropout": 0.1}
    assert data["model"] == model | {"positions": "learned", "input_features": True}
    assert data["layout"] == {"name": "sequences", "length": 120, "placeholder": True}
    assert (data["process"], data["target"]) == ({"name": "cyclic-det"}, "belief")
    training = data["training"]
    assert training["num_steps"] == 100 * -(-5_000_000 // training["batch_size"])
    assert (training["num_trajectories"], training["learning_rate"], training["warmup_from"]) == (5_000_000, 1e-3, 1e-7)
    assert (training["warmup_steps"], training["halve_every"], training["gradient_clip"]) == (4000, 20, 0.0)
    assert len(training["curriculum"]) == 8 - num_layers


def test_the_recurrent_network_of_limits() -> None:
    """[Limits] App. C: a ReLU RNN of 64 units, without a curriculum."""
    data = preset("limits-rnn")
    assert data["model"] == {"name": "rnn", "width": 64}
    assert (data["training"]["batch_size"], data["training"]["curriculum"]) == (256, [])
    assert len(PRESETS) == 9
