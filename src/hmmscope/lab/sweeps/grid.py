"""Grids of runs: a base configuration, varied values and seeds.

A grid file is small YAML:

    base: limits-rnn                 # a preset, a .yaml file, or the sections of a configuration
    vary:                            # all combinations; the last key varies fastest
      training.learning_rate: [1e-3, 3e-4]
      size:                          # a name for keys that change together
        small: {model.width: 8}
        large: {model.width: 64, training.batch_size: 64}
    also:                            # additional points
      - {training.learning_rate: 1e-2}
    seeds: 3                         # seeds 0, 1, 2 for each point (or a list of seeds)
    instances: true                  # each seed draws another process (process.seed is the seed)
"""

import copy
import fcntl
import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from hmmscope.errors import DamagedError, HmmscopeError, InputError, RefusedError
from hmmscope.runs.config import RunConfig, config_from_data, pinned, read_yaml
from hmmscope.runs.presets import PRESETS, preset
from hmmscope.schema import parse_value, require, require_known, shown, stored_key, unknown_name
from hmmscope.seeds import check_seed
from hmmscope.storage import disk, seals, store
from hmmscope.storage.rundir import RunDir, config_difference

GRID_KEYS = ("base", "vary", "also", "seeds", "instances")
_SECTIONS = ("process", "layout", "model", "target", "training", "seed")
#: Fields of a run's summary, from `hmmscope.runs.training.summarise`.
SUMMARY = (
    "steps",
    "parameters",
    "loss",
    "bayes_loss",
    "excess",
    "excess_low",
    "excess_high",
    "training_floor",
    "invalid",
)
#: Column names of the table that no varied key may have.
_TAKEN = {"run", "state", "reason", "seed", *SUMMARY}
_MAX_POINTS = 100_000


@dataclass(frozen=True)
class GridPoint:
    """One run of a grid, with its configuration.

    Attributes:
        name: Name of the run's folder, which follows from the configuration, see `run_name`.
        varied: Values of the varied keys, with the seed last; None for keys that this configuration lacks.
        config: Configuration of the run.
    """

    name: str
    varied: dict[str, Any]
    config: RunConfig


def config_digest(config: RunConfig) -> str:
    """Return the SHA-256 of the configuration as compact JSON, in hexadecimal.

    The digest leaves out ``training.device``, ``training.engine`` and the path of a process file.
    """
    data = config.to_data()
    if data["process"].get("digest"):
        data["process"].pop("path", None)
    del data["training"]["device"]
    data["training"].pop("engine", None)
    if not data["training"].get("milestones"):
        data["training"].pop("milestones", None)
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def run_name(config: RunConfig) -> str:
    label = f"{config.model.name}-{config.process.name}-seed{config.seed}"
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', label)}-{config_digest(config)[:12]}"


def read_grid(path: Path) -> list[GridPoint]:
    data = read_yaml(path)
    if isinstance(data, dict) and isinstance(data.get("base"), str) and _is_file(data["base"]):
        data = data | {"base": str(path.parent / data["base"])}
    return expand(data)


