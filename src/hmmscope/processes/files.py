"""Processes from files, and processes shipped with the library; files are only read, never executed."""

import os
from importlib import resources
from pathlib import Path

from hmmscope.errors import InputError
from hmmscope.processes.formats import ENDINGS, read_file
from hmmscope.processes.hmm import HMM
from hmmscope.processes.process import FILE_VERSION, Process, kinds
from hmmscope.schema import path_of, shown, unknown_name

_TEXTS = ("title", "source", "about")


def shipped_processes() -> dict[str, Path]:
    folder = Path(str(resources.files("hmmscope") / "data"))
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def load_process(source: object, *, allow_drop_tiny: bool = False) -> Process:
    """Load a process from a shipped name (``"umbrella"``) or a .json, .npz or .safetensors file.

    A mixture from safetensors stays memory-mapped: do not change its file while the mixture is in use.

    Raises:
        InputError: the file or name does not exist, its ending, format or a field is unknown, or arrays are invalid.
        DamagedError: the content does not match the file's ending.
    """
    shipped = shipped_processes()
    path = shipped.get(str(source), Path(str(source)))
    if path.suffix not in ENDINGS:
        raise unknown_name("process", str(source), [*shipped, "a path ending in .json, .npz or .safetensors"])
    if not os.path.isfile(path):
        raise InputError(f"process: no file {path}")
    data = read_file(path)
    found, version = data.pop("format", HMM.file_format), data.pop("version", FILE_VERSION)  # by default an HMM
    known = kinds()
    kind = known.get(found) if isinstance(found, str) else None
    if kind is None or not isinstance(version, int) or version != FILE_VERSION:
        said = f"{shown(found)} version {shown(version)}; this release reads {', '.join(known)}, version {FILE_VERSION}"
        raise InputError(f"{path.name}: format is {said}")
    unknown = set(data) - {*kind.file_arrays, *kind.file_fields, "about"}
    if unknown:
        first = min(unknown, key=str)
        raise unknown_name(f"{path.name}: {path_of('', first)}", first, [*kind.file_arrays, *kind.file_fields])
    for field in kind.file_arrays:
        if field not in data:
            raise InputError(f"{path.name}: {field} is missing")
    for field in _TEXTS:
        if not isinstance(data.get(field, ""), str):
            raise InputError(f"{path.name}: {field} must be text, got {shown(data[field])}")
    about = data.pop("about", "")
    try:
        process = kind.from_file(data, allow_drop_tiny=allow_drop_tiny)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    process.about = about or process.about
    return process
