"""The verb `report`: one page from folders."""

from pathlib import Path

from hmmscope.errors import InputError
from hmmscope.report.page import write_page
from hmmscope.storage.disk import refuse_special
from hmmscope.text import say


def report(folders: list[str], out: str, quiet: bool) -> None:
    """Write one page of the folders."""
    if Path(out).suffix not in (".html", ".htm"):  # a page replaces an older one, and nothing else
        raise InputError(f"out: must end in .html, got {out!r}")
    refuse_special(Path(out))
    paths = [Path(folder) for folder in folders]
    say(f"page: {write_page(paths, Path(out))}")
