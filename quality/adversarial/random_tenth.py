"""A plugin of pytest: a tenth of the tests, in an order that is drawn from the seed of the laboratory.

A test that fails only after certain others, or now and then, is found when the suite is run often and never in the same
order. Tests of a file stay together, so that what they share is made once.
"""

import os
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from fresh_seeds import SEED

Item = TypeVar("Item")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep those that are drawn, of what is not deselected for another reason."""
    kept = drawn(items, lambda item: item.path, os.environ[SEED])
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def drawn(items: Sequence[Item], file_of: Callable[[Item], object], seed: str) -> list[Item]:
    """A tenth: all files in a random order, the tests of each too, and of those the first."""
    rng, files = random.Random(seed), dict[object, list[Item]]()
    for item in items:
        files.setdefault(file_of(item), []).append(item)
    order = rng.sample(list(files), len(files))
    return [item for file in order for item in rng.sample(files[file], len(files[file]))][: len(items) // 10]
