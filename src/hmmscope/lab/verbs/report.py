"""The verb `report`."""

from pathlib import Path

from hmmscope.errors import InputError
from hmmscope.lab.report.page import write_page_of
from hmmscope.lab.verbs.figures import write_figures
from hmmscope.lab.verbs.options import ReportOptions
from hmmscope.lab.verbs.pages import is_run, look_of_run, page_place, read_folder
from hmmscope.text import say


def report(options: ReportOptions) -> None:
    if options.style is not None and options.figures is None:
        raise InputError("--style: applies to figures; add --figures FOLDER")
    wants_page = options.out or options.figures is None
    place = page_place(options.out or "report.html", options.figures) if wants_page else None
    found = [read_folder(Path(folder)) for folder in options.folders]
    if options.figures is None and place is not None and len(options.folders) == 1 and is_run(Path(options.folders[0])):
        from hmmscope.runs.pipeline import load_run

        say(f"page: {look_of_run(load_run(options.folders[0]), place).path}")
        return
    if options.figures is not None:
        write_figures(found, Path(options.figures), style=options.style or "paper", quiet=options.quiet)
    if place is not None:
        say(f"page: {write_page_of(found, place)}")
