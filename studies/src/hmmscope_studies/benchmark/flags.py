"""Signs that an entry computes the answer instead of learning it.

A flag is no proof: flagged submissions are accepted, but listed after the others as exact or fitted models.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hmmscope.storage import disk, store
from hmmscope_studies.benchmark.submission import ENTRY, SOURCE, WEIGHTS
from hmmscope_studies.benchmark.tasks import TASKS_OF, BenchmarkTask, tasks_of

#: Fraction of a task solved before training, above which training is not what solves it. Built-in models: at most .18.
UNTRAINED = 0.5
#: Fewest parameters of a task (and at least half) that raise a flag if a file or weight tensor contains them.
FOUND = 3
#: Modules of a model file that compute exact answers.
_EXACT = ("hmmscope", "hmmscope_papers", "hmmscope_studies", "hmmlearn", "pomegranate", "dynamax")


def card_flags(card: dict[str, Any]) -> list[str]:
    rows = [row for row in card["scores"] if row["score"] == "excess" and row["constant"]]
    solved = {row["task"]: 1 - row["untrained"] / row["constant"] for row in rows if row["untrained"] is not None}
    if not solved:
        return ["every build has the same weights"]
    task = max(solved, key=solved.__getitem__)
    return [f"untrained weights solve {solved[task]:.2f} of {task}"] if solved[task] >= UNTRAINED else []


def submission_flags(path: Path) -> list[str]:
    """Return flags of the model file and the weights of a submission, without running its code."""
    about = store.read_json(path / ENTRY, managed=True)
    tasks = tasks_of(about["track"], about["entered"], about["bench"])
    found = source_flags(disk.read_bytes(path / SOURCE, managed=True), tasks) if (path / SOURCE).is_file() else []
    for task in tasks:
        weights = store.read_tensors(path / "tasks" / f"{task.name}-0" / WEIGHTS, managed=True)
        found += weight_flags(weights, task)
    return found


def source_flags(source: bytes, tasks: tuple[BenchmarkTask, ...]) -> list[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    numbers = np.array([value for value in constants if isinstance(value, float)], dtype=np.float64)
    found = [f"imports {name}" for name in sorted(set(_imported(tree)) & set(_EXACT))]
    return found + [f"states parameters of {task.name}" for task in tasks if _holds(numbers, task)]


def weight_flags(weights: dict[str, Tensor], task: BenchmarkTask) -> list[str]:
    return [
        f"{name} contains parameters of {task.name}"
        for name, values in weights.items()
        if values.is_floating_point() and _holds(values.detach().double().numpy().ravel(), task)
    ]


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        yield from (name.partition(".")[0] for name in names)


def _holds(values: np.ndarray[Any, Any], task: BenchmarkTask) -> bool:
    params = _parameters(task.bench, task.name)
    own = values.astype(np.float32)
    known = np.isin(params.astype(np.float32), own) | np.isin(np.log(params).astype(np.float32), own)
    return int(known.sum()) >= max(FOUND, len(params) / 2)


@cache
def _parameters(bench: str, task: str) -> np.ndarray[Any, Any]:
    hmm = next(one for one in TASKS_OF[bench] if one.name == task).generator(scored=False)
    own = [np.asarray(one, float).ravel() for name, one in hmm.file_tensors().items() if name != "initial"]
    values = np.unique(np.concatenate([np.empty(0), *own]))
    return values[(values > 0) & (abs(values * 20 - np.round(values * 20)) > 1e-9)]
