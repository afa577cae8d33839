"""What an experiment is, and how one is run into a folder.

    OUT/
      experiment.json  findings.json         what was run, and what was found
      runs/<label>/                          one run folder for each model trained
      tables/<name>.jsonl                    measurements, the only input of figures and findings
      figures/<nn-name>.json                 figures as data; `report` draws them and makes the page

Each part is written whole when it is finished; an interrupted experiment goes on where it was.
"""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

from hmmscope import __version__, registry, store
from hmmscope.config import RunConfig, config_from_data
from hmmscope.errors import InputError, RefusedError
from hmmscope.figures import Figure
from hmmscope.pipeline import Run, train
from hmmscope.rundir import config_difference
from hmmscope.schema import parse_value, unknown_name

SCALES = ("smoke", "small", "gpu", "paper")

Tables = dict[str, list[dict]]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One sentence that the measurements bear out or do not, with the number it rests on.

    Attributes:
        title: what it is about.
        text: the sentence.
        verdict: of a published claim, or "found" where nothing was claimed.
        value, low, high: the number and its 95 % interval, if it has one.
        unit: of the number.
    """

    title: str
    text: str
    verdict: Literal["reproduced", "not reproduced", "inconclusive", "found"]
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""


class Experiment(ABC):
    """Subclasses are registered by name; their methods do not know the scale, only the numbers of the plan.

    An experiment on constructed networks or on processes alone trains nothing: its plan is empty.
    """

    name: str
    title: str
    summary: str
    intervals: str = "Intervals are 95 % bootstrap intervals over samples (1000 resamples)."

    def plan(self, scale: str) -> dict[str, dict[str, Any]]:
        """The models to train: plain configurations by label."""
        return {}

    @abstractmethod
    def measurements(self, scale: str) -> dict[str, Any]:
        """Sizes of the measurements, shown as facts."""

    #: Measurements in order, each with the names of the tables that it makes.
    groups: dict[str, tuple[str, ...]]

    @abstractmethod
    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Tables:
        """The tables of one measurement."""

    @abstractmethod
    def figures(self, tables: Tables) -> list[Figure]:
        """Figures from the tables."""

    @abstractmethod
    def findings(self, tables: Tables) -> list[Finding]:
        """Sentences from the tables."""

    def facts(self, sizes: dict[str, Any]) -> list[dict[str, str]]:
        """What was measured, in a few lines, where no model was trained."""
        return [{"name": key.replace("_", " "), "value": ", ".join(map(str, _listed(v)))} for key, v in sizes.items()]

    def invalid(self, runs: dict[str, Run]) -> str | None:
        """Why the numbers cannot be right, or None."""
        reasons = [f"{label}: {run.summary['invalid']}" for label, run in runs.items() if run.summary]
        return next((reason for reason in reasons if not reason.endswith(": None")), None)


def _listed(value: Any) -> list:
    return list(value) if isinstance(value, list | tuple) else [value]


def experiment_named(name: str) -> Experiment:
    """A registered experiment."""
    found: Experiment = registry.lookup("experiment", name)()
    found.name = name
    return found


def run_experiment(
    name: str,
    scale: str,
    out: Path,
    *,
    overrides: dict[str, str] | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> Path:
    """Train, measure and write tables, figures and findings into `out`, which is returned.

    Args:
        name: of the experiment.
        scale: "smoke", "small", "gpu" or "paper".
        out: a new folder, or with `resume` one that holds the same plan.
        overrides: changes to every configuration of the plan, ``{"training.num_steps": "100"}``, and to sizes of the
            measurements, ``{"measurements.samples": "100"}``.

    Raises:
        InputError: an unknown name, scale or override.
        RefusedError: `out` exists, or holds another plan.
    """
    if scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    experiment = experiment_named(name)
    plan = experiment.plan(scale)
    changes, sizes = _split_overrides(overrides or {}, experiment.measurements(scale))
    if changes and not plan:
        known = ", ".join(f"--measurements.{key}" for key in sizes)
        raise InputError(f"--{next(iter(changes))}: {name} trains no model; its options are {known}")
    configs = {label: config_from_data(data, changes) for label, data in plan.items()}
    for label, data in plan.items():
        for section in ("process", "layout"):
            planned, got = data[section]["name"], getattr(configs[label], section).name
            if got != planned:
                raise InputError(f"{section}.name: {name} measures {planned}, got {got!r}; change its numbers only")
    _claim_folder(out, experiment, scale, configs, sizes, resume, overrides)
    say = (lambda text: None) if quiet else (lambda text: print(text, flush=True))
    runs = {}
    for label, config in configs.items():
        say(f"{name}: training {label} ({config.training.num_steps} steps)")
        runs[label] = train(config, out / "runs" / label, resume=True, quiet=quiet)
    for group, names in experiment.groups.items():
        paths = {table: out / "tables" / f"{table}.jsonl" for table in names}
        if not all(path.exists() for path in paths.values()):
            say(f"{name}: measuring {group}")
            store.make_folder(out / "tables")
            for table, rows in experiment.measure(runs, group, sizes).items():
                store.write_table(paths[table], rows)
    _write_results(experiment, out, runs)
    return out


def _split_overrides(overrides: dict[str, str], sizes: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Changes to configurations, and the sizes with theirs."""
    sizes = dict(sizes)
    changes = {}
    for path, text in overrides.items():
        section, _, key = path.partition(".")
        if section != "measurements":
            changes[path] = text
        elif key not in sizes:
            raise unknown_name(f"--{path}", key, sizes)
        else:
            kind: Any = type(sizes[key])
            if kind in (list, tuple):
                kind = tuple[type(sizes[key][0]), ...]  # type: ignore[misc]
            value = parse_value(kind, text, f"--{path}")
            sizes[key] = list(value) if isinstance(value, tuple) else value
    return changes, sizes


