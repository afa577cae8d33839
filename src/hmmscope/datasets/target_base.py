"""Base classes of targets, the quantities that a model predicts."""

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from hmmscope.axes import Bool, Float, Float64, Int64, Tensor
from hmmscope.datasets.layouts import Layout
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.errors import InputError
from hmmscope.inference.optimal import optimal_probs
from hmmscope.processes.process import Process

#: Label of positions that are not evaluated.
PADDING = -100

Labels = Int64[Tensor, "batch judged"] | Float[Tensor, "batch judged output"]


class Target(ABC):
    """A quantity that a model predicts at some of its positions.

    Attributes:
        kind: type of output and loss: "law" (logits, cross-entropy), "vector" (mean squared error) or "density"
            (outputs of a `DensityHead`, -log density).
        num_outputs: number of model outputs: symbols, states or coordinates.
        token_positions: token positions with an evaluated output (evaluated,).
        positions: for each evaluated output, number of earlier observations in the same sequence (evaluated,).
        sequences: for each evaluated output, number of earlier sequences in the sample (evaluated,).
        unit: unit of the loss.
        exact: True if `optimum` is known.
        ragged: True if samples differ in their number of labels.
        no_optimum_reason: reason why `optimum` is unknown.
        device: device that computes `optimum` (default: the samples' device).
    """

    exact: bool = True
    ragged: bool = False
    no_optimum_reason: str | None = None
    device: torch.device | None = None
    kind: Literal["law", "vector", "density"]
    num_outputs: int
    token_positions: NDArray[np.int64]
    positions: NDArray[np.int64]
    sequences: NDArray[np.int64]

    def __init__(self, process: Process, layout: Layout) -> None:
        self.process, self.layout = process, layout.of(process)
        self._columns: dict[torch.device, Tensor] = {}

    def on(self, layout: Layout) -> "Target":
        """Return the same target for samples in another layout."""
        other = type(self)(self.process, layout)
        other.device = self.device
        return other

    def token_positions_on(self, device: torch.device) -> Int64[Tensor, " judged"]:
        if device not in self._columns:
            self._columns[device] = torch.from_numpy(self.token_positions).to(device)
        return self._columns[device]

    @property
    def unit(self) -> str:
        return "mean squared error" if self.kind == "vector" else "nats"

    @abstractmethod
    def labels(self, batch: Batch) -> Labels:
        """Return the training labels of samples: symbols, probabilities or vectors."""

    @abstractmethod
    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        """Return the Bayes-optimal prediction of this target for each sample."""

    def answer(
        self, outputs: Float[Tensor, "batch judged output"], labels: Labels
    ) -> Float64[Tensor, "batch judged n"]:
        """Convert model outputs to the form of `optimum`, such as logits to probabilities."""
        return outputs.double().softmax(-1) if self.kind == "law" else outputs.double()

    def mean(self, outputs: Float[Tensor, "*batch output"]) -> Float[Tensor, "*batch coordinate"]:
        """Return the mean vector that a model's outputs predict."""
        return outputs

    def loss(self, outputs: Float[Tensor, "batch judged output"], labels: Labels) -> Float[Tensor, ""]:
        """Compute the mean loss over evaluated positions."""
        outputs = at_least_float32(outputs)
        if self.kind == "vector":
            return F.mse_loss(outputs, labels.to(outputs))
        flat = labels.flatten(0, 1)
        return F.cross_entropy(outputs.flatten(0, 1), flat.to(outputs) if flat.is_floating_point() else flat)

    def num_labels(self, batch: Batch) -> int:
        return int(self.evaluated(batch).sum()) if self.ragged else len(batch.tokens) * len(self.token_positions)

    def loss_terms(
        self, answer: Float64[Tensor, "batch judged output"], labels: Labels
    ) -> Float64[Tensor, "batch judged"]:
        """Compute the loss of predicted probabilities (not logits) or vectors at each position."""
        if self.kind == "vector":
            return (answer - labels).square().mean(-1)
        if not labels.is_floating_point():
            return -answer.gather(2, labels[..., None])[..., 0].log()
        return -(labels * answer.log().where(labels > 0, 0.0)).sum(-1)

    def distance_terms(
        self, answer: Float64[Tensor, "batch judged output"], optimum: Float64[Tensor, "batch judged output"]
    ) -> Float64[Tensor, "batch judged"]:
        """Compute the distance of predictions from the optimum at each position.

        The distance is the total variation for probabilities and the Euclidean distance for vectors. The Euclidean
        distance is divided by max(1, norm of the optimum) for processes that emit vectors.

        Source: [Limits] App. C.1.
        """
        if self.kind == "law":
            return 0.5 * (answer - optimum).abs().sum(-1)
        distance = (answer - optimum).norm(dim=-1)
        if self.process.real_valued:
            distance = distance / optimum.norm(dim=-1).clamp_min(1.0)
        return distance

    def happened(self, batch: Batch) -> Int64[Tensor, "batch judged"] | None:
        """Return the symbols or states that occurred, as indices of the outputs; None for vectors."""
        return None

    def counted(self, batch: Batch) -> Bool[Tensor, "batch judged"]:
        """Return a mask of the positions that the evaluation loss includes."""
        return self.evaluated(batch)

    def evaluated(self, batch: Batch) -> Bool[Tensor, "batch judged"]:
        return torch.ones(len(batch.tokens), len(self.token_positions), dtype=torch.bool, device=batch.tokens.device)

    def lower_bound_terms(self, batch: Batch) -> Float64[Tensor, "batch judged"]:
        """Compute the loss of the optimum at each position."""
        labels = self.labels(batch)
        return self.loss_terms(self.optimum(batch), labels.double() if labels.is_floating_point() else labels)

    def lower_bound(self, dataset: ProcessDataset, num_samples: int) -> float | None:
        """Compute the mean loss of the optimum on samples 0 .. num_samples - 1; None if unknown."""
        return self.lower_bound_terms(dataset[0:num_samples]).mean().item()


