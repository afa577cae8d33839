"""Read the folders results/ of the three distributions as if they were one folder."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path, PurePath
from typing import Any

from hmmscope.lab.evidence.ledger import SCALES
from hmmscope.lab.experiments.experiment import experiment_named

#: Folder of the distribution of a package.
OUTER = {"hmmscope_papers": "papers", "hmmscope_studies": "studies"}


class Kept:
    """The folders results/ of a checkout, or one scale of each, as a folder: ``RESULTS / "small" / "limits-fig2"``.

    Attributes:
        root: the checkout.
        parts: below results/.
    """

    def __init__(self, root: Path, *parts: str) -> None:
        self.root, self.parts = root, parts

    @property
    def parent(self) -> "Kept":
        return Kept(self.root, *self.parts[:-1])

    def folders(self) -> list[Path]:
        """Return the folders that exist, in the order of dependency of the distributions."""
        found = [self.root / name / "results" for name in ("", *OUTER.values())]
        return [place for folder in found if (place := folder.joinpath(*self.parts)).is_dir()]

    def __truediv__(self, name: str) -> Any:
        """Return one scale of all distributions, or the path of a result: the existing one, or the one to write."""
        parts = (*self.parts, *PurePath(name).parts)
        if len(parts) == 1 and parts[0] in SCALES:
            return Kept(self.root, *parts)
        there = [place for folder in Kept(self.root).folders() if (place := folder.joinpath(*parts)).exists()]
        return there[0] if there else self.root / home(parts) / "results" / PurePath(*parts)

    def iterdir(self) -> Iterator[Path]:
        """Yield the entries of all folders."""
        return chain.from_iterable(folder.iterdir() for folder in self.folders())

    def glob(self, pattern: str) -> Iterator[Path]:
        """Yield the entries of all folders that match a pattern."""
        return chain.from_iterable(folder.glob(pattern) for folder in self.folders())

    def rglob(self, pattern: str) -> Iterator[Path]:
        """Yield the entries of all folders that match a pattern, at any depth."""
        return chain.from_iterable(folder.rglob(pattern) for folder in self.folders())


def home(parts: tuple[str, ...]) -> str:
    """Return the folder of the distribution to which a result belongs; empty for the root."""
    if len(parts) < 2 or parts[0] not in SCALES:
        return ""
    package = type(experiment_named(parts[1].partition("@")[0])).__module__.partition(".")[0]
    return OUTER.get(package, "")


#: Results of this checkout.
RESULTS = Kept(Path(__file__).resolve().parents[1])
