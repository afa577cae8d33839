"""Choices, orders and printed digits that do not depend on the last bit of a float.

A matrix product or a sum comes out one unit in the last place higher on one processor and lower on another, because
libraries add in different orders. Two states that are equally likely in exact arithmetic then differ by 1e-17 in one
direction or the other. So nothing here compares floats bit by bit:

    numbers within `TOLERANCE` of one another are equal, and among equals the first one comes first
    a printed number is rounded to `DIGITS` digits before it is rounded to those that are shown

The same for laws in tensors: `hmmscope.inference.stable_argmax`.

The tolerance is relative to the largest magnitude among the numbers that are compared. It lies far above rounding: sums
of thousands of terms are right to 1e-12. It also lies above what quantisation does, because probabilities are multiples
of 2^-32: nine equally likely states differ by 2e-10. No difference that means anything here is smaller.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

#: How far apart numbers may be and still be equal, as a share of the largest magnitude among them.
TOLERANCE = 1e-8
#: Significant digits of a float that rounding leaves alone.
DIGITS = 13
#: What is left of a difference of equal numbers of about one, at most.
_ROUNDING = 1e-12

Item = TypeVar("Item")


def descending(values: Sequence[float]) -> list[int]:
    """Places of the numbers, largest first; equal ones, which are within the tolerance of the first of them, by place."""
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
    """The first of the items whose key is the largest, up to the tolerance, as `max` for keys without rounding.

    Raises:
        ValueError: no items.
    """
    kept = list(items)
    values = [float(key(item)) for item in kept]
    top, slack = max(values), _slack(values)
    return next((item for item, value in zip(kept, values, strict=True) if value >= top - slack), kept[0])


def smallest(items: Iterable[Item], key: Callable[[Item], float]) -> Item:
    """The first of the items whose key is the smallest, up to the tolerance.

    Raises:
        ValueError: no items.
    """
    return largest(items, lambda item: -float(key(item)))


def steady(value: float) -> float:
    """The float that is nearest to the first `DIGITS` digits of a number: what is printed with fewer digits.

    ``f"{steady(value):z.6f}"`` is the same text for 1/128 = 0.0078125, whose last digit is in the middle, and for the
    floats beside it; the `z` takes the sign from a zero.
    """
    return float(f"{value:.{DIGITS - 1}e}")


def rounded(value: float) -> float:
    """`steady`, and zero for what is left of a difference of equal numbers: effects and bounds, which are about one."""
    return 0.0 if abs(value) <= _ROUNDING else steady(value)


def alike(one: Any, other: Any) -> bool:
    """Whether two pieces of nested data are the same, their numbers up to rounding (a relative 1e-9)."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, int | float) and not isinstance(other, bool):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=_ROUNDING)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _slack(values: Sequence[float]) -> float:
    return TOLERANCE * max((abs(value) for value in values if math.isfinite(value)), default=0.0)
