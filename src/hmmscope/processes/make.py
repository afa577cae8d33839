"""Processes from names, files and objects."""

import inspect
import os
from pathlib import Path
from typing import Any

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.processes.files import shipped_processes
from hmmscope.processes.formats import ENDINGS as PROCESS_FILES
from hmmscope.processes.from_file import ObjectSpec
from hmmscope.processes.process import Process
from hmmscope.processes.recorded_sequences import RecordedSequences
from hmmscope.schema import shown, unknown_name
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.sources import ENDINGS as DATA_FILES
from hmmscope.storage import disk
from hmmscope.storage.mapped import read_arrays


def make_process(name: str, **fields: Any) -> Process:
    """Build a registered process: ``make_process("random-mixture", num_components=256, seed=0)``.

    Raises:
        InputError: the name or a field is unknown, or a value is invalid.
    """
    return built(registry.build_spec("process", {"name": name, **fields}, "process"))


def built(spec: Any) -> Process:
    process: Process = spec.build()
    if not process.about and not getattr(spec, "keeps_copy", False):
        process.about = " ".join((inspect.getdoc(spec) or "").partition("\n\n")[0].split())
    return process


def as_process(source: object) -> Process:
    if isinstance(source, str | Path):
        return built(registry.build_spec("process", process_data(str(source)), "process"))
    if isinstance(source, SequenceData):
        return RecordedSequences(source)
    if not isinstance(source, Process):
        hint = "; wrap sequences in hmmscope.SequenceData(...)" if hasattr(source, "__len__") else ""
        raise InputError(
            f"process: must be a process, SequenceData, or the name or path of one, got {shown(source)}{hint}"
        )
    return source


def is_process(value: object) -> bool:
    return isinstance(value, Process)


def process_spec(value: Any) -> Any:
    if isinstance(value, SequenceData):
        value = RecordedSequences(value)
    if isinstance(value, Process):
        return ObjectSpec.of(value)
    return process_data(str(value)) if isinstance(value, str | Path) else value


def process_data(source: str) -> dict[str, Any]:
    if source in registry.entries("process"):
        return {"name": source}
    ending = Path(source).suffix.lower()
    if source in shipped_processes() or (ending in PROCESS_FILES and not _holds_sequences(source)):
        return {"name": "file", "path": source}
    if ending in DATA_FILES or os.path.isfile(source):
        return {"name": "data", "path": source}
    endings = f"a file ending in {', '.join(dict.fromkeys((*PROCESS_FILES, *DATA_FILES)))}"
    raise unknown_name("process", source, [*registry.entries("process"), *shipped_processes(), endings])


def _holds_sequences(source: str) -> bool:
    path = Path(source)
    if not path.is_file():
        return False
    if path.suffix.lower() == ".json":
        with disk.reading(path, managed=False) as file:
            return file.read(4096).lstrip().startswith(b"[")
    return not {"observations", "tokens"}.isdisjoint(read_arrays(path, path.suffix.lower(), "hmm")[0])
