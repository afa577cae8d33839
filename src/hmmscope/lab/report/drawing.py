"""Drawing of the figures of a folder: each figures/<name>.json becomes a .pdf and a .png file."""

import hashlib
import os
from functools import cache
from pathlib import Path

import matplotlib

from hmmscope.lab.evidence.figure import Figure
from hmmscope.lab.report import explorer, plots, series_style, shared_axes
from hmmscope.lab.report import formatting as text
from hmmscope.storage import disk, seals, store


def draw_folder(folder: Path) -> list[Path]:
    seals.open_sealed(folder, weights=False)
    written, stayed = [], []
    endings = [f".{ending}" for ending in plots.STYLES["paper"].endings]
    for source in sorted((folder / "figures").glob("*.json")):
        data = store.read_json(source, managed=True)
        figure = Figure.from_data(data)
        mark = hashlib.sha256(store.json_bytes(data, str(source)) + _code()).hexdigest()
        if all(_has(source.with_suffix(ending), mark) for ending in endings):
            stayed += [source.with_suffix(ending) for ending in endings]
            continue
        for ending, drawn in plots.figure_files(figure, mark).items():
            written.append(source.with_suffix(f".{ending}"))
            store.write_bytes(written[-1], drawn)
    names, left = ([one.relative_to(folder).as_posix() for one in paths] for paths in (written, stayed))
    seals.add(folder, names, left)
    return written


@cache
def _code() -> bytes:
    files = b"".join(
        Path(str(module.__file__)).read_bytes() for module in (explorer, series_style, plots, shared_axes, text)
    )
    return hashlib.sha256(files).digest() + matplotlib.__version__.encode()


def _has(path: Path, mark: str) -> bool:
    if not os.path.isfile(path) or os.path.islink(path):
        return False
    return mark.encode() in disk.read_bytes(path, managed=False)
