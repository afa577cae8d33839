"""Means over seeds with their intervals: what figures and claims of seeded experiments rest on.

The seeds of an experiment differ in the instance of the process, in the weights and in the samples, so their values are
independent, and each has the noise of its own samples in it already. With few of them a bootstrap over seeds is too narrow
(with three it gives the range, which covers the mean three times in four); Student's interval is not, if the values are
about normal.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

#: 97.5 % quantiles of Student's law with 1, 2, ... degrees of freedom; beyond the last by Cornish and Fisher's expansion.
_STUDENT = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
)
_NORMAL = 1.959964


class Pooled(NamedTuple):
    """A mean with its 95 % interval.

    Attributes:
        num_seeds: how many values it is the mean of; 0 if that is not known.
    """

    value: float
    low: float
    high: float
    num_seeds: int = 0

    @property
    def decides(self) -> bool:
        """Whether there is an interval at all: one value by itself has none, and decides nothing."""
        return self.num_seeds != 1 or self.low < self.high


def student_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's law (error below 1e-3)."""
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    z = _NORMAL
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def pool_values(values: Sequence[float], interval: tuple[float, float] | None = None) -> Pooled:
    """Mean of one value a seed, with Student's 95 % interval.

    Args:
        values: at least one, finite.
        interval: that of a single value over its samples, which is all there is to give then.
    """
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        low, high = interval if interval is not None else (mean, mean)
        return Pooled(mean, min(low, mean), max(high, mean), 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = student_quantile(len(values) - 1) * math.sqrt(variance / len(values))
    return Pooled(mean, mean - half, mean + half, len(values))


def rows_with(rows: Iterable[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    """The rows that have these values in these columns, which all of them must have."""
    return [row for row in rows if all(row[key] == value for key, value in fields.items())]


def pool_rows(rows: Iterable[Mapping[str, Any]], keys: Sequence[str], value: str = "value") -> list[dict[str, Any]]:
    """One row for each combination of `keys`, in order of appearance: the keys, ``value``, ``low``, ``high``, ``seeds``.

    Args:
        rows: of several seeds; several rows of one seed are averaged first. Rows whose value is None do not count.
        keys: columns that tell rows apart.
        value: column of the number, which is called so in the result too.
    """
    groups: dict[tuple, dict[Any, list[Mapping[str, Any]]]] = {}
    for row in rows:
        if row.get(value) is not None:
            of_seed = groups.setdefault(tuple(row[key] for key in keys), {})
            of_seed.setdefault(row.get("seed"), []).append(row)
    pooled = []
    for key, by_seed in groups.items():
        first = next(iter(by_seed.values()))
        alone = len(first) == 1 and first[0].get("low") is not None
        means = [math.fsum(row[value] for row in found) / len(found) for found in by_seed.values()]
        mean, low, high, _ = pool_values(means, (first[0]["low"], first[0]["high"]) if alone else None)
        pooled.append(dict(zip(keys, key, strict=True)) | {value: mean, "low": low, "high": high, "seeds": len(means)})
    return pooled


def by_seed(
    rows: Iterable[Mapping[str, Any]], measure: Callable[[list[Mapping[str, Any]]], float | None]
) -> Pooled | None:
    """A number taken from the rows of each seed by itself, pooled over the seeds that have it; None if none has."""
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row.get("seed"), []).append(row)
    found = [number for number in map(measure, groups.values()) if number is not None]
    return pool_values(found) if found else None
