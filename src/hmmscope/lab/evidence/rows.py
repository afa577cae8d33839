"""Rows of a table: what is chosen, grouped and averaged over seeds before it becomes a curve or an effect.

trained = tables["probes"].where(network="trained", labels="true")
trained.where(distance=1).pool("layer", value="accuracy")       # means over seeds, one row a layer
trained.per_seed(lambda own: own.one(layer=4)["accuracy"])      # one number a seed
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from hmmscope.lab.evidence.effects import ALPHA, Effect, EstimateWithError, quantile
from hmmscope.ties import largest

T = TypeVar("T")
#: Of a 95 % interval, in standard errors.
_WIDTH = 3.92


class Rows(list[dict[str, Any]]):
    """A list of plain rows with the few operations that figures and claims need."""

    def where(self, **fields: Any) -> "Rows":
        """The rows that have these values in these columns; a set, list or tuple of values means any of them.

        A row that lacks one of the columns is not among them.
        """
        kept: list[dict[str, Any]] = self
        for key, wanted in fields.items():
            if isinstance(wanted, set | frozenset | list | tuple):
                kept = [row for row in kept if key in row and row[key] in wanted]
            else:
                kept = [row for row in kept if key in row and row[key] == wanted]
        return Rows(kept)

    def one(self, **fields: Any) -> dict[str, Any]:
        """The only row that has these values.

        Raises:
            LookupError: no such row, or several; the message names the values.
        """
        found = self.where(**fields)
        if len(found) != 1:
            raise LookupError(f"{len(found)} rows with {fields or 'no condition'} instead of one")
        return found[0]

    def values(self, column: str) -> list[Any]:
        """The different values of a column, in order of appearance; rows without the column do not count."""
        return list(dict.fromkeys(row[column] for row in self if column in row))

    def by(self, *columns: str) -> "dict[Any, Rows]":
        """The rows of each combination of values, in order of appearance; of one column the key is the value itself."""
        groups: dict[Any, Rows] = {}
        for row in self:
            key = row.get(columns[0]) if len(columns) == 1 else tuple([row.get(column) for column in columns])
            if key not in groups:
                groups[key] = Rows()
            groups[key].append(row)
        return groups

    def seeds(self) -> list[Any]:
        """The seeds, in order of appearance; a table without seeds has the one seed None."""
        return list(dict.fromkeys(row.get("seed") for row in self))

    def per_seed(self, measure: Callable[["Rows"], T]) -> "PerSeed[T]":
        """What `measure` makes of the rows of each seed."""
        return PerSeed({seed: measure(own) for seed, own in self.by("seed").items()})

    def with_columns(self, **columns: Callable[[dict[str, Any]], Any]) -> "Rows":
        """The rows with further columns, each computed from its row."""
        return Rows(row | {name: make(row) for name, make in columns.items()} for row in self)

    def pool(self, *keys: str, value: str = "value") -> "Rows":
        """One row for each combination of `keys`: the keys, `value`, ``low``, ``high``, ``seeds``.

        Several rows of one seed are averaged first; rows whose value is None do not count. The interval is that over seeds.
        Of one seed with one row it is the interval of that row over its samples, if it has one.
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
        """The number of each seed with the error that its samples give it; None where the seed has only missing values.

        Several rows of one seed are averaged. The error is the column ``error``, or that of the interval of the row.
        """
        return self.per_seed(lambda own: _estimate([row for row in own if row.get(value) is not None], value))

    def mean(self, value: str = "value") -> EstimateWithError:
        """The mean of a column, with the error that its samples give it.

        Raises:
            LookupError: no row has it.
        """
        found = _estimate([row for row in self if row.get(value) is not None], value)
        if found is None:
            raise LookupError(f"no row with a {value}")
        return found

    def effect(self, value: str = "value", *, unit: str = "", resolution: float = 0.0) -> Effect | None:
        """The mean of a column over seeds, see `Effect.pooled`; None if no seed has it."""
        return self.estimates(value).effect(unit, resolution=resolution)

    def less(self, other: "Rows", value: str = "value", *, unit: str = "", resolution: float = 0.0) -> Effect | None:
        """The column less that of other rows, seed by seed; None unless both were measured.

        The samples' errors of both are added, which is too wide where both were measured on the same samples.
        """
        return (self.estimates(value) - other.estimates(value)).effect(unit, resolution=resolution)

    def as_twins(self) -> "Rows":
        """What is read of a network that has untrained twins beside it is what is read of these."""
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
        """``0.91 [0.88, 0.94] of what untrained twins leave``, where it is read best in each seed; empty without twins.

        The rows are of one model and target by layer, with the columns of `analysis.controls`.

        Args:
            read: the column by which a layer is best, "accuracy" or "r2".
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
            return "what training adds is not identifiable"
        return f"{found.short()} of what untrained twins leave"


class PerSeed(dict[Any, T]):
    """One number a seed, or an estimate of it, or None where the seed lacks it."""

    def effect(self, unit: str = "", *, resolution: float = 0.0) -> Effect | None:
        """`Effect.pooled` of the numbers; None if no seed has it."""
        values: list[Any] = list(self.values())
        return None if all(value is None for value in values) else Effect.pooled(values, unit, resolution=resolution)

    def __sub__(self, other: Mapping[Any, Any]) -> "PerSeed[Any]":
        """Differences seed by seed; None where a seed lacks one of both."""
        return PerSeed({seed: _difference(self.get(seed), other.get(seed)) for seed in {**self, **other}})


#: The tables of an experiment by name.
Tables = Mapping[str, Rows]


def as_tables(tables: Mapping[str, Iterable[dict[str, Any]]]) -> dict[str, Rows]:
    """Plain lists of rows as `Tables`."""
    return {name: Rows(rows) for name, rows in tables.items()}


def identical_seeds(tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> tuple[Any, Any] | None:
    """Two seeds with the same rows in every table that has seeds, so that they are one; None where there are none.

    Tables without a measured number, which is no whole one, tell nothing.
    """
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
    """Standard error of a row's value over its samples; 0 where it has no interval."""
    if row.get("error") is not None:
        return float(row["error"])
    if row.get("low") is None or row.get("high") is None:
        return 0.0
    return float(row["high"] - row["low"]) / (2 * quantile(0, ALPHA))


def _difference(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one - other
