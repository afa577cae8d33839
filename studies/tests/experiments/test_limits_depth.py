"""Depth as a limit or a speed, and Cyclic-HARD as a dose-response: claims on made-up tables that come out each way."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from hmmscope.lab.evidence.rows import as_tables
from hmmscope.lab.evidence.verdicts import OF_QUESTIONS
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope_papers.limits.tables import WHILE_TRAINING
from limits_cases import SEEDS, closed, judged, swapped, verdict

Tables = dict[str, Any]


def growing(length: Callable[[int, float], float], longest: int = 32) -> Tables:
    """Lengths by depth and share of the training, a little apart by seed."""
    rows = [
        {"task": "cyclic-det", "layers": n, "seed": seed, "error_rate": 0.1, "longest": longest, "share": share / 20}
        | {
            "sequences": 100 * share,
            "length": min(float(longest), length(n, share / 20) * (1 + 0.001 * seed * share)),
            "loss": 0.1,
        }
        for n in (0, 1, 2, 3)
        for seed in SEEDS
        for share in range(1, 21)
    ]
    return {WHILE_TRAINING: rows}


def test_what_moves_is_told_from_what_rests() -> None:
    found = judged("limits-depth-saturates", growing(lambda n, share: 4 * n if n < 3 else 12 * share + 2))
    assert found.verdict in OF_QUESTIONS
    assert "3 layers of 32" in (found.unit or "")
    assert found.value == pytest.approx(math.log2(14 / 8), abs=0.02)
    assert "Still growing: 3 layers of 32; converged: 1 layer of 32, 2 layers of 32 (by 95 % intervals)." in found.text
    assert "all depths fit the sequence" in judged("limits-depth-saturates", growing(lambda n, share: 40.0)).text
    swapped_ = judged("limits-depth-saturates", swapped("limits-depth", growing(lambda n, share: 3 * share)))
    assert "Still growing: none" in swapped_.text


def test_a_layer_more_gets_there_sooner() -> None:
    found = judged("limits-depth-speed", growing(lambda n, share: 16 * share * 2 ** (n - 1) if n else 32.0))
    assert found.value == pytest.approx(-1.0, abs=0.1)
    assert "reached by no depth" in judged("limits-depth-speed", growing(lambda n, share: 1.0)).text


def test_the_lead_picture_marks_what_has_not_converged() -> None:
    tables = as_tables(growing(lambda n, share: 4 * n if n < 3 else 12 * share + 2))
    (panel,) = experiment_named("limits-depth").figures(tables)[0].panels
    names = {series.name: series.x for series in panel.series}  # type: ignore[union-attr]
    assert names["not converged"] == (3,)
    assert {"2^layers", "end of the sequence", "at the end"} <= names.keys()


@pytest.mark.parametrize(("pace", "marked"), [(0.2, (1, 2, 3)), (0.05, ())])
def test_a_length_that_grows_with_the_logarithm_of_the_training_has_not_converged(
    pace: float, marked: tuple[int, ...]
) -> None:
    """By a fifth of a doubling a doubling it changes by less than a tenth in the last quarter, and is not at rest."""
    tables = as_tables(growing(lambda n, share: 10 * share**pace if n else 32.0))
    (panel,) = experiment_named("limits-depth").figures(tables)[0].panels
    found = {series.name: (series.x, series.role) for series in panel.series}  # type: ignore[union-attr]
    assert found.get("not converged", ((), "unfinished")) == (marked, "unfinished")


def doses(length: Callable[[int, int], float], moving: float = 0.0) -> Tables:
    """Losses that cross the rate at a length of layers and dose."""
    positions, training = [], []
    for n in (0, 2, 4):
        for actions in (8, 32, 128):
            for seed in SEEDS:
                facts = {"layers": n, "actions": actions, "seed": seed}
                reached = length(n, actions) + 0.01 * seed * (1 + n) * math.log2(actions)
                for predictor, end in (("model", reached), ("constant", 0.5)):
                    values = [min(0.9, max(0.0, 0.1 + 0.2 * (t - end))) for t in range(1, 33)]
                    positions += [
                        facts | {"predictor": predictor, "position": t, "value": v, "low": v, "high": v}
                        for t, v in enumerate(values, 1)
                    ]
                training += [
                    facts
                    | {"error_rate": 0.1, "longest": 32, "share": s, "sequences": 100, "loss": 0.2}
                    | {"length": 8.0 if s == 1 or n == 0 else 32 * (8 / actions) ** moving}
                    for s in (0.5, 0.75, 1.0)
                ]
    return {"positions": positions, WHILE_TRAINING: training}


def test_thinner_signals_harm_the_transformer_more() -> None:
    def thins(n: int, actions: int) -> float:
        return 24.0 if n == 0 else 64.0 / actions + n / 4

    assert verdict("limits-hard-dose-slope", doses(thins)) == "reproduced"
    assert verdict("limits-hard-dose-slope", doses(lambda n, actions: 24.0 - n)) == "not at this budget"
    assert closed("limits-hard-dose-slope", doses(thins, moving=1.2)) == ["converged"]
    assert "learned" in closed("limits-hard-dose-slope", swapped("limits-hard-dose", doses(thins)))
    found = judged(
        "limits-hard-rare-threshold", doses(lambda n, actions: 24.0 if n == 0 else 0.5 if actions > 32 else 9.0)
    )
    assert found.unit == "doublings of the RNN's fit length above the Transformer's, 1 in 128"
    assert "and the RNN fits at least two: 1 in 128." in found.text
