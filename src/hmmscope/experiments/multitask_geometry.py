"""Belief geometry: does the residual stream of a trained model hold the exact belief states?"""

from typing import Any

import numpy as np

from hmmscope import registry
from hmmscope.analysis.activations import residual_layers
from hmmscope.analysis.geometry import (
    BELIEF,
    MIXED_BELIEF,
    PREDICTION,
    Readout,
    belief_targets,
    belief_times,
    ceiling_r2,
    read_off,
)
from hmmscope.analysis.layer_curves import Curves, with_interval
from hmmscope.analysis.probes import read_stream
from hmmscope.axes import Tensor
from hmmscope.evidence.figures import Figure
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Finding, Measured, Tables
from hmmscope.experiments.multitask_geometry_figures import figures, notes
from hmmscope.runs.pipeline import Run, untrained_twin

#: Sizes of process, layout, model and recipe, and of the measurement; the same for all three processes.
_SCALES: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {
        "mixture": {"num_components": 2},
        "layout": {"length": 6},
        "model": {"num_layers": 2, "num_heads": 2, "width": 16},
        "training": {"num_steps": 12, "batch_size": 8, "warmup_steps": 4, "evaluate_every": 6, "checkpoint_every": 12},
        "measurements": {"samples": 32, "points": 24},
    },
    "small": {
        "mixture": {"num_components": 8},
        "layout": {"length": 24},
        "model": {"num_layers": 3, "num_heads": 4, "width": 64},
        "training": {"num_steps": 600, "batch_size": 64, "learning_rate": 3e-3},
        "measurements": {"samples": 512, "points": 600},
    },
    "gpu": {
        "mixture": {"num_components": 16},
        "layout": {"length": 64},
        "model": {"num_layers": 4, "num_heads": 8, "width": 128},
        "training": {"num_steps": 5000, "batch_size": 256, "learning_rate": 1e-3, "precision": "bfloat16"},
        "measurements": {"samples": 2048, "points": 3000},
    },
    "paper": {
        "mixture": {"num_components": 64},
        "layout": {"length": 128},
        "model": {"num_layers": 8, "num_heads": 8, "width": 256},
        "training": {"num_steps": 20000, "batch_size": 256, "learning_rate": 5e-4, "precision": "bfloat16"},
        "measurements": {"samples": 4096, "points": 6000},
    },
}
PROCESSES = ("mess3", "mess3-mixture", "rrxor")


@registry.experiment("multitask-geometry")
class MultiTaskGeometry(Experiment):
    """See the module."""

    title = "Belief states in the residual stream"
    summary = (
        "A model that predicts the next observation needs no belief state, only a prediction. Here RoFormers are trained "
        "on Mess3, on a mixture of Mess3 processes with different numbers, and on random-random-XOR, and ridge regressions "
        "read the exact belief state of the forward filter from every layer, on samples that no regression was fitted to. "
        "Beside it stand the model before training, shuffled beliefs, and what an affine function of the exact prediction "
        "says about the belief."
    )
    intervals = SEED_INTERVALS
    num_seeds = NUM_SEEDS
    groups = {"geometry": ("geometry", "effects", "points")}

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

    def measurements(self, scale: str) -> dict[str, Any]:
        return dict(_SCALES[scale]["measurements"])

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        tables: Measured = {"geometry": [], "effects": [], "points": []}
        for process, run in runs.items():
            for name, rows in _measured(run, sizes["samples"], sizes["points"]).items():
                tables[name] += [{"process": process} | row for row in rows]
        return tables

    def figures(self, tables: Tables) -> list[Figure]:
        return figures(tables)

    def notes(self, tables: Tables) -> list[Finding]:
        return notes(tables)


def _measured(run: Run, num_samples: int, num_points: int) -> Measured:
    """The three tables of one run."""
    corpus = run.corpus("probe")
    times = belief_times(corpus)
    targets = belief_targets(corpus, times, num_samples)
    streams = {
        name: read_stream(model, corpus, times, residual_layers(model), num_samples)
        for name, model in {"trained": run.model, "untrained": untrained_twin(run)}.items()
    }
    tables: Measured = {"geometry": [], "effects": [], "points": []}
    of_trained: dict[str, Curves] = {}
    for target, values in targets.items():
        found = {name: read_off(stream, values, num_samples) for name, stream in streams.items()}
        found["shuffled"] = read_off(streams["trained"], values, num_samples, shuffle=True)
        law = read_off(targets[PREDICTION][None], values, num_samples).r2()[:, 0]
        ceiling = ceiling_r2(targets, target, num_samples)
        same = {"target": target, "ceiling": ceiling, "from_prediction": float(law[0]), "samples": num_samples}
        for source, readout in found.items():
            tables["geometry"] += [{"source": source} | row | same for row in _layers(readout)]
        best = {source: readout.r2()[:, readout.chosen] for source, readout in found.items()}
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
        if target == (MIXED_BELIEF if MIXED_BELIEF in targets else BELIEF) and values.shape[1] == 3:
            tables["points"] += _points(values, found, num_points)
    less = with_interval(of_trained[BELIEF] - of_trained[PREDICTION])
    tables["effects"].append({"target": BELIEF, "quantity": "belief - next observation", **less})
    return tables


def _layers(readout: Readout) -> list[dict]:
    draws = readout.r2()
    return [
        {"layer": layer, "r2": row["value"], "low": row["low"], "high": row["high"], "fitted": float(fitted)}
        for layer, fitted in enumerate(readout.fitted)
        for row in [with_interval(draws[:, layer])]
    ]


def _points(values: Tensor, found: dict[str, Readout], count: int) -> list[dict]:
    """Beliefs over three states at test examples, exact and as read off; probabilities to five digits."""
    read = {name: found[name].values[found[name].chosen] for name in ("trained", "untrained")}
    exact = values[-len(read["trained"]) :]
    kept = np.unique(np.linspace(0, len(exact) - 1, min(count, len(exact))).astype(int))
    sides = {"exact": exact[kept], **{name: part[kept] for name, part in read.items()}}
    return [{name: [round(float(x), 5) for x in part[i]] for name, part in sides.items()} for i in range(len(kept))]
