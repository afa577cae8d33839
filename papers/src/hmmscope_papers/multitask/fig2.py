"""[MultiTask] Figure 2: how attention depends on the positions of demonstrations, by layer."""

from typing import Any

import torch
from torch import Tensor, nn

from hmmscope import Run, lab, registry
from hmmscope.analysis import ShuffleValues, mean_row
from hmmscope.schema import require
from hmmscope_papers.constructions import MultiTaskTransformer
from hmmscope_papers.multitask.side_by_side import construct
from hmmscope_papers.multitask.training_setting import PoolFigure, gates, in_regime


@registry.experiment("multitask-fig2")
class MultiTaskFig2(PoolFigure):
    """Attention logits under permuted demonstrations; logits of the same key token are compared."""

    title = "Does attention depend on the positions of the demonstrations?"
    in_paper = (
        "[MultiTask] §2.2",
        "the upper layers (layers 9–15) exhibit attention logits that are less dependent on the positions of input tokens.",
    )
    summary = (
        "The demonstrations are permuted, and each attention logit from the last token of the test sequence is "
        "compared with its value before the permutation, at the same key token. Whole demonstrations are permuted (A), "
        "or the position ids of their tokens are permuted in all layers (B) or in one layer alone (C). Controls are "
        "the untrained model, and the network of Theorem 1, whose upper layers do not read positions."
    )
    groups = {"shuffle": ("shuffle", "effects"), "setting": ("setting",)}
    #: The last three sizes concern the constructed network, with the largest learning rate stable on the first prompts.
    sizes = {
        "smoke": {"samples": 8, "permutations": 3, "construction_samples": 4, "memory_length": 2, "num_steps": 2},
        "small": {"samples": 64, "permutations": 8, "construction_samples": 8, "memory_length": 4, "num_steps": 4},
        "medium": {"samples": 256, "permutations": 8, "construction_samples": 8, "memory_length": 4, "num_steps": 4},
        "gpu": {"samples": 64, "permutations": 16, "construction_samples": 16, "memory_length": 4, "num_steps": 8},
        "paper": {"samples": 64, "permutations": 16, "construction_samples": 8, "memory_length": 4, "num_steps": 16},
    }

    def look(self, run: Run, sizes: dict[str, Any]) -> lab.MeasuredTables:
        dataset, tables = run.dataset("probe"), lab.MeasuredTables(shuffle=[], effects=[])
        constructed = construct(run, {**sizes, "samples": sizes["construction_samples"]})
        for draw, (network, model) in enumerate([*run.compare_with_untrained(), ("constructed", constructed)]):
            own = network == "constructed"
            for mode in ("blocks", "layer", "everywhere"):
                values = ShuffleValues.of(
                    model,
                    dataset,
                    num_samples=sizes["construction_samples" if own else "samples"],
                    num_permutations=sizes["permutations"],
                    mode=mode,
                    attend_at=_attend_at(constructed) if own else None,
                    first_position=sizes["memory_length"] if own else 0,
                )
                if own:
                    del values["attention_change"]  # a softmax measure; most of its layers have none
                key, last = {"network": network, "draw": draw, "mode": mode}, max(values["cv"])
                stages = _stages(constructed) if own else {}
                tables["shuffle"] += [
                    key | {"depth": row["layer"] / last, "stage": stages.get(row["layer"], "")} | row
                    for row in values.rows()
                ]
                if not own:
                    tables["effects"] += [key | row for row in effects(values)]
        return tables

    def drawn(self, tables: lab.Tables) -> list[lab.Figure]:
        rows = tables["shuffle"]
        size = (
            "The variation is the standard deviation of a logit over permutations, divided by the mean absolute logit"
        )
        centred = f"{size}. For centred logits, the mean over keys, which softmax ignores, is subtracted. If "
        raw = f"{size}. In the paper the variation is lower in upper layers. "
        change = (
            "The change is the total variation between the attention to demonstrations and its mean over permutations. "
        )
        shown = (
            (
                "centred-variation",
                "cv_centred",
                "Variation of centred attention logits by layer",
                centred + "centred logits do not vary, attention depends only on content. ",
            ),
            ("variation", "cv", "Variation of attention logits by layer", raw),
            ("attention-change", "attention_change", "Change of the attention under permutation, by layer", change),
        )
        return [
            *(_by_layer(rows, name, metric, title, text) for name, metric, title, text in shown),
            *(_heads(rows, network) for network in _NETWORKS),
            _prediction(rows),
        ]


