"""Handling of termination signals: finish the step, save and exit."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from hmmscope.errors import HmmscopeError


class Interrupted(HmmscopeError):
    """The exception raised after a signal, once a checkpoint is saved; `result` is the partial fit or posterior."""

    def __init__(self, message: str, signum: int, result: Any = None) -> None:
        super().__init__(message)
        self.exit_code, self.result = 128 + signum, result


class WorkAbandoned(BaseException):
    """The exception raised when a signal stops interruptible work; not a subclass of `Exception`."""


class SignalState(list[int]):
    _open = False

    @contextmanager
    def at_once(self, possible: bool = True) -> Iterator[None]:
        """Let signals raise `WorkAbandoned` inside the block, until `hold` is called.

        Args:
            possible: If false, signals are only recorded.
        """
        self._open = possible
        try:
            if possible and self:  # it came just before
                raise WorkAbandoned
            yield
        finally:
            self._open = False

    def hold(self) -> None:
        self._open = False

    def remember(self, signum: int, frame: FrameType | None) -> None:
        if self:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        self.append(signum)
        if self._open:
            self._open = False
            raise WorkAbandoned


@contextmanager
def deferred_signals() -> Iterator[SignalState]:
    """Defer SIGINT and SIGTERM inside the block; a second signal ends the process at once."""
    received = SignalState()
    try:
        before = {signum: signal.signal(signum, received.remember) for signum in (signal.SIGINT, signal.SIGTERM)}
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
