"""Where beliefs are drawn, what a panel takes and what it refuses, and effects as curves: each at its edge."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmmscope.errors import InputError
from hmmscope.lab.evidence import figure, records
from hmmscope.lab.evidence.effects import ALPHA, Effect, at_level, level
from hmmscope.lab.evidence.figure import Bars, DenseScatter, Explorer, ExplorerCurve, Figure, Heatmap, Lines, Series
from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.ledger import statistics_of
from hmmscope.lab.evidence.scaling_laws import ScalingLaw
from hmmscope.lab.evidence.scatter_data import (
    CERTAIN,
    BeliefPlane,
    belief_colours,
    over_three_states,
    pack_colours,
    unpack_colours,
    unpack_places,
)
from hmmscope.lab.evidence.verdicts import Gate, at_budget


@pytest.mark.parametrize(
    ("values", "are"),
    [
        ([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], True),
        ([[0.5, 0.5]], False),
        ([[0.25] * 4], False),
        ([[1.1, -0.1, 0.0]], False),
        ([[0.2, 0.3, 0.5], [0.2, 0.3, 0.4]], False),
        ([[0.2, 0.3, 0.5 + 1e-8]], False),
        ([[0.2, 0.3, 0.5 + 1e-10]], True),
    ],
)
def test_laws_over_three_states_are_told_from_other_vectors(values: Any, are: bool) -> None:
    assert over_three_states(values) is are


def test_beliefs_over_three_states_fill_a_triangle_in_the_square() -> None:
    """Its sides are equal and its middle is the square's; 1.15 of its width is seen; colours are those of certainty."""
    corners = np.eye(3)
    plane = BeliefPlane([*corners, [1 / 3] * 3])
    seen = unpack_places(plane.places(corners))
    sides = [float(np.linalg.norm(seen[i] - seen[j])) for i, j in ((0, 1), (1, 2), (0, 2))]
    assert sides == pytest.approx([1 / 1.15] * 3, abs=1e-3)
    assert (seen.min(0) + seen.max(0)) / 2 == pytest.approx([0.5, 0.5], abs=1e-3)
    assert plane.corners() == plane.places(corners)
    assert len(plane.places(corners, most=2)) == 2 * 4
    assert np.array_equal(unpack_colours(plane.colours(3)), CERTAIN)
    assert unpack_colours(plane.colours())[3] == pytest.approx(CERTAIN.mean(0), abs=1 / 255)
    assert belief_colours([[2.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]).tolist() == [
        np.minimum(2 * CERTAIN[0], 1).tolist(),
        [0] * 3,
    ]


def test_other_vectors_are_seen_from_where_they_vary_most() -> None:
    """Turning and moving them changes nothing but the sign of a direction; colours are ranks."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 5)) * [5.0, 2.0, 0.1, 0.1, 0.1]
    turned = values @ np.linalg.qr(rng.normal(size=(5, 5)))[0] + 3.0
    one, other = (unpack_places(BeliefPlane(given).places(given)) - 0.5 for given in (values, turned))
    for axis in (0, 1):
        assert min(np.abs(one[:, axis] - sign * other[:, axis]).max() for sign in (1, -1)) < 1e-3
    assert np.ptp(one[:, 0]) == pytest.approx(1 / 1.15, abs=1e-3)
    plane = BeliefPlane(values)
    assert plane.corners() == ""
    shades = unpack_colours(plane.colours())
    assert sorted(shades[:, 1]) == pytest.approx(np.linspace(0.1, 0.85, 40), abs=1 / 255)
    assert (np.argsort(shades[:, 2], kind="stable") == np.argsort(values[:, 2])).all()
    assert len(plane.colours(7)) == 7 * 4
    assert unpack_colours(BeliefPlane([[0.5, 0.5, 0.5, 0.5]] * 2).colours(1))[0] == pytest.approx(
        [0.1] * 3, abs=1 / 255
    )


PLACE, COLOURS = "AAAAAAAA", pack_colours([[0, 0, 0], [1, 1, 1]])
CLOUD: dict[str, Any] = {"title": "", "slider": "step", "frames": (1, 2), "places": (PLACE, PLACE), "colours": COLOURS}
CURVES = (ExplorerCurve(values=("a", "rnn"), x=(1,), y=(2,)), ExplorerCurve(values=("b", "lstm"), x=(1,), y=(2,)))
MANY: dict[str, Any] = {"title": "", "x_label": "", "y_label": "", "choices": ("task", "model"), "curves": CURVES}
LINES: dict[str, Any] = {"title": "", "x_label": "", "y_label": "", "series": (Series(name="s", x=(1,), y=(2,)),)}
BARS: dict[str, Any] = {"title": "", "y_label": "", "categories": ("a",), "series": (Series(name="s", y=(2,)),)}
HEAT: dict[str, Any] = {"title": "", "x_label": "", "y_label": "", "z_label": "", "x": (1,), "y": (1,), "z": ((1.0,),)}


@pytest.mark.parametrize(
    ("kind", "given", "other", "said"),
    [
        (DenseScatter, CLOUD, {"frames": ()}, "frames: must have at least one"),
        (DenseScatter, CLOUD, {"frames": (1,)}, "places: must have 1 parts"),
        (DenseScatter, CLOUD, {"places": (PLACE, PLACE[:4])}, r"places\[1\]: must have 8 characters"),
        (DenseScatter, CLOUD, {"places": (PLACE, PLACE[:-1] + "<")}, "must be base64"),
        (DenseScatter, CLOUD, {"places": ("A" * 7,) * 2, "colours": "A" * 7}, r"places\[0\]: must have 7 characters"),
        (DenseScatter, CLOUD, {"colours": "A" * 7 + "'"}, "must be base64"),
        (DenseScatter, CLOUD, {"corners": ("a", "b")}, "corners: must be empty or have three names"),
        (DenseScatter, CLOUD, {"corners": ("a", "b", "c")}, "outline: must have one point per corner"),
        (DenseScatter, CLOUD, {"outline": "AAAA"}, "outline: must have one point per corner"),
        (Explorer, MANY, {"choices": tuple("abcdef")}, "choices: must have 1 to 5 names"),
        (Explorer, MANY, {"y_min": 1, "y_max": 1}, "y_min: must be below y_max"),
        (Lines, LINES, {"series": ()}, "series: must have at least one"),
        (Lines, LINES, {"series": LINES["series"] * 2}, "series: must have distinct names"),
        (Lines, LINES, {"series": (Series(name="s", y=()),)}, "s: x: must have at least one value"),
        (Lines, LINES, {"y_min": 0.0, "log_y": True}, "y_min: must be > 0 on a logarithmic axis"),
        (Lines, LINES, {"y_max": 0.0, "log_y": True}, "y_min: must be > 0 on a logarithmic axis"),
        (Bars, BARS, {"categories": ()}, "categories: must have at least one"),
        (Bars, BARS, {"categories": ("a", "b")}, "s: y: must have 2 values"),
        (Bars, BARS, {"series": LINES["series"]}, "s: x: must be empty in Bars"),
        (Bars, BARS, {"y_min": 2.0, "y_max": 1.0}, "y_min: must be below y_max"),
        (Heatmap, HEAT, {"x": ()}, "x: must have at least one label"),
        (Heatmap, HEAT, {"y": ()}, "y: must have at least one label"),
        (Heatmap, HEAT, {"z": ()}, "z: must have 1 rows"),
        (Heatmap, HEAT, {"z": ((1.0, 2.0),)}, r"z\[0\]: must have 1 columns"),
        (Heatmap, HEAT, {"z": ((np.inf,),)}, r"z\[0\]\[0\]: must be finite"),
        (Heatmap, HEAT, {"z_min": 1.0, "z_max": 1.0}, "z_min: must be below z_max"),
        (Series, {"name": "s", "y": (1.0,)}, {"x": (1.0, 2.0)}, "s: x: must have 1 values"),
        (Series, {"name": "s", "y": (1.0,)}, {"low": (), "high": (1.0,)}, "s: low: must have 1 values"),
        (Series, {"name": "s", "y": (1.0,)}, {"low": (2.0,), "high": (1.0,)}, r"s: low\[0\]: must not be above high"),
        (Figure, {"name": "f", "title": "", "caption": "", "panels": (1,)}, {}, r"panels\[0\]: must be Lines, Bars"),
        (Figure, {"name": "f" * 101, "title": "", "caption": "", "panels": (1,)}, {}, "name: must be 1 to 100"),
    ],
)
def test_what_a_panel_cannot_show_is_refused(kind: Any, given: Any, other: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        kind(**given | other)


def test_what_is_just_right_is_taken() -> None:
    cloud = DenseScatter(**CLOUD | {"corners": ("a", "b", "c"), "outline": "A" * 12})
    five = Explorer(
        **MANY | {"choices": tuple("abcde"), "curves": (ExplorerCurve(values=(1, 2, 3, 4, 5), x=(1,), y=(2,)),)}
    )
    heat = Heatmap(**HEAT | {"z": ((None,),)})
    same = Series(name="s", y=(1.0,), low=(1.0,), high=(1.0,))
    shown = Figure(name="f" * 100, title="", caption="", panels=(cloud, five, heat, Bars(**BARS | {"series": (same,)})))
    assert Figure.from_data(shown.to_data()) == shown
    assert (cloud.frames, five.overlay, heat.x) == (("1", "2"), "e", ("1",))


def test_the_reader_chooses_among_curves() -> None:
    """At first the values of the first curve that has one; numbers go by size, words as they come."""
    sizes = (("2", "rnn"), ("10", "rnn"), ("1e1", "gru"), ("", "lstm"))
    made = [ExplorerCurve(values=one, x=(0.0, 1.0), y=(1.0, -1.0), low=(0.5, -2.0), high=(2.0, 0.0)) for one in sizes]
    panel = Explorer(**MANY | {"choices": ("size", "model"), "curves": made[::-1]})
    assert (panel.overlay, panel.options("size"), panel.options("model")) == (
        "model",
        ("2", "1e1", "10"),
        ("lstm", "gru", "rnn"),
    )
    assert (panel.first("size"), panel.first("model")) == ("1e1", "lstm")
    assert (panel.num_hidden, panel.num_cut) == (0, 0)
    points = Series(name="s", x=(0.0, 1.0, 1.0), y=(1.0, 0.0, 1.0), low=(0.5, -1.0, 0.0), high=(2.0, 1.0, 1.0))
    for (log_x, log_y), counts in {(0, 0): (0, 0), (1, 0): (1, 0), (0, 1): (1, 2), (1, 1): (2, 2)}.items():
        for shown in (
            Lines(**LINES | {"series": (points,), "log_x": bool(log_x), "log_y": bool(log_y)}),
            Explorer(**MANY | {"curves": (points.choice("a", "b"),), "log_x": bool(log_x), "log_y": bool(log_y)}),
        ):
            assert (shown.num_hidden, shown.num_cut) == counts


def test_effects_are_curves_with_the_intervals_that_they_have() -> None:
    known, exact = Effect(value=1.0, low=0.5, high=1.5, error=0.25), Effect(value=2.0)
    curve = Series.of([known, exact], "s", "model", x=[0, 1])
    assert (curve.y, curve.low, curve.high, curve.x, curve.role) == (
        (1.0, 2.0),
        (0.5, 2.0),
        (1.5, 2.0),
        (0, 1),
        "model",
    )
    assert (Series.of([exact], "s").low, Series.of([exact], "s").high, Series.of([exact], "s").x) == (None, None, ())
    chosen = curve.choice("a", "", name="n")
    assert (chosen.values, chosen.low, chosen.role, chosen.name) == (("a", ""), curve.low, "model", "n")


def test_effects_move_and_turn_with_their_intervals() -> None:
    effect = Effect(value=1.0, low=0.5, high=1.75, error=0.3)
    turned, moved = effect.mirrored(2.0), effect.shifted(0.5)
    assert (turned.value, turned.low, turned.high) == (3.0, 2.25, 3.5)
    assert (moved.value, moved.low, moved.high) == (1.5, 1.0, 2.25)
    assert Effect(value=1.0).mirrored().low is None
    assert effect.short() == "1.0 (0.5 to 1.8)"
    with at_level(0.2):
        assert level() == 0.2
    assert level() == ALPHA


def test_where_one_more_value_would_lie() -> None:
    """By the textbook: mean +- t s sqrt(1 + 1/n)."""
    values = [1.0, 2.0, 4.0, 5.0]
    found, spread = Effect.predicted(values), float(np.std(values, ddof=1))
    half = 3.182446305284263 * spread * (1 + 1 / 4) ** 0.5
    assert (found.value - found.low, found.high - found.value) == pytest.approx((half, half))
    assert Effect.predicted([2.0, 2.0]).low is None
    with pytest.raises(ValueError, match="no seed"):
        Effect.pooled([None, None])


def test_gates_stand_open_at_their_edges() -> None:
    sure = Effect(value=0.5, low=0.1, high=0.9, error=0.2)
    assert [Gate.learned(sure, margin, "c").is_open for margin in (0.5, 0.6)] == [True, False]
    assert not Gate.learned(Effect(value=0.5, low=0.0, high=1.0, error=0.2), 0.1, "c").is_open
    assert not Gate.learned(Effect(value=0.5), 0.1, "c").is_open
    assert [Gate.regime(value, 1.0, 2.0, "r").is_open for value in (0.99, 1.0, 2.0, 2.01)] == [False, True, True, False]
    assert [Gate.headroom(value, 1.0, "r").is_open for value in (1.0, 0.99)] == [True, False]
    near = {"a": {"tokens": 100.0, "flops": 1.0}, "b": {"tokens": 105.0, "flops": 2.0}}
    assert Gate.matched(near).text == "the compared models were trained with equal tokens"
    assert "tokens by a factor of 1.1, flops by a factor of 2" in Gate.matched(near, 0.04).text
    assert not Gate.matched({}).is_open
    assert not Gate.matched({"a": {"tokens": 0.0}, "b": {"tokens": 1.0}}).is_open
    assert at_budget("not reproduced", {"tokens": 5.0}, {"tokens": 5.0}, True) == ("not reproduced", "")
    less = at_budget("not reproduced", {"tokens": 4.0}, {"tokens": 5.0}, True)
    assert less == ("not at this budget", "at 4 tokens (the paper: 5)")
    assert at_budget("reproduced", {"tokens": 4.0}, {})[1] == "at 4 tokens (the paper: not stated)"
    assert at_budget("reproduced", {}, {"tokens": 5.0})[1] == "at an unrecorded budget (the paper: not stated)"
    assert figure.MOST_CHOICES == 5


def test_a_law_needs_three_budgets_and_two_degrees_of_freedom() -> None:
    """A level for each instance, a slope and a rate; hidden outcomes count for none."""
    seen = [
        ScalingLaw.BudgetPoint(x, instance, x + 0.1 * instance + 0.01 * x * x)
        for x in (1.0, 2.0, 3.0)
        for instance in (0, 1)
    ]
    assert ScalingLaw.of(seen) is not None
    assert ScalingLaw.of(seen[:-1]) is None
    assert ScalingLaw.of([*seen[:-1], seen[-1]._replace(hidden=True)]) is None
    assert ScalingLaw.of([one._replace(x=min(one.x, 2.0)) for one in seen]) is None


def test_what_stands_beside_a_verdict() -> None:
    known: dict[str, Any] = {"title": "", "text": "", "verdict": "inconclusive", "value": 1.0, "low": 0.0, "high": 2.0}
    enough = Finding(**known, p=0.0312, q=0.2, seeds_needed=7)
    assert statistics_of(enough) == "p 0.031, q 0.2, 7 seeds would decide the claim"
    assert statistics_of(Finding(**known, p=0.0312)) == "p 0.031, more seeds would not decide the claim"
    assert statistics_of(Finding(title="", text="", verdict="inconclusive")) == ""
    assert statistics_of(Finding(**known | {"verdict": "reproduced"}, seeds_needed=7)) == ""


def test_records_of_more_than_a_mebibyte_are_refused(tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text("#" * ((1 << 20) + 1))
    with pytest.raises(InputError, match=r"long\.toml: "):
        records._read(tmp_path / "long.toml")
    (tmp_path / "long.toml").write_text("#" * (1 << 20))
    assert records._read(tmp_path / "long.toml") == {}
