"""One thread, shape annotations executed, the same generated examples in every run."""

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
import torch

import annotations

#: Without kernels: compiled functions cannot close over checked ones.
ANNOTATED = ("inference", "processes", "corpora", "models", "constructions", "training", "analysis")

os.environ["HMMSCOPE_ENGINE"] = "unmeasured"  # no test depends on what is fast here
gc.disable()  # while tests are collected, see below
torch.set_num_threads(1)
jaxtyping.jaxtyped = annotations.executed
jaxtyping.install_import_hook([f"hmmscope.{package}" for package in ANNOTATED], None)
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("fixed")

#: Where a file system in memory has room, what tests write goes there: every write is forced out, which costs a disk's time.
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 6 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Annotations are not executed: what a user sees who passes the wrong thing."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


#: Files that take longest, most of them because they start processes: first, so that no worker ends long after the other.
LONGEST = (
    "test_readme.py",
    "test_distributed.py",
    "test_planted_faults.py",
    "test_sweep_engines.py",
    "test_additions.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file run in one process, for they share fixtures; of the smoke runs, those of one experiment."""
    turn = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: turn.get(item.path.name, len(turn) + ("contracts" in item.path.parts)))
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        group = f"smoke-{params['smoke']}" if "smoke" in params else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish() -> None:
    """What was imported stays: it is not looked through for garbage again and again."""
    gc.freeze()
    gc.enable()
