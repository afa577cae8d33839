"""What the experiments on the grid of [Limits] read from its runs: rows by epoch, and their figures' common parts."""

from typing import Any, NamedTuple

from hmmscope.evidence.figures import Series
from hmmscope.evidence.pooling import pool_rows
from hmmscope.experiments.limits_models import TASKS, depths, of_label
from hmmscope.runs.pipeline import Run
from hmmscope.storage import rundir
from hmmscope.training.schedules import stage_length

#: The sentence on what an epoch is at reduced scale.
EPOCHS = (
    "An epoch is a twentieth of the training of a Transformer (at scale paper a pass over the fixed set); after each the "
    "model is evaluated on the same samples, which are not trained on. At reduced scales the RNN has four times as many."
)


def all_layers(scale: str) -> list[int]:
    """The RNN (0) and the depths of a scale."""
    return [0, *depths(scale)]


def task_title(task: str) -> str:
    """As in figures."""
    return TASKS[task][2]


def model_name(num_layers: int) -> str:
    """``RNN`` or ``3 layers``, as in figures."""
    return "RNN" if num_layers == 0 else f"{num_layers} layer{'s' * (num_layers > 1)}"


def tasks_of(rows: list[dict]) -> list[str]:
    """The tasks in a table, in order of appearance."""
    return list(dict.fromkeys(row["task"] for row in rows))


def layers_of(rows: list[dict], task: str | None = None) -> list[int]:
    """The numbers of layers in a table, ascending; 0 is the RNN."""
    return sorted({row["layers"] for row in rows if task in (None, row["task"])})


class Epochs(NamedTuple):
    """A training, evaluation by evaluation.

    Attributes:
        positions: those of `distances`: t observations are known, t >= 1.
        rows: ``epoch`` (1-based number of the evaluation), ``step``, ``sequences`` and ``tokens`` seen so far,
            ``training_loss`` (mean over the steps since the last evaluation), ``evaluation_loss``, ``distances`` (el_t by
            position, None where no sample counted).
    """

    positions: list[int]
    rows: list[dict[str, Any]]


def epochs_of(run: Run) -> Epochs:
    """The evaluations during a training, from its metrics."""
    spec, layout, target = run.config.training, run.config.layout, run.target
    kept = [i for i, position in enumerate(target.positions) if position > 0]
    extra = layout.num_columns - layout.num_observations
    rows: list[dict[str, Any]] = []
    losses: list[float] = []
    tokens = 0
    for record in rundir.read_journal(run.path / "metrics.jsonl"):
        tokens += spec.batch_size * (stage_length(spec, record["step"] - 1, layout.num_observations) + extra)
        losses.append(record["loss"])
        if "distances" in record:
            rows.append(
                {
                    "epoch": len(rows) + 1,
                    "step": record["step"],
                    "sequences": record["step"] * spec.batch_size,
                    "tokens": tokens,
                    "training_loss": sum(losses) / len(losses),
                    "evaluation_loss": record["evaluation_loss"],
                    "distances": [record["distances"][i] for i in kept],
                }
            )
            losses = []
    return Epochs([int(target.positions[i]) for i in kept], rows)


def identity(label: str) -> dict[str, Any]:
    """The columns that say which run a row is of."""
    task, layers = of_label(label)
    return {"task": task, "layers": layers}


def pooled_series(rows: list[dict], name: str, role: str, *, x: str, y: str = "value") -> Series | None:
    """Means over seeds as a curve, with their interval; None if there is no row."""
    pooled = sorted(pool_rows(rows, (x,), y), key=lambda row: row[x])
    if not pooled:
        return None
    columns = {column: tuple(row[column] for row in pooled) for column in (x, y, "low", "high")}
    return Series(
        name=name,
        role=role,  # type: ignore[arg-type]
        x=columns[x],
        y=columns[y],
        low=columns["low"],
        high=columns["high"],
    )


def present(*series: Series | None) -> tuple[Series, ...]:
    """Those that exist."""
    return tuple(one for one in series if one is not None)
