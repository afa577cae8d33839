"""The verb `sweep`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hmmscope.errors import InputError, ResourceError
from hmmscope.lab.sweeps.grid import GRID_KEYS, GridPoint, expand, load_points, read_grid
from hmmscope.lab.sweeps.run_task import RunTask
from hmmscope.lab.sweeps.sweeping import run_sweep
from hmmscope.lab.sweeps.table import DOUBTFUL, Board, table_rows, table_text
from hmmscope.lab.tasks.executors import ExecutorOptions, pairs
from hmmscope.lab.tasks.plans import in_words
from hmmscope.lab.verbs.options import SweepOptions
from hmmscope.lab.verbs.seed_lists import chosen_seeds
from hmmscope.lab.verbs.train import run_config
from hmmscope.runs.config import read_yaml
from hmmscope.runs.dry_run import require_room
from hmmscope.text import say, tell


def sweep(options: SweepOptions) -> None:
    where, out, table = ExecutorOptions(**options.execution()), options.out, options.table
    seeds = chosen_seeds(options.num_seeds, options.seeds)
    flags = bool(options.base or options.vary or seeds is not None or options.vary_process or options.overrides)
    if table is not None:
        if options.grid or flags or out or options.dry_run:
            raise InputError("--table: only prints the table of an existing sweep; give no other option with it")
        rows = table_rows(Path(table), load_points(Path(table)))
        say("\n".join(table_text(rows)))
        _refuse_doubtful(rows)
        return
    points = _points(options, flags, seeds)
    if options.dry_run:
        say(f"{len(points)} runs")
        for point in points:
            say("  ".join([point.name, *(f"{key} {value}" for key, value in point.varied.items())]))
        return
    if out is None:
        raise InputError("out: missing; give a folder for the sweep, --out DIR (or --dry-run)")
    path = Path(out)
    require_room([p.config for p in points if not RunTask(path, p.name).is_done()], path, here=where.name == "local")
    executor = where.make(path)
    if not options.quiet and (not path.exists() or (path / "grid.json").exists()):
        tell(f"plan: {len(points)} runs, {in_words({point.config.seed for point in points})}")
    with Board(path, points, quiet=options.quiet) as board:
        rows = run_sweep(points, path, executor, retries=options.retries, watcher=board)
    say("\n".join(table_text(rows)))
    say(f"table: {path / 'table.jsonl'}")
    _refuse_doubtful(rows)
    failed = sum(row["state"] != "done" for row in rows)
    if failed:
        raise ResourceError(f"{failed} of {len(rows)} runs failed; see {path / 'table.jsonl'} and {path / 'logs'}")


def _refuse_doubtful(rows: Sequence[dict[str, Any]]) -> None:
    if names := [row["run"] for row in rows if row["state"] in DOUBTFUL]:
        raise ResourceError(
            f"{len(names)} of {len(rows)} runs are damaged or lack checksums, such as {names[0]}; other runs are valid"
        )


def _points(options: SweepOptions, flags: bool, seeds: int | tuple[int, ...] | None) -> Sequence[GridPoint]:
    grid, out = options.grid, options.out
    if grid is not None and not flags:
        if not _is_yaml(grid):
            raise InputError(
                f"grid: {grid} is a single run; give values to vary, hmmscope sweep {grid} --vary KEY=A,B --out DIR"
            )
        return read_grid(Path(grid))
    if not flags:
        if out is None or not (Path(out) / "grid.json").exists():
            raise InputError("grid: missing; give a grid file, values to --vary, or the --out of a sweep to resume")
        return load_points(Path(out))
    if grid is not None and options.base is not None:
        raise InputError(f"--base: cannot be combined with the grid {grid}; give one of them")
    base = grid or options.base
    data: dict[str, Any] = {"base": None if base is None else _configuration(base), "instances": options.vary_process}
    data["vary"] = {key: values.split(",") for key, values in pairs(options.vary, "vary").items()}
    if seeds is not None:
        data["seeds"] = str(seeds) if isinstance(seeds, int) else [str(seed) for seed in seeds]
    return expand(data, options.overrides)


def _configuration(base: str) -> dict[str, Any]:
    if _is_yaml(base):
        data = read_yaml(Path(base))
        if isinstance(data, dict) and set(GRID_KEYS) & set(data):
            raise InputError(
                f"grid: {base} is a complete grid; leave out --vary, --num-seeds, --seeds, --vary-process and "
                "--section.key, or give a configuration instead"
            )
    return run_config(base, {}).to_data()


def _is_yaml(name: str) -> bool:
    return Path(name).suffix in (".yaml", ".yml")