def _attend_at(network: MultiTaskTransformer):  # type: ignore[no-untyped-def]
    def attend_at(attention: nn.Module, x_BTD: Tensor, positions: Tensor) -> Tensor:
        moved = x_BTD.clone()
        moved[..., network.subspaces["position"]] = network.positions[positions]
        written: Tensor = attention(moved)
        return written

    return attend_at


def _stages(network: MultiTaskTransformer) -> dict[int, str]:
    return {note.layer: note.stage for note in network.notes()}


def effects(values: ShuffleValues) -> list[dict]:
    """Return the effects that claims test, averaged over heads per prompt: (effect, metric, value, low, high, samples).

    ``lower less upper`` is the mean over the lower half of the layers minus the mean over the upper half; a middle
    layer is omitted. ``last less before`` is the last layer's value minus the value of the layer before.
    """
    rows = []
    for metric in ("cv", "cv_centred", "attention_change"):
        by_layer = torch.stack([heads_BH.mean(1) for _, heads_BH in sorted(values[metric].items())]).numpy()
        half = len(by_layer) // 2
        require(half >= 1, "model.num_layers", "must be at least 2 to compare lower with upper layers", len(by_layer))
        found = {
            "lower less upper": by_layer[:half].mean(0) - by_layer[-half:].mean(0),
            "last less before": by_layer[-1] - by_layer[-2],
        }
        for effect, differences in found.items():
            rows.append({"effect": effect, "metric": metric} | mean_row(differences))
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Figures

_MODES = {
    "blocks": "A: whole demonstrations",
    "layer": "C: ids in one layer",
    "everywhere": "B: ids in all layers",
}
_NETWORKS: dict[str, tuple[str, lab.Role]] = {
    "trained": ("trained", "model"),
    "untrained": ("before training", "control"),
    "constructed": ("network of Theorem 1", "other"),
}
_METRICS = {"cv": "variation", "cv_centred": "centred variation", "attention_change": "total variation"}
_EXPLAINED = (
    "A: whole demonstrations are permuted. B: position ids are permuted in all layers, so that upper layers read "
    "corrupted inputs. C: position ids are permuted in the measured layer alone. Logits from the last token of the "
    "test sequence to the same observation of a demonstration are compared (in the network of Theorem 1, to the same "
    "sample of its regression). In the last layer of that network, each token attends to itself."
)


def _by_layer(rows: lab.Rows, name: str, metric: str, title: str, explained: str) -> lab.Figure:
    panels = []
    for mode, heading in _MODES.items():
        own = rows.where(mode=mode, metric=metric)
        series = [lab.curve(own.where(network=network), "depth", *look) for network, look in _NETWORKS.items()]
        shown: dict[str, Any] = {"x_label": "layer / last layer", "y_label": _METRICS[metric], "y_min": 0.0}
        panels.append(lab.lines(heading, *series, **shown))
    caption = f"{explained}Values are means over heads. {_EXPLAINED} {_intervals(rows)}"
    return lab.Figure(name=name, title=title, caption=caption, panels=tuple(panels))


