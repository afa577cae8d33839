"""Point clouds of exact beliefs, and of beliefs decoded from a network, by layer and training step."""

from typing import Any

import numpy as np
from torch import Tensor, nn

from hmmscope import Run
from hmmscope.analysis import ExactBeliefs, residual_layers
from hmmscope.lab import BeliefPlane

_MOST_FRAMES = 6


def cloud_rows(run: Run, count: int, *, over_all: bool) -> list[dict]:
    """Return exact beliefs, and beliefs decoded from the last layer or, if `over_all`, by layer and training step."""
    dataset = run.dataset("probe")
    sequences = dataset.layout.sequence_index
    exact = ExactBeliefs.of(dataset, -(-count // int((sequences == sequences[-1]).sum())))
    plane = BeliefPlane(exact.belief)
    layers = residual_layers(run.model)

    def row(side: str, at: float, values: Tensor) -> dict[str, Any]:
        return {"side": side, "at": at, "points": plane.places(values, count)}

    def read(model: nn.Module, layer: int) -> Tensor:
        return exact.mapped(exact.stream(model, [layers[layer]]))[0]

    rows = [row("exact", 0, exact.belief), {"side": "colours", "at": 0, "points": plane.colours(count)}]
    if corners := plane.corners():
        rows.append({"side": "corners", "at": 0, "points": corners})
    last = len(layers) - 1
    if not over_all:
        return [*rows, row("step", run.config.training.num_steps, read(run.model, last))]
    steps = run.checkpoint_steps()
    some = sorted({steps[round(i)] for i in np.linspace(0, len(steps) - 1, _MOST_FRAMES)})
    rows += [row("layer", layer, read(run.model, layer)) for layer in range(len(layers))]
    return rows + [row("step", step, read(run.model_at(step), last)) for step in some]
