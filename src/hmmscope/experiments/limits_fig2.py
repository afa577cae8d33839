"""[Limits] Figure 2: the evaluation loss at one position while the RNN and Transformers train."""

from typing import Any

from hmmscope import registry
from hmmscope.analysis.fit_length import evaluation_losses
from hmmscope.evidence.figures import Explorer, ExplorerCurve, Figure, Lines, Series
from hmmscope.evidence.pooling import pool_rows
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Measured, Tables
from hmmscope.experiments.limits_models import TASKS, grid
from hmmscope.experiments.limits_tables import (
    EPOCHS,
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
from hmmscope.schema import require

#: The four tasks of the figure; the paper does not name them.
_TASKS = ("cyclic-hard", "cyclic-det", "matmul", "ran-hmm")
_SMOKE = ("cyclic-hard", "cyclic-det")
#: The position shown of each task; 10, 30, 30 and 120 of 120 in the paper.
_POSITIONS = {
    "smoke": {"cyclic-hard": 2, "cyclic-det": 3, "matmul": 2, "ran-hmm": 4, "cyclic-rnd": 3, "ran-lds": 3},
    "small": {"cyclic-hard": 8, "cyclic-det": 12, "matmul": 6, "ran-hmm": 16, "cyclic-rnd": 12, "ran-lds": 15},
    "gpu": {"cyclic-hard": 8, "cyclic-det": 24, "matmul": 16, "ran-hmm": 64, "cyclic-rnd": 24, "ran-lds": 63},
    "paper": {"cyclic-hard": 10, "cyclic-det": 30, "matmul": 30, "ran-hmm": 120, "cyclic-rnd": 30, "ran-lds": 119},
}
_SAMPLES = {"smoke": 64, "small": 1024, "gpu": 4096, "paper": 16384}


@registry.experiment("limits-fig2")
class LimitsFig2(Experiment):
    """See the module."""

    title = "RNNs and Transformers while they train"
    summary = (
        "A one-layer RNN and Transformers of growing depth learn hidden Markov processes that an ideal observer solves "
        "exactly. After each epoch their answers at one position are compared with the exact ones: half the L1 distance of "
        "laws, the Euclidean distance of vectors. The shorter way down is the faster learner. " + EPOCHS
    )
    num_seeds = NUM_SEEDS
    intervals = SEED_INTERVALS
    groups = {"epochs": ("epochs",), "references": ("references",)}

    def choices(self, scale: str) -> dict[str, Any]:
        return {"tasks": list(_SMOKE if scale == "smoke" else _TASKS), "layers": all_layers(scale)}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return grid(scale, choices["tasks"], choices["layers"])

    def measurements(self, scale: str) -> dict[str, Any]:
        positions = {f"position_{task.replace('-', '_')}": at for task, at in _POSITIONS[scale].items()}
        return {"samples": _SAMPLES[scale], **positions}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        if group == "epochs":
            return {"epochs": [row for label, run in runs.items() for row in _epoch_rows(label, run, sizes)]}
        of_task = {identity(label)["task"]: run for label, run in runs.items()}
        return {"references": [row for task, run in of_task.items() for row in _references(task, run, sizes)]}

    def figures(self, tables: Tables) -> list[Figure]:
        return [_shown(tables), _explorer(tables["epochs"])]


def _position(task: str, sizes: dict[str, Any]) -> int:
    at: int = sizes[f"position_{task.replace('-', '_')}"]
    return at


def _epoch_rows(label: str, run: Run, sizes: dict[str, Any]) -> list[dict]:
    """Evaluation losses by epoch, at all positions (lists) and at the one that is shown (``value``)."""
    found, of_run = epochs_of(run), identity(label)
    at, last = _position(of_run["task"], sizes), found.positions[-1]
    option = f"measurements.position_{of_run['task'].replace('-', '_')}"
    require(at in found.positions, option, f"must be in [{found.positions[0]}, {last}]", at)
    index = found.positions.index(at)
    return [
        {**of_run, "epoch": row["epoch"], "step": row["step"], "sequences": row["sequences"]}
        | {"position": at, "value": row["distances"][index]}
        | {"positions": found.positions, "distances": row["distances"]}
        for row in found.rows
    ]


def _references(task: str, run: Run, sizes: dict[str, Any]) -> list[dict]:
    """The evaluation loss, at every position, of a predictor that always gives the same answer."""
    rows = evaluation_losses(run.model, run.corpus("probe"), num_samples=sizes["samples"], target=TASKS[task][1])
    return [{"task": task} | row for row in rows if row["predictor"] == "constant"]


def _shown(tables: Tables) -> Figure:
    rows = tables["epochs"]
    panels = []
    for task in tasks_of(rows):
        own = [row for row in rows if row["task"] == task]
        at = own[0]["position"]
        ends = (min(row["sequences"] for row in own), max(row["sequences"] for row in own))
        nothing = [row["value"] for row in tables["references"] if (row["task"], row["position"]) == (task, at)]
        references = [Series(name="exact filter", role="optimum", x=ends, y=(0.0, 0.0))]
        if nothing:
            level = sum(nothing) / len(nothing)
            references.append(Series(name="always the same answer", role="baseline", x=ends, y=(level, level)))
        models = [
            pooled_series([row for row in own if row["layers"] == n], model_name(n), "model", x="sequences")
            for n in layers_of(own)
        ]
        panels.append(
            Lines(
                title=f"{task_title(task)}, position {at}",
                x_label="sequences seen",
                y_label="evaluation loss",
                series=present(*models, *references),
                y_min=0.0,
                log_x=True,
            )
        )
    return Figure(
        name="evaluation-loss",
        title="Evaluation loss at one position against training",
        caption=(
            "Distance of the answer from the exact one at the position named, against the sequences seen in training, of "
            "which the RNN sees more at reduced scales. "
            "Transformers are trained with the doubling curriculum, so that a position is first seen when "
            "its stage begins. Of Cyclic-HARD only positions at which the state is asked for count. Bands are 95 % "
            "intervals over seeds."
        ),
        panels=tuple(panels),
    )


def _explorer(rows: list[dict]) -> Figure:
    """Every task, model and position."""
    curves = []
    for task in tasks_of(rows):
        for n in layers_of(rows, task):
            own = [row for row in rows if (row["task"], row["layers"]) == (task, n)]
            positions = own[0]["positions"]
            shown_first = own[0]["position"]
            for i, position in sorted(enumerate(positions), key=lambda pair: pair[1] != shown_first):
                at = [{"seed": r["seed"], "sequences": r["sequences"], "value": r["distances"][i]} for r in own]
                pooled = pool_rows(at, ("sequences",))
                if pooled:
                    curves.append(
                        ExplorerCurve(
                            values=(task_title(task), model_name(n), str(position)),
                            x=tuple(row["sequences"] for row in pooled),
                            y=tuple(row["value"] for row in pooled),
                            low=tuple(row["low"] for row in pooled),
                            high=tuple(row["high"] for row in pooled),
                            role="model",
                        )
                    )
    panel = Explorer(
        title="",
        x_label="sequences seen",
        y_label="evaluation loss",
        choices=("task", "model", "position"),
        curves=tuple(curves),
        y_min=0.0,
        log_x=True,
    )
    return Figure(
        name="every-position",
        title="Every task, model and position",
        caption="As above; choose task, model and position. Bands are 95 % intervals over seeds.",
        panels=(panel,),
    )
