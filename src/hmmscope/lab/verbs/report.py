"""The verb `report`: one page from folders."""

from pathlib import Path

from hmmscope.lab.report.page import write_page_of
from hmmscope.lab.verbs.pages import page_place, read_folder
from hmmscope.text import say


def report(folders: list[str], out: str, quiet: bool) -> None:
    """Write one page of the folders, of experiments and of runs."""
    place = page_place(out)
    say(f"page: {write_page_of([read_folder(Path(folder)) for folder in folders], place)}")
