"""A plugin of pytest: every test several times, each with other numbers behind all named random streams.

What a test draws is fixed by its seeds, so that it says the same each time. Here each seed is mixed with a salt that is
drawn for each test and time, from the seed of the laboratory; how often a test fails by chance can then be counted.
"""

import os
import random

import pytest

from hmmscope import seeds

#: The variable of the environment that holds the seed of the laboratory, and how often a test is run.
SEED, TIMES = "HMMSCOPE_LABORATORY_SEED", 5


@pytest.fixture(autouse=True, params=range(TIMES), ids="time{}".format)
def fresh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another salt for each test and each time."""
    mix(monkeypatch, f"{os.environ[SEED]} {request.node.nodeid}")


def mix(patch: pytest.MonkeyPatch, salt: str) -> None:
    """Have all streams begin at other seeds, a function of the salt; different seeds stay different."""
    bits, check = random.Random(salt).getrandbits(32), seeds.check_seed
    patch.setattr(seeds, "check_seed", lambda seed, field="seed": check(seed, field) ^ bits)
