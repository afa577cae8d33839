"""Reading of the folder of an experiment; no link is followed, and no code in the folder is run."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hmmscope import registry
from hmmscope.errors import DamagedError, InputError
from hmmscope.lab.evidence.derived import figures_of
from hmmscope.lab.evidence.figure import Figure
from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.rows import as_tables
from hmmscope.lab.report.state_diagram import read_fitted
from hmmscope.lab.tasks.plans import as_written_now
from hmmscope.schema import parse_spec, require_path
from hmmscope.storage import packed, seals, store

CONTINUED = "run the command again with --resume to add the other seeds"
UNSEALED = "there is no file of checksums (seal.json), so these files cannot be verified"


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A named fact about the run, such as "parameters: 560,000"."""

    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class About:
    """Contents of experiment.json, without configurations and rule versions.

    Args:
        experiment: Name of the experiment on the command line.
        title: Title of the experiment, a few words.
        summary: A paragraph on the question and the method.
        scale: Size of the experiment: smoke, small, medium, gpu, paper, or own (a user's experiment).
        version: Version of hmmscope that wrote the folder.
        command: Command that reproduces this folder.
        created: Date of the results, such as 2026-11-21, or empty.
        facts: Facts about the run.
        invalid: Reason why the results are invalid, or None.
        intervals: One sentence on how the intervals were computed, or None.
    """

    experiment: str
    title: str
    summary: str
    scale: str
    version: str
    command: str
    created: str = ""
    facts: tuple[Fact, ...] = ()
    invalid: str | None = None
    intervals: str | None = None


#: Entry of the page for a measurement that an older folder does not have.
NOT_TOLD = {"verdict": "not told", "text": "it was not measured", "r2": None, "twins": None}


@dataclass(frozen=True, kw_only=True)
class StoredTable:
    """The rows of the file tables/NAME.jsonl or of its compressed form, see `hmmscope.storage.packed`."""

    name: str
    rows: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ExperimentFolder:
    """Contents of the folder of an experiment, from which its page is made."""

    path: Path
    about: About
    config: Mapping[str, Any]
    findings: tuple[Finding, ...]
    figures: tuple[Figure, ...]
    tables: tuple[StoredTable, ...]
    live: dict[str, Any] | None = None
    fitted: dict[str, Any] | None = None