def expand(data: object, overrides: Mapping[str, str] | None = None) -> list[GridPoint]:
    """Return the points of a grid: all combinations of `vary`, then the points of `also`, each with all seeds in turn.

    Args:
        data: Contents of a grid file.
        overrides: Changes to the base configuration, such as ``{"training.num_steps": "100"}``.

    Raises:
        InputError: A key is unknown or set twice, a value is invalid, or two points are the same run.
    """
    if not isinstance(data, dict):
        raise InputError(f"grid: must be a mapping, got {shown(data)}")
    for key in data:
        require_known(f"grid.{key}", key, GRID_KEYS)
    base = _base(data.get("base"))
    seeds = _seeds(data.get("seeds"))
    instances = parse_value(bool, data.get("instances", False), "instances")
    require(bool(seeds) or not instances, "instances", "needs seeds", instances)
    axes = _axes(data.get("vary"))
    extra: list[Choice] = [({}, _changes(item, f"also[{i}]")) for i, item in enumerate(_also(data.get("also")))]
    count = max(1, len(seeds)) * (len(extra) + _product_size(axes))
    require(count <= _MAX_POINTS, "grid", f"must have at most {_MAX_POINTS} points", count)
    chosen = [*_product(axes), *extra]
    columns = _columns([key for key, _ in axes], [changes for _, changes in extra])
    points = []
    contents: dict[Any, Any] = {}
    for names, changes in chosen:
        for seed in seeds or (None,):
            all_changes = {**dict(overrides or {}), **copy.deepcopy(changes), **_seed_changes(seed, instances, changes)}
            _check_overlap(all_changes)
            config = config_from_data(copy.deepcopy(base), all_changes)
            if config.process not in contents:
                contents[config.process] = pinned(config).process
            config = replace(config, process=contents[config.process])
            varied = {column: names.get(column, _value(config, column)) for column in columns}
            points.append(GridPoint(run_name(config), varied | {"seed": config.seed}, config))
    first: dict[str, int] = {}
    for number, point in enumerate(points):
        if point.name in first:
            raise InputError(f"grid: points {first[point.name] + 1} and {number + 1} are the same run ({point.name})")
        first[point.name] = number
    return points


def _is_file(base: str) -> bool:
    return Path(base).suffix in (".yaml", ".yml")


def _base(base: object) -> dict[str, Any]:
    if base is None:
        return {}
    if isinstance(base, str):
        if not _is_file(base):
            if base not in PRESETS:
                raise unknown_name("base", base, [*PRESETS, "a .yaml file", "a mapping of sections"])
            return preset(base)
        base = read_yaml(Path(base))
    if not isinstance(base, dict):
        raise InputError(f"base: must be a preset or a mapping of sections, got {shown(base)}")
    return base


def _seeds(seeds: object) -> list[int]:
    if seeds is None:
        return []
    if isinstance(seeds, list):
        found = [check_seed(parse_value(int, seed, f"seeds[{i}]"), f"seeds[{i}]") for i, seed in enumerate(seeds)]
        require(len(found) > 0, "seeds", "must not be empty", seeds)
        return found
    count = parse_value(int, seeds, "seeds")
    require(1 <= count <= _MAX_POINTS, "seeds", f"must be in [1, {_MAX_POINTS}]", count)
    return list(range(count))


def _seed_changes(seed: int | None, instances: bool, changes: dict[str, Any]) -> dict[str, Any]:
    if seed is None:
        return {}
    ours = {"seed": seed} | ({"process.seed": seed} if instances else {})
    for key in ours:
        require(key not in changes, f"seeds: {key}", "is set by seeds, so it must not be varied", changes.get(key))
    return ours


def _also(also: object) -> list[object]:
    if also is None:
        return []
    if not isinstance(also, list):
        raise InputError(f"also: must be a list of mappings, got {shown(also)}")
    return also


def _changes(item: object, where: str) -> dict[str, Any]:
    if not isinstance(item, dict) or not item:
        raise InputError(f"{where}: must be a mapping of keys such as training.learning_rate, got {shown(item)}")
    for key, value in item.items():
        _check_key(key, where)
        require(key in _SECTIONS or not isinstance(value, dict), f"{where}.{key}", "must be one value", value)
    return item


def _check_key(key: str, where: str) -> None:
    if key.partition(".")[0] not in _SECTIONS:
        raise unknown_name(f"{where}.{key}", key.partition(".")[0], _SECTIONS)


Choice = tuple[dict[str, str], dict[str, Any]]  # names of choices, changes to the configuration


