"""Time stamps and durations: parsing, formatting and conversion to numbers."""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.schema import shown
from hmmscope.sequences.gaps import is_nothing

#: Names of each unit of time, by its length in microseconds.
_UNITS = {
    1: ("us", "microsecond", "microseconds"),
    1_000: ("ms", "millisecond", "milliseconds"),
    1_000_000: ("s", "sec", "second", "seconds"),
    60_000_000: ("min", "minute", "minutes", "t"),
    3_600_000_000: ("h", "hour", "hours"),
    86_400_000_000: ("d", "day", "days"),
    7 * 86_400_000_000: ("w", "week", "weeks"),
}
_SIZES = {name: size for size, names in _UNITS.items() for name in names}
_MONTHS = {"mo": 1, "month": 1, "months": 1, "ms": 1, "y": 12, "year": 12, "years": 12}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)?\s*([A-Za-z]+)")
_DURATIONS = "a duration such as '10min', '1h', '1d' or '1mo', or a number if times are numbers"
_ISO = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)(?:[T ]+(\d\d):?(\d\d)(?::?(\d\d)(?:[.,](\d{1,9}))?)?)?"
    r"\s*(Z|UTC|[+-](?:[01]\d|2[0-3]):?(?:[0-5]\d)?)?"
)
_COMPACT = re.compile(r"((?:19|20)\d\d)(\d\d)(\d\d)(?:T?(\d\d)(\d\d)(\d\d)?)?")
_LOCAL = re.compile(
    r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?:[T ,]+(\d{1,2}):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?\s*([AaPp][Mm])?)?"
)
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?")
#: For seconds, milliseconds, microseconds and nanoseconds since 1970: the largest number, and the unit in microseconds.
_EPOCH = ((1e11, 1e6), (1e14, 1e3), (1e17, 1.0), (1e20, 1e-3))


class Duration(NamedTuple):
    """A time step: a number of microseconds, a plain number, or a number of whole months."""

    size: float
    months: int
    text: str
    is_time: bool


def parse_duration(given: Any, field: str) -> Duration:
    if isinstance(given, str) and _NUMBER.fullmatch(given.strip()):
        given = float(given)
    if isinstance(given, int | float | np.number) and not isinstance(given, bool | np.timedelta64):
        if np.isfinite(given) and given > 0:
            return Duration(float(given), 0, f"{float(given):g}", False)
    elif isinstance(given, np.timedelta64 | timedelta):
        kind = np.datetime_data(given)[0] if isinstance(given, np.timedelta64) else ""
        if kind in ("M", "Y"):
            return parse_duration(f"{int(given.astype(int))}{'mo' if kind == 'M' else 'y'}", field)  # type: ignore[union-attr]
        size = int(np.timedelta64(given, "us").astype(np.int64))
        if size > 0:
            return Duration(size, 0, duration_text(size), True)
    elif isinstance(given, str) and (found := _DURATION.fullmatch(given.strip())):
        count, unit = float(found[1] or 1), found[2]
        months = _MONTHS.get(unit.lower(), 0) if unit != "ms" else 0
        size = 0 if unit == "MS" else _SIZES.get(unit.lower(), 0)
        if count > 0 and months and count == int(count):
            return Duration(0, int(count) * months, given.strip(), True)
        if count > 0 and size and not months:
            return Duration(count * size, 0, given.strip(), True)
    raise InputError(f"{field}: must be {_DURATIONS}, got {shown(given)}")


def stored_duration(given: Any, field: str) -> str | None:
    """Return a duration as text that `parse_duration` reads; None and text are returned unchanged."""
    if given is None or isinstance(given, str):
        return given
    found = parse_duration(given, field)
    return found.text if found.is_time else f"{found.size:.17g}"


def duration_text(size: float) -> str:
    units = [unit for unit in sorted(_UNITS, reverse=True) if unit <= size and unit != 7 * 86_400_000_000]
    exact = next((unit for unit in units if size % unit == 0), None)
    unit = exact or (units[0] if units else 1)
    return f"{size / unit:.0f}{_UNITS[unit][0]}" if exact else f"{size / unit:.3g}{_UNITS[unit][0]}"


