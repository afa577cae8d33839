"""Types of folders that the command `check` verifies."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hmmscope.storage.seals import SealReport


def _nothing(_: object) -> bool:
    return False


@dataclass(frozen=True)
class FolderKind:
    """The functions that recognise and verify folders of one type, registered by `hmmscope.registry.folder`.

    Attributes:
        is_one: Function (path) -> True if the folder is of this type.
        holds: Function (names of files in a folder) -> True if the names show this type.
        file: Name of a file that only folders of this type have, for folders without checksums; empty if none.
        recompute: Function (path) -> lines on the recomputed numbers; raises DamagedError if a stored one differs.
        check: Function (path) -> (line for the user, `SealReport`); for folders that never have checksums.
        check_model: Function (path, model file or None) -> line for the user; for benchmark submissions.
    """

    is_one: Callable[[Path], bool] = _nothing
    holds: Callable[[Iterable[str]], bool] = _nothing
    file: str = ""
    recompute: Callable[[Path], list[str]] | None = None
    check: Callable[[Path], tuple[str, SealReport]] | None = None
    check_model: Callable[[str, str | None], str] | None = None
