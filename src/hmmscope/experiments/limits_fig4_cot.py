"""[Limits] Figure 4, right: block chain-of-thought beside training without it."""

from typing import Any

from hmmscope import registry
from hmmscope.analysis.fit_length import evaluation_losses
from hmmscope.errors import InputError
from hmmscope.evidence.figures import Figure
from hmmscope.experiments.experiment import SEED_INTERVALS, Experiment, Measured, Tables
from hmmscope.experiments.limits_fig4_cot_figures import blocks_figure, final_figure, training_figure
from hmmscope.experiments.limits_models import TASKS, limits_config
from hmmscope.experiments.limits_studies import evaluations_of, fit_length_of, shortened
from hmmscope.runs.pipeline import Run, untrained_twin
from hmmscope.schema import require, unknown_name

#: What shapes the plan. Layers are those of the tasks in their order; block length 0 is without; steps 0: of the scale.
CHOICES: dict[str, dict[str, Any]] = {
    "smoke": {"tasks": ["cyclic-det"], "layers": [1], "blocks": [0, 1, 2], "length": 4, "steps": 12},
    "small": {
        **{"tasks": ["cyclic-det", "matmul"], "layers": [1, 2], "blocks": [0, 1, 2, 4, 8]},
        **{"length": 16, "steps": 1000},
    },
    "gpu": {
        **{"tasks": ["cyclic-det", "matmul"], "layers": [2, 3], "blocks": [0, 2, 4, 8, 16]},
        **{"length": 60, "steps": 3000},
    },
    "paper": {
        **{"tasks": ["cyclic-det", "matmul"], "layers": [3, 4], "blocks": [0, 1, 8, 12, 24]},
        **{"length": 60, "steps": 0},
    },
}
#: The block chain-of-thought of the paper is trained on a smaller set.
PAPER_TRAJECTORIES = 1_000_000
ERROR_RATES = (0.05, 0.1)


@registry.experiment("limits-fig4-cot")
class Figure4CoT(Experiment):
    """See the module."""

    title = "Block chain-of-thought lets a shallow Transformer follow long sequences"
    summary = (
        "A Transformer that is too shallow for its sequences hears its own answer after every b observations. With b = 1 "
        "that is chain-of-thought, and a layer need only make one step of the process; with b beyond what its depth can "
        "follow, no answer is worth hearing."
    )
    num_seeds = {"smoke": 2, "small": 3, "gpu": 3, "paper": 1}
    intervals = SEED_INTERVALS
    groups = {"errors": ("errors", "final"), "training": ("training",)}

    def choices(self, scale: str) -> dict[str, Any]:
        return dict(CHOICES[scale])

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        tasks, layers = choices["tasks"], choices["layers"]
        rule = f"must have a number for each of {len(tasks)} tasks"
        require(len(layers) == len(tasks), "plan.layers", rule, layers)
        for task in tasks:
            if task not in TASKS:
                raise unknown_name("plan.tasks", task, TASKS)
            if TASKS[task][1] != "belief":
                raise InputError(f"plan.tasks: must be asked for beliefs, which tell the state, got {task}")
        return {
            _label(task, block): limits_config(
                scale,
                task,
                depth,
                length=choices["length"],
                training=_training(scale, depth, choices["steps"]) | {"block_length": block},
            )
            for task, depth in zip(tasks, layers, strict=True)
            for block in choices["blocks"]
        }

    def measurements(self, scale: str) -> dict[str, Any]:
        return {"samples": {"smoke": 32, "small": 1024}.get(scale, 4096), "position": CHOICES[scale]["length"]}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        longest = min(run.config.layout.num_observations for run in runs.values())
        require(
            1 <= sizes["position"] <= longest, "measurements.position", f"must be in [1, {longest}]", sizes["position"]
        )
        if group == "training":
            return {"training": [row for run in runs.values() for row in _training_rows(run, sizes["position"])]}
        errors, final = [], []
        for run in runs.values():
            rows = _error_rows(run, sizes["samples"])
            errors += rows
            final.append(_final_row(run, [row for row in rows if row["predictor"] == "trained"], sizes["position"]))
        return {"errors": errors, "final": final}

    def figures(self, tables: Tables) -> list[Figure]:
        return [training_figure(tables["training"]), final_figure(tables["final"]), blocks_figure(tables["errors"])]


def _label(task: str, block: int) -> str:
    return f"{task}, {f'block {block}' if block else 'without'}"


def _training(scale: str, depth: int, steps: int) -> dict[str, Any]:
    """The recipe: at the paper's scale with its smaller training set."""
    if steps or scale != "paper":
        return shortened(steps)
    batch = limits_config(scale, "cyclic-det", depth)["training"]["batch_size"]
    epoch = -(-PAPER_TRAJECTORIES // batch)
    changes = {"num_trajectories": PAPER_TRAJECTORIES, "num_steps": 100 * epoch}
    return changes | {"evaluate_every": epoch, "checkpoint_every": epoch}


def _names(run: Run) -> dict[str, Any]:
    """Columns that tell runs apart."""
    config = run.config
    return {
        "task": TASKS[config.process.name][2],
        "layers": config.model.num_layers,
        "block_length": config.training.block_length,
    }


def _error_rows(run: Run, num_samples: int) -> list[dict]:
    """Errors by position before and after training; the model hears its own answers, as when it was trained."""
    rows = []
    for name, model in {"trained": run.model, "untrained": untrained_twin(run)}.items():
        found = evaluation_losses(
            model,
            run.corpus(),
            num_samples=num_samples,
            target=run.config.target,
            block_length=run.config.training.block_length,
        )
        rows += [_names(run) | row | {"predictor": name} for row in found if row["predictor"] == "model"]
    return rows


def _final_row(run: Run, rows: list[dict], position: int) -> dict:
    """Error at the chosen position, and fit lengths."""
    by_position = {row["position"]: row["value"] for row in rows}
    fits = {f"fit_{rate:g}": fit_length_of(run, rate) for rate in ERROR_RATES}
    return _names(run) | {"chosen_position": position, "error": by_position[position], **fits}


def _training_rows(run: Run, position: int) -> list[dict]:
    """Error at the chosen position at each evaluation of the training."""
    steps, positions, losses = evaluations_of(run)
    column, per_epoch = positions.index(position), run.config.training.steps_per_epoch
    return [
        _names(run) | {"step": step, "epoch": step / per_epoch, "chosen_position": position, "value": found[column]}
        for step, found in zip(steps, losses, strict=True)
    ]
