"""Fit lengths for claims on the grid of [Limits]."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hmmscope import Run, fit_length
from hmmscope.analysis import crossing_length, evaluation_losses, fit_start
from hmmscope.inference import window_errors
from hmmscope.lab import Effect, EstimateWithError, Gate, Numbers, Rows, Tables, parameter
from hmmscope.ties import smallest
from hmmscope_papers.limits.tables import (
    HARD,
    REMEMBERING,
    WHILE_TRAINING,
    WIDTH,
    drift,
    each,
    each_task,
    epochs_of,
    layers_of,
    loss_of,
    over_seeds,
    task_title,
)
from hmmscope_papers.limits.trainings import TASKS

#: Error rate of the claims about growth.
RATE = 0.1
#: The same cycles with the state as a training signal, and without.
CYCLES = ("cyclic-det", HARD)
#: Largest supervision rate allowed, in questions per action: twice the paper's 1 in 120.
RARELY = 1 / 60


# ---------------------------------------------------------------------------------------------------------------------
# Measurements


def final_losses(run: Run, task: str, sizes: dict[str, Any]) -> list[dict]:
    return evaluation_losses(
        run.model,
        run.dataset("probe"),
        num_samples=sizes["samples"],
        target=TASKS[task][1],
        least_count=sizes["least_count"],
        block_length=run.config.training.block_length,
    )


def fit_lengths(run: Run, final: list[dict], sizes: dict[str, Any]) -> list[dict]:
    found = epochs_of(run)
    sources: list[tuple[str, str, list[list[float | None]], int]] = [
        ("model", "epochs", found.distances, sizes["last_epochs"]),
        *[(name, "final", [_column(final, name, found.positions)], 1) for name in ("model", "constant")],
    ]
    return [
        {
            "predictor": predictor,
            "by": by,
            "definition": sizes["definition"],
            "error_rate": rate,
            "value": fit_length(losses, found.positions, rate, last=last, definition=sizes["definition"]),
            "length": crossing_length(losses, found.positions, rate, last=last),
            "fits_from": fit_start(losses, found.positions, rate, last=last),
            "longest": found.positions[-1],
        }
        for predictor, by, losses, last in sources
        for rate in sizes["error_rates"]
    ]


def _column(rows: list[dict], predictor: str, positions: list[int]) -> list[float | None]:
    found = {row["position"]: row["value"] for row in rows if row["predictor"] == predictor}
    return [found.get(position) for position in positions]


def windows_of(task: str, run: Run, sizes: dict[str, Any]) -> list[dict]:
    process, windows, count = run.process, sizes["windows"], sizes["window_samples"]
    positions = [int(p) for p in run.target.positions if p > 0]
    keys = ("window", "position", "value", "low", "high")
    found: list[tuple[int, int, float, float, float]] = []
    if process.real_valued:
        errors = window_errors(process, windows, positions, num_samples=count)
        places = [(i, j) for j, t in enumerate(positions) for i, w in enumerate(windows) if w <= t]
        found = [(windows[i], positions[j], *_numbers(errors, (i, j))) for i, j in places]
    elif task == "cyclic-rnd" or process.params.states_emit:
        kept = windows[:1] if task == "cyclic-rnd" else windows
        errors = window_errors(process, kept, positions, num_samples=count)
        found = [(w, t, *_numbers(errors, (i, j))) for i, w in enumerate(kept) for j, t in enumerate(positions)]
    return [{"task": task, "samples": count} | dict(zip(keys, row, strict=True)) for row in found]


def _numbers(errors: Any, index: Any) -> tuple[float, float, float]:
    return float(errors.mean[index]), float(errors.low[index]), float(errors.high[index])


# ---------------------------------------------------------------------------------------------------------------------
# Reading

#: Fit length by number of layers.
Lengths = dict[int, EstimateWithError]


def length_of(
    rows: Rows, error_rate: float, definition: str | None = None, numbers: Numbers = None
) -> EstimateWithError:
    """Return the interpolated fit length of a model, with its sampling error.

    Args:
        rows: Evaluation losses by ``position`` with ``value``, ``low`` and ``high``, of one model and seed.
        error_rate: Loss at which the fit ends.
        definition: "prefix" or "max", see `fit_length` (default: taken from `numbers`, else "prefix").
    """
    definition = parameter(numbers, "definition", "prefix") if definition is None else definition
    ordered = sorted(rows, key=lambda row: row["position"])
    positions = [row["position"] for row in ordered]
    value, low, high = (
        crossing_length(
            [[row.get(column, row["value"]) for row in ordered]], positions, error_rate, definition=definition
        )
        for column in ("value", "low", "high")
    )
    return EstimateWithError(value, max(low - high, 0.0) / WIDTH)


def claimed_length(own: Rows, numbers: Numbers) -> EstimateWithError:
    return length_of(own, parameter(numbers, "rate", RATE), numbers=numbers)


def log2(estimate: EstimateWithError) -> EstimateWithError:
    value = max(estimate.value, 1.0)
    return EstimateWithError(math.log2(value), estimate.error / value / math.log(2))


def slope(points: Sequence[tuple[float, EstimateWithError]]) -> EstimateWithError:
    centre = math.fsum(x for x, _ in points) / len(points)
    spread = math.fsum((x - centre) ** 2 for x, _ in points)
    shares = [((x - centre) / spread, y) for x, y in points]
    error = math.hypot(*(share * y.error for share, y in shares))
    return EstimateWithError(math.fsum(share * y.value for share, y in shares), error)


def lengths(own: Rows, rate: float | None = None, numbers: Numbers = None) -> Lengths:
    rate = parameter(numbers, "rate", RATE) if rate is None else rate
    return {n: length_of(own.where(layers=n), rate, numbers=numbers) for n in layers_of(own)}


def lengths_then(own: Rows, rate: float | None = None, numbers: Numbers = None) -> Lengths:
    rate = parameter(numbers, "rate", RATE) if rate is None else rate
    return {row["layers"]: EstimateWithError(row["length"]) for row in own.where(error_rate=rate)}


def growing(found: Lengths, task: str, longest: int) -> Lengths:
    """Keep Transformers whose growth the paper claims: on MatMul, only those with 2^layers < `longest` (footnote 2)."""
    return {n: one for n, one in found.items() if n > 0 and not (task == "matmul" and 2**n >= longest)}


def growth(found: Lengths, longest: int, most: float = 1.0) -> EstimateWithError | None:
    points = []
    for n, length in found.items():
        points.append((float(n), log2(length)))
        if length.value > most * longest or length.value >= longest:
            break
    return slope(points) if len(points) > 1 else None


def slack(own: Rows, rate: float) -> EstimateWithError:
    worst = sorted(own, key=lambda row: row["value"])[-2:][0]
    return EstimateWithError(rate - worst["value"], loss_of(Rows([worst])).error)


def models(tables: Tables) -> Rows:
    return tables["positions"].where(predictor="model")


def deep(tables: Tables) -> list[int]:
    return [n for n in layers_of(models(tables)) if n > 0]


def growing_by_task(
    tables: Tables,
    measure: Callable[[Lengths, int], EstimateWithError | None],
    unit: str,
    rate: float,
    numbers: Numbers = None,
) -> tuple[dict[str, Effect], dict[str, float | None]]:

    def now(own: Rows) -> EstimateWithError | None:
        longest = max(own.values("position"))
        return measure(growing(lengths(own, rate, numbers), own[0]["task"], longest), longest)

    def then(own: Rows) -> EstimateWithError | None:
        return measure(growing(lengths_then(own, rate, numbers), own[0]["task"], own[0]["longest"]), own[0]["longest"])

    return each_task(models(tables), REMEMBERING, now, unit), drifts_of(tables, REMEMBERING, then, numbers=numbers)


def drifts_of(
    tables: Tables,
    tasks: Sequence[str],
    measure: Callable[[Rows], EstimateWithError | float | None],
    *,
    numbers: Numbers = None,
    **where: Any,
) -> dict[str, float | None]:
    return {
        task_title(task): drift(tables.get(WHILE_TRAINING, Rows()).where(task=task, **where), measure, numbers)
        for task in tasks
    }


def slack_then(rate: float, numbers: Numbers = None) -> Callable[[Rows], float | None]:

    def measure(own: Rows) -> float | None:
        worst = [row["worst"] for row in own.where(error_rate=parameter(numbers, "rate", RATE))]
        return rate - min(worst) if worst and None not in worst else None

    return measure


def by_depth(tables: Tables, tasks: Sequence[str], numbers: Numbers = None) -> str:
    said, depths = [], deep(tables)
    counted = tables["fit-lengths"].where(predictor="model", by="epochs", error_rate=parameter(numbers, "rate", RATE))
    for task, own in models(tables).where(task=tasks, layers=depths).by("task").items():
        lengths_ = each(own, "layers", lambda one: claimed_length(one, numbers))
        whole = {row["layers"]: row["value"] for row in counted.where(task=task).pool("layers")}
        exact = ", ".join(f"{lengths_[n].value:.3g}" for n in depths if n in lengths_)
        integers = ", ".join(f"{whole[n]:.3g}" for n in depths if n in whole)
        whole_length = max(own.values("position"))
        said.append(f"{task_title(task)} {exact} (in whole positions {integers}) of {whole_length} positions")
    layers = ", ".join(map(str, depths))
    return f"Mean 0.1-fit lengths of Transformers of {layers} layers: {'; '.join(said) or 'none'}."


def doublings_left(found: Lengths, longest: int) -> EstimateWithError | None:
    shallowest = min(found.items(), default=None)
    return None if shallowest is None else EstimateWithError(math.log2(longest)) - log2(shallowest[1])


def both_cycles(
    tables: Tables, measure: Callable[[Lengths, Lengths], EstimateWithError | None], unit: str, numbers: Numbers = None
) -> tuple[Effect | None, float | None]:

    def measured(read: Callable[[Rows], Lengths]) -> Callable[[Rows], EstimateWithError | None]:
        def of_seed(own: Rows) -> EstimateWithError | None:
            easy, hard = (own.where(task=task) for task in CYCLES)
            return measure(read(easy), read(hard)) if easy and hard else None

        return of_seed

    rows = tables.get(WHILE_TRAINING, Rows()).where(task=list(CYCLES), layers=deep(tables))
    effect = over_seeds(models(tables).where(layers=deep(tables)), measured(partial(lengths, numbers=numbers)), unit)
    return effect, drift(rows, measured(partial(lengths_then, numbers=numbers)), numbers)


def learned_by(tables: Tables, tasks: Sequence[str], *layers: int, numbers: Numbers = None) -> tuple[Gate, ...]:

    def lead(own: Rows) -> EstimateWithError:
        return claimed_length(own.where(predictor="model"), numbers) - claimed_length(
            own.where(predictor="constant"), numbers
        )

    rows, gates = tables["positions"].where(task=list(tasks), layers=layers), []
    for task in tasks:
        found = [over_seeds(own, lead, resolution=1.0) for own in rows.where(task=task).by("layers").values()]
        known = [one for one in found if one is not None]
        least = smallest(known, lambda one: one.value) if known and len(known) == len(found) else None
        what = f"a constant answer in fit length (in positions, {_who(layers)} on {task_title(task)})"
        gates.append(Gate.learned(least, parameter(numbers, "learned"), what).about(task_title(task)))
    return tuple(gates)


def _who(layers: Sequence[int]) -> str:
    return "Transformer" if any(layers) else "RNN"


def rarely_asked(rows: Rows, numbers: Numbers = None) -> tuple[Gate, ...]:
    own = rows.where(task=HARD) or rows.where(task="Cyclic-HARD")
    return asked_once_in(1 + max(own.values("position")), numbers) if own else ()


def asked_once_in(actions: int, numbers: Numbers = None) -> tuple[Gate, ...]:
    asked = 1 / actions
    gate = Gate.regime(
        asked,
        0,
        parameter(numbers, "rarely", RARELY),
        "the fraction of actions after which the model must predict the state",
    )
    return (gate.about(task_title(HARD)),)