def on_months(stamps: NDArray[Any], months: NDArray[Any]) -> NDArray[Any]:
    """Return stamps like the first of `stamps` in `months`; ends of months stay ends."""
    own, last = stamps.astype("datetime64[D]"), _last_days(stamps.astype("datetime64[M]"))
    day = (own - own.astype("datetime64[M]")).astype(np.int64)  # from 0
    kept = 30 if (day == last).all() and day.max() > 27 else int(day.max())
    kept = kept if (day == np.minimum(kept, last)).all() else int(day[0])
    days = months.astype("datetime64[M]").astype("datetime64[D]") + np.minimum(kept, _last_days(months))
    return days.astype(stamps.dtype) + (stamps[0] - own[0])


def _last_days(months: NDArray[Any]) -> NDArray[np.int64]:
    first = months.astype("datetime64[M]")
    return ((first + 1).astype("datetime64[D]") - first.astype("datetime64[D]")).astype(np.int64) - 1


def zoned(times: NDArray[Any], zone: tzinfo) -> NDArray[Any]:
    """Return times in UTC as datetimes in a zone."""
    found = np.empty(len(times), object)
    found[:] = [one.replace(tzinfo=UTC).astimezone(zone) for one in times.astype("datetime64[us]").tolist()]
    return found


def utc_of(local: NDArray[Any], zone: tzinfo) -> NDArray[Any]:
    times = local.astype("datetime64[us]")
    return times - np.array([zone.utcoffset(one) for one in times.tolist()], "timedelta64[us]")


def local_of(stamps: Iterable[datetime]) -> NDArray[Any]:
    return np.array([one.replace(tzinfo=None) for one in stamps], "datetime64[us]")


