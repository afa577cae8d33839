"""Run an experiment in a folder.

    OUT/
      experiment.json  findings.json         description (plan, facts) and findings
      protocol.json                          see `hmmscope.lab.experiments.protocols`
      runs/<label>/                          one run folder per trained model
      tables/<name>.jsonl                    measurements
      figures/<nn-name>.json                 figures as data
      timing/                                time of each phase
      seal.json                              checksums of all files and of the runs
      lock                                   file that the writing process locks

A seeded experiment keeps its runs in a pool and measures them in parts, see `hmmscope.lab.experiments.parts`.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from hmmscope import __version__, registry
from hmmscope.errors import DamagedError, InputError, RefusedError
from hmmscope.lab.evidence.ledger import rules_of
from hmmscope.lab.evidence.protocol import PROTOCOL, Protocol
from hmmscope.lab.experiments.derived_findings import invalid_of, write_results
from hmmscope.lab.experiments.failures import Failures
from hmmscope.lab.experiments.parts import BuildRecord, StoredParts, measured_in, measurement_of
from hmmscope.lab.experiments.planning import ExperimentPlan, plan_of
from hmmscope.lab.experiments.pool import default_executor, train_in_pool
from hmmscope.lab.experiments.protocols import handed_on, protocol_for
from hmmscope.lab.experiments.run_page import run_facts
from hmmscope.lab.experiments.seeded import PartTask, Seeded
from hmmscope.lab.experiments.timing import timed
from hmmscope.lab.tasks.driver import Executor, InProcessExecutor, ProgressListener, do_tasks
from hmmscope.lab.tasks.executors import ExecutorOptions
from hmmscope.lab.tasks.plans import in_words
from hmmscope.lab.tasks.task import Outcome
from hmmscope.runs.training import TrainOptions, train
from hmmscope.storage import disk, seals, store
from hmmscope.storage.rundir import config_difference
from hmmscope.system_info import environment
from hmmscope.text import say as say_aloud
from hmmscope.text import tell


def run_experiment(
    name: str,
    scale: str,
    out: Path,
    *,
    overrides: dict[str, str] | None = None,
    seeds: int | Sequence[int] | None = None,
    trained: Path | None = None,
    executor: ExecutorOptions | None = None,
    resume: bool = False,
    kept: Path | None = None,
    first: int | None = None,
    measure_only: bool = False,
    protocol: Path | None = None,
    quiet: bool = False,
) -> Path:
    plan = plan_of(name, scale, overrides or {}, seeds)
    given = {
        "pool": trained,
        "executor": executor,
        "reuse": kept,
        "only-first": first,
        "measure-only": measure_only or None,
    }
    wrong = next((option for option, value in given.items() if value is not None), None)
    if plan.seeds is None and wrong is not None:
        option = "jobs or executor" if wrong == "executor" else wrong
        raise InputError(f"{option}: {name} is not divided into seeds; omit this option")
    before = None if kept is None else StoredParts(kept, name, scale)
    pool = out.parent / "trained" if trained is None else trained
    fixed = None if protocol is None else protocol_for(plan, protocol)
    _claim_folder(out, plan, resume, overrides, seeds, trained, before, fixed)
    say: Callable[[str], None] = (lambda line: None) if quiet else (lambda line: say_aloud(line, flush=True))
    work = Seeded(plan, out.absolute(), pool.absolute(), say, quiet)
    if seals.open_sealed(out) is not None and not os.access(out, os.W_OK) and not work.left():
        return out  # finished, and read-only
    if plan.seeds is not None and not quiet:
        tell(f"plan: {sum(len(part.configs) for part in work.parts)} runs, {in_words(plan.seeds)}")
    with disk.holding(out / "lock"):
        store.remove_leftovers(out)
        work.left()  # refuse damaged parts before changing anything
        with disk.staying(out, "experiment.json"), seals.unsealed(out):
            if plan.seeds is None:
                facts, invalid = _run_once(plan, out, say, quiet)
                write_results(plan.experiment, out, facts, invalid, [out / "runs" / label for label in plan.configs])
                _seal(out, [out / "runs" / label for label in plan.configs])
                return out
            if before is not None:
                work.take(before)
            _run_seeds(work, executor, plan.seeds[:first], measure_only)
            rows = store.read_table(out / "tables" / "runs.jsonl")
            _seal(out, [folder for row in rows if (folder := pool / "runs" / row["run"]).is_dir()])
    return out


def _seal(out: Path, runs: Sequence[Path]) -> None:
    seals.write_seal(out, "experiment", {"measured_by": environment(), "runs": seals.digests(runs)})


# ---------------------------------------------------------------------------------------------------------------------
# Training and measuring


def _run_once(
    plan: ExperimentPlan, out: Path, say: Callable[[str], None], quiet: bool
) -> tuple[list[dict], str | None]:
    experiment, runs = plan.experiment, {}
    with Failures(f"{experiment.name}: training") as failures:
        for label, config in plan.configs.items():
            steps = f"{config.training.num_steps} step{'s' * (config.training.num_steps != 1)}"
            say(f"{experiment.name}: training {label} ({steps})")
            with failures.of(label), timed(out, "training"):
                runs[label] = train(config, out / "runs" / label, resume=True, options=TrainOptions(quiet=quiet))
    store.make_folder(out / "tables")
    made = BuildRecord(out, measurement_of(experiment).version, [out / "runs" / label for label in runs])
    with Failures(f"{experiment.name}: measuring") as failures:
        for group, names in experiment.groups.items():
            if made.has(group):
                continue
            say(f"{experiment.name}: measuring {group}")
            with failures.of(group):
                found = measured_in(out, experiment, runs, group, plan.sizes)
                for table in names:
                    store.write_table(out / "tables" / f"{table}.jsonl", found[table])
                made.note(group, [f"tables/{table}.jsonl" for table in names])
    facts = run_facts(runs) if runs else experiment.facts(plan.sizes)
    return facts, invalid_of({label: run.summary for label, run in runs.items()})


class _Parts(ProgressListener):
    def __init__(self, work: Seeded, failures: Failures) -> None:
        self._work, self._failures = work, failures
        self._parts = {part.slug: part for part in work.parts}

    def done(self, name: str) -> None:
        self._work.say(f"{self._work.plan.experiment.name}: {self._parts[name]} is measured")
        with self._failures.of(str(self._parts[name])):
            self._work.write()

    def failed(self, outcome: Outcome, attempts: int, again: bool) -> None:
        if not again:
            self._failures.note(str(self._parts[outcome.name]), outcome.exit_code, outcome.reason)


def _run_seeds(work: Seeded, where: ExecutorOptions | None, seeds: Sequence[int], measure_only: bool) -> None:
    left, plan = [part for part in work.left() if part.seed in seeds], work.plan
    if measure_only:
        left = [part for part in left if work.is_trained(part)]
    configs = [config for part in left for config in part.configs.values()]
    work.say(f"{plan.experiment.name}: {len(configs)} runs in {len(left)} of {len(work.parts)} parts, in {work.pool}")
    where = default_executor(len(configs), where, alone=plan.scale == "smoke")
    with Failures(plan.experiment.name) as failures:
        if where is not None:
            with failures.of("training"), timed(work.out, "training"):
                train_in_pool(configs, work.pool, where, quiet=work.quiet)
            left = [part for part in left if work.is_trained(part)]  # other runs failed
        executor: Executor = InProcessExecutor(quiet=work.quiet)
        if where is not None and len(left) > 1 and registry.is_installed(type(plan.experiment)):
            executor = replace(where, heartbeat_timeout=None).make(work.out)
        retries = 0 if isinstance(executor, InProcessExecutor) else 1
        do_tasks([PartTask.of(work, part) for part in left], executor, retries=retries, watcher=_Parts(work, failures))
        with failures.of("data for the live page"):
            work.write_live()
        if not left:
            work.write()


# ---------------------------------------------------------------------------------------------------------------------
# The folder


def _claim_folder(
    out: Path,
    plan: ExperimentPlan,
    resume: bool,
    overrides: dict[str, str] | None,
    seeds: int | Sequence[int] | None,
    trained: Path | None,
    kept: StoredParts | None,
    protocol: Protocol | None,
) -> None:
    path, experiment, config = out / "experiment.json", plan.experiment, plan.to_data()
    if os.path.lexists(out):
        if not resume:
            raise RefusedError(f"{out}: exists; choose another --out or add --resume")
        if not path.exists():
            raise RefusedError(f"{out}: exists and is not the folder of an experiment; choose another --out")
        before = store.read_json(path, managed=True)
        store.check_format(before, "experiment", path)
        if not isinstance(before.get("config"), dict):
            raise DamagedError(f"{path}: must be a mapping, with a mapping under its key 'config'")
        if before.get("experiment") != experiment.name:
            raise RefusedError(f"{out}: holds the experiment {before.get('experiment')}; choose another --out")
        difference = config_difference(before["config"], config)
        if difference:
            raise RefusedError(f"{out}: holds another plan ({'; '.join(difference[:4])}); choose another --out")
        if protocol is not None and before.get("protocol") != protocol.digest:
            raise RefusedError(f"{out}: was started without this protocol; choose another --out")
        return
    command = [f"hmmscope run {experiment.name} --scale {plan.scale} --out {out.name}"]
    if seeds is not None:
        listed = "" if isinstance(seeds, int) else ",".join(map(str, seeds)) + "," * (len(seeds) == 1)
        command.append(f"--seeds {listed}" if listed else f"--num-seeds {seeds}")
    if trained is not None:
        command.append(f"--pool {trained.name}")
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
    if kept is not None:  # the rules that were fixed before its data
        description |= {key: kept.about[key] for key in ("created", "rules") if key in kept.about}
    protocol, marks = handed_on(protocol, kept)
    description |= marks
    store.make_folder(out.parent)
    with store.new_folder(out, manifest=False) as folder:
        store.write_json(folder / "experiment.json", description)
        if protocol is not None:
            store.write_bytes(folder / PROTOCOL, protocol.data)
