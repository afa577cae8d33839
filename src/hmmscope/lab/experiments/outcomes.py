"""Whether a training had come to an end: what the table of runs records of its last quarter, and the gate that reads it."""

from collections.abc import Mapping, Sequence
from typing import Any

from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.evidence.verdicts import Gate, converged, matched

#: Nats by which the loss may still change in the last quarter of a training that counts as flat.
FLAT = 0.01


def last_quarter(records: Sequence[Mapping[str, Any]]) -> float | None:
    """By how much the evaluation loss changed over the last quarter of the steps; None without an evaluation before it.

    Args:
        records: the lines of metrics.jsonl, (step, evaluation_loss where it was evaluated).
    """
    losses = {row["step"]: row["evaluation_loss"] for row in records if row.get("evaluation_loss") is not None}
    if not losses:
        return None
    last = max(losses)
    before = [step for step in losses if 4 * step <= 3 * last]
    return float(losses[last] - losses[max(before)]) if before else None


def flat(tables: Tables, margin: float = FLAT, **fields: Any) -> Gate:
    """Whether the loss of every run was flat at the end, or so near to its floor that it could not change by the margin.

    Args:
        tables: with the table ``runs``.
        margin: nats.
        fields: which of the runs.
    """
    runs = Rows(tables.get("runs", ())).where(**fields)
    return converged({f"{row['label']}, seed {row['seed']}": _change(row, margin) for row in runs}, margin, "loss")


def _change(row: Mapping[str, Any], margin: float) -> float | None:
    if row.get("excess") is not None and 0 <= row["excess"] < margin:
        return float(row["excess"])
    return row.get("last_quarter")


def equal_tokens(tables: Tables) -> Gate:
    """Whether the models of an experiment were trained on equally many tokens."""
    runs = Rows(tables.get("runs", ()))
    return matched({label: {"tokens": own[0]["tokens"]} for label, own in runs.by("label").items()})
