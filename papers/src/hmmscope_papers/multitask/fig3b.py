"""[MultiTask] Figure 3b: which previous tokens each layer represents."""

import math
from typing import Any

from torch import nn

from hmmscope import ProcessDataset, Run, lab, registry
from hmmscope.analysis import ProbeData, bootstrap_means, resampled_curves, residual_layers, with_interval
from hmmscope.ties import largest
from hmmscope_papers.multitask.layer_profiles import Curves, at_layer, cross_fitted, onset_layer, peak_layer
from hmmscope_papers.multitask.models import MAX_DISTANCE
from hmmscope_papers.multitask.side_by_side import construct
from hmmscope_papers.multitask.training_setting import PoolFigure, gates, in_regime

#: Prompts that set the step size of the constructed network.
_REGRESSIONS = 64
DISTANCES = range(MAX_DISTANCE + 1)
#: Distances of earlier tokens; the current token can be read from its embedding.
EARLIER = DISTANCES[1:]


@registry.experiment("multitask-fig3b")
class MultiTaskFig3b(PoolFigure):
    """Probes of the observations 0 to 4 steps back, in trained, untrained and constructed networks."""

    title = "Accuracy of probes for previous tokens, by layer"
    in_paper = (
        "[MultiTask] §2.2",
        "The peak of each curve shifts to upper layers as the distance to the previous token increases",
    )
    summary = (
        "A RoFormer is trained on prompts from a pool of hidden Markov models; linear probes read the observations 0 to 4 "
        "steps back from the residual stream after every layer. They are compared with the untrained model, shuffled "
        "labels, and the network of Theorem 1, which gathers a window of five observations in three layers."
    )
    groups = {"probes": ("probes", "curves"), "setting": ("setting",)}
    of_all = ("previous-tokens",)
    #: Prompts of the probes (three quarters train them), and gradient steps of the constructed network.
    sizes = {
        "smoke": {"prompts": 32, "num_steps": 1},
        "small": {"prompts": 1024, "num_steps": 1},
        "medium": {"prompts": 2048, "num_steps": 1},
        "gpu": {"prompts": 2048, "num_steps": 2},
        "paper": {"prompts": 4096, "num_steps": 2},
    }

    def look(self, run: Run, sizes: dict[str, Any]) -> lab.MeasuredTables:
        options = {"memory_length": MAX_DISTANCE + 1, "num_steps": sizes["num_steps"], "samples": _REGRESSIONS}
        built = construct(run, options)
        networks = [*run.compare_with_untrained(), ("constructed", built)]
        rows: list[dict] = []
        curves: list[dict] = []
        for name, network in networks:
            found, right = _probes(network, run.dataset("probe"), sizes["prompts"], shuffled=name == "trained")
            rows += [{"network": name} | row for row in found]
            curves += [{"network": name} | row for row in _curves(right)]
        return {"probes": rows, "curves": curves}

    def drawn(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_layer_figure(tables), _distance_figure(tables)]


def gathering_layer(distance: int) -> int:
    """Return the first layer of the construction that holds the token `distance` steps back: ⌈log2(distance + 1)⌉.

    Source: [MultiTask] §4.2, proof of Theorem 1.
    """
    return math.ceil(math.log2(distance + 1))


def _probes(
    network: nn.Module, dataset: ProcessDataset, count: int, *, shuffled: bool
) -> tuple[list[dict], list[Curves]]:
    targets = [f"previous-{distance}" for distance in DISTANCES]
    found = ProbeData.read_each(network, dataset, targets, residual_layers(network), count)
    rows, right = [], []
    for distance, data in zip(DISTANCES, found.values(), strict=True):
        right.append(data.correct())
        answers = {"true": right[-1]} | ({"shuffled": data.correct(shuffle=True)} if shuffled else {})
        for labels, by_sample in answers.items():
            mean, low, high = bootstrap_means(by_sample)
            rows += [
                {
                    "distance": distance,
                    "labels": labels,
                    "layer": layer,
                    "accuracy": float(mean[layer]),
                    "low": float(low[layer]),
                    "high": float(high[layer]),
                    "chance": data.chance,
                    "samples": count,
                }
                for layer in range(len(mean))
            ]
    return rows, right


