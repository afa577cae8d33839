"""A map of the mechanism: what is lost, and what can no longer be read, when one head or one MLP is ablated.

A head is named by what its removal does, not by its pattern: without an induction head the stream no longer says which
symbols followed the present one, without a previous-token head not which symbol came before.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, as_law, capture, inference_mode, model_outputs, residual_layers
from hmmscope.analysis.curves import ngram_laws
from hmmscope.analysis.geometry import BELIEF, belief_targets, belief_times, explained, read_off
from hmmscope.analysis.interventions import ablate_head, intervene, patch
from hmmscope.analysis.layer_curves import Curves, resampled_curves, with_interval
from hmmscope.axes import Float64, Tensor
from hmmscope.corpora.corpus import Corpus
from hmmscope.errors import InputError
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.mixture import Mixture
from hmmscope.schema import require

MAX_BACK = 3
#: What a head is called, by what cannot be read any more when it is gone.
ROLES = {
    "previous-1": "previous-token head",
    "previous-2": "gathering head",
    "previous-3": "gathering head",
    "bigram": "induction head",
    "unigram": "counting head",
    "belief": "belief head",
}
#: Least R² that has to be lost, beyond doubt, for a name.
NAMED_FROM = 0.05


@dataclass(frozen=True)
class Component:
    """A part of a model that can be ablated: a head, or all that a module gives.

    Attributes:
        tap: name of the module.
        layer: number of its block, from 1.
        head: of attention, or None.
        num_heads: of the layer.
    """

    tap: str
    layer: int
    head: int | None = None
    num_heads: int = 0

    @property
    def name(self) -> str:
        return f"{self.tap.rpartition('.')[2]} {self.layer}" if self.head is None else f"head {self.layer}.{self.head}"


def components(model: nn.Module) -> list[Component]:
    """The heads and MLPs of a model, layer by layer.

    Raises:
        InputError: a model without taps ``blocks.<n>.attention.mixed``.
    """
    found = []
    for name, _ in model.named_modules():
        place = re.fullmatch(r"blocks\.(\d+)\.(attention\.mixed|mlp)", name)
        if place and place[2] == "mlp":
            found.append(Component(name, int(place[1]) + 1))
        elif place:
            heads: Any = model.get_submodule(name.rpartition(".")[0]).num_heads
            found += [Component(name, int(place[1]) + 1, head, heads) for head in range(heads)]
    if not any(one.head is not None for one in found):
        raise InputError("model: has no heads with taps blocks.<n>.attention.mixed to ablate")
    return found


@registry.instrument("mechanisms")
def mechanisms(model: nn.Module, corpus: Corpus, *, num_samples: int = 256, seed: int = 0) -> list[dict]:
    """What is lost when one head or MLP is ablated, at all positions: of the loss, and of what can be read after its layer.

    ``mean`` puts the mean over samples at the same position in its place, ``resample`` what another sample gives there.
    The value of ``loss`` is the rise of the cross-entropy of the next observation (nats). That of the others is the R² lost,
    held out, of affine maps from the stream after the component's layer, fitted anew when it is ablated:

        previous-k   the observation k back
        unigram      the frequencies of symbols in the context
        bigram       those of the symbols that followed the present one there
        belief       of the filter, which in mixtures knows the component

    Args:
        model: with taps ``blocks.<n>.attention.mixed`` and residual taps.
        corpus: samples; the last sequence of each, of at least five observations, is read.
        num_samples: how many; the last quarter tests what is read.
        seed: of the bootstrap.

    Returns:
        Rows (component, layer, head, ablation, quantity, value, low, high, error, before, samples); `before` is the loss, or
        R², of the whole model. Intervals are 95 % over samples.

    Raises:
        InputError: a model without such taps, or sequences too short.

    Source: ours; ablations as in Wang et al. (2023), "Interpretability in the wild".
    """
    require(num_samples >= 16, "num_samples", "must be at least 16, to fit and to test", num_samples)
    parts, task = components(model), _Task(model, corpus, num_samples)
    taps = list(dict.fromkeys(part.tap for part in parts))
    held = task.run({}, taps)
    whole = {layer: task.readings(held, layer, seed) for layer in {part.layer for part in parts}}
    rows = []
    for part in parts:
        given = held[part.tap]
        places = {"mean": given.mean(0, keepdim=True).expand_as(given), "resample": given.roll(1, 0)}
        for ablation, values in places.items():
            found = task.run({part: values}, [])
            about = {"component": part.name, "layer": part.layer, "head": part.head, "ablation": ablation}
            worse = resampled_curves((found["loss"] - held["loss"]).numpy()[:, None], seed=seed)[:, 0]
            changes = {"loss": (worse, float(held["loss"].mean()))}
            for quantity, draws in task.readings(found, part.layer, seed).items():
                before = whole[part.layer][quantity]
                changes[quantity] = (before - draws, float(before[0]))
            rows += [
                about | {"quantity": quantity} | with_interval(draws) | {"before": before, "samples": num_samples}
                for quantity, (draws, before) in changes.items()
            ]
    return rows


def roles(rows: Iterable[Mapping[str, Any]], *, ablation: str = "mean") -> dict[str, str]:
    """What each head is called: by the reading of which its removal takes most, or "none" where it takes next to nothing.

    Args:
        rows: of `mechanisms`, of one model.
        ablation: the one that counts.
    """
    names: dict[str, str] = {}
    heads = [row for row in rows if row["ablation"] == ablation and row["head"] is not None]
    for name in dict.fromkeys(row["component"] for row in heads):
        lost = [row for row in heads if row["component"] == name and row["quantity"] in ROLES]
        most = max(lost, key=lambda row: row["value"])
        names[name] = ROLES[most["quantity"]] if most["low"] > NAMED_FROM else "none"
    return names


class _Task:
    """The samples, what is to be read in them, and the model with parts of it replaced."""

    def __init__(self, model: nn.Module, corpus: Corpus, num_samples: int) -> None:
        self._model, self._corpus, self._count = model, corpus, num_samples
        self._layers = residual_layers(model)
        last = belief_times(corpus)
        position = corpus.layout.position_in_sequence[last]
        times = last[(position >= MAX_BACK) & (position < position.max())]
        require(len(times) > 0, "layout", "must have a last sequence of at least five observations", len(last))
        self._columns = torch.from_numpy(corpus.layout.columns[times])
        self._targets = {
            name: values
            for name, values in _targets(corpus, times, num_samples).items()
            if float((values - values.mean(0)).square().sum()) > 0
        }

    def run(self, replaced: Mapping[Component, Tensor], taps: Sequence[str]) -> dict[str, Tensor]:
        """Loss of each sample, streams at the positions that are read, and what the taps give."""
        kept: dict[str, list[Tensor]] = {}
        judged = self._corpus.layout.predicted
        for begin in range(0, self._count, BATCH):
            batch = self._corpus[begin : min(begin + BATCH, self._count)]
            edits = {
                part.tap: patch(values[begin : begin + BATCH])
                if part.head is None
                else ablate_head(part.head, part.num_heads, by=values[begin : begin + BATCH])
                for part, values in replaced.items()
            }
            with inference_mode(self._model) as device, intervene(self._model, edits):
                tokens = batch.tokens.to(device)
                found = capture(self._model, [*self._layers, *taps], tokens, lambda x: x.cpu())
                outputs = model_outputs(self._model, tokens, self._corpus.num_symbols)
            law = as_law(self._model, outputs[:, self._corpus.layout.columns[judged] - 1])
            seen = law.gather(2, batch.observations[:, judged, None])[..., 0]
            found = {name: x[:, self._columns] if name in self._layers else x for name, x in found.items()}
            for name, x in {**found, "loss": -seen.clamp_min(1e-12).log().mean(1)}.items():
                kept.setdefault(name, []).append(x)
        return {name: torch.cat(values) for name, values in kept.items()}

    def readings(self, found: Mapping[str, Tensor], layer: int, seed: int) -> dict[str, Curves]:
        """Held-out R² of each target after a layer, on all test samples and on resamples."""
        stream = found[self._layers[layer]].flatten(0, 1)[None]
        read = {name: read_off(stream, values, self._count) for name, values in self._targets.items()}
        return {name: explained(one.errors, one.spread, seed=seed)[:, 0] for name, one in read.items()}


def _targets(
    corpus: Corpus, times: NDArray[np.int64], num_samples: int
) -> dict[str, Float64[Tensor, "example coordinate"]]:
    """What may be read at some observations; examples of one sample stand together."""
    batch = corpus[0:num_samples]
    kept, one_hot = batch.observations, torch.eye(corpus.num_symbols, dtype=torch.float64)
    found = {f"previous-{k}": one_hot[kept[:, times - k]] for k in range(1, MAX_BACK + 1)}
    place = np.searchsorted(corpus.layout.predicted, times + 1)
    laws = ngram_laws(corpus, batch, 1)
    found |= {"unigram": laws["order-0"][:, place], "bigram": laws["order-1"][:, place]}
    flat = {name: values.flatten(0, 1) for name, values in found.items()}
    if isinstance(corpus.process, HMM | LabelledHMM | Mixture):
        flat["belief"] = belief_targets(corpus, times, num_samples)[BELIEF]
    return flat
