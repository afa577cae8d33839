"""Belief geometry: does the residual stream of a trained model represent the exact belief states?"""

from typing import Any

import numpy as np
from torch import Tensor

from hmmscope import Run, lab, registry
from hmmscope.analysis import ExactBeliefs, with_interval
from hmmscope.ties import smallest
from hmmscope_papers.multitask.layer_profiles import Curves

#: Stored name of the quantity that training adds.
BEYOND = "share of what untrained twins leave"
#: Sizes of process, layout, model and recipe for all three processes.
_SCALES: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {
        "mixture": {"num_components": 2},
        "layout": {"length": 6},
        "model": {"num_layers": 2, "num_heads": 2, "width": 16},
        "training": {"num_steps": 12, "batch_size": 8, "warmup_steps": 4, "evaluate_every": 6, "checkpoint_every": 12},
    },
    "small": {
        "mixture": {"num_components": 8},
        "layout": {"length": 24},
        "model": {"num_layers": 3, "num_heads": 4, "width": 64},
        "training": {"num_steps": 600, "batch_size": 64, "learning_rate": 3e-3},
    },
    "gpu": {
        "mixture": {"num_components": 16},
        "layout": {"length": 64},
        "model": {"num_layers": 4, "num_heads": 8, "width": 128},
        "training": {"num_steps": 5000, "batch_size": 256, "learning_rate": 1e-3, "precision": "bfloat16"},
    },
    "paper": {
        "mixture": {"num_components": 64},
        "layout": {"length": 128},
        "model": {"num_layers": 8, "num_heads": 8, "width": 256},
        "training": {"num_steps": 20000, "batch_size": 256, "learning_rate": 5e-4, "precision": "bfloat16"},
    },
}
PROCESSES = ("mess3", "mess3-mixture", "rrxor")


#: Regression targets.
BELIEF, MIXED_BELIEF, PREDICTION = "belief", "belief, component unknown", "next observation"


@registry.experiment("multitask-geometry")
class MultiTaskGeometry(lab.Experiment):
    """Regressions from every layer to the exact beliefs, on three processes."""

    title = "Belief states decoded from the residual stream"
    summary = (
        "A model that predicts the next observation needs only a prediction, not a belief state. RoFormers are trained on "
        "Mess3, on a mixture of Mess3 processes with different parameters, and on random-random-XOR. Ridge regressions "
        "read the exact belief state (filtered posterior) from every layer, on held-out samples. They are compared with "
        "the untrained model, shuffled beliefs, and an affine function of the exact prediction."
    )
    num_seeds = lab.Experiment.NUM_SEEDS
    groups = {"geometry": ("geometry", "effects", "points")}
    sizes = {
        "smoke": {"samples": 32, "points": 24},
        "small": {"samples": 512, "points": 600},
        "gpu": {"samples": 2048, "points": 3000},
        "paper": {"samples": 4096, "points": 6000},
    }

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        numbers = _SCALES[scale]
        return {
            name: {
                "process": {"name": name, **(numbers["mixture"] if name == "mess3-mixture" else {})},
                "layout": {"name": "sequences", "placeholder": True, **numbers["layout"]},
                "model": {"name": "roformer", **numbers["model"]},
                "training": dict(numbers["training"]),
            }
            for name in PROCESSES
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        tables: lab.MeasuredTables = {"geometry": [], "effects": [], "points": []}
        for process, run in runs.items():
            for name, rows in _measured(run, sizes["samples"], sizes["points"]).items():
                tables[name] += [{"process": process} | row for row in rows]
        return tables

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_layer_figure(tables), *(_triangle_figure(tables, process) for process in _TRIANGLES)]

    def without_training(self, tables: lab.Tables) -> lab.Tables | None:
        rows = tables["effects"]
        gains = {"trained - controls", "trained - prediction and untrained", BEYOND}
        kept = lab.Rows(row for row in rows if row["quantity"] not in {"trained", *gains})
        taken = rows.where(quantity="untrained").with_columns(quantity=lambda row: "trained")
        nothing = rows.where(quantity=gains).with_columns(
            value=lambda row: 0.0,
            low=lambda row: None if row["low"] is None else row["low"] - row["value"],
            high=lambda row: None if row["high"] is None else row["high"] - row["value"],
        )
        return {**tables, "effects": lab.Rows([*kept, *taken, *nothing])}


