"""Figures that several experiments draw from their tables."""

from dataclasses import replace

import numpy as np

from hmmscope.analysis.probes import MAX_DISTANCE
from hmmscope.evidence.figures import Bars, Figure, Heatmap, Lines, Series
from hmmscope.experiments.experiment import Tables

#: How each predictor of `evaluate` is called and drawn.
PREDICTORS = {
    "optimum": ("Bayes mixture (optimum)", "optimum"),
    "known-component": ("Bayes filter, HMM known", "ceiling"),
    "model": ("model", "model"),
    "order-1": ("in-context n-gram, order 1", "baseline"),
    "order-2": ("in-context n-gram, order 2", "baseline"),
    "order-0": ("most frequent token", "baseline"),
}


def series_of(rows: list[dict], name: str, role: str, *, x: str = "x", y: str = "value") -> Series:
    """Rows of a table as a curve, with the interval if the rows have one."""
    rows = sorted(rows, key=lambda row: row[x])
    bounds = {side: tuple(row[side] for row in rows) for side in ("low", "high") if rows and side in rows[0]}
    return Series(name=name, role=role, x=tuple(row[x] for row in rows), y=tuple(row[y] for row in rows), **bounds)  # type: ignore[arg-type]


def curves_panel(rows: list[dict], metric: str, *, title: str, x_label: str, y_label: str) -> Lines:
    """One metric of the predictors in a table of `Score.rows`."""
    series = []
    for predictor, (label, role) in PREDICTORS.items():
        found = [row for row in rows if row["predictor"] == predictor and row["metric"] == metric]
        if found:
            series.append(series_of(found, label, role))
    return Lines(title=title, x_label=x_label, y_label=y_label, series=tuple(series))


def in_context_figure(tables: Tables) -> Figure:
    """Accuracy and loss against demonstrations, and along the test sequence."""

    def panel(table: str, metric: str, title: str, x_label: str, y_label: str) -> Lines:
        lines = curves_panel(tables[table], metric, title=title, x_label=x_label, y_label=y_label)
        if table != "in-context":
            return lines
        unseen = [row for row in tables["unseen"] if row["metric"] == metric and row["predictor"] == "model"]
        return replace(lines, series=(*lines.series, series_of(unseen, "model, HMMs not in the pool", "other")))

    demonstrations, position = "demonstrations before the sequence", "position in the test sequence"
    return Figure(
        name="in-context-learning",
        title="Predictions improve as demonstrations arrive",
        caption=(
            "Next-observation accuracy and loss, averaged over the positions of a sequence, against the number of "
            "demonstrations before it (left), and along the test sequence (right). The optimum knows the pool but not "
            "which HMM it is; the ceiling is told. The n-grams count in the prompt only. Bands are 95 % intervals."
        ),
        panels=(
            panel("in-context", "accuracy", "Accuracy", demonstrations, "accuracy"),
            panel("in-context", "loss", "Loss", demonstrations, "nats per observation"),
            panel("last-sequence", "accuracy", "Accuracy in the test sequence", position, "accuracy"),
            panel("last-sequence", "loss", "Loss in the test sequence", position, "nats per observation"),
        ),
    )


def probe_rows(rows: list[dict], target: str, model: str = "trained", labels: str = "true") -> list[dict]:
    """Rows of one target, model and kind of labels."""
    return [row for row in rows if (row["target"], row["model"], row["labels"]) == (target, model, labels)]


def distance_figure(rows: list[dict]) -> Figure:
    """Probe accuracy for the observations before, by layer; one curve a distance."""
    series = tuple(
        series_of(probe_rows(rows, f"previous-{k}"), f"{k} back", "other", x="layer", y="accuracy")
        for k in range(MAX_DISTANCE + 1)
    )
    untrained = tuple(
        series_of(probe_rows(rows, f"previous-{k}", "untrained"), f"{k} back", "other", x="layer", y="accuracy")
        for k in range(MAX_DISTANCE + 1)
    )
    shown = {"x_label": "layer", "y_label": "probe accuracy", "y_min": 0.0, "y_max": 1.02}
    return Figure(
        name="previous-observations",
        title="Which past observations a layer holds",
        caption=(
            "Accuracy of linear probes for the observation k steps back, read at positions 4 and later of the test "
            "sequence, on samples that neither the model nor the probe was trained on. Layer 0 is the embedding."
        ),
        panels=(
            Lines(title="Trained", series=series, **shown),  # type: ignore[arg-type]
            Lines(title="Before training", series=untrained, **shown),  # type: ignore[arg-type]
        ),
    )


