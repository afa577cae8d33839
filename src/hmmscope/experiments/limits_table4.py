"""[Limits] Table 4: the training loss of the deepest Transformer, and whether it has come to rest."""

from typing import Any

from hmmscope import registry
from hmmscope.corpora.corpus import Batch
from hmmscope.corpora.targets import Target
from hmmscope.evidence.figures import Figure, Lines
from hmmscope.evidence.pooling import pool_rows
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Finding, Measured, Tables
from hmmscope.experiments.limits_floors import paper_floors
from hmmscope.experiments.limits_models import depths, grid, limits_config, of_label
from hmmscope.experiments.limits_tables import (
    EPOCHS,
    epochs_of,
    model_name,
    pooled_series,
    present,
    task_title,
    tasks_of,
)
from hmmscope.runs.pipeline import Run

_LONG = "long, "
#: Shares of the training at which the paper prints losses.
SHARES = (0.6, 0.7, 0.8, 0.9, 1.0)
_SIZES = {
    "smoke": {"samples": 64, "floor_samples": 40},
    "small": {"samples": 2048, "floor_samples": 400},
    "gpu": {"samples": 4096, "floor_samples": 1000},
    "paper": {"samples": 4096, "floor_samples": 1000},
}


@registry.experiment("limits-table4")
class LimitsTable4(Experiment):
    """See the module."""

    title = "Has the deepest Transformer converged?"
    summary = (
        "The training loss of the deepest Transformer in the last part of its training, on cycles and on products of "
        "matrices, beside the least possible loss and that of a predictor that always gives the same answer. " + EPOCHS
    )
    num_seeds = NUM_SEEDS
    intervals = SEED_INTERVALS
    groups = {"losses": ("losses", "references"), "floors": ("paper-floors",)}

    def choices(self, scale: str) -> dict[str, Any]:
        return {
            "tasks": ["cyclic-det", "cyclic-rnd", "matmul"],
            "layers": depths(scale)[-1],
            "long_factor": 2 if scale == "paper" else 1,
        }

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        """The tasks at one depth; with `long_factor` above 1 also MatMul with so many times the steps."""
        plan = grid(scale, choices["tasks"], [choices["layers"]])
        if choices["long_factor"] > 1 and "matmul" in choices["tasks"]:
            data = limits_config(scale, "matmul", choices["layers"])
            steps = data["training"]["num_steps"] * choices["long_factor"]
            label = f"{_LONG}{next(label for label in plan if of_label(label)[0] == 'matmul')}"
            plan[label] = limits_config(scale, "matmul", choices["layers"], training={"num_steps": steps})
        return plan

    def measurements(self, scale: str) -> dict[str, Any]:
        return {**_SIZES[scale], "backward": [0.01, 0.03, 0.05]}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        if group == "floors":
            seed = next(iter(runs.values())).config.seed
            floors = paper_floors(["cyclic-rnd"], seed, num_samples=sizes["floor_samples"], backward=sizes["backward"])
            return {"paper-floors": floors}
        return {
            "losses": [row for label, run in runs.items() for row in _losses(label, run)],
            "references": [_references(label, run, sizes) for label, run in runs.items()],
        }

    def figures(self, tables: Tables) -> list[Figure]:
        return [_figure(tables)]

    def notes(self, tables: Tables) -> list[Finding]:
        return [_table(tables["losses"])]


def _identity(label: str) -> dict[str, Any]:
    """The run, where a long training is a task of its own."""
    task, layers = of_label(label.removeprefix(_LONG))
    return {"task": task, "layers": layers, "long": label.startswith(_LONG)}


def _losses(label: str, run: Run) -> list[dict]:
    """The mean training loss by epoch."""
    rows = epochs_of(run).rows
    keys = ("epoch", "step", "training_loss", "evaluation_loss")
    return [_identity(label) | {key: row[key] for key in keys} | {"share": row["epoch"] / len(rows)} for row in rows]


def _references(label: str, run: Run, sizes: dict[str, Any]) -> dict:
    """The least possible loss, and that of the predictor that always gives the mean of the exact answers."""
    corpus, target = run.corpus("probe"), run.target
    batch = corpus[0 : sizes["samples"]]
    floor = float(target.floor_terms(batch).mean())
    return _identity(label) | {"floor": floor, "trivial": _trivial(target, batch), "unit": run.target.unit}


def _trivial(target: Target, batch: Batch) -> float:
    """Finite: the mean holds possible whatever an exact answer does."""
    optimum = target.optimum(batch)
    answer = optimum.mean((0, 1))
    labels = target.labels(batch)
    labels = labels.double() if labels.is_floating_point() else labels
    return float(target.loss_terms(answer.expand_as(optimum), labels).mean())


def _title(task: str, long: bool) -> str:
    return f"{task_title(task)}, longer" if long else task_title(task)


def _figure(tables: Tables) -> Figure:
    rows, panels = tables["losses"], []
    for task in tasks_of(rows):
        for long in sorted({row["long"] for row in rows if row["task"] == task}):
            own = [row for row in rows if (row["task"], row["long"]) == (task, long)]
            known = [row for row in tables["references"] if (row["task"], row["long"]) == (task, long)]
            flat = [r | {"epoch": e} for r in known for e in (own[0]["epoch"], own[-1]["epoch"])]
            series = present(
                pooled_series(own, "training", "model", x="epoch", y="training_loss"),
                pooled_series(own, "evaluation", "control", x="epoch", y="evaluation_loss"),
                pooled_series(flat, "least possible", "optimum", x="epoch", y="floor"),
                pooled_series(flat, "always the same answer", "baseline", x="epoch", y="trivial"),
            )
            title = f"{_title(task, long)}, {model_name(own[0]['layers'])}"
            panels.append(Lines(title=title, x_label="epoch", y_label=known[0]["unit"], series=series, y_min=0.0))
    return Figure(
        name="training-loss",
        title="Training loss of the deepest Transformer",
        caption=(
            "Mean loss over an epoch of training, and of samples that are not trained on, beside the least possible loss "
            "and that of a predictor that always gives the mean of the exact answers. Bands are 95 % intervals over seeds."
        ),
        panels=tuple(panels),
    )


def _table(rows: list[dict]) -> Finding:
    """The losses at the shares of the training that the paper prints."""
    said = []
    for task in tasks_of(rows):
        for long in sorted({row["long"] for row in rows if row["task"] == task}):
            own = [row for row in rows if (row["task"], row["long"]) == (task, long)]
            last = max(row["epoch"] for row in own)
            kept = sorted({max(1, round(share * last)) for share in SHARES})
            pooled = pool_rows([row for row in own if row["epoch"] in kept], ("epoch",), "training_loss")
            losses = ", ".join(f"{row['training_loss']:.4g} ({row['epoch']})" for row in pooled)
            said.append(f"{_title(task, long)}: {losses}")
    text = f"Mean training loss over seeds (epoch). {'; '.join(said)}."
    return Finding(title="Training losses by epoch", text=text, verdict="found")
