"""Effects: intervals over seeds and over samples, their laws against SciPy and against coverage."""

import math

import numpy as np
import pytest
import scipy.stats

from hmmscope.lab.evidence.effects import Effect, EstimateWithError, false_discovery, quantile, two_sided
from hmmscope.lab.evidence.rows import Rows


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 29, 30, 199])
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 2.5, 8.0])
def test_student_is_that_of_scipy(degrees: int, t: float) -> None:
    assert two_sided(t, degrees) == pytest.approx(2 * scipy.stats.t.sf(t, degrees), abs=1e-13)
    assert quantile(degrees) == pytest.approx(scipy.stats.t.ppf(0.975, degrees), rel=1e-9)


def test_normal_law_has_no_degrees() -> None:
    assert quantile(0) == pytest.approx(1.959963984540054, rel=1e-12)
    assert two_sided(1.0, 0) == pytest.approx(2 * scipy.stats.norm.sf(1.0), rel=1e-12)


def test_interval_over_seeds_is_students() -> None:
    values = [1.0, 2.0, 4.0, 5.5]
    effect = Effect.pooled(values, "layers")
    low, high = scipy.stats.t.interval(0.95, 3, np.mean(values), scipy.stats.sem(values))
    assert (effect.value, effect.low, effect.high) == pytest.approx((3.125, low, high), rel=1e-9)
    assert effect.p_value(1.0) == pytest.approx(scipy.stats.ttest_1samp(values, 1.0).pvalue, rel=1e-9)
    assert (effect.num_seeds, effect.num_missing) == (4, 0)


def test_noise_of_samples_widens_an_interval_of_seeds_that_agree() -> None:
    apart = Effect.pooled([1.0, 3.0, 5.0])
    assert (
        Effect.pooled([EstimateWithError(1.0, 1e-6), EstimateWithError(3.0), EstimateWithError(5.0)]) == apart
    )  # the seeds are wider
    agree = Effect.pooled([EstimateWithError(2.0, 0.3), EstimateWithError(2.0, 0.3), EstimateWithError(2.0, 0.3)])
    assert agree.low == pytest.approx(2.0 - 1.959964 * 0.3 / math.sqrt(3), rel=1e-6)


def test_no_interval_has_zero_width() -> None:
    equal = Effect.pooled([3, 3, 3])
    assert (equal.low, equal.high, equal.p_value(0)) == (None, None, None)
    counted = Effect.pooled([3, 3, 3], resolution=1.0)
    assert (counted.low, counted.high) == pytest.approx((2.5, 3.5))
    tiny = Effect.pooled([0.1 + 0.2, 0.3, 0.3])  # equal but for rounding
    assert tiny.low is None


def test_missing_seeds_are_counted_and_none_at_all_refused() -> None:
    assert Effect.pooled([1.0, None, 2.0]).num_missing == 1
    with pytest.raises(ValueError, match="no seed has a value"):
        Effect.pooled([None, None])


def test_student_interval_covers_as_often_as_it_says() -> None:
    drawn = np.random.default_rng(0).normal(size=(4000, 3))
    hits = 0
    for row in drawn:
        effect = Effect.pooled(list(row))
        hits += effect.low <= 0 <= effect.high
    assert abs(hits / 4000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)  # four standard errors


def test_prediction_interval_holds_one_more_value_as_often_as_it_says() -> None:
    drawn = np.random.default_rng(1).normal(size=(4000, 6))
    hits = 0
    for row in drawn:
        effect = Effect.predicted(list(row[:5]))
        hits += effect.low <= row[5] <= effect.high
    assert abs(hits / 4000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)


@pytest.mark.parametrize(("right", "count"), [(0, 5), (5, 5), (3, 7), (36, 36), (1, 100)])
def test_share_is_clopper_and_pearson(right: int, count: int) -> None:
    effect = Effect.share([True] * right + [False] * (count - right))
    exact = scipy.stats.binomtest(right, count).proportion_ci(0.95, method="exact")
    assert (effect.low, effect.high) == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_false_discovery_is_benjamini_and_hochberg() -> None:
    p = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.5, "e": None}
    expected = scipy.stats.false_discovery_control([0.01, 0.04, 0.03, 0.5])
    found = false_discovery(p)
    assert [found[name] for name in "abcd"] == pytest.approx(list(expected))
    assert found["e"] is None


def test_mirror_and_more_seeds() -> None:
    effect = Effect.pooled([1.0, 2.0, 3.0])
    turned = effect.mirrored(0.5)
    assert (turned.value, turned.low, turned.high) == (-1.0, 1 - effect.high, 1 - effect.low)
    more = effect.with_seeds(12)
    assert more.error == pytest.approx(effect.error / 2)
    assert more.high - more.low == pytest.approx(2 * quantile(11) * more.error)


@pytest.mark.parametrize(
    ("effect", "text"),
    [
        (Effect(value=0.5432, low=0.48, high=0.6012, unit="layers"), "0.54 [0.48, 0.60] layers"),
        (Effect(value=12.3, low=-5.0, high=40.0), "12 [-5, 40]"),
        (Effect(value=0.123456), "0.123"),
    ],
)
def test_one_way_to_print(effect: Effect, text: str) -> None:
    assert str(effect) == text


def test_rows_are_chosen_grouped_and_pooled() -> None:
    rows = Rows(
        {"seed": s, "layer": layer, "model": m, "accuracy": s + layer + (m == "b")}
        for s in (0, 1)
        for layer in (0, 1)
        for m in "ab"
    )
    assert len(rows.where(model="a")) == len(rows.where(model={"a"})) == 4
    assert rows.where(model="a", nothing=1) == []
    assert rows.one(seed=0, layer=1, model="b")["accuracy"] == 2
    with pytest.raises(LookupError, match="4 rows with"):
        rows.one(model="a")
    assert rows.per_seed(lambda own: sum(row["accuracy"] for row in own)) == {0: 4, 1: 8}
    (first, second) = rows.where(model="a").pool("layer", value="accuracy")
    assert (first["layer"], first["accuracy"], first["seeds"]) == (0, 0.5, 2)
    assert second["accuracy"] == 1.5
    assert second["high"] - 1.5 == pytest.approx(quantile(1) * 0.5)


def test_one_seed_keeps_the_interval_over_its_samples() -> None:
    rows = Rows([{"x": 1, "value": 0.4, "low": 0.3, "high": 0.6}])
    assert rows.pool("x") == [{"x": 1, "value": 0.4, "low": 0.3, "high": 0.6, "seeds": 1}]


def test_the_law_of_a_wide_noise_has_no_tail_of_its_own() -> None:
    """Three seeds that agree closely, each known to 0.5: the noise gives the wider interval, Student's law the larger p."""
    found = Effect.pooled([EstimateWithError(9.0, 0.5), EstimateWithError(10.0, 0.5), EstimateWithError(11.0, 0.5)])
    wide = Effect.pooled([EstimateWithError(9.9, 0.5), EstimateWithError(10.0, 0.5), EstimateWithError(10.1, 0.5)])
    assert wide.degrees == 0
    student = Effect.pooled([9.9, 10.0, 10.1])
    assert wide.p_value() == pytest.approx(student.p_value())
    assert two_sided(10 / (wide.error or 0.0), 0) < 1e-100
    assert found.degrees == 2
    assert found.p_value() == pytest.approx(Effect.pooled([9.0, 10.0, 11.0]).p_value())
