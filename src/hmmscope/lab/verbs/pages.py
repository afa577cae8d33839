"""Reading of folders for pages of experiments and runs, and checks of the path of a page."""

import difflib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hmmscope import registry
from hmmscope.errors import InputError, code_and_line
from hmmscope.lab.evidence.ledger import SCALES
from hmmscope.lab.report.folder import ExperimentFolder, described, read_experiment
from hmmscope.lab.verbs.output_paths import require_ours
from hmmscope.storage import seals, store
from hmmscope.storage.disk import refuse_special

if TYPE_CHECKING:
    from hmmscope.lab.model_page.model_page import ModelPage
    from hmmscope.runs.pipeline import Run


def is_run(folder: Path) -> bool:
    return os.path.lexists(folder / "config.json")


def kept_results(name: str) -> Path:
    experiment = name.partition("@")[0]
    if experiment not in (known := registry.entries("experiment")):
        near = [one for one in known if experiment in one][:3] or difflib.get_close_matches(experiment, known, 1, 0.7)
        hint = f"; did you mean the experiment {' or '.join(near)}?" if near else ""
        raise InputError(f"{name}: not a folder of an experiment{hint}")
    module = sys.modules[registry.lookup("experiment", experiment).__module__]
    homes = [folder for folder in Path(str(module.__file__)).parents if (folder / "src").is_dir()]
    found = [place for folder in homes[:1] for scale in SCALES if (place := folder / "results" / scale / name).is_dir()]
    if not found:
        raise InputError(
            f"{name}: this checkout has no results of it; run hmmscope run {name} --scale small --out {name}"
        )

    def worth(folder: Path) -> tuple[bool, bool, int]:
        about = store.read_json(folder / "experiment.json")
        several = len(about.get("config", {}).get("seeds") or (0, 1)) > 1
        return "whole_seeds" not in about, several, SCALES.index(folder.parent.name)

    return max(found, key=worth)


def read_folder(folder: Path) -> ExperimentFolder:
    try:
        os.lstat(folder)
    except FileNotFoundError:
        folder = kept_results(str(folder))
    except (OSError, ValueError):
        pass  # the reader says what is wrong with the path
    if not is_run(folder):
        return read_experiment(folder)
    from hmmscope.lab.experiments.run_page import description
    from hmmscope.runs.pipeline import read_run

    found = description(read_run(folder))  # only this needs torch
    sealed = seals.open_sealed(folder, weights=False) is not None
    return described(folder, found.about, found.findings, found.figures, sealed=sealed)


def page_place(out: str, made: str | None = None) -> Path:
    """Return `out` if a page can be written there; its folder must exist or be created with the folder `made`."""
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
    place = None if out is None else page_place(os.fspath(out))
    try:
        from hmmscope.lab.model_page.model_page import look
    except ModuleNotFoundError as error:
        raise InputError(code_and_line(error)[1]) from error
    return look(run, out=place)
