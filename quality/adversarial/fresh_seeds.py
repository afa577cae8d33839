"""pytest plugin: run every test several times with different seeds of all named random streams.

Tests have fixed seeds, so a test always gives the same result. Here each seed is mixed with a salt, drawn for each test and
repetition from the seed of the laboratory, to count how often a test fails by chance.
"""

import os
import random

import pytest

from hmmscope import seeds

#: Environment variable with the seed of the laboratory, and the number of repetitions of a test.
SEED, TIMES = "HMMSCOPE_LABORATORY_SEED", 5


@pytest.fixture(autouse=True, params=range(TIMES), ids="time{}".format)
def fresh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a different salt for each test and repetition."""
    mix(monkeypatch, f"{os.environ[SEED]} {request.node.nodeid}")


def mix(patch: pytest.MonkeyPatch, salt: str) -> None:
    """Change the seeds of all streams by a function of the salt; different seeds stay different."""
    bits, check = random.Random(salt).getrandbits(32), seeds.check_seed
    patch.setattr(seeds, "check_seed", lambda seed, field="seed": check(seed, field) ^ bits)
