"""Made-up tables of the experiments of [MultiTask] on trained models, by which claims are judged in tests."""

from collections.abc import Sequence
from typing import Any

from hmmscope import registry
from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.rows import Rows, Tables

#: Values of three seeds that are clearly up, clearly down, and open.
UP, DOWN, OPEN = (0.9, 0.92, 0.88), (-0.9, -0.92, -0.88), (0.9, -0.9, 0.2)
WAYS = [(UP, "reproduced"), (DOWN, "not at this budget"), (OPEN, "inconclusive")]
NONE = (0.0, 0.0, 0.0)


def seeded(values: Sequence[float], error: float = 0.005, **fields: Any) -> Rows:
    """One row a seed."""
    return Rows(
        {"seed": seed, **fields, "value": value, "low": value - 2 * error, "high": value + 2 * error, "error": error}
        for seed, value in enumerate(values)
    )


def setting(
    per_hmm: float = 16.0,
    pool: float = 8192.0,
    counted: float = 0.1,
    gain: float = 0.2,
    right: float = 0.08,
    last_quarter: float = 0.001,
) -> Tables:
    """The tables that say in which setting it was; as they are, every gate is open."""
    rows = seeded((per_hmm,) * 3, quantity="prompts per HMM", label="model")
    rows += seeded((pool,) * 3, quantity="HMMs in the pool", label="model")
    rows += seeded((counted,) * 3, quantity="component from symbol counts", chance=0.0625, label="model")
    rows += seeded((gain,) * 3, quantity="gain over the best n-gram", label="model")
    rows += seeded((right,) * 3, quantity="accuracy over the best n-gram", label="model")
    runs = [
        {"label": "model", "seed": seed, "excess": 0.3, "last_quarter": last_quarter, "tokens": 1} for seed in range(3)
    ]
    return {"setting": Rows(rows), "runs": Rows(runs)}


#: What closes a gate, and a word of what the finding says then.
CLOSED = [
    ({"per_hmm": 960.0}, "960"),
    ({"pool": 40.0}, "HMMs in the pool (8192 in the paper) is 40"),
    ({"counted": 0.98}, "symbol counts"),
    ({"gain": 0.0}, "n-gram"),
    ({"right": 0.055}, "required: an interval above 0.05"),
    ({"last_quarter": -0.2}, "last quarter"),
]
#: Those that close claims which are not about the recognition of HMMs.
OF_ACCURACY = [one for one in CLOSED if one[1] != "symbol counts"]


def judged(name: str, tables: Tables, **options: Any) -> Finding:
    """A claim judged on tables, in an open setting unless they say another."""
    found: Finding = registry.lookup("claim", name).evaluate({**setting(), **tables}, **options)
    return found
