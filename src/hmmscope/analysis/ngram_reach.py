"""Baselines before training: test whether simple predictors reach the optimum on a process."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.analysis.activations import BATCH, residual_layers
from hmmscope.analysis.curves import known_component_probs
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.analysis.ngrams import TREE, TunedNgrams
from hmmscope.analysis.probes import ProbeData
from hmmscope.datasets.layouts import Layout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import NextObservation, make_target
from hmmscope.errors import InputError
from hmmscope.inference.stable_argmax import stable_argmax
from hmmscope.models.base import make_model
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.schema import require, require_count, to_stored
from hmmscope.ties import largest, steady

#: Longest context of the n-grams.
MAX_ORDER = 4
#: Untrained model to probe.
UNTRAINED = {"num_layers": 4, "width": 64, "num_heads": 4}


@dataclass(frozen=True)
class Level:
    """A mean with its 95 % bootstrap interval over samples."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, repr=False)
class NgramReach(Shown):
    """Scores of baselines and of the Bayes-optimal predictor on a process.

    Attributes:
        accuracy: accuracy by predictor: ``optimum``, ``known-component`` (optimum given the component), ``order-0`` to
            ``order-4``, ``context-tree``, and the `observers` in `ngram_reach`.
        loss: cross-entropy of each predictor, nats.
        component: accuracy of linear probes for the component, by input: ``symbol counts`` or ``untrained layer <k>``.
        chance: frequency of the most common component, or None.
        num_components: number of mixture components that the probe distinguishes, or None.
        num_samples: number of samples.
        no_optimum: reason why the optimum is unknown, or None.
    """

    accuracy: dict[str, Level]
    loss: dict[str, Level]
    component: dict[str, Level]
    chance: float | None
    num_components: int | None
    num_samples: int
    no_optimum: str | None

    @property
    def ngrams(self) -> Level:
        found = [level for name, level in self.accuracy.items() if name == TREE or name.startswith("order-")]
        return largest(found[1:], lambda level: level.value)

    @property
    def untrained(self) -> Level | None:
        """Best accuracy of linear probes for the component on an untrained model, or None."""
        found = [level for name, level in self.component.items() if name.startswith("untrained")]
        return largest(found, lambda level: level.value) if found else None

    def rows(self) -> list[dict]:
        parts = (("accuracy", self.accuracy), ("loss", self.loss), ("component", self.component))
        return [{"what": what, "name": name, **to_stored(one)} for what, part in parts for name, one in part.items()]

    def lines(self) -> list[str]:
        said = [f"accuracy (loss in nats) of predictions of the next observation on {self.num_samples} prompts"]
        for name, level in self.accuracy.items():
            said.append(f"  {name:<18} {_in_digits(level)}  ({steady(self.loss[name].value):z.3f})")
        if self.no_optimum is not None:
            said.append(f"  optimum            unknown: {self.no_optimum}")
        if self.component:
            said.append(
                f"accuracy of probes for {self.num_components} components (chance {steady(self.chance or 0.0):.3f})"
            )
            for name, level in self.component.items():
                said.append(f"  {name:<18} {_in_digits(level)}")
        return said


def _in_digits(level: Level) -> str:
    return f"{steady(level.value):z.3f}  {steady(level.low):z.3f} to {steady(level.high):z.3f}"


def ngram_reach(
    process: Process,
    layout: Layout,
    *,
    num_samples: int = 192,
    first_position: int = 4,
    num_components: int = 16,
    probe_samples: int = 768,
    observers: Mapping[str, Process] | None = None,
    seed: int = 0,
) -> NgramReach:
    """Score n-gram baselines, an untrained network and the Bayes optimum on a process.

    Args:
        process: process that emits symbols.
        layout: layout of prompts or sequences.
        num_samples: number of samples to predict.
        first_position: first evaluated position of the last sequence.
        num_components: largest number of mixture components that the probe distinguishes.
        probe_samples: number of samples for the probe; the last quarter tests it.
        observers: further predictors by name, see `evaluate`.
        seed: seed of samples and untrained weights.

    Raises:
        InputError: the process emits vectors, no position is evaluated, or an observer has other symbols.
    """
    require_count("num_samples", num_samples, 2)
    dataset = ProcessDataset(process, layout=layout, seed=seed, stream="probe")
    asked = make_target("observation", process, layout)
    if not isinstance(asked, NextObservation):
        raise InputError(f"process: must have symbols for n-gram baselines, got a {type(process).__name__}")
    judged = (asked.sequences == asked.sequences[-1]) & (asked.positions >= first_position)
    require(bool(judged.any()), "first_position", "must be a predicted position in the last sequence", first_position)
    others = ProcessDataset(process, layout=layout, seed=seed, stream="counting")
    counting = TunedNgrams.tuned(others, orders=MAX_ORDER, asked=judged)
    terms: dict[str, list[NDArray[np.float64]]] = {}
    for begin in range(0, num_samples, BATCH):
        batch = dataset[begin : min(begin + BATCH, num_samples)]
        known = known_component_probs(dataset, batch)
        laws = {"optimum": asked.optimum(batch)} if asked.exact else {}
        laws |= {} if known is None else {"known-component": known}
        laws |= counting.probs(dataset, batch)
        laws |= {name: asked.answer_of(believed, batch) for name, believed in (observers or {}).items()}
        labels = asked.labels(batch)
        for name, law in laws.items():
            right = (stable_argmax(law) == labels).double()
            both = torch.stack([right, asked.loss_terms(law, labels)])[:, :, torch.from_numpy(judged)]
            terms.setdefault(name, []).append(both.mean(2).numpy())
    each = {name: np.concatenate(parts, 1) for name, parts in terms.items()}
    component, chance, told = _component(process, layout, num_components, probe_samples, seed)
    return NgramReach(
        accuracy={name: _level(values[0]) for name, values in each.items()},
        loss={name: _level(values[1]) for name, values in each.items()},
        component=component,
        chance=chance,
        num_components=told,
        num_samples=num_samples,
        no_optimum=asked.no_optimum_reason,
    )


def _level(values: NDArray[np.float64]) -> Level:
    if not np.isfinite(values).all():
        return Level(np.inf, np.inf, np.inf)
    mean, low, high = bootstrap_means(values[:, None])
    return Level(float(mean[0]), float(low[0]), float(high[0]))


def _component(
    process: Process, layout: Layout, num_components: int, num_samples: int, seed: int
) -> tuple[dict[str, Level], float | None, int | None]:
    few = process.subsample_components(num_components)
    if few is None:
        return {}, None, None
    dataset = ProcessDataset(few, layout=layout, seed=seed, stream="probe")
    sizes = {"num_symbols": dataset.num_symbols, "vocab_size": dataset.vocab_size, "max_length": layout.context_length}
    model = make_model("roformer", **sizes, **UNTRAINED, seed=seed)
    untrained = ProbeData.read(model, dataset, "component", residual_layers(model), num_samples)
    seen = dataset[0:num_samples].observations
    counts = torch.zeros(len(seen), dataset.num_symbols).scatter_add_(1, seen, torch.ones(seen.shape))
    counted = ProbeData(counts[None], untrained.labels, untrained.samples, untrained.num_classes, untrained.ceiling)
    levels = {"symbol counts": Level(*counted.accuracy(seed=seed)[0])}
    for layer, found in enumerate(untrained.accuracy(seed=seed)):
        levels[f"untrained layer {layer}"] = Level(*found)
    return levels, untrained.chance, few.num_components
