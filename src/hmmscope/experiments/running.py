"""Running an experiment into a folder.

    OUT/
      experiment.json  findings.json         what was run, and what was found
      runs/<label>/                          one run folder for each model trained
      tables/<name>.jsonl                    measurements, the only input of figures and findings
      figures/<nn-name>.json                 figures as data; `report` draws them and makes the page

A seeded experiment has its runs in a pool that it may share with others, by default the folder "trained" beside OUT, and
OUT/parts/ has the tables of the seeds that are measured already. Each part is written whole when it is finished; an
interrupted experiment goes on where it was.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any

from hmmscope import __version__
from hmmscope.corpora.targets import make_target
from hmmscope.errors import InputError, RefusedError
from hmmscope.evidence.ledger import read_tables, rules_of
from hmmscope.evidence.rows import Rows, Tables
from hmmscope.experiments.experiment import SCALES, Experiment, experiment_named
from hmmscope.experiments.outcomes import last_quarter
from hmmscope.experiments.pool import default_engine, train_in_pool
from hmmscope.machine import machine_line
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.runs.dry_run import budget
from hmmscope.runs.pipeline import Run, load_run, ports_of, train
from hmmscope.schema import parse_value, unknown_name
from hmmscope.seeds import check_seed
from hmmscope.storage import store
from hmmscope.storage.rundir import RunDir, config_difference, read_journal
from hmmscope.sweeps.engines import EngineOptions
from hmmscope.text import say as say_aloud
from hmmscope.training.schedules import training_tokens

#: Sections of options that are not of a configuration: what shapes the plan, and sizes of the measurements.
_OWN_SECTIONS = ("plan", "measurements")


@dataclass(frozen=True)
class _Plan:
    """An experiment with all numbers in place."""

    experiment: Experiment
    scale: str
    choices: dict[str, Any]
    sizes: dict[str, Any]
    configs: dict[str, RunConfig]  # by label, with the seed of the plan
    seeds: tuple[int, ...] | None  # None: not seeded

    def of_seed(self, seed: int) -> dict[str, RunConfig]:
        """The configurations of one seed."""
        return {label: _seeded(config, seed) for label, config in self.configs.items()}

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {"runs": {label: config.to_data() for label, config in self.configs.items()}}
        if self.choices:
            data["plan"] = self.choices
        if self.seeds is not None:
            data["seeds"] = list(self.seeds)
        return data | {"measurements": self.sizes}


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
    quiet: bool = False,
) -> Path:
    """Train, measure and write tables, figures and findings into `out`, which is returned.

    Args:
        name: of the experiment.
        scale: "smoke", "small", "gpu" or "paper".
        out: a new folder, or with `resume` one that holds the same plan.
        overrides: changes to every configuration of the plan, ``{"training.num_steps": "100"}``, to what shapes the plan,
            ``{"plan.depths": "1,2"}``, and to sizes of the measurements, ``{"measurements.samples": "100"}``.
        seeds: how many, or which, of a seeded experiment; by default as many as the scale has.
        trained: the pool of its runs; by default the folder "trained" beside `out`.
        engine: where they are trained; by default worker processes on this machine, one a processor.
        resume: go on with the experiment in `out`.
        quiet: show no progress.

    Raises:
        InputError: an unknown name, scale or override.
        RefusedError: `out` exists, or holds another plan.
    """
    plan = _plan(name, scale, overrides or {}, seeds)
    if plan.seeds is None and (trained is not None or engine is not None):
        raise InputError(f"{'trained' if trained else 'engine'}: {name} is not a seeded experiment; leave it out")
    pool = out.parent / "trained" if trained is None else trained
    _claim_folder(out, plan, resume, overrides, seeds, trained)
    say: Callable[[str], None] = (lambda line: None) if quiet else (lambda line: say_aloud(line, flush=True))
    if plan.seeds is None:
        facts, invalid = _run_once(plan, out, say, quiet)
    else:
        facts, invalid = _run_seeds(plan, plan.seeds, out, pool, engine, say, quiet)
    _write_results(plan.experiment, out, facts, invalid)
    return out


# ---------------------------------------------------------------------------------------------------------------------
# The plan


def _plan(name: str, scale: str, overrides: dict[str, str], seeds: int | Sequence[int] | None) -> _Plan:
    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    experiment = experiment_named(name)
    if scale not in experiment.scales:
        raise InputError(f"scale: {name} has no scale {scale}; it has {', '.join(experiment.scales)}")
    choices, sizes = dict(experiment.choices(scale)), dict(experiment.measurements(scale))
    changes = {}
    for path, text in overrides.items():
        section, _, key = path.partition(".")
        if section not in _OWN_SECTIONS:
            changes[path] = text
        else:
            _override(choices if section == "plan" else sizes, path, key, text)
    configured = experiment.plan(scale, **choices)
    if changes and not configured:
        known = ", ".join(f"--measurements.{key}" for key in sizes)
        raise InputError(f"--{next(iter(changes))}: {name} trains no model; its options are {known}")
    chosen = _seeds(experiment, scale, seeds)
    if chosen is not None:
        for key in ("seed", "process.seed"):
            if key in changes:
                raise InputError(f"--{key}: is set by --seeds; give a list such as --seeds 0,5,7")
    configs = {label: config_from_data(data, changes) for label, data in configured.items()}
    for label, data in configured.items():
        for section in ("process", "layout"):
            planned, got = data[section]["name"], getattr(configs[label], section).name
            if got != planned:
                raise InputError(f"{section}.name: {name} measures {planned}, got {got!r}; change its numbers only")
    return _Plan(experiment, scale, choices, sizes, configs, chosen)


def _override(numbers: dict[str, Any], path: str, key: str, text: str) -> None:
    """Set one number, or list of them, to what a text says."""
    if key not in numbers:
        raise unknown_name(f"--{path}", key, numbers)
    kind: Any = type(numbers[key])
    if kind in (list, tuple):
        kind = tuple[type(numbers[key][0]), ...]  # type: ignore[misc]
    value = parse_value(kind, text, f"--{path}")
    numbers[key] = list(value) if isinstance(value, tuple) else value


def _seeds(experiment: Experiment, scale: str, seeds: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if not experiment.num_seeds:
        if seeds is not None:
            raise InputError(f"seeds: {experiment.name} is not a seeded experiment; leave --seeds out")
        return None
    wanted = experiment.num_seeds[scale] if seeds is None else seeds
    found = tuple(range(wanted)) if isinstance(wanted, int) else tuple(check_seed(seed) for seed in wanted)
    if not 1 <= len(found) <= 1000 or len(set(found)) < len(found):
        raise InputError(f"seeds: must be 1 to 1000, or different numbers, got {seeds}")
    return found


def _seeded(config: RunConfig, seed: int) -> RunConfig:
    """With the weights, the samples and the instance of a seed."""
    data = config.to_data() | {"seed": seed}
    if "seed" in {field.name for field in fields(config.process)}:
        data["process"] = data["process"] | {"seed": seed}
    return config_from_data(data)


# ---------------------------------------------------------------------------------------------------------------------
# Training and measuring


def _run_once(plan: _Plan, out: Path, say: Callable[[str], None], quiet: bool) -> tuple[list[dict], str | None]:
    """Train into OUT/runs and measure; facts, and why the numbers cannot be right."""
    experiment, runs = plan.experiment, {}
    for label, config in plan.configs.items():
        say(f"{experiment.name}: training {label} ({config.training.num_steps} steps)")
        runs[label] = train(config, out / "runs" / label, resume=True, quiet=quiet)
    for group, names in experiment.groups.items():
        _measure(experiment, group, names, out / "tables", plan.sizes, lambda: runs, say)
    facts = run_facts(runs) if runs else experiment.facts(plan.sizes)
    return facts, _invalid({label: run.summary for label, run in runs.items()})


def _run_seeds(
    plan: _Plan,
    seeds: Sequence[int],
    out: Path,
    pool: Path,
    engine: EngineOptions | None,
    say: Callable[[str], None],
    quiet: bool,
) -> tuple[list[dict], str | None]:
    """Train into the pool and measure seed by seed."""
    experiment = plan.experiment
    members = [(label, seed, config) for seed in seeds for label, config in plan.of_seed(seed).items()]
    say(f"{experiment.name}: {len(members)} runs ({len(plan.configs)} models, {len(seeds)} seeds) in {pool}")
    engine = default_engine(len(members), engine, alone=plan.scale == "smoke")
    folders = train_in_pool([config for *_, config in members], pool, engine, quiet=quiet)
    where = {(label, seed): folder for (label, seed, _), folder in zip(members, folders, strict=True)}
    loaded: dict[int, dict[str, Run]] = {}

    def runs_of(seed: int) -> dict[str, Run]:
        if seed not in loaded:
            loaded.clear()  # one seed at a time, so that large models need no more memory
            loaded[seed] = {label: load_run(where[label, seed]) for label in plan.configs}
        return loaded[seed]

    for seed in seeds:
        for group, names in experiment.groups.items():
            part = out / "parts" / f"seed-{seed}"
            _measure(experiment, f"{group}, seed {seed}", names, part, plan.sizes, lambda s=seed: runs_of(s), say)  # type: ignore[misc]
    for names in experiment.groups.values():
        for table in names:
            parts = [(seed, store.read_table(out / "parts" / f"seed-{seed}" / f"{table}.jsonl")) for seed in seeds]
            store.make_folder(out / "tables")
            store.write_table(
                out / "tables" / f"{table}.jsonl", [{"seed": seed} | row for seed, rows in parts for row in rows]
            )
    rows = [_run_row(label, seed, where[label, seed]) for label, seed, _ in members]
    store.write_table(out / "tables" / "runs.jsonl", rows)
    tokens = sum(row["tokens"] for row in rows)
    facts = [
        {"name": "models", "value": ", ".join(plan.configs) if len(plan.configs) <= 12 else str(len(plan.configs))},
        {"name": "seeds", "value": ", ".join(map(str, seeds))},
        {"name": "trained", "value": f"{len(rows)} runs, {tokens:,} tokens in all (table runs)"},
    ]
    return facts + experiment.facts(plan.sizes), _invalid({f"{row['run']}": row for row in rows})


def _measure(
    experiment: Experiment,
    group: str,
    names: Sequence[str],
    folder: Path,
    sizes: dict[str, Any],
    runs: Callable[[], dict[str, Run]],
    say: Callable[[str], None],
) -> None:
    """Write the tables of one measurement, unless they are there."""
    paths = {table: folder / f"{table}.jsonl" for table in names}
    if all(os.path.lexists(path) for path in paths.values()):
        return
    say(f"{experiment.name}: measuring {group}")
    store.make_folder(folder)
    for table, rows in experiment.measure(runs(), group.partition(",")[0], sizes).items():
        store.write_table(paths[table], rows)


def _run_row(label: str, seed: int, folder: Path) -> dict[str, Any]:
    """A line of the table of runs."""
    opened = RunDir.open(folder)
    config, summary = config_from_data(opened.config), opened.done or {}
    kept = ("parameters", "steps", "loss", "bayes_loss", "excess", "excess_low", "excess_high", "invalid")
    ports = ports_of(config, make_target(config.target, config.process.build(), config.layout))
    samples, tokens, flops = budget(config, ports)
    spent = {"sequences": samples, "tokens": tokens, "flops": flops}
    spent["seconds"] = _seconds(read_journal(folder / "timing.jsonl"))
    row = {"label": label, "seed": seed, "run": folder.name} | spent | {k: summary.get(k) for k in kept}
    return row | {"last_quarter": last_quarter(read_journal(folder / "metrics.jsonl"))}


def _seconds(records: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds of training, from records whose clock starts anew where a run was taken up again; None without any."""
    times = [record["seconds"] for record in records]
    ends = [now for now, later in zip(times, [*times[1:], 0.0], strict=True) if later < now]
    return sum(ends) if ends else None