def _write_results(experiment: Experiment, out: Path, runs: dict[str, Run]) -> None:
    """Figures and findings from the tables in `out`."""
    tables = {
        table: store.read_table(out / "tables" / f"{table}.jsonl")
        for names in experiment.groups.values()
        for table in names
    }
    store.make_folder(out / "figures")
    for number, figure in enumerate(experiment.figures(tables), 1):
        store.write_json(out / "figures" / f"{number:02d}-{figure.name}.json", figure.to_data())
    store.write_json(out / "findings.json", [vars(finding) for finding in experiment.findings(tables)])
    description = store.read_json(out / "experiment.json")
    sizes = description["config"]["measurements"]
    description["facts"] = run_facts(runs) if runs else experiment.facts(sizes)
    description["invalid"] = experiment.invalid(runs)
    store.write_json(out / "experiment.json", description)


def _claim_folder(
    out: Path,
    experiment: Experiment,
    scale: str,
    configs: dict[str, RunConfig],
    sizes: dict[str, Any],
    resume: bool,
    overrides: dict[str, str] | None,
) -> None:
    """Make the folder with experiment.json, or check that it holds the same plan."""
    plan = {"runs": {label: config.to_data() for label, config in configs.items()}, "measurements": sizes}
    path = out / "experiment.json"
    if os.path.lexists(out):
        if not resume:
            raise RefusedError(f"{out}: exists; choose another --out or add --resume")
        if not path.exists():
            raise RefusedError(f"{out}: exists and is not the folder of an experiment; choose another --out")
        before = store.read_json(path)
        if before.get("experiment") != experiment.name:
            raise RefusedError(f"{out}: holds the experiment {before.get('experiment')}; choose another --out")
        difference = config_difference(before["config"], plan)
        if difference:
            raise RefusedError(f"{out}: holds another plan ({'; '.join(difference[:4])}); choose another --out")
        return
    changes = [f"--{key} {value}" for key, value in (overrides or {}).items()]
    description: dict[str, Any] = {
        "experiment": experiment.name,
        "title": experiment.title,
        "summary": experiment.summary,
        "scale": scale,
        "created": date.today().isoformat(),
        "version": __version__,
        "command": " ".join([f"hmmscope run {experiment.name} --scale {scale} --out {out.name}", *changes]),
        "intervals": experiment.intervals,
        "facts": [],
        "invalid": None,
        "config": plan,
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
        tokens = run.config.training.num_steps * run.config.training.batch_size * corpus.layout.num_columns
        once = "" if run.config.training.num_trajectories else ", each seen once"
        interval = f"{summary['excess']:.4f} ({summary['excess_low']:.4f} to {summary['excess_high']:.4f})"
        facts += [
            {"name": f"{prefix}process", "value": repr(run.process)},
            {"name": f"{prefix}tokens in a sample", "value": f"{corpus.layout.num_columns:,}"},
            {"name": f"{prefix}model", "value": f"{run.config.model.name}, {summary['parameters']:,} parameters"},
            {"name": f"{prefix}training", "value": f"{summary['steps']:,} steps, {tokens:,} tokens{once}"},
            {
                "name": f"{prefix}loss (optimum)",
                "value": f"{summary['loss']:.4f} ({summary['bayes_loss']:.4f}) {run.target.unit}",
            },
            {"name": f"{prefix}excess over the optimum", "value": f"{interval} {run.target.unit}"},
        ]
    return facts
