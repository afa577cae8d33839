"""The whole way in minutes: a mixture of HMMs, a small RoFormer, the exact optimum, and a look inside."""

from dataclasses import replace
from typing import Any

import numpy as np

from hmmscope import registry
from hmmscope.analysis.curves import Score, evaluate
from hmmscope.analysis.intervals import bootstrap_means, bootstrap_ratio
from hmmscope.analysis.probes import MAX_DISTANCE, probe
from hmmscope.corpora.corpus import Corpus
from hmmscope.evidence.figures import Figure
from hmmscope.experiments.experiment import Experiment, Finding, Measured, Tables
from hmmscope.experiments.panels import (
    attention_figure,
    distance_figure,
    in_context_figure,
    probe_figure,
    probe_rows,
    shuffle_figure,
    training_figure,
)
from hmmscope.processes.mixture import Mixture
from hmmscope.runs.pipeline import Run, untrained_twin
from hmmscope.storage import rundir

#: Numbers of each scale: process, layout, model, training.
SCALES: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {
        "process": {"num_components": 4, "num_states": 4, "num_symbols": 4},
        "layout": {"num_demonstrations": 3, "demonstration_length": 6, "test_length": 6},
        "model": {"num_layers": 2, "num_heads": 2, "width": 16},
        "training": {"num_steps": 30, "batch_size": 8, "warmup_steps": 5, "evaluate_every": 10, "checkpoint_every": 15},
        "measurements": {"samples": 32, "probe_samples": 64, "probe_components": 2, "shuffle_samples": 8},
    },
    "small": {
        "process": {"num_components": 40, "num_states": 8, "num_symbols": 8},
        "layout": {"num_demonstrations": 15, "demonstration_length": 6, "test_length": 6},
        "model": {"num_layers": 4, "num_heads": 4, "width": 96},
        "training": {"num_steps": 1200, "learning_rate": 3e-3, "num_threads": 2},
        "measurements": {"samples": 512, "probe_samples": 512, "probe_components": 16, "shuffle_samples": 64},
    },
    "gpu": {
        "process": {"num_components": 256, "num_states": 32, "num_symbols": 8},
        "layout": {"num_demonstrations": 15, "demonstration_length": 8, "test_length": 8},
        "model": {"num_layers": 8, "num_heads": 8, "width": 256},
        "training": {"num_steps": 6000, "batch_size": 128, "learning_rate": 1e-3},
        "measurements": {"samples": 1024, "probe_samples": 2048, "probe_components": 32, "shuffle_samples": 128},
    },
    "paper": {
        "process": {"num_components": 8192, "num_states": 128, "num_symbols": 16},
        "layout": {"num_demonstrations": 15, "demonstration_length": 16, "test_length": 16},
        "model": {"num_layers": 16, "num_heads": 16, "width": 1024},
        "training": {"num_steps": 4096, "batch_size": 32, "learning_rate": 3e-4, "warmup_steps": 200},
        "measurements": {"samples": 1024, "probe_samples": 2048, "probe_components": 64, "shuffle_samples": 64},
    },
}
CONCENTRATION = {"smoke": 0.1, "small": 0.1, "gpu": 0.03, "paper": 0.01}


