"""Folders of HMM-bench that `hmmscope check` verifies: submissions, and boards of submissions or cards."""

from pathlib import Path

from hmmscope import registry
from hmmscope.lab.verbs.folder_kind import FolderKind
from hmmscope_studies.benchmark.board import check_board, holds_cards, is_board
from hmmscope_studies.benchmark.checking import check_submission
from hmmscope_studies.benchmark.submission import ENTRY

registry.folder("board")(FolderKind(is_one=is_board, holds=holds_cards, check=check_board))
registry.folder("submission")(
    FolderKind(
        is_one=lambda folder: (Path(folder) / ENTRY).is_file(),
        check_model=lambda folder, run: check_submission(folder, run=run),
    )
)
