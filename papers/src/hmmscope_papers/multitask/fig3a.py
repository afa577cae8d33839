"""[MultiTask] Figure 3a: by which layer the HMM and its hidden state can be read."""

from typing import Any

import numpy as np
from torch import nn

from hmmscope import ProcessDataset, Run, lab, registry
from hmmscope.analysis import ProbeData, bootstrap_means, resampled_curves, residual_layers, with_interval
from hmmscope_papers.multitask.layer_profiles import Curves, onset_layer, peak_layer
from hmmscope_papers.multitask.training_setting import PoolFigure, counting_rows, gates_of_the_hmm, in_regime, spread


@registry.experiment("multitask-fig3a")
class MultiTaskFig3a(PoolFigure):
    """Probes by layer for the HMM and its hidden state, compared with the exact posterior and symbol counts."""

    title = "Accuracy of probes for the HMM and its hidden state, by layer"
    in_paper = "[MultiTask] §2.2", "Transformers gradually recognize the task identity across layers."
    summary = (
        "A RoFormer is trained on prompts from a pool of hidden Markov models; linear probes read the residual stream "
        "after every layer. One probe identifies the HMM, among a subset of the pool, at the last observation of a prompt; "
        "for each of several HMMs another probe identifies its hidden state. They are compared with the exact posterior, "
        "the untrained model, shuffled labels, and probes that read only the frequencies of symbols in the prompt."
    )
    groups = {"probes": ("probes", "frequencies", "onsets"), "setting": ("setting",)}
    of_all = ("probes",)
    #: Components for the component probe and prompts of each; components with a state probe and prompts of each.
    #: Three quarters of the prompts train a probe.
    sizes = {
        "smoke": {"components": 2, "prompts": 24, "state_components": 2, "state_prompts": 32},
        "small": {"components": 16, "prompts": 64, "state_components": 4, "state_prompts": 512},
        "medium": {"components": 16, "prompts": 128, "state_components": 4, "state_prompts": 512},
        "gpu": {"components": 32, "prompts": 64, "state_components": 8, "state_prompts": 2048},
        "paper": {"components": 64, "prompts": 48, "state_components": 8, "state_prompts": 4096},
    }

    def look(self, run: Run, sizes: dict[str, Any]) -> lab.MeasuredTables:
        datasets, few = {}, spread(run.process, sizes["components"])
        datasets["component"] = [(_corpus(run, few), len(few) * sizes["prompts"])]
        single = [few[m] for m in range(min(sizes["state_components"], len(few)))]
        datasets["state"] = [(_corpus(run, hmm), sizes["state_prompts"]) for hmm in single]
        rows: list[dict] = []
        curves: dict[tuple[str, str], list[Curves]] = {}
        for name, model in run.compare_with_untrained():
            for target, wanted in datasets.items():
                found = [_probed(model, dataset, target, count) for dataset, count in wanted]
                for place, data in enumerate(found):
                    rows += _rows({"model": name, "target": target, "probe": place}, data, shuffled=name == "trained")
                right = [resampled_curves(data.correct(), seed=i) for i, data in enumerate(found)]
                curves.setdefault((name, target), []).append(np.mean(right, 0))
        return {"probes": rows, "frequencies": counting_rows(*datasets["component"][0]), "onsets": _onsets(curves)}

    def drawn(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_probe_figure(tables), _order_figure(tables)]


def _corpus(run: Run, process: Any) -> ProcessDataset:
    return ProcessDataset(process, layout=run.config.layout, seed=run.config.seed, stream="probe")


def _probed(model: nn.Module, dataset: ProcessDataset, target: str, count: int) -> ProbeData:
    return ProbeData.read(model, dataset, target, residual_layers(model), count)


def _rows(names: dict[str, Any], data: ProbeData, *, shuffled: bool) -> list[dict]:
    rows = []
    for labels in ("true", "shuffled") if shuffled else ("true",):
        mean, low, high = bootstrap_means(data.correct(shuffle=labels == "shuffled"))
        rows += [
            {
                **names,
                "labels": labels,
                "layer": layer,
                "accuracy": float(mean[layer]),
                "low": float(low[layer]),
                "high": float(high[layer]),
                "chance": data.chance,
                "ceiling": data.ceiling,
                "samples": int(data.samples[-1]) + 1,
            }
            for layer in range(len(mean))
        ]
    return rows


