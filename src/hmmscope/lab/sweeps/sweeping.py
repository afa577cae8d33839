"""Run a sweep from start to end: make its folder, train its runs, and write its table and checksums."""

import os
from collections.abc import Sequence
from pathlib import Path

from hmmscope.lab.sweeps.grid import GridPoint, begin_work, extend_folder, load_points, make_folder
from hmmscope.lab.sweeps.run_task import RunTask, taking_part
from hmmscope.lab.sweeps.table import table_rows, write_results
from hmmscope.lab.tasks.driver import Executor, ProgressListener, do_tasks
from hmmscope.storage.seals import open_sealed


def run_sweep(
    points: Sequence[GridPoint],
    out: Path,
    executor: Executor,
    *,
    retries: int = 2,
    watcher: ProgressListener | None = None,
    shared: bool = False,
) -> list[dict]:
    """Train every point of a grid, and write OUT/table.jsonl.

    Args:
        points: Points of the grid, from `grid.expand`.
        out: A new folder, or the folder of the same sweep or of a sweep with fewer points.
        executor: Executor that runs the trainings.
        retries: Number of further attempts after a run has failed.
        watcher: Object that shows the progress.
        shared: Whether `out` is a pool, which may have runs outside `points` and has no table.

    Returns:
        The rows of the table, including failed runs.

    Raises:
        RefusedError: `out` is not the folder of a sweep, or has runs that are not in `points`.
        DamagedError: The grid, the table or a log differs from its checksum.
        FullDiskError, Interrupted: See `do_tasks`.
    """
    out = out.absolute()
    if not shared and _is_finished(out, points):
        return table_rows(out, points)
    open_sealed(out)  # never seal damaged files again
    make_folder(out, list(points), shared=shared)
    with taking_part(out):
        extend_folder(out, list(points), shared=shared)
        begin_work(out, points)
        do_tasks([RunTask(out, point.name) for point in points], executor, retries=retries, watcher=watcher)
        write_results(out, shared=shared)
    return table_rows(out, points)


def _is_finished(out: Path, points: Sequence[GridPoint]) -> bool:
    if not os.path.lexists(out / "grid.json") or os.access(out, os.W_OK):
        return False
    names = {point.name for point in load_points(out)}
    return open_sealed(out) is not None and all(p.name in names and RunTask(out, p.name).is_done() for p in points)
