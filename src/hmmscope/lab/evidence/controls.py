"""Tables in which other networks stand in the place of the trained ones: what claims on training must not be satisfied by.

A table says in the column ``network`` (or ``model``) which network a row is of: "trained", "untrained", "constructed", and
"trained - untrained" for differences that were resampled together.
"""

from collections.abc import Callable, Mapping

from hmmscope.lab.evidence.rows import Rows, Tables

_COLUMNS = ("network", "model")
TRAINED = "trained"


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
    differences = rows.where(**{column: f"{TRAINED} - {network}"}).with_columns(
        value=lambda row: 0.0,
        low=lambda row: None if row.get("low") is None else row["low"] - row["value"],
        high=lambda row: None if row.get("high") is None else row["high"] - row["value"],
    )
    rest = Rows(row for row in rows if row.get(column) not in (TRAINED, f"{TRAINED} - {network}"))
    return Rows([*taken, *differences, *rest])


def untrained(tables: Tables) -> Tables | None:
    """The untrained network in the place of the trained one."""
    return in_place_of_trained(tables, "untrained")


def constructed(tables: Mapping[str, Rows]) -> Tables | None:
    """The network of the theorem in the place of the trained one."""
    return in_place_of_trained(tables, "constructed")
