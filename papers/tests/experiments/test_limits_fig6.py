"""Claims on the curriculum, each judged on made-up tables in which it comes out each way."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from hmmscope_papers.limits.trainings import label_of
from limits_cases import NOISE, SEEDS, closed, judged, swapped, verdict

Tables = dict[str, Any]


def curricula(
    difference: Callable[[int], float],
    *,
    robust: bool = True,
    more_sequences: int = 1,
    late: float = 0.0,
    time: float = 1 / 3,
) -> Tables:
    """Fit lengths with less without curriculum by seed; three stages take a share of the time."""
    ends, runs = [], []
    for task in ("cyclic-det", "matmul"):
        for n in (0, 1, 2, 3):
            for seed in SEEDS:
                for kept in (True, False):
                    more = difference(seed) if kept and n < 3 and not (n == 0 and robust) else 0
                    facts = {"task": task, "layers": n, "seed": seed, "curriculum": kept}
                    length = 8 + 0.01 * n * NOISE[seed] + more
                    ends.append(
                        facts | {"stages": 3 if kept and n < 3 else 1, "longest": 16, "error_rate": 0.1, "value": 8}
                        | {"length": length, "tokens": 100 if kept else 200}
                    )  # fmt: skip
                    label = label_of(task, n) + ("" if kept else ", no curriculum")
                    taken = 100 * (time * (1 + NOISE[seed]) if kept else 1)
                    runs.append(
                        {"label": label, "seed": seed, "processor_seconds": taken, "tokens": 50 if kept else 100}
                    )
    epochs = [
        row
        | {"epoch": epoch, "tokens": row["tokens"] * epoch // 4}
        | {"sequences": 100 * epoch * (more_sequences if row["curriculum"] else 1)}
        | {"length": row["length"] - late * (row["curriculum"] and epoch < 4)}
        for row in ends
        for epoch in (1, 2, 3, 4)
    ]
    return {"fit-lengths": ends, "epochs": epochs, "runs": runs}


@pytest.mark.parametrize(
    "name, good, bad",
    [
        ("limits-curriculum-det", 0.0, -4.0),
        ("limits-curriculum-matmul", 2.0, -1.0),
        ("limits-curriculum-faster", 2.0, -1.0),
    ],
)
def test_claims_on_the_curriculum(name: str, good: float, bad: float) -> None:
    def of(mean: float) -> Tables:
        return curricula(lambda seed: mean + NOISE[seed])

    expected = math.log2((8 + good) / 8) if good else 0.0  # one stage does not count
    assert judged(name, of(good)).value == pytest.approx(expected, abs=1e-3)
    assert verdict(name, of(good)) == "reproduced"
    assert verdict(name, of(bad)) == "not at this budget"
    assert verdict(name, curricula(lambda seed: 2.0 * (seed - 1))) == "inconclusive"
    without = {key: [r for r in rows if not r.get("curriculum")] for key, rows in of(good).items()}
    assert verdict(name, without) == "not tested"
    assert "learned" in closed(name, swapped("limits-fig6", of(good)))


def test_other_budgets_are_not_compared() -> None:
    assert closed("limits-curriculum-det", curricula(lambda seed: 0.0, more_sequences=2)) == ["matched"]


def test_what_still_catches_up_is_not_judged() -> None:
    name = "limits-curriculum-det"
    assert closed(name, curricula(lambda seed: -4.0 + NOISE[seed], late=4.0)) == ["converged"]
    assert closed(name, curricula(lambda seed: -4.0 + NOISE[seed], late=1.0)) == []


def test_comparable_has_two_sides() -> None:
    assert verdict("limits-curriculum-det", curricula(lambda seed: 4.0 + NOISE[seed])) == "not at this budget"


def test_time_falls_with_the_stages() -> None:
    name = "limits-curriculum-shortens"
    old = curricula(lambda seed: 0.0)
    assert closed(name, old) == ["room"]  # the plan fixes the ratio, whatever is measured
    for row in old["fit-lengths"]:
        row["stages"] = min(row["stages"], 2)
    assert verdict(name, old) == "reproduced"
    assert verdict(name, old | {"runs": curricula(lambda seed: 0.0, time=1.5)["runs"]}) == "not reproduced"
    for row in old["runs"]:
        del row["processor_seconds"]
    found = judged(name, old)
    assert found.verdict == "not tested"
    assert "0.500 (2 stages)" in found.text


def test_the_rnn_does_not_mind() -> None:
    name = "limits-curriculum-rnn"
    good = curricula(lambda seed: 3.0 + NOISE[seed])
    assert verdict(name, good) == "reproduced"
    assert verdict(name, curricula(lambda seed: 3.0 + NOISE[seed], robust=False)) != "reproduced"
    assert "learned" in closed(name, swapped("limits-fig6", good))
    without = {key: [row for row in rows if row.get("layers")] for key, rows in good.items()}
    assert verdict(name, without) == "not tested"
