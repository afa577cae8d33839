"""The verb `report`: one page from folders."""

from pathlib import Path

from hmmscope.errors import InputError
from hmmscope.report.page import write_page
from hmmscope.storage.disk import refuse_special
from hmmscope.text import say


def report(folders: list[str], out: str, quiet: bool) -> None:
    """Write one page of the folders."""
    place = page_place(out)
    say(f"page: {write_page([Path(folder) for folder in folders], place)}")


def page_place(out: str) -> Path:
    """Where a page may be written: a page replaces an older one, and nothing else."""
    if Path(out).suffix not in (".html", ".htm"):
        raise InputError(f"out: must end in .html, got {out!r}")
    refuse_special(Path(out))
    return Path(out)
