"""Arrays with a value for each row of the data, and with labels of the rows."""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hmmscope.errors import RefusedError
from hmmscope.reprs import needed, times_as_array, to_frame
from hmmscope.storage.store import write_text


class RowValues(np.ndarray[Any, Any]):
    """A NumPy array with one value or several columns for each row; sequences are concatenated, as in hmmlearn.

    Slices and results of arithmetic are plain arrays.

    Attributes:
        lengths: Number of rows of each sequence.
        names: Name of each column.
        index: Label of each row, such as its time stamp, or None.
        sequences: Names of the sequences, or empty.
    """

    lengths: tuple[int, ...]
    names: tuple[str, ...]
    index: Any
    sequences: tuple[str, ...]

    @classmethod
    def of(
        cls, values: Any, lengths: Sequence[int], names: Sequence[str], index: Any = None, sequences: Sequence[str] = ()
    ) -> "RowValues":
        found = np.asarray(values).view(cls)
        found.lengths, found.names, found.index = tuple(map(int, lengths)), tuple(names), index
        found.sequences = tuple(sequences)
        return found

    def __array_finalize__(self, other: Any) -> None:
        self.lengths, self.names, self.index, self.sequences = (len(self),) if self.ndim else (), (), None, ()

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else np.asarray(array)

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __reduce__(self) -> Any:
        return RowValues.of, (np.asarray(self), self.lengths, self.names, self.index, self.sequences)

    def per_sequence(self) -> list[np.ndarray[Any, Any]]:
        return np.split(np.asarray(self), np.cumsum(self.lengths)[:-1])

    def columns(self) -> dict[str, Any]:
        return self._labels() | self._values()

    def to_csv(self, path: object) -> None:
        """Write the row labels and the columns to a new CSV file.

        Raises:
            RefusedError: The file exists.
        """
        target, text = Path(str(path)), io.StringIO()
        columns, rows = self.columns(), csv.writer(text, lineterminator="\n")
        rows.writerow(columns)
        rows.writerows(zip(*columns.values(), strict=True))
        if os.path.lexists(target):
            raise RefusedError(f"{target}: exists; choose another name")
        write_text(target, text.getvalue())

    def to_pandas(self) -> Any:
        """Return a pandas Series (one column) or DataFrame with the index of the input.

        Without an index, several sequences get (sequence, time); with one, named sequences get (sequence, index).
        """
        index = self.index
        if len(self.lengths) > 1 and (index is None or self.sequences):
            labels = self._labels()
            index = needed("pandas", "to_pandas").MultiIndex.from_arrays(list(labels.values()), names=list(labels))
        found = to_frame(self._values(), index)
        return found[self.names[0]] if self.ndim == 1 else found

    def _values(self) -> dict[str, Any]:
        table = np.asarray(self)
        return dict(zip(self.names, table[None] if table.ndim == 1 else table.T, strict=True))

    def _labels(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if len(self.lengths) > 1:
            found["sequence"] = np.repeat(self.sequences or np.arange(len(self.lengths)), self.lengths)
        if self.index is None:
            return found | {"time": np.concatenate([np.arange(count) for count in self.lengths] or [np.arange(0)])}
        return found | {getattr(self.index, "name", None) or "index": times_as_array(np.asarray(self.index))}


def stamps_of(index: Any) -> np.ndarray[Any, Any] | None:
    if index is not None and hasattr(index, "to_timestamp"):
        index = index.to_timestamp()
    if getattr(index, "tz", None) is not None:
        index = index.tz_localize(None)
    found = np.asarray(index)
    return found if found.dtype.kind == "M" else None


def time_step(index: Any) -> np.timedelta64 | None:
    stamps = stamps_of(index)
    if stamps is None or len(stamps) < 2:
        return None
    steps, counts = np.unique(np.diff(stamps), return_counts=True)
    step: np.timedelta64 = steps[counts.argmax()]
    return step if step > np.timedelta64(0) else None


def multiple_of(step: np.timedelta64, count: float) -> np.timedelta64:
    for unit in ("ns", "us"):
        if (size := count * float(step / np.timedelta64(1, "us")) * (1000 if unit == "ns" else 1)) < 2**62:
            return np.timedelta64(round(size), unit)
    return np.timedelta64("NaT", "us")


def duration_text(step: np.timedelta64) -> str:
    if np.isnat(step):
        return "always"
    seconds = float(step / np.timedelta64(1, "us")) / 1e6
    if seconds < 60:
        return f"{seconds:.3g} s"
    seconds = round(seconds)
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    place = next(k for k, (size, _) in enumerate(units) if seconds >= size)
    (large, first), (small, second) = units[place : place + 2]
    whole, rest = divmod(round(seconds / small), large // small)
    return f"{whole:,} {first}" + (f" {rest} {second}" if rest else "")
