"""Folder types that `check` verifies."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hmmscope.storage.seals import SealReport


def _nothing(_: object) -> bool:
    return False


@dataclass(frozen=True)
class FolderKind:
    """A folder type, registered by `hmmscope.registry.folder`.

    Attributes:
        is_one: Returns whether a folder is of this kind.
        holds: Returns whether names of files in a folder show that it is of this kind.
        file: Name of the file that shows an unsealed folder to be of this kind, if one does.
        recompute: Recomputes the numbers of a folder that has its sealed files, and returns descriptions.
        check: Verifies a folder without a seal, and returns a description and its files.
        check_model: Verifies a sealed folder, with a model file or None, and returns a description.
    """

    is_one: Callable[[Path], bool] = _nothing
    holds: Callable[[Iterable[str]], bool] = _nothing
    file: str = ""
    recompute: Callable[[Path], list[str]] | None = None
    check: Callable[[Path], tuple[str, SealReport]] | None = None
    check_model: Callable[[str, str | None], str] | None = None
