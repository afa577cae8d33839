"""Execution of a seeded experiment, with one task for each part (the models of a seed, measured together)."""

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from hmmscope.datasets.targets import make_target
from hmmscope.lab.experiments.derived_findings import invalid_of, write_results
from hmmscope.lab.experiments.experiment import MeasuredTables
from hmmscope.lab.experiments.failures import phase
from hmmscope.lab.experiments.parts import MeasuredPart, StoredParts, measured_in, measurement_of, write_tables
from hmmscope.lab.experiments.planning import ExperimentPlan
from hmmscope.lab.experiments.pool import train_in_pool
from hmmscope.lab.experiments.timing import timed
from hmmscope.lab.sweeps.grid import run_name
from hmmscope.lab.sweeps.run_task import RunTask
from hmmscope.lab.tasks.task import Task
from hmmscope.runs.config import config_from_data
from hmmscope.runs.dry_run import budget
from hmmscope.runs.page_export import live_data
from hmmscope.runs.pipeline import Run, load_run, model_io_of
from hmmscope.storage import seals, store
from hmmscope.storage.rundir import RunDir, read_journal
from hmmscope.text import say as say_aloud
from hmmscope.training.state import resolve_device


@dataclass(frozen=True)
class Seeded:
    """A seeded experiment in its folder, with methods that train and measure its parts.

    Attributes:
        plan: plan of the experiment.
        out: folder of the experiment.
        pool: folder of the trained runs.
        say: function that prints a line of progress.
        quiet: True shows no progress.
    """

    plan: ExperimentPlan
    out: Path
    pool: Path
    say: Callable[[str], None]
    quiet: bool

    @classmethod
    def at(cls, out: Path, pool: Path) -> "Seeded":
        about = store.read_json(out / "experiment.json", managed=True)
        return _seeded(out, pool, json.dumps([about["experiment"], about["scale"], about["config"]]))

    @cached_property
    def parts(self) -> list[MeasuredPart]:
        experiment, plan = self.plan.experiment, self.plan
        measurement = measurement_of(experiment)
        return [
            MeasuredPart(seed, name, {label: of_seed[label] for label in labels}, measurement)
            for seed in plan.seeds or ()
            for of_seed in (plan.of_seed(seed),)
            for name, labels in experiment.cells(list(plan.configs)).items()
        ]

    @cached_property
    def protocol(self) -> str | None:
        found: str | None = store.read_json(self.out / "experiment.json", managed=True).get("protocol")
        return found

    def left(self) -> list[MeasuredPart]:
        return [part for part in self.parts if not part.is_in(self.out)]

    def is_trained(self, part: MeasuredPart) -> bool:
        return all(RunTask(self.pool, run_name(config)).is_done() for config in part.configs.values())

    def take(self, kept: StoredParts) -> None:
        for part in self.left():
            why = kept.give(part, self.out, self.plan.sizes)
            if why is not None:
                self.say(f"{self.plan.experiment.name}: {part} is not reused: {why}")
        self.write()

    def do(self, part: MeasuredPart, *, quiet: bool) -> None:
        experiment = self.plan.experiment
        with timed(self.out, "training"):
            folders = train_in_pool(list(part.configs.values()), self.pool, quiet=quiet)
        runs = {label: _where_trained(folder) for label, folder in zip(part.configs, folders, strict=True)}
        tables: MeasuredTables = {}
        for group in experiment.groups:
            self.say(f"{experiment.name}: measuring {group}, {part}")
            with phase(f"measuring {group}"):
                tables |= measured_in(self.out, experiment, runs, group, self.plan.sizes)
        rows = [run_row(label, folder) for label, folder in zip(part.configs, folders, strict=True)]
        part.write(self.out, tables | {"runs": rows}, runs=seals.digests(folders), protocol=self.protocol)

    def write_live(self) -> None:
        label = self.plan.experiment.live_run(self.plan.scale, list(self.plan.configs))
        if label is None or os.path.lexists(self.out / "live.json"):
            return
        found = (part.configs[label] for part in self.parts if label in part.configs and part.is_in(self.out))
        folder = next(
            (path for config in found if (path := RunTask(self.pool, run_name(config)).folder).is_dir()), None
        )
        if folder is not None:
            run = load_run(folder)
            store.write_json(self.out / "live.json", live_data(run, self.plan.experiment.live_process(run)))

    def write(self) -> None:
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
                f"{sum(known) / 3600:.2f} core-hours in total (see table 'runs')",
            },
        ]
        write_results(
            experiment,
            self.out,
            facts + experiment.facts(self.plan.sizes),
            invalid_of({f"{row['run']}": row for row in rows}),
            [self.pool / "runs" / row["run"] for row in rows],
            whole=[seed for seed in seeds if seed not in begun] if begun else None,
        )


