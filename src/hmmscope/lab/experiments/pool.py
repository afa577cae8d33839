"""Trained runs that experiments share: a folder of a sweep in which a run is found by its configuration's digest.

    POOL/
      grid.json          the runs, see `hmmscope.lab.sweeps.grid`
      runs/<name>/       one run folder each

Experiments that ask for the same configuration train it once. A pool is trained by any engine of `hmmscope sweep`, and may
be worked on by several experiments at a time.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from hmmscope.errors import FullDiskError, RefusedError, ResourceError, code_and_line
from hmmscope.lab.sweeps.driver import run_sweep
from hmmscope.lab.sweeps.executors import EngineOptions
from hmmscope.lab.sweeps.grid import Point, begin_work, check_run, extend_folder, make_folder, run_name
from hmmscope.lab.sweeps.jobs import Outcome, clear_failure, in_use, is_done, run_folder, taking_part, write_failure
from hmmscope.lab.sweeps.table import Board, write_results
from hmmscope.runs.config import RunConfig
from hmmscope.runs.dry_run import require_room
from hmmscope.runs.training import train
from hmmscope.training.signals import Interrupted


def train_in_pool(
    configs: Sequence[RunConfig], pool: Path, engine: EngineOptions | None = None, *, quiet: bool = False
) -> list[Path]:
    """Train what the pool has not, and return the run folders.

    Args:
        configs: the runs; equal ones are one run.
        pool: a new folder, or that of a pool.
        engine: where; None to train in this process, one run after the other.
        quiet: show no progress.

    Raises:
        RefusedError: `pool` is something else.
        DamagedError: what stands under the name of a run is another one.
        ResourceError: runs that failed for good; the others are there.
        FullDiskError: the disk is full, and no other run was begun.
        InputError, NonFiniteError, Interrupted: see `hmmscope.runs.training.train`.
    """
    points = {run_name(config): Point(run_name(config), {"seed": config.seed}, config) for config in configs}
    wanted = [point for name, point in points.items() if not is_done(pool, name)]
    local = engine is None or engine.name == "local"
    require_room([point.config for point in wanted], pool, here=local)
    if wanted and engine is None:
        make_folder(pool, wanted, shared=True)
        with taking_part(pool):
            extend_folder(pool, wanted, shared=True)
            begin_work(pool, wanted)
            failed = _train_here(wanted, pool, quiet)
            write_results(pool, shared=True)
        _refuse_failed(pool, failed, len(wanted))
    elif wanted and engine is not None:
        with Board(pool, wanted, quiet=quiet) as board:
            rows = run_sweep(wanted, pool, engine.make(pool), watcher=board, shared=True)
        failed = [(row["run"], row["reason"]) for row in rows if row["state"] != "done"]
        _refuse_failed(pool, failed, len(rows))
    folders = [run_folder(pool, run_name(config)) for config in configs]
    for folder, config in zip(folders, configs, strict=True):
        check_run(folder, config)
    return folders


def _refuse_failed(pool: Path, failed: Sequence[tuple[str, str]], count: int) -> None:
    if failed:
        name, reason = failed[0]
        raise ResourceError(
            f"{pool}: {len(failed)} of {count} runs failed, such as {name} ({reason}); the others are there, and the "
            "same command with --resume tries these again"
        )


def _train_here(points: Sequence[Point], pool: Path, quiet: bool) -> list[tuple[str, str]]:
    """One after the other; a run that another process is at work on comes last, and is waited for.

    Returns:
        name and reason of those that failed, which end no other.
    """
    left, failed = list(points), []
    while left:
        free = next((point for point in left if not in_use(pool, point.name)), None)
        if free is None:
            time.sleep(1.0)
            continue
        left.remove(free)
        if is_done(pool, free.name):
            continue
        clear_failure(pool, free.name)
        try:
            train(free.config, run_folder(pool, free.name), resume=True, quiet=quiet)
        except (Interrupted, FullDiskError):
            raise
        except RefusedError as error:
            if in_use(pool, free.name):
                left.append(free)
            else:
                failed.append((free.name, f"error[{error.exit_code}] {error}"))
        except Exception as error:
            code, line = code_and_line(error)
            failed.append((free.name, f"error[{code}] {line}"))
            write_failure(pool, Outcome(free.name, code, failed[-1][1]), 1)
    return failed


def default_engine(num_runs: int, asked: EngineOptions | None, *, alone: bool = False) -> EngineOptions | None:
    """Where to train: as asked, else in a worker process for each processor.

    None is this process, one run after the other: for a single run or job here, which would only wait for the start of its
    worker, with `alone`, and on a GPU that runs would have to share.
    """
    if asked is not None:
        here = asked.name == "local" and (num_runs == 1 or asked.jobs == 1)
        return None if here else asked
    return None if alone or num_runs == 1 or torch.cuda.is_available() else EngineOptions()
