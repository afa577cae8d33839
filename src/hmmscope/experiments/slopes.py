"""Rates: slopes of logarithms with their intervals over instances, and the sequences that theorems are run on."""

from collections.abc import Iterable

import numpy as np
import torch

from hmmscope.analysis.intervals import NUM_RESAMPLES, bootstrap_means
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.corpora.corpus import Corpus
from hmmscope.corpora.layouts import Sequences
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.processes.base import Process
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.matrix_product import MatrixProduct
from hmmscope.seeds import numpy_generator


def driven_samples(
    process: Process, length: int, count: int, seed: int
) -> tuple[Int64[Tensor, "batch column"], Float64[Tensor, "batch column state"]]:
    """Tokens of `count` samples, the placeholder first, and the exact vector after each token.

    The vectors come from the filter, or from the products of the matrices, which know nothing of a construction.
    """
    batch = Corpus(process, layout=Sequences(length=length, placeholder=True), seed=seed)[0:count]
    if isinstance(process, LabelledHMM):
        vectors = filter_beliefs(process, batch.observations).beliefs
        start = process.initial_S
    else:
        assert isinstance(process, MatrixProduct)
        vectors = process.vectors(batch.observations)
        start = torch.eye(process.dimension, dtype=torch.float64)[0]
    return batch.tokens, torch.cat([start.expand(count, 1, -1), vectors], 1)


def largest_error(found: Tensor, exact: Float64[Tensor, "*shape"]) -> float:
    """Largest absolute difference; NaN where something is not a number."""
    return float((found.double() - exact).abs().max())


def slope(xs: Iterable[float], ys: Iterable[float]) -> float:
    """Of the least-squares line."""
    return float(np.polyfit(np.asarray(list(xs), float), np.asarray(list(ys), float), 1)[0])


def power_slopes(rows: list[dict], x: str, y: str, *, group: str = "instance") -> list[float]:
    """Exponents of y ~ x^slope, one for each group with two or more rows of positive y."""
    slopes = []
    for name in sorted({row[group] for row in rows}, key=str):
        kept = [row for row in rows if row[group] == name and row[y] > 0]
        if len({row[x] for row in kept}) > 1:
            slopes.append(slope(np.log([row[x] for row in kept]), np.log([row[y] for row in kept])))
    return slopes


def slope_row(slopes: list[float], **names: object) -> dict:
    """Mean of the slopes with its 95 % bootstrap interval over them, as a row of a table."""
    mean, low, high = (float(value) for value in bootstrap_means(np.array(slopes)))
    return {**names, "value": mean, "low": min(low, mean), "high": max(high, mean), "instances": len(slopes)}


def point_slope_row(points: list[tuple[float, float]], **names: object) -> dict:
    """Slope of a line through points (x, y), with its 95 % interval from resampling the points, as a row of a table."""
    x, y = np.array(points, float).T
    counts = numpy_generator(0, "bootstrap").multinomial(len(x), np.full(len(x), 1 / len(x)), size=NUM_RESAMPLES)
    counts = counts[(counts > 0).sum(1) > 1]  # one point alone has no slope
    mean_x, mean_y = counts @ x / len(x), counts @ y / len(x)
    slopes = (counts @ (x * y) / len(x) - mean_x * mean_y) / (counts @ x**2 / len(x) - mean_x**2)
    low, high = (float(end) for end in np.percentile(slopes, [2.5, 97.5]))
    value = slope(x, y)
    return {**names, "value": value, "low": min(low, value), "high": max(high, value), "points": len(x)}


def spread(rows: list[dict], keys: tuple[str, ...], value: str = "error") -> list[dict]:
    """`value` over the rows that agree in `keys`: (keys.., value = median, low = least, high = largest, mean, instances)."""
    groups: dict[tuple, list[float]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row[value])
    return [
        dict(zip(keys, group, strict=True))
        | {"value": float(np.median(found)), "low": min(found), "high": max(found)}
        | {"mean": float(np.mean(found)), "instances": len(found)}
        for group, found in groups.items()
    ]
