"""Curves from plain rows; this module goes with the last experiment that does not draw by `hmmscope.evidence.panels`."""

from hmmscope.evidence.figures import Lines, Series
from hmmscope.experiments.run_page import PREDICTORS


def series_of(rows: list[dict], name: str, role: str, *, x: str = "x", y: str = "value") -> Series:
    """Rows of a table as a curve, with the interval if the rows have one."""
    rows = sorted(rows, key=lambda row: row[x])
    bounds = {side: tuple(row[side] for row in rows) for side in ("low", "high") if rows and side in rows[0]}
    return Series(name=name, role=role, x=tuple(row[x] for row in rows), y=tuple(row[y] for row in rows), **bounds)  # type: ignore[arg-type]


def curves_panel(rows: list[dict], metric: str, *, title: str, x_label: str, y_label: str) -> Lines:
    """One metric of the predictors in a table of `Score.rows`."""
    series = []
    for predictor, (label, role) in PREDICTORS.items():
        found = [row for row in rows if row["predictor"] == predictor and row["metric"] == metric]
        if found:
            series.append(series_of(found, label, role))
    return Lines(title=title, x_label=x_label, y_label=y_label, series=tuple(series))
