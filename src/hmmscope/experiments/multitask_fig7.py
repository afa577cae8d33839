"""[MultiTask] Figure 7: where the last token of the test sequence looks, by layer and head."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, capture, inference_mode
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.analysis.shuffle import attention_taps
from hmmscope.constructions.multitask_network import MultiTaskTransformer
from hmmscope.corpora.corpus import Corpus
from hmmscope.corpora.layouts import Layout
from hmmscope.evidence.figures import Figure
from hmmscope.experiments.construction_vs_trained import construct
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Measured, Tables
from hmmscope.experiments.multitask_fig7_figures import figures
from hmmscope.experiments.multitask_models import multitask_config
from hmmscope.runs.pipeline import Run, untrained_twin
from hmmscope.schema import require

#: Sizes of the measurements; the last three are of the constructed network.
SIZES: dict[str, dict[str, int]] = {
    "smoke": {"samples": 16, "max_offset": 13, "construction_samples": 4, "memory_length": 2, "num_steps": 2},
    "small": {"samples": 512, "max_offset": 20, "construction_samples": 32, "memory_length": 4, "num_steps": 8},
    "gpu": {"samples": 512, "max_offset": 26, "construction_samples": 32, "memory_length": 4, "num_steps": 8},
    "paper": {"samples": 256, "max_offset": 50, "construction_samples": 8, "memory_length": 4, "num_steps": 16},
}

#: Where attention can fall, seen from the last token.
SOURCES = ("the token itself", "earlier in its sequence", "demonstrations", "delimiters")

#: By layer, from 1: attention of the last token (sample, head, key).
Patterns = dict[int, NDArray[np.float64]]


@registry.experiment("multitask-fig7")
class MultiTaskFig7(Experiment):
    """See the module."""

    title = "Where the last token looks"
    summary = (
        "Attention of the last token of the test sequence, by distance and by source, for every layer and head of a "
        "trained RoFormer, of the same model before training, and of the network of Theorem 1, whose first layers gather "
        "the last tokens."
    )
    num_seeds = NUM_SEEDS
    intervals = SEED_INTERVALS
    groups = {"attention": ("offsets", "sources", "alignment", "effects")}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {"model": multitask_config(scale)}

    def measurements(self, scale: str) -> dict[str, Any]:
        return dict(SIZES[scale])

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        run = runs["model"]
        corpus, layout = run.corpus("probe"), run.config.layout
        longest = layout.num_columns - 1
        offset = sizes["max_offset"]
        require(0 <= offset <= longest, "measurements.max_offset", f"must be in [0, {longest}]", offset)
        constructed = construct(run, {**sizes, "samples": sizes["construction_samples"]})
        networks: dict[str, nn.Module] = {"trained": run.model, "untrained": untrained_twin(run)}
        found = {name: last_token_patterns(model, corpus, sizes["samples"]) for name, model in networks.items()}
        found["constructed"] = last_token_patterns(constructed, corpus, sizes["construction_samples"])
        gathering = gathering_heads(constructed, found["constructed"])
        require(len(found["trained"]) >= 2, "model.num_layers", "must be at least 2", len(found["trained"]))
        tables: Measured = {"offsets": [], "sources": uniform_rows(layout, found["trained"])}
        for name, patterns in found.items():
            tables["offsets"] += [{"network": name} | row for row in offset_rows(patterns, offset, gathering)]
            tables["sources"] += [{"network": name} | row for row in source_rows(patterns, layout)]
        both = {name: found[name] for name in networks}
        tables["alignment"], tables["effects"] = alignment(both, layout, gathering)
        return tables

    def figures(self, tables: Tables) -> list[Figure]:
        return figures(tables)


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def last_token_patterns(model: nn.Module, corpus: Corpus, num_samples: int) -> Patterns:
    """Attention of the last token in each layer; what a ReLU head gives is not normalised."""
    names = attention_taps(model, "pattern")
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    with inference_mode(model) as device:
        for begin in range(0, num_samples, BATCH):
            tokens = corpus[begin : min(begin + BATCH, num_samples)].tokens.to(device)
            found = capture(model, names, tokens, lambda x: x[:, :, -1].cpu().double())
            for name in names:
                parts[name].append(found[name])
    return {layer: torch.cat(parts[name]).numpy() for layer, name in enumerate(names, 1)}


def source_of_columns(layout: Layout) -> NDArray[np.int64]:
    """Number of the source in `SOURCES` of each column, seen from the last one."""
    sources = np.full(layout.num_columns, 3)
    sources[layout.columns] = np.where(layout.sequence_index < layout.sequence_index[-1], 2, 1)
    sources[-1] = 0
    return sources


def gathering_heads(network: MultiTaskTransformer, patterns: Patterns) -> dict[int, int]:
    """Layers of the construction that gather, and how many columns back their one head looks from the last token."""
    layers = [note.layer for note in network.notes() if note.stage not in ("gradient step", "predict")]
    return {layer: patterns[layer].shape[2] - 1 - int(patterns[layer][:, 0].mean(0).argmax()) for layer in layers}


def offset_rows(patterns: Patterns, max_offset: int, gathering: dict[int, int]) -> list[dict]:
    """Share of a head's attention by columns back: (layer, depth, gathers, head, offset, value).

    Heads that look nowhere have no rows; `gathers` is true in layers of a construction that gather.
    """
    rows = []
    for layer, pattern_BHU in patterns.items():
        mean_HU = pattern_BHU.mean(0)
        for head, mean_U in enumerate(mean_HU):
            if mean_U.sum() > 0:
                shares = (mean_U / mean_U.sum())[::-1][: max_offset + 1]
                where = {"layer": layer, "depth": layer / len(patterns), "gathers": layer in gathering, "head": head}
                rows += [where | {"offset": offset, "value": float(share)} for offset, share in enumerate(shares)]
    return rows


def source_rows(patterns: Patterns, layout: Layout) -> list[dict]:
    """Share of the attention of a layer that falls on each source, all heads: (layer, depth, source, value)."""
    number, rows = source_of_columns(layout), []
    for layer, pattern_BHU in patterns.items():
        mean_U = pattern_BHU.mean((0, 1))
        if mean_U.sum() > 0:
            where = {"layer": layer, "depth": layer / len(patterns)}
            for i, source in enumerate(SOURCES):
                share = float(mean_U[number == i].sum() / mean_U.sum())
                rows.append(where | {"source": source, "value": share})
    return rows


def uniform_rows(layout: Layout, patterns: Patterns) -> list[dict]:
    """The same for attention that is equal on all columns."""
    even = {layer: np.ones((1, 1, layout.num_columns)) for layer in patterns}
    return [{"network": "uniform"} | row for row in source_rows(even, layout)]


def alignment(
    networks: dict[str, Patterns], layout: Layout, gathering: dict[int, int]
) -> tuple[list[dict], list[dict]]:
    """Tables "alignment" and "effects".

    alignment: (constructed_layer, offset, network, layer, head, value): the head of each network that puts most of its
    attention where a gathering head of the construction puts all of its own.
    effects: (network, effect, value, low, high, samples), differences paired within prompts: ``same sequence, lower``,
    ``same sequence, upper`` and ``same sequence, lower less upper`` (earlier tokens of the sequence, mean over heads and
    half of the layers), ``alignment``, and ``alignment, trained less untrained`` for the network "both".
    """
    same = source_of_columns(layout) == SOURCES.index("earlier in its sequence")
    best_rows: list[dict] = []
    effects: list[dict] = []
    aligned: dict[str, NDArray[np.float64]] = {}
    for network, patterns in networks.items():
        at_offsets = []
        for gathers, offset in gathering.items():
            there = {
                (layer, head): pattern_BHU[:, head, -1 - offset]
                for layer, pattern_BHU in patterns.items()
                for head in range(pattern_BHU.shape[1])
            }
            best = max(there, key=lambda one: float(there[one].mean()))
            at_offsets.append(there[best])
            value = float(there[best].mean())
            found = {"network": network, "layer": best[0], "head": best[1], "value": value}
            best_rows.append({"constructed_layer": gathers, "offset": offset} | found)
        aligned[network] = np.mean(at_offsets, 0)
        by_layer = np.stack([pattern_BHU[..., same].sum(-1).mean(1) for pattern_BHU in patterns.values()])
        half = len(by_layer) // 2
        lower, upper = by_layer[:half].mean(0), by_layer[-half:].mean(0)
        effects += [
            _effect(network, "same sequence, lower", lower),
            _effect(network, "same sequence, upper", upper),
            _effect(network, "same sequence, lower less upper", lower - upper),
            _effect(network, "alignment", aligned[network]),
        ]
    gain = aligned["trained"] - aligned["untrained"]
    return best_rows, [*effects, _effect("both", "alignment, trained less untrained", gain)]


def _effect(network: str, effect: str, values: NDArray[np.float64]) -> dict:
    mean, low, high = (float(x) for x in bootstrap_means(values))
    return {"network": network, "effect": effect, "value": mean, "low": low, "high": high, "samples": len(values)}