def _heads(rows: lab.Rows, network: str) -> lab.Figure:
    seed, draws = rows[0]["seed"], rows.where(network=network).values("draw")
    own = rows.where(network=network, seed=seed)
    own = own.where(draw=min(draws)) if draws else own  # one untrained control
    alike = own if network == "constructed" else rows.where(network=("trained", "untrained"), seed=seed)
    panels: list[lab.Panel] = []
    for metric in ("cv", "cv_centred"):
        most = max((row["value"] for row in alike.where(metric=metric)), default=0.0) or None
        for mode, heading in _MODES.items():
            cells = own.where(metric=metric, mode=mode).with_columns(number=lambda row: row["head"] + 1)
            title = heading if metric == "cv" else f"{heading[0]}, centred"
            labels = {"x_label": "head", "y_label": "layer", "z_label": "variation"}
            panels.append(lab.heatmap(title, cells, "number", "layer", z_min=0.0, z_max=most, **labels))
    scale = "Each row of maps has one colour scale, which is the same before and after training."
    if network == "constructed":
        scale = "Layers that gather tokens have one head. Each row of maps has one colour scale, for this network only."
    return lab.Figure(
        name=f"heads-{network}",
        title=f"Variation of attention logits of each layer and head: {_NETWORKS[network][0]}",
        caption=f"Colours show the variation of logits (top) and of centred logits (bottom) of every head, for seed {seed}. "
        f"{scale} {_EXPLAINED}",
        panels=tuple(panels),
    )


def _prediction(rows: lab.Rows) -> lab.Figure:
    own = rows.where(metric="prediction_change")
    series = [lab.bar(own.where(network=n), "mode", ("blocks", "everywhere"), *look) for n, look in _NETWORKS.items()]
    return lab.Figure(
        name="prediction-change",
        title="Change of the prediction if demonstrations or position ids are permuted",
        caption=(
            "Bars show the total variation between the predicted distribution after the test sequence and its mean over "
            "permutations of whole demonstrations (A) or of position ids in all layers (B). An ideal predictor does not "
            f"change in A. {_intervals(rows)}"
        ),
        panels=(lab.bars("", *series, categories=("A: blocks", "B: ids"), y_label="total variation", y_min=0.0),),
    )


def _intervals(rows: lab.Rows) -> str:
    seeds = len(rows.seeds())
    return f"Bands and bars are 95 % intervals over {seeds} seeds." if seeds > 1 else "The values are from one seed."


# ---------------------------------------------------------------------------------------------------------------------
# Claims

#: The paper does not define its measure of variation: both of these must confirm the claim.
_MEASURES = {"centred logits": "cv_centred", "logits as they are": "cv"}


@lab.claim("multitask-upper-layers-ignore-places")
def upper_layers_ignore_places(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    return _upper_layers(tables, "blocks", "When whole demonstrations are permuted", numbers)


@lab.claim("multitask-upper-layers-read-no-positions")
def upper_layers_read_no_positions(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    return _upper_layers(tables, "layer", "When position ids are permuted in the measured layer alone", numbers)


@lab.claim("multitask-upper-layers-shuffled-ids")
def upper_layers_shuffled_ids(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    return _upper_layers(tables, "everywhere", "When position ids are permuted in all layers at once", numbers)


def _upper_layers(tables: lab.Tables, mode: str, begin: str, numbers: lab.Numbers = None) -> lab.Measurement:
    tables = in_regime(tables, numbers)
    gains, parts = {}, []
    for name, metric in _MEASURES.items():
        own = {n: _effects(tables, mode, "lower less upper", metric, n) for n in ("trained", "untrained")}
        gain = own["trained"].less(
            own["untrained"], unit="variation in the lower half of the layers minus variation in the upper half"
        )
        if gain is not None:
            gains[name] = gain
        parts.append(f"{own['trained'].effect()} for {name} ({own['untrained'].effect()} before training)")
    text = f"{begin}, variation in the lower half of layers minus variation in the upper half is {', '.join(parts)}."
    return lab.Measurement(gains, text, gates=gates(tables, numbers), required=tuple(_MEASURES))


def _effects(tables: lab.Tables, mode: str, effect: str, metric: str, network: str) -> lab.Rows:
    return tables["effects"].where(mode=mode, effect=effect, metric=metric, network=network)
