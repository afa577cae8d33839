"""Searching with restarts: from new starts again and again, until the best two ends agree."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar, runtime_checkable

from hmmscope.ties import largest

#: Restarts that are made before any two of them may agree.
LEAST = 3


@runtime_checkable
class Ended(Protocol):
    """Where a restart ended."""

    @property
    def log_likelihood(self) -> float:
        """What is to be large, nats."""
        ...


End = TypeVar("End", bound=Ended)


class Restarts(Generic[End]):
    """The restarts 0, 1, 2, ... up to the first after which the best two agree, or up to the last that is allowed.

    Those that run beside each other on threads and come later in this order are left out: how many count, and so what is
    found, is the same for any number of threads.

    Args:
        restart: from its number to where it ended.
        most: restarts that are allowed.
        num_threads: restarts that run beside each other.
        near: difference of log-likelihoods, nats, below which two agree.

    Attributes:
        ends: of the restarts that count, in their order.
        made: all that were made.
        near: see above.
    """

    def __init__(self, restart: Callable[[int], End], most: int, num_threads: int, near: float) -> None:
        self.ends: list[End] = []
        self.made, self.near = 0, near
        with ThreadPoolExecutor(num_threads) as pool:
            while self.made < most and not self._settled():
                wave = range(self.made, min(most, self.made + max(num_threads, LEAST - self.made)))
                self.made = wave.stop
                for end in list(pool.map(restart, wave)):
                    self.ends.append(end)
                    if self._settled():
                        break

    def _settled(self) -> bool:
        return len(self.ends) >= LEAST and self.agreed

    @property
    def best(self) -> End:
        """The one with the largest log-likelihood, the first among those that rounding alone tells apart."""
        return largest(self.ends, key=lambda end: end.log_likelihood)

    @property
    def apart(self) -> float:
        """The largest log-likelihood less the second; infinite if there is one restart."""
        scores = sorted((end.log_likelihood for end in self.ends), reverse=True)
        return scores[0] - scores[1] if len(scores) > 1 else math.inf

    @property
    def agreed(self) -> bool:
        """Whether the best two agree."""
        return self.apart < self.near
