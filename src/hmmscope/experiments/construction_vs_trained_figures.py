"""Figures and findings of `construction_vs_trained`."""

from collections.abc import Sequence

import numpy as np

from hmmscope.analysis.probes import MAX_DISTANCE
from hmmscope.evidence.figures import Bars, Figure, Heatmap, Lines, Series
from hmmscope.evidence.pooling import rows_with
from hmmscope.experiments.experiment import Finding, Tables
from hmmscope.experiments.panels import series_of

_ROLES = {"trained": "model", "constructed": "ceiling", "untrained": "control"}

#: A layer holds what its probe reads with this share of the best accuracy over layers.
ONSET = 0.9


def figures(tables: Tables) -> list[Figure]:
    return [
        _score_figure(tables["scores"]),
        _probe_figure(tables["probes"]),
        _shuffle_figure(tables["shuffle"]),
        _offset_figure(tables["offsets"]),
        _similarity_figure(tables["similarity"]),
        _step_figure(tables["steps"]),
    ]


def findings(tables: Tables) -> list[Finding]:
    return [
        _onset_finding(tables["probes"]),
        _task_finding(tables["probes"]),
        _position_finding(tables["shuffle"]),
        _offset_finding(tables["overlap"]),
        _similarity_finding(tables["similarity"]),
        _step_finding(tables["steps"]),
    ]


def _score_figure(rows: list[dict]) -> Figure:
    names = list(dict.fromkeys(row["predictor"] for row in rows))
    panels = []
    for metric, label in (("accuracy", "accuracy"), ("total_variation", "total variation")):
        chosen = [row for name in names for row in rows_with(rows, predictor=name, metric=metric)]
        series = Series(
            name=label,
            role="other",
            y=tuple(row["value"] for row in chosen),
            low=tuple(row["low"] for row in chosen),
            high=tuple(row["high"] for row in chosen),
        )
        title = {"accuracy": "Accuracy", "total_variation": "Distance to the optimum"}[metric]
        categories = tuple(row["predictor"] for row in chosen)
        panels.append(Bars(title=title, y_label=label, categories=categories, series=(series,)))
    return Figure(
        name="scores",
        title="How well each predicts",
        caption="At the end of the test sequence, where the window of the construction lies inside it. The construction's "
        "vector is clipped at zero and divided by its sum. Bars of 95 %.",
        panels=tuple(panels),
    )


def _probe_figure(rows: list[dict]) -> Figure:
    def panel(network: str) -> Lines:
        wanted = [(f"previous-{k}", f"{k} back", "other") for k in range(MAX_DISTANCE + 1)]
        wanted.append(("component", "which HMM", "model"))
        series = tuple(
            series_of(rows_with(rows, network=network, target=target), name, role, x="layer", y="accuracy")
            for target, name, role in wanted
        )
        title = {"trained": "Trained", "constructed": "Constructed", "untrained": "Before training"}[network]
        return Lines(title=title, x_label="layer", y_label="probe accuracy", series=series, y_min=0.0, y_max=1.02)

    return Figure(
        name="probes",
        title="What a layer holds",
        caption="Accuracy of linear probes for the symbol k steps back, and for which HMM of the pool it is, on samples "
        "that the probe was not trained on. Layer 0 is the embedding.",
        panels=(panel("trained"), panel("constructed"), panel("untrained")),
    )


def _by_layer(rows: list[dict], network: str, metric: str) -> list[dict]:
    chosen = [row for row in rows_with(rows, network=network, metric=metric) if row["head"] >= 0]
    layers = sorted({row["layer"] for row in chosen})
    return [
        {"x": n / max(layers), "value": float(np.mean([r["value"] for r in rows_with(chosen, layer=n)]))}
        for n in layers
    ]


def _shuffle_figure(rows: list[dict]) -> Figure:
    series = tuple(series_of(_by_layer(rows, name, "cv_centred"), name, role) for name, role in _ROLES.items())
    return Figure(
        name="position-shuffle",
        title="Does attention depend on where demonstrations stand?",
        caption="Whole demonstrations change places; the logits from the last token are followed by the identity of their "
        "key. Coefficient of variation of centred logits, averaged over heads. Zero: the layer looks at content.",
        panels=(
            Lines(
                title="",
                x_label="depth (share of the layers)",
                y_label="coefficient of variation",
                series=series,
                y_min=0.0,
            ),
        ),
    )


