"""Pages of folders of every kind: of experiments, which describe themselves, and of runs, which are described here."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hmmscope import registry
from hmmscope.errors import InputError, code_and_line
from hmmscope.lab.report.folder import Experiment, described, read_experiment
from hmmscope.storage import seals
from hmmscope.storage.disk import refuse_special

if TYPE_CHECKING:
    from hmmscope.lab.looking.looking import Look
    from hmmscope.runs.pipeline import Run


def read_folder(folder: Path) -> Experiment:
    """What a page shows of the folder of an experiment or of a finished run; nothing is written.

    Raises:
        InputError: a folder of something else, or a run that is not finished.
        DamagedError: a file is not what it should be.
    """
    if os.path.lexists(folder / "experiment.json") or not os.path.lexists(folder / "config.json"):
        return read_experiment(folder)
    return _described_run(folder)


def _described_run(folder: Path) -> Experiment:
    """A finished run, and what makes it again, or goes on with one that is not finished. Only this needs torch."""
    from hmmscope.lab.experiments.run_page import description
    from hmmscope.models.given import GivenModelSpec, model_name
    from hmmscope.runs.pipeline import read_run

    run = read_run(folder)
    if isinstance(run.config.model, GivenModelSpec):
        again = (
            f"hs.train(..., {str(folder)!r}, model={model_name(run.config.model)}(...)), with the configuration below"
        )
        goes_on = f"in Python, hs.train(..., {str(folder)!r}, model=..., resume=True) goes on with it"
    else:
        again = f"hs.train(...), a sweep or an experiment; again by: hmmscope train {folder} --out NEW"
        goes_on = f"hmmscope train {folder} --out {folder} --resume goes on with it"
    if run.summary is None:
        raise InputError(f"{folder}: the run is not finished, and a page shows finished ones; {goes_on}")
    found = description(run, again)
    sealed = seals.open_sealed(folder, weights=False) is not None
    return described(folder, found.about, found.findings, found.figures, sealed=sealed)


def page_place(out: str) -> Path:
    """Where a page may be written: a page replaces an older one, and nothing else."""
    if Path(out).suffix not in (".html", ".htm"):
        raise InputError(f"out: must end in .html, got {out!r}")
    refuse_special(Path(out))
    return Path(out)


@registry.page("run")
def page_of_run(folder: Path, out: str | Path | None = None) -> Path:
    """Write the page of a finished run, by default into its folder."""
    place = page_place(str(folder / "report.html" if out is None else out))
    try:
        from hmmscope.lab.report.page import write_page_of
    except ModuleNotFoundError as error:
        raise InputError(code_and_line(error)[1]) from error
    return write_page_of([read_folder(folder)], place)


@registry.page("look")
def look_of_run(run: "Run", out: str | Path | None = None) -> "Look":
    """The look of a finished run, and its page where `out` says so."""
    from hmmscope.lab.looking.looking import look

    return look(run, out=out)