def _where_trained(folder: Path) -> Run:
    run = load_run(folder)
    run.model.to(resolve_device(run.config.training.device))
    return run


@functools.lru_cache(maxsize=1)
def _seeded(out: Path, pool: Path, about: str) -> Seeded:
    name, scale, config = json.loads(about)
    return Seeded(ExperimentPlan.from_data(name, scale, config), out, pool, say_aloud, True)


@dataclass(frozen=True, eq=False)
class PartTask(Task):
    """Training and measurement of the models of one part.

    Attributes:
        work: the experiment in its folder.
        part: the part, which names the models.
    """

    kind: ClassVar[str] = "part"

    work: Seeded = field(repr=False)
    part: MeasuredPart

    @classmethod
    def of(cls, work: Seeded, part: MeasuredPart) -> "PartTask":
        return cls(work.out, part.slug, work, part)

    @classmethod
    def read(cls, **given: str) -> "PartTask":
        work = Seeded.at(Path(given["out"]), Path(given["pool"]))
        return cls.of(work, next(part for part in work.parts if part.slug == given["name"]))

    def given(self) -> dict[str, str]:
        return super().given() | {"pool": str(self.work.pool)}

    def __str__(self) -> str:
        return str(self.part)

    def is_done(self) -> bool:
        return self.part.is_in(self.out)

    def do(self, *, quiet: bool = True) -> None:
        self.work.do(self.part, quiet=quiet)


def _few(labels: list[str]) -> str:
    return ", ".join(labels) if len(labels) <= 12 else str(len(labels))


def run_row(label: str, folder: Path) -> dict[str, Any]:
    opened = RunDir.open(folder)
    config, summary = config_from_data(opened.config), opened.done or {}
    kept = ("parameters", "steps", "loss", "bayes_loss", "excess", "excess_low", "excess_high", "invalid")
    ports = model_io_of(config, make_target(config.target, config.process.build(), config.layout))
    samples, tokens, flops = budget(config, ports)
    spent = {"sequences": samples, "tokens": tokens, "flops": flops}
    records = read_journal(folder / "timing.jsonl")
    spent |= {column: _seconds(records, column) for column in ("seconds", "processor_seconds")}
    row = {"label": label, "run": folder.name} | spent | {k: summary.get(k) for k in kept}
    return row | {"last_quarter": last_quarter(read_journal(folder / "metrics.jsonl"))}


def _seconds(records: Sequence[Mapping[str, Any]], column: str) -> float | None:
    times = [record[column] for record in records if column in record]
    if not times:
        return None
    ends = [now for now, later in zip(times, [*times[1:], 0.0], strict=True) if later < now]
    return sum(ends)


def last_quarter(records: Sequence[Mapping[str, Any]]) -> float | None:
    losses = {row["step"]: row["evaluation_loss"] for row in records if row.get("evaluation_loss") is not None}
    if not losses:
        return None
    last = max(losses)
    before = [step for step in losses if 4 * step <= 3 * last]
    return float(losses[last] - losses[max(before)]) if before else None
