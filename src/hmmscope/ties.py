"""Choices, orders and printed digits that do not depend on rounding errors.

Numbers that differ by at most `TOLERANCE` (relative to the largest magnitude) count as equal; the first of equal
numbers is chosen.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

#: Largest relative difference of equal numbers; above errors of rounding (1e-12) and of multiples of 2^-32 (2e-10).
TOLERANCE = 1e-8
#: Significant digits of a float that rounding does not affect.
DIGITS = 13
#: Largest rounding error of a difference of equal numbers of about one.
_ROUNDING = 1e-12

Item = TypeVar("Item")


def descending(values: Sequence[float]) -> list[int]:
    """Return the indices that sort the numbers in descending order; equal numbers keep their order."""
    order = sorted(range(len(values)), key=lambda place: -values[place])
    slack = _slack(values)
    found: list[int] = []
    while len(found) < len(order):
        first = values[order[len(found)]]
        equal = len(found)
        while equal < len(order) and not values[order[equal]] < first - slack:
            equal += 1
        found += sorted(order[len(found) : equal])
    return found


def largest(items: Iterable[Item], key: Callable[[Item], float]) -> Item:
    """Return the first item with the largest key, up to the tolerance.

    Raises:
        ValueError: There are no items.
    """
    kept = list(items)
    values = [float(key(item)) for item in kept]
    top, slack = max(values), _slack(values)
    return next((item for item, value in zip(kept, values, strict=True) if value >= top - slack), kept[0])


def smallest(items: Iterable[Item], key: Callable[[Item], float]) -> Item:
    """Return the first item with the smallest key, up to the tolerance.

    Raises:
        ValueError: There are no items.
    """
    return largest(items, lambda item: -float(key(item)))


def steady(value: float) -> float:
    return float(f"{value:.{DIGITS - 1}e}")


def rounded(value: float) -> float:
    return 0.0 if abs(value) <= _ROUNDING else steady(value)


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, int | float) and not isinstance(other, bool):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=_ROUNDING)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _slack(values: Sequence[float]) -> float:
    return TOLERANCE * max((abs(value) for value in values if math.isfinite(value)), default=0.0)
