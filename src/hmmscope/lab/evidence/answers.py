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

#: What the answers mean to a reader.
MEANINGS = {
    "supported": "the whole 95 % interval lies beyond the smallest effect that matters.",
    "supported in sign": "the interval lies on the claimed side, but includes effects too small to matter, or the power is "
    "low (the rule would confirm a true claim in few simulated experiments).",
    "contradicted": "the interval lies on the side opposite to the claim, or excludes every effect that matters.",
    "contradicted at this budget": "our measurement contradicts the claim, but more training could still confirm it.",
    "undecided": "the interval neither supports nor contradicts the claim, or a precondition of the claim fails.",
    "answered": "a question of this project, which no paper asks, has an interval without zero (or an exact answer).",
    "open": "a question of this project has an interval that contains zero, or no measured effect.",
}
#: Answers that follow all others on pages.
UNSETTLED = ("undecided", "open")


def answer_of(verdict: str) -> str:
    if verdict not in ANSWERS:
        raise InputError(f"verdict: unknown {verdict!r} (known: {', '.join(ANSWERS)})")
    return ANSWERS[verdict]


#: Ends of units that count things, and beginnings of units that stand after a number.
_COUNTED = ("cases", "processes", "networks", "instances", "samples", "prompts", "windows", "distances and seeds")
_AFTER = ("of ", "in ", "nats", "doublings", "layers", "positions", "bits", "steps", "times ")


def effect_sentence(shown: str, unit: str, num_seeds: int | None = None, case: str = "") -> str:
    """Return the sentence about an effect, such as ``The measured effect is 0.5 [0.4, 0.6] layers over 5 seeds.``

    Args:
        shown: the number with its interval.
        unit: unit of the effect, with the deciding case after a comma if there are several.
        num_seeds: number of seeds, if there are any.
        case: name of the effect that decides.
    """
    unit, _, own = ("in accuracy" if unit == "accuracy" else unit).partition(", ")
    seeds = f" over {num_seeds} seeds" if (num_seeds or 0) > 1 else ""
    if unit.startswith("fraction of ") and unit.endswith(_COUNTED):
        effect = f"fraction of {shown} of the {unit.removeprefix('fraction of ')} meets the criterion{seeds}."
        return f"In the weakest case, which decides ({case or own}), a {effect}" if own else f"A {effect}"
    begin = f"In the weakest case, which decides ({case or own}), the" if own else "The"
    if not unit or unit.startswith(_AFTER):
        return f"{begin} measured effect is {shown} {unit}".rstrip() + f"{seeds}."
    return f"{begin} measured effect ({unit}) is {shown}{seeds}."


def scope_of(row: Mapping[str, Any]) -> str:
    """Return where the verdict of a ledger row holds, such as ``at T = 32 and width 64``."""
    if row.get("scope"):
        return str(row["scope"])
    claim = registry.entries("claim").get(row["claim"])
    if claim is not None and getattr(claim, "about", "training") != "training":
        return "on constructed networks and exact quantities"
    return f"at scale {row['scale']}"
