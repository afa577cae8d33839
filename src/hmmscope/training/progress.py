"""Progress bars and lines for long work."""

import sys
import time
from html import escape
from threading import Lock
from typing import Any

from hmmscope.text import tell

#: Shorter work shows no progress.
_SECONDS_BETWEEN_LINES, _SECONDS_BETWEEN_DRAWINGS, _SHORT = 20.0, 0.2, 1.0


def say_beside(line: str) -> None:
    tell(line)


def live_console() -> Any:
    """Return a rich console for a terminal on stderr, or None."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(stderr=True)
    return console if console.is_terminal else None


def notebook_cell() -> Any:
    """Return an output area below a notebook cell, or None."""
    ipython = sys.modules.get("IPython")
    if ipython is None or type(ipython.get_ipython()).__name__ != "ZMQInteractiveShell":
        return None
    from IPython.display import HTML, display

    return display(HTML(""), display_id=True)


class Progress:
    """Rate, time left and current loss; a context manager.

    Args:
        total: Number of steps.
        what: Label.
        unit: Unit of the rate; empty for no rate.
        per_step: Units per step.
        quiet: True to show nothing.
    """

    def __init__(self, total: int, what: str, *, unit: str, per_step: float, quiet: bool = False) -> None:
        self.total, self.what, self.unit, self.per_step, self.quiet = total, what, unit, per_step, quiet
        self._bars: Any = None
        self._task: Any = None
        self._cell: Any = None
        self._entered = self._begun = self._shown = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> "Progress":
        self._cell = None if self.quiet else notebook_cell()
        if self._cell is None and live_console() is not None and not self.quiet:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bars = Progress(*columns, TextColumn("{task.fields[note]}"), console=live_console())
            self._task = self._bars.add_task(self.what, total=self.total, note="")
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def update(self, step: int, note: str = "") -> None:
        now = time.monotonic()
        if self._first is None:  # set-up before the first step does not count
            self._first, self._begun = step, now
        made, seconds = step - self._first, now - self._begun
        has_rate = bool(made and seconds and self.unit)
        shown = f"{made / seconds * self.per_step:,.0f} {self.unit}/s  {note}" if has_rate else note
        if self._bars is not None:
            self._bars.update(self._task, completed=step, note=shown)
        elif self._cell is not None:
            if step == self.total or now - self._shown > _SECONDS_BETWEEN_DRAWINGS:
                self._shown = now
                self._draw(step, f"{_left(self.total - step, made, seconds)}{shown}")
        elif not self.quiet and (
            now - self._shown > _SECONDS_BETWEEN_LINES or (step == self.total and now - self._entered > _SHORT)
        ):
            self._shown = now
            said = f"{_left(self.total - step, made, seconds)}{shown}"
            say_beside(f"{self.what} {step}/{self.total}  {said}")

    def _draw(self, step: int, said: str) -> None:
        from IPython.display import HTML

        bar = f"<progress value='{step}' max='{self.total}'></progress>"
        self._cell.update(HTML(f"{escape(self.what)} {bar} {step}/{self.total} {escape(said)}"))


def _left(steps: int, made: int, seconds: float) -> str:
    return "{}:{:02d} left  ".format(*divmod(round(steps * seconds / made), 60)) if made else ""


class IterationProgress(Progress):
    """Progress of a fit, which is called with the iterations of each restart."""

    def __init__(self, total: int, quiet: bool) -> None:
        super().__init__(total, "fit", unit="", per_step=1.0, quiet=quiet)
        self._lock, self._made = Lock(), 0

    def __call__(self, count: int) -> None:
        with self._lock:
            self._made += count
            if count:
                self.update(self._made)

    def __enter__(self) -> "IterationProgress":
        super().__enter__()
        return self
