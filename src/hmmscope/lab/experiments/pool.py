"""Pools: folders of trained runs that several experiments share.

POOL/
  grid.json          the runs, see `hmmscope.lab.sweeps.grid`
  runs/<name>/       the folder of one run
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from hmmscope.errors import ResourceError
from hmmscope.lab.sweeps.grid import GridPoint, check_run, run_name
from hmmscope.lab.sweeps.run_task import RunTask
from hmmscope.lab.sweeps.sweeping import run_sweep
from hmmscope.lab.sweeps.table import Board
from hmmscope.lab.tasks.driver import InProcessExecutor
from hmmscope.lab.tasks.executors import ExecutorOptions
from hmmscope.runs.config import RunConfig
from hmmscope.runs.dry_run import require_room


def train_in_pool(
    configs: Sequence[RunConfig], pool: Path, executor: ExecutorOptions | None = None, *, quiet: bool = False
) -> list[Path]:
    in_order = sorted(configs, key=lambda config: config.training.num_steps if config.training.schedule == "wsd" else 0)
    points = {run_name(config): GridPoint(run_name(config), {"seed": config.seed}, config) for config in in_order}
    wanted = [point for name, point in points.items() if not RunTask(pool, name).is_done()]
    require_room([point.config for point in wanted], pool, here=executor is None or executor.name == "local")
    if wanted:
        if executor is None:
            rows = run_sweep(wanted, pool, InProcessExecutor(quiet=quiet), retries=0, shared=True)
        else:
            with Board(pool, wanted, quiet=quiet) as board:
                rows = run_sweep(wanted, pool, executor.make(pool), watcher=board, shared=True)
        if failed := [row for row in rows if row["state"] != "done"]:
            raise ResourceError(
                f"{pool}: {len(failed)} of {len(rows)} runs failed; the first is {failed[0]['run']} "
                f"({failed[0]['reason']}); the other runs are complete; run the same command with --resume to try again"
            )
    folders = [RunTask(pool, run_name(config)).folder for config in configs]
    for folder, config in zip(folders, configs, strict=True):
        check_run(folder, config)
    return folders


def default_executor(num_runs: int, asked: ExecutorOptions | None, *, alone: bool = False) -> ExecutorOptions | None:
    """Return the requested executor (default: one worker process per processor).

    The result None means that runs are trained in this process.
    """
    if asked is not None:
        here = asked.name == "local" and (num_runs == 1 or asked.jobs == 1)
        return None if here else asked
    return None if alone or num_runs == 1 or torch.cuda.is_available() else ExecutorOptions()
