"""The tasks of [Limits] on other architectures: who tracks the state, who needs depth, who goes on beyond its length."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hmmscope import registry
from hmmscope.analysis.fit_length import evaluation_losses
from hmmscope.corpora.corpus import Corpus
from hmmscope.evidence.figures import Figure
from hmmscope.evidence.pooling import pool_rows
from hmmscope.experiments.experiment import SEED_INTERVALS, Experiment, Finding, Measured, Tables
from hmmscope.experiments.limits_architectures_figures import errors_figure, fit_figure
from hmmscope.experiments.limits_models import limits_config
from hmmscope.experiments.limits_studies import fit_length_of, shortened
from hmmscope.runs.pipeline import Run, untrained_twin
from hmmscope.schema import unknown_name


@dataclass(frozen=True)
class _Architecture:
    """A model by its fields, and how it is used here.

    Attributes:
        model: name and fields beside layers, width and heads.
        recurrent: one layer, of the width and recipe of the ReLU RNN.
        has_heads: whether it has a number of heads.
        any_length: whether it can be read beyond the length of its training.
    """

    model: dict[str, Any]
    recurrent: bool = False
    has_heads: bool = True
    any_length: bool = True


ARCHITECTURES: dict[str, _Architecture] = {
    "rnn": _Architecture({"name": "rnn"}, recurrent=True),
    "rnn-tanh": _Architecture({"name": "rnn", "nonlinearity": "tanh"}, recurrent=True),
    "lstm": _Architecture({"name": "lstm"}, recurrent=True),
    "gru": _Architecture({"name": "gru"}, recurrent=True),
    "transformer": _Architecture({"name": "decoder", "positions": "rotary", "input_features": False, "dropout": 0.0}),
    "transformer-nope": _Architecture(
        {"name": "decoder", "positions": "none", "input_features": False, "dropout": 0.0}
    ),
    "transformer-learned": _Architecture({"name": "decoder", "dropout": 0.0}, any_length=False),
    "linear-attention": _Architecture({"name": "linear-attention", "positions": "none"}),
    "mamba": _Architecture({"name": "mamba"}, has_heads=False),
    "mamba2": _Architecture({"name": "mamba2", "chunk_length": 16}),
    "gated-deltanet": _Architecture({"name": "gated-deltanet", "chunk_length": 16}),
}
#: Those that need no extra.
DEFAULT = ["rnn", "rnn-tanh", "lstm", "gru", "transformer", "linear-attention"]

#: Processes by task; the sizes of the cycles are those of the scale.
TASKS: dict[str, dict[str, Any]] = {
    "cyclic-det": {},
    "cyclic-rnd": {},
    "matmul": {},
    "ran-hmm": {},
    "word-problem": {"name": "word-problem", "group": "S3", "num_generators": 2},
    "word-problem-z60": {"name": "word-problem", "group": "Z60", "num_generators": 2},
    "word-problem-a5": {"name": "word-problem", "group": "A5", "num_generators": 2},
    "mess3": {"name": "mess3"},
}

#: What shapes the plan. Steps 0: those of the scale. Recurrent models have steps of their own and one layer.
CHOICES: dict[str, dict[str, Any]] = {
    "smoke": {
        **{"tasks": ["cyclic-det"], "architectures": ["rnn", "gru", "transformer", "linear-attention"], "layers": [1]},
        **{"steps": 10, "recurrent_steps": 40},
    },
    "small": {
        **{"tasks": ["cyclic-det", "word-problem", "mess3"], "architectures": DEFAULT, "layers": [1, 3]},
        **{"steps": 1000, "recurrent_steps": 4000},
    },
    "gpu": {
        **{"tasks": ["cyclic-det", "word-problem", "matmul", "mess3"], "architectures": DEFAULT, "layers": [1, 2, 4]},
        **{"steps": 0, "recurrent_steps": 0},
    },
    "paper": {
        **{"tasks": ["cyclic-det", "word-problem", "matmul", "mess3"], "architectures": DEFAULT, "layers": [1, 4, 7]},
        **{"steps": 0, "recurrent_steps": 0},
    },
}
ERROR_RATES = (0.05, 0.1)


@registry.experiment("limits-architectures")
class Architectures(Experiment):
    """See the module."""

    title = "Who tracks the state: recurrent networks, attention, linear recurrences"
    summary = (
        "The same tasks on several architectures: recurrent networks of one layer, Transformers with rotary positions and "
        "with linear attention at several depths, and by --plan.architectures state space models and a gated delta rule "
        "(with the extra `models` installed). Each is judged up to the length of its training and up to twice that."
    )
    num_seeds = {"smoke": 2, "small": 3, "gpu": 3, "paper": 1}
    intervals = SEED_INTERVALS
    groups = {"errors": ("errors", "fit")}

    def choices(self, scale: str) -> dict[str, Any]:
        return dict(CHOICES[scale])

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        for key, known in (("tasks", TASKS), ("architectures", ARCHITECTURES)):
            for name in choices[key]:
                if name not in known:
                    raise unknown_name(f"plan.{key}", name, known)
        return {
            _label(task, name, layers): _config(scale, task, name, layers, choices)
            for task in choices["tasks"]
            for name in choices["architectures"]
            for layers in ([1] if ARCHITECTURES[name].recurrent else choices["layers"])
        }

    def measurements(self, scale: str) -> dict[str, Any]:
        return {"samples": {"smoke": 32, "small": 1024}.get(scale, 4096), "times_longer": 2}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        errors, fits = [], []
        for label, run in runs.items():
            errors += _error_rows(label, run, sizes)
            fits.append(_fit_row(label, run))
        return {"errors": errors, "fit": fits}

    def figures(self, tables: Tables) -> list[Figure]:
        return [errors_figure(tables["errors"]), fit_figure(tables["fit"])]

    def notes(self, tables: Tables) -> list[Finding]:
        return [_tracking_note(tables)]


def _label(task: str, architecture: str, layers: int) -> str:
    return f"{task}, {architecture}, {layers} layer{'s' * (layers > 1)}"


def _of_label(label: str) -> dict[str, Any]:
    task, architecture, layers = label.split(", ")
    return {"task": task, "architecture": architecture, "layers": int(layers.split()[0])}


def _config(scale: str, task: str, name: str, layers: int, choices: dict[str, Any]) -> dict[str, Any]:
    """The grid's run with another model, and where the grid has not the task, another process."""
    architecture = ARCHITECTURES[name]
    cycles = task if not TASKS[task] else "cyclic-det"
    steps = choices["recurrent_steps"] if architecture.recurrent else choices["steps"]
    config = limits_config(scale, cycles, 0 if architecture.recurrent else layers, training=shortened(steps))
    sizes = config["model"]
    kept = ["width"] if architecture.recurrent else ["num_layers", "width"] + ["num_heads"] * architecture.has_heads
    config["model"] = {**architecture.model, **{key: sizes[key] for key in kept if key in sizes}}
    if TASKS[task]:
        config["process"] = dict(TASKS[task])
    return config