@registry.experiment("quickstart")
class Quickstart(Experiment):
    """See the module."""

    title = "A RoFormer learns a mixture of hidden Markov models"
    summary = (
        "A decoder is trained from scratch on prompts: demonstrations from one hidden Markov model of a pool, then a test "
        "sequence of the same one. Which model of the pool it is, and its hidden states, are never shown. Everything that "
        "the decoder predicts stands beside the exact Bayes-optimal answer."
    )
    groups = {
        "predictions": ("in-context", "last-sequence", "gap"),
        "unseen": ("unseen",),
        "training": ("training",),
        "probes": ("probes",),
        "shuffle": ("shuffle",),
        "attention": ("attention",),
    }

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        numbers = SCALES[scale]
        concentration = CONCENTRATION[scale]
        process = {"transition_concentration": concentration, "emission_concentration": concentration}
        return {
            "model": {
                "process": {"name": "random-mixture", **process, **numbers["process"]},
                "layout": {"name": "prompts", **numbers["layout"]},
                "model": {"name": "roformer", **numbers["model"]},
                "training": dict(numbers["training"]),
            }
        }

    def measurements(self, scale: str) -> dict[str, Any]:
        return dict(SCALES[scale]["measurements"])

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        run = runs["model"]
        match group:
            case "predictions":
                score = evaluate(run.model, run.corpus(), num_samples=sizes["samples"])
                last = score.demonstrations == score.demonstrations.max()
                return {
                    "in-context": score.rows("demonstrations"),
                    "last-sequence": score.rows("positions", last),
                    "gap": _gap(score),
                }
            case "unseen":
                return {"unseen": _unseen(run, sizes)}
            case "training":
                return {"training": _training_curve(run)}
            case "probes":
                return {"probes": _probes(run, sizes)}
        instrument = registry.lookup("instrument", group)
        models = {"trained": run.model, "untrained": untrained_twin(run)}
        rows = [
            {"model": label} | row
            for label, model in models.items()
            for row in instrument(model, run.corpus("probe"), num_samples=sizes["shuffle_samples"])
        ]
        return {group: rows}

    def figures(self, tables: Tables) -> list[Figure]:
        return [
            in_context_figure(tables),
            probe_figure(tables["probes"]),
            distance_figure(tables["probes"]),
            shuffle_figure(tables["shuffle"]),
            attention_figure(tables["attention"]),
            training_figure(tables["training"]),
        ]

    def findings(self, tables: Tables) -> list[Finding]:
        return [_learning_finding(tables["gap"]), _gap_finding(tables["gap"]), _probe_finding(tables["probes"])]


def _unseen(run: Run, sizes: dict[str, Any]) -> list[dict]:
    """The same measurement on components that were never trained on, from the same prior."""
    spec = run.config.process
    held_out = replace(spec, first_component=spec.first_component + spec.num_components)
    corpus = Corpus(held_out.build(), layout=run.config.layout, seed=run.config.seed, stream="evaluate")
    rows = evaluate(run.model, corpus, num_samples=sizes["samples"]).rows("demonstrations")
    return [row for row in rows if row["predictor"] in ("model", "known-component", "order-1")]


def _training_curve(run: Run) -> list[dict]:
    records = rundir.read_journal(run.path / "metrics.jsonl")
    assert run.summary is not None
    floor = {"training_floor": run.summary["training_floor"]}
    return [
        {key: record[key] for key in ("step", "loss", "evaluation_loss") if key in record} | floor for record in records
    ]


def _gap(score: Score) -> list[dict]:
    """What the findings rest on, each with its interval over samples."""
    first, last = score.demonstrations == 0, score.demonstrations == score.demonstrations.max()
    accuracy = {name: score.measures[name]["accuracy"] for name in ("model", "optimum")}
    loss = {name: score.measures[name]["loss"][:, last].mean(1) for name in ("model", "optimum", "order-1")}
    rows = []
    for name, values in accuracy.items():
        rise = values[:, last].mean(1) - values[:, first].mean(1)
        rows.append(_interval_row(f"{name}: rise in accuracy", rise))
        rows.append(_interval_row(f"{name}: first accuracy", values[:, first].mean(1)))
        rows.append(_interval_row(f"{name}: last accuracy", values[:, last].mean(1)))
    rows += [_interval_row(f"{name}: last loss", values) for name, values in loss.items()]
    closed = np.stack([loss["order-1"] - loss["model"], loss["order-1"] - loss["optimum"]], 1)
    rows.append(_ratio_row("share of the gap closed", closed))
    return rows


def _interval_row(quantity: str, values: np.ndarray) -> dict:
    mean, low, high = (float(x) for x in bootstrap_means(values))
    return {"quantity": quantity, "value": mean, "low": low, "high": high, "samples": len(values)}


