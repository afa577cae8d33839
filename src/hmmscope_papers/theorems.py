"""What experiments on theorems share: sequences to run networks on, exponents by instance, and how many instances hold."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from hmmscope import Process, ProcessDataset, SequenceLayout, filter_beliefs
from hmmscope.lab import Effect, Role, Rows, Series, curve

#: Scales for which the experiments on theorems have sizes.
SCALES = ("smoke", "small", "gpu", "paper")
#: The sentence on intervals of these experiments.
INTERVALS = "Intervals are 95 % intervals over instances of the process; bands are their whole range."


def by_scale(**sizes: tuple[Any, Any, Any, Any]) -> dict[str, dict[str, Any]]:
    """The sizes of each scale, from the four numbers or lists that each size has, from the smallest scale on."""
    return {scale: {name: row[place] for name, row in sizes.items()} for place, scale in enumerate(SCALES)}


def driven_samples(
    process: Process, length: int, count: int, seed: int
) -> tuple[Int64[Tensor, "batch column"], Float64[Tensor, "batch column state"]]:
    """Tokens of `count` samples, the placeholder first, and the exact vector after each token.

    The vectors come from the filter, or from the products of the matrices, which know nothing of a construction.
    """
    batch = ProcessDataset(process, layout=SequenceLayout(length=length, placeholder=True), seed=seed)[0:count]
    own = "driven vectors" in process.capabilities()
    vectors = process.vectors(batch.observations) if own else filter_beliefs(process, batch.observations).beliefs
    start = process.driving_matrices()[1]
    return batch.tokens, torch.cat([start.expand(count, 1, -1), vectors], 1)


def largest_error(found: Tensor, exact: Float64[Tensor, "*shape"]) -> float:
    """Largest absolute difference; NaN where something is not a number."""
    return float((found.double() - exact).abs().max())


def slope(xs: Iterable[float], ys: Iterable[float]) -> float:
    """Of the least-squares line."""
    return float(np.polyfit(np.asarray(list(xs), float), np.asarray(list(ys), float), 1)[0])


def power_slopes(rows: Rows, x: str, y: str, *by: str) -> list[float | None]:
    """Exponents of y ~ x^slope, one for each combination of the columns `by` (by default the instance).

    None where there are no two positive values of y: an exponent that does not exist is missing, and not left out.
    """
    slopes: list[float | None] = []
    for group in rows.by(*(by or ("instance",))).values():
        kept = [row for row in group if row[y] > 0]
        several = len({row[x] for row in kept}) > 1
        slopes.append(slope(np.log([r[x] for r in kept]), np.log([r[y] for r in kept])) if several else None)
    return slopes


def always(rows: Rows, holds: Callable[[dict[str, Any]], bool], *by: str, unit: str) -> Effect:
    """How many instances have no row that is a counterexample; each combination of the columns `by` is an instance."""
    return Effect.share([all(holds(row) for row in group) for group in rows.by(*by).values()], unit)


def ranges(rows: Rows, *keys: str, value: str = "error") -> Rows:
    """`value` over the rows that agree in `keys`: (keys.., value = median, low = least, high = largest, mean)."""
    made = Rows()
    for key, group in rows.by(*keys).items():
        found = [row[value] for row in group]
        names = dict(zip(keys, key if len(keys) > 1 else (key,), strict=True))
        ends = {"low": min(found), "high": max(found), "mean": float(np.mean(found))}
        made.append(names | {"value": float(np.median(found))} | ends)
    return made


def band(rows: Rows, x: str, name: str, role: Role = "other", *, y: str = "error") -> Series | None:
    """Median over instances against a column, with their whole range; None without rows."""
    return curve(ranges(rows, x, value=y), x, name, role, pool=False)


def plain(rows: Rows, x: str, name: str, role: Role = "other", *, y: str = "value") -> Series | None:
    """A column against another one, each row a point; None without rows."""
    return curve(rows, x, name, role, y=y, pool=False)