def read_experiment(folder: Path) -> ExperimentFolder:
    folder = require_path("folder", folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: is not a folder of an experiment")
    if not (folder / "experiment.json").is_file():
        _refuse_other(folder)
    seal = seals.open_sealed(folder, weights=False)
    about_path, findings_path = _present(folder / "experiment.json"), _present(folder / "findings.json")
    about = store.read_json(about_path, managed=True)
    store.check_format(about, "experiment", about_path)
    if not isinstance(about.get("config"), dict):
        raise DamagedError(f"{about_path}: must be a mapping, with a mapping under its key 'config'")
    config = about.pop("config")
    for key in ("rules", "protocol", "begun"):
        about.pop(key, None)
    about.pop("format", None)
    whole, seeds = about.pop("whole_seeds", None), config.get("seeds")
    findings = store.read_json(findings_path, managed=True)
    described = _with_facts(_parse(About, about, about_path), folder / "timing" / "facts.json")
    notes = [] if seal else [Fact(name="seal", value=UNSEALED)]
    if whole is not None:
        if not isinstance(whole, list) or not isinstance(seeds, list):
            raise DamagedError(f"{about_path}: keys 'whole_seeds' and 'config.seeds' must be lists")
        notes = [Fact(name="unfinished", value=f"{len(whole)} of {len(seeds)} seeds so far; {CONTINUED}")]
    tables = packed.read_tables(folder)
    # kept results show today's words, as their figures do
    words = registry.lookup("experiment", described.experiment)() if packed.is_packed(folder) else described
    return ExperimentFolder(
        path=folder,
        about=replace(
            described,
            title=words.title,
            summary=words.summary,
            command=as_written_now(described.command),
            facts=(*described.facts, *notes),
        ),
        config=config,
        findings=tuple(one.at(described.scale) for one in _findings(findings, findings_path)),
        figures=_figures(folder, described.experiment, tables),
        live=_read_live(folder / "live.json"),
        fitted=read_fitted(folder / "fitted.json"),
        tables=tuple(StoredTable(name=name, rows=rows) for name, rows in tables.items()),
    )


def described(
    folder: Path, about: Mapping[str, Any], findings: Sequence[Finding], figures: Sequence[Figure], *, sealed: bool
) -> ExperimentFolder:
    parts = {key: value for key, value in about.items() if key not in ("format", "config")}
    known = _parse(About, parts, folder)
    notes = () if sealed else (Fact(name="seal", value=UNSEALED),)
    return ExperimentFolder(
        path=folder,
        about=replace(known, facts=(*known.facts, *notes)),
        config=about["config"],
        findings=tuple(findings),
        figures=tuple(figures),
        tables=(),
    )


def _figures(folder: Path, experiment: str, tables: Mapping[str, list[dict[str, Any]]]) -> tuple[Figure, ...]:
    if packed.is_packed(folder):
        return tuple(figures_of(experiment, as_tables(tables)))
    return tuple(_read_figure(path) for path in _listed(folder / "figures", ".json"))


def _with_facts(about: About, timing: Path) -> About:
    found = store.read_json(timing, managed=True) if timing.is_file() else []
    if not isinstance(found, list):
        raise DamagedError(f"{timing}: must be a list of facts with name and value")
    return replace(about, facts=(*about.facts, *(_parse(Fact, fact, timing) for fact in found)))


def _refuse_other(folder: Path) -> None:
    if (folder / "grid.json").is_file():
        raise InputError(
            f"{folder}: a sweep has no page; print its table with hmmscope sweep --table {folder}, or write the page of a "
            f"run with hmmscope report {folder}/runs/RUN"
        )


def _read_figure(path: Path) -> Figure:
    data = store.read_json(_present(path), managed=True)
    try:
        return Figure.from_data(data, "figure")
    except InputError as error:
        raise DamagedError(f"{path}: {_line(error)}") from error


def _read_live(path: Path) -> dict[str, Any] | None:
    if not os.path.lexists(path):
        return None
    data = store.read_json(_present(path), managed=True)
    parts = ("model", "tensors", "process", "layout", "readouts")
    if not isinstance(data, dict) or any(part not in data for part in parts):
        raise DamagedError(f"{path}: must be a mapping with {', '.join(parts)}")
    process, model = data["process"], data["model"]
    if not isinstance(process, dict) or not isinstance(process.get("states"), list) or "mixture" not in process:
        raise DamagedError(f"{path}: key 'process' must be a mapping with the keys 'states' and 'mixture'")
    if not isinstance(model, dict) or "heads" not in model:
        raise DamagedError(f"{path}: key 'model' must be a mapping with the key 'heads'")
    if not isinstance(data.get("title"), str) or not data["title"]:
        raise DamagedError(f"{path}: key 'title' must be text")
    layers = data["readouts"] if isinstance(data["readouts"], list) else [None]
    for layer in layers:
        belief = layer.get("belief") if isinstance(layer, dict) else None
        if not isinstance(belief, dict) or not isinstance(belief.get("r2"), float | None):
            raise DamagedError(
                f"{path}: key 'readouts' must be a list of mappings, each with a 'belief' that has an 'r2'"
            )
    told = {"learned": data.get("learned", NOT_TOLD), "beyond": data.get("beyond", NOT_TOLD)}
    for name, said in told.items():
        numbers = [said.get("r2"), said.get("twins")] if isinstance(said, dict) else []
        plain = isinstance(said, dict) and all(isinstance(said.get(key), str) for key in ("verdict", "text"))
        known = all(isinstance(x, float) or (x is None and said["verdict"] == "not told") for x in numbers)
        if not plain or (name == "beyond" and not known):
            raise DamagedError(
                f"{path}: key '{name}' must be a mapping with texts 'verdict' and 'text' (and numbers 'r2', 'twins')"
            )
    return data | told


def _findings(data: Any, path: Path) -> tuple[Finding, ...]:
    if not isinstance(data, list):
        raise DamagedError(f"{path}: must be a list")
    try:
        return tuple(Finding.from_data(one, f"findings[{i}]") for i, one in enumerate(data))
    except InputError as error:
        raise DamagedError(f"{path}: {_line(error)}") from error


def _parse(cls: type, data: Any, path: Path) -> Any:
    try:
        return parse_spec(cls, data, "")
    except InputError as error:
        raise DamagedError(f"{path}: {_line(error)}") from error


def _listed(folder: Path, suffix: str) -> list[Path]:
    if folder.is_symlink():
        raise DamagedError(f"{folder}: is a symbolic link, which is not followed")
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix == suffix and not path.name.startswith("."))


def _present(path: Path) -> Path:
    if path.is_symlink():
        raise DamagedError(f"{path}: is a symbolic link, which is not followed; replace it by the file")
    if not path.is_file():
        raise InputError(f"{path}: is missing, although every finished experiment has this file")
    return path


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
