"""Reading options, stored so that other sources are read in the same way."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hmmscope.schema import parse_spec, require, to_stored


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How sequences were read, or are to be read; None for unspecified.

    Attributes:
        unit: of text, one of `encoding.UNITS`.
        column: the column or array with the symbols.
        group: the column with the sequence of each row.
        axis: time axis of a 2-d array: 0 if columns are sequences, 1 if rows are.
        missing: values of missing observations, see `hmmscope.sequences.gaps.Missing`.
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
        """Return the options in a process file, or None."""
        return parse_spec(cls, data["reading"], "reading") if data.get("reading") is not None else None

    def to_data(self) -> dict[str, Any]:
        """Return the specified options as plain data."""
        values = to_stored(self)
        values |= {} if self.missing is None else {"missing": list(self.missing)}
        return {name: value for name, value in values.items() if value is not None}

    def flags(self) -> str:
        """Return command-line flags: ``--unit lines --column weather``."""
        values = self.to_data() | ({} if self.missing is None else {"missing": ",".join(self.missing)})
        return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in values.items())
