"""Expectation maximization (EM) with random restarts, until the best two results agree."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch

from hmmscope.schema import require, require_count
from hmmscope.ties import largest

#: Fewest restarts before agreement ends the search.
LEAST = 3
#: Log-likelihoods closer than this, in nats, agree.
SAME = 0.1
#: Batched restarts per wave, (first, later), on one thread and on several.
WAVES = ((4, 8), (12, 12))
#: Iterations of each random start before a restart continues from the best.
TRIED_ITERATIONS = 10


@runtime_checkable
class RestartResult(Protocol):
    @property
    def log_likelihood(self) -> float:
        """Log-likelihood of the restart, in nats."""
        ...


End = TypeVar("End", bound=RestartResult)
M = TypeVar("M")


class RestartSearch(Generic[End]):
    """Numbered restarts 0, 1, 2, ... until the best two results agree.

    Restarts run in parallel groups (waves), with the same results as sequential restarts.

    Args:
        wave: Function that runs restarts, given their numbers, and returns the results.
        most: Maximum number of restarts.
        beside: Two numbers of restarts: in the first wave, and in each later wave.
        near: Largest log-likelihood difference, in nats, between results that agree.
        stopped: Function called with 0 before each wave except the first; True ends the search.

    Attributes:
        ends: Results up to the restart that ended the search, in order.
        made: Number of restarts run, including those after the one that ended the search.
    """

    def __init__(
        self,
        wave: Callable[[Sequence[int]], list[End]],
        most: int,
        beside: tuple[int, int],
        near: float,
        stopped: Callable[[int], object] = bool,
    ) -> None:
        self.ends: list[End] = []
        self.made, self.near = 0, near
        while self.made < most and not self._settled() and not (self.made and stopped(0) is True):
            more = max(LEAST, beside[0]) if self.made == 0 else beside[1]
            numbers = range(self.made, min(most, self.made + more))
            self.made = numbers.stop
            for end in wave(numbers):
                self.ends.append(end)
                if self._settled():
                    break

    def _settled(self) -> bool:
        return len(self.ends) >= LEAST and self.restarts_agree

    @property
    def best(self) -> End:
        return likeliest(self.ends)

    @property
    def restart_gap(self) -> float:
        scores = sorted((end.log_likelihood for end in self.ends), reverse=True)
        return scores[0] - scores[1] if len(scores) > 1 else math.inf

    @property
    def restarts_agree(self) -> bool:
        return self.restart_gap < self.near


def likeliest(ends: Sequence[End]) -> End:
    return largest(ends, key=lambda end: end.log_likelihood)


def on_threads(restart: Callable[[int], End], num_threads: int) -> Callable[[Sequence[int]], list[End]]:
    def wave(numbers: Sequence[int]) -> list[End]:
        if num_threads == 1:
            return [restart(number) for number in numbers]
        with ThreadPoolExecutor(num_threads) as pool:
            return list(pool.map(restart, numbers))

    return wave


@runtime_checkable
class Steps(Protocol[M]):
    """Interface of EM for one class of models and one data set, with log-likelihoods in nats."""

    @property
    def num_steps(self) -> float: ...

    def counts(self, model: M) -> tuple[Any, float]: ...

    def maximise(self, model: M, counts: Any) -> M: ...

    def log_prior(self, model: M) -> float: ...


class EMResult(NamedTuple):
    """Result of an EM run; `history` holds the log-likelihood after each iteration, in nats."""

    model: Any
    log_likelihood: float
    num_iterations: int
    converged: bool
    history: tuple[float, ...] = ()

    def after(self, first: "EMResult | None") -> "EMResult":
        return self if first is None else self._replace(history=first.history[:-1] + self.history)


def unheard(count: int) -> None:
    """Ignore the number of iterations."""


def climb(
    steps: Steps[Any], model: Any, max_iterations: int, tolerance: float, callback: Callable[[int], object] = unheard
) -> EMResult:
    """Run EM until a step gains less than `tolerance` nats per observation."""
    least_gain, before, history, stop = tolerance * steps.num_steps, -math.inf, list[float](), False
    while True:
        counts, score = steps.counts(model)
        history.append(score)
        reached = score + steps.log_prior(model)
        converged = reached - before < least_gain
        if converged or stop or len(history) > max_iterations:
            return EMResult(model, score, len(history) - 1, converged, tuple(history))
        model, before = steps.maximise(model, counts), reached
        stop = callback(1) is True


def search(
    steps: Steps[Any],
    begins: Callable[[int], list[Any]],
    num_restarts: int,
    max_iterations: int,
    tolerance: float,
    callback: Callable[[int], object] | None = None,
    *,
    agreement: float = 1e-5,
    side_by_side: Callable[..., list[EMResult]] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Run restarts until the best two agree; return the best model and fields of `BaumWelchFit`.

    Args:
        begins: Function from a restart's number to its starting models; if there are several, each runs ten iterations,
            and the likeliest continues.
        callback: See `fit_baum_welch`.
        agreement: Largest log-likelihood difference between results that agree, in nats per observation.
        side_by_side: Function that runs EM from several models in a batch.
    """
    hear = callback or unheard

    def several(models: Sequence[Any], *how: Any) -> list[EMResult]:
        return side_by_side(models, *how) if side_by_side else [climb(steps, model, *how) for model in models]

    def wave(numbers: Sequence[int]) -> list[EMResult]:
        tried = [begins(number) for number in numbers]
        short = [model for models in tried if len(models) > 1 for model in models]
        reached = iter(several(short, TRIED_ITERATIONS, 0.0, lambda _: hear(0)) if short else ())
        firsts = [None if len(own) == 1 else likeliest([next(reached) for _ in own]) for own in tried]
        best = [own[0] if first is None else first.model for own, first in zip(tried, firsts, strict=True)]
        ends = several(best, max_iterations, tolerance, hear)
        hear(sum(max_iterations - end.num_iterations for end in ends))
        return [end.after(first) for end, first in zip(ends, firsts, strict=True)]

    threads, near = torch.get_num_threads(), max(SAME, agreement * steps.num_steps)
    width = min(threads, num_restarts)
    run = wave if side_by_side else on_threads(lambda number: wave([number])[0], width)
    waves = WAVES[min(threads, 2) - 1] if side_by_side else (width, width)
    restarts = RestartSearch(run, num_restarts, waves, near, lambda _: hear(0))
    hear((num_restarts - restarts.made) * max_iterations)
    best = restarts.best
    about = best._asdict() | {"history": tuple(end.history for end in restarts.ends)}
    about |= {"num_restarts": len(restarts.ends), "restart_gap": restarts.restart_gap}
    return about.pop("model"), about | {"restarts_agree": restarts.restarts_agree}


def criterion(log_likelihood: float, free: Mapping[str, int], seen: Mapping[str, float]) -> float:
    """Compute the Bayesian information criterion.

    -2 log-likelihood + sum over arrays of (free parameters) * log(number of sequences, transitions or observations)
    """
    return sum((free[part] * math.log(max(1, count)) for part, count in seen.items()), 0.0) - 2 * log_likelihood


def check_limits(num_restarts: int, max_iterations: int, least: Mapping[str, float], **sizes: int) -> None:
    for name, value in (sizes | {"num_restarts": num_restarts, "max_iterations": max_iterations}).items():
        require_count(name, value)
    for name, limit in least.items():
        require(limit >= 0, name, "must be at least 0", limit)
