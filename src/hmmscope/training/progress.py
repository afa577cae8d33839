"""What a person sees during long work: a bar on a terminal, a line now and then elsewhere."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

#: Work that is over sooner than `_SHORT` seconds is not spoken of.
_SECONDS_BETWEEN_LINES, _SHORT = 20.0, 1.0


class Progress:
    """Rate, time left, and the current loss beside the Bayes floor; use it as a context manager.

    Args:
        total: number of steps.
        what: shown first.
        unit: of the rate.
        per_step: units in one step.
        quiet: show nothing.
    """

    def __init__(self, total: int, what: str, *, unit: str, per_step: float, quiet: bool = False) -> None:
        self.total, self.what, self.unit, self.per_step, self.quiet = total, what, unit, per_step, quiet
        self._console = Console(stderr=True)
        self._bars: Bars | None = None
        self._task = TaskID(0)
        self._entered = self._begun = self._shown = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> "Progress":
        if self._console.is_terminal and not self.quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bars = Bars(*columns, TextColumn("{task.fields[note]}"), console=self._console)
            self._task = self._bars.add_task(self.what, total=self.total, note="")
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def update(self, step: int, note: str = "") -> None:
        """Say that `step` of `total` are done."""
        now = time.monotonic()
        if self._first is None:  # what was made before the first step, and its set-up, is no part of the rate
            self._first, self._begun = step, now
        made, seconds = step - self._first, now - self._begun
        shown = f"{made / seconds * self.per_step:,.0f} {self.unit}/s  {note}" if made and seconds else note
        if self._bars is not None:
            self._bars.update(self._task, completed=step, note=shown)
        elif not self.quiet and (
            now - self._shown > _SECONDS_BETWEEN_LINES or (step == self.total and now - self._entered > _SHORT)
        ):
            self._shown = now
            left = "{}:{:02d} left  ".format(*divmod(round((self.total - step) * seconds / made), 60)) if made else ""
            print(f"{self.what} {step}/{self.total}  {left}{shown}", file=sys.stderr, flush=True)
