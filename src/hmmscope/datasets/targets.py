"""Targets of models: the next observation or the belief state."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from hmmscope.axes import Bool, Float, Float64, Int64, Tensor
from hmmscope.datasets.density_heads import laws_asked
from hmmscope.datasets.headers import observe_decoded
from hmmscope.datasets.layouts import Layout, check_layout
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.datasets.target_base import PADDING as PADDING
from hmmscope.datasets.target_base import AfterEachObservation, BeforeEachObservation, at_least_float32
from hmmscope.datasets.target_base import Labels as Labels
from hmmscope.datasets.target_base import Target as Target
from hmmscope.datasets.vector_targets import NextDensity, NextVector, ProductVector, RecordedNextDensity, VectorBelief
from hmmscope.errors import InputError
from hmmscope.inference.fast import belief_states
from hmmscope.processes.capabilities import PATHS, STATES, VECTORS
from hmmscope.processes.process import Process
from hmmscope.processes.recorded_sequences import RecordedSequences
from hmmscope.schema import unknown_name
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.gaps import MISSING

TARGETS = ("observation", "belief", "density")


class NextObservation(BeforeEachObservation):
    """The next observation; the optimum is its distribution under `process.prior`, else `process`."""

    kind = "law"

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        return self.answer_of(self.process if self.process.prior is None else self.process.prior.process, batch)

    def happened(self, batch: Batch) -> Int64[Tensor, "batch judged"] | None:
        return batch.observations[:, self.kept]

    def counted(self, batch: Batch) -> Bool[Tensor, "batch judged"]:
        symbol = self.process.evaluated_after
        if symbol is None:
            return super().counted(batch)
        before = torch.nn.functional.pad(batch.observations[:, :-1], (1, 0), value=-1)
        before[:, self.layout.reset_mask] = -1
        return before[:, self.kept] == symbol


class HeaderNextObservation(NextObservation):
    """The next observation, given the HMM that the header encodes."""

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        return observe_decoded(self.process, self.layout, batch).predicted_observation[:, self.kept]


class UnknownNextObservation(NextObservation):
    """The next observation of a process without a tractable Bayes optimum."""

    exact = False

    def __init__(self, process: Process, layout: Layout) -> None:
        super().__init__(process, layout)
        self.no_optimum_reason = process.no_optimum_reason

    def lower_bound(self, dataset: ProcessDataset, num_samples: int) -> None:
        return None

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        raise InputError(f"process: {self.process!r} has no Bayes optimum: {self.no_optimum_reason}")


class RecordedNextObservation(BeforeEachObservation):
    """The next symbol of recorded sequences; the Bayes optimum is unknown unless a process is assumed."""

    kind = "law"
    ragged = True

    def __init__(self, process: Process, layout: Layout) -> None:
        super().__init__(process, layout)
        self.exact = process.prior is not None
        self.no_optimum_reason = None if self.exact else "the process of recorded sequences is unknown"

    def lower_bound(self, dataset: ProcessDataset, num_samples: int) -> float | None:
        return self.lower_bound_terms(dataset[0:num_samples]).nanmean().item() if self.exact else None

    def labels(self, batch: Batch) -> Labels:
        return super().labels(batch).where(self.evaluated(batch), PADDING)

    def evaluated(self, batch: Batch) -> Bool[Tensor, "batch judged"]:
        return (batch.states[:, self.kept] >= 0) & (super().labels(batch) != MISSING)

    def loss(self, outputs: Float[Tensor, "batch judged output"], labels: Labels) -> Float[Tensor, ""]:
        flat = at_least_float32(outputs.flatten(0, 1))
        total = F.cross_entropy(flat, labels.flatten(0, 1), ignore_index=PADDING, reduction="sum")
        return total / (labels != PADDING).sum().clamp_min(1)

    def loss_terms(
        self, answer: Float64[Tensor, "batch judged output"], labels: Labels
    ) -> Float64[Tensor, "batch judged"]:
        asked = labels != PADDING
        return super().loss_terms(answer, labels.where(asked, 0)).where(asked, torch.nan)

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        if self.process.prior is None:
            raise InputError(
                "process: recorded sequences have no Bayes optimum, because their process is unknown; fit an HMM first"
            )
        padding = torch.eye(self.num_outputs, dtype=torch.float64)[0]
        return self.answer_of(self.process.prior.process, batch).where(self.evaluated(batch)[..., None], padding)

    def happened(self, batch: Batch) -> Int64[Tensor, "batch judged"] | None:
        return super().labels(batch).where(self.evaluated(batch), 0) if self.exact else None


class Belief(AfterEachObservation):
    """The belief state (filtered posterior) as target, trained by cross-entropy."""

    kind = "law"

    def __init__(self, process: Process, layout: Layout) -> None:
        super().__init__(process, layout)
        self.num_outputs = process.num_states

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        reset_mask = torch.from_numpy(self.layout.reset_mask)
        beliefs = belief_states(self.process, batch.observations, reset_mask=reset_mask)
        return self.with_start(beliefs, self.process.params.initial_MS[0])

    def happened(self, batch: Batch) -> Int64[Tensor, "batch judged"] | None:
        if not self.process.params.states_emit:
            return None
        return self.with_first_state(batch)


class HeaderBelief(Belief):
    """The belief state, given the HMM that the header encodes."""

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        beliefs = observe_decoded(self.process, self.layout, batch).beliefs
        return self.with_start(beliefs, self.process.params.initial_MS[0])


def check_target(name: str, field: str = "target") -> None:
    if not isinstance(name, str) or (not name.startswith("density-") and name not in TARGETS):
        raise unknown_name(field, name, TARGETS)
    if name.startswith("density"):
        laws_asked(name)


def make_target(name: str, process: Process, layout: Layout) -> Target:
    """Return a target of a process in a layout.

    "observation": the next symbol or vector; "belief": the belief state or `ProductVector`; "density-K": the density
    of the next vector, as a mixture of K components; "density": the same with the default K of `NextDensity`.

    Raises:
        InputError: the name is unknown, or the process has no such target.

    Source: [Limits] §2.2 and App. C (belief inference and next-observation prediction).
    """
    check_target(name)
    check_layout(layout)
    if process.data is not None and process.real_valued:
        if not name.startswith("density"):
            raise InputError(f"target: must be density for recorded numbers, got {name!r}")
        return RecordedNextDensity(process, layout, laws_asked(name))
    if process.data is not None:
        if name != "observation":
            raise InputError(
                f"target: must be observation for recorded sequences, whose hidden states are unknown, got {name!r}"
            )
        return RecordedNextObservation(process, layout)
    if name.startswith("density"):
        return NextDensity(process, layout, laws_asked(name))
    if layout.of(process).header_format is not None:
        return HeaderNextObservation(process, layout) if name == "observation" else HeaderBelief(process, layout)
    if name == "observation":
        if process.real_valued:
            return NextVector(process, layout)
        return (
            NextObservation(process, layout)
            if process.no_optimum_reason is None
            else UnknownNextObservation(process, layout)
        )
    if STATES in process.uses_hmm_inference:
        return Belief(process, layout)
    if process.real_valued and PATHS in process.capabilities():
        return VectorBelief(process, layout)
    if VECTORS in process.capabilities():
        return ProductVector(process, layout)
    raise InputError(f"target: a {type(process).__name__} has no exact belief; use target='observation'")


def dataset_of(source: Any, process: Process, layout: Layout, *, seed: int = 0, **reading: Any) -> ProcessDataset:
    """Return recorded sequences as a dataset whose Bayes optimum is that of an assumed process.

    Sequences longer than the layout are truncated.

    Args:
        source: `SequenceData`, or anything that it reads.
        process: assumed process, which defines the alphabet, the reading options and the optimum.
        layout: layout with one sequence per sample.
        seed: seed of the order of the sequences.
        reading: options `unit`, `column`, `group`, `axis`, `missing` and `lengths` of `SequenceData`.

    Raises:
        InputError: `source` is invalid, alphabets differ, samples have several sequences, or the process emits vectors.
    """
    asked = make_target("observation", process, layout)
    if asked.kind != "law" or len(layout.sequence_lengths) > 1:
        raise InputError("sequences: need a process of symbols and one sequence per sample (SequenceLayout)")
    data = source
    if not isinstance(source, SequenceData):
        data = SequenceData(source, symbols_from=process, **reading)
    elif source.symbols != process.symbols:
        raise InputError("sequences: must have the process's symbols; pass SequenceData(..., symbols=process.symbols)")
    law = (process if process.prior is None else process.prior.process) if asked.exact else None
    begun = RecordedSequences(data.prefixes(layout.num_observations), law)
    return ProcessDataset(begun, layout=replace(layout, length=begun.data.longest), seed=seed)  # type: ignore[type-var]
