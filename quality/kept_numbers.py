"""Shorten answers for comparison with those in a file: a count, two sums of all numbers and a digest of all texts."""

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch


def plain(value: Any) -> Iterator[float | str]:
    """Yield all texts and numbers in a value."""
    value = getattr(value, "vertices", getattr(value, "bounds", value))
    if value is None or isinstance(value, str):
        yield str(value)
    elif isinstance(value, torch.Tensor):
        yield from plain(value.detach().cpu().numpy())
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        finite = np.nan_to_num(np.ma.filled(value.astype(float), np.nan), nan=-77.0, posinf=-78.0, neginf=-79.0)
        yield from finite.ravel().tolist()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    elif hasattr(value, "file_tensors"):  # a process
        yield from plain(value.file_tensors())
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield str(name)
            yield from plain(one)
    elif isinstance(value, Iterable):
        for one in value:
            yield from plain(one)
    elif isinstance(value, int | float | np.number):
        yield from plain(np.array([value]))


#: What is left out of sentences, so that they can be reworded.
_NOT_DIGITS = re.compile("[^0-9]+")


def digest(value: Any) -> list[Any]:
    found = list(plain(value))
    numbers = np.array([one for one in found if not isinstance(one, str)])
    texts = "\n".join(_NOT_DIGITS.sub(" ", one) if " " in one else one for one in found if isinstance(one, str))
    turns = np.cos(np.arange(len(numbers)))
    sums = [float(f"{one:.9g}") for one in (numbers.sum(), numbers @ turns, np.abs(numbers).sum())]
    return [hashlib.md5(texts.encode()).hexdigest()[:8], len(numbers), *sums]


def differing(now: Mapping[str, Any], kept: Mapping[str, Any], rel: float = 1e-6) -> list[str]:
    """Return the names of digests that differ by more than rounding."""
    found = [*(now.keys() ^ kept.keys())]
    for name in now.keys() & kept.keys():
        (*text, one, other, size), (*before, first, second, _) = now[name], kept[name]
        if text != before or (one, other) != pytest.approx((first, second), rel=rel, abs=rel * max(1.0, size)):
            found.append(name)
    return sorted(found)
