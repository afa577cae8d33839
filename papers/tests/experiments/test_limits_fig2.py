"""Claims on learning curves, each judged on made-up tables in which it comes out each way."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from hmmscope.lab.evidence.rows import Rows
from hmmscope_papers.limits import fig2 as limits_fig2
from hmmscope_papers.limits.fig2 import FOUR
from limits_cases import NOISE, SEEDS, closed, judged, swapped, verdict

Tables = dict[str, Any]


def curves(
    final: Callable[[int], float], converged_at: Callable[[int], int], tasks: tuple[str, ...] = FOUR, start: float = 0.8
) -> Tables:
    """Ten epochs of 100 sequences; the loss is 0.8 before an epoch, `final` of the number of layers from it on."""
    rows = []
    for task in tasks:
        for n in (0, 1, 2):
            for seed in SEEDS:
                for epoch in range(1, 11):
                    value = final(n) + 0.001 * (1 + n) * NOISE[seed] if epoch >= converged_at(n) else start
                    facts = {"task": task, "layers": n, "seed": seed, "epoch": epoch, "sequences": 100 * epoch}
                    rows.append(
                        facts | {"position": 4, "value": value, "positions": [4, 63], "distances": [value, value]}
                    )
    references = [
        {"task": task, "seed": seed, "predictor": "constant", "position": 4, "value": 0.8}
        for task in tasks
        for seed in SEEDS
    ]
    return {"epochs": rows, "references": references}


def test_crossings_are_intervals() -> None:
    def rows(*values: float | None) -> Rows:
        return Rows({"sequences": 100 * (i + 1), "value": value} for i, value in enumerate(values))

    assert limits_fig2.crossing(rows(0.8, 0.05, 0.04)) == (100, 200)
    assert limits_fig2.crossing(rows(0.05, 0.04)) == (0, 100)
    assert limits_fig2.crossing(rows(0.05, 0.2, 0.04)) == (200, 300)  # it has to stay below
    assert limits_fig2.crossing(rows(0.8, 0.1)) == (200, None)
    assert limits_fig2.crossing(rows(None, 0.8, 0.01)) == (200, 300)
    assert limits_fig2.crossing(rows(None)) is None


def test_bounds_alone_count_where_they_tell_the_side() -> None:
    assert limits_fig2.doublings((1.0, 2.0)) == 1.5
    assert limits_fig2.doublings((1.0, None)) == 1.0  # at least one doubling
    assert limits_fig2.doublings((-1.0, None)) is None  # it may be anything
    assert limits_fig2.doublings((None, -1.0)) == -1.0
    assert limits_fig2.doublings((None, 1.0)) is None


def test_the_rnn_converges_faster() -> None:
    name = "limits-rnn-converges-faster"
    faster = judged(name, curves(lambda n: 0.01, lambda n: 3 if n == 0 else 9))
    assert faster.verdict == "reproduced"
    # after 800 and until 900 sequences against after 200 and until 300
    assert faster.value == pytest.approx((math.log2(800 / 300) + math.log2(900 / 200)) / 2)
    assert faster.low <= math.log2(800 / 300) + 1e-9  # the evaluations are no finer
    assert verdict(name, curves(lambda n: 0.01, lambda n: 9 if n == 0 else 3)) == "not at this budget"
    assert verdict(name, curves(lambda n: 0.01, lambda n: 4)) == "inconclusive"  # within the same epoch
    never = curves(lambda n: 0.01 if n == 0 else 0.5, lambda n: 3)  # no Transformer arrives: later than the last epoch
    assert judged(name, never).value == pytest.approx(math.log2(1000 / 300))
    assert verdict(name, curves(lambda n: 0.5, lambda n: 2)) == "not tested"  # nobody arrives
    assert verdict(name, curves(lambda n: 0.01, lambda n: 3 if n == 0 else 9, FOUR[:3])) == "not tested"
    mixed = curves(lambda n: 0.01, lambda n: 3 if n == 0 else 9, FOUR[:3])["epochs"]
    mixed += curves(lambda n: 0.01, lambda n: 9 if n == 0 else 3, FOUR[3:])["epochs"]
    assert verdict(name, never | {"epochs": mixed}) == "not at this budget"  # one task refutes it
    early = curves(lambda n: 0.01, lambda n: 1 if n == 0 else 9)
    assert verdict(name, early) != "reproduced"  # while the learning rate rises nothing counts
    constant = curves(lambda n: 0.01 if n == 0 else 0.8, lambda n: 3)
    assert closed(name, constant) == ["learned"]  # Transformers have learned nothing
    often = [row | {"positions": [4, 31]} for row in never["epochs"]]
    assert closed(name, never | {"epochs": often}) == ["regime"]  # Cyclic-HARD is asked too often
    assert verdict(name, swapped("limits-fig2", never)) == "not tested"


def test_what_the_rnn_learns_after_the_others_have_stopped_does_not_count() -> None:
    tables = curves(lambda n: 0.01 if n else 0.5, lambda n: 2)
    for row in list(tables["epochs"]):
        if row["layers"] == 0 and row["epoch"] == 10:
            tables["epochs"].append(row | {"epoch": 40, "sequences": 4000, "value": 0.0, "distances": [0.0, 0.0]})
    assert verdict("limits-rnn-final-accuracy", tables) == "not at this budget"
    assert limits_fig2.alike(Rows(tables["epochs"])).where(sequences=4000) == []


def test_the_rnn_ends_as_accurate() -> None:
    name = "limits-rnn-final-accuracy"
    good = curves(lambda n: 0.02 if n == 0 else 0.015, lambda n: 2)
    assert verdict(name, good) == "reproduced"  # within the margin
    assert verdict(name, curves(lambda n: 0.05 if n == 0 else 0.01, lambda n: 2)) == "not at this budget"
    # the best Transformer counts, not their mean
    assert verdict(name, curves(lambda n: {0: 0.05, 1: 0.5, 2: 0.01}[n], lambda n: 2)) == "not at this budget"
    noisy = curves(lambda n: 0.02, lambda n: 2)
    for row in noisy["epochs"]:
        if row["layers"] == 0:
            row["value"] += 5 * (NOISE[row["seed"]] + 0.01)
    assert verdict(name, noisy) == "inconclusive"
    assert closed(name, curves(lambda n: 0.02, lambda n: 2 if n == 0 else 9)) == ["converged"]  # it fell just now
    assert closed(name, swapped("limits-fig2", good)) == ["learned"]


def test_better_throughout() -> None:
    name = "limits-rnn-better-throughout"
    good = curves(lambda n: 0.02, lambda n: 2 if n == 0 else 9)
    assert verdict(name, good) == "reproduced"
    behind = curves(lambda n: 0.02, lambda n: 5 if n == 0 else 2)  # in epochs 2 to 4, which no more of them undo
    assert verdict(name, behind) == "not reproduced"
    assert closed(name, swapped("limits-fig2", good)) == ["learned"]


def test_supervision() -> None:
    name = "limits-supervision-rnn"

    def tables(transformer_hard: float, rnn_hard: float = 0.03) -> Tables:
        easy = curves(lambda n: 0.02, lambda n: 2, ("cyclic-det",))
        hard = curves(lambda n: transformer_hard if n else rnn_hard, lambda n: 2, ("cyclic-hard",))
        for row in hard["epochs"]:
            row["distances"] = [row["value"] + 0.001 * row["seed"] * row["layers"]] * 2
        return {key: easy[key] + hard[key] for key in easy}

    assert judged(name, tables(0.4)).value == pytest.approx(0.37, abs=0.01)
    assert verdict(name, tables(0.4)) == "reproduced"
    assert verdict(name, tables(0.04)) == "not at this budget"  # it hurts, by less than matters
    assert closed(name, tables(0.4, 0.79)) == ["learned"]  # nor does the RNN learn it
    assert verdict(name, swapped("limits-fig2", tables(0.4))) != "reproduced"
    assert verdict(name, curves(lambda n: 0.02, lambda n: 2, ("cyclic-det",))) == "not tested"


def test_the_rnn_fits_as_much() -> None:
    name = "limits-rnn-fits-longer"

    def of(recurrent: float, deep: float, late: float = 0.0) -> Tables:
        """Losses that cross 0.1 at a length; that of Transformers after half of the epochs less `late`."""
        tables = curves(lambda n: 0.01, lambda n: 1)
        for row in tables["epochs"]:
            length = recurrent if row["layers"] == 0 else deep * (1 + NOISE[row["seed"]])
            length -= late if row["layers"] and row["epoch"] <= 5 else 0
            losses = [0.0 if t <= length else 0.9 for t in range(1, 65)]
            row |= {"positions": list(range(1, 65)), "distances": losses}
        return tables

    assert verdict(name, of(64, 64)) == "reproduced"
    assert verdict(name, of(64, 9)) == "reproduced"
    assert verdict(name, of(9, 20)) == "not at this budget"
    assert closed(name, of(20, 19, late=15)) == ["converged"]  # they gain two doublings in one of the training
    assert verdict(name, swapped("limits-fig2", of(32, 9))) == "not tested"
