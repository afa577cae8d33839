"""Running an experiment into a folder.

    OUT/
      experiment.json  findings.json         what was run, and what was found
      protocol.json                          what was fixed before, see `hmmscope.lab.experiments.protocols`
      runs/<label>/                          one run folder for each model trained
      tables/<name>.jsonl                    measurements, the only input of figures and findings
      figures/<nn-name>.json                 figures as data; `report` draws them and makes the page
      timing/                                where the time went, which differs each time
      seal.json                              digests of all this, of the seals of the runs, and what measured it
      lock                                   held by the process that writes

A seeded experiment has its runs in a pool that it may share with others, by default the folder "trained" beside OUT, and
is measured part by part, see `hmmscope.lab.experiments.parts`. An interrupted experiment goes on where it was.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from hmmscope import __version__
from hmmscope.corpora.targets import make_target
from hmmscope.errors import DamagedError, InputError, RefusedError
from hmmscope.lab.evidence.ledger import read_tables, rules_of, tables_of
from hmmscope.lab.evidence.protocol import PROTOCOL, Protocol
from hmmscope.lab.evidence.rows import Tables
from hmmscope.lab.experiments.experiment import Experiment, Measured, experiment_named
from hmmscope.lab.experiments.failures import Failures, phase
from hmmscope.lab.experiments.outcomes import last_quarter
from hmmscope.lab.experiments.parts import Kept, Made, Part, measurement_of, write_tables
from hmmscope.lab.experiments.planning import Plan, plan_of
from hmmscope.lab.experiments.pool import default_engine, train_in_pool
from hmmscope.lab.experiments.protocols import handed_on, protocol_for
from hmmscope.lab.experiments.run_page import run_facts
from hmmscope.lab.experiments.timing import timed, write_time_facts
from hmmscope.lab.sweeps.executors import EngineOptions
from hmmscope.lab.sweeps.grid import run_name
from hmmscope.lab.sweeps.jobs import is_done
from hmmscope.machine import environment, machine_line
from hmmscope.runs.config import config_from_data
from hmmscope.runs.dry_run import budget
from hmmscope.runs.live import live_data
from hmmscope.runs.pipeline import Run, load_run, ports_of
from hmmscope.runs.training import train
from hmmscope.storage import disk, packed, seals, store
from hmmscope.storage.rundir import RunDir, config_difference, read_journal
from hmmscope.text import say as say_aloud


def run_experiment(
    name: str,
    scale: str,
    out: Path,
    *,
    overrides: dict[str, str] | None = None,
    seeds: int | Sequence[int] | None = None,
    trained: Path | None = None,
    engine: EngineOptions | None = None,
    resume: bool = False,
    kept: Path | None = None,
    first: int | None = None,
    measure_only: bool = False,
    protocol: Path | None = None,
    quiet: bool = False,
) -> Path:
    """Train, measure and write tables, figures and findings into `out`, which is returned.

    Args:
        name: of the experiment.
        scale: "smoke", "small", "medium", "gpu" or "paper".
        out: a new folder, or with `resume` one that holds the same plan.
        overrides: changes to every configuration of the plan, ``{"training.num_steps": "100"}``, to what shapes the plan,
            ``{"plan.depths": "1,2"}``, and to sizes of the measurements, ``{"measurements.samples": "100"}``.
        seeds: how many, or which, of a seeded experiment; by default as many as the scale has.
        trained: the pool of its runs; by default the folder "trained" beside `out`.
        engine: where they are trained; by default worker processes on this machine, one a processor.
        resume: go on with the experiment in `out`.
        kept: a folder with small files of the same experiment and scale, whose parts are taken over and not trained.
        first: leave all but so many seeds of the plan for later.
        measure_only: train nothing; measure the parts whose models the pool has, and leave the others for later.
        protocol: a file that fixes what is run and judged, see `hmmscope.lab.experiments.protocols`; parts carry its digest.
        quiet: show no progress.

    Raises:
        InputError: an unknown name, scale or override; a protocol of another plan, or of rules that are others now.
        RefusedError: `out` exists, or holds another plan.
    """
    plan = plan_of(name, scale, overrides or {}, seeds)
    given = {"trained": trained, "engine": engine, "from": kept, "first": first, "measure-only": measure_only or None}
    wrong = next((option for option, value in given.items() if value is not None), None)
    if plan.seeds is None and wrong is not None:
        raise InputError(f"{wrong}: {name} is not a seeded experiment; leave it out")
    before = None if kept is None else Kept(kept, name, scale)
    pool = out.parent / "trained" if trained is None else trained
    fixed = None if protocol is None else protocol_for(plan, protocol)
    _claim_folder(out, plan, resume, overrides, seeds, trained, before, fixed)
    say: Callable[[str], None] = (lambda line: None) if quiet else (lambda line: say_aloud(line, flush=True))
    work = Seeded(plan, out, pool, say, quiet)
    if seals.check_seal(out) is not None and not os.access(out, os.W_OK) and not work.left():
        return out  # finished, and there to be read
    with disk.holding(out / "lock"):
        store.remove_leftovers(out)
        work.left()  # a part that is damaged is refused before anything is changed
        with seals.taken_off(out):
            if plan.seeds is None:
                facts, invalid = _run_once(plan, out, say, quiet)
                _write_results(plan.experiment, out, facts, invalid, [out / "runs" / label for label in plan.configs])
                _seal(out, [out / "runs" / label for label in plan.configs])
                return out
            if before is not None:
                work.take(before)
            _run_seeds(work, engine, plan.seeds[:first], measure_only)
            rows = store.read_table(out / "tables" / "runs.jsonl")
            _seal(out, [folder for row in rows if (folder := pool / "runs" / row["run"]).is_dir()])
    return out


def _seal(out: Path, runs: Sequence[Path]) -> None:
    seals.write_seal(out, "experiment", {"measured_by": environment(), "runs": seals.digests(runs)})


# ---------------------------------------------------------------------------------------------------------------------
# Training and measuring


def _run_once(plan: Plan, out: Path, say: Callable[[str], None], quiet: bool) -> tuple[list[dict], str | None]:
    """Train into OUT/runs and measure; facts, and why the numbers cannot be right."""
    experiment, runs = plan.experiment, {}
    with Failures(f"{experiment.name}: training") as failures:
        for label, config in plan.configs.items():
            steps = f"{config.training.num_steps} step{'s' * (config.training.num_steps != 1)}"
            say(f"{experiment.name}: training {label} ({steps})")
            with failures.of(label), timed(out, "training"):
                runs[label] = train(config, out / "runs" / label, resume=True, quiet=quiet)
    store.make_folder(out / "tables")
    made = Made(out, measurement_of(experiment).version, [out / "runs" / label for label in runs])
    with Failures(f"{experiment.name}: measuring") as failures:
        for group, names in experiment.groups.items():
            if made.has(group):
                continue
            say(f"{experiment.name}: measuring {group}")
            with failures.of(group), timed(out, f"measuring {group}".removesuffix(" measurements")):
                found = _measure(experiment, runs, group, plan.sizes)
                for table in names:
                    store.write_table(out / "tables" / f"{table}.jsonl", found[table])
                made.note(group, [f"tables/{table}.jsonl" for table in names])
    facts = run_facts(runs) if runs else experiment.facts(plan.sizes)
    return facts, _invalid({label: run.summary for label, run in runs.items()})


def _measure(experiment: Experiment, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
    return experiment.measure(runs, group, sizes)


@dataclass(frozen=True)
class Seeded:
    """A seeded experiment at work in its folder.

    Attributes:
        plan: what is run.
        out: its folder.
        pool: of its runs.
        say: tells what is done.
        quiet: show no progress.
    """

    plan: Plan
    out: Path
    pool: Path
    say: Callable[[str], None]
    quiet: bool

    @cached_property
    def parts(self) -> list[Part]:
        """All parts, seed by seed."""
        experiment, plan = self.plan.experiment, self.plan
        measurement = measurement_of(experiment)
        return [
            Part(seed, name, {label: of_seed[label] for label in labels}, measurement)
            for seed in plan.seeds or ()
            for of_seed in (plan.of_seed(seed),)
            for name, labels in experiment.cells(list(plan.configs)).items()
        ]

    @cached_property
    def protocol(self) -> str | None:
        """Digest of the protocol by which it runs."""
        found: str | None = store.read_json(self.out / "experiment.json", own=True).get("protocol")
        return found

    def left(self) -> list[Part]:
        """The parts that are not measured."""
        return [part for part in self.parts if not part.is_in(self.out)]

    def is_trained(self, part: Part) -> bool:
        """Whether the pool has all its models."""
        return all(is_done(self.pool, run_name(config)) for config in part.configs.values())

    def take(self, kept: Kept) -> None:
        """Take over what is kept."""
        for part in self.left():
            why = kept.give(part, self.out, self.plan.sizes)
            if why is not None:
                self.say(f"{self.plan.experiment.name}: {part} is not taken over: {why}")
        self.write()

    def do(self, part: Part) -> None:
        """Train the models of a part, as far as the pool lacks them, and measure them."""
        experiment = self.plan.experiment
        with timed(self.out, "training"):
            folders = train_in_pool(list(part.configs.values()), self.pool, quiet=self.quiet)
        runs = {label: load_run(folder) for label, folder in zip(part.configs, folders, strict=True)}
        tables: Measured = {}
        for group in experiment.groups:
            self.say(f"{experiment.name}: measuring {group}, {part}")
            with phase(f"measuring {group}"), timed(self.out, f"measuring {group}".removesuffix(" measurements")):
                tables |= _measure(experiment, runs, group, self.plan.sizes)
        rows = [run_row(label, folder) for label, folder in zip(part.configs, folders, strict=True)]
        live = experiment.live_run(self.plan.scale, list(self.plan.configs))
        if live in runs and not os.path.lexists(self.out / "live.json"):
            store.write_json(self.out / "live.json", live_data(runs[live], experiment.live_process(runs[live])))
        part.write(self.out, tables | {"runs": rows}, runs=seals.digests(folders), protocol=self.protocol)

    def write(self) -> None:
        """Tables from the parts that are there, and figures and findings of the seeds that are whole."""
        experiment, seeds = self.plan.experiment, self.plan.seeds or ()
        names = [*(name for names in experiment.groups.values() for name in names), "runs"]
        write_tables(self.out, names, self.parts)
        begun = {part.seed for part in self.left()}
        rows = store.read_table(self.out / "tables" / "runs.jsonl")
        known = [row["processor_seconds"] for row in rows if row["processor_seconds"] is not None]
        facts = [
            {"name": "models", "value": _few(list(self.plan.configs))},
            {"name": "seeds", "value": ", ".join(map(str, seeds))},
            {
                "name": "trained",
                "value": f"{len(rows)} runs, {sum(row['tokens'] for row in rows):,} tokens, "
                f"{sum(known) / 3600:.2f} core-hours in all (table runs)",
            },
        ]
        _write_results(
            experiment,
            self.out,
            facts + experiment.facts(self.plan.sizes),
            _invalid({f"{row['run']}": row for row in rows}),
            [self.pool / "runs" / row["run"] for row in rows],
            whole=[seed for seed in seeds if seed not in begun] if begun else None,
        )


def _few(labels: list[str]) -> str:
    return ", ".join(labels) if len(labels) <= 12 else str(len(labels))


def _run_seeds(work: Seeded, engine: EngineOptions | None, seeds: Sequence[int], measure_only: bool) -> None:
    """Train and measure part by part; with an engine that trains several runs at a time, all of them first."""
    left, plan = [part for part in work.left() if part.seed in seeds], work.plan
    if measure_only:
        left = [part for part in left if work.is_trained(part)]
    configs = [config for part in left for config in part.configs.values()]
    work.say(f"{plan.experiment.name}: {len(configs)} runs in {len(left)} of {len(work.parts)} parts, in {work.pool}")
    engine = default_engine(len(configs), engine, alone=plan.scale == "smoke")
    with Failures(plan.experiment.name) as failures:
        if engine is not None:
            with failures.of("training"), timed(work.out, "training"):
                train_in_pool(configs, work.pool, engine, quiet=work.quiet)
        for part in left:
            if engine is not None and not work.is_trained(part):
                continue  # one of its runs is among those that failed
            with failures.of(str(part)):
                work.do(part)
                work.write()
        if not left:
            work.write()


def run_row(label: str, folder: Path) -> dict[str, Any]:
    """A line of the table of runs."""
    opened = RunDir.open(folder)
    config, summary = config_from_data(opened.config), opened.done or {}
    kept = ("parameters", "steps", "loss", "bayes_loss", "excess", "excess_low", "excess_high", "invalid")
    ports = ports_of(config, make_target(config.target, config.process.build(), config.layout))
    samples, tokens, flops = budget(config, ports)
    spent = {"sequences": samples, "tokens": tokens, "flops": flops}
    records = read_journal(folder / "timing.jsonl")
    spent |= {column: _seconds(records, column) for column in ("seconds", "processor_seconds")}
    row = {"label": label, "run": folder.name} | spent | {k: summary.get(k) for k in kept}
    return row | {"last_quarter": last_quarter(read_journal(folder / "metrics.jsonl"))}


def _seconds(records: Sequence[Mapping[str, Any]], column: str) -> float | None:
    """Seconds of training, from records whose clock starts anew where a run was taken up again; None without any."""
    times = [record[column] for record in records if column in record]
    if not times:
        return None
    ends = [now for now, later in zip(times, [*times[1:], 0.0], strict=True) if later < now]
    return sum(ends)


def _invalid(summaries: Mapping[str, Mapping[str, Any] | None]) -> str | None:
    """Why the numbers cannot be right, or None."""
    found = (f"{name}: {summary['invalid']}" for name, summary in summaries.items() if summary and summary["invalid"])
    return next(found, None)


# ---------------------------------------------------------------------------------------------------------------------
# The folder


def _write_results(
    experiment: Experiment,
    out: Path,
    facts: list[dict],
    invalid: str | None,
    runs: Sequence[Path],
    whole: list[int] | None = None,
) -> None:
    """Figures and findings from the tables in `out`; of an experiment that goes on, from the seeds that are whole."""
    description = store.read_json(out / "experiment.json", own=True)
    judged = description.pop("whole_seeds", [])
    unfinished = {} if whole is None else {"whole_seeds": whole}
    facts = [*facts, {"name": "measured on", "value": machine_line()}]
    description |= {"facts": facts, "invalid": invalid} | unfinished
    store.write_json(out / "experiment.json", description)
    if whole is None or whole != judged:
        with timed(out, "figures and findings"):
            about = store.read_json(out / "experiment.json", own=True)
            _write_judgements(experiment, out, tables_of(out, about), about["scale"])
        write_time_facts(out, runs)


def judge_again(folder: Path) -> None:
    """Make figures and findings of a finished experiment again from its tables, by the rules as they are now.

    Raises:
        InputError, DamagedError: see `hmmscope.lab.evidence.ledger.ledger`.
    """
    about, tables = read_tables(folder)
    with seals.taken_off(folder) as seal:
        _write_judgements(experiment_named(about["experiment"]), folder, tables, about["scale"])
        bound = seal.bound if seal else {"sealed_by": environment()}
        seals.write_seal(folder, "experiment", bound | {"judged_again": True})


def _write_judgements(experiment: Experiment, out: Path, tables: Tables, scale: str) -> None:
    """Findings, and figures where they are not left to be derived of what is kept."""
    found = judgements(experiment, tables, scale)
    if packed.is_packed(out):
        found = {"findings.json": found["findings.json"]}
    else:
        store.make_folder(out / "figures")
    for name, data in found.items():
        store.write_json(out / name, data)


def judgements(experiment: Experiment, tables: Tables, scale: str) -> dict[str, Any]:
    """What follows from the tables of a scale by the rules as they are now: figures and findings, by their files' names."""
    figures = enumerate(experiment.figures(tables), 1)
    found: dict[str, Any] = {f"figures/{number:02d}-{figure.name}.json": figure.to_data() for number, figure in figures}
    return found | {"findings.json": [finding.at(scale).to_data() for finding in experiment.findings(tables)]}