def _invalid(summaries: Mapping[str, Mapping[str, Any] | None]) -> str | None:
    """Why the numbers cannot be right, or None."""
    found = (f"{name}: {summary['invalid']}" for name, summary in summaries.items() if summary and summary["invalid"])
    return next(found, None)


# ---------------------------------------------------------------------------------------------------------------------
# The folder


def _write_results(experiment: Experiment, out: Path, facts: list[dict], invalid: str | None) -> None:
    """Figures and findings from the tables in `out`."""
    tables = {
        table: Rows(store.read_table(out / "tables" / f"{table}.jsonl"))
        for names in [*experiment.groups.values(), ("runs",) if experiment.num_seeds else ()]
        for table in names
    }
    _write_judgements(experiment, out, tables)
    description = store.read_json(out / "experiment.json")
    facts = [*facts, {"name": "measured on", "value": machine_line()}]
    store.write_json(out / "experiment.json", description | {"facts": facts, "invalid": invalid})


def judge_again(folder: Path) -> None:
    """Make figures and findings of a finished experiment again from its tables, by the rules as they are now.

    Raises:
        InputError, DamagedError: see `hmmscope.evidence.ledger.ledger`.
    """
    about, tables = read_tables(folder)
    _write_judgements(experiment_named(about["experiment"]), folder, tables)