def _curves(right: list[Curves]) -> list[dict]:
    whole = [resampled_curves(by_sample) for by_sample in right]
    each = {
        "peak": [peak_layer(found) for found in whole],
        "onset": [onset_layer(found, above_first=True) for found in whole],
        "best accuracy": [cross_fitted(found, _best) for found in right],
        "rise": [cross_fitted(found, _rise) for found in right],
        "fall": [cross_fitted(found, _fall) for found in right],
    }
    return [
        {"distance": distance, "quantity": quantity, **with_interval(found[distance])}
        for quantity, found in each.items()
        for distance in DISTANCES
    ]


def _best(chosen: Curves, measured: Curves) -> Curves:
    return at_layer(measured, peak_layer(chosen))


def _rise(chosen: Curves, measured: Curves) -> Curves:
    return at_layer(measured, peak_layer(chosen)) - measured[:, 0]


def _fall(chosen: Curves, measured: Curves) -> Curves:
    return at_layer(measured, peak_layer(chosen)) - measured[:, -1]


# ---------------------------------------------------------------------------------------------------------------------
# Figures

_LOOKS: dict[str, tuple[str, lab.Role]] = {
    "trained": ("Trained", "model"),
    "untrained": ("Before training", "control"),
    "constructed": ("Theorem 1's network", "ceiling"),
}


def _layer_figure(tables: lab.Tables) -> lab.Figure:
    return lab.Figure(
        name="previous-tokens",
        title="Accuracy of probes for previous tokens, by layer",
        caption=(
            "Curves show the accuracy of linear probes for the observation k steps back, at positions 4 and later of the "
            "test sequence, on prompts that neither the model nor the probe was trained on. Layer 0 is the embedding, so "
            "it shows how well the current symbol predicts the earlier ones. The prompt contains the observation k steps "
            "back, so that a perfect probe has accuracy 1. The network of Theorem 1 has a window of five observations and a "
            "causal mask. Bands are 95 % intervals over seeds."
        ),
        panels=tuple(_layer_panel(tables["probes"].where(network=n), title) for n, (title, _) in _LOOKS.items()),
    )


def _layer_panel(rows: lab.Rows, title: str) -> lab.Panel:
    found = rows.where(labels="true")
    return lab.lines(
        title,
        *(lab.curve(found.where(distance=k), "layer", f"{k} back", y="accuracy") for k in DISTANCES),
        lab.curve(found, "layer", "most frequent symbol", "baseline", y="chance"),
        lab.curve(rows.where(labels="shuffled"), "layer", "shuffled labels", "control", y="accuracy"),
        x_label="layer",
        y_label="probe accuracy",
        y_min=0.0,
        y_max=1.02,
    )