def _offset_figure(rows: list[dict]) -> Figure:
    def panel(network: str) -> Heatmap:
        chosen = rows_with(rows, network=network)
        layers, offsets = sorted({r["layer"] for r in chosen}), sorted({r["key"] for r in chosen})
        cells = np.zeros((len(layers), len(offsets)))
        for i, layer in enumerate(layers):
            for j, offset in enumerate(offsets):
                cells[i, j] = np.mean([row["value"] for row in rows_with(chosen, layer=layer, key=offset)])
        shares = [row / row.sum() if row.any() else [None] * len(offsets) for row in cells]  # None: it looks nowhere
        return Heatmap(
            title={"trained": "Trained", "constructed": "Constructed"}[network],
            x_label="columns back",
            y_label="layer",
            z_label="share of the attention shown",
            x=tuple(map(str, offsets)),
            y=tuple(map(str, layers)),
            z=tuple(tuple(row) for row in shares),
        )

    return Figure(
        name="attention-by-offset",
        title="Where the last token looks",
        caption="Attention of the last token by distance, averaged over heads; each row is divided by its sum over the "
        "distances shown (the construction's gradient layers are not normalised).",
        panels=(panel("trained"), panel("constructed")),
    )


def _similarity_figure(rows: list[dict]) -> Figure:
    def panel(network: str, title: str) -> Heatmap:
        chosen = rows_with(rows, network=network)
        layers, others = sorted({r["layer"] for r in chosen}), sorted({r["constructed_layer"] for r in chosen})
        values = {(row["layer"], row["constructed_layer"]): row["value"] for row in chosen}
        return Heatmap(
            title=title,
            x_label="layer of the construction",
            y_label="layer",
            z_label="linear CKA",
            x=tuple(map(str, others)),
            y=tuple(map(str, layers)),
            z=tuple(tuple(values[layer, other] for other in others) for layer in layers),
            z_min=0.0,
            z_max=1.0,
        )

    return Figure(
        name="similarity",
        title="How alike the layers are",
        caption="Linear centred kernel alignment of the residual streams on the same columns. One: equal up to rotation.",
        panels=(panel("trained", "Trained"), panel("untrained", "Before training")),
    )


def _step_figure(rows: list[dict]) -> Figure:
    def panel(network: str, title: str) -> Heatmap:
        chosen = rows_with(rows, network=network)
        layers, steps = sorted({r["layer"] for r in chosen}), sorted({r["step"] for r in chosen})
        values = {(row["layer"], row["step"]): row["value"] for row in chosen}
        return Heatmap(
            title=title,
            x_label="gradient step",
            y_label="layer",
            z_label="gain in R²",
            x=tuple(map(str, steps)),
            y=tuple(map(str, layers)),
            z=tuple(tuple(values[layer, step] for step in steps) for layer in layers),
        )

    return Figure(
        name="gradient-steps",
        title="Does a gradient step explain what a layer adds?",
        caption="What a layer adds at the last column, predicted linearly from the last symbol and the frequencies in the "
        "prompt; the gain in R² on held-out prompts when the change that a step of gradient descent makes to the "
        "prediction is added.",
        panels=(panel("trained", "Trained"), panel("untrained", "Before training")),
    )


# --------------------------------------------------------------------------------------------------------------------


def _onset(rows: list[dict], network: str, target: str) -> int | None:
    """First layer whose probe reaches ONSET of the best accuracy over layers; None if the best is not beyond chance.

    Chance is what the untrained network lets a probe read at best, intervals apart.
    """
    chosen = sorted(rows_with(rows, network=network, target=target), key=lambda row: row["layer"])
    best = max(chosen, key=lambda row: row["accuracy"])
    control = max(rows_with(rows, network="untrained", target=target), key=lambda row: row["accuracy"])
    if network != "untrained" and best["low"] <= control["high"]:
        return None
    return next(row["layer"] for row in chosen if row["accuracy"] >= ONSET * best["accuracy"])


def _onset_finding(rows: list[dict]) -> Finding:
    onsets = {
        name: [_onset(rows, name, f"previous-{k}") for k in range(1, MAX_DISTANCE + 1)]
        for name in ("trained", "constructed")
    }
    found = [layer for layer in onsets["trained"] if layer is not None]
    verdict = "inconclusive" if len(found) < 2 else "reproduced" if found == sorted(found) else "not reproduced"
    text = (
        f"The symbols 1 to {MAX_DISTANCE} steps back can be read, beyond what an untrained network gives, "
        f"{_listed(onsets['trained'])} in the trained network and {_listed(onsets['constructed'])} in the construction, "
        "which doubles its reach with each layer."
    )
    return Finding(
        title="Past symbols arrive one after the other",
        text=text,
        verdict=verdict,  # type: ignore[arg-type]
    )


