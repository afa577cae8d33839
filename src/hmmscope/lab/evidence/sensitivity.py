"""Sensitivity of verdicts to the margin of the rule, to parameters of the claim, and to single seeds."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hmmscope.lab.evidence.claim import Claim
from hmmscope.lab.evidence.records import RuleParameters
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.evidence.verdicts import DECIDED, Above, Below, Rule, Verdict, Within

#: Numbers of a record, each with the values that are tried instead.
OTHERWISE: Mapping[str, tuple[Any, ...]] = {"rate": (0.05, 0.1), "definition": ("prefix", "max")}


def sensitivity(claim: Claim, tables: Tables) -> list[str]:
    """Return the choices that change a decided verdict, such as ``margin × 2`` or ``without seed 4``."""
    now = claim.evaluate(tables).verdict
    if now not in DECIDED:
        return []
    return [name for name, verdict in _otherwise(claim, tables) if verdict != now]


def _otherwise(claim: Claim, tables: Tables) -> Iterator[tuple[str, Verdict]]:
    seen = claim.measured(tables)
    for factor, name in ((0.5, "margin × ½"), (2.0, "margin × 2")):
        rule = with_margin(claim.rule, factor)
        if rule is not None:
            yield name, replace(claim, rule=rule).finding(seen, power=False).verdict
    for name, values in OTHERWISE.items():
        for value in values if name in claim.parameters else ():
            if value != claim.parameters[name]:
                other = replace(claim, parameters=RuleParameters(claim.parameters | {name: value}))
                yield f"{name} {value}", other.evaluate(tables, power=False).verdict
    seeds = {seed for rows in tables.values() for seed in Rows(rows).seeds() if seed is not None}
    if claim.about == "training":
        for seed in sorted(seeds):
            kept = {name: Rows(row for row in rows if row.get("seed") != seed) for name, rows in tables.items()}
            yield f"without seed {seed}", claim.evaluate(kept, power=False).verdict


def with_margin(rule: Rule | None, factor: float) -> Rule | None:
    match rule:
        case Above() | Below():
            name = "smallest_effect" if rule.smallest_effect else "bound"
            return replace(rule, **{name: factor * getattr(rule, name)}) if getattr(rule, name) else None
        case Within():
            return replace(rule, margin=factor * rule.margin)
    return None