def _onsets(curves: dict[tuple[str, str], list[Curves]]) -> list[dict]:
    rows = []

    def add(model: str, target: str, quantity: str, draws: Curves) -> None:
        rows.append({"model": model, "target": target, "quantity": quantity, **with_interval(draws)})

    places = {
        "onset": onset_layer,
        "onset above layer 0": lambda found: onset_layer(found, above_first=True),
        "peak": peak_layer,
    }
    for model in ("trained", "untrained"):
        for component, state in zip(curves[model, "component"], curves[model, "state"], strict=True):
            for quantity, place in places.items():
                add(model, "component", quantity, place(component))
                add(model, "state", quantity, place(state))
                add(model, "component - state", quantity, place(component) - place(state))
    for target in ("component", "state"):
        found, before = curves["trained", target][0], np.mean(curves["untrained", target], 0)
        add("trained", target, "rise from layer 1 to the last", found[:, -1] - found[:, 1])
        add("trained", target, "rise from layer 0 to layer 1", found[:, 1] - found[:, 0])
        add("trained - untrained", target, "accuracy at the last layer", found[:, -1] - before[:, -1])
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Figures

_TITLES = {"component": "Which HMM", "state": "Hidden state within an HMM"}
_SHORT: dict[str, tuple[str, lab.Role]] = {
    "component": ("HMM of the prompt", "model"),
    "state": ("hidden state", "other"),
}
_COUNTED = ("symbols", "symbols and pairs")
#: Definitions of the onset layer, and their labels under bars.
_ARRIVALS = {"onset": "90 %", "onset above layer 0": "90 % of rise", "peak": "peak"}


def _probe_figure(tables: lab.Tables) -> lab.Figure:
    return lab.Figure(
        name="probes",
        title="Accuracy of probes for the HMM and its hidden state, by layer",
        caption=(
            "Curves show the accuracy of linear probes (multinomial logistic regression on the residual stream; layer 0 is "
            "the embedding) on prompts that neither the model nor the probe was trained on. Left: probes for the HMM among "
            "a subset of the pool, at the last observation of the prompt; some probes read only the frequencies of "
            "symbols, or of pairs of neighbours, in the prompt. Right: probes for the hidden state, one for each of "
            "several HMMs, at positions 4 and later of the test sequence; values are averaged over HMMs. The upper bound "
            "is the accuracy of the exact posterior, given the subset (left) or the HMM (right). Bands are 95 % intervals "
            "over seeds."
        ),
        panels=tuple(_probe_panel(tables, target, title) for target, title in _TITLES.items()),
    )


def _probe_panel(tables: lab.Tables, target: str, title: str) -> lab.Panel:
    rows = tables["probes"].where(target=target)
    trained = rows.where(model="trained", labels="true")
    bare = trained.with_columns(low=lambda row: None)  # their interval is that of the accuracy
    counted = []
    if target == "component":
        for name in _COUNTED:
            found = tables["frequencies"].where(frequencies=name).pool("frequencies", value="accuracy")
            across = lab.Rows(row | {"layer": layer} for row in found for layer in trained.values("layer"))
            counted.append(lab.curve(across, "layer", f"frequencies of {name}", "baseline", y="accuracy", pool=False))
    return lab.lines(
        title,
        lab.curve(trained, "layer", "trained", "model", y="accuracy"),
        lab.curve(bare, "layer", "exact posterior", "ceiling", y="ceiling"),
        lab.curve(rows.where(model="untrained"), "layer", "untrained model", "control", y="accuracy"),
        lab.curve(rows.where(model="trained", labels="shuffled"), "layer", "shuffled labels", "control", y="accuracy"),
        lab.curve(bare, "layer", "most frequent class", "baseline", y="chance"),
        *counted,
        x_label="layer",
        y_label="probe accuracy",
        y_min=0,
        y_max=1.02,
    )


def _order_figure(tables: lab.Tables) -> lab.Figure:
    rows = tables["probes"].where(labels="true")
    layers = sorted(rows.values("layer"))
    panels = []
    for model, title in {"trained": "Trained", "untrained": "Before training"}.items():
        shares = [_of_maximum(rows.where(model=model, target=target), *look) for target, look in _SHORT.items()]
        shown: dict[str, Any] = {"x_label": "layer", "y_label": "fraction of maximum", "y_min": 0.0, "y_max": 1.05}
        panels.append(lab.lines(title, *shares, lab.level(0.9, layers, "90 %"), **shown))
    arrivals = [
        lab.Series.of([_onset(tables, target, name) for name in _ARRIVALS], *look) for target, look in _SHORT.items()
    ]
    places = lab.bars(
        "Layers, trained",
        *arrivals,
        categories=_ARRIVALS.values(),
        y_label="layer",
        y_min=0.0,
        y_max=layers[-1] + 0.5,
    )
    return lab.Figure(
        name="order",
        title="Order in which probes identify the hidden state and the HMM",
        caption=(
            "Left and middle: accuracy of each probe, divided by its maximum over layers. Right: the first layer where "
            "the accuracy reaches 90 % of its maximum, the first layer with 90 % of its rise from layer 0 to the "
            "maximum, and the layer of the maximum. Bands and error bars are 95 % intervals over seeds; error bars are "
            "at least as wide as the sampling noise of the prompts."
        ),
        panels=(*panels, places),
    )


