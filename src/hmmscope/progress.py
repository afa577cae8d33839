"""Progress bars and lines for long work."""

import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from html import escape
from types import FrameType
from typing import Any, TypeVar, cast

from hmmscope.text import tell

T = TypeVar("T")

#: Seconds between lines of a log and between drawings in a notebook; shortest work shown in a log, and elsewhere.
_SECONDS_BETWEEN_LINES, _SECONDS_BETWEEN_DRAWINGS, _SHORT, _DELAY = 20.0, 0.2, 1.0, 2.0


def say_beside(line: str) -> None:
    tell(line)


def live_console() -> Any:
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(stderr=True)
    return console if console.is_terminal else None


def notebook_cell() -> Any:
    ipython = sys.modules.get("IPython")
    if ipython is None or type(ipython.get_ipython()).__name__ != "ZMQInteractiveShell":
        return None
    from IPython.display import HTML, display

    return display(HTML(""), display_id=True)


class Progress:
    """Context manager that shows rate, remaining time and loss; a nested `Progress` adds a note to the outer line.

    Args:
        total: Number of steps; None if unknown.
        what: Name of the work, shown before the numbers.
        unit: Unit of the rate, such as "bytes"; an empty string shows no rate.
        per_step: Number of units in a step.
        quiet: True hides the progress; None shows it in a terminal or notebook only; False shows it also in a log.
    """

    _open: "list[Progress]" = []

    def __init__(
        self, total: int | None, what: str, *, unit: str = "", per_step: float = 1.0, quiet: bool | None = False
    ) -> None:
        self.total, self.what, self.unit, self.per_step, self.quiet = total, what, unit, per_step, quiet
        self.made = 0
        self._bars: Any = None
        self._task: Any = None
        self._cell: Any = None
        self._outer: Progress | None = None
        self._inner, self._lock, self._looked = "", threading.RLock(), False
        self._entered = self._begun = self._shown = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> "Progress":
        self._outer = self._open[0] if self._open else None
        self._open.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.remove(self)
        if self._bars is not None:
            self._bars.stop()
        if self._outer is not None:
            self._outer._inner = ""

    def update(self, step: int, note: str = "") -> None:
        with self._lock:
            self._update(step, note)

    def _update(self, step: int, note: str) -> None:
        now, self.made = time.monotonic(), step
        if self.quiet:
            return
        if self._outer is not None:
            self._outer._inner = f"{self.what} {_of(step, self.total)}  {note}"
            self._outer.update(self._outer.made)
            return
        if self._first is None:  # set-up before the first step does not count
            self._first, self._begun = step, now
        made, seconds = step - self._first, now - self._begun
        left = "" if self.total is None else _left(self.total - step, made, seconds)
        has_rate = bool(made and seconds and self.unit)
        note = note or self._inner
        shown = f"{made / seconds * self.per_step:,.0f} {self.unit}/s  {note}" if has_rate else note
        if now - self._entered >= _DELAY and not self._looked:
            self._look()
        if self._bars is not None:
            self._bars.update(self._task, completed=step, total=self.total, note=shown)
        elif self._cell is not None:
            if step == self.total or now - self._shown > _SECONDS_BETWEEN_DRAWINGS:
                self._shown = now
                self._draw(step, f"{left}{shown}")
        elif self.quiet is False and (
            now - self._shown > _SECONDS_BETWEEN_LINES or (step == self.total and now - self._entered > _SHORT)
        ):
            self._shown = now
            say_beside(f"{self.what} {_of(step, self.total)}  {left}{shown}")

    def _look(self) -> None:
        self._looked, self._cell = True, notebook_cell()
        if self._cell is None and (console := live_console()) is not None:
            from rich import progress

            time_column = progress.TimeElapsedColumn if self.total is None else progress.TimeRemainingColumn
            columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn())
            note = progress.TextColumn("{task.fields[note]}", markup=False)
            self._bars = progress.Progress(*columns, time_column(), note, console=console)
            self._task = self._bars.add_task(self.what, total=self.total, note="")
            self._bars.start()

    def _draw(self, step: int, said: str) -> None:
        from IPython.display import HTML

        bar = "" if self.total is None else f"<progress value='{step}' max='{self.total}'></progress> "
        self._cell.update(HTML(f"{escape(self.what)} {bar}{_of(step, self.total)} {escape(said)}"))


class StoppableProgress(Progress):
    """Progress of work in threads; the first Ctrl-C asks the work to stop, the second raises KeyboardInterrupt.

    Attributes:
        stopped: Whether Ctrl-C was pressed.
    """

    stopped = False
    _before: Any = None

    def __call__(self, count: int, note: str = "") -> bool:
        with self._lock:
            if count or note:
                self.update(self.made + count, "stopping" if self.stopped else note)
        return self.stopped

    def __enter__(self) -> "StoppableProgress":
        super().__enter__()
        own = threading.current_thread() is threading.main_thread()
        if own and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._stop)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        super().__exit__(*error)

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        if self.stopped:
            signal.default_int_handler(signum, frame)
        self.stopped = True


def shows_progress(what: str) -> Callable[[T], T]:

    def decorate(function: T) -> T:
        call = cast("Callable[..., Any]", function)

        @wraps(call)
        def shown(*args: Any, **options: Any) -> Any:
            with Progress(None, what, quiet=None):
                return call(*args, **options)

        return cast("T", shown)

    return decorate


def count_pass() -> None:
    for shown in Progress._open[-1:]:
        if shown.total is None:
            shown.update(shown.made + 1)


def _of(step: int, total: int | None) -> str:
    return str(step) if total is None else f"{step}/{total}"


def _left(steps: int, made: int, seconds: float) -> str:
    return "{}:{:02d} left  ".format(*divmod(round(steps * seconds / made), 60)) if made else ""
