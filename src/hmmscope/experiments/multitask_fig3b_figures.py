"""Figures and notes of `multitask_fig3b`."""

from hmmscope.claims.multitask_probes import DISTANCES, effect, said
from hmmscope.evidence.figures import Figure, Lines, Series
from hmmscope.evidence.pooling import rows_with
from hmmscope.experiments.experiment import Finding, Tables
from hmmscope.experiments.multitask_fig3a_figures import curve, pooled_series

_TITLES = {"trained": "Trained", "untrained": "Before training", "constructed": "Theorem 1's network"}
_ROLES = {"trained": "model", "untrained": "control", "constructed": "ceiling"}


def figures(tables: Tables) -> list[Figure]:
    return [_layer_figure(tables), _distance_figure(tables)]


def notes(tables: Tables) -> list[Finding]:
    return [_construction_note(tables), _untrained_note(tables)]


def _layer_figure(tables: Tables) -> Figure:
    rows = tables["probes"]

    def panel(network: str) -> Lines:
        found = rows_with(rows, network=network, labels="true")
        series = [curve(rows_with(found, distance=k), f"{k} back", "other") for k in DISTANCES]
        series.append(curve(found, "commonest symbol", "baseline", "chance"))
        if network == "trained":
            series.append(curve(rows_with(rows, network=network, labels="shuffled"), "shuffled labels", "control"))
        shown = {"x_label": "layer", "y_label": "probe accuracy", "y_min": 0.0, "y_max": 1.02}
        return Lines(title=_TITLES[network], series=tuple(series), **shown)  # type: ignore[arg-type]

    return Figure(
        name="previous-tokens",
        title="Which previous tokens a layer holds",
        caption=(
            "Accuracy of linear probes for the observation k steps back, at positions 4 and later of the test sequence, on "
            "prompts that neither the model nor the probe was trained on. Layer 0 is the embedding: what the current symbol "
            "says about the earlier ones. An observer who sees the prompt would be right always. The network of Theorem 1 "
            "has a window of five observations and a causal mask. Bands are 95 % intervals over seeds."
        ),
        panels=(panel("trained"), panel("untrained"), panel("constructed")),
    )


def _distance_figure(tables: Tables) -> Figure:
    rows = tables["curves"]

    def series(network: str, quantity: str) -> Series:
        found = [effect(rows, network=network, distance=k, quantity=quantity) for k in DISTANCES]
        name = _TITLES[network].lower().replace("theorem", "Theorem")
        return pooled_series(found, name, _ROLES[network], x=tuple(DISTANCES))

    def panel(
        quantity: str,
        title: str,
        y_label: str,
        networks: tuple[str, ...] = tuple(_TITLES),
        limits: tuple[float, float] | tuple[None, None] = (None, None),
    ) -> Lines:
        chosen = tuple(series(network, quantity) for network in networks)
        y_min, y_max = limits
        return Lines(title=title, x_label="steps back", y_label=y_label, series=chosen, y_min=y_min, y_max=y_max)

    layers = (0.0, max(row["layer"] for row in tables["probes"] if row["network"] == "trained") + 0.5)

    return Figure(
        name="by-distance",
        title="What distance does to a curve",
        caption=(
            "From the curves of the figure before, for each distance: accuracy at the layer where it is best; the fall from "
            "there to the last layer; the layer of the peak; and the first layer that makes 90 % of the rise from layer 0. "
            "Layers for the first two are chosen on one half of the test prompts and measured on the other, both ways, so "
            "that noise alone makes no fall. Intervals of 95 % over seeds, not narrower than the noise of the prompts."
        ),
        panels=(
            panel("best accuracy", "At the best layer", "probe accuracy", limits=(0.0, 1.02)),
            panel("fall", "From the peak to the last layer", "loss of accuracy"),
            panel("peak", "Peak", "layer", ("trained", "untrained"), layers),
            panel("onset", "90 % of the rise", "layer", limits=layers),
        ),
    )


def _construction_note(tables: Tables) -> Finding:
    """The construction's own answer: exact from layer ⌈log2(k + 1)⌉ on, and nothing is lost."""
    rows = tables["curves"]
    onsets = [effect(rows, network="constructed", distance=k, quantity="onset").value for k in DISTANCES]
    expected = [k.bit_length() for k in DISTANCES]  # equal to the logarithm, rounded up
    falls = [effect(rows, network="constructed", distance=k, quantity="fall") for k in DISTANCES]
    most = max(falls, key=lambda found: found.value)
    right = onsets == expected
    text = (
        f"In the network of Theorem 1 the token k back is there from layer {', '.join(f'{value:g}' for value in onsets)} on "
        f"(k = 0 to 4), {'which is' if right else 'while the theory says'} ⌈log2(k + 1)⌉"
        f"{'' if right else ' = ' + ', '.join(map(str, expected))}, and its accuracy falls by {said(most, 3)} at most from "
        "the peak to the last layer: it explains the rise and its order, and no fall."
    )
    return Finding(
        title="What the construction does",
        text=text,
        verdict="found",
        value=most.value,
        low=most.low,
        high=most.high,
        unit="largest fall of accuracy in the constructed network",
    )


def _untrained_note(tables: Tables) -> Finding:
    """How much of the reading is there before training."""
    rows = tables["curves"]
    best = {
        name: [effect(rows, network=name, distance=k, quantity="best accuracy").value for k in DISTANCES]
        for name in ("trained", "untrained")
    }
    fall = effect(rows, network="untrained", distance=None, quantity="fall of the best accuracy with distance")
    text = (
        f"Before training the best accuracies are {', '.join(f'{value:.2f}' for value in best['untrained'])} for 0 to 4 "
        f"steps back, against {', '.join(f'{value:.2f}' for value in best['trained'])} after it."
    )
    return Finding(
        title="Previous tokens before training",
        text=text,
        verdict="found",
        value=fall.value,
        low=fall.low,
        high=fall.high,
        unit="accuracy lost for each step back, at the best layer, untrained",
    )
