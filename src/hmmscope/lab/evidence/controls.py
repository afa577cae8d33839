"""Tables in which other networks stand in the place of the trained ones: what claims on training must not be satisfied by.

A table says in the column ``network`` (or ``model``) which network a row is of: "trained", "untrained", "constructed", and
"trained - untrained" for differences that were resampled together.
"""

from collections.abc import Callable, Mapping
from statistics import fmean

from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.ties import largest, smallest

_COLUMNS = ("network", "model")
TRAINED = "trained"
#: What the trained networks gain over a predictor that knows less: a table of that name, or rows of such a quantity.
GAINS, _GAIN = "learned", "gain over "
#: How the names of predictors that count begin.
_COUNTING = ("order-", "context-tree")


def in_place_of_trained(tables: Tables, network: str) -> Tables | None:
    """The tables with the rows of `network` relabelled as trained; None if no table has rows of both.

    A difference "trained - NETWORK" is then one between a network and itself: zero, with the noise that it had.
    """
    return replaced(tables, lambda rows, column: _swap(rows, column, network))


def replaced(tables: Tables, change: Callable[[Rows, str], Rows | None]) -> Tables | None:
    """The tables with some of them changed: `change` takes a table and its column of networks; None if none was."""
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
    """The tables with gains of zero, with the noise that they had."""
    made = dict(tables)
    for name, rows in tables.items():
        gains = [str(row.get("quantity", row.get("effect"))).startswith(_GAIN) or name == GAINS for row in rows]
        if any(gains):
            made[name] = Rows(
                _none(Rows([row]))[0] if is_gain else row for row, is_gain in zip(rows, gains, strict=True)
            )
    return made


def _none(rows: Rows) -> Rows:
    """Differences of zero, with the noise that they had."""
    return rows.with_columns(
        value=lambda row: 0.0,
        low=lambda row: None if row.get("low") is None else row["low"] - row["value"],
        high=lambda row: None if row.get("high") is None else row["high"] - row["value"],
    )


def untrained(tables: Tables) -> Tables | None:
    """The untrained network in the place of the trained one, which gains nothing."""
    made = in_place_of_trained(tables, "untrained")
    return None if made is None else gaining_nothing({name: rows.as_twins() for name, rows in made.items()})


def counting(tables: Tables) -> Tables | None:
    """The best that counts, by each metric, in the place of the trained network; None if no table has rows of both."""
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
    """The network of the theorem in the place of the trained one."""
    return in_place_of_trained(tables, "constructed")
