"""Derivation of figures, findings and facts for the page from the tables of an experiment."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hmmscope.lab.evidence.ledger import read_tables, tables_of
from hmmscope.lab.evidence.rows import Tables
from hmmscope.lab.experiments.experiment import Experiment, experiment_named
from hmmscope.lab.experiments.timing import timed, write_time_facts
from hmmscope.storage import packed, seals, store
from hmmscope.system_info import environment, machine_line
from hmmscope.ties import alike


def write_results(
    experiment: Experiment,
    out: Path,
    facts: list[dict],
    invalid: str | None,
    runs: Sequence[Path],
    whole: list[int] | None = None,
) -> None:
    description = store.read_json(out / "experiment.json", managed=True)
    judged = description.pop("whole_seeds", [])
    unfinished = {} if whole is None else {"whole_seeds": whole}
    facts = [*facts, {"name": "measured on", "value": machine_line()}]
    description |= {"facts": facts, "invalid": invalid} | unfinished
    store.write_json(out / "experiment.json", description)
    if whole is None or whole != judged:
        with timed(out, "figures and findings"):
            about = store.read_json(out / "experiment.json", managed=True)
            _write_judgements(experiment, out, tables_of(out, about), about["scale"])
        write_time_facts(out, runs)


def derive_again(folder: Path) -> None:
    """Rewrite the figures and findings of a finished experiment under the current rules.

    Raises:
        InputError, DamagedError: the folder is not a finished experiment, or it is damaged.
    """
    about, tables = read_tables(folder)
    experiment = experiment_named(about["experiment"])
    if packed.is_packed(folder):
        found = derive_findings(experiment, tables, about["scale"])["findings.json"]
        if alike(
            store.read_json(folder / "findings.json"), store.parse(store.json_bytes(found, "findings"), "findings")
        ):
            return
    with seals.unsealed(folder) as seal:
        _write_judgements(experiment, folder, tables, about["scale"])
        bound = seal.bound if seal else {"sealed_by": environment()}
        seals.write_seal(folder, "experiment", bound | {"judged_again": True})


def _write_judgements(experiment: Experiment, out: Path, tables: Tables, scale: str) -> None:
    found = derive_findings(experiment, tables, scale)
    if packed.is_packed(out):
        found = {"findings.json": found["findings.json"]}
    else:
        store.make_folder(out / "figures")
    for name, data in found.items():
        store.write_json(out / name, data)


def derive_findings(experiment: Experiment, tables: Tables, scale: str) -> dict[str, Any]:
    figures = enumerate(experiment.figures(tables), 1)
    found: dict[str, Any] = {f"figures/{number:02d}-{figure.name}.json": figure.to_data() for number, figure in figures}
    return found | {"findings.json": [finding.at(scale).to_data() for finding in experiment.findings(tables)]}


def invalid_of(summaries: Mapping[str, Mapping[str, Any] | None]) -> str | None:
    """Return the first run with invalid numbers and the reason, or None."""
    found = (f"{name}: {summary['invalid']}" for name, summary in summaries.items() if summary and summary["invalid"])
    return next(found, None)
