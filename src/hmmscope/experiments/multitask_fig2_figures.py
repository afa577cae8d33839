"""Figures of `multitask_fig2`."""

from hmmscope.evidence.figures import Bars, Figure, Heatmap, Lines, Panel, Role, Series
from hmmscope.evidence.pooling import pool_rows, rows_with
from hmmscope.experiments.experiment import Tables
from hmmscope.experiments.panels import series_of

_MODES = {
    "blocks": "A: whole demonstrations",
    "layer": "C: ids in one layer",
    "everywhere": "B: ids in all layers",
}
_ROLES: dict[str, Role] = {"trained": "model", "untrained": "control", "constructed": "other"}
_NAMES = {"trained": "trained", "untrained": "before training", "constructed": "network of Theorem 1"}
_METRICS = {
    "cv": "variation",
    "cv_centred": "centred variation",
    "attention_change": "total variation",
}
_EXPLAINED = (
    "The query is the last token of the test sequence, the keys are the observations of the demonstrations, followed by "
    "identity. A: whole demonstrations change places. C: position ids are permuted in the measured layer alone. B: in all "
    "layers, so that upper layers read corrupted inputs. Of the network of Theorem 1 the keys are its regression samples; "
    "its last layer finds its own column by position."
)


def figures(tables: Tables) -> list[Figure]:
    rows = tables["shuffle"]
    centred = (
        "Standard deviation over permutations relative to the mean size of a logit, after what softmax ignores (the "
    )
    centred += "mean over keys) is removed. Zero: the layer looks at content, not at place. "
    raw = "Standard deviation over permutations relative to the mean size of a logit, as they are; in the paper the upper "
    raw += "layers have the lower values. "
    change = "Total variation between the attention over the demonstrations and its mean over permutations. "
    return [
        _by_layer(rows, "cv_centred", "centred-variation", "Variation of centred logits by layer", centred),
        _by_layer(rows, "cv", "variation", "Variation of logits by layer", raw),
        _by_layer(rows, "attention_change", "attention-change", "Change of the attention by layer", change),
        _heads(rows, "trained"),
        _heads(rows, "untrained"),
        _heads(rows, "constructed"),
        _prediction(rows),
    ]


def _by_layer(rows: list[dict], metric: str, name: str, title: str, explained: str) -> Figure:
    def panel(mode: str) -> Lines:
        series = []
        for network, role in _ROLES.items():
            pooled = pool_rows(rows_with(rows, network=network, mode=mode, metric=metric), ["depth"])
            if pooled:
                series.append(series_of(pooled, _NAMES[network], role, x="depth"))
        return Lines(
            title=_MODES[mode],
            x_label="depth (layer / layers)",
            y_label=_METRICS[metric],
            series=tuple(series),
            y_min=0.0,
        )

    caption = f"{explained}Means over heads. {_EXPLAINED} {_intervals(rows)}"
    return Figure(name=name, title=title, caption=caption, panels=tuple(panel(mode) for mode in _MODES))


def _heads(rows: list[dict], network: str) -> Figure:
    """Heat maps of one seed: heads of different seeds are not the same heads."""
    seed = rows[0]["seed"]
    own = rows_with(rows, network=network, seed=seed)
    networks = ("trained", "untrained") if network != "constructed" else ("constructed",)
    alike = [row for one in networks for row in rows_with(rows, network=one, seed=seed)]
    shown = ("cv", "cv_centred")
    panels: list[Panel] = []
    for metric in shown:
        most = max((row["value"] for row in rows_with(alike, metric=metric)), default=0.0) or None
        for mode in _MODES:
            cells = {(r["layer"], r["head"]): r["value"] for r in rows_with(own, metric=metric, mode=mode)}
            layers, heads = sorted({layer for layer, _ in cells}), sorted({head for _, head in cells})
            panels.append(
                Heatmap(
                    title=_MODES[mode] if metric == "cv" else f"{_MODES[mode][0]}, centred",
                    x_label="head",
                    y_label="layer",
                    z_label="variation",
                    x=tuple(head + 1 for head in heads),
                    y=tuple(layers),
                    z=tuple(tuple(cells.get((layer, head)) for head in heads) for layer in layers),
                    z_min=0.0,
                    z_max=most,
                )
            )
    absent = (
        " Layers that gather have one head. Each row of maps has one scale, which is this network's own."
        if network == "constructed"
        else " Each row of maps has one scale, the same before and after training."
    )
    return Figure(
        name=f"heads-{network}",
        title=f"Layer by head: {_NAMES[network]}",
        caption=f"Variation of logits (top) and of centred logits (bottom) of every head, seed {seed}.{absent} {_EXPLAINED}",
        panels=tuple(panels),
    )


def _prediction(rows: list[dict]) -> Figure:
    modes = ("blocks", "everywhere")
    series = []
    for network, role in _ROLES.items():
        chosen = rows_with(rows, network=network, metric="prediction_change")
        pooled = {row["mode"]: row for row in pool_rows(chosen, ["mode"])}
        columns = {field: tuple(pooled[mode][field] for mode in modes) for field in ("value", "low", "high")}
        series.append(
            Series(name=_NAMES[network], role=role, y=columns["value"], low=columns["low"], high=columns["high"])
        )
    return Figure(
        name="prediction-change",
        title="Change of the prediction",
        caption=(
            "Total variation between the predicted law after the test sequence and its mean over permutations. An ideal "
            "learner's answer does not change when whole demonstrations change places (A). B: ids in all layers. "
            f"{_intervals(rows)}"
        ),
        panels=(
            Bars(
                title="",
                y_label="total variation",
                categories=("A: blocks", "B: ids"),
                series=tuple(series),
                y_min=0.0,
            ),
        ),
    )


def _intervals(rows: list[dict]) -> str:
    seeds = len({row["seed"] for row in rows})
    return f"Bands and bars are 95 % intervals over {seeds} seeds." if seeds > 1 else "One seed."