def _task_finding(rows: list[dict]) -> Finding:
    window, task = _onset(rows, "trained", "previous-1"), _onset(rows, "trained", "component")
    best = max(rows_with(rows, network="trained", target="component"), key=lambda row: row["accuracy"])
    control = max(rows_with(rows, network="untrained", target="component"), key=lambda row: row["accuracy"])
    beyond = window is not None and task is not None
    verdict = "inconclusive" if not beyond else "reproduced" if task > window else "not reproduced"  # type: ignore[operator]
    text = (
        f"Which HMM it is can be read with accuracy {best['accuracy']:.2f} at best (layer {best['layer']}), before training "
        f"with {control['accuracy']:.2f}; the previous symbol {_listed([window])}, the HMM {_listed([task])}. In the "
        f"construction they are readable {_listed([_onset(rows, 'constructed', 'previous-1')])} and "
        f"{_listed([_onset(rows, 'constructed', 'component')])}."
    )
    return Finding(
        title="The task comes after the window",
        text=text,
        verdict=verdict,  # type: ignore[arg-type]
        value=best["accuracy"],
        low=best["low"],
        high=best["high"],
        unit="probe accuracy, component",
    )


def _position_finding(rows: list[dict]) -> Finding:
    def halves(name: str) -> tuple[float, float]:
        curve = _by_layer(rows, name, "cv_centred")
        lower = [row["value"] for row in curve if row["x"] <= 0.5]
        upper = [row["value"] for row in curve if row["x"] > 0.5]
        return float(np.mean(lower)), float(np.mean(upper))

    (lower, upper), (own_lower, own_upper), (first_lower, first_upper) = (halves(name) for name in _ROLES)
    text = (
        f"When demonstrations change places the logits vary by {lower:.2f} in the lower and {upper:.2f} in the upper half "
        f"of the trained network ({own_lower:.2f} and {own_upper:.2f} in the construction, whose gradient layers do not "
        f"look at positions; {first_lower:.2f} and {first_upper:.2f} before training)."
    )
    verdict = "reproduced" if upper < lower else "not reproduced"
    return Finding(
        title="Upper layers look at content, not place",
        text=text,
        verdict=verdict,  # type: ignore[arg-type]
        value=upper - lower,
        unit="upper minus lower half, coefficient of variation",
    )


def _offset_finding(rows: list[dict]) -> Finding:
    parts = []
    for row in rows_with(rows, network="trained"):
        control = rows_with(rows, network="untrained", constructed_layer=row["constructed_layer"])[0]
        parts.append(
            f"{row['overlap']:.2f} for {row['offset']} back (layer {row['layer']}, head {row['head']}; "
            f"{control['overlap']:.2f} before training)"
        )
    best = max((row["overlap"] for row in rows_with(rows, network="trained")), default=0.0)
    listed = "; ".join(parts)
    text = f"The trained head that looks most where a gathering head of the construction looks overlaps by {listed}."
    return Finding(
        title="Heads that look a fixed distance back", text=text, verdict="found", value=best, unit="overlap"
    )


def _similarity_finding(rows: list[dict]) -> Finding:
    inner = [row for row in rows if row["layer"] > 0 and row["constructed_layer"] > 0]  # embeddings are alike by nature
    best = max(rows_with(inner, network="trained"), key=lambda row: row["value"])
    control = max(rows_with(inner, network="untrained"), key=lambda row: row["value"])
    late = [row for row in rows_with(inner, network="trained") if row["layer"] == max(r["layer"] for r in rows)]
    last = max(late, key=lambda row: row["value"])
    text = (
        f"Beyond the embedding the largest alignment is {best['value']:.2f} (layer {best['layer']} with layer "
        f"{best['constructed_layer']} of the construction), {control['value']:.2f} before training; the trained network's "
        f"last layer is most like layer {last['constructed_layer']} ({last['value']:.2f})."
    )
    return Finding(
        title="Likeness of representations",
        text=text,
        verdict="found",
        value=best["value"],
        low=best["low"],
        high=best["high"],
        unit="linear CKA",
    )


def _step_finding(rows: list[dict]) -> Finding:
    best = max(rows_with(rows, network="trained"), key=lambda row: row["value"])
    control = max(rows_with(rows, network="untrained"), key=lambda row: row["value"])
    text = (
        f"At best a gradient step raises the explained share of a layer's change by {best['value']:.3f} (layer "
        f"{best['layer']}, step {best['step']}; the last symbol and the frequencies alone explain {best['base']:.2f}); "
        f"before training at best by {control['value']:.3f}. The best of all pairs is shown for both."
    )
    return Finding(
        title="Gradient steps in the trained network",
        text=text,
        verdict="found",
        value=best["value"],
        low=best["low"],
        high=best["high"],
        unit="gain in R²",
    )


def _listed(layers: Sequence[int | None]) -> str:
    """Onset layers in words."""
    return ", ".join("not at all" if layer is None else f"from layer {layer} on" for layer in layers)
