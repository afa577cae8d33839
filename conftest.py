"""One thread, shape annotations executed, the same generated examples in every run."""

import functools
import gc
import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jaxtyping
import pytest
import torch

import annotations
import forking

#: Without kernels: compiled functions cannot close over checked ones.
ANNOTATED = ("inference", "processes", "datasets", "models", "training", "analysis")

os.environ["HMMSCOPE_ENGINE"] = "unmeasured"  # no test depends on what is fast here
gc.disable()  # while tests are collected, see below
torch.set_num_threads(1)
jaxtyping.jaxtyped = annotations.executed
jaxtyping.install_import_hook(
    [*(f"hmmscope.{package}" for package in ANNOTATED), "hmmscope_papers.constructions"], None
)
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
    "test_sweep_engines.py",
    "test_additions.py",
)


#: Experiments that a commit runs at smoke, drawn by it; all of them are run by `make test-slow`.
SMOKES = 1
#: A commit runs one in so many of the long tests, drawn by it.
LONG = 96
#: Of the tests in tests/heavy.txt, which take about half a second of a processor or more, a commit runs one in so many.
HEAVY = 8


@functools.cache
def commit() -> str:
    """What is checked out, by which cases are drawn: each commit has another sample, the same wherever it is tested."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    return asked.stdout.strip()


def draw(items: list[pytest.Item], number: int, test: str) -> None:
    """Mark all but `number` items slow; the commit draws those that stay."""
    kept = random.Random(f"{commit()} {test}").sample(items, min(len(items), max(1, number)))
    for item in items:
        if item not in kept:
            item.add_marker(pytest.mark.slow)


def leave_to_slow(items: list[pytest.Item]) -> None:
    """Of the cases of a test marked ``drawn(number)`` so many are drawn, and the others are marked slow.

    Tests of a file that are marked ``drawn(number, of="...")`` with the same words are the cases of one. One in `LONG` of
    the tests marked ``long``, cases of ``drawn`` tests included, is drawn; so is one in `HEAVY` of those in tests/heavy.txt.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("long"):
            cases.setdefault("long", []).append(item)
        elif marker := item.get_closest_marker("drawn"):
            of = marker.kwargs.get("of")
            name = item.nodeid.partition("[")[0] if of is None else f"{item.path.name} {of}"
            cases.setdefault(name, []).append(item)
    for test, own in cases.items():
        own.sort(key=lambda item: item.nodeid)
        number = len(own) // LONG if test == "long" else own[0].get_closest_marker("drawn").args[0]
        draw(own, number, test)
    names = set((Path(__file__).parent / "tests" / "heavy.txt").read_text().split())
    heavy = [one for one in items if one.nodeid.partition("[")[0] in names and not one.get_closest_marker("slow")]
    draw(heavy, len(heavy) // HEAVY, "heavy")
    asked = {item: item.callspec.params["smoke"] for item in items if "smoke" in params_of(item)}
    drawn = random.Random(f"{commit()} smoke").sample(
        sorted(set(asked.values())), min(len(set(asked.values())), SMOKES)
    )
    for item, name in asked.items():
        if name not in drawn:
            item.add_marker(pytest.mark.slow)


def params_of(item: pytest.Item) -> dict[str, Any]:
    """The values of a parametrised test."""
    return getattr(getattr(item, "callspec", None), "params", {})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file run in one process, for they share fixtures; of the smoke runs, those of one experiment."""
    leave_to_slow(items)
    turn = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: turn.get(item.path.name, len(turn) + ("contracts" in item.path.parts)))
    for item in items:
        params = params_of(item)
        group = f"smoke-{params['smoke']}" if "smoke" in params else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))


_SEEN = [0.0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Each report has the processor time since the one before it."""
    report = yield
    before, _SEEN[0] = _SEEN[0], forking.seconds()
    report.processor = _SEEN[0] - before
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Processor time by folder, largest first; imports are those of the first test of a worker."""
    used: Counter[str] = Counter()
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        if isinstance(report, pytest.TestReport):
            used[Path(report.nodeid.partition("::")[0]).parent.name] += getattr(report, "processor", 0.0)
    listed = ", ".join(f"{folder} {seconds:.0f}" for folder, seconds in used.most_common() if seconds >= 0.5)
    terminalreporter.write_line(f"processor seconds: {used.total():.0f}, of which {listed}")


def pytest_unconfigure() -> None:
    forking.stop()


def pytest_collection_finish() -> None:
    """What was imported stays: it is not looked through for garbage again and again."""
    gc.freeze()
    gc.enable()
