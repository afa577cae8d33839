"""Checks of paths that a command writes to."""

import os
import sys
from pathlib import Path

from hmmscope.errors import InputError, RefusedError
from hmmscope.storage import disk, seals

#: Endings of files that hold a process.
HMM_FILES = (".json", ".npz", ".safetensors")
#: Text in the head of every page that hmmscope writes, and number of bytes from the beginning that contain it.
GENERATOR, _BEGINNING = '<meta name="generator" content="hmmscope">', 4096


def new_file(out: str, endings: tuple[str, ...] | None = None) -> None:
    """Raise an error if the output file exists, has a wrong ending, or its folder is missing."""
    path = Path(out)
    if endings and path.suffix not in endings:
        listed = f"{', '.join(endings[:-1])} or {endings[-1]}" if len(endings) > 1 else endings[0]
        raise InputError(f"out: must end in {listed}, got {out!r}")
    if os.path.lexists(path):
        raise RefusedError(f"{path}: exists; choose another --out")
    if not os.path.isdir(path.parent):
        raise InputError(f"out: folder {path.parent} does not exist")


def require_ours(path: Path, mark: str = GENERATOR) -> None:
    """Raise an error if an existing output file was not written by hmmscope."""
    if not os.path.lexists(path):
        return
    with disk.reading(path, managed=False, limit=sys.maxsize) as file:
        if mark.encode() not in file.read(_BEGINNING):
            raise RefusedError(f"{path}: exists, and hmmscope did not write it; choose another name")


def under_seal(out: str) -> None:
    """Add the checksum of an output file to the checksums (seal) of its folder, if there are any."""
    seals.cover(Path(out))
