"""Formatting of text and numbers for readers."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

_MOST_LISTED = 4  # maximum list values shown in a cell


def shorten(labels: Sequence[str], most: int = 18) -> list[str]:
    room = dict.fromkeys(labels, most)
    while True:
        found = {label: _cut(label, length) for label, length in room.items()}
        counts = Counter(found.values())
        alike = [label for label in room if counts[found[label]] > 1]
        if not alike:
            return [found[label] for label in labels]
        for label in alike:
            room[label] = 1 + room[label] * 5 // 4


def _cut(label: str, most: int) -> str:
    head = most // 2
    return label if len(label) <= most else f"{label[:head]}…{label[len(label) - most + head + 1 :]}"


def format_number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if 1e4 <= abs(value) < 1e15:
        return f"{float(f'{value:.4g}'):,.0f}"
    return f"{value:.4g}"


def format_interval(value: float, low: float | None, high: float | None) -> tuple[str, str | None]:
    if low is None or high is None:
        return _minus(format_number(value)), None
    if not 1e-6 < high - low < 1e4 or abs(value) >= 1e9:
        return _minus(format_number(value)), _minus(f"{format_number(low)}, {format_number(high)}")
    decimals = max(0, 1 - math.floor(math.log10((high - low) / 2)))
    return _minus(f"{value:,.{decimals}f}"), _minus(f"{low:,.{decimals}f}, {high:,.{decimals}f}")


def _minus(number: str) -> str:
    return number.replace("-", "−")


def format_cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return format_number(value)
    if isinstance(value, list):
        parts = [format_cell(part) for part in value]
        return ", ".join(parts) if len(parts) <= _MOST_LISTED else f"{len(parts)} values: {parts[0]} … {parts[-1]}"
    return str(value)
