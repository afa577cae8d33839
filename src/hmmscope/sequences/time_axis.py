"""Assignment of rows to regular time steps: a step without a row is missing, and a long gap ends a sequence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.reprs import Shown
from hmmscope.schema import require, shown
from hmmscope.sequences.time_stamps import (
    Duration,
    duration_text,
    local_of,
    on_months,
    parse_duration,
    parse_times,
    utc_of,
    zoned,
)

#: Most steps of a grid: the larger of a fixed number and a multiple of the number of rows.
_MANY, _EACH = 2**20, 1000
#: Value of `every` that makes each row one step, whatever the times between rows are.
EACH_ROW = "row"


@dataclass(frozen=True, repr=False)
class Steps(Shown):
    """The time steps of a table, each with the row that was recorded at that step.

    Attributes:
        rows: row number of each time step, -1 where no row was recorded (step,).
        lengths: lengths of the sequences (sequence,).
        index: time or label of each step (step,), or None.
        names: names of the sequences, or None.
        summary: description of the times in words.
    """

    rows: NDArray[np.int64]
    lengths: NDArray[np.int64]
    index: NDArray[Any] | None
    names: tuple[Any, ...] | None
    summary: str = ""

    @property
    def moved(self) -> bool:
        """True if the rows are in another order than in the table."""
        return bool((np.diff(self.rows[self.rows >= 0]) < 0).any())


class TimeAxis(NamedTuple):
    """Options that assign times to the rows of a table.

    Attributes:
        time, every, gap, sort, duplicates: see `SequenceData`.
    """

    time: str
    every: Any = None
    gap: Any = None
    sort: bool = False
    duplicates: str | None = None

    def check(self) -> None:
        if self.every is not None and self.every != EACH_ROW:
            parse_duration(self.every, "every")
        if self.gap is not None:
            parse_duration(self.gap, "gap")
        require(self.duplicates in (None, "first", "last"), "duplicates", "must be 'first' or 'last'", self.duplicates)


@dataclass(frozen=True)
class _Found:
    rows: list[NDArray[np.int64]]
    index: list[NDArray[Any]]
    gaps: int
    duplicates: int
    disorder: int
    off: float


def put_on_grid(
    cells: Any, groups: Sequence[tuple[Any, NDArray[np.int64]]], axis: TimeAxis, where: Callable[[int], str]
) -> Steps:
    axis.check()
    every = None if axis.every in (None, EACH_ROW) else parse_duration(axis.every, "every")
    gap = None if axis.gap is None else parse_duration(axis.gap, "gap")
    times, zone = parse_times(cells, where, any(one is not None and one.is_time for one in (every, gap)))
    is_time = times.dtype.kind == "M"
    for field, one in (("every", every), ("gap", gap)):
        if one is not None and one.is_time != is_time:
            kind = "dates" if is_time else "numbers"
            raise InputError(f"{field}: {one.text} does not fit column {axis.time}, which holds {kind}")
    steps = _Grid(times.astype(np.int64) if is_time else times, is_time, axis, every, gap, where, zone)
    found = [steps.place(rows) for _, rows in groups]
    names = [name for (name, _), one in zip(groups, found, strict=True) for _ in one.rows]
    rows = [part for one in found for part in one.rows]
    flat = np.concatenate(rows)
    values = np.concatenate([part for one in found for part in one.index])
    index = values.astype("datetime64[us]") if is_time else values
    index = index if zone is None else zoned(index, zone)
    known = None if None in names else tuple(names)
    return Steps(flat, np.array(list(map(len, rows))), index, known, _summary(found, flat, axis, every, is_time))


def _summary(
    found: list[_Found], rows: NDArray[np.int64], axis: TimeAxis, every: Duration | None, is_time: bool
) -> str:
    gaps, empty = sum(one.gaps for one in found), int((rows < 0).sum())
    cuts = sum(len(one.rows) - 1 for one in found)
    said = f"{int((rows >= 0).sum())} rows by {axis.time}"
    if every is not None:
        said += f" every {every.text}, {empty} missing step{'s' * (empty != 1)} in {gaps} gap{'s' * (gaps != 1)}"
    said += f", {cuts} cut{'s' * (cuts != 1)} at gaps above {axis.gap}" if axis.gap is not None else ""
    repeated, disorder = sum(one.duplicates for one in found), sum(one.disorder for one in found)
    said += f", {repeated} repeated row{'s' * (repeated != 1)} left out" if repeated else ""
    said += f", sorted by time ({disorder} row{'s' * (disorder != 1)} earlier than the row before)" if disorder else ""
    off = max(one.off for one in found)
    if off:
        said += f", time stamps up to {duration_text(off) if is_time else f'{off:g}'} from their time step"
    return said


@dataclass(frozen=True)
class _Grid:
    times: NDArray[Any]
    is_time: bool
    axis: TimeAxis
    every: Duration | None
    gap: Duration | None
    where: Callable[[int], str]
    zone: tzinfo | None

    def place(self, rows: NDArray[np.int64]) -> _Found:
        times = self.times[rows]
        steps = np.diff(times)
        disorder = int((steps < 0).sum())
        if disorder and not self.axis.sort:
            raise self._disorder(rows, times, int((steps < 0).argmax()))
        if disorder:
            order = np.argsort(times, kind="stable")
            rows, times = rows[order], times[order]
        cuts = np.flatnonzero(self._long(times)) + 1
        parts = [self._segment(own, at) for own, at in zip(np.split(rows, cuts), np.split(times, cuts), strict=True)]
        if self.every is None and self.axis.every is None:
            self._require_regular([at for _, at, *_ in parts])
        own, index, gaps, dropped, off = zip(*parts, strict=True)
        return _Found(list(own), list(index), sum(gaps), sum(dropped), disorder, max(off))

    def _long(self, times: NDArray[Any]) -> NDArray[np.bool_]:
        if self.gap is None:
            return np.zeros(max(0, len(times) - 1), np.bool_)
        if self.gap.months:
            return np.diff(self._months(times)) > self.gap.months
        return np.diff(times) > self.gap.size

    def _months(self, times: NDArray[Any]) -> NDArray[np.int64]:
        return self._local(times).astype("datetime64[M]").astype(np.int64)

    def _local(self, times: NDArray[Any]) -> NDArray[Any]:
        return times.astype("datetime64[us]") if self.zone is None else local_of(zoned(times, self.zone))

    def _utc(self, local: NDArray[Any]) -> NDArray[Any]:
        return (local if self.zone is None else utc_of(local, self.zone)).astype(np.int64)

    def _segment(
        self, rows: NDArray[np.int64], times: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[Any], int, int, float]:
        cells, off, grid = self._cells(times)
        repeated = np.diff(cells) == 0
        dropped = int(repeated.sum())
        if dropped:
            if self.axis.duplicates is None:
                raise self._duplicate(rows, times, int(repeated.argmax()))
            kept = np.concatenate([[True], ~repeated] if self.axis.duplicates == "first" else [~repeated, [True]])
            rows, times, cells = rows[kept], times[kept], cells[kept]
        count = int(cells[-1]) + 1
        if count > max(_MANY, _EACH * len(rows)):
            raise InputError(
                f"every: {self.axis.every} gives {count} steps for {len(rows)} rows; give a longer step, or cut sequences "
                "at long gaps with gap="
            )
        placed = np.full(count, -1, np.int64)
        placed[cells] = rows
        index = grid(np.arange(count))
        index[cells] = times
        return placed, index, int((np.diff(cells) > 1).sum()), dropped, off

    def _cells(self, times: NDArray[Any]) -> tuple[NDArray[np.int64], float, Callable[[NDArray[Any]], NDArray[Any]]]:
        first = times[0]
        if self.every is None:
            repeated = np.cumsum(np.diff(times) == 0) * (self.axis.every is None)
            cells = np.arange(len(times)) - np.concatenate([[0], repeated]).astype(np.int64)
            return cells, 0.0, lambda at: np.resize(times, len(at)).copy()
        if self.every.months:
            months, stamps, each = self._months(times), self._local(times), self.every.months
            cells = (months - months[0]) // each
            return cells, 0.0, lambda at: self._utc(on_months(stamps, months[0] + at * each))
        step = self.every.size
        if self.zone is not None and step % 86_400e6 == 0:  # days of the zone may last 23 or 25 hours
            stamps = self._local(times)
            cells, rest = np.divmod((stamps - stamps[0]).astype(np.int64), int(step))
            if not rest.any():
                return cells, 0.0, lambda at: self._utc(stamps[0] + at * np.timedelta64(int(step), "us"))
        past = (times - first).astype(np.float64)
        rest = past - np.round(past / step) * step
        if float(np.abs(rest).max()) <= 1e-9 * max(step, float(past[-1])):
            phase = 0.0
        else:  # the grid that is closest to all stamps
            angles = 2 * np.pi * past / step
            phase = float(np.arctan2(np.sin(angles).mean(), np.cos(angles).mean()) / (2 * np.pi) * step)
        cells = np.round((past - phase) / step).astype(np.int64)
        off = float(np.abs(past - phase - cells * step).max()) if phase or float(np.abs(rest).max()) else 0.0
        off = off if off > 1e-9 * max(step, float(past[-1])) else 0.0
        start, base = first + (round(phase) if self.is_time else phase), int(cells[0])

        def regular(at: NDArray[Any]) -> NDArray[Any]:
            moves = (at + base) * step
            return np.asarray(start + (np.round(moves).astype(np.int64) if self.is_time else moves))

        kind = self.times.dtype
        return cells - base, off, lambda at: regular(at).astype(kind if self.is_time or step == int(step) else float)

    def _require_regular(self, parts: list[NDArray[Any]]) -> None:
        steps = np.concatenate([np.diff(part) for part in parts])
        if not len(steps) or float(steps.max() - steps.min()) <= 1e-6 * abs(float(steps.max())):
            return
        if self.is_time and float(steps.min()) >= 28 * 86_400e6:  # months and years have different lengths
            months = np.concatenate([np.diff(self._months(part)) for part in parts])
            if int(months.min()) == int(months.max()):
                return
        values, counts = np.unique(steps, return_counts=True)
        usual, least, most = (float(v) for v in (values[counts.argmax()], values[0], values[-1]))
        text = duration_text if self.is_time else "{:g}".format
        step = "1mo" if self.is_time and 28 <= usual / 86_400e6 <= 31 else text(usual)
        raise InputError(
            f"{self.axis.time}: times between rows vary from {text(least)} to {text(most)}; pass every={step!r} to "
            f"turn gaps into missing observations, or every='row' if each row is one step"
        )

    def _disorder(self, rows: NDArray[np.int64], times: NDArray[Any], place: int) -> InputError:
        back = float(times[place] - times[place + 1])
        hint = ""
        if self.is_time and back <= 3_600e6:
            hint = "; if the clock was set back an hour, write times in UTC or with an offset"
        later, earlier = (self._text(times[k]) for k in (place, place + 1))
        return InputError(
            f"{self.where(int(rows[place + 1]))}: time {earlier} comes after {later}; pass sort=True (--sort) to sort the "
            f"rows, or group= if there are several sequences{hint}"
        )

    def _duplicate(self, rows: NDArray[np.int64], times: NDArray[Any], place: int) -> InputError:
        said = f"repeats the time {self._text(times[place])}"
        if times[place] != times[place + 1]:
            both = f"{self._text(times[place])} and {self._text(times[place + 1])}"
            said = f"{both} fall into one step of {self.axis.every}"
        return InputError(
            f"{self.where(int(rows[place + 1]))}: {said}; pass duplicates='first' or 'last' (--duplicates) to keep one "
            "row, or group= if there are several sequences"
        )

    def _text(self, time: Any) -> str:
        if not self.is_time:
            return shown(time.item())
        stamp = np.array([time]).astype("datetime64[us]")
        text = str(stamp[0] if self.zone is None else zoned(stamp, self.zone)[0])
        return text.removesuffix(".000000").replace("T", " ")
