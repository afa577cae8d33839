"""The command `check` on folders: verify files, and recompute the numbers that follow from them."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hmmscope import registry
from hmmscope.analysis.curves import EvaluateOptions, evaluate
from hmmscope.errors import DamagedError, InputError, RefusedError
from hmmscope.interop.huggingface import RECORD, from_huggingface, read_record
from hmmscope.lab.evidence.ledger import read_tables, with_versions
from hmmscope.lab.experiments.derived_findings import derive_findings
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope.lab.experiments.parts import StoredParts
from hmmscope.lab.experiments.seeded import run_row
from hmmscope.lab.study.run_study import findings_of
from hmmscope.lab.sweeps.grid import check_run, load_points
from hmmscope.lab.sweeps.run_task import RunTask
from hmmscope.lab.sweeps.table import table_rows
from hmmscope.lab.verbs.folder_kind import FolderKind
from hmmscope.models.user_module import UserModuleSpec
from hmmscope.runs.config import config_from_data
from hmmscope.runs.pipeline import load_run
from hmmscope.storage import disk, packed, seals, store
from hmmscope.storage.packed import INDEX
from hmmscope.storage.rundir import RunDir
from hmmscope.text import numbers_in, say

#: Keys of findings and figures that hold words, which may have been reworded; a check does not compare them.
_FINDING_WORDS = frozenset({"title", "text", "reading", "unit", "source", "why"})
_FIGURE_WORDS = frozenset({"title", "caption", "x_label", "y_label", "z_label", "slider", "choices", "overlay", "name"})
#: Keys that hold labels; a check compares how many labels there are, and the numbers in them.
_MIXED = frozenset({"categories", "frames", "corners", "values", "x", "y", "budget"})
#: Tolerances, on any machine, of numbers that are recomputed from tables and from weights.
_TABLES, _WEIGHTS = 1e-9, 1e-4


def verify(folders: Sequence[str], quiet: bool) -> None:
    """Compare the files of each folder with its checksums, recompute its numbers, and print the result.

    If hmmscope did not write a folder, all folders of hmmscope inside it are verified.

    Raises:
        DamagedError: A file differs from its checksum, or a recomputed number from its stored value.
        RefusedError: A folder has no checksums (seal.json), and no folder is damaged.
    """
    unsealed = []
    for folder in map(Path, folders):
        inside, covered = _inside(folder), set[Path]()
        for one in inside or [folder]:
            said, found = _verified(one)
            covered |= {one / name for name in found.covered}
            if found.kind is None:
                unsealed.append(one)
            if not quiet:
                say(f"{one}: {said}")
        if inside and not quiet:
            there = {path: path.relative_to(folder).as_posix() for path in sorted(_files(folder))}
            beyond = tuple(name for path, name in there.items() if path not in covered)
            found = seals.SealReport(tuple({*there.values()} - {*beyond}), beyond)
            say(f"{folder}: {len(inside)} folder{'s' * (len(inside) != 1)} of hmmscope inside; {found}")
    if unsealed:
        raise RefusedError(f"{unsealed[0]}: has no checksums (seal.json), so its files cannot be verified")


def _verified(folder: Path) -> tuple[str, seals.SealReport]:
    sealed = os.path.lexists(folder / seals.SEAL)
    for one in () if sealed else registry.entries("folder").values():
        if one.check and one.is_one(folder):
            return cast(tuple[str, seals.SealReport], one.check(folder))
    kind = "" if sealed else _kind_of(folder)
    if kind == "export":
        said, found = _export(folder)
    else:
        found = seals.seal_report(folder)
        kind = found.kind or kind
        many = len(found.covered)
        begin = f"{many} files agree with their checksums" if many != 1 else "1 file agrees with its checksum"
        begin = begin if found.kind else "no checksums"
        runs = [f"also those of {found.runs} run{'s' * (found.runs != 1)} inside"] if found.runs else []
        said = [begin, *runs, *_checked(kind, folder), str(found)]
    return f"{kind}: {'; '.join(said)}", found


def _checked(kind: str, folder: Path) -> list[str]:
    one = registry.lookup("folder", kind)
    return one.recompute(folder) if one.recompute else [str(one.check_model(folder, None)).partition(": ")[2]]


def _files(folder: Path) -> set[Path]:
    return {path for name in seals.file_names(folder) if (path := folder / name).name not in seals.APART}


def _inside(folder: Path) -> list[Path]:
    kinds = registry.entries("folder").values()
    found, ours = [], {seals.SEAL, *(one.file for one in kinds)} - {"config.json", ""}
    for parent, inner, files in os.walk(folder):
        names = {*files}
        if ours & names or {"config.json", store.MANIFEST} <= names or any(one.holds(names) for one in kinds):
            found.append(Path(parent))
            inner.clear()
    return [] if found == [folder] else sorted(found)


def _kind_of(folder: Path) -> str:
    for kind, one in registry.entries("folder").items():  # an export has the file of a run, too
        if one.file and folder.is_dir() and os.path.lexists(folder / one.file):
            return kind
    above = next((one for one in Path(os.path.abspath(folder)).parents if os.path.lexists(one / seals.SEAL)), None)
    if above is not None and os.path.lexists(folder):
        raise InputError(f"{folder}: is inside {above}, whose checksums cover it; check {above}")
    raise InputError(f"{folder}: is not the folder of a run, an experiment, a sweep, a pool or an export")


def _export(folder: Path) -> tuple[list[str], seals.SealReport]:
    read_record(folder)
    manifest = store.read_manifest(folder, exact=False)
    if disk.read_bytes(folder / store.MANIFEST, managed=True) != store.json_bytes(manifest, store.MANIFEST):
        raise DamagedError(
            f"{folder / store.MANIFEST}: altered (only in whitespace or another character that changes no value)"
        )
    covered = {*manifest["files"]}
    if RECORD not in covered:
        raise DamagedError(f"{folder / RECORD}: is not listed in {store.MANIFEST}, so it cannot be verified")
    from_huggingface(folder)
    covered |= {store.MANIFEST}
    beyond = sorted({path.name for path in folder.iterdir()} - covered)
    found = seals.SealReport(tuple(sorted(covered)), tuple(beyond), kind="export")
    return ["the weights have the shapes of the configuration", str(found)], found


def _run(folder: Path) -> list[str]:
    opened = RunDir.open(folder)
    summary, config = opened.done, config_from_data(opened.config)
    if isinstance(config.model, UserModuleSpec):
        return ["the loss was not recomputed, because the run stores no code of its module"]
    run = load_run(folder)
    if summary is None:
        return ["the run is not finished; its newest checkpoint is complete"]
    count, options = summary.get("num_samples", 256), EvaluateOptions(block_length=config.training.block_length)
    score = evaluate(run.model, run.dataset("evaluate"), num_samples=count, target=run.target, options=options)
    _same(summary["loss"], score.loss, f"{folder / 'done.json'}: loss", _WEIGHTS)
    return [f"the recomputed loss on {count} samples agrees: {score.loss:.6f}"]


def _experiment(folder: Path) -> list[str]:
    if os.path.lexists(folder / INDEX) and not os.path.lexists(folder / "findings.json"):
        about = store.read_json(folder / "experiment.json", managed=True)
        parts = StoredParts(folder, about.get("experiment"), about.get("scale")).num_parts
        return [f"the experiment is not finished; its tables contain the {parts} measurements that {INDEX} lists"]
    about, tables = read_tables(folder)
    if about["experiment"] == "study":
        derived = findings_of(tables, about["config"]["study"]["seeds"])
    else:
        derived = derive_findings(experiment_named(about["experiment"]), tables, about["scale"])
    if packed.is_packed(folder):
        derived = {"findings.json": derived["findings.json"]}
    for name, data in derived.items():
        stored = store.read_json(folder / name, managed=True)
        if name == "findings.json":
            stored = sorted(with_versions(stored, about["experiment"]), key=_claim)
            data = sorted(data, key=_claim)
        words = _FINDING_WORDS if name == "findings.json" else _FIGURE_WORDS
        _same(_without(stored, words), _without(data, words), f"{folder / name}: ", _TABLES)
    made = "1 file of findings" if len(derived) == 1 else f"{len(derived)} files of figures and findings"
    said = [f"{made} recomputed from {len(tables)} tables"]
    pool, rows, found = folder.parent / "trained", list(tables.get("runs", ())), 0
    for part in store.read_table(folder / INDEX) if (folder / INDEX).is_file() else ():
        there = [path for name in part.get("runs", {}) if (path := RunTask(pool, name).folder).is_dir()]
        for name, digest in seals.digests(there).items():
            _same(
                part["runs"][name], digest, f"{folder / INDEX}: {part['part']}, seed {part['seed']}: seal of {name}", 0
            )
    for row in [rows[0], rows[-1]] if rows else []:
        if (RunTask(pool, row["run"]).folder / "done.json").is_file():
            again = {"seed": row["seed"]} | run_row(row["label"], RunTask(pool, row["run"]).folder)
            _same(row, again, f"{folder / 'tables' / 'runs.jsonl'}: {row['run']}: ", _TABLES)
            found += 1
    return [*said, f"{found} rows of runs recomputed from {pool}"] if found else said


def _sweep(folder: Path) -> list[str]:
    points = {point.name: point for point in load_points(folder)}
    said = [f"{len(points)} runs"]
    if (folder / "table.jsonl").is_file():
        kept = store.read_table(folder / "table.jsonl")
        if len(kept) != len(points):
            rows = f"{len(kept)} row{'s' * (len(kept) != 1)}"
            raise DamagedError(f"{folder / 'table.jsonl'}: has {rows}, but the grid has {len(points)} runs")
        for stored, row in zip(kept, table_rows(folder, list(points.values())), strict=True):
            _same(stored, row, f"{folder / 'table.jsonl'}: {row['run']}: ", _TABLES)
        said = [f"{len(points)} rows recomputed from the runs"]
    done = [name for name in points if RunTask(folder, name).is_done()]
    for name in done:
        seals.open_sealed(RunTask(folder, name).folder)
        check_run(RunTask(folder, name).folder, points[name].config)
    if (seal := seals.open_sealed(folder)) is not None:
        digests = seals.digests([RunTask(folder, name).folder for name in done])
        _same(seal.bound["runs"], digests, f"{folder / seals.SEAL}: seals of runs: ", 0)
    return said + ([f"{done[0]}: {_run(RunTask(folder, done[0]).folder)[0]}"] if done else [])


def _paper(folder: Path) -> list[str]:
    inside = sorted(path.parent for path in folder.glob("*/experiment.json"))
    return [f"{one.name}: {', '.join(_experiment(one))}" for one in inside]


registry.folder("export")(FolderKind(file=RECORD, recompute=lambda folder: _export(folder)[0]))
registry.folder("run")(FolderKind(file="config.json", recompute=_run))
registry.folder("experiment")(FolderKind(file="experiment.json", recompute=_experiment))
registry.folder("sweep")(FolderKind(file="grid.json", recompute=_sweep))
registry.folder("pool")(FolderKind(recompute=_sweep))
registry.folder("paper")(FolderKind(recompute=_paper))
registry.folder("kept")(FolderKind(recompute=lambda folder: []))


def _claim(finding: Mapping[str, Any]) -> str:
    return str(finding.get("claim", ""))


def _without(data: Any, words: frozenset[str]) -> Any:
    if isinstance(data, Mapping):
        kept = {key: value for key, value in data.items() if key not in words}
        return {key: _numbers(value) if key in _MIXED else _without(value, words) for key, value in kept.items()}
    return [_without(one, words) for one in data] if isinstance(data, list | tuple) else data


def _numbers(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_numbers(one) for one in value]
    return numbers_in(value) if isinstance(value, str) else value


def _same(stored: Any, again: Any, where: str, tolerance: float) -> None:
    if isinstance(stored, dict) and isinstance(again, dict) and stored.keys() == again.keys():
        for key, value in stored.items():
            _same(value, again[key], f"{where}.{key}".replace(": .", ": "), tolerance)
    elif isinstance(stored, list) and isinstance(again, list | tuple) and len(stored) == len(again):
        for number, (one, other) in enumerate(zip(stored, again, strict=True)):
            _same(one, other, f"{where}[{number}]", tolerance)
    elif isinstance(stored, float) and isinstance(again, float | int):
        if not math.isclose(stored, again, rel_tol=tolerance, abs_tol=tolerance):
            raise DamagedError(f"{where} is {stored}, but recomputing it gives {float(again)}")
    elif stored != again:
        raise DamagedError(f"{where} is {str(stored)[:80]}, but recomputing it gives {str(again)[:80]}")
