"""Options for reading sequences, stored so that other sources are read in the same way."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from hmmscope.errors import InputError
from hmmscope.schema import parse_spec, require, to_stored
from hmmscope.sequences.time_axis import TimeAxis

#: Names of the options that place the rows of a table in time.
TIME_OPTIONS = ("time", "every", "gap", "sort", "duplicates")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options for reading sequences; None means that the option is not set.

    Attributes:
        unit, column, group, axis, missing, time, every, gap, sort, duplicates: see `SequenceData`.
        inputs: the column with the inputs of an `InputOutputHMM`.
        alphabets: the names in each column of names, if others have numbers.
    """

    unit: str | None = None
    column: str | None = None
    group: str | None = None
    axis: int | None = None
    missing: tuple[str, ...] | None = None
    time: str | None = None
    every: str | None = None
    gap: str | None = None
    sort: bool | None = None
    duplicates: str | None = None
    inputs: str | None = None
    alphabets: dict[str, tuple[str, ...]] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.time, Integral):  # columns of frames may be numbers
            object.__setattr__(self, "time", str(self.time))
        require(isinstance(self.time, str | None), "time", "must be the name of a column", self.time)
        for name in ("every", "gap", "sort", "duplicates"):
            if getattr(self, name) and self.time is None:
                raise InputError(f"{name}: needs time=, the column of time stamps (--time)")
        if self.axis_of_time is not None:
            self.axis_of_time.check()
        good = isinstance(self.axis, int | None) and self.axis in (None, 0, 1)
        require(good, "axis", "must be 0 (columns are sequences) or 1 (rows are sequences)", self.axis)

    def __bool__(self) -> bool:
        return bool(self.to_data())

    @classmethod
    def of_file(cls, data: Mapping[str, Any]) -> "ReadOptions | None":
        return parse_spec(cls, data["reading"], "reading") if data.get("reading") is not None else None

    @property
    def axis_of_time(self) -> TimeAxis | None:
        if self.time is None:
            return None
        return TimeAxis(self.time, self.every, self.gap, bool(self.sort), self.duplicates)

    def to_data(self) -> dict[str, Any]:
        values = to_stored(self)
        values |= {} if self.missing is None else {"missing": list(self.missing)}
        return {name: value for name, value in values.items() if value is not None}

    def flags(self) -> str:
        values = self.to_data() | ({} if self.missing is None else {"missing": ",".join(self.missing)})
        values.pop("alphabets", None)
        return " ".join(
            f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}" for name, value in values.items()
        )
