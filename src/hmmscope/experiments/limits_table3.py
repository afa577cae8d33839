"""[Limits] Table 3: final losses of the RNN and of Transformers, beside what is possible."""

import math
from dataclasses import replace
from typing import Any

from hmmscope import registry
from hmmscope.analysis.curves import evaluate
from hmmscope.claims.limits_numbers import TABLE_3
from hmmscope.evidence.figures import Bars, Figure, Lines, Series
from hmmscope.evidence.pooling import pool_rows
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Finding, Measured, Tables
from hmmscope.experiments.limits_floors import paper_floors
from hmmscope.experiments.limits_models import TASKS, grid
from hmmscope.experiments.limits_tables import (
    all_layers,
    epochs_of,
    identity,
    layers_of,
    model_name,
    pooled_series,
    present,
    task_title,
    tasks_of,
)
from hmmscope.runs.pipeline import Run

_SIZES = {
    "smoke": {"samples": 32, "floor_samples": 40},
    "small": {"samples": 4096, "floor_samples": 400},
    "gpu": {"samples": 8192, "floor_samples": 1000},
    "paper": {"samples": 8192, "floor_samples": 1000},
}
#: Below this an excess is rounding.
_LEAST = 1e-12
_SMOKE = ["cyclic-rnd", "ran-lds"]


@registry.experiment("limits-table3")
class LimitsTable3(Experiment):
    """See the module."""

    title = "Final losses beside what is possible"
    summary = (
        "The loss at the end of training of a one-layer RNN and of Transformers, on training samples and on fresh ones, "
        "beside the least loss that any predictor can have, the entropy of the exact answers or the variance of samples. "
        "The printed losses of the paper stand beside floors at the paper's sizes."
    )
    num_seeds = NUM_SEEDS
    intervals = SEED_INTERVALS
    groups = {"losses": ("losses",), "floors": ("paper-floors",)}

    def choices(self, scale: str) -> dict[str, Any]:
        return {"tasks": list(_SMOKE if scale == "smoke" else TASKS), "layers": all_layers(scale)}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return grid(scale, choices["tasks"], choices["layers"])

    def measurements(self, scale: str) -> dict[str, Any]:
        return {**_SIZES[scale], "backward": [0.01]}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        if group == "losses":
            return {"losses": [_losses(label, run, sizes) for label, run in runs.items()]}
        seed = next(iter(runs.values())).config.seed
        wanted = ["cyclic-rnd", "ran-hmm", "ran-lds"]
        floors = paper_floors(wanted, seed, num_samples=sizes["floor_samples"], backward=sizes["backward"])
        return {"paper-floors": floors}

    def figures(self, tables: Tables) -> list[Figure]:
        return [_losses_figure(tables["losses"]), _excess_figure(tables["losses"])]

    def notes(self, tables: Tables) -> list[Finding]:
        return [_printed(tables["paper-floors"])]


def _losses(label: str, run: Run, sizes: dict[str, Any]) -> dict:
    """Losses of one run: of training samples in the last epoch, and of fresh ones beside their floor."""
    of_run, last = identity(label), epochs_of(run).rows[-1]
    score = evaluate(
        run.model,
        run.corpus("probe"),
        num_samples=sizes["samples"],
        baselines=False,
        target=TASKS[of_run["task"]][1],
        block_length=run.config.training.block_length,
    )
    assert score.excess is not None
    excess, low, high = score.excess
    found = {"length": run.config.layout.num_observations, "unit": run.target.unit}
    found |= {"training_loss": last["training_loss"], "loss": score.loss, "floor": score.bayes_loss}
    return of_run | found | {"excess": excess, "low": low, "high": high, "samples": sizes["samples"]}


def _losses_figure(rows: list[dict]) -> Figure:
    panels = []
    for task in tasks_of(rows):
        own = [row for row in rows if row["task"] == task]
        models = layers_of(own)
        bars = {"training samples": "training_loss", "fresh samples": "loss", "least possible": "floor"}
        series = []
        for name, column in bars.items():
            pooled = {row["layers"]: row for row in pool_rows(own, ("layers",), column)}
            ends = {side: tuple(pooled[n][side] for n in models) for side in ("low", "high")}
            role = {"training_loss": "control", "loss": "model", "floor": "optimum"}[column]
            values = tuple(pooled[n][column] for n in models)
            series.append(Series(name=name, y=values, role=role, **ends))  # type: ignore[arg-type]
        unit = own[0]["unit"]
        panels.append(
            Bars(
                title=task_title(task),
                y_label=unit,
                categories=tuple(model_name(n) for n in models),
                series=tuple(series),
            )
        )
    return Figure(
        name="final-losses",
        title="Final losses",
        caption=(
            "Mean loss over the last epoch of training and on fresh samples, averaged over positions. The line across a "
            "group is the loss of the exact answer on the fresh samples. Training samples are seen once (at scale paper "
            "they are a fixed set): overfitting would show as a lower bar for them. Intervals are 95 % intervals over seeds."
        ),
        panels=tuple(panels),
    )


def _excess_figure(rows: list[dict]) -> Figure:
    panels = []
    for task in tasks_of(rows):
        own = [row for row in rows if row["task"] == task]
        deep = [row for row in own if row["layers"] > 0]
        depths = layers_of(deep) or [0, 1]
        recurrent = [row | {"layers": n} for row in own if row["layers"] == 0 for n in (depths[0], depths[-1])]
        transformer = _geometric(deep, "Transformer", "model")
        flat = _geometric(recurrent, "RNN", "other")
        panels.append(
            Lines(
                title=task_title(task),
                x_label="layers",
                y_label=f"excess, {own[0]['unit']}",
                series=present(transformer, flat),
                log_y=True,
            )
        )
    return Figure(
        name="excess",
        title="Excess over the least possible loss",
        caption=(
            "Kullback-Leibler divergence from the exact answer, or the squared distance from it, averaged over positions of "
            "fresh samples. Geometric means over seeds, bands are 95 % intervals of the logarithm."
        ),
        panels=tuple(panels),
    )


def _geometric(rows: list[dict], name: str, role: str) -> Series | None:
    """The excess against depth as means of its logarithm over seeds, which suit a logarithmic axis."""
    logs = [row | {"log": math.log(max(row["excess"], _LEAST))} for row in rows]
    found = pooled_series(logs, name, role, x="layers", y="log")
    if found is None:
        return None
    sides = (found.y, found.low or (), found.high or ())
    y, low, high = (tuple(math.exp(value) for value in side if value is not None) for side in sides)
    return replace(found, y=y, low=low, high=high)


def _printed(floors: list[dict]) -> Finding:
    """The paper's table beside the floors."""
    pooled = {
        row["task"]: row["value"] for row in pool_rows([r for r in floors if r["backward"] in (None, 0.01)], ("task",))
    }
    pooled |= {"cyclic-det": 0.0, "matmul": 0.0}
    said = []
    for task, printed in TABLE_3.items():
        losses = ", ".join(f"{model} {loss:.4g}" for model, loss in printed.items())
        said.append(f"{task_title(task)}: floor {pooled[task]:.4f}, printed {losses}")
    text = (
        "; ".join(said)
        + ". The floor of RanHMM depends on the instance and on the law of its matrices, which is not stated."
    )
    return Finding(title="The printed losses beside their floors", text=text, verdict="found")
