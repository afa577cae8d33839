"""Figures and notes of `multitask_fig3a`."""

from collections.abc import Iterable, Sequence
from typing import Any

from hmmscope.claims.multitask_probes import effect, said
from hmmscope.evidence.figures import Bars, Figure, Lines, Series
from hmmscope.evidence.pooling import Pooled, pool_rows, rows_with
from hmmscope.experiments.experiment import Finding, Tables
from hmmscope.experiments.panels import series_of

_TITLES = {"component": "Which HMM", "state": "Hidden state within an HMM"}
_SHORT = {"component": "which HMM", "state": "hidden state"}


def figures(tables: Tables) -> list[Figure]:
    return [_probe_figure(tables), _order_figure(tables)]


def notes(tables: Tables) -> list[Finding]:
    return [_untrained_note(tables), _ceiling_note(tables)]


def curve(rows: list[dict[str, Any]], name: str, role: str, column: str = "accuracy") -> Series:
    """A column over layers, pooled over seeds and probes."""
    pooled = pool_rows([{k: v for k, v in row.items() if _kept(k, column)} for row in rows], ("layer",), value=column)
    return series_of(pooled, name, role, x="layer", y=column)


def _kept(key: str, column: str) -> bool:
    """Intervals are those of the accuracy, and of nothing else."""
    return column == "accuracy" or key not in ("low", "high")


def pooled_series(found: Sequence[Pooled], name: str, role: str, x: tuple[float, ...] = ()) -> Series:
    """Pooled numbers as a curve, or without `x` as bars."""
    y, low, high = (tuple(getattr(one, side) for one in found) for side in ("value", "low", "high"))
    return Series(name=name, role=role, x=x, y=y, low=low, high=high)  # type: ignore[arg-type]


def constant(series: Series, layers: Iterable[float]) -> Series:
    """A number that belongs to no layer, as a level over all of them."""
    layers = tuple(layers)
    low, high = ((ends[0],) * len(layers) if ends else None for ends in (series.low, series.high))
    return Series(name=series.name, role=series.role, x=layers, y=series.y[:1] * len(layers), low=low, high=high)


def _probe_figure(tables: Tables) -> Figure:
    rows = tables["probes"]

    def panel(target: str) -> Lines:
        trained = rows_with(rows, target=target, model="trained", labels="true")
        series = [
            curve(trained, "trained", "model"),
            curve(trained, "exact posterior", "ceiling", "ceiling"),
            curve(rows_with(rows, target=target, model="untrained"), "untrained model", "control"),
            curve(rows_with(rows, target=target, model="trained", labels="shuffled"), "shuffled labels", "control"),
            curve(trained, "commonest class", "baseline", "chance"),
        ]
        if target == "component":
            for name in ("symbols", "symbols and pairs"):
                found = [{"layer": 0} | row for row in rows_with(tables["frequencies"], frequencies=name)]
                series.append(constant(curve(found, f"frequencies of {name}", "baseline"), series[0].x))
        return Lines(
            title=_TITLES[target], x_label="layer", y_label="probe accuracy", series=tuple(series), y_min=0, y_max=1.02
        )

    return Figure(
        name="probes",
        title="Which HMM, and which hidden state: read layer by layer",
        caption=(
            "Accuracy of linear probes (multinomial logistic regression on the residual stream; layer 0 is the embedding) "
            "on prompts that neither the model nor the probe was trained on. Left: which HMM of a subset of the pool, read "
            "at the last observation of the prompt; also by probes that read only how often symbols, or pairs of "
            "neighbours, are in the prompt. Right: the hidden state, one probe for each of several HMMs, at positions 4 "
            "and later of the test sequence, averaged over HMMs. The ceiling is the likeliest class of the exact posterior, "
            "that of an observer who knows the subset (left) or the HMM (right). Bands are 95 % intervals over seeds."
        ),
        panels=(panel("component"), panel("state")),
    )


