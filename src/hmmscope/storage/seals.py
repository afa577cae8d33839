"""Seals: files of checksums in finished folders, with which `hmmscope check` finds damaged files.

    seal.json     the seal: type of the folder, digests of the seals of its runs ("bound"), size and SHA-256 of each
                  file that hmmscope wrote, and the SHA-256 of these entries (the digest of the seal)
    added.json    a second seal for files that were made later: figures, pages, tables of instruments

A seal shows damage, not authorship, and does not cover the user's own files. Code that changes a sealed folder removes
the seal first; a folder without a seal cannot be verified.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmmscope.errors import DamagedError
from hmmscope.storage import disk, store

SEAL, ADDED = "seal.json", "added.json"
FORMAT, VERSION = "hmmscope-seal", 1
KINDS = ("run", "experiment", "sweep", "pool", "paper", "submission", "kept", "added")
#: Patterns of the files that a seal covers.
_NAMED = (
    *("*.json", "*.jsonl", "*.safetensors", "figures/*.json", "tables/*.jsonl", "tables/*.xz", "packed/*.xz"),
    *("hmms/*.json", "parts/*/*.json", "checkpoints/step-*/manifest.json", "timing/*.json*"),
    *("tasks/*/*.json", "tasks/*/*.safetensors", "model.py", "card.txt"),
    *("logs/*.log", "failures/*.json", "tensorboard/*", "index.html"),
)
_LISTED = ("figures/*.json", "tables/*.jsonl", "tables/*.xz", "packed/*.xz")
#: Files that no seal covers: the seals themselves, and locks.
APART = (SEAL, ADDED, "lock", "grid.lock")
_CHECKPOINT = "checkpoints/"
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Seal:
    """The contents of a seal, after its own SHA-256 has been verified.

    Attributes:
        kind: Type of the folder, such as "run".
        bound: Digests of the seals of runs inside the folder, and versions of packages and code.
        files: Size and SHA-256 of each covered file, by its path in the folder.
        digest: SHA-256 of the other entries.
    """

    kind: str
    bound: dict[str, Any]
    files: dict[str, dict[str, Any]]
    digest: str


def write_seal(
    folder: Path,
    kind: str,
    bound: Mapping[str, Any],
    *,
    coming: Mapping[str, bytes] | None = None,
    leave: Collection[str] = (),
    whole: Collection[str] = (),
) -> None:
    """Write the seal of a folder: checksums of hmmscope's files, except those in `leave`.

    `coming` maps names of files that do not exist yet to their bytes. In folders of `whole`, all files are covered.
    """
    assert kind in KINDS, kind
    coming = coming or {}
    found = {path for pattern in _NAMED for path in folder.glob(pattern) if not disk.LEFTOVER.fullmatch(path.name)}
    names = {path.relative_to(folder).as_posix() for path in found} - {*APART, *coming, *leave}
    for inside in whole:
        names |= {f"{inside}/{name}" for name in file_names(folder / inside) if name.rpartition("/")[2] not in APART}
    files = store.file_entries(folder, sorted(names))
    for name, data in coming.items():
        files[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    _write(folder / SEAL, kind, bound, files)


def add(folder: Path, names: Sequence[str], stayed: Sequence[str] = ()) -> None:
    with disk.one_at_a_time(folder):
        seal = read_seal(folder)
        if seal is None:
            return
        before = read_seal(folder, ADDED)
        files = before.files if before is not None and before.bound == {"seal": seal.digest} else {}
        new = store.file_entries(folder, [*names, *(name for name in stayed if name not in files)])
        if before is None or files | new != before.files:
            _write(folder / ADDED, "added", {"seal": seal.digest}, files | new)


def keep(folder: Path, names: Sequence[str]) -> None:
    """Add the checksums of files to a folder's seal, without checking earlier entries again."""
    with disk.one_at_a_time(folder):
        seal = read_seal(folder)
        files = ({} if seal is None else seal.files) | store.file_entries(folder, names)
        _write(folder / SEAL, "kept", {}, dict(sorted(files.items())))


