"""Search with random restarts, until the best two results agree."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar, runtime_checkable

from hmmscope.ties import largest

#: Fewest restarts before agreement ends the search.
LEAST = 3


@runtime_checkable
class RestartResult(Protocol):
    """Result of one restart."""

    @property
    def log_likelihood(self) -> float:
        """Log-likelihood that the restart maximizes, in nats."""
        ...


End = TypeVar("End", bound=RestartResult)


class RestartSearch(Generic[End]):
    """Numbered restarts 0, 1, 2, ... until the best two results agree.

    Restarts run in parallel waves, which change no result.

    Args:
        wave: Map from restart numbers to their results.
        most: Maximum number of restarts.
        beside: Restarts in the first and later waves.
        near: Log-likelihood difference, in nats, of results that agree.
        stopped: Returns True, given 0, to end the search.

    Attributes:
        ends: Results that count, in order.
        made: Number of restarts run.
        near: See above.
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
        """The result with the largest log-likelihood; ties prefer the first."""
        return largest(self.ends, key=lambda end: end.log_likelihood)

    @property
    def restart_gap(self) -> float:
        """Log-likelihood gap of the best two restarts; infinite for a single restart."""
        scores = sorted((end.log_likelihood for end in self.ends), reverse=True)
        return scores[0] - scores[1] if len(scores) > 1 else math.inf

    @property
    def restarts_agree(self) -> bool:
        return self.restart_gap < self.near


def on_threads(restart: Callable[[int], End], num_threads: int) -> Callable[[Sequence[int]], list[End]]:
    """Run each wave of restarts on parallel threads."""

    def wave(numbers: Sequence[int]) -> list[End]:
        if num_threads == 1:
            return [restart(number) for number in numbers]
        with ThreadPoolExecutor(num_threads) as pool:
            return list(pool.map(restart, numbers))

    return wave
