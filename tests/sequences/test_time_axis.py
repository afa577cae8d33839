"""Time stamps: rows on a grid, gaps as missing observations, and one line for what cannot be read."""

import gzip
import zoneinfo
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hmmscope as hs
from cli_cases import call  # noqa: F401 - a fixture
from hmmscope.errors import InputError

#: Ten minutes apart, with gaps of 2 and of 30 steps.
PLACES = [0, 1, 2, 5, 6, 37, 38]
VALUES = [20.5, 21.25, 20.0, 22.5, 22.75, 19.5, 19.0]
START = datetime(2026, 1, 20, 22)
TIMES = [START + timedelta(minutes=10 * place) for place in PLACES]


def table(write: Any, separator: str = ",", comma: bool = False, ends: str = "\n") -> str:
    rows = [
        ("stamp", "temp"),
        *((write(t), str(v).replace(".", "," if comma else ".")) for t, v in zip(TIMES, VALUES, strict=True)),
    ]
    return ends.join(separator.join(row) for row in rows) + ends


FILES = {
    "iso": ("a.csv", table(str).encode()),
    "mark": ("a.csv", table(str).encode("utf-8-sig")),
    "utf-16": ("a.csv", table(str).encode("utf-16")),
    "gzip": ("a.csv.gz", gzip.compress(table(str).encode())),
    "semicolons": ("a.csv", table(str, ";", comma=True).encode()),
    "tabs": ("a.csv", table(str, "\t", ends="\r\n").encode()),
    "excel": ("a.csv", ("sep=;\r\n" + table(str, ";", comma=True, ends="\r\n")).encode()),
    "quoted": (
        "a.csv",
        "".join(
            f'"{a}","{b}"\n' for a, b in (line.split(";") for line in table(str, ";", comma=True).splitlines())
        ).encode(),
    ),
    "utc": ("a.csv", table(lambda t: f"{t:%Y-%m-%dT%H:%M:%S}Z").encode()),
    "offset": ("a.csv", table(lambda t: f"{t + timedelta(hours=2):%Y-%m-%d %H:%M}+02:00").encode()),
    "offsets": (
        "a.csv",
        table(lambda t: f"{t + timedelta(hours=t.minute // 30):%Y-%m-%d %H:%M}+0{t.minute // 30}").encode(),
    ),
    "seconds": ("a.csv", table(lambda t: f"{(t - datetime(1970, 1, 1)).total_seconds():.0f}").encode()),
    "milliseconds": ("a.csv", table(lambda t: f"{(t - datetime(1970, 1, 1)).total_seconds() * 1000:.0f}").encode()),
    "german": ("a.csv", table(lambda t: f"{t:%d.%m.%Y %H:%M}", ";", comma=True).encode()),
    "american": ("a.csv", table(lambda t: f"{t:%m/%d/%Y %I:%M %p}").encode()),
    "compact": ("a.csv", table(lambda t: f"{t:%Y%m%d%H%M}").encode()),
}


@pytest.mark.parametrize("kind", FILES)
def test_all_ways_to_write_a_table_are_one_series(kind: str, tmp_path: Path) -> None:
    name, data = FILES[kind]
    (tmp_path / name).write_bytes(data)
    found = hs.read_vectors(tmp_path / name, time="stamp", every="10min", gap="3h")
    assert found.lengths.tolist() == [7, 2]
    assert found.rows[:, 0].nan_to_num(-1).tolist() == [20.5, 21.25, 20.0, -1, -1, 22.5, 22.75, 19.5, 19.0]
    first, second = (in_utc(part) for part in found.index or [])
    assert first[[0, 3, -1]].tolist() == [START + timedelta(minutes=10 * k) for k in (0, 3, 6)]
    assert second.tolist() == TIMES[5:]
    zone = {"utc": UTC, "offsets": UTC, "offset": timezone(timedelta(hours=2))}.get(kind)
    assert {getattr(one, "tzinfo", None) for one in (found.index or [])[0].tolist()} == {zone}
    assert found.describe() == (
        f"{name}, column temp; 7 rows by stamp every 10min, 2 missing steps in 1 gap, 1 cut at gaps above 3h: 7 "
        "observations of 1 coordinate in 2 sequences of 2 to 7, 2 missing numbers"
    )