def _ratio_row(quantity: str, pairs: np.ndarray) -> dict:
    """Ratio of two means over samples (sample, 2); the interval resamples the pairs."""
    value, low, high = bootstrap_ratio(pairs[:, 0], pairs[:, 1])
    return {"quantity": quantity, "value": value, "low": low, "high": high, "samples": len(pairs)}


def _probes(run: Run, sizes: dict[str, Any]) -> list[dict]:
    process, layout, seed = run.process, run.config.layout, run.config.seed
    assert isinstance(process, Mixture)
    few = process.first(min(sizes["probe_components"], len(process)))
    rows = []
    for label, model in {"trained": run.model, "untrained": untrained_twin(run)}.items():
        wanted = [("component", Corpus(few, layout=layout, seed=seed, stream="probe"))]
        wanted += [("state", Corpus(process[0], layout=layout, seed=seed, stream="probe"))]
        wanted += [(f"previous-{k}", run.corpus("probe")) for k in range(MAX_DISTANCE + 1)]
        for target, corpus in wanted:
            found = probe(
                model, corpus, target=target, num_samples=sizes["probe_samples"], shuffled_labels=label == "trained"
            )
            rows += [{"model": label} | row for row in found]
    return rows


def _learning_finding(rows: list[dict]) -> Finding:
    named = {row["quantity"]: row for row in rows}
    rise = named["model: rise in accuracy"]
    verdict = "reproduced" if rise["low"] > 0 else "not reproduced" if rise["high"] < 0 else "inconclusive"
    first, last = named["model: first accuracy"]["value"], named["model: last accuracy"]["value"]
    best = named["optimum: last accuracy"]["value"]
    text = (
        f"Accuracy goes from {first:.3f} without demonstrations to {last:.3f} after the last one; "
        f"the Bayes optimum ends at {best:.3f}."
    )
    return Finding(
        title="It learns in context",
        text=text,
        verdict=verdict,  # type: ignore[arg-type]
        unit="rise in accuracy",
        **{side: rise[side] for side in ("value", "low", "high")},
    )


def _gap_finding(rows: list[dict]) -> Finding:
    named = {row["quantity"]: row for row in rows}
    gap = named["share of the gap closed"]
    losses = {name: named[f"{name}: last loss"]["value"] for name in ("order-1", "model", "optimum")}
    enough = "more than half" if gap["value"] >= 0.5 else "LESS than half"
    text = (
        f"At the last sequence it closes {enough} of the gap in loss between the order-1 in-context n-gram "
        f"({losses['order-1']:.3f} nats) and the Bayes mixture ({losses['optimum']:.3f}): it stands at "
        f"{losses['model']:.3f}."
    )
    return Finding(
        title="How near to the optimum",
        text=text,
        verdict="found",
        unit="share of the gap",
        **{side: gap[side] for side in ("value", "low", "high")},
    )


def _probe_finding(rows: list[dict]) -> Finding:
    trained = {target: probe_rows(rows, target) for target in ("component", "state", "previous-1")}
    best = {target: max(found, key=lambda row: row["accuracy"]) for target, found in trained.items()}
    component, state = best["component"], best["state"]
    untrained = max(row["accuracy"] for row in probe_rows(rows, "component", "untrained"))
    start = trained["component"][0]["accuracy"]
    text = (
        f"Which HMM it is can be read with accuracy {component['accuracy']:.2f} at layer {component['layer']} "
        f"({start:.2f} at the embedding, {untrained:.2f} at best before training, {component['ceiling']:.2f} by the exact "
        f"posterior); the hidden state with {state['accuracy']:.2f} at layer {state['layer']} "
        f"({state['ceiling']:.2f} by the exact filter)."
    )
    return Finding(
        title="What it holds, layer by layer",
        text=text,
        verdict="found",
        unit="probe accuracy, component",
        value=component["accuracy"],
        low=component["low"],
        high=component["high"],
    )
