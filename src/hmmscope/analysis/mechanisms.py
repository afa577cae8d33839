"""Component ablations: how the loss and the residual stream depend on each head and MLP."""

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
from hmmscope.datasets.process_dataset import ProcessDataset, check_dataset
from hmmscope.datasets.targets import make_target
from hmmscope.errors import InputError
from hmmscope.models.decoder import Decoder
from hmmscope.models.user_module import logits_of
from hmmscope.processes.capabilities import BELIEFS
from hmmscope.schema import require, require_count, require_known
from hmmscope.sequences.gaps import MISSING
from hmmscope.ties import largest

MAX_BACK = 3
#: Most positions read, evenly spaced.
MOST_POSITIONS = 16
ABLATIONS = ("mean", "resample")
#: Name of a head or attention layer, by the target whose R² its ablation lowers most.
ROLES = {
    "previous-1": "previous-token",
    "previous-2": "gathering",
    "previous-3": "gathering",
    "bigram": "induction",
    "unigram": "counting",
    "belief": "belief",
}
#: Least decrease of R² and least rise of the loss, in nats, for a name (lower ends of intervals).
NAMED_FROM, COSTS_FROM = 0.05, 0.002


@dataclass(frozen=True)
class Component:
    """A part of a model to ablate: a head, or the attention or MLP of a layer.

    Attributes:
        tap: name of the module.
        layer: number of its block, from 1.
        head: index of the head, or None.
        num_heads: number of heads in the layer; 0 for an MLP.
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
        return self.head is not None if kind == "attention" else not self.num_heads

    def edit(self, values: Float[Tensor, "batch time width"]) -> Edit:
        return patch(values) if self.head is None else ablate_head(self.head, self.num_heads, by=values)

    def written(self, model: nn.Module, given: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        if self.head is None:
            return given
        attention: Any = model.get_submodule(self.tap.rpartition(".")[0])
        weight: Tensor = attention.out.weight
        size = given.shape[-1] // self.num_heads
        own = slice(self.head * size, (self.head + 1) * size)
        return given[..., own] @ weight[:, own].T.to(given)


def components(model: nn.Module) -> list[Component]:
    """List the heads, multi-head attentions and MLPs of a model, by layer.

    Raises:
        InputError: the model has no hook points ``blocks.<n>.attention.mixed``.
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
        raise InputError("model: has no activations blocks.<n>.attention.mixed, which ablations of heads need")
    return found


def _num_heads(model: nn.Module, attention: str) -> int:
    said: int | None = getattr(model.get_submodule(attention), "num_heads", None)
    if said is not None:
        return said
    pattern = f"{attention}.pattern"
    with inference_mode(model) as device:
        return capture_activations(model, [pattern], torch.zeros(1, 2, dtype=torch.int64, device=device))[
            pattern
        ].shape[1]


@registry.instrument("mechanisms", x="component", by=("ablation",), only=("quantity",))
def mechanisms(model: nn.Module, dataset: ProcessDataset, *, num_samples: int = 256, seed: int = 0) -> list[dict]:
    """Ablate each head, attention layer and MLP; measure changes of the loss and of what the residual stream encodes.

    The ablation ``mean`` replaces an activation by its mean over samples at each position; ``resample`` replaces it by
    another sample's activation. The value of ``loss`` is the increase of the cross-entropy in nats. The other values
    are decreases of held-out R² of affine maps, fitted again after the ablation, from the residual stream after the
    layer to

        previous-k   the observation k steps back
        unigram      the frequencies of symbols in the context
        bigram       the frequencies of symbols after earlier occurrences of the present symbol
        belief       the exact belief, given the mixture component

    Args:
        model: model with hook points ``blocks.<n>.attention.mixed`` and ``residual.<n>``.
        dataset: samples; only the last sequence of each sample is used (at least five observations).
        num_samples: number of samples, for recorded sequences at most the number of windows; the last quarter tests the
            maps.
        seed: seed of the bootstrap.

    Returns:
        Rows (component, layer, head, ablation, quantity, value, low, high, error, before, samples); `before` is the
        loss or R² of the intact model. The 95 % interval is over samples.

    Raises:
        InputError: the model lacks these hook points, or sequences are too short.

    Source: this project; ablations as in Wang et al. (2023).
    """
    check_dataset(dataset)
    require_count("num_samples", num_samples, 16, " (three quarters fit the maps, one quarter tests them)")
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


