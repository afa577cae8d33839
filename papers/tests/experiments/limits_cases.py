"""Made-up tables for the claims of [Limits]: what several tests of experiments need."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from hmmscope import registry
from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.rows import Tables, as_tables
from hmmscope.lab.experiments.experiment import experiment_named

SEEDS = (0, 1, 2)
#: What seeds differ by.
NOISE = {0: -0.01, 1: 0.0, 2: 0.01}


def judged(name: str, tables: dict[str, Any]) -> Finding:
    """What a claim says of tables."""
    found: Finding = registry.lookup("claim", name).evaluate(tables)
    assert found.text
    if found.low is not None and found.high is not None and found.value is not None:
        assert math.isfinite(found.value)
        assert found.low <= found.value <= found.high
    return found


def verdict(name: str, tables: dict[str, Any]) -> str:
    return str(judged(name, tables).verdict)


def closed(name: str, tables: dict[str, Any]) -> list[str]:
    """The gates that keep a claim from being judged, each once."""
    found = judged(name, tables)
    assert (found.verdict == "not tested") >= any(not gate.is_open for gate in found.gates)
    return list(dict.fromkeys(gate.name for gate in found.gates if not gate.is_open))


def swapped(experiment: str, tables: dict[str, Any]) -> Tables:
    """The tables as they would be had nothing been trained."""
    found = experiment_named(experiment).without_training(as_tables(tables))
    assert found is not None
    return found


def first_seed(tables: dict[str, Any]) -> dict[str, Any]:
    return {name: [row for row in rows if row.get("seed", 0) == 0] for name, rows in tables.items()}


def at_rest(facts: Iterable[dict[str, Any]], before: float = 8.0, after: float = 8.0, longest: int = 16) -> list[dict]:
    """The table of what happens while training: lengths, and losses a hundredth of them, at half of it and later."""
    return [
        {**one, "error_rate": rate, "longest": longest, "share": share, "length": length}
        | {"loss": length / 100, "worst": length / 100}
        for one in facts
        for rate in (0.05, 0.1)
        for share, length in ((0.5, before), (0.75, before), (1.0, after))
    ]


def budgets(labels: Iterable[str], sequences: Callable[[str], int] = lambda label: 100) -> list[dict]:
    """The table of runs."""
    return [{"label": label, "seed": seed, "sequences": sequences(label)} for label in labels for seed in SEEDS]
