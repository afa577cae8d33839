"""Estimates of rows by seed, and their differences."""

import math
from dataclasses import replace

import pytest

from hmmscope.lab.evidence.effects import EstimateWithError, quantile
from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.ledger import statistics_of
from hmmscope.lab.evidence.rows import Rows


def test_an_estimate_has_the_error_of_its_row_or_of_its_interval() -> None:
    rows = Rows([
        {"seed": 0, "value": 1.0, "error": 0.5, "low": 0.0, "high": 9.0},
        {"seed": 1, "value": 2.0, "low": 2.0 - 2 * quantile(0), "high": 2.0 + 2 * quantile(0)},
        {"seed": 2, "value": 3.0},
        {"seed": 3, "value": None, "error": 0.1},
    ])  # fmt: skip
    found = rows.estimates()
    assert found[0] == EstimateWithError(1.0, 0.5)
    assert found[1] == pytest.approx((2.0, 2.0))
    assert found[2] == EstimateWithError(3.0, 0.0)
    assert found[3] is None
    effect = rows.effect(unit="nats")
    assert (effect.value, effect.num_seeds, effect.num_missing, effect.unit) == (pytest.approx(2.0), 3, 1, "nats")


def test_several_rows_of_a_seed_are_averaged() -> None:
    rows = Rows({"seed": 0, "value": value, "error": 0.3} for value in (1.0, 2.0, 6.0))
    assert rows.estimates()[0] == pytest.approx((3.0, 0.3 / math.sqrt(3)))


def test_noise_of_the_samples_counts_where_seeds_agree() -> None:
    rows = Rows({"seed": seed, "value": 1.0, "error": 0.3} for seed in range(3))
    effect = rows.effect()
    assert effect.high - 1 == pytest.approx(quantile(0) * 0.3 / math.sqrt(3))
    exact = Rows({"seed": seed, "value": 1.0} for seed in range(3)).effect()
    assert exact.low is None


def test_differences_are_of_the_same_seed() -> None:
    one = Rows({"seed": seed, "value": 10.0 * seed, "error": 0.3} for seed in (0, 1, 2))
    other = Rows({"seed": seed, "value": 10.0 * seed - 1, "error": 0.4} for seed in (2, 1))
    found = one.estimates() - other.estimates()
    assert found == {0: None, 1: EstimateWithError(1.0, 0.5), 2: EstimateWithError(1.0, 0.5)}
    effect = one.less(other)
    assert (effect.value, effect.num_seeds, effect.num_missing) == (1.0, 2, 1)
    assert one.less(Rows()) is None
    assert Rows().effect() is None
    assert Rows([{"seed": 0, "value": None}]).effect() is None


def test_another_column() -> None:
    rows = Rows({"seed": 0, "accuracy": value, "low": 0.4, "high": 0.6} for value in (0.5,))
    assert rows.estimates("accuracy")[0] == pytest.approx((0.5, 0.1 / quantile(0)))
    assert rows.effect("missing") is None


def test_a_small_sample_is_shown_with_its_sign_bound_and_its_groups() -> None:
    """Student's interval covers less than it says of seeds that fall into two groups."""
    finding = Finding(title="t", text="", verdict="reproduced", p=0.01, sign_low=0.25, sign_high=0.5, bimodal=True)
    assert statistics_of(finding) == "p 0.01, sign bound 0.25 to 0.5, bimodal: the seeds fall into two groups"
    assert statistics_of(replace(finding, sign_high=None, bimodal=False)) == "p 0.01, sign bound 0.25"