def in_utc(index: Any) -> Any:
    zoned = index.dtype.kind == "O"
    return np.array([one.astimezone(UTC).replace(tzinfo=None) for one in index], "M8[us]") if zoned else index


class Berlin(tzinfo):
    """The time of Berlin in the first nine months of 2026, for Pythons without a database of time zones."""

    def utcoffset(self, at: datetime | None) -> timedelta:
        return timedelta(hours=1 + (at is not None and at.replace(tzinfo=None) >= datetime(2026, 3, 29, 2)))

    def dst(self, at: datetime | None) -> timedelta:
        return self.utcoffset(at) - timedelta(hours=1)

    def tzname(self, at: datetime | None) -> str:
        return "CET"


BERLIN = Berlin()
ZONED = {
    "months": ("1mo", "01-01T00 02-01T00 04-01T00", "03-01 00:00:00+01:00", "05-01 00:00:00+02:00"),
    "ends": ("1mo", "01-31T00 03-31T00", "02-28 00:00:00+01:00", "04-30 00:00:00+02:00"),
    "days": ("1d", "03-27T00 03-28T00 03-30T00", "03-29 00:00:00+01:00", "03-31 00:00:00+02:00"),
    "24 hours": ("1d", "03-27T00 03-28T00 03-30T01", "03-29 00:00:00+01:00", "03-31 01:00:00+02:00"),
    "hours": ("1h", "03-29T00 03-29T01 03-29T04", "03-29 03:00:00+02:00", "03-29 05:00:00+02:00"),
}


