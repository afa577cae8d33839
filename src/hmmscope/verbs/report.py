"""The verb `report`: one page from folders."""

from pathlib import Path

from hmmscope.report.drawing import draw_folder
from hmmscope.report.page import write_page


def report(folders: list[str], out: str, quiet: bool) -> None:
    """Draw the figures of the folders and write one page."""
    paths = [Path(folder) for folder in folders]
    for path in paths:
        draw_folder(path)
    print(f"page: {write_page(paths, Path(out))}")
