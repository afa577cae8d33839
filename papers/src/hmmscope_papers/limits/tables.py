"""Shared helpers of the [Limits] experiments."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from hmmscope import Run, fit_length
from hmmscope.analysis import crossing_length
from hmmscope.lab import Effect, EstimateWithError, Gate, Numbers, Role, Rows, Series, Tables, curve, parameter
from hmmscope_papers.limits.trainings import TASKS, depths

#: Explains the word epoch at reduced scales.
EPOCHS = (
    "An epoch is a twentieth of a Transformer's training (at scale paper, a pass over the fixed training set). After "
    "each epoch the model is evaluated on the same held-out samples."
)

#: Tasks that remember, tasks that forget, and the task with rare supervision.
REMEMBERING = ("cyclic-det", "cyclic-rnd", "matmul")
FORGETTING = ("ran-hmm", "ran-lds")
HARD = "cyclic-hard"

#: The table of fit lengths while training, and the number of evaluations it stores for a run.
WHILE_TRAINING = "lengths-by-epoch"
_KEPT = 20
#: A fit length has converged if it changes by less over the last doubling of the training, in doublings.
LENGTH_AT_REST = 0.1
#: The same for a mean evaluation loss; a smaller loss has reached its lower bound.
LOSS_AT_REST = 0.01
#: Width of a 95 % interval of the normal distribution, in standard errors.
WIDTH = 3.92


def all_layers(scale: str) -> list[int]:
    return [0, *depths(scale)]


def titles(tasks: Iterable[str]) -> tuple[str, ...]:
    return tuple(TASKS[task][2] for task in tasks)


def task_title(task: str) -> str:
    return TASKS[task][2]


def model_name(num_layers: int) -> str:
    return "RNN" if num_layers == 0 else f"{num_layers} layer{'s' * (num_layers > 1)}"


def layers_of(rows: Rows) -> list[int]:
    return sorted(rows.values("layers"))


# ---------------------------------------------------------------------------------------------------------------------
# Runs


class Epochs(NamedTuple):
    """Evaluations during a training.

    Attributes:
        positions: Positions t >= 1 of `distances`, after t observations.
        rows: ``epoch`` (from 1), ``step``, ``sequences`` and ``tokens`` seen so far, ``training_loss`` (mean since the
            last evaluation), ``evaluation_loss``, ``distances`` (evaluation loss by position).
    """

    positions: list[int]
    rows: list[dict[str, Any]]

    @property
    def distances(self) -> list[list[float | None]]:
        return [row["distances"] for row in self.rows]


def epochs_of(run: Run) -> Epochs:
    spec, layout, target = run.config.training, run.config.layout, run.target
    kept = [i for i, position in enumerate(target.positions) if position > 0]
    extra = layout.context_length - layout.num_observations
    rows: list[dict[str, Any]] = []
    losses: list[float] = []
    tokens = 0
    for record in run.table():
        tokens += spec.batch_size * (spec.stage_length(record["step"] - 1, layout.num_observations) + extra)
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


def fit_length_of(run: Run, error_rate: float) -> int:
    found = epochs_of(run)
    return fit_length(found.distances, found.positions, error_rate)


def trivial_loss(run: Run, num_samples: int) -> float:
    target, batch = run.target, run.dataset("probe")[0:num_samples]
    optimum, labels = target.optimum(batch), target.labels(batch)
    labels = labels.double() if labels.is_floating_point() else labels
    return float(target.loss_terms(optimum.mean((0, 1)).expand_as(optimum), labels).mean())


def training_rows(run: Run, error_rates: Sequence[float], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows of `WHILE_TRAINING`: fit lengths and losses at no more than twenty epochs.

    Returns:
        `facts` with ``error_rate``, ``longest`` (last position), ``epoch``, ``share`` (fraction of training done),
            ``sequences``, ``tokens``, ``value`` (fit length), ``length`` (interpolated ``value``), ``loss`` (mean over
            positions) and ``worst`` (largest loss).
    """
    found = epochs_of(run)
    count = len(found.rows)
    kept = sorted({round(i * (count - 1) / max(1, min(count, _KEPT) - 1)) for i in range(min(count, _KEPT))})
    rows = []
    for i in kept:
        epoch = {key: found.rows[i][key] for key in ("epoch", "sequences", "tokens")} | {"share": (i + 1) / count}
        known = [loss for loss in found.rows[i]["distances"] if loss is not None]
        epoch |= {"loss": sum(known) / len(known) if known else None, "worst": max(known, default=None)}
        for rate in error_rates:
            fitted = {
                name: measure([found.rows[i]["distances"]], found.positions, rate)
                for name, measure in (("value", fit_length), ("length", crossing_length))
            }
            rows.append({**facts, "error_rate": rate, "longest": found.positions[-1]} | epoch | fitted)
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Measures of claims


