"""Being told to stop: finish the step, save, and say so."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hmmscope.errors import HmmscopeError


class Interrupted(HmmscopeError):
    """A signal asked to stop; a checkpoint was saved first."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum


@contextmanager
def deferred_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying in the middle of a step; a second one ends the process at once.

    One that nobody has answered by an exception when the work ends is given to the handler of before.
    """
    received: list[int] = []

    def remember(signum: int, frame: FrameType | None) -> None:
        if received:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        received.append(signum)

    try:
        before = {signum: signal.signal(signum, remember) for signum in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: leave signals alone
        yield received
        return
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if received:  # in the last step, too late for the work to stop by itself
        signal.raise_signal(received[0])
