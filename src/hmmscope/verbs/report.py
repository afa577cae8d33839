"""The verb `report`: one page from folders."""

from pathlib import Path

from hmmscope.report.page import write_page_of
from hmmscope.text import say
from hmmscope.verbs.pages import page_place, read_folder


def report(folders: list[str], out: str, quiet: bool) -> None:
    """Write one page of the folders, of experiments and of runs."""
    place = page_place(out)
    say(f"page: {write_page_of([read_folder(Path(folder)) for folder in folders], place)}")
