"""The verb `check`."""

from pathlib import Path

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.lab.verbs.doctor import doctor
from hmmscope.lab.verbs.options import CheckOptions
from hmmscope.lab.verbs.precompile import compile_all
from hmmscope.lab.verbs.verify import verify
from hmmscope.storage import disk
from hmmscope.text import say


def check(options: CheckOptions) -> int:
    """Compare each folder with its checksums and recompute its numbers; without a folder, test the installation.

    Benchmark submissions are scored again from their stored predictions and, with the option `run`, from the model.

    Returns:
        Exit code: 0 if everything agrees, 5 if the installation lacks a requirement.

    Raises:
        InputError: `run` is given without folders or with one that is no submission, or `compile` with folders.
        DamagedError, RefusedError: A folder is damaged or has no checksums; see `verify`.
    """
    for folder in options.folders:
        disk.check_name(Path(folder))
        disk.refuse_links(Path(folder))
    kinds = list(registry.entries("folder").values()) if options.folders else []
    entered = {
        folder: kind for folder in options.folders for kind in kinds if kind.check_model and kind.is_one(Path(folder))
    }
    submissions = list(entered)
    others = [folder for folder in options.folders if folder not in submissions]
    if options.run is not None and (others or not submissions):
        raise InputError("--run: names the model file of a submission; give exactly one folder, that of the submission")
    if options.compile and options.folders:
        raise InputError("--compile: applies to this installation; give no folder with it")
    if not options.folders:
        code = doctor()
        if options.compile:
            compile_all(quiet=options.quiet)
        return code
    boards = {folder: kind for folder in others for kind in kinds if kind.check and kind.is_one(Path(folder))}
    checked = (kind.check_model(folder, options.run) for folder, kind in entered.items())
    for said in (*checked, *(f"{folder}: {kind.check(Path(folder))[0]}" for folder, kind in boards.items())):
        if not options.quiet:
            say(said)
    if others := [folder for folder in others if folder not in boards]:
        verify(others, options.quiet)
    return 0
