"""The verb `run`: an experiment and its page."""

from collections.abc import Sequence
from pathlib import Path

from hmmscope.errors import InputError
from hmmscope.lab.experiments.forecast import forecast
from hmmscope.lab.experiments.planning import plan_of
from hmmscope.lab.experiments.protocols import write_protocol
from hmmscope.lab.experiments.running import run_experiment
from hmmscope.lab.tasks.executors import ExecutorOptions
from hmmscope.lab.verbs.findings import show_page
from hmmscope.lab.verbs.paper import paper
from hmmscope.schema import parse_value
from hmmscope.text import say


def run(
    experiment: str,
    scale: str,
    out: str | None,
    resume: bool,
    quiet: bool,
    overrides: dict[str, str],
    seeds: str | None = None,
    trained: str | None = None,
    engine: str | None = None,
    jobs: int | None = None,
    gpus: float = 0.0,
    address: str | None = None,
    slurm: Sequence[str] = (),
    silence: float | None = None,
    kept: str | None = None,
    first: int | None = None,
    measure_only: bool = False,
    dry_run: bool = False,
    protocol: str | None = None,
) -> None:
    """Run an experiment and write its page; of `all`, every one, see `hmmscope.lab.verbs.paper`."""
    if dry_run and experiment != "all" and protocol is not None:
        plan = plan_of(experiment, scale, overrides, _seeds(seeds))
        digest = write_protocol(plan, Path(protocol))
        say(f"protocol: {protocol} ({digest[:12]}); commit it before the first run")
        return
    if dry_run and experiment != "all":
        for line in forecast(experiment, scale, overrides, _seeds(seeds)):
            say(line, flush=True)
        return
    if dry_run:
        raise InputError("run all: takes no --dry-run; ask for one experiment")
    if out is None:
        raise InputError("out: give a new folder for the experiment, --out DIR (or --dry-run)")
    if experiment == "all":
        if any([overrides, seeds, trained, kept, first, measure_only, protocol, engine, gpus, address, slurm, silence]):
            raise InputError("run all: takes --scale, --out, --resume and --jobs alone")
        return paper("all", scale, out, resume, quiet, jobs)
    asked = engine is not None or jobs is not None or gpus or address is not None or slurm or silence is not None
    where = ExecutorOptions(
        name=engine or "local", jobs=jobs, gpus=gpus, address=address, slurm=tuple(slurm), silence=silence
    )
    folder = run_experiment(
        experiment,
        scale,
        Path(out),
        overrides=overrides,
        seeds=_seeds(seeds),
        trained=None if trained is None else Path(trained),
        engine=where if asked else None,
        resume=resume,
        kept=None if kept is None else Path(kept),
        first=first,
        measure_only=measure_only,
        protocol=None if protocol is None else Path(protocol),
        quiet=quiet,
    )
    if not (folder / "findings.json").is_file():
        say(f"no seed is whole yet, so there is no page; what is measured is in {folder / 'tables'}")
        return
    show_page(folder)


def _seeds(text: str | None) -> int | tuple[int, ...] | None:
    """``3``, or ``0,5,7``, or one seed of that number, ``7,``."""
    if text is None:
        return None
    return (
        parse_value(tuple[int, ...], text.removesuffix(","), "seeds")
        if "," in text
        else parse_value(int, text, "seeds")
    )