def _axes(vary: object) -> list[tuple[str, list[Choice]]]:
    if vary is None:
        return []
    if not isinstance(vary, dict):
        raise InputError(f"vary: must be a mapping of keys to lists, got {shown(vary)}")
    axes: list[tuple[str, list[Choice]]] = []
    for key, values in vary.items():
        if isinstance(values, list):
            _check_key(key, "vary")
            require(len(values) > 0, f"vary.{key}", "must not be empty", values)
            axes.append((key, [({}, {key: value}) for value in values]))
            continue
        if not isinstance(values, dict) or not values:
            raise InputError(f"vary.{key}: must be a list of values, or named mappings, got {shown(values)}")
        taken = key in _TAKEN or key.partition(".")[0] in _SECTIONS
        require(not taken, f"vary.{key}", "is a reserved name; choose another name", key)
        axes.append((key, [({key: name}, _changes(item, f"vary.{key}.{name}")) for name, item in values.items()]))
    for (one, left), (two, right) in itertools.combinations(axes, 2):
        shared = {key for _, changes in left for key in changes} & {key for _, changes in right for key in changes}
        require(
            not shared, "vary", f"must set each key once, but {one} and {two} share a key", ", ".join(sorted(shared))
        )
    return axes


def _product_size(axes: list[tuple[str, list[Choice]]]) -> int:
    size = 1
    for _, choices in axes:
        size *= len(choices)
    return size


def _product(axes: list[tuple[str, list[Choice]]]) -> Iterator[Choice]:
    for chosen in itertools.product(*(choices for _, choices in axes)):
        names: dict[str, str] = {}
        changes: dict[str, Any] = {}
        for name, change in chosen:
            names |= name
            changes |= change
        yield names, changes


def _columns(varied: list[str], extra: list[dict[str, Any]]) -> list[str]:
    columns = dict.fromkeys(varied)
    for changes in extra:
        columns |= dict.fromkeys(changes)
    return [column for column in columns if column != "seed"]


def _value(config: RunConfig, column: str) -> Any:
    found: Any = config.to_data()
    section, *words = column.split(".")
    spec = getattr(config, section, None)
    for word in (section, *(_key_in_files(spec, word) for word in words[:1]), *words[1:]):
        if not isinstance(found, dict) or word not in found:
            return None
        found = found[word]
    return found


def _key_in_files(spec: Any, key: str) -> str:
    if not is_dataclass(spec):
        return key
    return next((stored_key(field) for field in fields(spec) if field.name == key), key)


def _check_overlap(changes: Mapping[str, Any]) -> None:
    for key in changes:
        section = key.partition(".")[0]
        require(
            key == section or section not in changes,
            key,
            f"cannot be varied together with its whole section {section}",
            key,
        )


def check_run(path: Path, config: RunConfig) -> None:
    """Raise DamagedError unless the run in `path` has the configuration `config`."""
    found = config_from_data(RunDir.open(path).config)
    if config_digest(found) != config_digest(pinned(config)):
        difference = "; ".join(config_difference(found.to_data(), config.to_data())[:4])
        raise DamagedError(f"{path}: is the folder of another run ({difference}); move this folder away")


# ---------------------------------------------------------------------------------------------------------------------
# The folder of a sweep; grid.json lists its runs.


def make_folder(out: Path, points: list[GridPoint], *, shared: bool = False) -> None:
    kind = "pool" if shared else "sweep"
    if not os.path.lexists(out):
        store.make_folder(out.parent)
        try:
            with store.new_folder(out, manifest=False) as folder:
                store.write_json(folder / "grid.json", _document(kind, _data(points)))
                store.make_folder(folder / "runs")
        except RefusedError:  # created by another process
            if not os.path.lexists(out):
                raise
    if not os.path.lexists(out / "grid.json"):
        raise RefusedError(f"{out}: exists and is not the folder of a sweep; choose another --out")
    found = _read_grid(out)["kind"]
    if found not in (kind, None):
        other = "a pool of runs shared by experiments" if found == "pool" else "a sweep"
        raise RefusedError(f"{out}: contains {other}, not a {kind}; choose another folder")