def parse_times(cells: Any, where: Callable[[int], str], as_time: bool) -> tuple[NDArray[Any], tzinfo | None]:
    """Return times, in UTC if they have a zone, and the zone."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "M":
        found = cells.astype("datetime64[us]")
        if bool(np.isnat(found).any()):
            raise InputError(f"{where(int(np.isnat(found).argmax()))}: has no time; leave the row out")
        return found, None
    cells = cells.tolist() if isinstance(cells, np.ndarray) else list(cells)
    for row, cell in enumerate(cells):
        if is_nothing(cell) or (isinstance(cell, str) and not cell.strip()):
            raise InputError(f"{where(row)}: has no time; leave the row out")
    if len(cells) and all(isinstance(cell, date | np.datetime64) for cell in cells):
        return _of_dates(cells, where)
    texts = [str(cell).strip() for cell in cells]
    if all(_COMPACT.fullmatch(text) for text in texts) and (days := _calendar(texts)) is not None:
        return days, None
    if all(map(_NUMBER.fullmatch, texts)):
        return _of_numbers(texts, where, as_time), None
    for pattern, read in ((_ISO, _of_iso), (_LOCAL, _of_local)):
        if pattern.fullmatch(texts[0]):
            matches = [pattern.fullmatch(text) for text in texts]
            if None in matches:
                row = matches.index(None)
                raise InputError(f"{where(row)}: {shown(texts[row])} is not in the format of {shown(texts[0])}")
            return read(matches, where)  # type: ignore[arg-type]
    raise InputError(f"{where(0)}: {shown(texts[0])} is not a time; write times as 2026-01-31 14:30:00")


def looks_like_time(cell: object) -> bool:
    if isinstance(cell, date | np.datetime64):
        return True
    return isinstance(cell, str) and bool(_ISO.fullmatch(cell.strip()) or _LOCAL.fullmatch(cell.strip()))


def _of_dates(cells: Sequence[Any], where: Callable[[int], str]) -> tuple[NDArray[Any], tzinfo | None]:
    zone = _one_zone([getattr(cell, "tzinfo", None) for cell in cells], where)
    plain = cells if zone is None else [cell.astimezone(UTC).replace(tzinfo=None) for cell in cells]
    return np.array([np.datetime64(cell, "us") for cell in plain], "datetime64[us]"), zone


def _one_zone(zones: Sequence[tzinfo | None], where: Callable[[int], str]) -> tzinfo | None:
    """Return the zone of all rows, or UTC if they have several."""
    odd = next((row for row, one in enumerate(zones) if (one is None) != (zones[0] is None)), None)
    if odd is not None:
        raise InputError(f"{where(odd)}: must have a time zone in all rows or in none")
    return zones[0] if len(set(map(str, set(zones)))) == 1 else UTC


def _calendar(texts: list[str]) -> NDArray[Any] | None:
    matches = [_COMPACT.fullmatch(text) for text in texts]
    rows = [[int(part or 0) for part in m.groups()] for m in matches if m]
    try:
        return np.array([datetime(*row) for row in rows], "datetime64[us]")  # type: ignore[arg-type]
    except ValueError:
        return None


def _of_numbers(texts: list[str], where: Callable[[int], str], as_time: bool) -> NDArray[Any]:
    whole = all("." not in text for text in texts)
    values = np.array(list(map(int if whole else float, texts)), np.int64 if whole else np.float64)
    if not as_time:
        return values
    size = float(np.abs(values).max(initial=0))
    scale = next((scale for most, scale in _EPOCH if size < most), None)
    if size < 1e8 or scale is None or float(values.min()) < size / 100:
        raise InputError(
            f"{where(0)}: the numbers {values.min()} to {values.max()} are not times since 1970; give every and gap as "
            "numbers in the same unit, such as every=1"
        )
    micros = (
        np.round(values * scale).astype(np.int64)
        if not whole
        else (values * int(scale) if scale >= 1 else values // 1000)
    )
    return micros.astype("datetime64[us]")


def _of_iso(matches: list[re.Match[str]], where: Callable[[int], str]) -> tuple[NDArray[Any], tzinfo | None]:
    zones = [_offset(match[8]) for match in matches]
    zone, found = _one_zone(zones, where), _of_parts([match.groups()[:7] for match in matches], where)
    if zone is not None:
        found -= np.array([one and one.utcoffset(None) for one in zones], "timedelta64[us]")
    return found, zone


@cache
def _offset(zone: str | None) -> tzinfo | None:
    if zone is None or zone in ("Z", "UTC"):
        return None if zone is None else UTC
    digits = zone[1:].replace(":", "")
    return timezone((-1 if zone[0] == "-" else 1) * timedelta(hours=int(digits[:2]), minutes=int(digits[2:] or 0)))


def _of_parts(rows: Sequence[tuple[Any, ...]], where: Callable[[int], str]) -> NDArray[Any]:
    texts = [
        f"{year}-{month:0>2}-{day:0>2}T{hour or '00':0>2}:{minute or '00'}:{second or '00'}.{(part or '0')[:6]}"
        for year, month, day, hour, minute, second, part in rows
    ]
    try:
        return np.array(texts, "datetime64[us]")
    except ValueError:
        for row, text in enumerate(texts):
            try:
                np.datetime64(text)
            except ValueError:
                raise InputError(f"{where(row)}: {text[:19].replace('T', ' ')} is not a valid date and time") from None
        raise


def _of_local(matches: list[re.Match[str]], where: Callable[[int], str]) -> tuple[NDArray[Any], None]:
    firsts, seconds = ([int(match[place]) for match in matches] for place in (1, 3))
    day_first = matches[0][2] == "." or max(firsts) > 12
    month_first = max(seconds) > 12
    if day_first and month_first:
        raise InputError(
            f"{where(0)}: the order of day and month differs within this column; write times as 2026-01-31 14:30"
        )
    if not (day_first or month_first):
        raise InputError(
            f"{where(0)}: {shown(matches[0][0])} may begin with the day or the month; write times as 2026-01-31 14:30"
        )
    rows = []
    for match in matches:
        month, day = (match[3], match[1]) if day_first else (match[1], match[3])
        hour = match[5]
        if match[9] is not None:
            hour = str(int(hour) % 12 + 12 * (match[9].lower() == "pm"))
        rows.append((match[4], month, day, hour, match[6], match[7], match[8]))
    return _of_parts(rows, where), None
