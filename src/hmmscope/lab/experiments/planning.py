"""Plans of experiments: the models to train and what to measure, checked before any work."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.lab.evidence.ledger import SCALES
from hmmscope.lab.experiments.experiment import Experiment, experiment_named
from hmmscope.runs.config import RunConfig, config_from_data, pinned
from hmmscope.schema import parse_value, require, require_known
from hmmscope.seeds import check_seed

#: Sections of options that do not belong to configurations of runs.
_OWN_SECTIONS = ("plan", "measurements")


@dataclass(frozen=True)
class ExperimentPlan:
    """The plan of an experiment: scale, configurations of the models to train, sizes of measurements, and seeds."""

    experiment: Experiment
    scale: str
    choices: dict[str, Any]
    sizes: dict[str, Any]
    configs: dict[str, RunConfig]  # by label, with the seed of the plan
    seeds: tuple[int, ...] | None  # None: not seeded

    def of_seed(self, seed: int) -> dict[str, RunConfig]:
        return {label: _seeded(config, seed) for label, config in self.configs.items()}

    def to_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {"runs": {label: config.to_data() for label, config in self.configs.items()}}
        if self.choices:
            data["plan"] = self.choices
        if self.seeds is not None:
            data["seeds"] = list(self.seeds)
        return data | {"measurements": self.sizes}

    @classmethod
    def from_data(cls, name: str, scale: str, data: dict[str, Any]) -> "ExperimentPlan":
        configs = {label: config_from_data(config) for label, config in data["runs"].items()}
        seeds = tuple(data["seeds"]) if "seeds" in data else None
        return cls(experiment_named(name), scale, data.get("plan", {}), data["measurements"], configs, seeds)


def plan_of(name: str, scale: str, overrides: dict[str, str], seeds: int | Sequence[int] | None) -> ExperimentPlan:
    require_known("scale", scale, SCALES)
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
            _override(choices if section == "plan" else sizes, path, key, text, _known(experiment, section, key))
    configured = experiment.plan(scale, **choices)
    if changes and not configured:
        known = ", ".join(f"--measurements.{key}" for key in sizes)
        raise InputError(f"--{next(iter(changes))}: {name} trains no model; its options are {known}")
    chosen = _seeds(experiment, scale, seeds)
    if chosen is not None:
        for key in ("seed", "process.seed"):
            if key in changes:
                raise InputError(f"--{key}: is determined by --seeds; choose the seeds there, such as --seeds 0,5,7")
    configs = {label: pinned(config_from_data(data, changes)) for label, data in configured.items()}
    for label, data in configured.items():
        for section in ("process", "layout", "model"):
            got = getattr(configs[label], section).name
            planned = data.get(section, {}).get("name", got)
            planned = getattr(registry.entries(section).get(planned), "name", planned)  # the stored name
            if got != planned:
                raise InputError(f"{section}.name: must be {planned} in experiment {name}, got {got!r}")
    return ExperimentPlan(experiment, scale, choices, sizes, configs, chosen)


def _known(experiment: Experiment, section: str, key: str) -> list[Any]:
    tables = [(experiment.choices if section == "plan" else experiment.measurements)(s) for s in experiment.scales]
    values = [table[key] for table in tables if key in table]
    return [item for value in values for item in (value if isinstance(value, list | tuple) else [value])]


def _override(numbers: dict[str, Any], path: str, key: str, text: str, known: list[Any]) -> None:
    require_known(f"--{path}", key, numbers)
    kind: Any = type(numbers[key])
    if kind in (list, tuple):
        kind = tuple[type(numbers[key][0]), ...]  # type: ignore[misc]
    value = parse_value(kind, text, f"--{path}")
    items = value if isinstance(value, tuple) else (value,)
    require(1 <= len(items) <= 1000, f"--{path}", "must be a list of 1 to 1000 values", text)
    if all(isinstance(item, int | float) and not isinstance(item, bool) for item in [*items, *known]):
        low, high = _range(known)
        for item in items:
            require(low <= item <= high, f"--{path}", f"must be in [{low:g}, {high:g}]", item)
    numbers[key] = list(value) if isinstance(value, tuple) else value


#: Largest accepted value of an option, as a multiple of its largest value at any scale.
_BEYOND = 1000


def _range(known: Sequence[float]) -> tuple[float, float]:
    least, most = min(known), max(known)
    if any(isinstance(value, float) for value in known):
        return (0.0, 1.0) if 0 <= least < 1 and most <= 1 else (min(least, 0.0), most * _BEYOND)
    return min(least, 1), max(most, 1) * _BEYOND


def _seeds(experiment: Experiment, scale: str, seeds: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if not experiment.num_seeds:
        if seeds is not None:
            raise InputError(f"seeds: {experiment.name} is not divided into seeds; omit --seeds and --num-seeds")
        return None
    wanted = experiment.num_seeds[scale] if seeds is None else seeds
    found = tuple(range(min(wanted, 1001))) if isinstance(wanted, int) else tuple(check_seed(seed) for seed in wanted)
    if not 1 <= len(found) <= 1000 or len(set(found)) < len(found):
        raise InputError(f"seeds: must be a number of seeds from 1 to 1000, or a list of distinct seeds, got {seeds}")
    return found


def _seeded(config: RunConfig, seed: int) -> RunConfig:
    data = config.to_data() | {"seed": seed}
    if "seed" in {field.name for field in fields(config.process)}:
        data["process"] = data["process"] | {"seed": seed}
    return config_from_data(data)
