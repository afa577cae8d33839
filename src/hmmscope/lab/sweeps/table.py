"""The table of a sweep, with one row per run in the order of the grid, and the display of progress."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hmmscope.errors import DamagedError, HmmscopeError, InputError
from hmmscope.lab.sweeps.grid import SUMMARY, GridPoint, changing_grid, check_run, load_points
from hmmscope.lab.sweeps.run_task import RunTask
from hmmscope.lab.tasks.driver import ProgressListener
from hmmscope.lab.tasks.task import Heartbeat, Outcome
from hmmscope.progress import live_console
from hmmscope.storage import seals, store
from hmmscope.storage.rundir import RunDir
from hmmscope.system_info import environment
from hmmscope.text import in_a_line, tell

#: States of finished runs whose numbers cannot be trusted.
DOUBTFUL = ("damaged", "unsealed")
#: Seconds without progress after which a line reports the run.
SILENT = 600.0


def table_rows(out: Path, points: Sequence[GridPoint]) -> list[dict[str, Any]]:
    """Return a row per point: ``run``, varied values, ``seed``, ``state``, ``reason``, and the summary of the run.

    The state is that of `RunTask`, "damaged", or "unsealed" (finished without checksums).
    """
    rows = []
    for point in points:
        task, summary, reason = RunTask(out, point.name), {}, None
        try:
            state: str = task.state()
            if state == "done":
                check_run(task.folder, point.config)
                summary = RunDir.open(task.folder).done or {}
                if not RunDir.open(task.folder).sealed:
                    state, reason = (
                        "unsealed",
                        f"runs/{point.name}: has no checksums (seal.json); remove the folder to train this run again",
                    )
            elif state == "running":
                reason = str(task.heartbeat())
            elif state == "failed":
                reason = (task.failure() or {}).get("reason")
        except (DamagedError, InputError) as error:  # a damaged run is one row; the table continues
            state, reason = "damaged", str(error).replace(f"{out}/", "")
        ended = {key: summary.get(key) for key in SUMMARY}
        rows.append({"run": point.name, **point.varied, "state": state, "reason": reason, **ended})
    return rows


def write_results(out: Path, *, shared: bool) -> None:
    """Write OUT/table.jsonl with all runs of the grid (not for a pool), and the checksums of the folder."""
    with changing_grid(out):
        points = load_points(out)
        rows = [] if shared else table_rows(out, points)
        if any(row["state"] in DOUBTFUL for row in rows) and os.path.lexists(out / seals.SEAL):
            return
        tasks = [RunTask(out, point.name) for point in points]
        done = {task.name: _digest(task) for task in tasks if task.is_done()}
        at_work = [f"logs/{t.name}.log" for t in tasks if not (t.is_done() or os.path.lexists(t.failure_path))]
        failed = [f"runs/{task.name}" for task in tasks if task.name not in done and task.state() == "failed"]
        seals.remove_seal(out)
        if not shared:
            store.write_table(out / "table.jsonl", rows)
        bound = {"by": environment(), "runs": done}
        seals.write_seal(out, "pool" if shared else "sweep", bound, leave=at_work, whole=failed)


def _digest(task: RunTask) -> str | None:
    try:
        return seals.digest_of(task.folder)
    except DamagedError:
        return None


def table_text(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table as lines of text, then the reasons of rows that have one."""
    if not rows:
        return ["no runs"]
    last = ("state", "loss", "bayes_loss", "excess", "excess_low", "excess_high")
    varied = [key for key in rows[0] if key not in (*SUMMARY, "run", "state", "reason")]
    alike = len({str([row[key] for key in varied]) for row in rows}) < len(rows)  # as in a pool of several grids
    columns = [*["run"] * alike, *varied, *last]
    cells = [columns, *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = ["  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in cells]
    return lines + [in_a_line(f"{row['run']}: {row['reason']}") for row in rows if row["reason"]]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return str(value.get("name", value))
    return "" if value is None else str(value)


class Board(ProgressListener):
    """Context manager that shows the progress of a sweep: a live table in a terminal, else a line per finished run.

    Args:
        out: Folder of the sweep.
        points: Runs of the sweep.
        quiet: True shows nothing.
    """

    def __init__(self, out: Path, points: Sequence[GridPoint], *, quiet: bool = False) -> None:
        self._out, self._points, self._quiet = out, points, quiet
        self._live: Any = None
        self._best, self._best_name = math.inf, ""
        self._counts: dict[str, int] = {}
        self._beats: dict[str, Heartbeat] = {}
        self._told: set[str] = set()

    def __enter__(self) -> "Board":
        for point in self._points:
            self._see(point.name)
        if (console := live_console()) is not None and not self._quiet:
            from rich.live import Live

            self._live = Live(console=console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, counts: dict[str, int]) -> None:
        if counts == self._counts:
            return
        self._counts = counts
        if self._live is not None:
            self._live.update(self._table())

    def done(self, name: str) -> None:
        excess = self._see(name)
        said = "" if excess is None else f"  excess {excess:.4f} (best {self._best:.4f})"
        self._line(f"done     {name}{said}")

    def failed(self, outcome: Outcome, attempts: int, again: bool) -> None:
        what = f"attempt {attempts} failed, retrying" if again else f"failed after {attempts} attempts"
        self._line(f"{what}: {outcome.name}: {outcome.reason}")

    def at_work(self, beats: dict[str, Heartbeat]) -> None:
        self._beats = beats
        if self._live is not None:
            self._live.update(self._table())
        for name, beat in beats.items():
            if beat.age <= SILENT:
                self._told.discard(name)
            elif name not in self._told:
                self._told.add(name)
                self._line(f"silent   {name}: {beat}; add --heartbeat-timeout SECONDS to restart such runs")

    def _see(self, name: str) -> float | None:
        try:
            folder = RunTask(self._out, name).folder
            excess = (RunDir.open(folder).done or {}).get("excess")
            if not RunDir.open(folder).sealed:
                return None
        except HmmscopeError:
            return None
        if isinstance(excess, int | float) and excess < self._best:
            self._best, self._best_name = excess, name
        return excess

    def _line(self, text: str) -> None:
        text = in_a_line(text)
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        elif not self._quiet:
            tell(text)

    def _table(self) -> Any:
        from rich.table import Table

        table = Table(title=f"{self._out.name}: {len(self._points)} runs")
        for column in ("done", "running", "failed", "waiting", "best excess", "run"):
            table.add_column(column)
        numbers = [str(self._counts.get(key, 0)) for key in ("done", "running", "failed", "waiting")]
        best = f"{self._best:.4f}" if self._best_name else ""
        table.add_row(*numbers, best, self._best_name)
        for name, beat in self._beats.items():
            table.add_row(*[""] * 5, f"{name}: {beat}")
        return table
