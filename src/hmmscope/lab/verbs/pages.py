"""Pages of experiments and runs."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hmmscope import registry
from hmmscope.errors import InputError, code_and_line
from hmmscope.lab.report.folder import ExperimentFolder, described, read_experiment
from hmmscope.lab.verbs.output_paths import require_ours
from hmmscope.storage import seals
from hmmscope.storage.disk import refuse_special

if TYPE_CHECKING:
    from hmmscope.lab.model_page.model_page import ModelPage
    from hmmscope.runs.pipeline import Run


def is_run(folder: Path) -> bool:
    return os.path.lexists(folder / "config.json")


def read_folder(folder: Path) -> ExperimentFolder:
    """Read an experiment or a finished run for a comparison page, without writing.

    Raises:
        InputError: The folder is neither, or the run is not finished.
        DamagedError: A file is damaged.
    """
    if not is_run(folder):
        return read_experiment(folder)
    from hmmscope.lab.experiments.run_page import description
    from hmmscope.runs.pipeline import read_run

    found = description(read_run(folder))  # only this needs torch
    sealed = seals.open_sealed(folder, weights=False) is not None
    return described(folder, found.about, found.findings, found.figures, sealed=sealed)


def page_place(out: str, made: str | None = None) -> Path:
    """Return the path of a page in an existing folder or in `made`; only an older page may be replaced."""
    if Path(out).suffix not in (".html", ".htm"):
        raise InputError(f"out: must end in .html, got {out!r}")
    refuse_special(Path(out))
    require_ours(Path(out))
    folder, coming = Path(os.path.abspath(out)).parent, Path(os.path.abspath(made or out))
    if not (folder.is_dir() or (made is not None and folder in (coming, *coming.parents))):
        raise InputError(f"out: folder {Path(out).parent} does not exist")
    return Path(out)


@registry.page("look")
def look_of_run(run: "Run", out: str | Path | None = None) -> "ModelPage":
    """Compute the model page of a finished run, and write it to `out` if given."""
    place = None if out is None else page_place(os.fspath(out))
    try:
        from hmmscope.lab.model_page.model_page import look
    except ModuleNotFoundError as error:
        raise InputError(code_and_line(error)[1]) from error
    return look(run, out=place)
