"""Targets for vectors."""

import torch

from hmmscope.axes import Bool, Float, Float64, Int64, Tensor
from hmmscope.datasets.density_heads import head_of, joined
from hmmscope.datasets.layouts import Layout
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.datasets.target_base import AfterEachObservation, BeforeEachObservation, at_least_float32
from hmmscope.errors import InputError
from hmmscope.processes.process import Process


class NextVector(BeforeEachObservation):
    """The next vector; the optimum is its mean given earlier vectors."""

    kind = "vector"

    def __init__(self, process: Process, layout: Layout) -> None:
        super().__init__(process, layout)
        if len(layout.sequence_lengths) > 1:
            raise InputError("layout: must be SequenceLayout for a linear process")

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        return self.process.observe(batch.observations).predicted_observation[:, self.kept]


class NextDensity(BeforeEachObservation):
    """The probability density of the next vector.

    A prediction is a pair (log density of the observation, mean). The difference of mean losses, model minus optimum,
    estimates KL(exact density || model density).

    Args:
        process: process that emits vectors.
        layout: layout of the samples.
        num_laws: number of mixture components of the density (default: that of the process, at most 16).
    """

    kind = "density"

    def __init__(self, process: Process, layout: Layout, num_laws: int | None = None) -> None:
        super().__init__(process, layout)
        if not process.real_valued:
            raise InputError(
                f"target: density needs vectors, but {type(process).__name__} emits symbols; use target='observation'"
            )
        self.head = head_of(process, num_laws)  # type: ignore[arg-type]
        self.num_outputs = self.head.num_outputs

    def on(self, layout: Layout) -> "NextDensity":
        return type(self)(self.process, layout, self.head.num_mixture_components)

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged kept"]:
        return self.answer_of(self.process, batch)

    def answer_of(self, observer: Process, batch: Batch) -> Float64[Tensor, "batch judged kept"]:
        found = observer.observe(batch.observations.cpu(), reset_mask=torch.from_numpy(self.layout.reset_mask))
        return joined(found.log_likelihood_terms, found.predicted_observation)[:, self.kept]

    def answer(
        self, outputs: Float[Tensor, "batch judged output"], labels: Float[Tensor, "batch judged coordinate"]
    ) -> Float64[Tensor, "batch judged n"]:
        outputs, labels = outputs.double(), labels.to(outputs.device).double()
        return joined(self.head.log_density(outputs, labels), self.head.mean(outputs))

    def mean(self, outputs: Float[Tensor, "*batch output"]) -> Float[Tensor, "*batch coordinate"]:
        return self.head.mean(outputs)

    def loss(
        self, outputs: Float[Tensor, "batch judged output"], labels: Float[Tensor, "batch judged coordinate"]
    ) -> Float[Tensor, ""]:
        return -self.head.log_density(at_least_float32(outputs), labels).mean()

    def loss_terms(
        self, answer: Float64[Tensor, "batch judged kept"], labels: Float[Tensor, "batch judged coordinate"]
    ) -> Float64[Tensor, "batch judged"]:
        return -answer[..., 0]

    def distance_terms(
        self, answer: Float64[Tensor, "batch judged kept"], optimum: Float64[Tensor, "batch judged kept"]
    ) -> Float64[Tensor, "batch judged"]:
        return ((answer - optimum)[..., 1:] / self.head.width).norm(dim=-1)


class RecordedNextDensity(NextDensity):
    """The density of the next vector of recorded sequences; vectors with a missing entry are not predicted."""

    exact, ragged = False, True
    no_optimum_reason = "the process of recorded sequences is unknown"

    def lower_bound(self, dataset: ProcessDataset, num_samples: int) -> None:
        return None

    def labels(self, batch: Batch) -> Float64[Tensor, "batch judged coordinate"]:
        return batch.observations[:, self.kept]

    def evaluated(self, batch: Batch) -> Bool[Tensor, "batch judged"]:
        return ~self.labels(batch).isnan().any(-1)

    def loss(
        self, outputs: Float[Tensor, "batch judged output"], labels: Float[Tensor, "batch judged coordinate"]
    ) -> Float[Tensor, ""]:
        asked = ~labels.isnan().any(-1)
        return -self.head.log_density(at_least_float32(outputs)[asked], labels[asked]).sum() / asked.sum().clamp_min(1)

    def loss_terms(
        self, answer: Float64[Tensor, "batch judged kept"], labels: Float[Tensor, "batch judged coordinate"]
    ) -> Float64[Tensor, "batch judged"]:
        return super().loss_terms(answer, labels).masked_fill(labels.isnan().any(-1), torch.nan)


class VectorBelief(AfterEachObservation):
    """The belief state of a process with states that emit vectors."""

    kind = "law"

    def __init__(self, process: Process, layout: Layout) -> None:
        super().__init__(process, layout)
        self.num_outputs = process.num_states

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        found = self.process.observe(batch.observations.cpu(), reset_mask=torch.from_numpy(self.layout.reset_mask))
        return self.with_start(found.probs["belief"], self.process.initial)  # type: ignore[attr-defined]

    def happened(self, batch: Batch) -> Int64[Tensor, "batch judged"]:
        return self.with_first_state(batch)


class ProductVector(AfterEachObservation):
    """The initial vector of a matrix-product process, multiplied by the matrices of the symbols so far."""

    kind = "vector"

    def __init__(self, process: Process, layout: Layout) -> None:
        super().__init__(process, layout)
        self._start_D = process.driving_matrices()[1]
        self.num_outputs = len(self._start_D)

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        vectors = self.process.vectors(batch.observations, reset_mask=torch.from_numpy(self.layout.reset_mask))
        return self.with_start(vectors, self._start_D)
