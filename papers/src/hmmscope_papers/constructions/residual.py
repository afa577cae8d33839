"""Named subspaces of a residual stream, and notes on layers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


class Subspaces:
    """Named blocks of the coordinates 0 .. width - 1.

    ``Subspaces({"token": 5, "position": 2})["position"]`` is ``slice(5, 7)``.
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
        found = self._slices.get(name)
        return 0 if found is None else found.stop - found.start

    def rows(self) -> list[dict]:
        return [
            {"subspace": name, "first": where.start, "last": where.stop - 1, "size": where.stop - where.start}
            for name, where in self._slices.items()
        ]


@dataclass(frozen=True, kw_only=True)
class LayerNote:
    """Description of one layer.

    Attributes:
        layer: Layer number; 0 is the embedding.
        stage: Stage, such as "gather history".
        reads, writes: Names of subspaces.
        equation: Equation of the layer in plain text.
        error: Largest measured error of the written values; None without measurement.
    """

    layer: int = 0
    stage: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    equation: str
    error: float | None = None


def explanation(title: str, subspaces: Subspaces, notes: list[LayerNote]) -> str:
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
