"""The experiments on Theorems 5.1 and 5.2 at the smallest scale: what they find, and that worse numbers are found worse."""

import copy
from functools import cache

import pytest

from hmmscope.experiments.experiment import SCALES, experiment_named
from hmmscope.experiments.slopes import point_slope_row, power_slopes, slope, slope_row, spread

NAMES = ("limits-theorem5.1", "limits-theorem5.2", "limits-precision")


@cache
def measured(name):
    """An experiment and its tables at the smallest scale, measured once."""
    experiment = experiment_named(name)
    sizes = experiment.measurements("smoke")
    tables = {}
    for group in experiment.groups:
        tables |= experiment.measure({}, group, sizes)
    return experiment, tables


def verdicts(experiment, tables):
    return {finding.title: finding.verdict for finding in experiment.findings(tables)}


@pytest.mark.parametrize("name", NAMES)
def test_claims_are_reproduced_at_the_smallest_scale(name):
    experiment, tables = measured(name)
    found = verdicts(experiment, tables)
    assert set(found.values()) <= {"reproduced", "found"}
    assert "reproduced" in found.values()
    figures = experiment.figures(tables)
    assert len({figure.name for figure in figures}) == len(figures) >= 3


#: Experiment, table, column, how to spoil it, title of the finding that must notice.
SPOILED = [
    ("limits-theorem5.1", "errors", "error", lambda row: row["error"] + 1e-9, "No error on deterministic HMMs"),
    ("limits-theorem5.1", "errors", "error", lambda row: row["error"] * 1e4, "Rounding only on orthogonal matrices"),
    ("limits-theorem5.1", "weights", "largest", lambda row: row["bound"] * 1.1, "Weights are O(‖b_0‖)"),
    (
        "limits-theorem5.2",
        "errors",
        "error",
        lambda row: row["bound"] * 1.1,
        "Error below 1/T with the constants of E.18",
    ),
    (
        "limits-theorem5.2",
        "growth",
        "value",
        lambda row: 1.5,
        "The error grows linearly in T, not exponentially in the depth",
    ),
    ("limits-theorem5.2", "errors", "error", lambda row: 1e-9, "No error with ReLU on 0/1 maps"),
    ("limits-theorem5.2", "depth", "first_wrong", lambda row: 7, "The depth is tight"),
    ("limits-theorem5.2", "weight-slopes", "value", lambda row: 2.0, "The largest weight is polynomial in T"),
    ("limits-precision", "smallest", "bits", lambda row: row["bits"] + 2, "2 log2 T + 4 bits"),
]


@pytest.mark.parametrize("name, table, column, spoil, title", SPOILED, ids=[entry[4] for entry in SPOILED])
def test_worse_numbers_are_not_called_reproduced(name, table, column, spoil, title):
    experiment, tables = measured(name)
    assert verdicts(experiment, tables)[title] == "reproduced"
    worse = copy.deepcopy(tables)
    for row in worse[table]:
        row[column] = spoil(row)
    if column == "value":
        for row in worse[table]:
            row.update(low=row["value"], high=row["value"])
    assert verdicts(experiment, worse)[title] == "not reproduced"


def test_a_slope_away_from_two_is_not_called_reproduced():
    experiment, tables = measured("limits-precision")
    worse = copy.deepcopy(tables)
    for row in worse["precision-slopes"]:
        row.update(value=1.0, low=0.9, high=1.1)
    assert verdicts(experiment, worse)["O(log T) bits"] == "not reproduced"


@pytest.mark.parametrize("name", NAMES)
def test_scales_have_the_same_sizes(name):
    experiment = experiment_named(name)
    keys = [experiment.measurements(scale).keys() for scale in SCALES]
    assert all(one == keys[0] for one in keys)
    assert experiment.plan("small") == {}


def test_slopes_are_of_the_known_lines():
    assert slope([1, 2, 3], [5, 3, 1]) == pytest.approx(-2)
    rows = [{"instance": i, "x": x, "y": (i + 1) * x**3} for i in range(3) for x in (1, 2, 4)]
    assert power_slopes(rows, "x", "y") == pytest.approx([3, 3, 3])
    zero = [{"instance": 0, "x": 1, "y": 0.0}, {"instance": 0, "x": 2, "y": 1.0}]
    assert power_slopes(zero, "x", "y") == []
    row = slope_row([1.0, 2.0, 3.0], name="a")
    assert row["name"] == "a"
    assert row["low"] < row["value"] == 2 < row["high"]
    line = point_slope_row([(x, 2 * x + 1) for x in range(5)])
    assert (line["low"], line["value"], line["high"]) == pytest.approx((2, 2, 2))
    bent = point_slope_row([(x, 2 * x + (x == 3)) for x in range(6)])
    assert bent["low"] < 2 < bent["high"]
    found = spread([{"k": 1, "error": e} for e in (1.0, 2.0, 6.0)], ("k",))
    assert found == [{"k": 1, "value": 2.0, "low": 1.0, "high": 6.0, "mean": 3.0, "instances": 3}]