@registry.instrument("paths", x="sender", by=("receiver",), only=("quantity",))
def paths(
    model: nn.Module, dataset: ProcessDataset, *, num_samples: int = 256, ablation: str = "mean", seed: int = 0
) -> list[dict]:
    """Path patching: ablate each component (sender) only in the input of another component (receiver).

    Senders are the embedding, heads and MLPs; receivers are attention layers, MLPs and the output. Other components
    are affected only through the receiver's output. The quantities are as in `mechanisms`, but the maps
    read the stream after the last layer.

    Args:
        model: a decoder of this library.
        dataset: samples, see `mechanisms`.
        num_samples: number of samples; the last quarter tests the maps.
        ablation: "mean" or "resample".
        seed: seed of the bootstrap.

    Returns:
        Rows (sender, receiver, quantity, value, low, high, error, before, samples), as in `mechanisms`.

    Raises:
        InputError: the model is of another type, the ablation is unknown, or sequences are too short.

    Source: this project; path patching as in Wang et al. (2023) and Goldowsky-Dill et al. (2023).
    """
    require_count("num_samples", num_samples, 16, " (three quarters fit the maps, one quarter tests them)")
    require_known("ablation", ablation, ABLATIONS)
    if not isinstance(model, Decoder):
        raise InputError(f"model: must be a Decoder of this library for path patching, got {type(model).__name__}")
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


def _places(given: Float[Tensor, " batch *shape"]) -> dict[str, Tensor]:
    return {"mean": given.mean(0, keepdim=True).expand_as(given), "resample": given.roll(1, 0)}


def roles(rows: Iterable[Mapping[str, Any]], *, ablation: str = "mean") -> dict[str, str]:
    """Name each head and attention layer by the target that its ablation affects most, such as "induction head".

    The name is "none" unless R² falls by over 0.05 and the loss rises by over 0.002 nats (lower ends of intervals).

    Args:
        rows: rows of `mechanisms` for one model.
        ablation: name of the ablation to use.
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
        """Return the loss of each sample, residual streams at evaluated positions, and the activations of `taps`."""
        kept: dict[str, list[Tensor]] = {}
        judged = self._dataset.layout.predicted_observations
        for begin in range(0, self._count, BATCH):
            batch, own = self._dataset[begin : min(begin + BATCH, self._count)], slice(begin, begin + BATCH)
            edits = {name: make(values[own]) for name, (make, values) in changed.items()}
            with inference_mode(self._model) as device, intervene(self._model, edits):
                tokens = batch.tokens.to(device)
                found = capture_activations(self._model, [*self._layers, *taps, ""], tokens, lambda x: x.cpu())
            outputs = logits_of(found.pop(""), tokens, self._dataset.num_symbols)
            probs = to_probs(self._model, outputs[:, self._dataset.layout.token_positions[judged] - 1])
            asked = self._asked[own]
            seen = probs.gather(2, batch.observations[:, judged].where(asked, 0)[..., None])[..., 0]
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
        worse = resampled_curves((found["loss"] - held["loss"]).numpy()[:, None], seed=seed)[:, 0]
        changes = {"loss": (with_interval(worse, self._count), float(held["loss"].mean()))}
        for quantity, draws in self.readings(found, layer, seed).items():
            tested = with_interval(whole[quantity] - draws, self._count - 3 * self._count // 4)
            changes[quantity] = (tested, float(whole[quantity][0]))
        for quantity, (interval, before) in changes.items():
            yield {"quantity": quantity} | interval | {"before": before, "samples": self._count}

    def readings(self, found: Mapping[str, Tensor], layer: int, seed: int) -> dict[str, Curves]:
        stream = found[self._layers[layer]].flatten(0, 1)[None]
        inside = self._inside
        read = {name: read_off(stream, values, self._count, inside=inside) for name, values in self._targets.items()}
        return {name: explained(one.errors, one.spread, seed=seed)[:, 0] for name, one in read.items()}


def _inside(dataset: ProcessDataset, times: NDArray[np.int64], num_samples: int) -> Bool[Tensor, " example"] | None:
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
    batch = dataset[0:num_samples]
    kept, one_hot = batch.observations.clamp_min(0), torch.eye(dataset.num_symbols, dtype=torch.float64)
    found = {f"previous-{k}": one_hot[kept[:, times - k]] for k in range(1, MAX_BACK + 1)}
    place = np.searchsorted(dataset.layout.predicted_observations, times + 1)
    probs = plain_ngrams(dataset, batch, 1)
    found |= {"unigram": probs["order-0"][:, place], "bigram": probs["order-1"][:, place]}
    flat = {name: values.flatten(0, 1) for name, values in found.items()}
    if BELIEFS in dataset.process.uses_hmm_inference or dataset.layout.header_format:
        flat["belief"] = belief_targets(dataset, times, num_samples)[BELIEF]
    return flat