def probe_figure(rows: list[dict]) -> Figure:
    """Probe accuracy for the component and the hidden state, by layer, with controls and ceilings."""

    def panel(target: str, title: str) -> Lines:
        trained = probe_rows(rows, target)
        ceiling = [{"layer": row["layer"], "accuracy": row["ceiling"]} for row in trained]
        chance = [{"layer": row["layer"], "accuracy": row["chance"]} for row in trained]
        series = (
            series_of(trained, "trained", "model", x="layer", y="accuracy"),
            series_of(ceiling, "exact posterior", "ceiling", x="layer", y="accuracy"),
            series_of(probe_rows(rows, target, "untrained"), "untrained model", "control", x="layer", y="accuracy"),
            series_of(
                probe_rows(rows, target, labels="shuffled"), "shuffled labels", "control", x="layer", y="accuracy"
            ),
            series_of(chance, "commonest class", "baseline", x="layer", y="accuracy"),
        )
        return Lines(title=title, x_label="layer", y_label="probe accuracy", series=series, y_min=0.0, y_max=1.02)

    return Figure(
        name="probes",
        title="Which HMM, and which hidden state: read layer by layer",
        caption=(
            "Accuracy of linear probes (multinomial logistic regression) on samples that neither the model nor the "
            "probe was trained on. Left: which HMM of the pool, read at the last observation. Right: the hidden state of "
            "one HMM, at positions 4 and later of the test sequence. Controls: the same model before training, and a "
            "probe trained on shuffled labels."
        ),
        panels=(panel("component", "Which HMM"), panel("state", "Hidden state")),
    )


def shuffle_figure(rows: list[dict]) -> Figure:
    """The position-shuffle test, by layer and head."""

    def mean_over_heads(model: str, metric: str) -> list[dict]:
        chosen = [row for row in rows if row["model"] == model and row["metric"] == metric]
        layers = sorted({row["layer"] for row in chosen})
        return [{"layer": n, "value": float(np.mean([r["value"] for r in chosen if r["layer"] == n]))} for n in layers]

    def panel(metric: str, title: str, y_label: str) -> Lines:
        series = (
            series_of(mean_over_heads("trained", metric), "trained", "model", x="layer"),
            series_of(mean_over_heads("untrained", metric), "untrained model", "control", x="layer"),
        )
        return Lines(title=title, x_label="layer", y_label=y_label, series=series, y_min=0.0)

    cells = [row for row in rows if row["model"] == "trained" and row["metric"] == "cv_centred"]
    layers, heads = sorted({row["layer"] for row in cells}), sorted({row["head"] for row in cells})
    values = {(row["layer"], row["head"]): row["value"] for row in cells}
    return Figure(
        name="position-shuffle",
        title="How far attention depends on where demonstrations stand",
        caption=(
            "Whole demonstrations are permuted, and the attention logits from the last token are followed by the identity "
            "of the key. The coefficient of variation is the standard deviation over permutations relative to the mean "
            "size of a logit, after removing what softmax ignores; zero means that the layer looks at content, not place."
        ),
        panels=(
            panel("cv_centred", "Variation of centred logits", "coefficient of variation"),
            panel("attention_change", "Change of the attention itself", "total variation"),
            Heatmap(
                title="Trained: layer by head",
                x_label="head",
                y_label="layer",
                z_label="coefficient of variation",
                x=tuple(heads),
                y=tuple(layers),
                z=tuple(tuple(values[layer, head] for head in heads) for layer in layers),
            ),
        ),
    )


def attention_figure(rows: list[dict]) -> Figure:
    """Attention of the last token, by distance and by source."""
    trained = [row for row in rows if row["model"] == "trained"]
    layers = sorted({row["layer"] for row in trained})

    def mean(layer: int, kind: str, key: object) -> float:
        return float(
            np.mean([r["value"] for r in trained if r["layer"] == layer and r["kind"] == kind and r["key"] == key])
        )

    offsets = sorted({row["key"] for row in trained if row["kind"] == "offset"})
    sources = ("same sequence", "earlier sequences", "delimiters")
    return Figure(
        name="attention",
        title="Where the last token looks",
        caption="Attention of the last token, averaged over heads and samples: by distance to the key, and by its source.",
        panels=(
            Heatmap(
                title="By distance",
                x_label="columns back",
                y_label="layer",
                z_label="attention",
                x=tuple(offsets),
                y=tuple(layers),
                z=tuple(tuple(mean(layer, "offset", offset) for offset in offsets) for layer in layers),
            ),
            Bars(
                title="By source",
                y_label="attention",
                categories=tuple(f"layer {layer}" for layer in layers),
                series=tuple(
                    Series(
                        name=source,
                        role="other",
                        y=tuple(mean(layer, "source", source) for layer in layers),
                    )
                    for source in sources
                ),
            ),
        ),
    )


def training_figure(rows: list[dict], unit: str = "nats per observation") -> Figure:
    """Training and evaluation loss beside the Bayes floor."""
    evaluated = [row for row in rows if "evaluation_loss" in row]
    stride = max(1, len(rows) // 500)
    loss = [{"step": row["step"], "loss": row["loss"]} for row in rows[::stride]]
    held_out = [{"step": row["step"], "loss": row["evaluation_loss"]} for row in evaluated]
    ends = [row for row in (rows[0], rows[-1]) if row["training_floor"] is not None]
    floor = [{"step": row["step"], "loss": row["training_floor"]} for row in ends]
    known = [series_of(floor, "Bayes floor of the evaluation samples", "optimum", x="step", y="loss")] if floor else []
    series = (
        *known,
        series_of(loss, "training batch", "control", x="step", y="loss"),
        *([series_of(held_out, "evaluation", "model", x="step", y="loss")] if held_out else []),
    )
    return Figure(
        name="training",
        title="Loss over training",
        caption="The loss of training batches and of evaluation samples"
        + (", beside that of the exact optimum on the latter." if floor else "."),
        panels=(Lines(title="", x_label="step", y_label=unit, series=series),),
    )
