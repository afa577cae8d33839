"""Functions that make curves, bars and heat maps from rows of tables.

lines(
    "Trained",
    curve(rows.where(network="trained"), "layer", "trained", "model", y="accuracy"),
    x_label="layer",
    y_label="probe accuracy",
)
"""

from collections.abc import Iterable, Sequence
from typing import Any

from hmmscope.lab.evidence.figure import Bars, Heatmap, Lines, Role, Series
from hmmscope.lab.evidence.rows import Rows

#: Name and role of a series.
NameAndRole = tuple[str, Role]


def curve(
    rows: Rows, x: str, name: str, role: Role = "other", *, y: str = "value", bands: bool = True, pool: bool = True
) -> Series | None:
    """Return a curve of means over seeds; None if there are no rows.

    Args:
        rows: rows of one or several seeds.
        x: column with the positions on the x axis.
        name: name in the legend.
        role: role of the series, see `figure.Series`.
        y: column with the values; rows with None are left out.
        bands: whether to show intervals (``low`` to ``high``).
        pool: whether to average over seeds; False if the rows are averages already.
    """
    kept = rows.pool(x, value=y) if pool else Rows(row for row in rows if row.get(y) is not None)
    kept = Rows(sorted(kept, key=lambda row: row[x]))
    if not kept:
        return None
    has_ends = bands and kept[0].get("low") is not None and kept[0].get("high") is not None
    low, high = (tuple(row[end] for row in kept) if has_ends else None for end in ("low", "high"))
    return Series(
        name=name, role=role, x=tuple(row[x] for row in kept), y=tuple(row[y] for row in kept), low=low, high=high
    )


def level(value: float, over: Iterable[float], name: str, role: Role = "baseline") -> Series:
    """Return a horizontal line at `value` over the positions `over`."""
    ends = tuple(over)
    return Series(name=name, role=role, x=ends, y=(value,) * len(ends))


def lines(title: str, *series: Series | None, x_label: str, y_label: str, **shown: Any) -> Lines:
    """Return a panel of curves; None is left out."""
    return Lines(title=title, x_label=x_label, y_label=y_label, series=_present(series), **shown)


def bars(title: str, *series: Series | None, categories: Iterable[object], y_label: str, **shown: Any) -> Bars:
    """Return a panel of bars; None is left out."""
    names = tuple(str(category) for category in categories)
    return Bars(title=title, y_label=y_label, categories=names, series=_present(series), **shown)


def bar(rows: Rows, by: str, categories: Sequence[object], name: str, role: Role = "other", y: str = "value") -> Series:
    """Return a series of bars with means over seeds; each category must have rows."""
    pooled = {row[by]: row for row in rows.pool(by, value=y)}
    found = [pooled[category] for category in categories]
    return Series(
        name=name,
        role=role,
        y=tuple(row[y] for row in found),
        low=tuple(row["low"] for row in found),
        high=tuple(row["high"] for row in found),
    )


def heatmap(
    title: str, rows: Rows, x: str, y: str, *, z: str = "value", order: Sequence[Any] | None = None, **shown: Any
) -> Heatmap:
    """Return a heat map of the mean of column `z` for each pair of values in the columns `x` and `y`.

    Args:
        title, rows, x, y, z: title of the panel, rows of a table, and names of the three columns.
        order: order of the values of `y` (default: ascending).
        shown: other fields of `Heatmap`; `x_label`, `y_label` and `z_label` are required.
    """
    columns, lines_ = sorted(rows.values(x)), sorted(rows.values(y)) if order is None else order
    cells = {key: _mean([row[z] for row in group]) for key, group in rows.by(x, y).items()}
    return Heatmap(
        title=title,
        x=tuple(str(column) for column in columns),
        y=tuple(str(line) for line in lines_),
        z=tuple(tuple(cells.get((column, line)) for column in columns) for line in lines_),
        **shown,
    )


def _present(series: Iterable[Series | None]) -> tuple[Series, ...]:
    return tuple(one for one in series if one is not None)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
