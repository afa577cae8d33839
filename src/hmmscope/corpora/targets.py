"""What a model is asked for: the next observation or the belief, with its loss, its exact answer and its floor."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from hmmscope.axes import Bool, Float, Float64, Int64, Tensor
from hmmscope.corpora.corpus import Batch, Corpus
from hmmscope.corpora.headers import observe_told
from hmmscope.corpora.layouts import Layout
from hmmscope.errors import InputError
from hmmscope.inference.fast import belief_states
from hmmscope.inference.optimal import optimal_law
from hmmscope.processes.answers import STATES, VECTORS
from hmmscope.processes.given_sequences import GivenSequences
from hmmscope.processes.process import Process
from hmmscope.schema import unknown_name
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.gaps import MISSING

TARGETS = ("observation", "belief")

#: The label of columns where nothing is asked.
PADDING = -100

Labels = Int64[Tensor, "batch judged"] | Float[Tensor, "batch judged output"]


class Target(ABC):
    """What a model of a process is asked for at some of its columns.

    Attributes:
        kind: "law" (logits of a probability distribution, cross-entropy) or "vector" (mean squared error, averaged over
            coordinates).
        num_outputs: symbols, states or coordinates.
        columns: token columns whose outputs are judged (judged,).
        positions: number of observations of the sequence that are known there (judged,).
        sequences: number of earlier sequences in the sample (judged,).
        unit: of the loss.
        exact: whether an exact answer is known; if not, there is no `optimum`.
        why_not: why there is none.
    """

    exact: bool = True
    why_not: str | None = None
    kind: Literal["law", "vector"]
    num_outputs: int
    columns: NDArray[np.int64]
    positions: NDArray[np.int64]
    sequences: NDArray[np.int64]

    def __init__(self, process: Process, layout: Layout) -> None:
        self.process, self.layout = process, layout.of(process)
        self._columns: dict[torch.device, Tensor] = {}

    def on(self, layout: Layout) -> "Target":
        """The same asked of samples with another layout."""
        return type(self)(self.process, layout)

    def columns_on(self, device: torch.device) -> Int64[Tensor, "judged"]:
        """`columns` on a device, copied there once."""
        if device not in self._columns:
            self._columns[device] = torch.from_numpy(self.columns).to(device)
        return self._columns[device]

    @property
    def unit(self) -> str:
        return "nats" if self.kind == "law" else "mean squared error"

    @abstractmethod
    def labels(self, batch: Batch) -> Labels:
        """What the loss compares with: symbols, or laws or vectors, of each judged column."""

    @abstractmethod
    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        """The exact answer of an observer who knows the process."""

    def loss(self, outputs: Float[Tensor, "batch judged output"], labels: Labels) -> Float[Tensor, ""]:
        """Mean over judged columns: cross-entropy of logits in nats, or squared error averaged over coordinates."""
        if self.kind == "vector":
            return F.mse_loss(outputs.float(), labels.float())
        flat = labels.flatten(0, 1)
        return F.cross_entropy(outputs.flatten(0, 1).float(), flat.float() if flat.is_floating_point() else flat)

    def loss_terms(
        self, answer: Float64[Tensor, "batch judged output"], labels: Labels
    ) -> Float64[Tensor, "batch judged"]:
        """The loss at each judged column of an answer that is a law (not logits) or a vector."""
        if self.kind == "vector":
            return (answer - labels).square().mean(-1)
        if not labels.is_floating_point():
            return -answer.gather(2, labels[..., None])[..., 0].log()
        return -(labels * answer.log().where(labels > 0, 0.0)).sum(-1)

    def distance_terms(
        self, answer: Float64[Tensor, "batch judged output"], optimum: Float64[Tensor, "batch judged output"]
    ) -> Float64[Tensor, "batch judged"]:
        """The evaluation loss at each judged column: how far a law (not logits) or a vector is from the exact answer.

        Of laws the total variation, in [0, 1]; of vectors the Euclidean distance, for linear processes divided by
        max(1, norm of the exact answer).

        Source: [Limits] App. C.1.
        """
        if self.kind == "law":
            return 0.5 * (answer - optimum).abs().sum(-1)
        distance = (answer - optimum).norm(dim=-1)
        if self.process.real_valued:
            distance = distance / optimum.norm(dim=-1).clamp_min(1.0)
        return distance

    def happened(self, batch: Batch) -> Int64[Tensor, "batch judged"] | None:
        """What `optimum` is the law of, as it happened; None where it is no law, or of nothing that samples hold."""
        return None

    def counted(self, batch: Batch) -> Bool[Tensor, "batch judged"]:
        """Where the evaluation loss is taken: everywhere, but for processes that say after which symbol."""
        return torch.ones(len(batch.tokens), len(self.columns), dtype=torch.bool, device=batch.tokens.device)

    def floor_terms(self, batch: Batch) -> Float64[Tensor, "batch judged"]:
        """The loss of the exact answer at each judged column: no model's mean can stay below its mean."""
        labels = self.labels(batch)
        return self.loss_terms(self.optimum(batch), labels.double() if labels.is_floating_point() else labels)

    def floor(self, corpus: Corpus, num_samples: int) -> float | None:
        """Least possible mean loss on samples 0 .. num_samples - 1; None where it is not known."""
        return self.floor_terms(corpus[0:num_samples]).mean().item()