@contextmanager
def changing_grid(out: Path) -> Iterator[None]:
    """Hold a lock inside the block, so that only one process changes grid.json and files that depend on it."""
    with disk.writing(out, 0):
        lock = disk.open_own(out / "grid.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def extend_folder(out: Path, points: list[GridPoint], *, shared: bool = False) -> None:
    """Write points to grid.json; raise RefusedError if a sweep (not `shared`) already has other points."""
    with changing_grid(out):
        before, data = _read_grid(out), _data(points)
        names = {point.name for point in points}
        others = [point for point in before["points"] if point["name"] not in names]
        if others and not shared:
            rule = f"has {len(others)} runs that are not in this grid, such as {others[0]['name']}"
            if not names & {point["name"] for point in before["points"]}:
                rule += f" ({'; '.join(config_difference(others[0]['config'], data[0]['config'])[:4])})"
            raise RefusedError(
                f"{out}: {rule}; runs cannot be removed from a sweep; add these runs to the grid, or choose another --out"
            )
        if others + data != before["points"] or before["kind"] is None:
            seals.remove_seal(out)
            kind = "pool" if shared else "sweep"
            store.write_json(out / "grid.json", _document(kind, others + data))


def begin_work(out: Path, points: Iterable[GridPoint]) -> None:
    if any(not os.path.lexists(out / "runs" / point.name / "done.json") for point in points):
        with changing_grid(out):
            seals.remove_seal(out)


def _document(kind: str, points: list[dict[str, Any]]) -> dict[str, Any]:
    return {"format": store.FORMATS["grid"], "kind": kind, "points": points}


def _data(points: list[GridPoint]) -> list[dict[str, Any]]:
    return [{"name": p.name, "varied": p.varied, "config": p.config.to_data()} for p in points]


def load_points(out: Path) -> list[GridPoint]:
    """Read the points of a sweep from its grid.json.

    Raises:
        InputError: `out` is not the folder of a sweep.
        DamagedError: grid.json has been altered.
    """
    return [_point(out, data) for data in _read_grid(out)["points"]]


def load_point(out: Path, name: str) -> GridPoint:
    for data in _read_grid(out)["points"]:
        if data["name"] == name:
            return _point(out, data)
    raise InputError(f"{out}: the grid has no run {name}")


def _read_grid(out: Path) -> dict[str, Any]:
    path = out / "grid.json"
    if not os.path.lexists(path):
        raise InputError(f"{out}: is not the folder of a sweep (it has no grid.json)")
    document = store.read_json(path, managed=True)
    store.check_format(document, "grid", path)
    points = document.get("points")
    keys = {"name", "varied", "config"}
    whole = isinstance(points, list) and all(isinstance(p, dict) and p.keys() == keys for p in points)
    if not whole or document.get("kind") not in ("sweep", "pool", None):
        raise DamagedError(f"{path}: must list the runs of a sweep, each with name, varied and config")
    before = "sweep" if os.path.lexists(out / "table.jsonl") else None
    return {"kind": document.get("kind", before), "points": points}


_ANEW = "train it again with hmmscope sweep GRID --out NEW"


@functools.lru_cache(maxsize=4096)
def _read_config(text: str) -> tuple[RunConfig, str]:
    config = config_from_data(json.loads(text))
    return config, run_name(config)


def _point(out: Path, data: dict[str, Any]) -> GridPoint:
    path = out / "grid.json"
    try:
        config, name = _read_config(json.dumps(data["config"]))
    except HmmscopeError as error:
        raise DamagedError(
            f"{path}: run {shown(data['name'])} is invalid ({error}); perhaps from another hmmscope version; {_ANEW}"
        ) from error
    if name != data["name"]:
        raise DamagedError(
            f"{path}: run {shown(data['name'])} has another configuration than its name encodes; it was altered, or "
            f"another version of hmmscope made it; {_ANEW}"
        )
    return GridPoint(data["name"], data["varied"], config)
