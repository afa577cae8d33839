"""Pages of folders of every kind: of experiments, which describe themselves, and of runs, which are described here."""

import os
from pathlib import Path

from hmmscope import registry
from hmmscope.errors import InputError, code_and_line
from hmmscope.experiments.run_page import description
from hmmscope.models.given import GivenModelSpec, model_name
from hmmscope.report.folder import Experiment, described, read_experiment
from hmmscope.runs.pipeline import Run, read_run
from hmmscope.storage import seals
from hmmscope.storage.disk import refuse_special


def read_folder(folder: Path) -> Experiment:
    """What a page shows of the folder of an experiment or of a finished run; nothing is written.

    Raises:
        InputError: a folder of something else, or a run that is not finished.
        DamagedError: a file is not what it should be.
    """
    if os.path.lexists(folder / "experiment.json") or not os.path.lexists(folder / "config.json"):
        return read_experiment(folder)
    run = read_run(folder)
    if run.summary is None:
        raise InputError(f"{folder}: the run is not finished, and a page shows finished ones; {_how_to_go_on(run)}")
    found = description(run, _made_by(run))
    sealed = seals.read_seal(folder) is not None
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
        from hmmscope.report.page import write_page_of
    except ModuleNotFoundError as error:
        raise InputError(code_and_line(error)[1]) from error
    return write_page_of([read_folder(folder)], place)


def _made_by(run: Run) -> str:
    """The command of a run that wrote none down, such as one that was made in Python."""
    if isinstance(run.config.model, GivenModelSpec):
        return (
            f"hs.train(..., {str(run.path)!r}, model={model_name(run.config.model)}(...)), with the configuration below"
        )
    return f"hs.train(...), a sweep or an experiment; again by: hmmscope train {run.path} --out NEW"


def _how_to_go_on(run: Run) -> str:
    """What finishes a run."""
    if isinstance(run.config.model, GivenModelSpec):
        return f"in Python, hs.train(..., {str(run.path)!r}, model=..., resume=True) goes on with it"
    return f"hmmscope train {run.path} --out {run.path} --resume goes on with it"
