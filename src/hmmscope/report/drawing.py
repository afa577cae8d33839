"""Draw the figures of a folder: figures/<name>.json to .pdf and .png beside it."""

from pathlib import Path

from hmmscope.evidence.figures import Figure
from hmmscope.report.plots import figure_files
from hmmscope.storage import store


def draw_folder(folder: Path) -> list[Path]:
    """The files written, for every figure in `folder`; InputError or DamagedError names a figure that is not one."""
    written = []
    for source in sorted((folder / "figures").glob("*.json")):
        figure = Figure.from_data(store.read_json(source))
        for ending, data in figure_files(figure).items():
            written.append(source.with_suffix(f".{ending}"))
            store.write_bytes(written[-1], data)
    return written
