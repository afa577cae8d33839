"""Processes as files: JSON for people, NPZ and safetensors for programs. Reading never runs anything from the file.

A file names its kind in the field `format`, and holds arrays, names and texts; each kind of process says which, and how
it is made of them (`file_arrays`, `file_fields`, `file_tensors` and `from_file` of its class).
"""

import io
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from hmmscope.errors import DamagedError, InputError, RefusedError
from hmmscope.processes.base import Process
from hmmscope.processes.composed_cycles import ComposedCycles
from hmmscope.processes.fresh import FreshHMMs
from hmmscope.processes.generalised import GeneralisedHMM
from hmmscope.processes.given_sequences import GivenSequences
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.linear_gaussian import LinearGaussian
from hmmscope.processes.matrix_product import MatrixProduct
from hmmscope.processes.mixture import Mixture
from hmmscope.schema import path_of, shown, unknown_name
from hmmscope.storage import store
from hmmscope.storage.mapped import map_tensors, read_npz

VERSION = 1
ENDINGS = (".json", ".npz", ".safetensors")
#: The kinds of process that have files, by what these call themselves. A file that says nothing is an HMM.
KINDS: dict[str, type[Process]] = {
    kind.file_format: kind
    for kind in (
        HMM,
        LabelledHMM,
        GeneralisedHMM,
        Mixture,
        LinearGaussian,
        MatrixProduct,
        FreshHMMs,
        ComposedCycles,
        GivenSequences,
    )
}
_TEXTS = ("title", "source")
#: Numbers that a JSON file holds at most: what `store.read_json` reads again.
_MOST_IN_JSON = 2_500_000


def shipped_processes() -> dict[str, Path]:
    """The HMMs that come with the library, by name."""
    folder = Path(str(resources.files("hmmscope") / "data"))
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def load_process(source: object, *, allow_drop_tiny: bool = False) -> Process:
    """A process from a shipped name (``"umbrella"``) or a file ending in .json, .npz or .safetensors.

    The arrays of a mixture in safetensors stay in the file, which is mapped into memory: do not change it meanwhile.

    Raises:
        InputError: no such file or name, an unknown ending, format or field, or arrays that are no such process.
        DamagedError: the file is not what its ending says.
    """
    shipped = shipped_processes()
    path = shipped.get(str(source), Path(str(source)))
    if path.suffix not in ENDINGS:
        raise unknown_name("process", str(source), [*shipped, "a path ending in .json, .npz or .safetensors"])
    if not os.path.isfile(path):
        raise InputError(f"process: no file {path}")
    data = _READERS[path.suffix](path)
    found, version = data.pop("format", HMM.file_format), data.pop("version", VERSION)
    kind = KINDS.get(found) if isinstance(found, str) else None
    if kind is None or version != VERSION:
        said = f"{shown(found)} version {shown(version)}"
        raise InputError(f"{path.name}: format is {said}; this release reads {', '.join(KINDS)}, version {VERSION}")
    unknown = set(data) - {*kind.file_arrays, *kind.file_fields}
    if unknown:
        first = min(unknown, key=str)
        raise unknown_name(f"{path.name}: {path_of('', first)}", first, [*kind.file_arrays, *kind.file_fields])
    for field in kind.file_arrays:
        if field not in data:
            raise InputError(f"{path.name}: {field} is missing")
    for field in _TEXTS:
        if not isinstance(data.get(field, ""), str):
            raise InputError(f"{path.name}: {field} must be text, got {shown(data[field])}")
    try:
        return kind.from_file(data, allow_drop_tiny=allow_drop_tiny)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


def save_process(process: Process, destination: object) -> None:
    """Write `process` where `load_process` finds the same bits again; an existing file is refused."""
    path = Path(str(destination))
    if path.suffix not in ENDINGS:
        raise InputError(f"path: must end in .json, .npz or .safetensors, got {str(path)!r}")
    if os.path.lexists(path):
        raise RefusedError(f"{path}: exists; choose another name")
    arrays = process.file_tensors()
    size = sum(tensor.numel() for tensor in arrays.values())
    if path.suffix == ".json" and size > _MOST_IN_JSON:
        raise InputError(f"path: {size} numbers are too many for JSON; use .safetensors")
    header = {"format": process.file_format, "version": VERSION, **process.file_texts()}
    if path.suffix == ".json":
        store.write_json(path, header | {field: tensor.tolist() for field, tensor in arrays.items()})
    elif path.suffix == ".safetensors":
        store.write_tensors(path, arrays, {"hmm": json.dumps(header)})
    else:
        buffer = io.BytesIO()
        np.savez(buffer, header=np.array(json.dumps(header)), **{k: v.numpy() for k, v in arrays.items()})  # type: ignore[arg-type]
        store.write_bytes(path, buffer.getvalue())


def _read_json(path: Path) -> dict[str, Any]:
    data = store.read_json(path)
    if not isinstance(data, dict):
        raise InputError(f"{path.name}: must be an object with initial, transition and emission")
    return data


def _read_npz(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = dict(read_npz(path))
    return _with_header(path, data, str(data.pop("header", "{}")))


def _read_safetensors(path: Path) -> dict[str, Any]:
    tensors, texts = map_tensors(path)
    return _with_header(path, dict(tensors), texts.get("hmm", "{}"))


def _with_header(path: Path, data: dict[str, Any], header: str) -> dict[str, Any]:
    try:
        return json.loads(header) | data
    except (ValueError, TypeError, RecursionError):
        raise DamagedError(f"{path.name}: header is not JSON") from None


_READERS = {".json": _read_json, ".npz": _read_npz, ".safetensors": _read_safetensors}
