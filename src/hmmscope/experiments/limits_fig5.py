"""[Limits] Figure 5: how width and heads matter."""

from typing import Any

from hmmscope import registry
from hmmscope.analysis.fit_length import evaluation_losses
from hmmscope.evidence.figures import Figure, Lines, Series
from hmmscope.evidence.pooling import pool_rows
from hmmscope.experiments.experiment import SEED_INTERVALS, Experiment, Measured, Tables
from hmmscope.experiments.limits_models import TASKS, limits_config
from hmmscope.experiments.limits_studies import fit_length_of, shortened
from hmmscope.experiments.panels import series_of
from hmmscope.runs.pipeline import Run, untrained_twin
from hmmscope.schema import require, unknown_name

#: What shapes the plan. Heads are varied at the width `width`, the width at `heads` heads. Steps 0: those of the scale.
CHOICES: dict[str, dict[str, Any]] = {
    "smoke": {
        **{"tasks": ["cyclic-det"], "layers": [1], "widths": [4, 8], "head_counts": [1, 2]},
        **{"width": 8, "heads": 2, "steps": 12},
    },
    "small": {
        **{"tasks": ["cyclic-det"], "layers": [2], "widths": [16, 32, 64, 128], "head_counts": [1, 2, 4, 8]},
        **{"width": 64, "heads": 4, "steps": 1100},
    },
    "gpu": {
        **{"tasks": ["cyclic-det", "matmul"], "layers": [2, 3], "widths": [32, 64, 128, 256, 512]},
        **{"head_counts": [1, 2, 4, 8, 16], "width": 256, "heads": 8, "steps": 2500},
    },
    "paper": {
        **{"tasks": ["cyclic-det", "matmul"], "layers": [3, 4, 5], "widths": [64, 128, 256, 512]},
        **{"head_counts": [1, 2, 4, 8, 16], "width": 512, "heads": 8, "steps": 0},
    },
}


@registry.experiment("limits-fig5")
class Figure5(Experiment):
    """See the module."""

    title = "Width and heads"
    summary = (
        "Transformers of one or more depths with different widths of the stream, and different numbers of heads, trained "
        "alike. The paper chose 8 heads and width 512 by such a study, and does not say what else it tried."
    )
    num_seeds = {"smoke": 2, "small": 3, "gpu": 3, "paper": 3}
    intervals = SEED_INTERVALS
    groups = {"errors": ("errors",)}

    def choices(self, scale: str) -> dict[str, Any]:
        return dict(CHOICES[scale])

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        for task in choices["tasks"]:
            if task not in TASKS:
                raise unknown_name("plan.tasks", task, TASKS)
        pairs = [(width, choices["heads"]) for width in choices["widths"]]
        pairs += [(choices["width"], heads) for heads in choices["head_counts"]]
        for width, heads in pairs:
            rule = f"must be a multiple of the number of heads {heads}"
            require(heads >= 1 and width % heads == 0, "plan.widths", rule, width)
        return {
            f"{task}, {layers} layer{'s' * (layers > 1)}, width {width}, {heads} head{'s' * (heads > 1)}": limits_config(
                scale,
                task,
                layers,
                model={"width": width, "num_heads": heads},
                training=shortened(choices["steps"]),
            )
            for task in choices["tasks"]
            for layers in choices["layers"]
            for width, heads in pairs
        }

    def measurements(self, scale: str) -> dict[str, Any]:
        return {"samples": {"smoke": 32, "small": 1024}.get(scale, 4096)}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        sized = [(run.config.model.width, run.config.model.num_heads) for run in runs.values()]
        common = {"width": _most_varied(sized), "heads": _most_varied([(heads, width) for width, heads in sized])}
        return {"errors": [row for run in runs.values() for row in _rows(run, common, sizes["samples"])]}

    def figures(self, tables: Tables) -> list[Figure]:
        return [_figure(tables["errors"], task) for task in dict.fromkeys(row["task"] for row in tables["errors"])]


def _most_varied(pairs: list[tuple[int, int]]) -> int:
    """The first number that comes with the most different second ones: that at which the other was varied."""
    return max(dict(pairs), key=lambda first: len({second for one, second in pairs if one == first}))


def _rows(run: Run, common: dict[str, int], num_samples: int) -> list[dict]:
    """Evaluation loss averaged over positions, of the model before and after training and of a constant answer."""
    model = run.config.model
    shared = {
        "task": TASKS[run.config.process.name][2],
        "layers": model.num_layers,
        "width": model.width,
        "heads": model.num_heads,
        "vary_width": model.num_heads == common["heads"],
        "vary_heads": model.width == common["width"],
        "parameters": (run.summary or {})["parameters"],
        "fit_length": fit_length_of(run, 0.05),
    }
    values: dict[str, list[float]] = {}
    for name, network in {"model": run.model, "untrained": untrained_twin(run)}.items():
        found = evaluation_losses(network, run.corpus(), num_samples=num_samples, target=run.config.target)
        for row in found:
            known = row["predictor"] if name == "model" else name
            if name == "model" or row["predictor"] == "model":
                values.setdefault(known, []).append(row["value"])
    return [
        shared | {"predictor": name, "value": sum(found) / len(found), "samples": num_samples}
        for name, found in values.items()
    ]


def _figure(rows: list[dict], task: str) -> Figure:
    def panel(axis: str, label: str, varied: str) -> Lines:
        kept = [row for row in rows if row["task"] == task and row[varied]]
        pooled = pool_rows(kept, ["predictor", axis])

        def series(predictor: str, name: str, role: str) -> Series:
            return series_of([row for row in pooled if row["predictor"] == predictor], name, role, x=axis)

        model = series("model", "Transformer", "model")
        return Lines(
            title="",
            x_label=label,
            y_label="mean evaluation loss",
            series=(
                model,
                Series(name="exact answer", x=model.x, y=(0.0,) * len(model.x), role="optimum"),
                series("constant", "constant answer", "baseline"),
                series("untrained", "before training", "control"),
            ),
            log_x=True,
        )

    few = [row for row in rows if row["task"] == task]
    depths = ", ".join(str(n) for n in sorted({row["layers"] for row in few}))
    heads = sorted({row["heads"] for row in few if row["vary_width"]})
    widths = sorted({row["width"] for row in few if row["vary_heads"]})
    return Figure(
        name=f"width-and-heads-{task.lower()}",
        title=f"Width and heads, {task}",
        caption=(
            f"Evaluation loss after training, averaged over positions, against the width at {heads[0]} heads (left) and "
            f"against the number of heads at width {widths[0]} (right); {depths} layers. Means over seeds (and depths, "
            "where there are several), bands are 95 % intervals over seeds."
        ),
        panels=(
            panel("width", "width of the stream", "vary_width"),
            panel("heads", "heads", "vary_heads"),
        ),
    )
