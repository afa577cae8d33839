"""Runs with live pages, which the tests in a browser share."""

from pathlib import Path
from typing import Any

import torch

from hmmscope import TrainOptions
from hmmscope.lab.report.look_page import write_look
from hmmscope.runs.config import config_from_data
from hmmscope.runs.page_export import live_data
from hmmscope.runs.pipeline import Run
from hmmscope.runs.training import train

MESS3 = {"name": "mess3", "emission": 0.7}
HMM = {"name": "random-hmm", "num_states": 5, "num_symbols": 4}
MIXTURE = {
    "name": "random-mixture",
    "num_components": 6,
    "num_states": 4,
    "num_symbols": 5,
    "emission_concentration": 1.0,
}
SEQUENCES = {"name": "sequences", "length": 20, "placeholder": True}
PROMPTS = {"name": "prompts", "num_demonstrations": 3, "demonstration_length": 5, "test_length": 5}
DECODER = {"name": "decoder", "num_layers": 2, "num_heads": 2, "width": 16, "dropout": 0.1}
CASES: dict[str, tuple[dict, dict, dict]] = {
    "roformer": (MESS3, SEQUENCES, {"name": "roformer", "num_layers": 2, "num_heads": 2, "width": 16}),
    "decoder": (HMM, {"name": "sequences", "length": 20}, DECODER),
    "sinusoidal": (MIXTURE, PROMPTS, DECODER | {"positions": "sinusoidal", "input_features": False}),
    "bare": (
        HMM | {"num_symbols": 20},
        SEQUENCES,
        DECODER | {"positions": "none", "attention_only": True, "norm": "none"},
    ),
    "relu": (HMM, SEQUENCES, {"name": "rnn", "width": 12, "num_layers": 2, "learn_initial": True}),
    "tanh": (HMM, SEQUENCES, {"name": "rnn", "width": 12, "nonlinearity": "tanh"}),
    "lstm": (MESS3, SEQUENCES, {"name": "lstm", "width": 12, "num_layers": 2, "learn_initial": True}),
    "gru": (MESS3, SEQUENCES, {"name": "gru", "width": 12}),
}


def write_live_page(live: dict[str, Any], out: Path) -> Path:
    """The page of a model of which nothing is shown but what the page computes."""
    nothing = dict.fromkeys(
        ("invalid", "learned", "beliefs", "attention", "push", "trace", "used", "ahead", "explained", "titled", "made")
    )
    losses = [{"name": "model", "role": "model", "value": 1.0, "low": 0.9, "high": 1.1, "above": None}]
    about = {
        "name": live["model"]["name"],
        "process": live["title"],
        "unit": "nats",
        "samples": 8,
        "length": 20,
        "architecture": "",
        "about": {},
        "warnings": (),
    }
    told = {"steps": live["model"]["steps"], "before": "a twin", "unknown": [live["title"]]}
    return write_look(nothing | about | told | {"losses": losses, "live": live}, out)


def made(root: Path, name: str) -> tuple[Run, Path]:
    """A run whose weights are far from where they began, and its page."""
    process, layout, model = CASES[name]
    training = {"num_steps": 1, "batch_size": 2}
    data = {"process": process, "layout": layout, "model": model, "training": training}
    run = train(config_from_data(data), root / name, options=TrainOptions(num_samples=8))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return run, write_live_page(live_data(run), root / f"{name}.html")