def each(
    rows: Rows,
    column: str,
    measure: Callable[[Rows], EstimateWithError | float | None],
    unit: str = "",
    *,
    resolution: float = 0.0,
) -> dict[Any, Effect]:
    found = {key: over_seeds(own, measure, unit, resolution=resolution) for key, own in rows.by(column).items()}
    return {key: effect for key, effect in found.items() if effect is not None}


def each_task(
    rows: Rows,
    tasks: Iterable[str],
    measure: Callable[[Rows], EstimateWithError | float | None],
    unit: str,
    *,
    resolution: float = 0.0,
) -> dict[str, Effect]:
    found = each(rows.where(task=list(tasks)), "task", measure, unit, resolution=resolution)
    return {task_title(task): found[task] for task in tasks if task in found}


def over_seeds(
    rows: Rows, measure: Callable[[Rows], EstimateWithError | float | None], unit: str = "", *, resolution: float = 0.0
) -> Effect | None:
    values = list(rows.per_seed(measure).values())
    return Effect.pooled(values, unit, resolution=resolution) if any(value is not None for value in values) else None


def sampled(row: Mapping[str, Any]) -> EstimateWithError:
    low, high = row.get("low"), row.get("high")
    return EstimateWithError(row["value"], 0.0 if low is None or high is None else (high - low) / WIDTH)


def loss_of(rows: Rows) -> EstimateWithError:
    count = len(rows)
    error = math.fsum(row.get("high", row["value"]) - row.get("low", row["value"]) for row in rows) / count / WIDTH
    return EstimateWithError(math.fsum(row["value"] for row in rows) / count, error)


def told(effects: Mapping[str, Effect]) -> str:
    return "; ".join(f"{name} {effect.short()}" for name, effect in effects.items()) or "none"


# ---------------------------------------------------------------------------------------------------------------------
# Gates and controls

#: Numbers of an evaluation in `WHILE_TRAINING`.
_SEEN = ("value", "length", "loss", "worst")
_NO_FACTS = {"epoch", "step", "share", "sequences", "tokens", "longest", "error_rate", *_SEEN}
#: Evaluations are averaged over this fraction of the training, at its half and its end.
_ABOUT = 0.1


def while_training(tables: Tables, **where: Any) -> Rows:
    rows = tables.get(WHILE_TRAINING, Rows()).where(**where)
    return rows.where(error_rate=max(rows.values("error_rate"))) if rows else rows


def losses_at_rest(rows: Rows, numbers: Numbers = None) -> Gate:

    def change(end: dict[str, Any], before: dict[str, Any]) -> float:
        return (
            0.0
            if end["loss"] < parameter(numbers, "loss_at_rest", LOSS_AT_REST)
            else float(end["loss"] - before["loss"])
        )

    facts = [name for name in (rows[0] if rows else ()) if name not in _NO_FACTS and name != "seed"]
    changes = {
        ", ".join(f"{fact} {own[0][fact]}" for fact in facts): mean_late_change(own, change, numbers)
        for own in (rows.by(*facts).values() if facts else ())
    }
    return Gate.converged(changes, parameter(numbers, "loss_at_rest", LOSS_AT_REST), "mean evaluation loss")


def mean_late_change(
    rows: Rows, change: Callable[[dict[str, Any], dict[str, Any]], float | None], numbers: Numbers = None
) -> float | None:
    changes = [late_change(own, change, numbers) for own in rows.by("seed").values()]
    known = [one for one in changes if one is not None]
    return fmean(known) if known and len(known) == len(changes) else None


def late_change(
    rows: Rows, change: Callable[[dict[str, Any], dict[str, Any]], float | None], numbers: Numbers = None
) -> float | None:
    end = max(rows, key=lambda row: row["share"])
    before = max(
        (row for row in rows if row["share"] <= parameter(numbers, "late")), key=lambda row: row["share"], default=None
    )
    return None if before is None else change(end, before)