def _distance_figure(tables: lab.Tables) -> lab.Figure:
    top = max(row["layer"] for row in tables["probes"].where(network="trained")) + 0.5

    def panel(quantity: str, title: str, y_label: str, *networks: str, **shown: Any) -> lab.Panel:
        series = []
        for network in networks or _LOOKS:
            name, role = _LOOKS[network]
            found = {k: _of(tables, network, quantity, k) for k in DISTANCES}
            ends = {k: (one.value, one.value) if one.low is None else (one.low, one.high) for k, one in found.items()}
            rows = lab.Rows({"k": k, "value": found[k].value, "low": ends[k][0], "high": ends[k][1]} for k in DISTANCES)
            series.append(
                lab.curve(rows, "k", name.replace("Trained", "trained").replace("Before", "before"), role, pool=False)
            )
        return lab.lines(title, *series, x_label="steps back", y_label=y_label, **shown)

    return lab.Figure(
        name="by-distance",
        title="Four properties of the accuracy of probes, by number of steps back",
        caption=(
            "For probes of the token k steps back, the panels show: the accuracy at the best layer; its fall from "
            "there to the last layer; the layer of the peak; and the first layer with 90 % of the rise from layer 0. "
            "In the first two panels, each half of the test prompts measures the accuracy at the best layer of the "
            "other half, so that noise alone causes no fall. Bands are 95 % intervals over seeds, at least as wide as "
            "the sampling noise of the prompts."
        ),
        panels=(
            panel("best accuracy", "Accuracy at the best layer", "probe accuracy", y_min=0.0, y_max=1.02),
            panel("fall", "Fall from the peak to the last layer", "decrease of accuracy"),
            panel("peak", "Layer of the peak", "layer", "trained", "untrained", y_min=0.0, y_max=top),
            panel("onset", "First layer with 90 % of the rise", "layer", y_min=0.0, y_max=top),
        ),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims

#: Smallest gain of a token's accuracy at its best layer by training.
_RAISED = 0.05


@lab.claim("multitask-nearer-tokens-clearer")
def nearer_clearer(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    tables = in_regime(tables, numbers)
    falls = {network: _slope(tables, network, "best accuracy", -1.0) for network in ("trained", "untrained")}
    text = (
        "At the best layer the accuracy for the tokens 1 to 4 steps back is "
        f"{_listed(tables, 'trained', 'best accuracy')}, before training {_listed(tables, 'untrained', 'best accuracy')}. "
        f"It falls by {falls['trained'].effect()} per step back, before training by {falls['untrained'].effect()}."
    )
    effect = (falls["trained"] - falls["untrained"]).effect(
        "decrease of accuracy per step back in time in the trained minus in the untrained network"
    )
    return lab.Measurement(effect, text, gates=(*gates(tables, numbers), *_raised(tables, EARLIER[:2], numbers)))


@lab.claim("multitask-tokens-rise-and-fall")
def rise_and_fall(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    tables = in_regime(tables, numbers)
    effects = {}
    for quantity in ("rise", "fall"):
        for k in EARLIER:
            own, before = (_rows(tables, network, quantity, k) for network in ("trained", "untrained"))
            effect = own.less(before, unit="change of the accuracy after training minus before training")
            if effect is not None:
                effects[f"{quantity} of {k} back"] = effect
    falls = ", ".join(_of(tables, "trained", "fall", k).short() for k in EARLIER)
    text = (
        "From layer 0 to the peak the accuracy for the tokens 1 to 4 steps back rises by "
        f"{_listed(tables, 'trained', 'rise')} (before training by {_listed(tables, 'untrained', 'rise')}), and from there "
        f"to the last layer it falls by {falls}."
    )
    wanted = [f"{quantity} of {k} back" for quantity in ("rise", "fall") for k in EARLIER]
    return lab.Measurement(
        effects, text, gates=(*gates(tables, numbers), *_raised(tables, EARLIER, numbers)), required=wanted
    )


@lab.claim("multitask-peak-moves-up")
def peak_moves_up(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    tables = in_regime(tables, numbers)
    peaks = {network: _slope(tables, network, "peak") for network in ("trained", "untrained")}
    text = (
        f"The accuracies for the tokens 1 to 4 steps back peak at layers {_listed(tables, 'trained', 'peak')} (means over "
        f"seeds). The peak moves up by {peaks['trained'].effect()} layers per step back, and before training by "
        f"{peaks['untrained'].effect()}. The layer with 90 % of the rise moves up by "
        f"{_slope(tables, 'trained', 'onset').effect()} layers per step back."
    )
    effect = (peaks["trained"] - peaks["untrained"]).effect(
        "layers per step back after training minus before training",
        resolution=lab.parameter(numbers, "one_layer", _ONE_LAYER),
    )
    return lab.Measurement(effect, text, gates=(*gates(tables, numbers), *_raised(tables, EARLIER, numbers)))


@lab.claim("multitask-construction-gathers")
def construction_gathers(tables: lab.Tables) -> lab.Measurement:
    rows = tables["curves"].where(network="constructed", quantity="onset", distance=list(DISTANCES))
    onsets = ", ".join(f"{_of(tables, 'constructed', 'onset', k).value:.2g}" for k in DISTANCES)
    falls = largest((_of(tables, "constructed", "fall", k) for k in DISTANCES), lambda found: found.value)
    text = (
        f"In the construction the token k steps back is available from layer {onsets} on (k = 0 to 4; means over "
        f"seeds); the theory states {', '.join(str(gathering_layer(k)) for k in DISTANCES)}. From the peak to the last "
        f"layer the accuracies fall by at most {falls.short()}, so the construction explains the rises, but no fall."
    )
    right = [row["value"] == gathering_layer(row["distance"]) for row in rows]
    return lab.Measurement(lab.Effect.share(right, "fraction of distances and seeds") if right else None, text)


@lab.claim("multitask-tokens-without-training")
def without_training(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    tables = in_regime(tables, numbers)
    best = {
        network: tables["curves"].where(network=network, quantity="best accuracy", distance=list(EARLIER))
        for network in ("trained", "untrained")
    }
    text = (
        "At the best layer the accuracy for the tokens 1 to 4 steps back is "
        f"{_listed(tables, 'untrained', 'best accuracy')} before training and "
        f"{_listed(tables, 'trained', 'best accuracy')} after it."
    )
    return lab.Measurement(
        best["trained"].less(best["untrained"], unit="accuracy at the best layer after training minus before training"),
        text,
    )


#: Change of a slope over the distances 1 to 4 if the layer of the farthest one changes by one.
_ONE_LAYER = 0.3


def _rows(tables: lab.Tables, network: str, quantity: str, distance: int) -> lab.Rows:
    return tables["curves"].where(network=network, quantity=quantity, distance=distance)


def _of(tables: lab.Tables, network: str, quantity: str, distance: int) -> lab.Effect:
    found = _rows(tables, network, quantity, distance).effect()
    assert found is not None
    return found


def _listed(tables: lab.Tables, network: str, quantity: str) -> str:
    return ", ".join(f"{_of(tables, network, quantity, k).value:.2f}" for k in EARLIER)


def _slope(
    tables: lab.Tables, network: str, quantity: str, sign: float = 1.0
) -> lab.PerSeed[lab.EstimateWithError | None]:
    centre = math.fsum(EARLIER) / len(EARLIER)
    weights = {k: sign * (k - centre) / math.fsum((j - centre) ** 2 for j in EARLIER) for k in EARLIER}
    columns = {k: _rows(tables, network, quantity, k).estimates() for k in EARLIER}
    found: lab.PerSeed[lab.EstimateWithError | None] = lab.PerSeed()
    for seed in columns[EARLIER[0]]:
        own = {k: one for k in EARLIER if (one := columns[k].get(seed)) is not None}
        value = math.fsum(weights[k] * one.value for k, one in own.items())
        error = math.hypot(*(weights[k] * one.error for k, one in own.items()))
        found[seed] = lab.EstimateWithError(value, error) if len(own) == len(EARLIER) else None
    return found


def _raised(tables: lab.Tables, distances: range, numbers: lab.Numbers = None) -> list[lab.Gate]:
    made = []
    for k in distances:
        own, before = (_rows(tables, network, "best accuracy", k) for network in ("trained", "untrained"))
        gain = own.less(before)
        if gain is not None:
            made.append(
                lab.Gate.learned(
                    gain,
                    lab.parameter(numbers, "raised", _RAISED),
                    f"the untrained model at identifying the token {k} steps back",
                )
            )
    return made