def at_least_float32(outputs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return outputs if outputs.dtype == torch.float64 else outputs.float()


def complete(observations: Tensor) -> Tensor:
    """Return the observations; raise InputError if a vector has missing entries."""
    if observations.is_floating_point() and bool(observations.isnan().any()):
        raise InputError(
            "observations: entries are missing (NaN), which networks cannot read; train on a process without missing "
            "values, or fit an HMM with hmmscope.fit, which marginalises missing values"
        )
    return observations


class BeforeEachObservation(Target):
    """A target that a model predicts before each observation."""

    def __init__(self, process: Process, layout: Layout) -> None:
        super().__init__(process, layout)
        layout = self.layout
        kept = layout.predicted_observations
        self.kept = slice(layout.num_observations - len(kept), None)  # those with an earlier token
        self.num_outputs = process.num_symbols
        self.token_positions = layout.token_positions[kept] - 1
        self.positions = layout.position_in_sequence[kept]
        self.sequences = layout.sequence_index[kept]

    def labels(self, batch: Batch) -> Labels:
        return complete(batch.observations)[:, self.kept]

    def answer_of(self, observer: Process, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        reset_mask, seen = torch.from_numpy(self.layout.reset_mask), batch.observations
        probs = optimal_probs(observer, seen.to(self.device or seen.device), reset_mask=reset_mask)
        return probs[:, self.kept].to(seen.device)


class AfterEachObservation(Target):
    """A target that a model predicts after each observation and at delimiters."""

    def __init__(self, process: Process, layout: Layout) -> None:
        super().__init__(process, layout)
        layout = self.layout
        after = layout.token_positions
        before = layout.token_positions[layout.reset_mask] - 1 if layout.has_prefix else after[:0]
        columns = np.concatenate([after, before])
        positions = np.concatenate([layout.position_in_sequence + 1, np.zeros(len(before), np.int64)])
        sequences = np.concatenate([layout.sequence_index, np.arange(len(before))])
        order = np.argsort(columns)
        self.order, self.num_before = order, len(before)
        self.token_positions, self.positions, self.sequences = columns[order], positions[order], sequences[order]

    def labels(self, batch: Batch) -> Labels:
        complete(batch.observations)
        return self.optimum(batch)

    def with_first_state(self, batch: Batch) -> Int64[Tensor, "batch judged"]:
        first = batch.states[:, torch.from_numpy(self.layout.reset_mask).nonzero()[:, 0]][:, : self.num_before]
        return torch.cat([batch.states, first], 1)[:, self.order]

    def with_start(self, answers_BTN: Tensor, start_N: Tensor) -> Tensor:
        before = start_N.to(answers_BTN.device).expand(len(answers_BTN), self.num_before, -1)
        return torch.cat([answers_BTN, before], 1)[:, self.order]
