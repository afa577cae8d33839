"""Rows of a table, with methods that select, group and average them over seeds.

trained = tables["probes"].where(network="trained")
trained.pool("layer", value="accuracy")                         # means over seeds, one row per layer
trained.per_seed(lambda own: own.one(layer=4)["accuracy"])      # one number per seed
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from hmmscope.lab.evidence.effects import ALPHA, Effect, EstimateWithError, quantile
from hmmscope.ties import largest

T = TypeVar("T")
#: Width of a 95 % interval, in standard errors.
_WIDTH = 3.92


class Rows(list[dict[str, Any]]):
    """A list of rows (dicts) with methods for figures and claims."""

    def where(self, **fields: Any) -> "Rows":
        """Return the rows with the given column values; a list, tuple or set matches any of its elements."""
        kept: list[dict[str, Any]] = self
        for key, wanted in fields.items():
            if isinstance(wanted, set | frozenset | list | tuple):
                kept = [row for row in kept if key in row and row[key] in wanted]
            else:
                kept = [row for row in kept if key in row and row[key] == wanted]
        return Rows(kept)

    def one(self, **fields: Any) -> dict[str, Any]:
        """Return the single row with given column values.

        Raises:
            LookupError: there is no such row, or there are several.
        """
        found = self.where(**fields)
        if len(found) != 1:
            raise LookupError(f"found {len(found)} rows with {fields or 'no condition'}; expected exactly one")
        return found[0]

    def values(self, column: str) -> list[Any]:
        """Return the different values of a column."""
        return list(dict.fromkeys(row[column] for row in self if column in row))

    def by(self, *columns: str) -> "dict[Any, Rows]":
        """Group the rows by the values of columns; a key is the value of one column, or a tuple of several values."""
        groups: dict[Any, Rows] = {}
        for row in self:
            key = row.get(columns[0]) if len(columns) == 1 else tuple([row.get(column) for column in columns])
            if key not in groups:
                groups[key] = Rows()
            groups[key].append(row)
        return groups

    def seeds(self) -> list[Any]:
        """Return the different seeds of the rows; rows without a seed count as seed None."""
        return list(dict.fromkeys(row.get("seed") for row in self))

    def per_seed(self, measure: Callable[["Rows"], T]) -> "PerSeed[T]":
        """Return the result of `measure` (a function of rows) for the rows of each seed."""
        return PerSeed({seed: measure(own) for seed, own in self.by("seed").items()})

    def with_columns(self, **columns: Callable[[dict[str, Any]], Any]) -> "Rows":
        """Add columns computed from each row."""
        return Rows(row | {name: make(row) for name, make in columns.items()} for row in self)

    def pool(self, *keys: str, value: str = "value") -> "Rows":
        """Average the column `value` over seeds, for each combination of values of the columns `keys`.

        ``low`` to ``high`` is the interval over seeds, or that of a single row; ``seeds`` is the number of seeds.
        """
        made = Rows()
        for key, group in self.by(*keys).items():
            kept = Rows(row for row in group if row.get(value) is not None)
            if not kept:
                continue
            of_seed = kept.per_seed(lambda own: math.fsum(row[value] for row in own) / len(own))
            effect = Effect.pooled(list(of_seed.values()))
            low = effect.value if effect.low is None else effect.low
            high = effect.value if effect.high is None else effect.high
            if len(kept) == 1 and kept[0].get("low") is not None:
                low, high = min(kept[0]["low"], low), max(kept[0]["high"], high)
            names = dict(zip(keys, key if len(keys) > 1 else (key,), strict=True))
            made.append(names | {value: effect.value, "low": low, "high": high, "seeds": len(of_seed)})
        return made

    def estimates(self, value: str = "value") -> "PerSeed[EstimateWithError | None]":
        """Return the mean value of each seed with its sampling error; None for a seed without values."""
        return self.per_seed(lambda own: _estimate([row for row in own if row.get(value) is not None], value))

    def mean(self, value: str = "value") -> EstimateWithError:
        """Return the mean of a column with its sampling error.

        Raises:
            LookupError: no row has a value.
        """
        found = _estimate([row for row in self if row.get(value) is not None], value)
        if found is None:
            raise LookupError(f"no row has a value in the column {value}")
        return found

    def effect(self, value: str = "value", *, unit: str = "", resolution: float = 0.0) -> Effect | None:
        """Return the mean over seeds with its interval (see `Effect.pooled`); None if there are no values."""
        return self.estimates(value).effect(unit, resolution=resolution)

    def less(self, other: "Rows", value: str = "value", *, unit: str = "", resolution: float = 0.0) -> Effect | None:
        """Return the mean over seeds of the values of these rows minus those of `other`; None if no seed has both.

        Sampling errors are treated as independent.
        """
        return (self.estimates(value) - other.estimates(value)).effect(unit, resolution=resolution)

    def as_twins(self) -> "Rows":
        """Return the rows with results of untrained controls in place of results of trained networks."""
        found = Rows()
        for row in self:
            if row.get("twins") is not None:
                row = row | {name: row["twins"] for name in ("accuracy", "r2") if name in row}
                if row["share"] is not None:
                    ends = {end: row[end] - row["share"] for end in ("share_low", "share_high")}
                    row |= {"share": 0.0} | ends
            found.append(row)
        return found

    def beyond_twins(self, read: str) -> str:
        """Format the best layer's gain over untrained controls, as a fraction of the possible gain; "" without controls.

        Args:
            read: column that selects the best layer, "accuracy" or "r2".
        """

        def share(own: Rows) -> EstimateWithError | None:
            best = largest(own, lambda row: row[read])
            known = best["share"] is not None
            return (
                EstimateWithError(best["share"], (best["share_high"] - best["share_low"]) / _WIDTH) if known else None
            )

        known = Rows(row for row in self if row.get("twins") is not None)
        if not known:
            return ""
        found = known.per_seed(share).effect()
        if found is None:
            return "the effect of training is not identifiable"
        return f"{found.short()} of the possible gain over untrained controls"


class PerSeed(dict[Any, T]):
    """A mapping from seeds to numbers, estimates or None."""

    def effect(self, unit: str = "", *, resolution: float = 0.0) -> Effect | None:
        """Return the mean of the numbers over seeds (see `Effect.pooled`); None if there are none."""
        values: list[Any] = list(self.values())
        return None if all(value is None for value in values) else Effect.pooled(values, unit, resolution=resolution)

    def __sub__(self, other: Mapping[Any, Any]) -> "PerSeed[Any]":
        return PerSeed({seed: _difference(self.get(seed), other.get(seed)) for seed in {**self, **other}})


#: The tables of an experiment by name.
Tables = Mapping[str, Rows]


def as_tables(tables: Mapping[str, Iterable[dict[str, Any]]]) -> dict[str, Rows]:
    return {name: Rows(rows) for name, rows in tables.items()}


def identical_seeds(tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> tuple[Any, Any] | None:
    """Return two seeds with identical tables, or None; tables of only integers, which can agree by chance, give None."""
    by_seed: dict[Any, list[Any]] = {}
    measured = False
    for name, rows in tables.items():
        for row in rows:
            if row.get("seed") is not None:
                by_seed.setdefault(row["seed"], []).append((name, row))
                measured = measured or any(isinstance(v, float) and not v.is_integer() for v in row.values())
    if not measured:
        return None
    seeds = list(by_seed)
    pairs = ((one, other) for number, one in enumerate(seeds) for other in seeds[number + 1 :])
    return next((pair for pair in pairs if _same_but_seed(by_seed[pair[0]], by_seed[pair[1]])), None)


def _same_but_seed(one: list[Any], other: list[Any]) -> bool:
    def bare(found: tuple[str, Mapping[str, Any]]) -> Any:
        return found[0], {key: value for key, value in found[1].items() if key != "seed"}

    return len(one) == len(other) and all(bare(a) == bare(b) for a, b in zip(one, other, strict=True))


def _estimate(rows: list[dict[str, Any]], value: str) -> EstimateWithError | None:
    if not rows:
        return None
    errors = [_error(row) for row in rows]
    return EstimateWithError(math.fsum(row[value] for row in rows) / len(rows), math.hypot(*errors) / len(rows))


def _error(row: Mapping[str, Any]) -> float:
    if row.get("error") is not None:
        return float(row["error"])
    if row.get("low") is None or row.get("high") is None:
        return 0.0
    return float(row["high"] - row["low"]) / (2 * quantile(0, ALPHA))


def _difference(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one - other
