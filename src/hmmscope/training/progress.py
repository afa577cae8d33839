"""What a person sees during long work: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from typing import TextIO


class Progress:
    """Rate, time left, and the current loss beside the Bayes floor.

    Args:
        total: number of steps.
        what: shown first.
        unit: of `tick(amount)`, for the rate.
        quiet: show nothing.
        stream: where to; a bar is drawn only on a terminal.
    """

    def __init__(
        self, total: int, what: str, *, unit: str = "steps", quiet: bool = False, stream: TextIO | None = None
    ) -> None:
        self.total, self.what, self.unit, self.quiet = total, what, unit, quiet
        self.stream = stream or sys.stderr
        self.begun = self.shown = time.monotonic()
        self.first_step: int | None = None

    def update(self, step: int, note: str = "", amount_per_step: float = 1.0) -> None:
        """Say that `step` of `total` are done."""
        now = time.monotonic()
        if self.first_step is None:
            self.first_step, self.begun = step - 1, now
        terminal = self.stream.isatty()
        pause = 0.2 if terminal else 20.0
        if self.quiet or (now - self.shown < pause and step < self.total):
            return
        self.shown = now
        rate = (step - self.first_step) / max(now - self.begun, 1e-9)
        left = (self.total - step) / rate if rate > 0 else 0.0
        line = (
            f"{self.what} {step}/{self.total}  {rate * amount_per_step:,.0f} {self.unit}/s  {_clock(left)} left  {note}"
        )
        if terminal:
            filled = round(20 * step / max(1, self.total))
            line = f"\r[{'#' * filled}{'.' * (20 - filled)}] {line}\x1b[K"
        self.stream.write(line + ("" if terminal and step < self.total else "\n"))
        self.stream.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
