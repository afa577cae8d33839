"""Recording of the time that each phase of an experiment takes, separate from the results."""

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from hmmscope.runs.training import PHASES
from hmmscope.storage import disk, store
from hmmscope.storage.journal import Journal
from hmmscope.storage.rundir import read_journal

_FOLDER, _PHASES, _FACTS = "timing", "phases.jsonl", "facts.json"
_OF_RUN = "timing.jsonl"


@contextmanager
def timed(out: Path, phase: str) -> Iterator[None]:
    """Record elapsed and processor time of the block, in seconds, under the name `phase`."""
    begun, spent = time.monotonic(), sum(os.times()[:4])
    yield
    record = {"phase": phase, "seconds": time.monotonic() - begun, "spent": sum(os.times()[:4]) - spent}
    if not (out / _FOLDER).is_dir():
        store.make_folder(out / _FOLDER)
    with (
        disk.one_at_a_time(out / _FOLDER),
        closing(Journal(out / _FOLDER / _PHASES)) as journal,
    ):  # several workers measure
        journal.append(record)


def write_time_facts(out: Path, runs: Sequence[Path]) -> None:
    store.write_json(out / _FOLDER / _FACTS, time_facts(out, runs))


def time_facts(out: Path, runs: Sequence[Path]) -> list[dict[str, str]]:
    seconds: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for record in _records(out / _FOLDER / _PHASES):
        seconds[record["phase"]] += record["seconds"]
        spent[record["phase"]] += record["spent"]
    if not seconds:
        return []
    of_runs: Counter[str] = Counter()
    for record in (record for path in runs for record in _records(path / _OF_RUN) if "phase" in record):
        of_runs[record["phase"]] += record["spent"]
    value = _listed(seconds) + " by the clock"
    rest = spent["training"] - sum(of_runs[phase] for phase in PHASES)
    if of_runs["steps"] and rest >= 0:
        parts = {phase: of_runs[phase] for phase in PHASES} | {"start of worker processes, and other work": rest}
        value += f"; training took {spent['training']:.0f} s of processor time: {_listed(parts)}"
    return [{"name": "time", "value": value}]


def _records(path: Path) -> list[dict]:
    return read_journal(path) if path.exists() else []


def _listed(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:.0f} s" for name, number in sorted(seconds.items(), key=lambda item: -item[1]))
