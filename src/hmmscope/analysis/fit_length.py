"""Evaluation loss of [Limits] by position, and fit length: how long the loss stays below a threshold."""

from collections.abc import Collection, Sequence
from itertools import pairwise
from numbers import Integral, Real

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import target_probs
from hmmscope.axes import Bool, Float64, Tensor
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.datasets.targets import Target, make_target
from hmmscope.schema import items_of, require, require_count, require_known

#: Samples per forward pass.
_BATCH = 256
#: Most rounds of samples.
_ROUNDS = 64
DEFINITIONS = ("prefix", "max")

#: Losses by position for each epoch; None where there are no samples.
Losses = Sequence[Sequence[float | None]]


@registry.instrument("evaluation-losses", x="position", by=("predictor",))
def evaluation_losses(
    model: nn.Module,
    dataset: ProcessDataset,
    *,
    num_samples: int = 4096,
    first: int = 0,
    target: str = "observation",
    least_count: int = 1,
    block_length: int = 0,
) -> list[dict]:
    """Compute the mean distance of a model's predictions from exact predictions at each position.

    `Target.distance_terms` defines the distance. Position t is after t observations. For the process Cyclic-HARD, only
    predictions after `*` are evaluated. Up to 64 rounds are drawn, until each position has `least_count` values. The
    baseline ``constant`` always predicts the first samples' mean exact prediction in the second half of positions.

    Source: [Limits] §4.1 and App. C.1, which use 256 trajectories.

    Args:
        model: map from tokens or vectors to outputs, see `evaluate`.
        dataset: samples of a process with exact inference.
        num_samples: number of samples per round.
        first: index of the first sample.
        target: "observation" or "belief".
        least_count: least number of evaluated samples per position.
        block_length: see `EvaluateOptions`.

    Returns:
        Rows ``predictor``, ``position``, ``value``, ``low``, ``high``, ``samples``, with normal 95 % intervals.
        Positions without samples have no row.

    Raises:
        InputError: a number is out of range, outputs have a wrong shape, or the process has no exact inference.
    """
    require_count("least_count", least_count, 0)
    asked = make_target(target, dataset.process, dataset.layout)
    kept = np.flatnonzero(asked.positions > 0)
    require(len(kept) > 0, "layout", "must have a predicted observation after the first one", dataset.layout)
    positions = np.unique(asked.positions[kept])
    found: dict[str, list[NDArray[np.float64]]] = {"model": [], "constant": []}
    constant: Tensor | None = None
    counts = np.zeros(len(positions), np.int64)
    last = dataset.different(first + _ROUNDS * num_samples)
    for begin in range(first, last, num_samples):
        end = min(begin + num_samples, last)
        for start in range(begin, end, _BATCH):
            batch = _counting(dataset[start : min(start + _BATCH, end)], asked, kept)
            if len(batch.tokens) == 0:
                continue
            optimum, counted = asked.optimum(batch), asked.counted(batch)
            if constant is None:
                constant = _constant(optimum, counted)
            answers = {
                "model": target_probs(model, batch, asked, block_length),
                "constant": constant.expand_as(optimum),
            }
            for name, answer in answers.items():
                terms = asked.distance_terms(answer, optimum).where(counted, torch.nan)
                found[name].append(_by_position(terms.numpy(), asked.positions, positions))
            counts += np.isfinite(found["model"][-1]).sum(0)
        if counts.min() >= least_count:
            break
    return [row for name, parts in found.items() if parts for row in _rows(name, positions, np.concatenate(parts))]


def _counting(batch: Batch, asked: Target, kept: NDArray[np.int64]) -> Batch:
    chosen = asked.counted(batch)[:, kept].any(1)
    components = None if batch.components is None else batch.components[chosen]
    return Batch(batch.tokens[chosen], batch.observations[chosen], batch.states[chosen], components)


