"""A measurement is known by its rows on frozen tiny models: those of its version, and what changes them is noticed."""

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hmmscope import registry
from hmmscope.inference import filtering
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope.lab.experiments.parts import measurement_of
from hmmscope.system_info import source_digest
from measured import complaint, differences, read, rows_of

EXPERIMENTS = sorted(registry.entries("experiment"))
#: Measured within three seconds.
QUICK = ["limits-table1", "limits-theorem5.1", "limits-theorem5.3", "limits-depth", "limits-hard-dose"]
QUICK += ["constrained-updates", "multitask-lemma1", "multitask-fig3b"]


def said_of(name: str, now: dict[str, Any] | None = None) -> str | None:
    """What has to be done with the version of a measurement."""
    return complaint(name, read(name), now or rows_of(name), measurement_of(experiment_named(name)).version)


def test_every_measurement_has_rows() -> None:
    assert [name for name in EXPERIMENTS if read(name) is None] == []
    for name in EXPERIMENTS:
        kept = read(name)
        assert kept["version"] == measurement_of(experiment_named(name)).version
        assert any(table["columns"] for table in kept["tables"].values()), name


@pytest.mark.parametrize("name", random.Random(source_digest()).sample(QUICK, 2))
def test_rows_are_those_of_the_version(name: str) -> None:
    """Two of the quick ones, others whenever the source has changed; if this fails see the head of measured.py."""
    assert said_of(name) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_rows_of_every_measurement_are_those_of_its_version(name: str) -> None:
    assert said_of(name) is None


@pytest.mark.long
def test_a_halved_log_likelihood_of_the_filter_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what reads it, and of nothing else."""
    exact: Callable[..., filtering.FilterResult] = filtering.filter_beliefs

    def halved(*arguments: Any, **options: Any) -> filtering.FilterResult:
        found = exact(*arguments, **options)
        return replace(found, log_likelihood=found.log_likelihood / 2)

    for module in [one for name, one in sys.modules.items() if name.startswith("hmmscope")]:
        if vars(module).get("filter_beliefs") is exact:
            monkeypatch.setattr(module, "filter_beliefs", halved)
    said = said_of("limits-theorem5.3")
    assert "nats_per_observation" in said
    assert said.endswith("raise the version")
    assert said_of("limits-table1") is None


def test_a_version_is_raised_when_and_only_when_rows_change() -> None:
    kept = read("limits-table1")
    version, now = kept["version"], {**kept["tables"]}
    assert complaint("x", kept, now, version) is None
    said = complaint("x", kept, now, version + 1)
    assert said == f"x: measures what version {version} did; do not raise the version"
    table, made = next(iter(now.items()))
    column = next(name for name, one in made["columns"].items() if one["sums"] and one["sums"][0])
    first, second = made["columns"][column]["sums"]

    def scaled(factor: float) -> dict[str, Any]:
        sums = {**made["columns"][column], "sums": [first * factor, second]}
        return {**now, table: {**made, "columns": {**made["columns"], column: sums}}}

    assert complaint("x", kept, scaled(1 + 1e-8), version) is None
    said = complaint("x", kept, scaled(1 + 1e-5), version)
    assert said.endswith("raise the version")
    said = complaint("x", kept, scaled(1 + 1e-5), version + 1)
    assert said.endswith("keep what it measures")
    assert complaint("x", None, now, version) == "x: is new; keep what it measures"


def test_what_differs_is_named() -> None:
    assert differences({"a": [1.0, "x"]}, {"a": [1.0 + 1e-7, "x"]}) == []
    assert differences({"a": [1.0, "x"]}, {"a": [1.1, "y"]}) == ["/a", "/a"]
    assert differences({"a": 1}, {"b": 1}) in (["/a", "/b"], ["/b", "/a"])
    assert differences([1.0], [1.0, 2.0]) == [""]