def moving_layers(rows: Rows) -> list[int]:
    changes = {n: drift(rows.where(layers=n), lambda own: log2_length(own[0])) for n in layers_of(rows) if n > 0}
    return [n for n, change in changes.items() if change is not None and abs(change) >= LENGTH_AT_REST]


def log2_length(row: dict[str, Any]) -> float:
    return math.log2(max(row["length"], 1.0))


def drift(
    rows: Rows, measure: Callable[[Rows], EstimateWithError | float | None], numbers: Numbers = None
) -> float | None:
    """Return the mean change of a measure over the last doubling of training; None if a seed lacks the measure.

    Args:
        rows: Rows of `WHILE_TRAINING` that the measure depends on.
        measure: Function of rows of one seed: one row per training, from half or the end of it.
    """
    half = rows.per_seed(lambda own: measure(_at_share(own, 0.5, numbers)))
    end = rows.per_seed(lambda own: measure(_at_share(own, 1.0, numbers)))
    return mean_change(half, end)


def mean_change(
    before: Mapping[Any, EstimateWithError | float | None], after: Mapping[Any, EstimateWithError | float | None]
) -> float | None:
    changes = [
        None if now is None or (then := before.get(seed)) is None else _number(now) - _number(then)
        for seed, now in after.items()
    ]
    known = [change for change in changes if change is not None]
    return fmean(known) if known and len(known) == len(changes) else None


def _number(value: EstimateWithError | float) -> float:
    return value.value if isinstance(value, EstimateWithError) else value


def _at_share(rows: Rows, share: float, numbers: Numbers = None) -> Rows:
    keys = [name for name in (rows[0] if rows else ()) if name not in _NO_FACTS] + ["error_rate"]
    found = Rows()
    for own in rows.by(*keys).values():
        near = [row for row in own if share - parameter(numbers, "about", _ABOUT) - 1e-9 < row["share"] <= share + 1e-9]
        near = near or [min(own, key=lambda row: abs(row["share"] - share))]
        means = {name: _mean([row.get(name) for row in near]) for name in _SEEN}
        found.append(near[-1] | means)
    return found


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def with_share(rows: Rows, column: str) -> Rows:
    most = max(rows.values(column))
    return rows.with_columns(share=lambda row: row[column] / most)


def equal_budgets(tables: Tables, labels: Mapping[str, str]) -> Gate:
    """Return the precondition "matched": the compared runs must have equal mean training budgets."""
    budgets: dict[str, dict[str, float]] = {}
    for name, label in labels.items():
        rows = tables.get("runs", Rows()).where(label=label)
        for key in ("sequences", "tokens", "flops", "seconds"):
            spent = [row[key] for row in rows if row.get(key) is not None]
            budgets.setdefault(name, {}).update({key: fmean(spent)} if spent and len(spent) == len(rows) else {})
    return Gate.matched(budgets)


def relabelled(rows: Rows, control: str, trained: str = "model", column: str = "predictor") -> Rows:
    others = Rows(row for row in rows if row.get(column) != trained)
    return Rows([*others, *rows.where(**{column: control}).with_columns(**{column: lambda row: trained})])


def never_fitting(rows: Rows) -> Rows:
    columns = {name: 0.0 for name in ("value", "length", "fit_length") if name in (rows[0] if rows else ())}
    return Rows(row | columns for row in rows)


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def flat(rows: Rows, ends: Iterable[float], name: str, role: Role, y: str = "value") -> Series | None:
    return curve(Rows(row | {"at": at} for row in rows for at in ends), "at", name, role, y=y)


def baselines(tables: Tables, task: str) -> tuple[Series, ...]:
    windows = tables["windows"].where(task=task)
    constant = tables["positions"].where(task=task, predictor="constant")
    found = [
        curve(constant, "position", "constant answer", "baseline"),
        *[
            curve(windows.where(window=w), "position", _window_name(w), "baseline")
            for w in sorted(windows.values("window"))
        ],
    ]
    return tuple(one for one in found if one is not None)


def _window_name(window: int) -> str:
    return "stationary distribution" if window == 0 else f"exact, last {window} observation{'s' * (window > 1)}"
