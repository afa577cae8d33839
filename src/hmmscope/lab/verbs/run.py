"""The verb `run`."""

from dataclasses import fields
from pathlib import Path

from hmmscope.errors import InputError
from hmmscope.lab.experiments.decidable import decision_lines, warning_of
from hmmscope.lab.experiments.forecast import forecast
from hmmscope.lab.experiments.planning import ExperimentPlan, plan_of
from hmmscope.lab.experiments.protocols import write_protocol
from hmmscope.lab.experiments.running import run_experiment
from hmmscope.lab.tasks.executors import ExecutorOptions
from hmmscope.lab.verbs.findings import show_page
from hmmscope.lab.verbs.options import ExecutionOptions, RunOptions
from hmmscope.lab.verbs.paper import is_group, paper
from hmmscope.lab.verbs.seed_lists import chosen_seeds
from hmmscope.text import say, tell


def run(options: RunOptions) -> None:
    name = options.experiment
    if is_group(name):
        return _run_paper(options)
    seeds = chosen_seeds(options.num_seeds, options.seeds)
    if options.dry_run and options.protocol is not None:
        plan = plan_of(name, options.scale, options.overrides, seeds)
        digest = write_protocol(plan, Path(options.protocol))
        say(f"protocol: {options.protocol} ({digest[:12]}); commit it before the first run")
        _say_decisions(plan)
        return
    if options.dry_run:
        for line in forecast(name, options.scale, options.overrides, seeds, measure=options.measure):
            say(line, flush=True)
        _say_decisions(plan_of(name, options.scale, options.overrides, seeds))
        return
    if options.out is None:
        raise InputError("out: missing; give a new folder for the experiment, --out DIR (or --dry-run)")
    warning = None if options.quiet else warning_of(plan_of(name, options.scale, options.overrides, seeds))
    if warning is not None:
        tell(warning)
    asked = {one.name for one in fields(ExecutionOptions)} & {*options.beyond_defaults()}
    folder = run_experiment(
        name,
        options.scale,
        Path(options.out),
        overrides=options.overrides,
        seeds=seeds,
        trained=_path(options.pool),
        executor=ExecutorOptions(**options.execution()) if asked else None,
        resume=options.resume,
        kept=_path(options.reuse),
        first=options.only_first,
        measure_only=options.measure_only,
        protocol=_path(options.protocol),
        quiet=options.quiet,
    )
    if not (folder / "findings.json").is_file():
        say(f"no seed is complete yet, so there is no page; the measurements are in {folder / 'tables'}")
        return
    show_page(folder)


def _say_decisions(plan: ExperimentPlan) -> None:
    for line in decision_lines(plan):
        say(line)


def _run_paper(options: RunOptions) -> None:
    taken = ("experiment", "scale", "out", "resume", "jobs", "quiet")
    beyond = [one for one in options.beyond_defaults() if one not in taken] + [*options.overrides]
    if beyond:
        flag = beyond[0].replace("_", "-")
        raise InputError(f"run {options.experiment}: takes only --scale, --out, --resume and --jobs, got --{flag}")
    if options.out is None:
        raise InputError("out: missing; give a new folder for the experiments, --out DIR")
    paper(options.experiment, options.scale, options.out, options.resume, options.quiet, options.jobs)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
