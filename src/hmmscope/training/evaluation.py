"""Evaluation during training."""

from typing import Any

import torch
from torch import nn

from hmmscope.axes import Float64, Tensor
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.datasets.targets import Target
from hmmscope.errors import InputError
from hmmscope.training.spec import TrainingSpec
from hmmscope.training.state import move
from hmmscope.training.updates import judged_outputs

_BATCH = 64


class Evaluation:
    """Evaluation of a model during training, always on the same samples.

    Args:
        dataset: Dataset whose first `spec.evaluate_samples` samples are used.
        spec: Training spec.

    Raises:
        InputError: All observations of the samples are missing.
    """

    def __init__(self, dataset: ProcessDataset, target: Target, spec: TrainingSpec) -> None:
        self._spec, self._batch = spec, dataset[0 : spec.evaluate_samples]
        self._target = target
        if not target.num_labels(self._batch):
            raise InputError(
                "training.evaluate_samples: all observations of these samples are missing; evaluate on other samples"
            )
        self._parts: dict[torch.device, list[tuple[Batch, Tensor]]] = {}
        self._optimum: Float64[Tensor, "batch judged output"] | None = None
        single = len(dataset.layout.sequence_lengths) == 1  # exact answers of prompts may cost more than training
        if single and self._target.exact:
            self._optimum = self._target.optimum(self._batch)
            self._counted = self._target.counted(self._batch)

    @torch.no_grad()
    def __call__(self, model: nn.Module, device: torch.device) -> dict[str, Any]:
        model.eval()
        total, count, distances, spec = 0.0, 0.0, [], self._spec
        for number, (samples, labels) in enumerate(self._on(device)):
            outputs = judged_outputs(
                model, samples, self._target, block_length=spec.block_length, block_algorithm=spec.block_algorithm
            )
            weight = self._target.num_labels(samples) / len(
                self._target.token_positions
            )  # samples, where each has all labels
            total += self._target.loss(outputs, labels).item() * weight
            count += weight
            if self._optimum is not None:
                answer = self._target.answer(outputs.cpu(), labels.cpu())
                optimum = self._optimum[number * _BATCH : (number + 1) * _BATCH]
                distances.append(self._target.distance_terms(answer, optimum))
        model.train()
        found: dict[str, Any] = {"evaluation_loss": total / count}
        if distances:
            found["distances"] = mean_where(torch.cat(distances), self._counted)
        return found

    def _on(self, device: torch.device) -> list[tuple[Batch, Tensor]]:
        if device not in self._parts:
            self._parts[device] = []
            for begin in range(0, len(self._batch.tokens), _BATCH):
                rows = slice(begin, begin + _BATCH)
                part = Batch(self._batch.tokens[rows], self._batch.observations[rows], self._batch.states[rows], None)
                samples = move(part, device)
                self._parts[device].append((samples, self._target.labels(samples)))
        return self._parts[device]


def mean_where(values: Float64[Tensor, "batch judged"], counted: Tensor) -> list[float | None]:
    """Return the mean of `values` at each position over samples where `counted` is true; None without such samples."""
    sums, counts = values.where(counted, 0.0).sum(0), counted.sum(0)
    return [total / count if count else None for total, count in zip(sums.tolist(), counts.tolist(), strict=True)]
