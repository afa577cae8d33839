"""HMMs as files: JSON for people, NPZ and safetensors for programs. Reading never runs anything from the file."""

import io
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from hmmscope.errors import DamagedError, InputError, RefusedError
from hmmscope.processes.hmm import HMM
from hmmscope.schema import path_of, unknown_name
from hmmscope.storage import store

FORMAT, VERSION = "hmmscope-hmm", 1
_ARRAYS = ("initial", "transition", "emission")
_TEXTS = ("title", "source")
_NAMES = ("symbols", "states")


def shipped_processes() -> dict[str, Path]:
    """The HMMs that come with the library, by name."""
    folder = Path(str(resources.files("hmmscope") / "data"))
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def load_process(source: object, *, allow_drop_tiny: bool = False) -> HMM:
    """An HMM from a shipped name (``"umbrella"``) or a file ending in .json, .npz or .safetensors.

    Raises:
        InputError: no such file or name, an unknown ending or field, or matrices that are not an HMM.
        DamagedError: the file is not what its ending says.
    """
    shipped = shipped_processes()
    path = shipped.get(str(source), Path(str(source)))
    if path.suffix not in _READERS:
        raise unknown_name("process", str(source), [*shipped, "a path ending in .json, .npz or .safetensors"])
    if not os.path.isfile(path):
        raise InputError(f"process: no file {path}")
    data = _READERS[path.suffix](path)
    unknown = set(data) - {*_ARRAYS, *_TEXTS, *_NAMES, "format", "version"}
    if unknown:
        raise unknown_name(f"{path.name}: {path_of('', min(unknown))}", min(unknown), [*_ARRAYS, *_NAMES, *_TEXTS])
    if data.get("format", FORMAT) != FORMAT or data.get("version", VERSION) != VERSION:
        found = f"{data.get('format')!r} version {data.get('version')!r}"
        raise InputError(f"{path.name}: format is {found}; this release reads {FORMAT!r} version {VERSION}")
    for field in _ARRAYS:
        if field not in data:
            raise InputError(f"{path.name}: {field} is missing")
    for field in _TEXTS:
        if not isinstance(data.get(field, ""), str):
            raise InputError(f"{path.name}: {field} must be text, got {data[field]!r}")
    optional = {field: data[field] for field in (*_NAMES, *_TEXTS) if data.get(field) is not None}
    try:
        return HMM(*(data[field] for field in _ARRAYS), allow_drop_tiny=allow_drop_tiny, **optional)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


def save_hmm(hmm: HMM, destination: object) -> None:
    """Write `hmm` where `load_process` finds the same bits again; an existing file is refused."""
    path = Path(str(destination))
    if path.suffix not in _READERS:
        raise InputError(f"path: must end in .json, .npz or .safetensors, got {str(path)!r}")
    if os.path.lexists(path):
        raise RefusedError(f"{path}: exists; choose another name")
    arrays = {"initial": hmm.initial_S, "transition": hmm.transition_SS, "emission": hmm.emission_SV}
    texts: dict[str, Any] = {"title": hmm.title, "source": hmm.source}
    texts |= {field: list(value) for field in _NAMES if (value := getattr(hmm, field)) is not None}
    header = {"format": FORMAT, "version": VERSION, **texts}
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


def read_npz(path: Path) -> dict[str, Any]:
    """The plain arrays of an NPZ file; nothing pickled is read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Exception as error:  # NumPy, zipfile and zlib raise a dozen types on what is no archive of plain arrays
        reason = " ".join(str(error).split())[:200]
        raise DamagedError(f"{path.name}: not a readable NPZ file of plain arrays ({reason})") from None


def _read_npz(path: Path) -> dict[str, Any]:
    data = read_npz(path)
    return _with_header(path, data, str(data.pop("header", "{}")))


def _read_safetensors(path: Path) -> dict[str, Any]:
    return _with_header(path, dict(store.read_tensors(path)), store.read_metadata(path).get("hmm", "{}"))


def _with_header(path: Path, data: dict[str, Any], header: str) -> dict[str, Any]:
    try:
        return json.loads(header) | data
    except (ValueError, TypeError, RecursionError):
        raise DamagedError(f"{path.name}: header is not JSON") from None


_READERS = {".json": _read_json, ".npz": _read_npz, ".safetensors": _read_safetensors}
