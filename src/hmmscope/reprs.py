"""Printed forms of records and models, and tables for notebooks, pandas and polars."""

import importlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from html import escape
from types import MappingProxyType
from typing import Any

import numpy as np

from hmmscope.errors import InputError


def html_table(title: str, facts: Mapping[str, Any]) -> str:
    cells = "".join(
        f"<tr><th style='text-align:left'>{escape(k)}</th><td>{_shown(v)}</td></tr>" for k, v in facts.items()
    )
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"


class Shown:
    """Base class of records that print the shapes of their arrays, and appear as a table in notebooks."""

    def _facts(self) -> dict[str, str]:
        return {field.name: brief(getattr(self, field.name)) for field in fields(self) if field.repr}  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self._facts().items())})"

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, self._facts())


def brief(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "tolist"):
        if math.prod(value.shape) <= 4:
            return brief(value.tolist())
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple | dict) and len(value) > 4:
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(brief, value))}]"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def changed(spec: Any) -> str:
    told = []
    for field in fields(spec):
        value = getattr(spec, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.repr and value != default:
            told.append(f"{field.name}={brief(value)}")
    return f"{getattr(spec, 'name', type(spec).__name__)}({', '.join(told)})"


def html_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    header = "".join(f"<th>{escape(column)}</th>" for column in columns)
    cells = "".join(
        "<tr>" + "".join(f"<td>{_shown(row[column]) if column in row else ''}</td>" for column in columns) + "</tr>"
        for row in rows
    )
    return f"<table><caption>{escape(title)}</caption><tr>{header}</tr>{cells}</table>"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))


def needed(module: str, what: str) -> Any:
    """Import an optional module; raise InputError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        name = module.partition(".")[0]
        raise InputError(f"{what}: needs {name}; pip install {name}") from None


def to_frame(columns: Mapping[str, Any], index: Any = None) -> Any:
    return needed("pandas", "to_pandas").DataFrame(dict(columns), index=index)


def columns_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a list of values for each key of the rows (dicts), with None where a row lacks the key.

    Dates and durations of NumPy become an array, because polars reads each number in a list of them as microseconds.
    """
    rows = list(rows)
    names = dict.fromkeys(key for row in rows for key in row)
    return {name: times_as_array([row.get(name) for row in rows]) for name in names}


def times_as_array(values: Any) -> Any:
    """Convert dates or durations of NumPy to an array in nanoseconds or microseconds; return other values unchanged."""
    given = values[:1] if isinstance(values, np.ndarray) else [one for one in values if one is not None]
    if not len(given) or {type(one) for one in given} not in ({np.datetime64}, {np.timedelta64}):
        return values
    unit = "ns" if all(np.datetime_data(one.dtype)[0] == "ns" for one in given) else "us"
    return np.array(values, f"{given[0].dtype.kind}8[{unit}]")


class Tabular:
    """Base class of results with a `table()`, for pandas or polars, as in `polars.DataFrame(result.columns())`."""

    def table(self) -> "Sequence[Mapping[str, Any]]":
        raise NotImplementedError

    def columns(self) -> dict[str, Any]:
        """Return the columns of `table()`, for `polars.DataFrame` or `pyarrow.table`."""
        return columns_of(self.table())

    def to_pandas(self) -> Any:
        """Return `table()` as a pandas DataFrame; its `attrs` hold `about`, `warnings` and `invalid`, if any."""
        frame = to_frame(self.columns())
        frame.attrs = {name: own for name in ("about", "warnings", "invalid") if (own := getattr(self, name, None))}
        return frame


class ResultRows(Tabular, list[dict[str, Any]]):
    """Rows of a result: a list of dicts, ready for pandas or polars.

    Attributes:
        warnings: Warnings about the measured model.
        about: Settings of the measurement, such as length and seed of samples.
    """

    warnings: tuple[str, ...] = ()
    about: Mapping[str, Any] = MappingProxyType({})

    def table(self) -> list[dict[str, Any]]:
        return list(self)

    def __repr__(self) -> str:
        return "\n".join([super().__repr__(), *(f"warning: {line}" for line in self.warnings)])


class ResultTable(ResultRows):
    """Rows of an instrument, shown as a table in notebooks.

    Args:
        rows: Rows with the same columns.
        title: Title of the table.
        x, y: Columns on the two axes of the plot.
        by: Columns with values that distinguish the curves of the plot.
        only: Columns for which a plot keeps only the rows with the most frequent value.
    """

    def __init__(
        self, rows: Iterable[dict[str, Any]], title: str, *, x: str, y: str, by: Sequence[str], only: Sequence[str] = ()
    ) -> None:
        super().__init__(rows)
        self.title, self.x, self.y, self.by, self.only = title, x, y, tuple(by), tuple(only)

    def plot(self, *, ax: Any = None, **only: Any) -> Any:
        """Return a Matplotlib figure of `y` over `x`, with intervals; keywords such as ``metric="kl"`` select rows."""
        values = {name: [row.get(name) for row in self] for name in self.only if self}
        chosen = {name: max(dict.fromkeys(own), key=own.count) for name, own in values.items()} | only
        kept = [row for row in self if all(row.get(name) == value for name, value in chosen.items())]
        for name in {self.x, self.y, *self.by, *only}:
            if not any(name in row for row in self):
                raise InputError(
                    f"plot: needs the column {name!r}; this table has {', '.join(self[0]) if self else 'none'}"
                )
        if not kept:
            raise InputError(f"plot: no row has {', '.join(f'{name}={value!r}' for name, value in chosen.items())}")
        title = ", ".join([self.title, *map(str, chosen.values())])
        return plot_rows(kept, title, x=self.x, y=self.y, by=self.by, ax=ax)

    def _repr_html_(self) -> str:
        about = f"<p>{escape(describe(self.about))}</p>" if self.about else ""
        return (
            html_rows(self.title, self) + about + "".join(f"<p>warning: {escape(line)}</p>" for line in self.warnings)
        )


def describe(about: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {', '.join(one) if isinstance(one, list) else one}" for name, one in about.items())


def plot_rows(
    rows: Sequence[Mapping[str, Any]], title: str, *, x: str, y: str, by: Sequence[str], ax: Any = None
) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 3.2), layout="constrained") if ax is None else ax.figure
    axes = figure.subplots() if ax is None else ax
    curves: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get(y) is not None and row.get(x) is not None:
            curves.setdefault(tuple(row[name] for name in by), []).append(row)
    for names, own in curves.items():
        named = isinstance(own[0][x], str)  # categories keep their order
        own = own if named else sorted(own, key=lambda row: row[x])
        style: dict[str, Any] = {"marker": ".", "linestyle": "none" if named else "-"}
        (line,) = axes.plot([row[x] for row in own], [row[y] for row in own], label=", ".join(map(str, names)), **style)
        if all(row.get(end) is not None for row in own for end in ("low", "high")):
            low, high = ([row[end] for row in own] for end in ("low", "high"))
            if named:
                axes.tick_params(axis="x", rotation=30)
                axes.vlines([row[x] for row in own], low, high, line.get_color(), linewidth=1)
            else:
                axes.fill_between([row[x] for row in own], low, high, alpha=0.2, color=line.get_color(), linewidth=0)
    axes.set(title=title, xlabel=x.replace("_", " "), ylabel=y.replace("_", " "))
    if len(curves) > 1:
        axes.legend(fontsize="small")
    return figure