def _of_maximum(rows: lab.Rows, name: str, role: lab.Role) -> lab.Series | None:
    def shares(own: lab.Rows) -> list[dict[str, Any]]:
        means = own.pool("layer", value="accuracy")
        top = max(row["accuracy"] for row in means)
        return [{"layer": row["layer"], "value": row["accuracy"] / top} for row in means]

    by_seed = rows.per_seed(shares)
    return lab.curve(
        lab.Rows({"seed": seed} | row for seed, own in by_seed.items() for row in own), "layer", name, role
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims

#: Smallest gain of accuracy at the last layer by training.
_RAISED = 0.1


@lab.claim("multitask-state-before-task")
def state_before_task(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    tables = in_regime(tables, numbers)
    rows = tables["onsets"].where(model="trained", target="component - state")
    found = {
        name: rows.where(quantity=quantity).effect(unit="layers", resolution=1.0)
        for name, quantity in {"90 % of the maximum": "onset", "90 % of the rise": "onset above layer 0"}.items()
    }
    text = (
        f"Probes reach 90 % of their maximum accuracy at layer {_onset(tables, 'state').value:.2g} for the hidden state, "
        f"and at layer {_onset(tables, 'component').value:.2g} for the HMM (means over seeds), which is "
        f"{rows.where(quantity='onset').effect()} layers later. Probes for the HMM reach 90 % of the rise above layer 0 "
        f"{rows.where(quantity='onset above layer 0').effect()} layers later than probes for the state, and their peak "
        f"{rows.where(quantity='peak').effect()} layers later."
    )
    effects = {name: effect for name, effect in found.items() if effect is not None}
    return lab.Measurement(
        effects, text, gates=(*gates_of_the_hmm(tables, numbers), *_raised(tables, numbers)), required=tuple(found)
    )


@lab.claim("multitask-task-gradual")
def task_gradual(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    tables = in_regime(tables, numbers)
    rows = tables["probes"].where(target="component", labels="true")
    last = max(rows.values("layer"))

    def rise(model: str) -> lab.PerSeed[Any]:
        own = rows.where(model=model)
        return own.where(layer=last).estimates("accuracy") - own.where(layer=1).estimates("accuracy")

    trained, before = rise("trained"), rise("untrained")
    text = (
        f"From layer 1 to layer {last} the probe's accuracy for the HMM rises by {trained.effect()}, and before training "
        f"by {before.effect()}."
    )
    return lab.Measurement((trained - before).effect("accuracy"), text, gates=gates_of_the_hmm(tables, numbers))


@lab.claim("multitask-task-without-training")
def without_learning(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    tables = in_regime(tables, numbers)
    rows = tables["probes"].where(target="component", labels="true")
    best = {
        model: max(row["accuracy"] for row in rows.where(model=model).pool("layer", value="accuracy"))
        for model in ("trained", "untrained")
    }
    counted = {name: tables["frequencies"].where(frequencies=name).effect("accuracy") for name in _COUNTED}
    gain = _gain(tables, "component")
    text = (
        f"The best accuracy of a probe for the HMM is {best['untrained']:.2f} in the untrained model, "
        f"{counted['symbols']} from the frequencies of symbols alone ({counted['symbols and pairs']} with those of "
        f"pairs), and {best['trained']:.2f} in the trained model. Training adds {gain.short()} at the last layer."
    )
    return lab.Measurement(gain, text)


def _onset(tables: lab.Tables, target: str, quantity: str = "onset") -> lab.Effect:
    found = tables["onsets"].where(model="trained", target=target, quantity=quantity).effect()
    assert found is not None
    return found


def _gain(tables: lab.Tables, target: str) -> lab.Effect:
    rows = tables["onsets"].where(model="trained - untrained", target=target, quantity="accuracy at the last layer")
    gain = rows.effect(unit="in accuracy at the last layer")
    assert gain is not None
    return gain


def _raised(tables: lab.Tables, numbers: lab.Numbers = None) -> list[lab.Gate]:
    return [
        lab.Gate.learned(
            _gain(tables, target),
            lab.parameter(numbers, "raised", _RAISED),
            f"the untrained model at identifying the {_SHORT[target][0]}",
        )
        for target in _SHORT
    ]
