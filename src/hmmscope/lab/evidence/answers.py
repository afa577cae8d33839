"""Answers for readers: supported, contradicted or undecided, with the scope of a verdict."""

from collections.abc import Mapping
from typing import Any

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.lab.evidence.verdicts import Verdict

#: The answer that each verdict of a claim gives.
ANSWERS: dict[Verdict, str] = {
    "reproduced": "supported",
    "reproduced in sign": "supported in sign",
    "not reproduced": "contradicted",
    "not at this budget": "contradicted at this budget",
    "inconclusive": "undecided",
    "not tested": "undecided",
    "answered": "answered",
    "open": "open",
}

#: Answers that follow all others on pages.
UNSETTLED = ("undecided", "open")


def answer_of(verdict: str) -> str:
    """Return the answer of a verdict: supported, contradicted or undecided; for our own questions answered or open."""
    if verdict not in ANSWERS:
        raise InputError(f"verdict: unknown {verdict!r} (known: {', '.join(ANSWERS)})")
    return ANSWERS[verdict]


def scope_of(row: Mapping[str, Any]) -> str:
    """Return where the verdict of a ledger row holds, such as ``at T = 32 and width 64``."""
    if row.get("scope"):
        return str(row["scope"])
    claim = registry.entries("claim").get(row["claim"])
    if claim is not None and getattr(claim, "about", "training") != "training":
        return "on constructed networks and exact quantities"
    return f"at scale {row['scale']}"
