"""The command `report --figures`: write the figures of experiments and runs as files."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hmmscope.errors import DamagedError, InputError
from hmmscope.lab.report.folder import ExperimentFolder
from hmmscope.lab.report.plots import STYLES, figure_files
from hmmscope.schema import require_known
from hmmscope.storage import store
from hmmscope.storage.disk import refuse_special
from hmmscope.text import say

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def write_figures(found: Sequence[ExperimentFolder], out: Path, *, style: str, quiet: bool) -> None:
    require_known("style", style, STYLES)
    named = Counter(one.about.experiment for one in found)
    if max(named.values()) > 1:
        raise InputError(
            f"figures: {max(named, key=named.__getitem__)} is given twice; call report for each, with its own --figures"
        )
    for one in found:
        name = one.about.experiment
        if not _NAME.fullmatch(name):
            raise DamagedError(
                f"{one.path}/experiment.json: experiment: must be letters, digits and '. _ -', got {name!r}"
            )
        for figure in one.figures:
            for ending, drawn in figure_files(figure, style=style).items():
                place = out / f"{name}-{figure.name}.{ending}"
                store.make_folder(place.parent)
                refuse_special(place)
                store.write_bytes(place, drawn)
                if not quiet:
                    say(str(place))
