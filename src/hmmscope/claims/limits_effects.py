"""How effects on several tasks of [Limits] make one verdict."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hmmscope.claims.old import Judgement, verdict_above
from hmmscope.evidence.pooling import Pooled, pool_values
from hmmscope.evidence.verdicts import Verdict

#: Tasks that remember, those that forget, and the one that is rarely asked.
REMEMBERING = ("cyclic-det", "cyclic-rnd", "matmul")
FORGETTING = ("ran-hmm", "ran-lds")
HARD = "cyclic-hard"

NAMES = {
    "ran-hmm": "RanHMM",
    "ran-lds": "RanLDS",
    "cyclic-det": "Cyclic-DET",
    "cyclic-rnd": "Cyclic-RND",
    "matmul": "MatMul",
    "cyclic-hard": "Cyclic-HARD",
}

Rows = list[dict[str, Any]]

#: Verdicts, the one that decides first.
SEVERITY: tuple[Verdict, ...] = ("not reproduced", "inconclusive", "reproduced")


def inconclusive(text: str) -> Judgement:
    """Of tables that lack what the claim is about."""
    return Judgement(verdict="inconclusive", text=text)


def is_below(effect: Pooled, text: str, unit: str, *, below: float) -> Judgement:
    """Of a claim that holds if the effect is below a bound; the interval decides."""
    verdict = verdict_above(Pooled(-effect.value, -effect.high, -effect.low, effect.num_seeds), -below)
    return Judgement(verdict=verdict, text=text, value=effect.value, low=effect.low, high=effect.high, unit=unit)


def tasks_of(rows: Rows) -> list[str]:
    """The tasks in a table, in order of appearance."""
    return list(dict.fromkeys(row["task"] for row in rows))


def of_task(rows: Rows, task: str, **values: Any) -> Rows:
    """The rows of a task, with the values given."""
    return [row for row in rows if row["task"] == task and all(row[key] == value for key, value in values.items())]


def per_seed(rows: Rows, measure: Callable[[Rows], float | None]) -> list[float]:
    """A number of each seed that has it."""
    seeds = dict.fromkeys(row.get("seed") for row in rows)
    found = (measure([row for row in rows if row.get("seed") == seed]) for seed in seeds)
    return [number for number in found if number is not None]


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Of a claim about all of several: one that fails decides, then one that is open."""
    return min(verdicts, key=SEVERITY.index, default="inconclusive")


def everywhere(
    effects: Mapping[str, Pooled], text: str, unit: str, *, above: float = 0.0, wanted: Sequence[str] = ()
) -> Judgement:
    """Of a claim that an effect is above a bound on every task; the number is that of the task that decides.

    Args:
        effects: by task.
        text: what was seen.
        unit: of the effect.
        above: the bound.
        wanted: tasks that the claim is about; without one of them the claim cannot be reproduced.
    """
    if not effects:
        return inconclusive("None of the tasks that this is about was measured.")
    verdicts = {task: verdict_above(effect, above) for task, effect in effects.items()}
    verdict = worst(list(verdicts.values()))
    decides = min(effects, key=lambda task: (SEVERITY.index(verdicts[task]), effects[task].low))
    missing = [NAMES[task] for task in wanted if task not in effects]
    if missing and verdict == "reproduced":
        verdict = "inconclusive"
    note = f" Not measured: {', '.join(missing)}." if missing else ""
    effect, unit = effects[decides], f"{unit}, {NAMES[decides]}"
    return Judgement(verdict=verdict, text=text + note, value=effect.value, low=effect.low, high=effect.high, unit=unit)


def in_all(shares: Mapping[str, Sequence[float]], text: str, *, wanted: Sequence[str] = ()) -> Judgement:
    """Of a claim that a share is 1 in every seed on every task; that a task has none with 1 refutes it.

    One seed decides nothing.

    Args:
        shares: one a seed, by task.
        text: what was seen.
        wanted: see `everywhere`.
    """
    if not any(shares.values()):
        return inconclusive("None of the tasks that this is about was measured.")
    found = {task: values for task, values in shares.items() if values}
    full = [[value >= 1 for value in values] for values in found.values()]
    verdict: Verdict = "inconclusive"
    missing = [NAMES[task] for task in wanted if task not in found]
    if min(map(len, full)) < 2:
        text += " (One seed decides nothing.)"
    elif any(not any(values) for values in full):
        verdict = "not reproduced"
    elif all(all(values) for values in full) and not missing:
        verdict = "reproduced"
    note = f" Not measured: {', '.join(missing)}." if missing else ""
    least = min((pool_values(values) for values in found.values()), key=lambda pooled: pooled.value)
    return Judgement(
        verdict=verdict,
        text=text + note,
        value=least.value,
        low=max(0.0, least.low),
        high=min(1.0, least.high),
        unit="share of the length, least task",
    )


def listed(values: Mapping[str, str]) -> str:
    """``Cyclic-DET 3, MatMul 5``."""
    return ", ".join(f"{NAMES[task]} {text}" for task, text in values.items())


def spread(effect: Pooled, form: str = ".2g") -> str:
    """``0.5 (0.4 to 0.6)``."""
    return f"{effect.value:{form}} ({effect.low:{form}} to {effect.high:{form}})"


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return math.fsum(values) / len(values)