def _write_judgements(experiment: Experiment, out: Path, tables: Tables) -> None:
    store.make_folder(out / "figures")
    for number, figure in enumerate(experiment.figures(tables), 1):
        store.write_json(out / "figures" / f"{number:02d}-{figure.name}.json", figure.to_data())
    store.write_json(out / "findings.json", [finding.to_data() for finding in experiment.findings(tables)])


def _claim_folder(
    out: Path,
    plan: _Plan,
    resume: bool,
    overrides: dict[str, str] | None,
    seeds: int | Sequence[int] | None,
    trained: Path | None,
) -> None:
    """Make the folder with experiment.json, or check that it holds the same plan."""
    path, experiment, config = out / "experiment.json", plan.experiment, plan.to_data()
    if os.path.lexists(out):
        if not resume:
            raise RefusedError(f"{out}: exists; choose another --out or add --resume")
        if not path.exists():
            raise RefusedError(f"{out}: exists and is not the folder of an experiment; choose another --out")
        before = store.read_json(path)
        if before.get("experiment") != experiment.name:
            raise RefusedError(f"{out}: holds the experiment {before.get('experiment')}; choose another --out")
        difference = config_difference(before["config"], config)
        if difference:
            raise RefusedError(f"{out}: holds another plan ({'; '.join(difference[:4])}); choose another --out")
        return
    command = [f"hmmscope run {experiment.name} --scale {plan.scale} --out {out.name}"]
    if seeds is not None:
        command.append(f"--seeds {seeds if isinstance(seeds, int) else ','.join(map(str, seeds))}")
    if trained is not None:
        command.append(f"--trained {trained.name}")
    description: dict[str, Any] = {
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
    store.make_folder(out.parent)
    with store.new_folder(out, manifest=False) as folder:
        store.write_json(folder / "experiment.json", description)


def run_facts(runs: dict[str, Run]) -> list[dict[str, str]]:
    """What was run, in a few lines."""
    facts = []
    for label, run in runs.items():
        prefix = f"{label}: " if len(runs) > 1 else ""
        summary, corpus = run.summary or {}, run.corpus()
        tokens = training_tokens(run.config.training, corpus.layout.num_columns, corpus.layout.num_observations)
        once = "" if run.config.training.num_trajectories else ", each seen once"
        facts += [
            {"name": f"{prefix}process", "value": repr(run.process)},
            {"name": f"{prefix}tokens in a sample", "value": f"{corpus.layout.num_columns:,}"},
            {"name": f"{prefix}model", "value": f"{run.config.model.name}, {summary['parameters']:,} parameters"},
            {"name": f"{prefix}training", "value": f"{summary['steps']:,} steps, {tokens:,} tokens{once}"},
        ]
        unit = run.target.unit
        if summary["bayes_loss"] is None:
            beside = f"{summary['loss']:.4f} ({summary['baseline']} {summary['baseline_loss']:.4f}) {unit}"
            facts.append({"name": f"{prefix}loss (no optimum is known)", "value": beside})
            continue
        interval = f"{summary['excess']:.4f} ({summary['excess_low']:.4f} to {summary['excess_high']:.4f})"
        facts += [
            {"name": f"{prefix}loss (optimum)", "value": f"{summary['loss']:.4f} ({summary['bayes_loss']:.4f}) {unit}"},
            {"name": f"{prefix}excess over the optimum", "value": f"{interval} {unit}"},
        ]
    return facts