@pytest.mark.parametrize("kind", ZONED)
def test_results_keep_the_zone_of_time_stamps(kind: str, tmp_path: Path) -> None:
    """Days in Berlin were the days before, in a UTC without a mark."""
    every, kept, filled, ahead = ZONED[kind]
    stamps = [datetime.fromisoformat(f"2026-{one}").replace(tzinfo=BERLIN) for one in kept.split()]
    table = {"t": stamps, "x": np.arange(len(stamps)) % 2 + 0.5}
    fit = hs.fit(table, 1, column="x", time="t", every=every)
    found = fit.predict()
    assert found.columns()["index"] == found.index.tolist()
    assert sorted({str(one)[5:] for one in found.index} - {str(one)[5:] for one in stamps}) == [filled]
    assert set(stamps) < set(found.index)
    assert str(fit.forecast().columns()["time"][0]) == f"2026-{ahead}"
    found.to_csv(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().startswith(f"index,state\n{stamps[0]},0\n")


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_of_each_library_keep_their_zone(library: str) -> None:
    frames, zone = pytest.importorskip(library), zoneinfo.ZoneInfo("Europe/Berlin")
    stamps = [datetime(2026, 3, day, tzinfo=zone) for day in (27, 28, 30)]
    make = frames.table if library == "pyarrow" else frames.DataFrame
    found = hs.fit(make({"t": stamps, "x": [0.5, 1.5, 0.5]}), 1, time="t", every="1d").predict()
    assert list(map(str, found.index)) == [f"2026-03-{day} 00:00:00+0{1 + day // 30}:00" for day in range(27, 31)]
    if library != "pyarrow":
        assert frames.DataFrame(found.columns())["index"].dtype == make({"t": stamps})["t"].dtype


def rows(*stamps: str) -> str:
    return "stamp,temp\n" + "".join(f"{stamp},{k}.5\n" for k, stamp in enumerate(stamps))


DAY = "2026-01-31"


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (rows(f"{DAY} 00:00", f"{DAY} 02:00", f"{DAY} 01:00"), {}, r"row 4, .*: time .* comes after .* pass sort=True"),
        (rows(f"{DAY} 02:00", f"{DAY} 02:30", f"{DAY} 02:00"), {"every": "30min"}, "if the clock was set back an hour"),
        (rows(f"{DAY} 00:00", f"{DAY} 00:00"), {}, r"row 3, .* repeats the time .* pass duplicates='first' or 'last'"),
        (rows(f"{DAY} 00:00", f"{DAY} 00:10"), {}, "fall into one step of 1h"),
        (rows(f"{DAY} 00:00", f"{DAY} 01:00", f"{DAY} 04:00"), {"every": None}, "vary from 1h to 3h; pass every='1h'"),
        (rows("2024-01-01", "2024-02-01", "2024-03-01"), {"every": None}, None),
        (rows(f"{DAY} 00:00", f"{DAY} 01:00Z"), {}, "row 3, .*: must have a time zone in all rows or in none"),
        (rows(f"{DAY} 00:00+24:00"), {}, "row 2, .* is not a time"),
        (rows(f"{DAY} 02:00Z", f"{DAY} 01:00Z"), {}, r"time 2026-01-31 01:00:00\+00:00 comes after"),
        (rows(f"{DAY} 00:00", "31.01.2026 01:00"), {}, "row 3, .* is not in the format of '2026-01-31 00:00'"),
        (rows("01/02/2026", "02/02/2026"), {}, "may begin with the day or the month"),
        (rows("13/02/2026", "02/14/2026"), {}, "the order of day and month differs"),
        (rows(f"{DAY} 00:00", ""), {}, "row 3, column stamp: has no time"),
        (rows("2026-02-30 00:00"), {}, "row 2, column stamp: 2026-02-30 00:00:00 is not a valid date and time"),
        (rows("noon"), {}, "row 2, column stamp: 'noon' is not a time"),
        (rows("0", "1", "2"), {}, "give every and gap as numbers in the same unit"),
        (rows(f"{DAY} 00:00", f"{DAY} 01:00"), {"every": 60}, "every: 60 does not fit column stamp, which holds dates"),
        (rows(f"{DAY} 00:00", f"{DAY} 23:00"), {"every": "1us"}, "every: 1us gives .* steps for 2 rows"),
        (rows(DAY), {"every": "often"}, "every: must be a duration"),
        (rows(DAY), {"gap": "-1d"}, "gap: must be a duration"),
        (rows(DAY), {"duplicates": "mean"}, "duplicates: must be 'first' or 'last'"),
        (rows(DAY), {"time": "stmp"}, "time: unknown 'stmp'; did you mean 'stamp'"),
        (rows(DAY), {"time": None}, r"every: needs time="),
        (rows(DAY), {"time": None, "every": None}, r"'2026-01-31'; if it holds time stamps, pass time='stamp'"),
    ],
)
def test_times_that_are_no_grid_are_refused_in_a_line(
    text: str, options: dict[str, Any], said: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    asked = {"time": "stamp", "every": "1h"} | options
    if said is None:
        assert len(hs.read_vectors(path, **asked)) == 1
        return
    with pytest.raises(InputError, match=said) as caught:
        hs.read_vectors(path, **asked)
    assert "\n" not in str(caught.value)


def test_disorder_and_duplicates_are_repaired_on_request(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(rows(f"{DAY} 02:00", f"{DAY} 00:00", f"{DAY} 02:00", f"{DAY} 01:00"))
    for which, last in (("first", 0.5), ("last", 2.5)):
        found = hs.read_vectors(path, time="stamp", every="1h", sort=True, duplicates=which)
        assert found.rows[:, 0].tolist() == [1.5, 3.5, last]
        assert "1 repeated row left out" in found.how


def test_jitter_and_drift_stay_on_the_grid() -> None:
    rng = np.random.default_rng(0)
    places = np.delete(np.arange(200), [20, 21, 90])
    micros = (places * 600_000_000 + rng.integers(-120_000_000, 120_000_000, len(places))).astype("datetime64[us]")
    found = hs.read_vectors({"t": micros, "x": places.astype(float)}, time="t", every="10min")
    assert found.rows[:, 0].isnan().nonzero().flatten().tolist() == [20, 21, 90]
    assert "from their time step" in found.how
    assert (found.index or [])[0][[0, -1]].tolist() == micros[[0, -1]].tolist()  # the stamps of the rows themselves


@pytest.mark.parametrize(
    ("every", "stamps", "filled", "ahead"),
    [
        ("1mo", "2024-01-31 2024-03-31 2024-04-30", "2024-02-29", "2024-05-31 2024-06-30"),
        ("3mo", "2023-06-30 2023-09-30 2024-03-31", "2023-12-31", "2024-06-30 2024-09-30"),
        ("1mo", "2025-01-30 2025-03-30", "2025-02-28", "2025-04-30 2025-05-30"),
        ("1mo", "2025-02-28 2025-03-30 2025-05-30", "2025-04-30", "2025-06-30 2025-07-30"),
        ("1mo", "2025-04-30T06 2025-06-30T06", "2025-05-31T06", "2025-07-31T06 2025-08-31T06"),
        ("1mo", "2025-02-28 2025-04-28", "2025-03-28", "2025-05-28 2025-06-28"),
        ("1mo", "2024-11-01 2025-01-01", "2024-12-01", "2025-02-01 2025-03-01"),
        ("1mo", "2025-01-05 2025-03-17", "2025-02-05", None),
        ("1y", "2023-02-28 2024-02-29 2026-02-28", "2025-02-28", "2027-02-28 2028-02-29"),
    ],
)
def test_ends_of_months_stay_ends_of_months(every: str, stamps: str, filled: str, ahead: str | None) -> None:
    """A missing February between ends of months was the second of March."""
    t = np.array(stamps.split(), "datetime64[us]")
    table = {"t": t, "x": np.arange(len(t)) % 2 + 0.5}
    index = (hs.read_vectors(table, time="t", every=every).index or [])[0]
    assert np.setdiff1d(index, t).tolist() == [np.datetime64(filled, "us").item()]
    found = hs.fit(table, 1, column="x", time="t", every=every).forecast(steps=2).columns()["time"]
    assert ahead is None or (found == np.array(ahead.split(), "datetime64[us]")).all()


def test_numbers_are_steps() -> None:
    found = hs.read_vectors({"t": [0.1, 0.2, 0.5], "x": [1.5, 2, 3]}, time="t", every=0.1)
    np.testing.assert_allclose((found.index or [])[0], [0.1, 0.2, 0.3, 0.4, 0.5])


def test_symbols_have_gaps_and_sequences_by_group(tmp_path: Path) -> None:
    path = tmp_path / "sky.csv"
    path.write_text("unit,t,sky\na,2026-01-01,sun\nb,2026-01-01,rain\na,2026-01-03,rain\nb,2026-01-02,rain\n")
    data = hs.SequenceData(path, column="sky", group="unit", time="t", every="1d")
    assert [one.tolist() for one in data] == [[1, hs.MISSING, 0], [0, 0]]
    assert data.names == ("a", "b")
    assert "4 rows by t every 1d, 1 missing step in 1 gap" in data.describe()
    assert data[[1]].names == ("b",)
    assert data[[1]].index[0].tolist() == [datetime(2026, 1, 1), datetime(2026, 1, 2)]
    assert [len(one) for one in data.cut(2).index] == [2, 1, 2]
    assert data.cut(2).names == ("a", "a", "b")
    assert hs.SequenceData(path, symbols_from=data) == data


def test_the_command_line_fits_and_answers_by_time(tmp_path: Path, call: Any) -> None:
    rng = np.random.default_rng(0)
    path, out = tmp_path / "sensors.csv", tmp_path / "fit.json"
    values = np.where(np.arange(80) // 20 % 2, 9, 0) + rng.normal(size=80)
    kept = [k for k in range(80) if k not in range(30, 36)]
    path.write_text("stamp,level\n" + "".join(f"{START + timedelta(minutes=10 * k)},{values[k]:.3f}\n" for k in kept))
    said = call("fit", path, "--time", "stamp", "--every", "10min", "--states", "2", "--out", out)
    assert said.code == 0
    assert "74 rows by stamp every 10min, 6 missing steps in 1 gap" in said.out
    assert hs.load_process(out).read_options.flags() == "--column level --time stamp --every 10min"  # type: ignore[union-attr]
    said = call("infer", out, path)
    assert "74 observations and 6 missing" in said.out
    hmm = hs.load_process(out)
    assert hs.filter_beliefs(hmm, path).beliefs.shape == (1, 80, 2)
