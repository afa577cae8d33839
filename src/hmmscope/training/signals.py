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


class WorkAbandoned(BaseException):
    """A signal came in work that may be left where it is. It is no `Exception`, which code on the way out may catch."""


class SignalState(list[int]):
    """The signals that have come, none or one."""

    _open = False

    @contextmanager
    def at_once(self, possible: bool = True) -> Iterator[None]:
        """Work that changes nothing until `hold` is called: a signal before that leaves it by `WorkAbandoned`.

        Args:
            possible: if not, a signal is only remembered, as everywhere else.
        """
        self._open = possible
        try:
            if possible and self:  # it came just before
                raise WorkAbandoned
            yield
        finally:
            self._open = False

    def hold(self) -> None:
        """From here on the work is done to its end."""
        self._open = False

    def remember(self, signum: int, frame: FrameType | None) -> None:
        """The handler: the first signal is kept, and leaves what may be left; a second one ends the process."""
        if self:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        self.append(signum)
        if self._open:
            self._open = False
            raise WorkAbandoned


@contextmanager
def deferred_signals() -> Iterator[SignalState]:
    """Collect SIGINT and SIGTERM instead of dying in the middle of a step; a second one ends the process at once.

    One that nobody has answered by an exception when the work ends is given to the handler of before.
    """
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
