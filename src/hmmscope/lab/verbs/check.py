"""The verb `check`: verify folders and benchmark submissions, or test this installation."""

from pathlib import Path

from hmmscope.errors import InputError
from hmmscope.lab.benchmark.board import check_board, is_board
from hmmscope.lab.benchmark.checking import check_submission
from hmmscope.lab.benchmark.submission import ENTRY
from hmmscope.lab.verbs.doctor import doctor
from hmmscope.lab.verbs.options import CheckOptions
from hmmscope.lab.verbs.precompile import compile_all
from hmmscope.lab.verbs.verify import verify
from hmmscope.storage import disk
from hmmscope.text import say


def check(options: CheckOptions) -> int:
    """Verify the seal of each folder and recompute its numbers; without a folder, test the installation.

    Submissions are scored again from stored predictions, with `run` also from the model. A folder of submissions or
    cards is checked as a leaderboard.

    Returns:
        0 if everything agrees; 5 for an installation that lacks a requirement.

    Raises:
        InputError: `run` was given without submissions, or with other folders.
        DamagedError, RefusedError: See `hmmscope.lab.verbs.verify.verify`, `check_submission` and `check_board`.
    """
    for folder in options.folders:
        disk.check_name(Path(folder))
    submissions = [folder for folder in options.folders if (Path(folder) / ENTRY).is_file()]
    others = [folder for folder in options.folders if folder not in submissions]
    if options.run is not None and (others or not submissions):
        raise InputError(
            "--run: is the model file of a submission; give the folder of the submission and no other folder"
        )
    if options.compile and options.folders:
        raise InputError("--compile: applies to this installation; give no folder with it")
    if not options.folders:
        code = doctor()
        if options.compile:
            compile_all(quiet=options.quiet)
        return code
    boards = [folder for folder in others if is_board(Path(folder))]
    checked = (check_submission(folder, run=options.run) for folder in submissions)
    for said in (*checked, *(f"{folder}: {check_board(Path(folder))[0]}" for folder in boards)):
        if not options.quiet:
            say(said)
    if others := [folder for folder in others if folder not in boards]:
        verify(others, options.quiet)
    return 0