def _error_rows(label: str, run: Run, sizes: dict[str, Any]) -> list[dict]:
    """Errors by position up to `times_longer` training lengths (or one, where positions are learned)."""
    name = _of_label(label)
    trained_on = run.config.layout.num_observations
    times = sizes["times_longer"] if ARCHITECTURES[name["architecture"]].any_length else 1
    layout = replace(run.config.layout, length=times * trained_on)
    corpus = Corpus(run.process, layout=layout, seed=run.config.seed, stream="evaluate")
    rows = []
    for told, model in {"model": run.model, "untrained": untrained_twin(run)}.items():
        found = evaluation_losses(model, corpus, num_samples=sizes["samples"], target=run.config.target)
        wanted = ("model", "constant") if told == "model" else ("model",)
        for row in found:
            if row["predictor"] in wanted:
                predictor = row["predictor"] if told == "model" else told
                rows.append(name | row | {"predictor": predictor, "beyond": row["position"] > trained_on})
    return rows


def _fit_row(label: str, run: Run) -> dict:
    """Fit lengths within the training length, with what the model costs."""
    assert run.summary is not None
    fits = {f"fit_{rate:g}": fit_length_of(run, rate) for rate in ERROR_RATES}
    spec = run.config.training
    samples = spec.num_steps * spec.batch_size
    shared = {"length": run.config.layout.num_observations, "parameters": run.summary["parameters"]}
    return _of_label(label) | shared | {"samples_trained": samples, **fits}


def _tracking_note(tables: Tables) -> Finding:
    """Who fits the whole length in every seed."""
    keys = ["task", "architecture", "layers", "length"]
    pooled = pool_rows(tables["fit"], keys, "fit_0.1")
    told = []
    for task in dict.fromkeys(row["task"] for row in pooled):
        rows = [row for row in pooled if row["task"] == task]
        whole = [f"{r['architecture']} ({r['layers']})" for r in rows if r["fit_0.1"] == r["length"]]
        best = max((r["fit_0.1"] for r in rows if r["fit_0.1"] < r["length"]), default=None)
        rest = "" if best is None else f"; the longest 0.1-fit length of the others is {best:.1f}"
        told.append(f"{task}: {', '.join(whole) or 'none'} of {len(rows)}{rest}")
    lengths = np.unique([row["length"] for row in pooled])
    text = f"All {', '.join(map(str, lengths))} positions are fitted in every seed by (layers) {'. '.join(told)}."
    return Finding(title="Who tracks the state over the whole training length", text=text, verdict="found")
