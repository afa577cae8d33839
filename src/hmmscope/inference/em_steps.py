"""Restarted EM with given expectation and maximization steps."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.inference.baum_welch import SAME
from hmmscope.inference.em import unheard
from hmmscope.inference.restarts import RestartSearch, on_threads
from hmmscope.schema import require, require_count

Array = NDArray[np.float64]
Parameters = TypeVar("Parameters")


@runtime_checkable
class Steps(Protocol[Parameters]):
    """EM of one family on one data set."""

    @property
    def num_steps(self) -> float: ...

    def counts(self, parameters: Parameters) -> tuple[Any, float]: ...

    def maximise(self, before: Parameters, counts: Any) -> Parameters: ...

    def log_prior(self, parameters: Parameters) -> float: ...


class Climb(NamedTuple):
    """Result of one restart."""

    parameters: Any
    log_likelihood: float
    num_iterations: int
    converged: bool
    history: tuple[float, ...]


class Search(NamedTuple):
    """Best parameters, and fields of `BaumWelchFit`."""

    parameters: Any
    diagnostics: dict[str, Any]


def check_limits(num_restarts: int, max_iterations: int, tolerance: float, pseudo_count: float, **sizes: int) -> None:
    for name, value in (sizes | {"num_restarts": num_restarts, "max_iterations": max_iterations}).items():
        require_count(name, value)
    for name, limit in {"tolerance": tolerance, "pseudo_count": pseudo_count}.items():
        require(limit >= 0, name, "must be at least 0", limit)


def climb(
    steps: Steps[Any],
    parameters: Any,
    max_iterations: int,
    tolerance: float,
    callback: Callable[[int], object] = unheard,
) -> Climb:
    """Run EM until a step gains less than `tolerance` nats per observation."""
    before, history, stop = -math.inf, list[float](), False
    while True:
        counts, score = steps.counts(parameters)
        history.append(score)
        reached = score + steps.log_prior(parameters)
        converged = reached - before < tolerance * steps.num_steps
        if converged or stop or len(history) > max_iterations:
            return Climb(parameters, score, len(history) - 1, converged, tuple(history))
        parameters, before = steps.maximise(parameters, counts), reached
        stop = callback(1) is True


def search(
    steps: Steps[Any],
    begin: Callable[[int], Any],
    num_restarts: int,
    max_iterations: int,
    tolerance: float,
    callback: Callable[[int], object] | None = None,
) -> Search:
    """Run restarts, which `begin` numbers, until the best two agree."""
    hear = callback or unheard

    def restart(number: int) -> Climb:
        found = climb(steps, begin(number), max_iterations, tolerance, hear)
        hear(max_iterations - found.num_iterations)
        return found

    width, near = min(torch.get_num_threads(), num_restarts), max(SAME, 1e-5 * steps.num_steps)
    restarts = RestartSearch(on_threads(restart, width), num_restarts, (width, width), near, hear)
    hear((num_restarts - restarts.made) * max_iterations)
    best = restarts.best
    about = {
        "log_likelihood": best.log_likelihood,
        "num_iterations": best.num_iterations,
        "converged": best.converged,
        "num_restarts": len(restarts.ends),
        "restart_gap": restarts.restart_gap,
        "restarts_agree": restarts.restarts_agree,
        "history": tuple(end.history for end in restarts.ends),
    }
    return Search(best.parameters, about)


def maximised_rows(before: Array, counts: Array, pseudo_count: float) -> Array:
    """Normalize counts; zeros, and rows without counts, stay."""
    weight = np.where(before > 0, counts + pseudo_count, 0.0)
    total = weight.sum(-1, keepdims=True)
    return np.divide(weight, total, where=total > 0, out=np.array(before))


def log_of_positive(rows: Array) -> float:
    """Sum the logarithms of positive probabilities."""
    return float(np.log(rows[rows > 0]).sum())