def _claim_folder(
    out: Path,
    plan: Plan,
    resume: bool,
    overrides: dict[str, str] | None,
    seeds: int | Sequence[int] | None,
    trained: Path | None,
    kept: Kept | None,
    protocol: Protocol | None,
) -> None:
    """Make the folder with experiment.json, or check that it holds the same plan."""
    path, experiment, config = out / "experiment.json", plan.experiment, plan.to_data()
    if os.path.lexists(out):
        if not resume:
            raise RefusedError(f"{out}: exists; choose another --out or add --resume")
        if not path.exists():
            raise RefusedError(f"{out}: exists and is not the folder of an experiment; choose another --out")
        before = store.read_json(path, own=True)
        store.check_format(before, "experiment", path)
        if not isinstance(before.get("config"), dict):
            raise DamagedError(f"{path}: must be a mapping with a mapping 'config'")
        if before.get("experiment") != experiment.name:
            raise RefusedError(f"{out}: holds the experiment {before.get('experiment')}; choose another --out")
        difference = config_difference(before["config"], config)
        if difference:
            raise RefusedError(f"{out}: holds another plan ({'; '.join(difference[:4])}); choose another --out")
        if protocol is not None and before.get("protocol") != protocol.digest:
            raise RefusedError(f"{out}: was not begun by this protocol; choose another --out")
        return
    command = [f"hmmscope run {experiment.name} --scale {plan.scale} --out {out.name}"]
    if seeds is not None:
        command.append(f"--seeds {seeds if isinstance(seeds, int) else ','.join(map(str, seeds))}")
    if trained is not None:
        command.append(f"--trained {trained.name}")
    description: dict[str, Any] = {
        "format": store.FORMATS["experiment"],
        "experiment": experiment.name,
        "title": experiment.title,
        "summary": experiment.summary,
        "scale": plan.scale,
        "created": date.today().isoformat(),
        "version": __version__,
        "command": " ".join([*command, *(f"--{key} {value}" for key, value in (overrides or {}).items())]),
        "intervals": experiment.intervals,
        "facts": [],
        "invalid": None,
        "rules": rules_of(experiment.name),
        "config": config,
    }
    if kept is not None:  # the rules are those that were fixed before its data
        description |= {key: kept.about[key] for key in ("created", "rules") if key in kept.about}
    protocol, marks = handed_on(protocol, kept)
    description |= marks
    store.make_folder(out.parent)
    with store.new_folder(out, manifest=False) as folder:
        store.write_json(folder / "experiment.json", description)
        if protocol is not None:
            store.write_bytes(folder / PROTOCOL, protocol.data)