def _constant(
    optimum: Float64[Tensor, "batch judged output"], counted: Bool[Tensor, "batch judged"]
) -> Float64[Tensor, " output"]:
    columns = torch.nonzero(counted.any(0))[:, 0]
    later = columns[len(columns) // 2 :]
    return optimum[:, later][counted[:, later]].mean(0)


def _by_position(
    terms: NDArray[np.float64], judged: NDArray[np.int64], positions: NDArray[np.int64]
) -> NDArray[np.float64]:
    columns = [terms[:, judged == position] for position in positions]
    counts = [np.isfinite(column).sum(1) for column in columns]
    sums = [np.nansum(column, 1) for column in columns]
    return np.stack([np.where(n > 0, s / np.maximum(n, 1), np.nan) for s, n in zip(sums, counts, strict=True)], 1)


def _rows(predictor: str, positions: NDArray[np.int64], values: NDArray[np.float64]) -> list[dict]:
    rows = []
    for position, column in zip(positions, values.T, strict=True):
        column = column[np.isfinite(column)]
        if len(column) == 0:
            continue
        mean = float(column.mean())
        half = 1.96 * float(column.std(ddof=1)) / len(column) ** 0.5 if len(column) > 1 else 0.0
        rows.append(
            {
                "predictor": predictor,
                "position": int(position),
                "value": mean,
                "low": max(0.0, mean - half),
                "high": mean + half,
                "samples": len(column),
            }
        )
    return rows


def fit_length(
    losses: Losses, positions: Sequence[int], error_rate: float, *, last: int = 3, definition: str = "prefix"
) -> int:
    """Return the length up to which the evaluation loss is below `error_rate` in the last epochs.

    A position is fitted if it has losses in the last epochs, all below `error_rate`.

    prefix: the largest F such that all positions up to F are fitted
    max:    the largest fitted position

    Source: [Limits] §4.1; its text allows both definitions.

    Args:
        losses: a list of losses by position for each epoch; None where there are no samples.
        positions: positions of the losses, ascending from 1.
        error_rate: threshold of the loss, above 0; 0.05 and 0.1 in [Limits].
        last: number of epochs to use, from the end.
        definition: "prefix" or "max".

    Returns:
        The fit length, 0 if no position is fitted.

    Raises:
        InputError: losses and positions have different lengths, there are no epochs, or an argument is invalid.
    """
    count = _num_fitted(losses, positions, error_rate, last, definition)
    return positions[count - 1] if count else 0


def _num_fitted(losses: Losses, positions: Sequence[int], error_rate: float, last: int, definition: str) -> int:
    require_known("definition", definition, DEFINITIONS)
    fitted = fitted_positions(losses, positions, error_rate, last=last)
    if definition == "max":
        return max((number for number, good in enumerate(fitted, 1) if good), default=0)
    return [*fitted, False].index(False)


def crossing_length(
    losses: Losses, positions: Sequence[int], error_rate: float, *, last: int = 3, definition: str = "prefix"
) -> float:
    """Compute the position, interpolated between integers, at which the loss crosses the error rate.

    The loss of a position is its largest loss in the last epochs; position 0 has loss 0. If no loss crosses the error
    rate, the result is the last evaluated position.
    """
    first = _num_fitted(losses, positions, error_rate, last, definition)
    if first == len(positions):
        return float(positions[-1])
    counted = [[loss for row in losses[-last:] if (loss := row[i]) is not None] for i in range(first + 1)]
    start, below = (positions[first - 1], max(counted[first - 1])) if first else (0, 0.0)
    if not counted[first]:
        return float(start)
    above = max(counted[first])
    share = (error_rate - below) / (above - below) if above > below else 0.0
    return start + (positions[first] - start) * min(share, 1.0)


def fit_start(losses: Losses, positions: Sequence[int], error_rate: float, *, last: int = 3) -> int | None:
    """Return the least position from which on all positions are fitted (see `fit_length`), or None."""
    fitted = fitted_positions(losses, positions, error_rate, last=last)
    count = [*reversed(fitted), False].index(False)
    return positions[-count] if count else None


def fitted_positions(losses: Losses, positions: Sequence[int], error_rate: float, *, last: int = 3) -> list[bool]:
    is_rate = isinstance(error_rate, int | float) and error_rate > 0
    require(is_rate, "error_rate", "must be a number above 0", error_rate)
    require_count("last", last)
    for name, value in {"losses": losses, "positions": positions}.items():
        require(isinstance(value, Collection) and items_of(value) is not None, name, "must be a list", value)
    require(len(losses) >= 1, "losses", "must have at least 1 epoch", len(losses))
    require(all(isinstance(one, Integral) for one in positions), "positions", "must be integers", positions)
    ascending = all(a < b for a, b in pairwise(positions))
    require(len(positions) > 0 and positions[0] >= 1 and ascending, "positions", "must ascend from 1", list(positions))
    for row in losses:
        require(isinstance(row, Collection), "losses", "must be one list of losses per epoch", row)
        require(len(row) == len(positions), "losses", f"must have {len(positions)} positions", len(row))
        require(all(isinstance(one, Real | None) for one in row), "losses", "must be numbers or None", row)
    columns = [[row[i] for row in losses[-last:]] for i in range(len(positions))]
    counted = [[loss for loss in column if loss is not None] for column in columns]
    return [bool(column) and all(loss < error_rate for loss in column) for column in counted]
