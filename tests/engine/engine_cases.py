"""Trainings that the compiled engine and torch compute side by side."""

from typing import Any

import torch

from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.datasets.targets import Target, make_target
from hmmscope.models.base import SequenceModel, build_model
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.runs.pipeline import model_io_of
from hmmscope.training.compiled_steps import Compiled
from hmmscope.training.parallel import SingleProcess

DECODER = {"name": "decoder", "num_layers": 1, "width": 16, "num_heads": 2, "dropout": 0.0}
RNN = {"name": "rnn", "width": 16}
PROMPTS = {"name": "prompts", "num_demonstrations": 3, "demonstration_length": 4, "test_length": 5}
MIXTURE = {"name": "random-mixture", "num_components": 5, "num_states": 4, "num_symbols": 6}
VECTORS = {"name": "ran-lds"}


def config(
    model: dict[str, Any],
    *,
    length: int = 5,
    batch: int = 6,
    process: dict[str, Any] | None = None,
    layout: dict[str, Any] | None = None,
    target: str = "observation",
    **training: Any,
) -> RunConfig:
    layout = layout or {"name": "sequences", "length": length}
    recipe = {"batch_size": batch, "device": "cpu", **training}
    process = process or {"name": "random-hmm", "num_states": 4, "num_symbols": 5}
    data = {"process": process, "model": model, "layout": layout, "target": target, "training": recipe}
    return config_from_data(data)


def parts(run: RunConfig, dtype: torch.dtype) -> tuple[SequenceModel, ProcessDataset, Target]:
    """A model whose every weight matters, its training samples and its target."""
    process = run.process.build()
    target = make_target(run.target, process, run.layout)
    model = build_model(run.model, model_io_of(run, target), run.seed)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    dataset = ProcessDataset(process, layout=run.layout, seed=0, stream="train")
    return model.to(dtype), dataset, target


def gradients(
    engine: type[SingleProcess], run: RunConfig, batch: int, dtype: torch.dtype
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of the first step; the compiled engine on work arrays full of NaN."""
    model, dataset, target = parts(run, dtype)
    samples: Batch = dataset[0:batch]
    made = engine(model, run.training, poison=True) if engine is Compiled else engine(model, run.training)
    loss = made.gradients(samples, target, 0).item()
    return loss, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def worst(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Largest difference over the largest gradient of the parameter; of one without a gradient, of all."""
    top = max(float(gradient.abs().max()) for gradient in theirs.values())
    errors = []
    for name, gradient in ours.items():
        other = theirs.get(name, torch.zeros_like(gradient))
        scale = max(float(other.abs().max()), 1e-3 * top)
        errors.append(float((gradient - other).abs().max()) / scale)
    return max(errors) if all(error == error for error in errors) else float("nan")
