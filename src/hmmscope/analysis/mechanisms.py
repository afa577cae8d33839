"""A map of the mechanism: what is lost, and what can no longer be read, when one part of a model is ablated or not heard.

A head is named by what its removal does, not by its pattern: without an induction head the stream no longer says which
symbols followed the present one, without a previous-token head not which symbol came before.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, capture_activations, inference_mode, residual_layers, to_probs
from hmmscope.analysis.geometry import BELIEF, belief_targets, belief_times, explained, read_off
from hmmscope.analysis.interventions import Edit, ablate_head, intervene, patch
from hmmscope.analysis.layer_curves import Curves, resampled_curves, with_interval
from hmmscope.analysis.measures import means_of_asked
from hmmscope.analysis.ngrams import plain_ngrams
from hmmscope.axes import Bool, Float, Float64, Tensor
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import make_target
from hmmscope.errors import InputError
from hmmscope.models.decoder import Decoder
from hmmscope.models.user_module import logits_of
from hmmscope.processes.capabilities import BELIEFS
from hmmscope.schema import require, require_count, unknown_name
from hmmscope.sequences.gaps import MISSING
from hmmscope.ties import largest

MAX_BACK = 3
#: Positions at which the stream is read, evenly spaced.
MOST_POSITIONS = 16
ABLATIONS = ("mean", "resample")
#: What a head, or the attention of a layer, is called, by what cannot be read any more when it is gone.
ROLES = {
    "previous-1": "previous-token",
    "previous-2": "gathering",
    "previous-3": "gathering",
    "bigram": "induction",
    "unigram": "counting",
    "belief": "belief",
}
#: Least R² that has to be lost, beyond doubt, for a name, and least loss that this has to cost, in nats.
NAMED_FROM, COSTS_FROM = 0.05, 0.002


@dataclass(frozen=True)
class Component:
    """A part of a model that can be ablated: a head, the attention of a layer, or its MLP.

    Attributes:
        tap: name of the module.
        layer: number of its block, from 1.
        head: of attention, or None for all that the module gives.
        num_heads: of the layer; 0 of an MLP.
    """

    tap: str
    layer: int
    head: int | None = None
    num_heads: int = 0

    @property
    def name(self) -> str:
        if self.head is not None:
            return f"head {self.layer}.{self.head}"
        return f"{'attention' if self.num_heads else 'mlp'} {self.layer}"

    def is_sender(self, kind: str) -> bool:
        """Whether it is a head ("attention") or an MLP ("mlp"): parts that add up to the stream."""
        return self.head is not None if kind == "attention" else not self.num_heads

    def edit(self, values: Float[Tensor, "batch time width"]) -> Edit:
        """What puts its part of `values`, or all of them, in the place of what it gives."""
        return patch(values) if self.head is None else ablate_head(self.head, self.num_heads, by=values)

    def written(self, model: nn.Module, given: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        """What it adds to the stream, up to a constant, where its tap gives `given`."""
        if self.head is None:
            return given
        attention: Any = model.get_submodule(self.tap.rpartition(".")[0])
        weight: Tensor = attention.out.weight
        size = given.shape[-1] // self.num_heads
        own = slice(self.head * size, (self.head + 1) * size)
        return given[..., own] @ weight[:, own].T.to(given)


def components(model: nn.Module) -> list[Component]:
    """The heads, attention (where it has several heads) and MLPs of a model, layer by layer.

    Raises:
        InputError: a model without taps ``blocks.<n>.attention.mixed``.
    """
    model, found = registry.adapted(model), []
    for name, _ in model.named_modules():
        place = re.fullmatch(r"blocks\.(\d+)\.(attention\.mixed|mlp)", name)
        if place and place[2] == "mlp":
            found.append(Component(name, int(place[1]) + 1))
        elif place:
            heads = _num_heads(model, name.rpartition(".")[0])
            found += [Component(name, int(place[1]) + 1, head, heads) for head in range(heads)]
            found += [Component(name, int(place[1]) + 1, None, heads)] if heads > 1 else []
    if not any(one.head is not None for one in found):
        raise InputError("model: has no heads with taps blocks.<n>.attention.mixed to ablate")
    return found


def _num_heads(model: nn.Module, attention: str) -> int:
    """Heads of an attention of ours as it says; of another one as its pattern shows."""
    said: int | None = getattr(model.get_submodule(attention), "num_heads", None)
    if said is not None:
        return said
    pattern = f"{attention}.pattern"
    with inference_mode(model) as device:
        return capture_activations(model, [pattern], torch.zeros(1, 2, dtype=torch.int64, device=device))[
            pattern
        ].shape[1]


@registry.instrument("mechanisms")
def mechanisms(model: nn.Module, dataset: ProcessDataset, *, num_samples: int = 256, seed: int = 0) -> list[dict]:
    """What is lost when a head, the attention of a layer or an MLP is ablated: of the loss, and of what is read after it.

    ``mean`` puts the mean over samples at the same position in its place, ``resample`` what another sample gives there.
    The value of ``loss`` is the rise of the cross-entropy of the next observation (nats). That of the others is the R² lost,
    held out, of affine maps from the stream after the component's layer, fitted anew when it is ablated:

        previous-k   the observation k back
        unigram      the frequencies of symbols in the context
        bigram       those of the symbols that followed the present one there
        belief       of the filter, which in mixtures knows the component

    Args:
        model: with taps ``blocks.<n>.attention.mixed`` and residual taps.
        dataset: samples; the last sequence of each, of at least five observations, is read.
        num_samples: how many, of given sequences at most as many as there are different windows; the last quarter tests what
            is read.
        seed: of the bootstrap.

    Returns:
        Rows (component, layer, head, ablation, quantity, value, low, high, error, before, samples); `before` is the loss, or
        R², of the whole model. Intervals are 95 % over samples.

    Raises:
        InputError: a model without such taps, or sequences too short.

    Source: ours; ablations as in Wang et al. (2023), "Interpretability in the wild".
    """
    require_count("num_samples", num_samples, 16, ", to fit and to test")
    num_samples = dataset.different(num_samples)
    parts, task = components(model), _AblationData(model, dataset, num_samples)
    taps = list(dict.fromkeys(part.tap for part in parts))
    held = task.run(taps)
    whole = {layer: task.readings(held, layer, seed) for layer in {part.layer for part in parts}}
    rows = []
    for part in parts:
        for ablation, values in _places(held[part.tap]).items():
            about = {"component": part.name, "layer": part.layer, "head": part.head, "ablation": ablation}
            found = task.run([], {part.tap: (part.edit, values)})
            rows += [about | row for row in task.losses(held, whole[part.layer], found, part.layer, seed)]
    return rows


@registry.instrument("paths")
def paths(
    model: nn.Module, dataset: ProcessDataset, *, num_samples: int = 256, ablation: str = "mean", seed: int = 0
) -> list[dict]:
    """What is lost when one part of a model no longer hears another: the edges of the way from a token to the prediction.

    Senders are the embedding, heads and MLPs; receivers the attention of a layer, an MLP, or the output. The receiver reads
    the stream with what the sender adds to it replaced, and every other part reads the stream as it is: what the sender
    does by way of a third part is not cut. Values as in `mechanisms`, with R² after the last layer.

    Args:
        model: a decoder: blocks of attention and MLP that add to a stream, with this library's names.
        dataset: samples; the last sequence of each, of at least five observations, is read.
        num_samples: how many; the last quarter tests what is read.
        ablation: what the receiver hears instead: the "mean" over samples at each position, or "resample".
        seed: of the bootstrap.

    Returns:
        Rows (sender, receiver, quantity, value, low, high, error, before, samples). Intervals are 95 % over samples.

    Raises:
        InputError: another kind of model, an unknown ablation, or sequences too short.

    Source: ours; path patching as in Wang et al. (2023), "Interpretability in the wild", and Goldowsky-Dill et al. (2023).
    """
    require_count("num_samples", num_samples, 16, ", to fit and to test")
    if ablation not in ABLATIONS:
        raise unknown_name("ablation", ablation, ABLATIONS)
    if not isinstance(model, Decoder):
        raise InputError("model: must be a decoder, whose heads and MLPs add to one stream")
    num_samples = dataset.different(num_samples)
    parts, task, rows = components(model), _AblationData(model, dataset, num_samples), []
    layers = range(1, len(model.blocks) + 1)
    taps = ["residual.0", *dict.fromkeys(part.tap for part in parts), *(f"blocks.{n - 1}.attention" for n in layers)]
    held = task.run(taps)
    whole, sent, stream = task.readings(held, len(layers), seed), {"embedding": held["residual.0"]}, held["residual.0"]

    def cut(receiver: str, norm: str) -> list[dict]:
        found = []
        for sender, added in sent.items():
            with inference_mode(model) as device:
                heard = model.get_submodule(norm)((stream + _places(added)[ablation] - added).to(device))
            lost = task.run([], {norm: (patch, heard)})
            about = {"sender": sender, "receiver": receiver}
            found += [about | row for row in task.losses(held, whole, lost, len(layers), seed)]
        return found

    for n in layers:
        for kind in ("attention", "mlp"):
            own = [part for part in parts if part.layer == n and part.is_sender(kind)]
            if own:
                rows += cut(f"{kind} {n}", f"blocks.{n - 1}.{kind}_norm")
                stream = stream + held[f"blocks.{n - 1}.{kind}"]
                sent |= {part.name: part.written(model, held[part.tap]) for part in own}
    return rows + cut("output", "norm")


def _places(given: Float[Tensor, "batch *shape"]) -> dict[str, Tensor]:
    """What stands in the place of activations, by the name of the ablation."""
    return {"mean": given.mean(0, keepdim=True).expand_as(given), "resample": given.roll(1, 0)}


def roles(rows: Iterable[Mapping[str, Any]], *, ablation: str = "mean") -> dict[str, str]:
    """What heads, and the attention of layers with several, are called: such as "induction head", "counting layer".

    The name is by the reading of which the removal takes most; "none" where it takes next to nothing, or where the model
    predicts as well without it: an untrained head also gathers what can be read, and nothing listens.

    Args:
        rows: of `mechanisms`, of one model.
        ablation: the one that counts.
    """
    names: dict[str, str] = {}
    kept = [row for row in rows if row["ablation"] == ablation and not row["component"].startswith("mlp")]
    for name in dict.fromkeys(row["component"] for row in kept):
        own = {row["quantity"]: row for row in kept if row["component"] == name}
        most = largest((own[quantity] for quantity in ROLES if quantity in own), lambda row: row["value"])
        does = most["low"] > NAMED_FROM and own["loss"]["low"] > COSTS_FROM
        names[name] = f"{ROLES[most['quantity']]} {name.split()[0]}".replace("attention", "layer") if does else "none"
    return names


class _AblationData:
    """The samples, what is to be read in them, and the model with parts of it replaced."""

    def __init__(self, model: nn.Module, dataset: ProcessDataset, num_samples: int) -> None:
        self._model, self._dataset, self._count = registry.adapted(model), dataset, num_samples
        self._asked = make_target("observation", dataset.process, dataset.layout).evaluated(dataset[0:num_samples])
        self._layers = residual_layers(model)
        last = belief_times(dataset)
        position = dataset.layout.position_in_sequence[last]
        times = last[(position >= MAX_BACK) & (position < position.max())]
        require(len(times) > 0, "layout", "must have a last sequence of at least five observations", len(last))
        times = times[np.linspace(0, len(times) - 1, min(len(times), MOST_POSITIONS)).round().astype(int)]
        self._columns = torch.from_numpy(dataset.layout.token_positions[times])
        self._inside = _inside(dataset, times, num_samples)
        inside = slice(None) if self._inside is None else self._inside
        self._targets = {
            name: values
            for name, values in _targets(dataset, times, num_samples).items()
            if float((values[inside] - values[inside].mean(0)).square().sum()) > 0
        }

    def run(
        self, taps: Sequence[str], changed: Mapping[str, tuple[Callable[[Tensor], Edit], Tensor]] = MappingProxyType({})
    ) -> dict[str, Tensor]:
        """Loss of each sample, streams at the positions that are read, and what the taps give.

        Args:
            taps: modules whose activations are kept at all positions; streams are at those that are read otherwise.
            changed: by module, an edit as a function of what it puts there, and that of all samples.
        """
        kept: dict[str, list[Tensor]] = {}
        judged = self._dataset.layout.predicted_observations
        for begin in range(0, self._count, BATCH):
            batch, own = self._dataset[begin : min(begin + BATCH, self._count)], slice(begin, begin + BATCH)
            edits = {name: make(values[own]) for name, (make, values) in changed.items()}
            with inference_mode(self._model) as device, intervene(self._model, edits):
                tokens = batch.tokens.to(device)
                found = capture_activations(self._model, [*self._layers, *taps, ""], tokens, lambda x: x.cpu())
            outputs = logits_of(found.pop(""), tokens, self._dataset.num_symbols)
            law = to_probs(self._model, outputs[:, self._dataset.layout.token_positions[judged] - 1])
            asked = self._asked[own]
            seen = law.gather(2, batch.observations[:, judged].where(asked, 0)[..., None])[..., 0]
            found = {name: x if name in taps else x[:, self._columns] for name, x in found.items()}
            for name, x in {**found, "loss": means_of_asked(-seen.clamp_min(1e-12).log(), asked)}.items():
                kept.setdefault(name, []).append(x)
        return {name: torch.cat(values) for name, values in kept.items()}

    def losses(
        self,
        held: Mapping[str, Tensor],
        whole: Mapping[str, Curves],
        found: Mapping[str, Tensor],
        layer: int,
        seed: int,
    ) -> Iterator[dict[str, Any]]:
        """Rows of what a changed model has lost, of its loss and of what can be read after a layer.

        Args:
            held, found: what `run` gave of the whole model and of the changed one.
            whole: readings of the whole model after the layer.
        """
        worse = resampled_curves((found["loss"] - held["loss"]).numpy()[:, None], seed=seed)[:, 0]
        changes = {"loss": (with_interval(worse, self._count), float(held["loss"].mean()))}
        for quantity, draws in self.readings(found, layer, seed).items():
            tested = with_interval(whole[quantity] - draws, self._count - 3 * self._count // 4)
            changes[quantity] = (tested, float(whole[quantity][0]))
        for quantity, (interval, before) in changes.items():
            yield {"quantity": quantity} | interval | {"before": before, "samples": self._count}

    def readings(self, found: Mapping[str, Tensor], layer: int, seed: int) -> dict[str, Curves]:
        """Held-out R² of each target after a layer, on all test samples and on resamples."""
        stream = found[self._layers[layer]].flatten(0, 1)[None]
        inside = self._inside
        read = {name: read_off(stream, values, self._count, inside=inside) for name, values in self._targets.items()}
        return {name: explained(one.errors, one.spread, seed=seed)[:, 0] for name, one in read.items()}


def _inside(dataset: ProcessDataset, times: NDArray[np.int64], num_samples: int) -> Bool[Tensor, "example"] | None:
    """Where no observation is padding, and none is missing that is read; None of what has neither."""
    if dataset.process.data is None:
        return None
    batch = dataset[0:num_samples]
    inside = batch.states[:, times] >= 0
    for k in range(MAX_BACK + 1):
        inside = inside & (batch.observations[:, times - k] != MISSING)
    return inside.flatten()


def _targets(
    dataset: ProcessDataset, times: NDArray[np.int64], num_samples: int
) -> dict[str, Float64[Tensor, "example coordinate"]]:
    """What may be read at some observations; examples of one sample stand together."""
    batch = dataset[0:num_samples]
    kept, one_hot = batch.observations.clamp_min(0), torch.eye(dataset.num_symbols, dtype=torch.float64)
    found = {f"previous-{k}": one_hot[kept[:, times - k]] for k in range(1, MAX_BACK + 1)}
    place = np.searchsorted(dataset.layout.predicted_observations, times + 1)
    laws = plain_ngrams(dataset, batch, 1)
    found |= {"unigram": laws["order-0"][:, place], "bigram": laws["order-1"][:, place]}
    flat = {name: values.flatten(0, 1) for name, values in found.items()}
    if BELIEFS in dataset.process.uses_hmm_inference or dataset.layout.header_format:
        flat["belief"] = belief_targets(dataset, times, num_samples)[BELIEF]
    return flat