class _AtObservations(Target):
    """Each observation that some column precedes."""

    def __init__(self, process: Process, layout: Layout) -> None:
        super().__init__(process, layout)
        layout = self.layout
        kept = layout.predicted
        self._kept = slice(layout.num_observations - len(kept), None)  # all but those that no column precedes
        self.num_outputs = process.num_symbols
        self.columns = layout.columns[kept] - 1
        self.positions = layout.position_in_sequence[kept]
        self.sequences = layout.sequence_index[kept]

    def labels(self, batch: Batch) -> Labels:
        return batch.observations[:, self._kept]

    def answer_of(self, observer: Process, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        """What an ideal observer says who believes that the samples come from a process of symbols."""
        starts = torch.from_numpy(self.layout.starts)
        return optimal_law(observer, batch.observations, starts=starts)[:, self._kept]


class NextObservation(_AtObservations):
    """The law of the next observation; delimiters are never asked for.

    The exact answer is that of the process, or of its prior where it has one.
    """

    kind = "law"

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        return self.answer_of(self.process if self.process.prior is None else self.process.prior.process, batch)

    def happened(self, batch: Batch) -> Int64[Tensor, "batch judged"] | None:
        return batch.observations[:, self._kept]

    def counted(self, batch: Batch) -> Bool[Tensor, "batch judged"]:
        symbol = self.process.evaluated_after
        if symbol is None:
            return super().counted(batch)
        before = torch.nn.functional.pad(batch.observations[:, :-1], (1, 0), value=-1)
        before[:, self.layout.starts] = -1
        return before[:, self._kept] == symbol


class NextTold(NextObservation):
    """The next observation of an HMM that the header tells: the exact answer is its filter."""

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        return observe_told(self.process, self.layout, batch).predicted_observation[:, self._kept]


class NextUnknown(NextObservation):
    """The next observation of a process whose best answer nobody knows."""

    exact = False

    def __init__(self, process: Process, layout: Layout) -> None:
        super().__init__(process, layout)
        self.why_not = process.why_not

    def floor(self, corpus: Corpus, num_samples: int) -> None:
        return None

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        raise InputError(f"process: no exact answer for {self.process!r}: {self.why_not}")


class NextGiven(_AtObservations):
    """The next symbol of given sequences, as far as they go; nobody knows its law, unless a process is said to be it."""

    kind = "law"

    def __init__(self, process: Process, layout: Layout) -> None:
        super().__init__(process, layout)
        self.exact = process.prior is not None
        self.why_not = None if self.exact else "nobody knows the law of given sequences"

    def floor(self, corpus: Corpus, num_samples: int) -> float | None:
        return self.floor_terms(corpus[0:num_samples]).nanmean().item() if self.exact else None

    def labels(self, batch: Batch) -> Labels:
        """Symbols; `PADDING` where nothing is asked: beyond the end of a sequence, and where an observation is missing."""
        return super().labels(batch).where(self._asked(batch), PADDING)

    def _asked(self, batch: Batch) -> Bool[Tensor, "batch judged"]:
        return (batch.states[:, self._kept] >= 0) & (super().labels(batch) != MISSING)

    def loss(self, outputs: Float[Tensor, "batch judged output"], labels: Labels) -> Float[Tensor, ""]:
        flat = outputs.flatten(0, 1).float()
        total = F.cross_entropy(flat, labels.flatten(0, 1), ignore_index=PADDING, reduction="sum")
        return total / (labels != PADDING).sum().clamp_min(1)

    def loss_terms(
        self, answer: Float64[Tensor, "batch judged output"], labels: Labels
    ) -> Float64[Tensor, "batch judged"]:
        """As for every target; NaN where nothing is asked."""
        asked = labels != PADDING
        return super().loss_terms(answer, labels.where(asked, 0)).where(asked, torch.nan)

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        """Where nothing is asked symbol 0 is certain."""
        if self.process.prior is None:
            raise InputError("process: given sequences have no known law, so no exact answer; fit an HMM to them")
        padding = torch.eye(self.num_outputs, dtype=torch.float64)[0]
        return self.answer_of(self.process.prior.process, batch).where(self._asked(batch)[..., None], padding)

    def happened(self, batch: Batch) -> Int64[Tensor, "batch judged"] | None:
        return super().labels(batch).where(self._asked(batch), 0) if self.exact else None


class NextVector(_AtObservations):
    """The next observation of a process of vectors; the exact answer is its conditional mean."""

    kind = "vector"

    def __init__(self, process: Process, layout: Layout) -> None:
        super().__init__(process, layout)
        if len(layout.sequence_lengths) > 1:
            raise InputError("layout: a linear process is asked in single sequences; use the layout sequences")

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        return self.process.observe(batch.observations).predicted_observation[:, self._kept]


class _AfterObservations(Target):
    """After each observation, and at each delimiter, where nothing of the sequence is known yet."""

    def __init__(self, process: Process, layout: Layout) -> None:
        super().__init__(process, layout)
        layout = self.layout
        after = layout.columns
        before = layout.columns[layout.starts] - 1 if layout.is_led else after[:0]
        columns = np.concatenate([after, before])
        positions = np.concatenate([layout.position_in_sequence + 1, np.zeros(len(before), np.int64)])
        sequences = np.concatenate([layout.sequence_index, np.arange(len(before))])
        order = np.argsort(columns)
        self._order, self._num_before = order, len(before)
        self.columns, self.positions, self.sequences = columns[order], positions[order], sequences[order]

    def labels(self, batch: Batch) -> Labels:
        return self.optimum(batch)

    def _with_start(self, answers_BTN: Tensor, start_N: Tensor) -> Tensor:
        """The answers after observations, with the one before the first put in at the delimiters."""
        before = start_N.to(answers_BTN.device).expand(len(answers_BTN), self._num_before, -1)
        return torch.cat([answers_BTN, before], 1)[:, self._order]


class Belief(_AfterObservations):
    """The law of the hidden state given the observations so far; the loss is the cross-entropy with it."""

    kind = "law"

    def __init__(self, process: Process, layout: Layout) -> None:
        super().__init__(process, layout)
        self.num_outputs = process.num_states

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        starts = torch.from_numpy(self.layout.starts)
        beliefs = belief_states(self.process, batch.observations, starts=starts)
        return self._with_start(beliefs, self.process.law.initial_MS[0])

    def happened(self, batch: Batch) -> Int64[Tensor, "batch judged"] | None:
        """The hidden states, where states emit; at a delimiter the first one of the sequence that follows."""
        if not self.process.law.states_emit:
            return None
        first = batch.states[:, torch.from_numpy(self.layout.starts).nonzero()[:, 0]][:, : self._num_before]
        return torch.cat([batch.states, first], 1)[:, self._order]


class BeliefTold(Belief):
    """The same of the HMM that the header tells."""

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        beliefs = observe_told(self.process, self.layout, batch).beliefs
        return self._with_start(beliefs, self.process.law.initial_MS[0])


class ProductVector(_AfterObservations):
    """The vector that the symbols have multiplied so far."""

    kind = "vector"

    def __init__(self, process: Process, layout: Layout) -> None:
        super().__init__(process, layout)
        self._start_D = process.driving()[1]
        self.num_outputs = len(self._start_D)

    def optimum(self, batch: Batch) -> Float64[Tensor, "batch judged output"]:
        vectors = self.process.vectors(batch.observations, starts=torch.from_numpy(self.layout.starts))
        return self._with_start(vectors, self._start_D)


def make_target(name: str, process: Process, layout: Layout) -> Target:
    """The target called `name` of a process in a layout.

    "observation": the next symbol, or for a linear process the next vector;
    "belief": the law of the hidden state, or for a product of matrices the vector itself.

    Raises:
        InputError: an unknown name, or a process that has no such answer.

    Source: [Limits] §2.2 and App. C (belief inference and next-observation prediction).
    """
    if name not in TARGETS:
        raise unknown_name("target", name, TARGETS)
    if process.data is not None:
        if name != "observation":
            raise InputError("target: of given sequences nobody knows the hidden state; use observation")
        return NextGiven(process, layout)
    if layout.of(process).telling is not None:
        return NextTold(process, layout) if name == "observation" else BeliefTold(process, layout)
    if name == "observation":
        if process.real_valued:
            return NextVector(process, layout)
        return NextObservation(process, layout) if process.why_not is None else NextUnknown(process, layout)
    if STATES in process.by_law:
        return Belief(process, layout)
    if VECTORS in process.answered():
        return ProductVector(process, layout)
    raise InputError(f"target: a {type(process).__name__} has no exact belief to ask for; use observation")


def corpus_of(source: Any, process: Process, layout: Layout, *, seed: int = 0, **reading: Any) -> Corpus:
    """Sequences that are given, as samples of a layout, with the optimum of a process that they are taken to come from.

    Each sequence is a sample; of one that is longer than the layout it is the beginning.

    Args:
        source: `SequenceData`, or what it is made of.
        process: its symbols are the alphabet, and how its sequences were read is how these are; where nobody knows its
            optimum, there is none of the sequences either.
        layout: of plain sequences.
        seed: of their order.
        reading: `unit`, `column`, `group`, `axis`, `missing` and `lengths`, as for `SequenceData`.

    Raises:
        InputError: what `SequenceData` refuses, another alphabet than that of the process, prompts, or a process of vectors.
    """
    asked = make_target("observation", process, layout)
    if asked.kind != "law" or len(layout.sequence_lengths) > 1:
        raise InputError(
            "sequences: can be scored where a model reads one sequence of symbols a sample (layout sequences)"
        )
    data = source
    if not isinstance(source, SequenceData):
        data = SequenceData(source, like=process, **reading)
    elif source.symbols != process.symbols:
        raise InputError("sequences: must have the symbols of the process; SequenceData(..., symbols=process.symbols)")
    law = (process if process.prior is None else process.prior.process) if asked.exact else None
    begun = GivenSequences(data.beginnings(layout.num_observations), law)
    return Corpus(begun, layout=replace(layout, length=begun.data.longest), seed=seed)  # type: ignore[type-var]
