"""Searching with restarts: from new starts again and again, until the best two ends agree."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar, runtime_checkable

from hmmscope.ties import largest

#: Restarts that are made before any two of them may agree.
LEAST = 3


@runtime_checkable
class RestartResult(Protocol):
    """Where a restart ended."""

    @property
    def log_likelihood(self) -> float:
        """What is to be large, nats."""
        ...


End = TypeVar("End", bound=RestartResult)


class RestartSearch(Generic[End]):
    """The restarts 0, 1, 2, ... up to the first after which the best two agree, or up to the last that is allowed.

    Those that run beside each other and come later in this order are left out: how many count, and so what is found, is the
    same for any number of them.

    Args:
        wave: from the numbers of some restarts to where they ended; see `on_threads`.
        most: restarts that are allowed.
        beside: restarts of the first wave, at least three, and of every other one.
        near: difference of log-likelihoods, nats, below which two agree.

    Attributes:
        ends: of the restarts that count, in their order.
        made: all that were made.
        near: see above.
    """

    def __init__(
        self, wave: Callable[[Sequence[int]], list[End]], most: int, beside: tuple[int, int], near: float
    ) -> None:
        self.ends: list[End] = []
        self.made, self.near = 0, near
        while self.made < most and not self._settled():
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
        """The one with the largest log-likelihood, the first among those that rounding alone tells apart."""
        return largest(self.ends, key=lambda end: end.log_likelihood)

    @property
    def restart_gap(self) -> float:
        """The largest log-likelihood less the second; infinite if there is one restart."""
        scores = sorted((end.log_likelihood for end in self.ends), reverse=True)
        return scores[0] - scores[1] if len(scores) > 1 else math.inf

    @property
    def restarts_agree(self) -> bool:
        """Whether the best two agree."""
        return self.restart_gap < self.near


def on_threads(restart: Callable[[int], End], num_threads: int) -> Callable[[Sequence[int]], list[End]]:
    """Waves of restarts that run on so many threads."""

    def wave(numbers: Sequence[int]) -> list[End]:
        if num_threads == 1:
            return [restart(number) for number in numbers]
        with ThreadPoolExecutor(num_threads) as pool:
            return list(pool.map(restart, numbers))

    return wave