def cover(made: Path) -> None:
    place = Path(os.path.abspath(made))
    if not os.path.lexists(place) or os.path.lexists(place / SEAL):
        return
    folder = next((one for one in place.parents if _is_sealed(one)), None)
    if folder is not None:
        about = place.relative_to(folder).as_posix()
        names = [f"{about}/{name}" for name in file_names(place)] if place.is_dir() else [about]
        seal = read_seal(folder)
        (keep if seal is not None and seal.kind == "kept" else add)(folder, names)


def _is_sealed(folder: Path) -> bool:
    path = folder / SEAL
    return os.path.isfile(path) and FORMAT.encode() in disk.read_bytes(path, managed=False)


def _write(path: Path, kind: str, bound: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    document = {"format": FORMAT, "version": VERSION, "kind": kind, "bound": dict(bound), "files": dict(files)}
    store.write_json(path, document | {"digest": _digest(document)})


def remove_seal(folder: Path) -> None:
    for name in (SEAL, ADDED):
        if os.path.lexists(folder / name):
            store.remove_file(folder / name)


@contextmanager
def unsealed(folder: Path) -> Iterator[Seal | None]:
    """Verify and remove the seal of a folder, so that the block can change the folder and write a new seal.

    Raises:
        DamagedError: A file differs from its checksum, or is not in the seal. Nothing is changed.
    """
    seal = open_sealed(folder)
    added = {} if seal is None else _added(folder, seal)
    kept = {
        name: disk.read_bytes(folder / name, managed=True) for name in (SEAL, ADDED) if os.path.lexists(folder / name)
    }
    before = _states(folder)
    remove_seal(folder)
    try:
        yield seal
    except BaseException:
        if not os.path.lexists(folder / SEAL) and _states(folder) == before:
            for name, data in kept.items():
                disk.write_bytes(folder / name, data)
        raise
    there = [name for name in added if os.path.lexists(folder / name)]
    if same := _states_of(folder, there).items() & before.items():
        add(folder, sorted(name for name, _ in same))


def _states(folder: Path) -> dict[str, tuple[int, int, int]]:
    return _states_of(folder, [name for name in file_names(folder) if name.rpartition("/")[2] not in APART])


def _states_of(folder: Path, names: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    about = {name: os.lstat(folder / name) for name in names}
    return {name: (one.st_ino, one.st_size, one.st_mtime_ns) for name, one in about.items()}


def read_seal(folder: Path, name: str = SEAL) -> Seal | None:
    """Read the seal of a folder and verify its own SHA-256, but not the files; None if the folder has no seal."""
    path = folder / name
    if not os.path.lexists(path):
        return None
    document = store.read_json(path, managed=True, limit=_MOST_BYTES)
    keys = {"format", "version", "kind", "bound", "files", "digest"}
    if not isinstance(document, dict) or document.keys() != keys or document["format"] != FORMAT:
        raise DamagedError(f"{path}: not a seal")
    if document["version"] != VERSION:
        raise DamagedError(f"{path}: has version {document['version']!r}, not {VERSION}; if newer, upgrade hmmscope")
    # Compare bytes too, because whitespace changes no value.
    whole = disk.read_bytes(path, managed=True) == store.json_bytes(document, name)
    digest = document.pop("digest")
    if not whole or digest != _digest(document) or document["kind"] not in KINDS:
        raise DamagedError(f"{path}: altered (its SHA-256 differs from the SHA-256 stored in it); restore it")
    return Seal(document["kind"], document["bound"], document["files"], digest)


def open_sealed(folder: Path, *, weights: bool = True, milestones: bool = True) -> Seal | None:
    """Read the seal of a folder and compare the files with the seal's checksums; None without a seal.

    If `weights` is false, the weights of a run are not compared; if `milestones` is false, only the last checkpoint is
    compared.
    """
    seal = read_seal(folder)
    if seal is None:
        return None
    read_seal(folder, ADDED)  # detect damage before new files are made
    earlier = sorted(name for name in seal.files if name.startswith(_CHECKPOINT))[:-1]
    heavy = () if weights else (".safetensors", _CHECKPOINT)
    left_out = set() if milestones else set(earlier)
    light = {
        name: entry
        for name, entry in seal.files.items()
        if name not in left_out and not any(part in name for part in heavy)
    }
    store.check_entries(folder, light, SEAL)
    if "findings.json" in seal.files:
        found = {path.relative_to(folder).as_posix() for pattern in _LISTED for path in folder.glob(pattern)}
        if beyond := found - seal.files.keys():
            raise DamagedError(f"{folder / min(beyond)}: is not listed in the seal ({SEAL}); remove this file")
    return seal


@dataclass(frozen=True)
class SealReport:
    """Result of comparing every file of a folder with the checksums in its seals.

    Attributes:
        covered: Files with a checksum in a seal, or in a manifest that a seal covers.
        beyond: Files without a checksum.
        runs: Number of compared runs inside the folder.
        kind: Type of the folder in its seal; None if it has no seal.
    """

    covered: tuple[str, ...]
    beyond: tuple[str, ...]
    runs: int = 0
    kind: str | None = None

    def __str__(self) -> str:
        total = len(self.covered) + len(self.beyond)
        listed = f": {', '.join(self.beyond[:8])}{', ...' * (len(self.beyond) > 8)}" if self.beyond else ""
        return f"{total} file{'s' * (total != 1)}, {len(self.beyond)} not covered{listed}"


def seal_report(folder: Path) -> SealReport:
    """Compare all files below a folder with the checksums in its seals.

    Raises:
        DamagedError: A file differs from its checksum; the message names the first one.
    """
    seal = open_sealed(folder)
    covered, runs = set() if seal is None else {*seal.files}, 0
    if seal is not None:
        for name in seal.files:
            if name.startswith(_CHECKPOINT):
                step = folder / name.rpartition("/")[0]
                covered |= {f"{name.rpartition('/')[0]}/{file}" for file in store.verify_folder(step)["files"]}
        covered |= _added(folder, seal).keys()
        for name, digest in _bound(folder, seal).items():
            covered |= {f"{name}/{file}" for file in _surveyed(folder, name, digest)}
            runs += name.startswith("runs/")
    names = [name for name in file_names(folder) if name.rpartition("/")[2] not in APART]
    inside = {name.rpartition("/")[0] for name in file_names(folder) if name.endswith(f"/{SEAL}")}
    for name in sorted(one for one in inside if not any(other.startswith(f"{one}/") for other in covered)):
        covered |= {f"{name}/{file}" for file in seal_report(folder / name).covered}
    kept, beyond = (tuple(n for n in names if (n in covered) == is_kept) for is_kept in (True, False))
    return SealReport(kept, beyond, runs, None if seal is None else seal.kind)


def _added(folder: Path, seal: Seal) -> dict[str, dict[str, Any]]:
    added = read_seal(folder, ADDED)
    if added is None:
        return {}
    if added.bound != {"seal": seal.digest}:
        raise DamagedError(f"{folder / ADDED}: belongs to another {SEAL}; remove this file")
    there = {name: entry for name, entry in added.files.items() if os.path.lexists(folder / name)}
    store.check_entries(folder, there, ADDED)
    return there


def _bound(folder: Path, seal: Seal) -> dict[str, str | None]:
    runs, others = (seal.bound.get(key) for key in ("runs", "folders"))
    runs = runs if isinstance(runs, dict) and os.path.isdir(folder / "runs") else {}
    return {f"runs/{name}": digest for name, digest in runs.items()} | (others if isinstance(others, dict) else {})


def _surveyed(folder: Path, name: str, digest: str | None) -> tuple[str, ...]:
    path = folder / name
    if path.is_symlink() or not path.is_dir():
        raise DamagedError(f"{path}: is missing or a link, although {folder / SEAL} contains its checksum")
    seal = read_seal(path)
    if digest is None and seal is None:  # it had no seal when the folder was sealed
        return ()
    if seal is None or seal.digest != digest:
        state = "has no checksums (seal.json)" if seal is None else "was changed"
        raise DamagedError(f"{path}: {state} after {folder / SEAL} recorded its checksum")
    return seal_report(path).covered


def file_names(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not disk.LEFTOVER.fullmatch(name))
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in sorted([*files, *links]):
            if not disk.LEFTOVER.fullmatch(name):
                yield (Path(parent) / name).relative_to(folder).as_posix()


def digests(folders: Sequence[Path]) -> dict[str, str | None]:
    return {folder.name: digest_of(folder) for folder in folders}


def digest_of(folder: Path) -> str | None:
    seal = read_seal(folder)
    return None if seal is None else seal.digest


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
