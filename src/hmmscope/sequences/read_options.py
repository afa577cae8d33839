"""The reading rule: how sequences are read from a source, kept so that another source is read alike."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hmmscope.schema import parse_spec, require, to_stored


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How sequences were read, or are to be read: what a person chose, and what was found where only one way made sense.

    Attributes:
        unit: of text, one of `encoding.UNITS`.
        column: of a table, or of a file with several arrays, the one with the symbols.
        group: of a table with one observation a row, the column that says of which sequence.
        axis: of an array of two dimensions, the one along which time runs: 0 if each column is a sequence, 1 if each row is.

        missing: what stands for an observation that was not made, see `hmmscope.sequences.gaps.Missing`.

    None for what is open, or does not apply.
    """

    unit: str | None = None
    column: str | None = None
    group: str | None = None
    axis: int | None = None
    missing: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        require(self.axis in (None, 0, 1), "axis", "of time must be 0 (each column is a sequence) or 1", self.axis)

    @classmethod
    def of_file(cls, data: Mapping[str, Any]) -> "ReadOptions | None":
        """That of the file of a process; None if it has none."""
        return parse_spec(cls, data["reading"], "reading") if data.get("reading") is not None else None

    def to_data(self) -> dict[str, Any]:
        """What is not open, as plain data."""
        values = to_stored(self)
        values |= {} if self.missing is None else {"missing": list(self.missing)}
        return {name: value for name, value in values.items() if value is not None}

    def flags(self) -> str:
        """As it is written on the command line: ``--unit lines --column weather``."""
        values = self.to_data() | ({} if self.missing is None else {"missing": ",".join(self.missing)})
        return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in values.items())
