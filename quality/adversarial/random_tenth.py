"""pytest plugin: run a tenth of the tests, in an order drawn from the seed of the laboratory.

Many runs in different orders find tests that fail intermittently or only after certain other tests. Tests of a file stay
together, so that shared fixtures are made once.
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
    """Keep the drawn tests among those that are not deselected for another reason."""
    kept = drawn(items, lambda item: item.path, os.environ[SEED])
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def drawn(items: Sequence[Item], file_of: Callable[[Item], object], seed: str) -> list[Item]:
    """Return the first tenth of the tests, after shuffling the files and the tests in each file."""
    rng, files = random.Random(seed), dict[object, list[Item]]()
    for item in items:
        files.setdefault(file_of(item), []).append(item)
    order = rng.sample(list(files), len(files))
    return [item for file in order for item in rng.sample(files[file], len(files[file]))][: len(items) // 10]
