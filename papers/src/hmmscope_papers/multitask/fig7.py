"""[MultiTask] Figure 7: attention of the last token of the test sequence, by layer and head."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope import ProcessDataset, PromptLayout, Run, capture_activations, intervene, lab, registry
from hmmscope.analysis import ProbeData, attention_taps, inference_mode, mean_row, residual_layers, set_pattern
from hmmscope.schema import require
from hmmscope.ties import largest
from hmmscope_papers.constructions import MultiTaskTransformer
from hmmscope_papers.multitask.models import BATCH
from hmmscope_papers.multitask.predictors import answers, measured
from hmmscope_papers.multitask.side_by_side import construct
from hmmscope_papers.multitask.training_setting import PoolFigure, gates, in_regime

#: Targets of attention from the last token.
SOURCES = ("the token itself", "earlier in its sequence", "demonstrations", "delimiters")


class Place(NamedTuple):
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.layer}.{self.head}"


#: Attention of the last token (sample, head, key), by layer from 1.
Patterns = dict[int, NDArray[np.float64]]


@registry.experiment("multitask-fig7")
class MultiTaskFig7(PoolFigure):
    """Attention of the last token by distance and by source, for each layer and head."""

    title = "To which positions does the last token attend?"
    in_paper = "[MultiTask] §2.2", "feature learning in lower layers relies primarily on nearby tokens."
    summary = (
        "The experiment measures to which positions the last token of the test sequence attends, in every layer and "
        "head of three networks: a trained RoFormer, the untrained model, and the network of Theorem 1, whose first "
        "layers gather the last tokens."
    )
    groups = {"attention": ("offsets", "sources", "alignment", "effects", "carried"), "setting": ("setting",)}
    #: The last three sizes concern the constructed network.
    sizes = {
        "smoke": {"samples": 16, "max_offset": 13, "construction_samples": 4, "memory_length": 2, "num_steps": 2},
        "small": {"samples": 512, "max_offset": 20, "construction_samples": 32, "memory_length": 4, "num_steps": 8},
        "medium": {"samples": 256, "max_offset": 20, "construction_samples": 32, "memory_length": 4, "num_steps": 8},
        "gpu": {"samples": 512, "max_offset": 26, "construction_samples": 32, "memory_length": 4, "num_steps": 8},
        "paper": {"samples": 256, "max_offset": 50, "construction_samples": 8, "memory_length": 4, "num_steps": 16},
    }

    def look(self, run: Run, sizes: dict[str, Any]) -> lab.MeasuredTables:
        dataset, layout = run.dataset("probe"), run.config.layout
        longest = layout.context_length - 1
        offset = sizes["max_offset"]
        require(0 <= offset <= longest, "measurements.max_offset", f"must be in [0, {longest}]", offset)
        constructed = construct(run, {**sizes, "samples": sizes["construction_samples"]})
        built = last_token_patterns(constructed, dataset, sizes["construction_samples"])
        gathering = gathering_heads(constructed, built)
        first = next(layer for layer, offset in gathering.items() if offset == 1)
        tables: lab.MeasuredTables = {name: [] for name in self.groups["attention"]}
        for draw, (name, model) in enumerate([*run.compare_with_untrained(), ("constructed", constructed)]):
            own = name == "constructed"
            patterns = built if own else last_token_patterns(model, dataset, sizes["samples"])
            require(own or len(patterns) >= 2, "model.num_layers", "must be at least 2", len(patterns))
            tables["sources"] += [] if draw else uniform_rows(layout, patterns)
            found: lab.MeasuredTables = {
                "offsets": offset_rows(patterns, offset, gathering),
                "sources": source_rows(patterns, layout),
            }
            place = Place(first, 0)
            if not own:
                found["alignment"], found["effects"] = alignment(patterns, layout, gathering)
                place = next(Place(row["layer"], row["head"]) for row in found["alignment"] if row["offset"] == 1)
            rows = carried_rows(model, run, place, patterns[place.layer].shape[1], sizes["samples"])
            found["carried"] = [{"layer": place.layer, "head": place.head} | row for row in rows]
            for table, of_model in found.items():
                tables[table] += [{"network": name, "draw": draw} | row for row in of_model]
        return tables

    def drawn(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_layers(tables["offsets"]), _heads(tables["offsets"]), _sources(tables["sources"]), _alignment(tables)]


# ---------------------------------------------------------------------------------------------------------------------
# Tables


def last_token_patterns(model: nn.Module, dataset: ProcessDataset, num_samples: int) -> Patterns:
    names = attention_taps(model, "pattern")
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    with inference_mode(model) as device:
        for begin in range(0, num_samples, BATCH):
            tokens = dataset[begin : min(begin + BATCH, num_samples)].tokens.to(device)
            found = capture_activations(model, names, tokens, lambda x: x[:, :, -1].cpu().double())
            for name in names:
                parts[name].append(found[name])
    return {layer: torch.cat(parts[name]).numpy() for layer, name in enumerate(names, 1)}


def source_of_columns(layout: PromptLayout) -> NDArray[np.int64]:
    sources = np.full(layout.context_length, 3)
    sources[layout.token_positions] = np.where(layout.sequence_index < layout.sequence_index[-1], 2, 1)
    sources[-1] = 0
    return sources


def gathering_heads(network: MultiTaskTransformer, patterns: Patterns) -> dict[int, int]:
    layers = [note.layer for note in network.notes() if note.stage not in ("gradient step", "predict")]
    return {layer: patterns[layer].shape[2] - 1 - int(patterns[layer][:, 0].mean(0).argmax()) for layer in layers}


def offset_rows(patterns: Patterns, max_offset: int, gathering: dict[int, int]) -> list[dict]:
    rows = []
    for layer, pattern_BHU in patterns.items():
        mean_HU = pattern_BHU.mean(0)
        for head, mean_U in enumerate(mean_HU):
            if mean_U.sum() > 0:
                shares = (mean_U / mean_U.sum())[::-1][: max_offset + 1]
                where = {"layer": layer, "depth": layer / len(patterns), "gathers": layer in gathering, "head": head}
                rows += [where | {"offset": offset, "value": float(share)} for offset, share in enumerate(shares)]
    return rows


def source_rows(patterns: Patterns, layout: PromptLayout) -> list[dict]:
    number, rows = source_of_columns(layout), []
    for layer, pattern_BHU in patterns.items():
        mean_U = pattern_BHU.mean((0, 1))
        if mean_U.sum() > 0:
            where = {"layer": layer, "depth": layer / len(patterns)}
            for i, source in enumerate(SOURCES):
                share = float(mean_U[number == i].sum() / mean_U.sum())
                rows.append(where | {"source": source, "value": share})
    return rows


def uniform_rows(layout: PromptLayout, patterns: Patterns) -> list[dict]:
    even = {layer: np.ones((1, 1, layout.context_length)) for layer in patterns}
    return [{"network": "uniform"} | row for row in source_rows(even, layout)]


def alignment(patterns: Patterns, layout: PromptLayout, gathering: dict[int, int]) -> tuple[list[dict], list[dict]]:
    """Return rows of the tables "alignment" and "effects" of a network.

    "alignment" has the columns (constructed_layer, offset, layer, head, value, low, high): for each gathering head of
    Theorem 1, the network's head that attends most to the gathered position. "effects" has the columns (effect,
    value, low, high, samples): attention to earlier tokens of the test sequence, in each half of the layers.
    """
    same = source_of_columns(layout) == SOURCES.index("earlier in its sequence")
    best_rows: list[dict] = []
    for gathers, offset in gathering.items():
        there = {
            (layer, head): pattern_BHU[:, head, -1 - offset]
            for layer, pattern_BHU in patterns.items()
            for head in range(pattern_BHU.shape[1])
        }
        means = {one: float(values.mean()) for one, values in there.items()}
        layer, head = largest(means, means.__getitem__)
        where = {"constructed_layer": gathers, "offset": offset, "layer": layer, "head": head}
        best_rows.append(where | mean_row(there[layer, head]))
    by_layer = np.stack([pattern_BHU[..., same].sum(-1).mean(1) for pattern_BHU in patterns.values()])
    half = len(by_layer) // 2
    lower, upper = by_layer[:half].mean(0), by_layer[-half:].mean(0)
    found = {"lower": lower, "upper": upper, "lower less upper": lower - upper}
    return best_rows, [{"effect": f"same sequence, {k}"} | mean_row(v) for k, v in found.items()]


def carried_rows(model: nn.Module, run: Run, place: Place, num_heads: int, num_samples: int) -> list[dict]:
    """Return the costs of ablating a head: (what, ablated, value, low, high, samples).

    ``token`` is the decrease in accuracy of a probe for the previous token, ``loss`` the increase in loss in nats.
    ``ablated`` is "head" (in `place`), or "others" for the mean over the other heads of the layer.
    """
    dataset, tap = run.dataset("probe"), attention_taps(model, "pattern")[place.layer - 1]
    asked = dataset.layout.predicted_observations
    end = asked[dataset.layout.sequence_index[asked] == dataset.layout.sequence_index.max()]
    batch = dataset[0:num_samples]

    def measure() -> dict[str, NDArray[np.float64]]:
        right = ProbeData.read(model, dataset, "previous-1", residual_layers(model), num_samples).correct()
        found = {"token": -right[:, right.mean(0).argmax()]}
        if not isinstance(model, MultiTaskTransformer):
            found["loss"] = measured(answers(model, batch.tokens, run, end), batch.observations[:, end])["loss"].mean(1)
        return found

    intact, lost = measure(), []
    for head in range(num_heads):
        with intervene(model, {tap: set_pattern(torch.zeros(()), head=head)}):
            lost.append({what: values - intact[what] for what, values in measure().items()})
    rows = []
    for what in intact:
        others = [own[what] for head, own in enumerate(lost) if head != place.head]
        rows.append({"what": what, "ablated": "head"} | mean_row(lost[place.head][what]))
        rows.append({"what": what, "ablated": "others"} | mean_row(np.mean(others, 0) if others else 0 * intact[what]))
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Figures

_LOOKS: dict[str, tuple[str, lab.Role]] = {
    "trained": ("trained", "model"),
    "untrained": ("before training", "control"),
    "constructed": ("network of Theorem 1", "other"),
    "uniform": ("even attention", "baseline"),
}
_TITLES = {"trained": "Trained", "untrained": "Before training", "constructed": "Theorem 1"}
#: Draws whose heads are shown: the trained network, the first untrained control, the construction.
_ONE_OF_EACH = (0, 1, 4)
_SCALES = "The first two maps share a colour scale; the map of Theorem 1 has its own scale."


def _layers(rows: lab.Rows) -> lab.Figure:
    means = lab.Rows(rows.pool("network", "layer", "offset")).with_columns(name=lambda row: row["layer"])
    return lab.Figure(
        name="by-distance",
        title="Attention of the last token, by layer",
        caption=(
            "Colours show the fraction of the last token's attention that a position receives, by the distance of this "
            f"position (0 is the last token itself), averaged over heads, prompts and {_seeds(rows)}. The attention of the "
            "ReLU heads of the network of Theorem 1 does not sum to one, so their map shows fractions of the sum. Beige "
            f"cells have no attention. {_SCALES}"
        ),
        panels=_maps(means, "layer"),
    )


def _heads(rows: lab.Rows) -> lab.Figure:
    seed = rows[0]["seed"]
    drawn = lab.Rows(row for row in rows.where(seed=seed) if row.get("draw") in (None, *_ONE_OF_EACH))
    own = lab.Rows(row for row in drawn if row["network"] != "constructed" or row["gathers"])
    named = own.with_columns(name=lambda row: Place(row["layer"], row["head"] + 1))
    return lab.Figure(
        name="by-head",
        title="Attention of the last token, by head",
        caption=(
            "Colours show the fraction of the last token's attention that a position receives, by its distance, for "
            f"every head (layer.head) of seed {seed}; heads of different seeds are not comparable. The map of the "
            f"network of Theorem 1 has only heads that gather tokens. {_SCALES}"
        ),
        panels=_maps(named, "layer.head"),
    )


def _maps(rows: lab.Rows, y_label: str) -> tuple[lab.Panel, ...]:
    shared = max((row["value"] for row in rows.where(network=("trained", "untrained"))), default=0.0) or None
    maps = []
    for network, title in _TITLES.items():
        most = None if network == "constructed" else shared
        labels = {"x_label": "positions back", "y_label": y_label, "z_label": "fraction of attention"}
        made = lab.heatmap(title, rows.where(network=network), "offset", "name", z_min=0.0, z_max=most, **labels)
        maps.append(made)
    return tuple(maps)


def _sources(rows: lab.Rows) -> lab.Figure:
    panels = []
    for source, own in rows.by("source").items():
        series = [lab.curve(own.where(network=network), "depth", *look) for network, look in _LOOKS.items()]
        title = source[0].upper() + source[1:]
        shown: dict[str, Any] = {"x_label": "layer / last layer", "y_label": "fraction of attention", "y_min": 0.0}
        panels.append(lab.lines(title, *series, **shown))
    return lab.Figure(
        name="by-source",
        title="Attention of the last token, by kind of target",
        caption=(
            "Curves show the fraction of the last token's attention that a kind of target receives, averaged over "
            "heads and prompts, against the layer. “Even attention” is the fraction of positions of this kind. "
            f"Lines are means and bands are 95 % intervals over {_seeds(rows)}."
        ),
        panels=tuple(panels),
    )


def _alignment(tables: lab.Tables) -> lab.Figure:
    rows = tables["alignment"].with_columns(built=lambda row: (row["constructed_layer"], row["offset"]))
    heads = sorted(rows.values("built"))
    series = [
        lab.Series(name=_LOOKS["constructed"][0], role="ceiling", y=(1.0,) * len(heads)),
        *(
            lab.bar(rows.where(network=network), "built", heads, *_LOOKS[network])
            for network in ("trained", "untrained")
        ),
    ]
    names = [f"layer {layer}: {offset} back" for layer, offset in heads]
    return lab.Figure(
        name="alignment",
        title="Attention of the best head to the positions that the construction gathers",
        caption=(
            "A gathering head of the construction puts all attention of the last token on one position. Bars show the "
            "attention to that position of the head that attends to it most, after and before training, with 95 "
            f"% intervals over {_seeds(tables['alignment'])}."
        ),
        panels=(lab.bars("", *series, categories=names, y_label="attention", y_min=0.0),),
    )


def _seeds(rows: lab.Rows) -> str:
    seeds = len(rows.seeds())
    return f"{seeds} seeds" if seeds > 1 else "one seed"


# ---------------------------------------------------------------------------------------------------------------------
# Claims


@lab.claim("multitask-lower-layers-look-nearby")
def lower_layers_look_nearby(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    tables = in_regime(tables, numbers)

    def own(part: str, network: str = "trained") -> lab.Rows:
        return tables["effects"].where(effect=f"same sequence, {part}", network=network)

    both, before = own("lower less upper"), own("lower less upper", "untrained")
    text = (
        f"The last token gives {own('lower').effect()} of its attention to earlier tokens of its sequence in the "
        f"lower half of the layers and {own('upper').effect()} in the upper half, a difference of {both.effect()}; "
        f"before training the difference is {before.effect()}."
    )
    effect = both.less(
        before, unit="difference between the lower and the upper layers after training minus before training"
    )
    return lab.Measurement(effect, text, gates=gates(tables, numbers))


@lab.claim("multitask-copying-heads")
def copying_heads(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    tables = in_regime(tables, numbers)
    rows = tables["alignment"]
    offsets = sorted(rows.values("offset"))
    overlap, parts = {}, []
    for offset in offsets:
        own, before = (rows.where(offset=offset, network=network) for network in ("trained", "untrained"))
        gain = own.less(before, unit="attention to the gathered position after training minus before training")
        if gain is not None:
            overlap[f"{offset} back"] = gain
        layers = ", ".join(f"{found.value:g}" for found in own.estimates("layer").values() if found is not None)
        parts.append(f"{own.effect()} for {offset} back ({before.effect()} before training; layers by seed: {layers})")
    in_order = rows.where(network="trained").per_seed(_in_order)
    text = (
        "A gathering head of the construction puts all its attention on one position. The attention of the network's best "
        f"head to this position is {'; '.join(parts)}. In {sum(in_order.values())} of {len(in_order)} seeds the heads "
        "for more distant positions are in the same or higher layers than the heads for nearer positions."
    )
    if not all(in_order.values()):  # a head below the one that it builds on gathers nothing
        text = f"{text} In the other seeds a head lies below one whose output it needs."
    ordered = lab.PerSeed({seed: float(fits) for seed, fits in in_order.items()}).effect(
        "fraction of seeds", resolution=0.5
    )
    effects = overlap | ({} if ordered is None else {"layers in order": ordered})
    return lab.Measurement(
        effects, text, gates=gates(tables, numbers), required=[f"{offset} back" for offset in offsets]
    )


@lab.claim("multitask-gathering-head-carries")
def gathering_head_carries(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    tables = in_regime(tables, numbers)

    def lost(network: str, what: str = "token") -> lab.PerSeed[lab.EstimateWithError | None]:
        rows = tables["carried"].where(network=network, what=what)
        return rows.where(ablated="head").estimates() - rows.where(ablated="others").estimates()

    unit = "extra decrease of the accuracy for the previous token after training minus before training"
    effect = (lost("trained") - lost("untrained")).effect(unit)
    text = (
        "The extra cost of a head is the effect of its ablation minus the mean effect of ablating another head of its "
        "layer. For the head that attends to the previous token, this extra cost is a decrease of "
        f"{lost('trained').effect()} in the accuracy of a probe for this token (before training "
        f"{lost('untrained').effect()}, in the network of Theorem 1 {lost('constructed').effect()}), and an increase of "
        f"{lost('trained', 'loss').effect()} nats in the loss in the test sequence."
    )
    return lab.Measurement(effect, text, gates=gates(tables, numbers))


def _in_order(rows: lab.Rows) -> bool:
    layers = [row["layer"] for row in sorted(rows, key=lambda row: row["offset"])]
    return layers == sorted(layers)
