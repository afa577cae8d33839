"""Means over seeds: Student's intervals by hand and by simulation, and rows of tables put together."""

import math

import numpy as np
import pytest
from scipy import stats

from hmmscope.claims.old import is_above, verdict_of
from hmmscope.evidence.pooling import by_seed, pool_rows, pool_values, student_quantile


@pytest.mark.parametrize("degrees", [*range(1, 32), 100, 1000])
def test_student_quantiles(degrees: int) -> None:
    assert student_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), abs=1e-3)  # as the docstring says


def test_interval_by_hand() -> None:
    found = pool_values([1.0, 2.0, 4.5])
    deviation = math.sqrt(((1 - 2.5) ** 2 + (2 - 2.5) ** 2 + (4.5 - 2.5) ** 2) / 2)
    assert found.value == 2.5
    assert found.high - found.value == pytest.approx(4.3027 * deviation / math.sqrt(3), rel=1e-12)
    assert found.low + found.high == pytest.approx(5.0, rel=1e-12)


def test_intervals_of_three_seeds_cover_the_mean() -> None:
    drawn = np.random.default_rng(0).normal(3.0, 2.0, (4000, 3))
    covered = np.mean([found.low <= 3.0 <= found.high for found in map(pool_values, drawn.tolist())])
    assert covered == pytest.approx(0.95, abs=0.014)  # four standard errors of 4000 draws


def test_one_seed_keeps_its_own_interval() -> None:
    assert pool_values([2.0], (1.0, 2.5)) == (2.0, 1.0, 2.5, 1)
    assert pool_values([2.0]) == (2.0, 2.0, 2.0, 1)
    rows = [{"x": 1, "value": 2.0, "low": 1.0, "high": 2.5}]
    assert pool_rows(rows, ["x"]) == [{"x": 1, "value": 2.0, "low": 1.0, "high": 2.5, "seeds": 1}]


def test_rows_are_pooled_by_keys_and_averaged_within_a_seed_first() -> None:
    rows = [
        {"seed": 0, "x": 1, "value": 1.0},
        {"seed": 0, "x": 1, "value": 3.0},  # seed 0 has mean 2
        {"seed": 1, "x": 1, "value": 4.0},
        {"seed": 0, "x": 2, "value": None},
        {"seed": 1, "x": 2, "value": 7.0},
    ]
    first, second = pool_rows(rows, ["x"])
    assert (first["x"], first["value"], first["seeds"]) == (1, 3.0, 2)
    assert first["high"] - 3.0 == pytest.approx(12.7062 * math.sqrt(2) / math.sqrt(2), rel=1e-12)
    assert (second["x"], second["value"], second["seeds"]) == (2, 7.0, 1)
    assert pool_rows(rows, ["x"], "missing") == []


def test_a_number_of_each_seed() -> None:
    rows = [{"seed": seed, "value": value} for seed, value in ((0, 1.0), (0, 5.0), (1, 2.0), (1, 8.0), (2, 3.0))]
    found = by_seed(rows, lambda of: of[-1]["value"] - of[0]["value"] if len(of) > 1 else None)
    assert found is not None
    assert found == pool_values([4.0, 6.0])
    assert by_seed(rows, lambda of: None) is None


def test_one_value_without_an_interval_decides_nothing() -> None:
    assert not pool_values([2.0]).decides
    assert pool_values([2.0], (1.5, 2.5)).decides
    assert pool_values([2.0, 2.0]).decides  # equal in two seeds is a result
    assert is_above(pool_values([2.0]), "It is.", "").verdict == "inconclusive"
    assert "no interval" in is_above(pool_values([2.0]), "It is.", "").text
    assert is_above(pool_values([2.0, 2.0]), "It is.", "").verdict == "reproduced"


def test_the_interval_decides() -> None:
    assert verdict_of(0.1, 0.2) == "reproduced"
    assert verdict_of(-0.2, -0.1) == "not reproduced"
    assert verdict_of(-0.1, 0.1) == "inconclusive"
    assert verdict_of(0.0, 0.1) == "inconclusive"
    assert verdict_of(0.0, 0.0) == "not reproduced"
    assert verdict_of(1.5, 2.0, above=1.0) == "reproduced"
