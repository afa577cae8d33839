"""A plugin of pytest (`-p covering`): which test runs which line of the library, and its seconds of the processor.

With the fixtures that are made for it: they are often what runs a line. The seconds are those of a test alone, with the
fixtures of its file. Written by test file into the folder `MAPS`.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "hmmscope"
_cover = coverage.Coverage(data_file=None, source=[str(SRC)], messages=False)
_cover.start()
_texts = {path.relative_to(SRC).as_posix(): path.read_text() for path in SRC.rglob("*.py")}
_seconds: dict[str, float] = {}
_failed: set[str] = set()
#: Seconds of fixtures of more than one test, by name, and the names of those that a test takes.
_shared: dict[str, float] = {}
_taken: dict[str, list[str]] = {}


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _cover.switch_context(item.nodeid)
    begun, shared = sum(os.times()[:4]), sum(_shared.values())
    yield
    _seconds[item.nodeid] = sum(os.times()[:4]) - begun - (sum(_shared.values()) - shared)
    _taken[item.nodeid] = list(getattr(item, "fixturenames", ()))
    _cover.switch_context("")


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef) -> Iterator[None]:
    begun = sum(os.times()[:4])
    yield
    if fixturedef.scope != "function":
        _shared[fixturedef.argname] = _shared.get(fixturedef.argname, 0.0) + sum(os.times()[:4]) - begun


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not report.passed:  # what is skipped notices nothing
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """A map of each test file: what it was, its tests, and of each line of each module the tests that run it."""
    _cover.stop()
    data, maps = _cover.get_data(), Path(os.environ["MAPS"])
    files = {name.partition("::")[0] for name in _seconds}
    found: dict[str, dict[str, dict[int, list[str]]]] = {name: {} for name in files}
    for source in data.measured_files():
        name = Path(source).relative_to(SRC).as_posix()
        if name not in _texts:  # a page's template, compiled under its own name
            continue
        for line, contexts in data.contexts_by_lineno(source).items():
            for test in sorted(set(contexts) & _seconds.keys() - _failed):
                found[test.partition("::")[0]].setdefault(name, {}).setdefault(line, []).append(test)
    for file, lines in found.items():
        own = [name for name in _seconds if name.partition("::")[0] == file]
        seconds = {name: round(_seconds[name] + sum(_shared.get(one, 0) for one in _taken[name]), 3) for name in own}
        about = {"digest": hashlib.sha256((ROOT / file).read_bytes()).hexdigest(), "seconds": seconds, "lines": lines}
        about["texts"] = {name: _texts[name] for name in lines}
        (maps / (file.replace("/", ".") + ".json")).write_text(json.dumps(about))
