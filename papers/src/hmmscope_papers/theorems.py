"""Helpers shared by experiments on theorems."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from hmmscope import Process, ProcessDataset, SequenceLayout, filter_beliefs
from hmmscope.lab import Effect, Role, Rows, Series, curve

#: Scales of the experiments on theorems.
SCALES = ("smoke", "small", "gpu", "paper")
#: Description of the intervals of the experiments on theorems.
INTERVALS = "Intervals are 95 % intervals over instances of the process; bands show the range of all values."


def by_scale(**sizes: tuple[Any, Any, Any, Any]) -> dict[str, dict[str, Any]]:
    """Return the sizes at each scale, from one tuple per size with a value for each of the `SCALES`."""
    return {scale: {name: row[place] for name, row in sizes.items()} for place, scale in enumerate(SCALES)}


def instances_of(sizes: dict[str, Any], name: str = "instances") -> range:
    first: int = sizes.get("first_instance", 0)
    return range(first, first + sizes[name])


def driven_samples(
    process: Process, length: int, count: int, seed: int
) -> tuple[Int64[Tensor, "batch column"], Float64[Tensor, "batch column state"]]:
    batch = ProcessDataset(process, layout=SequenceLayout(length=length, placeholder=True), seed=seed)[0:count]
    own = "driven vectors" in process.capabilities()
    vectors = process.vectors(batch.observations) if own else filter_beliefs(process, batch.observations).beliefs
    start = process.driving_matrices()[1]
    return batch.tokens, torch.cat([start.expand(count, 1, -1), vectors], 1)


def largest_error(found: Tensor, exact: Float64[Tensor, "*shape"]) -> float:
    return float((found.double() - exact).abs().max())


def slope(xs: Iterable[float], ys: Iterable[float]) -> float:
    return float(np.polyfit(np.asarray(list(xs), float), np.asarray(list(ys), float), 1)[0])


def power_slopes(rows: Rows, x: str, y: str, *by: str) -> list[float | None]:
    """Return exponents of y ~ x^slope, one per combination of the columns `by` (default: per instance).

    An exponent is None if fewer than two different x have a positive y.
    """
    slopes: list[float | None] = []
    for group in rows.by(*(by or ("instance",))).values():
        kept = [row for row in group if row[y] > 0]
        several = len({row[x] for row in kept}) > 1
        slopes.append(slope(np.log([r[x] for r in kept]), np.log([r[y] for r in kept])) if several else None)
    return slopes


def always(rows: Rows, holds: Callable[[dict[str, Any]], bool], *by: str, unit: str) -> Effect:
    """Return the fraction of instances (combinations of `by`) in which all rows satisfy `holds`."""
    return Effect.share([all(holds(row) for row in group) for group in rows.by(*by).values()], unit)


def ranges(rows: Rows, *keys: str, value: str = "error") -> Rows:
    made = Rows()
    for key, group in rows.by(*keys).items():
        found = [row[value] for row in group]
        names = dict(zip(keys, key if len(keys) > 1 else (key,), strict=True))
        ends = {"low": min(found), "high": max(found), "mean": float(np.mean(found))}
        made.append(names | {"value": float(np.median(found))} | ends)
    return made


def band(rows: Rows, x: str, name: str, role: Role = "other", *, y: str = "error") -> Series | None:
    return curve(ranges(rows, x, value=y), x, name, role, pool=False)


def plain(rows: Rows, x: str, name: str, role: Role = "other", *, y: str = "value") -> Series | None:
    return curve(rows, x, name, role, y=y, pool=False)
