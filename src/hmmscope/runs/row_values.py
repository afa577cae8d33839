"""Arrays with a value for each row of the data, and with labels of the rows."""

import csv
import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from hmmscope.errors import RefusedError
from hmmscope.reprs import needed, times_as_array, to_frame
from hmmscope.sequences.time_stamps import local_of
from hmmscope.storage.store import write_text


class RowValues(np.ndarray[Any, Any]):
    """A NumPy array with one value or several columns for each row; sequences are concatenated, as in hmmlearn.

    Rows chosen in order (by slices, masks, numbers), their columns and `argmax(1)` keep the labels of rows. Other
    results, such as those of arithmetic, are plain arrays.

    Attributes:
        lengths: Number of rows of each sequence.
        names: Name of each column.
        index: Label of each row, such as its time stamp, or None.
        sequences: Names of the sequences, or empty.
        times: Time of each row in its sequence, from 0.
    """

    lengths: tuple[int, ...]
    names: tuple[str, ...]
    index: Any
    sequences: tuple[Any, ...]
    times: Any
    T = property(lambda self: np.asarray(self).T)
    __deepcopy__ = None  # type: ignore[assignment]  # `__reduce__` keeps the labels

    @classmethod
    def of(
        cls, values: Any, lengths: Any, names: Any, index: Any = None, sequences: Any = (), times: Any = None
    ) -> "RowValues":
        found = np.asarray(values).view(cls)
        found.lengths, found.names, found.index = tuple(map(int, lengths)), tuple(names), index
        steps = [np.arange(count) for count in found.lengths] or [np.arange(0)]
        found.sequences, found.times = tuple(sequences), np.concatenate(steps) if times is None else times
        return found

    def __array_finalize__(self, other: Any) -> None:
        self.lengths, self.names, self.index, self.sequences = (len(self),) if self.ndim else (), (), None, ()

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else np.asarray(array)

    def __array_function__(self, *called: Any) -> Any:
        found = super().__array_function__(*called)
        return np.asarray(found) if isinstance(found, RowValues) and not found.names else found

    def __getitem__(self, key: Any) -> Any:
        found = np.asarray(self)[key]
        rows, column = key if isinstance(key, tuple) and len(key) == self.ndim == 2 else (key, slice(None))
        if not (isinstance(rows, slice) or np.ndim(rows) == 1) or not isinstance(column, slice | int | np.integer):
            return found
        rows = np.arange(len(self))[rows]
        sequence = np.repeat(np.arange(len(self.lengths)), self.lengths)[rows]
        if rows.ndim != 1 or (np.diff(sequence) < 0).any() or not self.names:
            return found
        names = self.names[column] if isinstance(column, slice) else (self.names[column],)
        lengths = np.bincount(sequence, minlength=len(self.lengths))
        index = None if self.index is None else self.index[rows]
        return RowValues.of(found, lengths, names, index, self.sequences, self.times[rows])

    def argmax(self, axis: Any = None, *args: Any, **options: Any) -> Any:
        found = np.asarray(self).argmax(axis, *args, **options)
        if self.ndim != 2 or axis not in (1, -1) or found.ndim != 1:
            return found
        return RowValues.of(found, self.lengths, ["argmax"], self.index, self.sequences, self.times)

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __reduce__(self) -> Any:
        return RowValues.of, (np.asarray(self), self.lengths, self.names, self.index, self.sequences, self.times)

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
        index = self.times if self.index is None else self.index
        if len(self.lengths) > 1 and (self.index is None or self.sequences):
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
            return found | {"time": self.times}
        labels = times_as_array(np.asarray(self.index))
        labels = labels.tolist() if labels.dtype.kind == "O" else labels  # polars reads no array of datetimes
        return found | {getattr(self.index, "name", None) or "index": labels}


def _of_plain(name: str) -> Any:
    return lambda self, *args, **options: getattr(np.asarray(self), name)(*args, **options)


_PLAIN = "argmin argpartition argsort astype choose compress copy cumprod cumsum diagonal flatten"
for _name in f"{_PLAIN} ravel repeat reshape round squeeze swapaxes take transpose view __copy__".split():
    setattr(RowValues, _name, _of_plain(_name))


def stamps_of(index: Any) -> np.ndarray[Any, Any] | None:
    if index is not None and hasattr(index, "to_timestamp"):
        index = index.to_timestamp()
    found = np.asarray(index)
    if found.size and getattr(found.flat[0], "tzinfo", None) is not None:
        found = local_of(found)
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
