"""Panels from rows: means over seeds and cells, by hand."""

import pytest

from hmmscope.lab.evidence.panels import bar, curve, heatmap, level, lines
from hmmscope.lab.evidence.rows import Rows


def test_a_heat_map_has_the_mean_of_each_cell_and_none_where_there_are_no_rows() -> None:
    rows = Rows(
        {"seed": seed, "x": x, "y": y, "value": 10.0 * x + y + seed}
        for seed in (0, 1)
        for x, y in ((2, 3), (1, 3), (1, 5))
    )
    found = heatmap("t", rows, "x", "y", x_label="x", y_label="y", z_label="z")
    assert (found.x, found.y) == (("1", "2"), ("3", "5"))
    assert found.z == ((13.5, 23.5), (15.5, None))


def test_a_curve_is_sorted_and_has_means_over_seeds_with_their_ends() -> None:
    rows = Rows({"seed": seed, "x": x, "value": x + 0.5 * seed} for seed in (0, 1, 2) for x in (3, 1))
    found = curve(rows, "x", "mine", "model")
    assert (found.x, found.role) == ((1, 3), "model")
    assert found.y == pytest.approx((1.5, 3.5))
    assert all(low < y < high for low, y, high in zip(found.low, found.y, found.high, strict=True))
    bare = curve(rows, "x", "mine", bands=False)
    assert (bare.low, bare.high) == (None, None)
    assert curve(Rows([{"seed": 0, "x": 1, "value": None}]), "x", "none") is None
    own = curve(Rows([{"x": 2, "value": 1.0}, {"x": 1, "value": None}]), "x", "own", pool=False)
    assert (own.x, own.y, own.low) == ((2,), (1.0,), None)


def test_a_level_goes_from_end_to_end_and_what_is_not_there_is_left_out() -> None:
    flat = level(0.5, (0, 9), "chance")
    assert (flat.x, flat.y, flat.role) == ((0, 9), (0.5, 0.5), "baseline")
    assert lines("t", None, flat, x_label="x", y_label="y").series == (flat,)


def test_bars_stand_in_the_order_of_their_categories() -> None:
    rows = Rows(
        {"seed": seed, "kind": kind, "value": value + seed}
        for seed in (0, 1)
        for kind, value in (("b", 2.0), ("a", 1.0))
    )
    found = bar(rows, "kind", ["b", "a"], "mine")
    assert found.y == pytest.approx((2.5, 1.5))
