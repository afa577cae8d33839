"""The cost curve: what is measured, and the exponents fitted to it. No time is asserted."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import cli_cases
from bench import curve
from bench.__main__ import main
from cli_cases import assert_one_line, call  # noqa: F401 - a fixture

TINY = {"length": [2, 4], "batch": [1, 2], "states": [2, 20], "symbols": [2, 3]}
SMALL = {"batch": 2, "length": 3, "states": 3, "symbols": 2}


def rows_of(work: str, axis: str, sizes: list[int], exponent: float, constant: float = 1e-6) -> list[dict]:
    return [
        {"work": work, "axis": axis, axis: size, "seconds": constant * size**exponent, "working_set": size**2}
        for size in sizes
    ]


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 2.7])
def test_an_exponent_comes_back(exponent: float) -> None:
    rows = rows_of("filtering, float64", "length", [8, 16, 64, 256], exponent)
    (found,) = curve.exponents(rows, None)
    assert found["exponent"] == pytest.approx(exponent, abs=1e-12)
    assert found["expected"] == 1
    assert found["residual"] < 1e-12
    assert found["steps"] == pytest.approx([exponent] * 3)
    assert (found["first"], found["last"]) == (8, 256)


def test_only_what_fits_the_cache_and_one_routine_is_fitted() -> None:
    """Beyond the cache the cost may rise faster; up to 32 states another routine works."""
    rows = rows_of("filtering, float64", "states", [4, 16, 32, 64, 128], 2) + rows_of(
        "filtering, float64", "states", [256, 512], 3
    )
    for row in rows[:3]:
        row["seconds"] = 1.0
    (found,) = curve.exponents(rows, 128**2)
    assert (found["first"], found["last"], found["expected"]) == (64, 128, 2)
    assert found["exponent"] == pytest.approx(2, abs=1e-12)
    (whole,) = curve.exponents(rows, None)
    assert whole["last"] == 512
    assert whole["exponent"] > 2.5
    assert curve.exponents(rows, 64**2) == []  # one point has no slope
    (sampling,) = curve.exponents(rows_of("sampling", "states", [4, 8, 512], 0), None)
    assert (sampling["first"], sampling["expected"]) == (4, 0)


def test_every_point_is_measured() -> None:
    found = list(curve.points(TINY, SMALL))
    assert len(found) == 8 * len(curve.WORK)
    rows = curve.measure(found, repeats=2, threads=1)
    for point, row in zip(found, rows, strict=True):
        assert (row["work"], row["axis"]) == (point.work, point.axis)
        assert 0 < row["fastest"] <= row["seconds"] <= row["slowest"]
        tokens = row["batch"] * row["length"]
        assert row["nanoseconds_per_token"] == pytest.approx(1e9 * row["seconds"] / tokens)
        assert row["nanoseconds_per_token_per_square"] == pytest.approx(
            row["nanoseconds_per_token"] / row["states"] ** 2
        )
        assert [row[axis] for axis in SMALL if axis != point.axis] == [
            SMALL[axis] for axis in SMALL if axis != point.axis
        ]
    said = curve.in_words(rows, curve.exponents(rows, None))
    assert sum("exponent" in line for line in said) == 4 * len(curve.WORK) - 2  # filters have one point above 16 states


def test_working_sets() -> None:
    """float64 filter: S (S + V) + 2 B S numbers of 8 bytes; sampler: S rows of 2^ceil(log2) entries of 4 bytes."""
    sizes = {"batch": 10, "length": 5, "states": 6, "symbols": 3}
    found = {point.work: point.working_set for point in curve.points({"length": [5]}, sizes)}
    assert found == {
        "filtering, float64": 8 * (6 * 9 + 2 * 10 * 6),
        "filtering, float32": 4 * (6 * 9 + 2 * 10 * 6),
        "sampling": 4 * 6 * (8 + 4),
    }


def test_the_command(call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve, "AXES", TINY)
    monkeypatch.setattr(curve, "BASE", SMALL)
    monkeypatch.setattr(cli_cases, "main", main)
    called = call("curve", "--repeats", 1, "--out", "curve.json")
    assert (called.code, called.error) == (0, "")
    table = json.loads(Path("curve.json").read_text())
    assert len(table["rows"]) == 8 * len(curve.WORK)
    assert {fit["threads"] for fit in table["exponents"]} == {1}
    assert "sampling, by states, threads 1" in called.out
    assert_one_line(call("curve", "--out", "curve.json"), 3)
    assert_one_line(call("curve", "--peers"), 2)
    assert_one_line(call("curv"), 2)


def test_the_last_cache_is_read() -> None:
    found = curve.last_cache()
    assert found is None or found >= 2**15
