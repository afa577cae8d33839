"""What the rules of limits-law say where it is known how fit lengths grow."""

import math
import random
from collections.abc import Callable

import pytest

from hmmscope import registry
from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.rows import Rows, Tables

LENGTH, END = 32, math.log2(32)


def planted(world: Callable[[int, int], float], seed: int = 0) -> Tables:
    """Fit lengths of five instances at seven budgets by depth, from their logarithms by layers and doublings."""
    draw, rows = random.Random(seed), Rows()
    for instance in range(5):
        for layers in (0, 1, 2, 3, 5):
            own = draw.gauss(0, 0.08)
            for k in range(7):
                y = world(layers, k) + own + draw.gauss(0, 0.05) if layers else math.inf
                about = {"seed": instance, "layers": layers, "longest": LENGTH, "error_rate": 0.1, "steps": 480 * 2**k}
                about |= {"definition": "prefix", "by": "final", "sequences": 64 * 480 * 2**k}
                rows.append(about | {"predictor": "model", "length": 2 ** min(y, END)})
                rows.append(about | {"predictor": "constant", "length": 1.0})
    return {"fit-lengths": rows}


def resting(layers: int, k: int) -> float:
    """Lengths of 10 to 25 that each depth comes to."""
    return 3.3 + (layers - 1) / 3 - 1.5 * 2.0 ** (-k / 2)


def same(layers: int, k: int) -> float:
    return 3.6 - 1.5 * 2.0 ** (-k / 2)


def growing(layers: int, k: int) -> float:
    """Every depth comes to the end long before the paper's budget."""
    return 3 + 0.05 * layers + 0.5 * k


def said(claim: str, world: Callable[[int, int], float]) -> Finding:
    found: Finding = registry.lookup("claim", claim).evaluate(planted(world))
    return found


@pytest.mark.drawn(2, of="rules")
@pytest.mark.parametrize(
    "claim, world, verdict",
    [
        ("limits-law-growth", resting, "reproduced"),
        ("limits-law-growth", same, "not reproduced"),
        ("limits-law-growth", growing, "not tested"),
        ("limits-law-doubles", resting, "not reproduced"),
        ("limits-law-rnn", resting, "reproduced"),
        ("limits-law-rnn", growing, "not tested"),
    ],
)
def test_rules_say_what_is_so(claim: str, world: Callable[[int, int], float], verdict: str) -> None:
    assert said(claim, world).verdict == verdict


@pytest.mark.drawn(2, of="rules")
def test_an_rnn_that_fits_all_leads_by_what_the_sequence_shows() -> None:
    """Whatever the RNN could do beyond the end is not claimed of it: log2 of .95 x 32, less the Transformer's."""
    found = said("limits-law-rnn", same)
    assert found.value == pytest.approx(math.log2(0.95 * LENGTH) - 3.6, abs=0.1)
    assert found.high < math.log2(0.95 * LENGTH)
