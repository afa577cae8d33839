"""Answers that readers see, such as supported or contradicted, and the conditions under which they hold."""

from collections.abc import Mapping
from typing import Any

from hmmscope import registry

#: What the answers mean to a reader.
MEANINGS = {
    "supported": "the whole 95 % interval of the effect lies beyond the smallest effect that matters.",
    "supported in sign": "the interval lies on the claimed side, but contains effects too small to matter, or the power is "
    "low: the rule would confirm a true claim in fewer than half of simulated experiments.",
    "contradicted": "the interval lies on the side opposite to the claim, or contains no effect that matters.",
    "contradicted at this budget": "our measurement contradicts the claim; longer training could change this answer.",
    "undecided": "the interval neither supports nor contradicts the claim, or a precondition of a verdict fails.",
    "answered": "a question of this project: the effect is exact or its interval excludes zero.",
    "open": "a question of this project: the interval contains zero or no effect was measured.",
}
#: Answers that follow all others on pages.
UNSETTLED = ("undecided", "open")


#: Ends of units that are fractions of a count, and beginnings of units that are printed after the number.
_COUNTED = ("cases", "processes", "networks", "instances", "samples", "prompts", "windows", "distances and seeds")
_AFTER = ("of ", "in ", "nats", "doublings", "layers", "positions", "bits", "steps", "times ")


def effect_sentence(shown: str, unit: str, count: int | None, case: str = "", *, seeds: int | None) -> str:
    """Return the sentence about an effect, such as ``The measured effect is 0.5 [0.4, 0.6] layers (5 seeds).``

    Args:
        shown: the effect with its interval, as text.
        unit: unit of the effect; if the claim has several effects, with its name, as in ``layers, copying``.
        count: number of values behind the effect, such as seeds or cases.
        case: name to print for this effect (default: the name in `unit`).
        seeds: number of seeds of the experiment; ``(5 seeds)`` is printed only if 1 < `count` <= `seeds`.
    """
    unit, _, own = ("in accuracy" if unit == "accuracy" else unit).partition(", ")
    over = f" ({count} seeds)" if 1 < (count or 0) <= (seeds or 0) else ""
    begin = f"In the weakest case ({case or own}), which decides, the" if own else "The"
    if unit.startswith("fraction of ") and unit.endswith(_COUNTED):
        cases = f"{count or ''} {unit.removeprefix('fraction of ')}".strip()
        return f"{begin} criterion is met by a fraction of {shown} of the {cases}."
    if not unit or unit.startswith(_AFTER):
        return f"{begin} measured effect is {shown} {unit}".rstrip() + f"{over}."
    return f"{begin} measured effect ({unit}) is {shown}{over}."


def scope_of(row: Mapping[str, Any]) -> str:
    """Return the conditions under which the verdict of a ledger row holds, such as ``at T = 32 and width 64``."""
    if row.get("scope"):
        return str(row["scope"])
    claim = registry.entries("claim").get(row["claim"])
    if claim is not None and getattr(claim, "about", "training") != "training":
        return "on constructed networks and exact quantities"
    return f"at scale {row['scale']}"
