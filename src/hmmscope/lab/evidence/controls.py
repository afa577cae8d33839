"""Copies of tables with other networks in place of trained networks, for tests of claims about training.

The column ``network`` or ``model`` holds "trained", "untrained", "constructed" or the difference "trained - untrained".
"""

from collections.abc import Callable, Mapping
from statistics import fmean

from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.ties import largest, smallest

_COLUMNS = ("network", "model")
TRAINED = "trained"
#: Name of the table of gains over weaker predictors, and prefix of such quantities in other tables.
GAINS, _GAIN = "learned", "gain over "
#: Prefixes of the names of n-gram baselines.
_COUNTING = ("order-", "context-tree")


def in_place_of_trained(tables: Tables, network: str) -> Tables | None:
    """Return the tables with the rows of `network` labelled as trained; None if no table has both networks.

    Differences between the two networks become zero, with intervals as wide as before.
    """
    return replaced(tables, lambda rows, column: _swap(rows, column, network))


def replaced(tables: Tables, change: Callable[[Rows, str], Rows | None]) -> Tables | None:
    made: dict[str, Rows] = {}
    for name, rows in tables.items():
        for column in _COLUMNS:
            found = change(rows, column)
            if found is not None:
                made[name] = found
                break
    return {**tables, **made} if made else None


def _swap(rows: Rows, column: str, network: str) -> Rows | None:
    kinds = set(rows.values(column))
    if not {TRAINED, network} <= kinds:
        return None
    taken = rows.where(**{column: network}).with_columns(**{column: lambda row: TRAINED})
    differences = _none(rows.where(**{column: f"{TRAINED} - {network}"}))
    rest = Rows(row for row in rows if row.get(column) not in (TRAINED, f"{TRAINED} - {network}"))
    return Rows([*taken, *differences, *rest])


def gaining_nothing(tables: Tables) -> Tables:
    """Return the tables with all gains from training set to zero, with intervals as wide as before."""
    made = dict(tables)
    for name, rows in tables.items():
        gains = [str(row.get("quantity", row.get("effect"))).startswith(_GAIN) or name == GAINS for row in rows]
        if any(gains):
            made[name] = Rows(
                _none(Rows([row]))[0] if is_gain else row for row, is_gain in zip(rows, gains, strict=True)
            )
    return made


def _none(rows: Rows) -> Rows:
    return rows.with_columns(
        value=lambda row: 0.0,
        low=lambda row: None if row.get("low") is None else row["low"] - row["value"],
        high=lambda row: None if row.get("high") is None else row["high"] - row["value"],
    )


def untrained(tables: Tables) -> Tables | None:
    """Return the tables with untrained networks labelled as trained and zero gains; None if no table has both kinds."""
    made = in_place_of_trained(tables, "untrained")
    return None if made is None else gaining_nothing({name: rows.as_twins() for name, rows in made.items()})


def counting(tables: Tables) -> Tables | None:
    """Return the tables with the best n-gram baseline labelled as trained and zero gains; None if nothing changes."""
    made: dict[str, Rows] = {}
    for name, rows in tables.items():
        counted = [one for one in rows.values("predictor") if str(one).startswith(_COUNTING)]
        own = next((one for one in rows.values("predictor") if one in (TRAINED, "model")), None)
        if own is None or not counted:
            continue
        made[name] = Rows(row for row in rows if row["predictor"] != own)
        for metric, measured in rows.where(predictor=counted).by("metric").items():
            means = {one: fmean(row["value"] for row in some) for one, some in measured.by("predictor").items()}
            best = (largest if metric == "accuracy" else smallest)(means, means.__getitem__)
            made[name] += Rows(row | {"predictor": own} for row in measured.where(predictor=best))
    gained = gaining_nothing({**tables, **made})
    return gained if gained != tables else None


def constructed(tables: Mapping[str, Rows]) -> Tables | None:
    """Return the tables with the constructed network labelled as trained; None if no table has both networks."""
    return in_place_of_trained(tables, "constructed")
