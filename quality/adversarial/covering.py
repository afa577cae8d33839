"""pytest plugin (`-p covering`): record which test runs which line of the library, and its processor time in seconds.

Lines that run in a test's fixtures count for the test. The time of a test includes shared fixtures, as if it ran alone.
One map per test file is written into the folder in the environment variable `MAPS`.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

from source_mutants import run_heavy_tests

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "hmmscope"
_cover = coverage.Coverage(data_file=None, source=[str(SRC)], messages=False)
_cover.start()
_texts = {path.relative_to(SRC).as_posix(): path.read_text() for path in SRC.rglob("*.py")}
_seconds: dict[str, float] = {}
_failed: set[str] = set()
#: Seconds of fixtures with a wider scope than one test, by name, and the names of the fixtures of each test.
_shared: dict[str, float] = {}
_taken: dict[str, list[str]] = {}


def pytest_sessionstart(session: pytest.Session) -> None:
    run_heavy_tests(session.config.pluginmanager.get_plugins())


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
    if not report.passed:  # skipped tests detect nothing
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write a map of each test file: its digest, the seconds of its tests, and the tests that run each line."""
    _cover.stop()
    data, maps = _cover.get_data(), Path(os.environ["MAPS"])
    files = {name.partition("::")[0] for name in _seconds}
    found: dict[str, dict[str, dict[int, list[str]]]] = {name: {} for name in files}
    for source in data.measured_files():
        name = Path(source).relative_to(SRC).as_posix()
        if name not in _texts:  # the template of a page, which is compiled under its own name
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