def _order_figure(tables: Tables) -> Figure:
    rows = tables["probes"]

    def shares(model: str) -> Lines:
        series = tuple(
            curve(_of_maximum(rows_with(rows, target=target, model=model, labels="true")), _SHORT[target], role)
            for target, role in (("component", "model"), ("state", "other"))
        )
        title = {"trained": "Trained", "untrained": "Before training"}[model]
        level = series_of([{"x": x, "value": 0.9} for x in series[0].x], "90 %", "baseline")
        shown = {"x_label": "layer", "y_label": "share of maximum", "y_min": 0.0, "y_max": 1.05}
        return Lines(title=title, series=(*series, level), **shown)  # type: ignore[arg-type]

    quantities = ("onset", "onset above layer 0", "peak")
    bars = []
    for target, role in (("component", "model"), ("state", "other")):
        found = [effect(tables["onsets"], model="trained", target=target, quantity=name) for name in quantities]
        bars.append(pooled_series(found, _SHORT[target], role))
    return Figure(
        name="order",
        title="Which is known first",
        caption=(
            "Left and middle: the curves of the figure before, each divided by its own maximum over layers. Right: the "
            "first layer with 90 % of the maximum, with 90 % of the rise above layer 0, and the layer of the "
            "maximum. Bands and bars are 95 % intervals over seeds; those of layers are not narrower than the noise of the "
            "prompts."
        ),
        panels=(
            shares("trained"),
            shares("untrained"),
            Bars(
                title="Layers, trained",
                y_label="layer",
                categories=("90 %", "90 % of rise", "peak"),
                series=tuple(bars),
                y_min=0.0,
                y_max=max(row["layer"] for row in rows) + 0.5,
            ),
        ),
    )


def _of_maximum(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Accuracy by seed and layer as a share of the seed's largest."""
    shares = []
    for seed in dict.fromkeys(row["seed"] for row in rows):
        means = pool_rows(rows_with(rows, seed=seed), ("layer",), value="accuracy")
        top = max(row["accuracy"] for row in means)
        shares += [{"seed": seed, "layer": row["layer"], "accuracy": row["accuracy"] / top} for row in means]
    return shares


def _untrained_note(tables: Tables) -> Finding:
    """What may be read without anything learned."""
    rows, onsets = tables["probes"], tables["onsets"]
    best = {
        model: max(curve(rows_with(rows, target="component", model=model, labels="true"), model, "other").y)
        for model in ("trained", "untrained")
    }
    counted = {name: curve_level(tables["frequencies"], name) for name in ("symbols", "symbols and pairs")}
    gain = effect(onsets, model="trained - untrained", target="component", quantity="accuracy at the last layer")
    text = (
        f"A probe reads the component from the model before training with accuracy {best['untrained']:.2f} at best, and "
        f"from the frequencies of symbols alone with {counted['symbols']:.2f} (with those of pairs "
        f"{counted['symbols and pairs']:.2f}); from the trained model with {best['trained']:.2f}. At the last layer "
        f"training adds {said(gain)}."
    )
    return Finding(
        title="The component is also in what was never learned",
        text=text,
        verdict="found",
        value=gain.value,
        low=gain.low,
        high=gain.high,
        unit="accuracy for the component at the last layer, trained less untrained",
    )


def curve_level(rows: list[dict[str, Any]], name: str) -> float:
    """Mean accuracy of a probe that reads frequencies."""
    found = pool_rows(rows_with(rows, frequencies=name), (), value="accuracy")
    return float(found[0]["accuracy"])


def _ceiling_note(tables: Tables) -> Finding:
    """How much of what can be known of the state is in the stream."""
    rows = tables["probes"]
    trained = rows_with(rows, target="state", model="trained", labels="true")
    accuracy, ceiling = curve(trained, "", "other"), curve(trained, "", "other", "ceiling")
    gain = effect(tables["onsets"], model="trained - untrained", target="state", quantity="accuracy at the last layer")
    text = (
        f"The hidden state is read with accuracy {max(accuracy.y):.2f} at best; the exact filter that knows the HMM reaches "
        f"{ceiling.y[0]:.2f}. At the last layer training adds {said(gain)}."
    )
    return Finding(
        title="The hidden state against the exact filter",
        text=text,
        verdict="found",
        value=gain.value,
        low=gain.low,
        high=gain.high,
        unit="accuracy for the hidden state at the last layer, trained less untrained",
    )
