"""Choice of a learning rate for each task from three rates."""

import hashlib
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hmmscope.errors import NonFiniteError
from hmmscope.runs.config import RunConfig
from hmmscope.runs.training import TrainOptions, train
from hmmscope.storage import store
from hmmscope_studies.benchmark.scoring import ScoredSamples, mean_excess
from hmmscope_studies.benchmark.tasks import BenchmarkTask

#: Learning rate of an entry that names none; multiples of it that are tried; seed of these trainings, which scores nothing.
DEFAULT, FACTORS, SEARCH_SEED = 3e-3, (1 / 3, 1.0, 3.0), 1000


def rates_of(training: dict[str, Any]) -> list[float]:
    return [float(f"{factor * training.get('learning_rate', DEFAULT):.3g}") for factor in FACTORS]


def choose_rate(
    configure: Callable[[float], RunConfig], task: BenchmarkTask, training: dict[str, Any], work: Path
) -> dict[str, Any]:
    """Train with each learning rate on the search seed, and return each rate's excess loss, and the best rate.

    Args:
        configure: Function (learning rate) -> configuration of a training with `SEARCH_SEED`.
        task: The task.
        training: Training recipe of the entry.
        work: Folder for the trainings, removed afterwards.

    Raises:
        NonFiniteError: Training diverges at every rate.
    """
    samples = ScoredSamples.of(task, hashlib.sha256(f"{task.name}: learning rates".encode()).hexdigest())
    began, tried = time.process_time(), []
    for number, rate in enumerate(rates_of(training)):
        run = work / f"{task.name}-rate-{number}"
        _remove(run)  # an interrupted search begins again
        try:
            model = train(configure(rate), run, options=TrainOptions(num_samples=2, quiet=True)).model
            excess = mean_excess(model, task, samples)
        except NonFiniteError as error:
            diverged, excess = error, math.inf
        tried.append({"learning_rate": rate, "excess": excess if math.isfinite(excess) else None})
        _remove(run)
    if all(one["excess"] is None for one in tried):
        raise diverged
    return {"learning_rate": best_rate(tried), "tried": tried, "seconds": time.process_time() - began}


def _remove(run: Path) -> None:
    if os.path.lexists(run):
        store.remove_folder(run)


def best_rate(tried: list[dict[str, Any]]) -> float:
    known = [one for one in tried if one["excess"] is not None]
    best: float = min(known, key=lambda one: one["excess"])["learning_rate"]
    return best
