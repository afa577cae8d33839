"""The residual stream of a constructed network: named subspaces, and what each layer does with them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


class Subspaces:
    """Coordinates 0 .. width - 1 cut into named blocks, in the order given.

    ``Subspaces({"token": 5, "position": 2})["position"]`` is ``slice(5, 7)``. Blocks of size zero are left out.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._slices: dict[str, slice] = {}
        self.width = 0
        for name, size in sizes.items():
            if size:
                self._slices[name] = slice(self.width, self.width + size)
            self.width += size

    def __getitem__(self, name: str) -> slice:
        return self._slices[name]

    def __contains__(self, name: object) -> bool:
        return name in self._slices

    def __iter__(self) -> Iterator[str]:
        return iter(self._slices)

    def size(self, name: str) -> int:
        """Number of coordinates of a block; 0 if it is not there."""
        found = self._slices.get(name)
        return 0 if found is None else found.stop - found.start

    def rows(self) -> list[dict]:
        """A table (subspace, first, last, size), for drawings of the layout."""
        return [
            {"subspace": name, "first": where.start, "last": where.stop - 1, "size": where.stop - where.start}
            for name, where in self._slices.items()
        ]


@dataclass(frozen=True, kw_only=True)
class LayerNote:
    """What one layer of a construction does.

    Attributes:
        layer: from 1; 0 is the embedding, or not said yet.
        stage: such as "gather history".
        reads, writes: names of subspaces.
        equation: in plain text.
        error: largest deviation from the exact value of what is written, measured on given tokens; None if not measured.
    """

    layer: int = 0
    stage: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    equation: str
    error: float | None = None


def explanation(title: str, subspaces: Subspaces, notes: list[LayerNote]) -> str:
    """The layout and the layers as a text to print."""
    blocks = [
        f"  {row['subspace']:<12} {row['first']:>5} .. {row['last']:<5} {row['size']:>5}" for row in subspaces.rows()
    ]
    lines = [title, "", f"residual stream, {subspaces.width} coordinates", *blocks, ""]
    for note in notes:
        measured = "" if note.error is None else f"   measured error {note.error:.1e}"
        lines.append(
            f"layer {note.layer:>3}  {note.stage}: {', '.join(note.reads)} -> {', '.join(note.writes)}{measured}"
        )
        lines.append(f"           {note.equation}")
    return "\n".join(lines)
