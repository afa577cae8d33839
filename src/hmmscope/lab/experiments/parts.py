"""Parts of a seeded experiment: a part is the stored measurement of some or all models of one seed.

    OUT/parts/seed-0/<name>.json    a part: its tables, and how they were measured
    OUT/tables/<name>.jsonl         the rows of all parts, in order
    OUT/parts.jsonl                 the index: number of rows of each part in each table

A part is reused if its configurations, sizes and measurement version (`hmmscope.lab.evidence.records`) are unchanged.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from hmmscope.errors import DamagedError, HmmscopeError, InputError
from hmmscope.lab.evidence.records import MeasurementVersion as Measurement
from hmmscope.lab.evidence.records import folder_of, measured
from hmmscope.lab.experiments.experiment import ALL, Experiment, MeasuredTables
from hmmscope.lab.experiments.timing import timed
from hmmscope.lab.sweeps.grid import config_digest
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.runs.pipeline import Run
from hmmscope.storage import store
from hmmscope.storage.packed import INDEX, by_part, read_tables
from hmmscope.storage.seals import digests, open_sealed
from hmmscope.system_info import machine_line


@dataclass(frozen=True)
class MeasuredPart:
    """A part of an experiment: the models of one seed, measured together.

    Attributes:
        seed: seed of the models.
        name: name of the part, see `Experiment.cells`.
        configs: configurations of the models, by label.
        measurement: version of the measurement, see `measurement_of`.
    """

    seed: int
    name: str
    configs: Mapping[str, RunConfig] = field(repr=False)
    measurement: Measurement

    def __str__(self) -> str:
        return f"seed {self.seed}" + (f", {self.name}" if self.name != ALL else "")

    @property
    def slug(self) -> str:
        return f"seed-{self.seed}-{part_slug(self.name)}"

    def path(self, out: Path) -> Path:
        return out / "parts" / f"seed-{self.seed}" / f"{part_slug(self.name)}.json"

    def is_in(self, out: Path) -> bool:
        return os.path.lexists(self.path(out)) and self.measurement.of(self.read(out)) == self.measurement.version

    def read(self, out: Path) -> dict[str, Any]:
        """Read the file of the part.

        Raises:
            DamagedError: the file was altered.
        """
        found = store.read_json(self.path(out), managed=True)
        # older parts have no digest
        if not isinstance(found, dict) or found.pop("sha256", _digest(found)) != _digest(found):
            raise DamagedError(f"{self.path(out)}: altered; remove the file and repeat the command with --resume")
        return found

    def write(
        self,
        out: Path,
        tables: MeasuredTables,
        *,
        machine: str | None = None,
        created: str | None = None,
        runs: Mapping[str, str | None] | None = None,
        protocol: str | None = None,
    ) -> None:
        path = self.path(out)
        store.make_folder(path.parent)
        made: dict[str, Any] = {
            "measurement": self.measurement.version,
            "machine": machine or machine_line(),
            "created": created or date.today().isoformat(),
        }
        made |= {} if runs is None else {"runs": dict(runs)}
        made |= {} if protocol is None else {"protocol": protocol}
        part = json.loads(store.json_bytes({**made, "tables": tables}, str(path)))
        store.write_json(path, {**part, "sha256": _digest(part)})


def part_slug(part: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-.")


def _digest(part: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()


def measurement_of(experiment: Experiment) -> Measurement:
    folder = folder_of(type(experiment).__module__)
    found = None if folder is None else measured(folder, experiment.name)
    return Measurement(version=experiment.measurement) if found is None else found


def measured_in(
    out: Path, experiment: Experiment, runs: dict[str, Run], group: str, sizes: dict[str, Any]
) -> MeasuredTables:
    with timed(out, f"measuring {group}".removesuffix(" measurements")):
        return _measure(experiment, runs, group, sizes)


def _measure(experiment: Experiment, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> MeasuredTables:
    return experiment.measure(runs, group, sizes)


def write_tables(out: Path, names: Sequence[str], parts: Sequence[MeasuredPart]) -> None:
    tables: MeasuredTables = {name: [] for name in names}
    index = []
    for part in parts:
        if not part.is_in(out):
            continue
        made = part.read(out)
        found = made.pop("tables")
        for name in names:
            tables[name] += [{"seed": part.seed} | row for row in found.get(name, ())]
        counts = {name: len(found.get(name, ())) for name in names}
        index.append({"seed": part.seed, "part": part.name} | made | {"rows": counts})
    store.make_folder(out / "tables")
    for name, rows in tables.items():
        store.write_table(out / "tables" / f"{name}.jsonl", rows)
    store.write_table(out / INDEX, index)


class BuildRecord:
    """The file made.json, with the runs and the measurement version from which each group of tables was made.

    Args:
        out: folder of the experiment.
        measurement: version of the measurement, see `measurement_of`.
        runs: folders of the runs.
    """

    def __init__(self, out: Path, measurement: int, runs: Sequence[Path]) -> None:
        self._out, self._by = out, {"measurement": measurement, "runs": digests(runs)}
        self._groups: dict[str, Any] = {}
        if os.path.lexists(out / "made.json"):
            self._groups = store.read_json(out / "made.json", managed=True)
            if not isinstance(self._groups, dict):
                raise DamagedError(f"{out / 'made.json'}: must be a mapping; remove the file to measure again")

    def has(self, group: str) -> bool:
        found = self._groups.get(group)
        if not isinstance(found, dict) or {key: found.get(key) for key in self._by} != self._by:
            return False
        if not all(os.path.lexists(self._out / name) for name in found.get("files", {"made": None})):
            return False
        store.check_entries(self._out, found["files"], "made.json")
        return True

    def note(self, group: str, names: Sequence[str]) -> None:
        self._groups[group] = {**self._by, "files": store.file_entries(self._out, names)}
        store.write_json(self._out / "made.json", self._groups)


class StoredParts:
    """Stored parts of an experiment, for reuse.

    Args:
        folder: folder with experiment.json, tables/ and parts.jsonl.
        name, scale: name and scale of the experiment.

    Raises:
        InputError: the folder is missing, or holds another experiment.
        DamagedError: the tables do not fit the index.
    """

    def __init__(self, folder: Path, name: str, scale: str) -> None:
        for file in ("experiment.json", INDEX):
            if not (folder / file).is_file():
                raise InputError(f"--reuse {folder}: has no {file}; give the folder of an experiment with seeds")
        open_sealed(folder)
        self.folder, self.about = folder, store.read_json(folder / "experiment.json", managed=True)
        store.check_format(self.about, "experiment", folder / "experiment.json")
        found = (self.about.get("experiment"), self.about.get("scale"))
        if found != (name, scale):
            raise InputError(f"--reuse {folder}: holds {found[0]} at scale {found[1]}, not {name} at scale {scale}")
        self._made: dict[tuple[int, str], dict[str, Any]] = {}
        self._read()

    def _read(self) -> None:
        index = store.read_table(self.folder / INDEX)
        for row, tables in zip(index, by_part(index, read_tables(self.folder), self.folder), strict=True):
            self._made[row["seed"], row["part"]] = row | {"tables": tables}

    @property
    def num_parts(self) -> int:
        return len(self._made)

    def give(self, part: MeasuredPart, out: Path, sizes: Mapping[str, Any]) -> str | None:
        """Copy `part` from the stored parts to `out`; return why it differs, None if it is copied or not stored."""
        made = self._made.get((part.seed, part.name))
        if made is None:
            return None
        config = self.about["config"]
        if config.get("measurements") != sizes:
            return "the configuration of its measurements differs"
        version = part.measurement.of(made)
        if version != part.measurement.version:
            return f"measured by version {version or 'unknown'} of `measure`, now at version {part.measurement.version}"
        for label, own in part.configs.items():
            try:
                data = config["runs"][label]
                named = {"seed": part.seed} if "seed" in own.to_data()["process"] else {}
                before = config_from_data(data | {"seed": part.seed, "process": data["process"] | named})
            except (KeyError, HmmscopeError):
                return f"the configuration of {label} differs"
            if config_digest(before) != config_digest(own):
                return f"the configuration of {label} differs"
        kept = {key: made.get(key) for key in ("machine", "created", "runs", "protocol")}
        part.write(out, made["tables"], **kept)
        return None
