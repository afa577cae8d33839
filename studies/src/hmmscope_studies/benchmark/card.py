"""The card of a submission: scores over seeds with intervals, baselines, controls and costs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hmmscope.analysis.intervals import student_quantile
from hmmscope.reprs import Tabular, html_rows
from hmmscope_studies.benchmark.rates import best_rate
from hmmscope_studies.benchmark.scoring import FLOORS, SCORES
from hmmscope_studies.benchmark.tasks import BUDGETS, BenchmarkTask


class Card(Tabular):
    """Results of a submission.

    Attributes:
        data: Contents of ``card.json``.
        path: Path of the submission, or None.
    """

    def __init__(self, data: dict[str, Any], path: Any = None) -> None:
        self.data, self.path = data, path

    def table(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.data["scores"]
        return rows

    def value(self, task: str, score: str) -> float | None:
        found = next(row for row in self.table() if (row["task"], row["score"]) == (task, score))
        value: float | None = found["value"]
        return value

    def __repr__(self) -> str:
        data = self.data
        ranked = "" if data["ranked"] else "; not ranked: " + data["not_ranked"]
        seeds = f"{data['seeds']} seed{'s' * (data['seeds'] != 1)}"
        solved = f"closes {with_interval(data['solved'])} of the gap between a constant predictor and the optimum"
        return f"Card({data['name']}, {data['track']} track: {solved}, {seeds}{ranked})"

    def _repr_html_(self) -> str:
        return html_rows(repr(self), self.table())


def with_interval(row: dict[str, Any], key: str = "value") -> str:
    return f"{row[key]:.3f}" + ("" if row["low"] is None else f" [{row['low']:.3f}, {row['high']:.3f}]")


def make_card(
    about: dict[str, Any], tasks: Sequence[BenchmarkTask], measured: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """Return the contents of ``card.json``.

    Args:
        about: Description of the entry: name, track, seeds, file digest or fields, declared costs, and whether it is
            ranked.
        tasks: Tasks in the order of the card's rows.
        measured: Results for each task, one per seed.
    """
    rows: list[dict[str, Any]] = []
    later = tasks[0].bench != "1"  # which kept no scores of single seeds, and tried no learning rates
    for task in tasks:
        parts = measured[task.name]
        for score in SCORES:
            values = [part["scores"][score] for part in parts]
            floors = {
                name: _mean([part["scores"][f"floor_{name}"] for part in parts]) if score == "excess" else None
                for name in FLOORS
            }
            row = {"task": task.name, "kind": task.frozen_kind, "score": score} | over_seeds(values) | floors
            rows.append(row | (each(values) if later else {}))
    num_seeds = len(next(iter(measured.values())))
    solved = [
        float(np.mean([measured[task.name][n]["scores"]["share_solved"] for task in tasks])) for n in range(num_seeds)
    ]
    every = [part for parts in measured.values() for part in parts]
    budget = BUDGETS[about["track"]]
    seconds = [sum(measured[task.name][n]["seconds"] for task in tasks) for n in range(num_seeds)]
    costs = {
        "parameters": max(part["parameters"] for part in every),
        "tokens": sum(measured[task.name][0]["tokens"] for task in tasks),
        "seconds": max(seconds),
        "limits": {"parameters": budget.parameters, "seconds": budget.seconds},
    }
    if later:
        costs["search_seconds"] = sum(measured[task.name][0]["rates"]["seconds"] for task in tasks)
    costs["within"] = costs["parameters"] <= budget.parameters and costs["seconds"] <= budget.seconds
    return {
        "bench": tasks[0].bench,
        **about,
        "solved": over_seeds(solved) | (each(solved) if later else {}),
        "costs": costs,
        "tasks": {task.name: task.digest for task in tasks},
        "weights": {task.name: [part["weights"] for part in measured[task.name]] for task in tasks},
        **({"rates": {task.name: measured[task.name][0]["rates"]["tried"] for task in tasks}} if later else {}),
        "scores": rows,
    }


def each(values: Sequence[float | None]) -> dict[str, Any]:
    return {"by_seed": list(values)}


def over_seeds(values: Sequence[float | None]) -> dict[str, Any]:
    """Return the mean over seeds, without missing values, and Student's 95 % interval (None for one seed)."""
    known = [value for value in values if value is not None]
    if not known:
        return {"value": None, "low": None, "high": None}
    mean = float(np.mean(known))
    if len(known) < 2:
        return {"value": mean, "low": None, "high": None}
    half = student_quantile(float(len(known) - 1)) * float(np.std(known, ddof=1)) / len(known) ** 0.5
    return {"value": mean, "low": mean - half, "high": mean + half}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def as_text(data: dict[str, Any]) -> str:
    costs, declared = data["costs"], data["declared"]
    said = [f"{key} {declared[key]:g}" for key in ("parameters", "seconds") if declared[key]]
    chosen = ", ".join(f"{key} {value}" for key, value in data.get("fields", {}).items())
    lines = [
        repr(Card(data)),
        *([f"chosen fields of the model: {chosen}"] if chosen else []),
        f"measured: {costs['parameters']:,} parameters, {costs['tokens']:,} tokens, {costs['seconds']:.0f} seconds per "
        f"seed; {'within' if costs['within'] else 'above'} the limits of the track; "
        f"declared by the submitter: {', '.join(said) or 'nothing'}",
        f"{'task':<16} {'excess':>9} {'constant':>9} {'n-gram':>9} {'untrained':>9} {'shuffled':>9} {'solved':>7} "
        f"{'fit':>5} {'8 T':>5} {'belief':>7}",
    ]
    later = "by_seed" in data["solved"]
    if later:
        lines[-1] += f" {'rate':>8}  solved by seed"
        mean = " ".join(_number(value, 3) for value in data["solved"]["by_seed"])
        lines.insert(
            -1,
            f"mean fraction solved, by seed: {mean}; search of learning rates: {costs['search_seconds']:.0f} seconds",
        )
    by_task: dict[str, dict[str, Any]] = {}
    for row in data["scores"]:
        by_task.setdefault(row["task"], {})[row["score"]] = row
    for task, rows in by_task.items():
        excess = rows["excess"]
        floors = " ".join(f"{_number(excess[name], 4):>9}" for name in FLOORS)
        shares = f"{_number(rows['share_solved']['value'], 3):>7} {_number(rows['fit_length']['value'], 2):>5}"
        long = f"{_number(rows['long_fit_length']['value'], 2):>5} {_number(rows['belief_share']['value'], 3):>7}"
        lines.append(f"{task:<16} {_number(excess['value'], 4):>9} {floors} {shares} {long}")
        if later:
            seeds = " ".join(_number(value, 3) for value in rows["share_solved"]["by_seed"])
            lines[-1] += f" {best_rate(data['rates'][task]):>8.2g}  {seeds}"
    return "\n".join(lines)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