def _measured(run: Run, num_samples: int, num_points: int) -> lab.MeasuredTables:
    exact = ExactBeliefs.of(run.dataset("probe"), num_samples)
    stream, *of_twins = (exact.stream(model) for _, model in run.compare_with_untrained())
    tables: lab.MeasuredTables = {"geometry": [], "effects": [], "points": []}
    of_trained: dict[str, Curves] = {}
    for target, values in exact.values.items():
        twins = [exact.read(one, target) for one in of_twins]
        found = {"trained": exact.read(stream, target), "untrained": twins[0]}
        found["shuffled"] = exact.read(stream, target, shuffle=True)
        law, ceiling = exact.from_prediction(target), exact.ceiling(target)
        same = {"target": target, "ceiling": ceiling, "from_prediction": float(law[0]), "samples": num_samples}
        for source, readout in (*found.items(), *(("untrained", twin) for twin in twins[1:])):
            tables["geometry"] += [
                {"source": source, "layer": layer, "r2": row["value"]}
                | {key: row[key] for key in ("low", "high", "fitted")}
                | same
                for layer, row in enumerate(readout.by_layer())
            ]
        best = {source: readout.r2()[:, readout.chosen] for source, readout in found.items()}
        best["untrained"] = np.mean([twin.r2()[:, twin.chosen] for twin in twins], 0)
        of_trained[target] = best["trained"]
        effects = {
            **best,
            "ceiling": np.full_like(law, ceiling),
            "from the prediction": law,
            "layer": np.full_like(law, found["trained"].chosen),
            "trained - controls": best["trained"] - np.maximum(best["untrained"], best["shuffled"]),
            "trained - prediction and untrained": best["trained"] - np.maximum(law, best["untrained"]),
        }
        tables["effects"] += [{"target": target, "quantity": k, **with_interval(v)} for k, v in effects.items()]
        share = found["trained"].beyond(twins)
        beyond = {"value": share.value, "low": share.low, "high": share.high}
        tables["effects"].append({"target": target, "quantity": BEYOND, **beyond})
        if target == (MIXED_BELIEF if MIXED_BELIEF in exact.values else BELIEF) and values.shape[1] == 3:
            read = {name: found[name].values[found[name].chosen] for name in ("trained", "untrained")}
            tables["points"] += _points(values, read, num_points)
    less = with_interval(of_trained[BELIEF] - of_trained[PREDICTION])
    tables["effects"].append({"target": BELIEF, "quantity": "belief - next observation", **less})
    return tables


def _points(values: Tensor, read: dict[str, Tensor], count: int) -> list[dict]:
    exact = values[-len(read["trained"]) :]
    kept = np.unique(np.linspace(0, len(exact) - 1, min(count, len(exact))).astype(int))
    sides = {"exact": exact[kept], **{name: part[kept] for name, part in read.items()}}
    return [{name: [round(float(x), 5) for x in part[i]] for name, part in sides.items()} for i in range(len(kept))]


# ---------------------------------------------------------------------------------------------------------------------
# Figures

#: Panels by process and target.
_PANELS = {
    ("mess3", BELIEF): "Mess3: belief",
    ("mess3-mixture", BELIEF): "Mixture: belief, component known",
    ("mess3-mixture", MIXED_BELIEF): "Mixture: belief, component unknown",
    ("rrxor", BELIEF): "RRXOR: belief",
}
_TRIANGLES = {
    "mess3": ("Mess3", "states of Mess3"),
    "mess3-mixture": ("a mixture of Mess3", "states (the component is unknown)"),
}


