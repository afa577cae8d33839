"""The verb `check`: whether folders, submissions to HMM-bench too, or this installation, can be trusted."""

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
    """Check the seal of each folder and what follows from its files; without a folder, the installation.

    Submissions are scored again from what is stored in them, or with `run` from the model too. A folder that holds
    submissions or cards is one of a leaderboard.

    Returns:
        0 if all is well; 5 for an installation that lacks what is needed.

    Raises:
        InputError: `run` without submissions alone to run it on.
        DamagedError, RefusedError: see `hmmscope.lab.verbs.verify.verify`, `check_submission` and `check_board`.
    """
    for folder in options.folders:
        disk.check_name(Path(folder))
    submissions = [folder for folder in options.folders if (Path(folder) / ENTRY).is_file()]
    others = [folder for folder in options.folders if folder not in submissions]
    if options.run is not None and (others or not submissions):
        raise InputError("run: is the model of a submission; give the folder of one")
    if options.compile and options.folders:
        raise InputError("--compile: is for this installation; give no folder with it")
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
