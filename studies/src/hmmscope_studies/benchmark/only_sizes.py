"""Refusal of model builds that read data files or draw samples."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import all_suffixes
from typing import Any
from unittest.mock import patch

from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError

#: Folders of the interpreter, its packages and the system, which imports read.
_SYSTEM = tuple(
    f"{os.path.realpath(path)}{os.sep}" for path in (sys.prefix, sys.base_prefix, "/usr", "/proc", "/sys", "/etc")
)
#: What the build that runs now has read or drawn; None while none runs.
_seen: list[str] | None = None
_watches = False


@contextmanager
def only_sizes() -> Iterator[None]:
    """Refuse a build that reads a data file through Python or draws samples of a dataset.

    Raises:
        InputError: The build reads or draws data.
    """
    global _seen, _watches
    if not _watches:
        sys.addaudithook(_watch)
        _watches = True

    def draw(dataset: ProcessDataset, index: Any) -> Any:
        seen.append("draws samples of a dataset")
        raise InputError(_line(seen[0]))

    seen: list[str] = []
    _seen = seen
    try:
        with patch.object(ProcessDataset, "__getitem__", draw):
            yield
    finally:
        _seen = None
    if seen:
        raise InputError(_line(seen[0]))


def _line(what: str) -> str:
    return f"build: {what}; it may use only the sizes that it is given, so remove this access"


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if _seen is not None and event == "open" and isinstance(args[0], str | bytes | os.PathLike):
        path = os.path.realpath(os.fsdecode(args[0]))
        writes = isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if os.path.isfile(path) and not (writes or path.startswith(_SYSTEM) or path.endswith(tuple(all_suffixes()))):
            _seen.append(f"reads {path}")