def _layer_figure(tables: lab.Tables) -> lab.Figure:
    def panel(process: str, target: str, title: str) -> lab.Panel:
        rows = tables["geometry"].where(process=process)
        about = rows.where(target=target)
        trained = about.where(source="trained")
        law = rows.where(target=PREDICTION, source="trained") if process == "rrxor" else lab.Rows([])
        return lab.lines(
            title,
            lab.curve(trained, "layer", "trained", "model", y="r2"),
            lab.curve(trained, "layer", "Bayes-optimal observer (upper bound)", "ceiling", y="ceiling", bands=False),
            lab.curve(about.where(source="untrained"), "layer", "untrained model", "control", y="r2"),
            lab.curve(trained, "layer", "affine in the exact prediction", "baseline", y="from_prediction", bands=False),
            lab.curve(law, "layer", "next-observation distribution, trained", "other", y="r2", bands=False),
            x_label="layer",
            y_label="held-out R²",
            y_min=0.0,
            y_max=1.02,
        )

    return lab.Figure(
        name="layers",
        title="Belief decoded by an affine map from each layer",
        caption=(
            "Curves show the held-out R² of ridge regressions from the residual stream to the exact belief state after "
            "every observation; layer 0 is the embedding. The Bayes-optimal observer's R² is an upper bound, below "
            "one for the belief given the component, which the observer does not know. The baseline is an affine "
            "function of the exact distribution of the next observation. In Mess3 this distribution and the belief are "
            "affine functions of each other, so that they cannot be distinguished; in RRXOR they are not, and the R² "
            "for the distribution itself is shown too. The control is the untrained model; a map fitted to shuffled "
            "beliefs is in the table. Bands are 95 % intervals over seeds."
        ),
        panels=tuple(panel(process, target, title) for (process, target), title in _PANELS.items()),
    )


def _triangle_figure(tables: lab.Tables, process: str) -> lab.Figure:
    rows = tables["points"].where(process=process)
    rows = rows.where(seed=rows[0]["seed"])
    exact = [row["exact"] for row in rows]
    name, about = _TRIANGLES[process]
    titles = {
        "exact": "Exact",
        "trained": "Decoded from the trained model",
        "untrained": "Decoded from the untrained model",
    }

    return lab.Figure(
        name=f"simplex-{process}",
        title=f"Belief states of {name}",
        caption=(
            f"Points are beliefs over the three {about}, in the triangle whose corners mean certainty. Each point is "
            "one prefix of a held-out sample of the first seed, coloured by its exact belief in all panels. Left: "
            "exact beliefs of the forward filter. Middle and right: beliefs decoded by an affine map, at the layer "
            "where its fit to the training samples is best; the map is not constrained to the triangle."
        ),
        panels=tuple(
            lab.BeliefPlane.triangle(title, [row[side] for row in rows], exact) for side, title in titles.items()
        ),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Questions: [MultiTask] does not study beliefs in the residual stream; Shai et al. (2024) do, on other models

_SOURCE = "ours, after Shai et al. (2024), abstract"
#: Names of processes in texts.
NAMES = {"mess3": "Mess3", "mess3-mixture": "the mixture of Mess3", "rrxor": "RRXOR"}


@lab.claim("multitask-belief-linear")
def belief_linear(tables: lab.Tables) -> lab.Measurement:
    trained, gains = (
        of_beliefs(tables, "trained"),
        of_beliefs(tables, "trained - controls", "R² above the better control"),
    )
    before, ceiling = of_beliefs(tables, "untrained"), of_beliefs(tables, "ceiling")
    beyond, twins = of_beliefs(tables, BEYOND), BEYOND in tables["effects"].values("quantity")

    def added(process: str) -> str:
        if not twins:
            return ""
        found = beyond.get(process)
        return (
            "; the effect of training is not identifiable"
            if found is None
            else f", {found.short()} of the variance that untrained controls leave unexplained"
        )

    each = "; ".join(
        f"{NAMES[process]} {found.value:.3f} ({before[process].value:.3f} before training, upper bound "
        f"{ceiling[process].value:.3f}), {gains[process].short()} above the better control{added(process)}"
        for process, found in trained.items()
    )
    least = smallest(gains, lambda process: gains[process].value)
    return lab.Measurement(
        {NAMES[least]: gains[least]}, f"R² on held-out samples: {each}.", gates=(lab.Gate.flat(tables),)
    )


def of_beliefs(tables: lab.Tables, quantity: str, unit: str = "", target: str = BELIEF) -> dict[str, lab.Effect]:
    rows = tables["effects"].where(target=target, quantity=quantity)
    found = {process: own.effect(unit=unit) for process, own in rows.by("process").items()}
    return {process: effect for process, effect in found.items() if effect is not None}
