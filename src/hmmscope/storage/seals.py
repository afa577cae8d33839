"""Seals: what a finished folder ends with, a manifest over everything in it that a person or a program reads.

    seal.json    its kind, what it is bound to, size and SHA-256 of each file, and the SHA-256 of all this

A seal shows damage, not authorship. Whoever changes a sealed folder takes the seal off first; a folder without one is not
damaged, but nothing says that it is as it was written.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmmscope.errors import DamagedError
from hmmscope.storage import disk, store

SEAL = "seal.json"
FORMAT, VERSION = "hmmscope-seal", 1
KINDS = ("run", "experiment", "sweep", "pool")
#: What a seal names. Where it names findings, readers take every figure and table that they find.
_NAMED = ("*.json", "*.jsonl", "*.safetensors", "figures/*.json", "tables/*.jsonl", "tables/*.xz", "packed/*/*.xz")
_LISTED = ("figures/*.json", "tables/*.jsonl", "tables/*.xz", "packed/*/*.xz")
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Seal:
    """A seal whose files were as it says.

    Attributes:
        kind: of the folder: run, experiment, sweep or pool.
        bound: what it was made of and by: digests of the seals of its runs, versions, the code.
        files: size and SHA-256 by name.
        digest: of all this.
    """

    kind: str
    bound: dict[str, Any]
    files: dict[str, dict[str, Any]]
    digest: str


def write_seal(folder: Path, kind: str, bound: Mapping[str, Any], *, coming: Mapping[str, bytes] | None = None) -> None:
    """Seal a folder as it is now, with files that are still to come under their names."""
    assert kind in KINDS, kind
    coming = coming or {}
    names = {path.relative_to(folder).as_posix() for pattern in _NAMED for path in folder.glob(pattern)}
    last = sorted((folder / "checkpoints").glob("step-*/manifest.json"))[-1:]
    names |= {path.relative_to(folder).as_posix() for path in last}
    files = store.file_entries(folder, sorted(names - {SEAL, *coming}))
    for name, data in coming.items():
        files[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    document = {"format": FORMAT, "version": VERSION, "kind": kind, "bound": dict(bound), "files": files}
    store.write_json(folder / SEAL, document | {"digest": _digest(document)})


def remove_seal(folder: Path) -> None:
    """Take the seal off, before anything is changed."""
    if os.path.lexists(folder / SEAL):
        store.remove_file(folder / SEAL)


def read_seal(folder: Path) -> Seal | None:
    """The seal of a folder, whole in itself; its files are not looked at. None without one."""
    path = folder / SEAL
    if not os.path.lexists(path):
        return None
    document = store.read_json(path, own=True, limit=_MOST_BYTES)
    keys = {"format", "version", "kind", "bound", "files", "digest"}
    if not isinstance(document, dict) or document.keys() != keys or document["format"] != FORMAT:
        raise DamagedError(f"{path}: not a seal")
    if document["version"] != VERSION:
        raise DamagedError(f"{path}: version {document['version']!r}, not {VERSION}; if newer, upgrade hmmscope")
    # Its bytes are compared too: a space that became a tab changes no value.
    whole = disk.read_bytes(path, own=True) == store.json_bytes(document, SEAL)
    digest = document.pop("digest")
    if not whole or digest != _digest(document) or document["kind"] not in KINDS:
        raise DamagedError(f"{path}: altered (its SHA-256 is not the one in it)")
    return Seal(document["kind"], document["bound"], document["files"], digest)


def check_seal(folder: Path, *, weights: bool = True) -> Seal | None:
    """The seal of a folder whose files are as it says; None if it has none.

    Without `weights` those of a run, large files that are verified when they are loaded, are left out.

    Raises:
        DamagedError: the seal, or the first file that is missing, longer, shorter, altered or a link; or a figure or table
            that a reader would take, and the seal does not name.
    """
    seal = read_seal(folder)
    if seal is None:
        return None
    heavy = () if weights else (".safetensors", "checkpoints/")
    light = {name: entry for name, entry in seal.files.items() if not any(part in name for part in heavy)}
    store.check_entries(folder, light, SEAL)
    if "findings.json" in seal.files:
        found = {path.relative_to(folder).as_posix() for pattern in _LISTED for path in folder.glob(pattern)}
        if beyond := found - seal.files.keys():
            raise DamagedError(f"{folder / min(beyond)}: not in the seal; remove it")
    return seal


def digests(folders: Sequence[Path]) -> dict[str, str | None]:
    """The digests of the seals of folders, by their names; None of one without a seal."""
    found = {folder.name: read_seal(folder) for folder in folders}
    return {name: None if seal is None else seal.digest for name, seal in found.items()}


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
