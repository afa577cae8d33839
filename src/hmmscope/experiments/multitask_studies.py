"""What the studies of [MultiTask] that vary one thing share: base configurations, measurements on prompts, figures.

The base is one small Transformer on prompts from a pool of HMMs. Each study changes one number of it, so a setting that
several studies have is trained once. The studies of memory and observability train on windows of one HMM instead, where
the exact answer of a short memory is known.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hmmscope.analysis.curves import Score, evaluate
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.evidence.figures import Bars, Lines, Series
from hmmscope.evidence.pooling import pool_rows
from hmmscope.experiments.panels import PREDICTORS
from hmmscope.runs.pipeline import Run, untrained_twin

#: Prompts from a pool: numbers of each scale. The paper has one setting (its §5); the reduced scales are ours.
_PROMPTS: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {
        "process": {"num_components": 4, "num_states": 3, "num_symbols": 3},
        "layout": {"num_demonstrations": 2, "demonstration_length": 4, "test_length": 4},
        "model": {"num_layers": 1, "num_heads": 2, "width": 16},
        "training": {"num_steps": 10, "batch_size": 8, "warmup_steps": 2, "evaluate_every": 5, "evaluate_samples": 8},
    },
    "small": {
        "process": {"num_components": 64, "num_states": 4, "num_symbols": 4},
        "layout": {"num_demonstrations": 5, "demonstration_length": 6, "test_length": 6},
        "model": {"num_layers": 2, "num_heads": 4, "width": 64},
        "training": {"num_steps": 400, "learning_rate": 3e-3, "warmup_steps": 40},
    },
    "gpu": {
        "process": {"num_components": 256, "num_states": 8, "num_symbols": 8},
        "layout": {"num_demonstrations": 15, "demonstration_length": 8, "test_length": 8},
        "model": {"num_layers": 4, "num_heads": 8, "width": 256},
        "training": {"num_steps": 1000, "batch_size": 128, "precision": "bfloat16"},
    },
    "paper": {
        "process": {"num_components": 8192, "num_states": 128, "num_symbols": 16},
        "layout": {"num_demonstrations": 15, "demonstration_length": 16, "test_length": 16},
        "model": {"num_layers": 16, "num_heads": 16, "width": 1024},
        "training": {"num_steps": 4096, "learning_rate": 3e-4, "warmup_steps": 200, "precision": "bfloat16"},
    },
}
#: Of the rows of transition and emission matrices; the paper does not state it.
CONCENTRATION = {"smoke": 0.2, "small": 0.2, "gpu": 0.1, "paper": 0.01}

#: Windows of one HMM: numbers of each scale. The paper has no such runs; its vocabulary of 16 is at scale "paper".
_WINDOWS: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {
        "process": {"num_states": 3, "num_symbols": 3, "rank": 3},
        "model": {"num_layers": 1, "num_heads": 2, "width": 16},
        "training": {"num_steps": 10, "batch_size": 16, "warmup_steps": 2, "evaluate_every": 5, "evaluate_samples": 8},
    },
    "small": {
        "process": {"num_states": 5, "num_symbols": 5, "rank": 5},
        "model": {"num_layers": 2, "num_heads": 4, "width": 32},
        "training": {"num_steps": 500, "batch_size": 256, "learning_rate": 3e-3, "warmup_steps": 50},
    },
    "gpu": {
        "process": {"num_states": 8, "num_symbols": 8, "rank": 8},
        "model": {"num_layers": 2, "num_heads": 8, "width": 128},
        "training": {"num_steps": 2000, "batch_size": 1024, "learning_rate": 2e-3},
    },
    "paper": {
        "process": {"num_states": 16, "num_symbols": 16, "rank": 16},
        "model": {"num_layers": 4, "num_heads": 8, "width": 256},
        "training": {"num_steps": 20000, "batch_size": 1024, "learning_rate": 1e-3, "warmup_steps": 500},
    },
}
#: Of the rows of both factors of the transition matrix of the windows' HMM: small, so that it forgets slowly.
WINDOW_CONCENTRATION = 0.1
#: Observability of the study of memory, one of those of the study of observability.
OBSERVABILITY = 0.6

_DECODER = {"name": "decoder", "positions": "rotary", "input_features": False, "dropout": 0.0}


def prompt_config(scale: str, **changes: dict[str, Any]) -> dict[str, Any]:
    """The base of the studies on prompts as plain configuration: a rotary decoder on a pool of HMMs.

    Args:
        scale: "smoke", "small", "gpu" or "paper".
        changes: to the sections ``process``, ``layout``, ``model`` and ``training``; a process with a name of its own
            has the sizes of the base and no other of its fields.

    Source: [MultiTask] §5 for the sizes at scale "paper".
    """
    concentration = CONCENTRATION[scale]
    law = {"transition_concentration": concentration, "emission_concentration": concentration}
    first: dict[str, dict[str, Any]] = {
        "process": {"name": "random-mixture", **law},
        "layout": {"name": "prompts"},
        "model": _DECODER,
        "training": {},
    }
    return {key: start | _PROMPTS[scale][key] | changes.get(key, {}) for key, start in first.items()}


def window_config(scale: str, memory: int, observability: float = OBSERVABILITY) -> dict[str, Any]:
    """A decoder that sees `memory` observations of one stationary HMM and predicts the next, as plain configuration.

    Args:
        scale: "smoke", "small", "gpu" or "paper".
        memory: observations that it sees.
        observability: of the symmetric channel that emits, in (0, 1].

    Source: [MultiTask] Assumption 2 and Lemma 1; the sizes are ours.
    """
    numbers = _WINDOWS[scale]
    process = {"observability": observability, "transition_concentration": WINDOW_CONCENTRATION}
    return {
        "process": {"name": "low-rank-hmm", **numbers["process"], **process},
        "layout": {"name": "sequences", "length": memory + 1},
        "model": _DECODER | numbers["model"],
        "training": numbers["training"],
    }


def end_rows(run: Run, num_samples: int) -> list[dict[str, Any]]:
    """Scores over the test sequence of a run's prompts: (predictor, metric, value, low, high, samples).

    Predictors are those of `evaluate`, and ``untrained``: the same model before training. Intervals are 95 % bootstrap
    intervals over samples.
    """
    score = evaluate(run.model, run.corpus(), num_samples=num_samples)
    twin = evaluate(untrained_twin(run), run.corpus(), num_samples=num_samples, baselines=False)
    measures = score.measures | {"untrained": twin.measures["model"]}
    last = last_sequence(score)
    return [
        {"predictor": predictor, "metric": metric} | mean_row(values[:, last].mean(1))
        for predictor, metrics in measures.items()
        for metric, values in metrics.items()
    ]


def last_sequence(score: Score) -> np.ndarray:
    """Judged columns of the test sequence (judged,), bool."""
    found: np.ndarray = score.demonstrations == score.demonstrations.max()
    return found


def mean_row(values: np.ndarray) -> dict[str, Any]:
    """Mean over samples (sample,) with its 95 % bootstrap interval: value, low, high, samples."""
    mean, low, high = (float(x) for x in bootstrap_means(values))
    return {"value": mean, "low": low, "high": high, "samples": len(values)}


# ---------------------------------------------------------------------------------------------------------------------
# Figures

#: Predictors of the studies on prompts, in the order of legends: those of `evaluate`, and the control.
STUDY_PREDICTORS = {**PREDICTORS, "untrained": ("model before training", "control")}
_UNITS = {
    "accuracy": ("Accuracy", "accuracy"),
    "loss": ("Loss", "nats per observation"),
    "excess": ("Excess over the optimum", "nats per observation"),
    "total_variation": ("Distance from the optimum", "total variation"),
}


def setting_bars(rows: Sequence[dict], key: str, metric: str, labels: dict[Any, str]) -> Bars:
    """One metric of all predictors by setting: a group of bars for each value of the column `key`, named by `labels`."""
    series = []
    for predictor, (name, role) in STUDY_PREDICTORS.items():
        pooled = {row[key]: row for row in pool_rows(of(rows, predictor=predictor, metric=metric), [key])}
        if pooled.keys() == labels.keys():
            sides = {side: tuple(pooled[value][side] for value in labels) for side in ("low", "high")}
            values = tuple(pooled[value]["value"] for value in labels)
            series.append(Series(name=name, y=values, role=role, **sides))  # type: ignore[arg-type]
    title, unit = _UNITS[metric]
    return Bars(title=title, y_label=unit, categories=tuple(labels.values()), series=tuple(series))


def setting_lines(rows: Sequence[dict], key: str, metric: str, *, x_label: str, log_x: bool = False) -> Lines:
    """One metric of all predictors against the number in the column `key`."""
    curves = []
    for predictor, (name, role) in STUDY_PREDICTORS.items():
        found = of(rows, predictor=predictor, metric=metric)
        if found:
            curves.append(curve(found, key, name, role))
    title, unit = _UNITS[metric]
    return Lines(title=title, x_label=x_label, y_label=unit, series=tuple(curves), log_x=log_x)


def curve(rows: Sequence[dict], key: str, name: str, role: str) -> Series:
    """Rows of several seeds, pooled, as a curve against the column `key`."""
    pooled = sorted(pool_rows(rows, [key]), key=lambda row: row[key])
    x, y, low, high = (tuple(row[field] for row in pooled) for field in (key, "value", "low", "high"))
    return Series(name=name, x=x, y=y, low=low, high=high, role=role)  # type: ignore[arg-type]


def of(rows: Sequence[dict], **wanted: Any) -> list[dict]:
    """The rows that have these values in these columns."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
