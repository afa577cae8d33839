"""Metrics of predictors, and tables of these metrics."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.axes import Bool, Float64, Tensor
from hmmscope.reprs import Tabular


@dataclass(frozen=True, repr=False)
class Measures(Tabular):
    """Metrics of several predictors at the same positions.

    Attributes:
        measures, demonstrations, positions: see `Score`.
    """

    measures: dict[str, dict[str, NDArray[np.float64]]]
    demonstrations: NDArray[np.int64]
    positions: NDArray[np.int64]

    def table(self) -> list[dict]:
        return [
            {"predictor": name} | {metric: float(np.nanmean(values)) for metric, values in metrics.items()}
            for name, metrics in self.measures.items()
        ]

    def rows(self, axis: str, kept: NDArray[np.bool_] | None = None) -> list[dict]:
        """Return means (axis, x, predictor, metric, value, low, high, samples) at each x on `axis`.

        `axis` is "demonstrations" or "positions". The 95 % interval is over samples. `kept` is a mask of positions.
        Infinite means become None.
        """
        kept = np.ones(len(self.positions), bool) if kept is None else kept
        along = (self.demonstrations if axis == "demonstrations" else self.positions)[kept]
        xs = np.unique(along)
        rows = []
        for predictor, metrics in self.measures.items():
            for metric, values in metrics.items():
                averages = np.stack([mean_of_asked(values[:, kept][:, along == x]) for x in xs], 1)
                if np.isnan(averages).any():
                    rows += _ragged_rows(averages, xs, axis, predictor, metric)
                    continue
                infinite = np.asarray(np.logical_not(np.isfinite(averages)).any(0))
                no_ends = infinite | (len(values) < 2)
                mean, low, high = bootstrap_means(np.where(infinite, 0.0, averages))
                rows += [
                    {
                        "axis": axis,
                        "x": int(x),
                        "predictor": predictor,
                        "metric": metric,
                        "value": None if infinite[i] else float(mean[i]),
                        "low": None if no_ends[i] else float(low[i]),
                        "high": None if no_ends[i] else float(high[i]),
                        "samples": len(values),
                    }
                    for i, x in enumerate(xs)
                ]
        return rows


def mean_of_asked(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average each sample over its positions that are not NaN; NaN if it has none."""
    asked: NDArray[np.bool_] = np.logical_not(np.isnan(values))
    total = np.where(asked, values, 0.0).sum(1)
    return np.divide(total, asked.sum(1), out=np.full(len(values), np.nan), where=asked.any(1))


def means_of_asked(
    values: Float64[Tensor, "sample judged"], asked: Bool[Tensor, "sample judged"]
) -> Float64[Tensor, " some"]:
    """Average over the evaluated positions of each sample; omit samples that have none."""
    if asked.all():
        return values.mean(1)
    count = asked.sum(1)
    return (values.where(asked, 0.0).sum(1) / count)[count > 0]


def _ragged_rows(
    averages: NDArray[np.float64], xs: NDArray[np.int64], axis: str, predictor: str, metric: str
) -> list[dict]:
    rows = []
    for x, values in zip(xs.tolist(), averages.T, strict=True):
        found = values[~np.isnan(values)]
        if len(found):
            finite = bool(np.isfinite(found).all())
            mean, low, high = bootstrap_means(found[:, None]) if finite else ([None], [None], [None])
            low, high = (low, high) if len(found) > 1 else ([None], [None])
            numbers = [None if number is None else float(number) for number in (mean[0], low[0], high[0])]
            row = {"axis": axis, "x": x, "predictor": predictor, "metric": metric}
            rows.append(row | dict(zip(("value", "low", "high"), numbers, strict=True)) | {"samples": len(found)})
    return rows
