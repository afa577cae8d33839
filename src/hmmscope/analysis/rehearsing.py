"""Test calls of a user's model before a measurement (rehearsals), and warnings about rising losses."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope import registry
from hmmscope.analysis.devices import about_of, on_device
from hmmscope.analysis.measures import mean_of_asked
from hmmscope.axes import Tensor
from hmmscope.datasets.process_dataset import ProcessDataset, check_dataset
from hmmscope.datasets.targets import NextObservation, RecordedNextObservation, Target
from hmmscope.models.rehearsal import SAMPLES, Asked, is_of_library, rehearse
from hmmscope.reprs import ResultRows

#: True during a measurement that has rehearsed its model.
_REHEARSED: ContextVar[bool] = ContextVar("rehearsed", default=False)
#: Least rise of the loss, in nats and in standard errors, for a warning.
LEAST_RISE, STANDARD_ERRORS = 0.02, 4.0
#: Least number of positions for a comparison of thirds.
_LEAST_POSITIONS = 9


def rehearsed(model: nn.Module, dataset: ProcessDataset, target: Target | None = None) -> tuple[str, ...]:
    if _REHEARSED.get() or not isinstance(model, nn.Module) or is_of_library(model):
        return ()
    inputs = dataset[0 : dataset.different(SAMPLES)].tokens
    if inputs.is_floating_point():
        inputs = inputs.to(next((p.dtype for p in model.parameters() if p.is_floating_point()), inputs.dtype))
    if target is None:
        return _rehearse(model, inputs, Asked(strict=False, is_law=not dataset.process.real_valued))
    asked = Asked(
        num_outputs=target.num_outputs,
        columns=torch.from_numpy(np.asarray(target.token_positions)),
        is_law=target.kind == "law",
        next_symbols=isinstance(target, NextObservation | RecordedNextObservation),
    )
    return _rehearse(model, inputs[:, : int(target.token_positions[-1]) + 1], asked)


def rehearsed_on(model: nn.Module, tokens: Tensor) -> tuple[str, ...]:
    known = _REHEARSED.get() or torch.compiler.is_compiling() or is_of_library(model)
    if known or tokens.is_floating_point() or min(tokens.shape) == 0:
        return ()
    return _rehearse(model, tokens[:SAMPLES].detach(), Asked(strict=False))


def _rehearse(model: nn.Module, inputs: Tensor, asked: Asked) -> tuple[str, ...]:
    with already_rehearsed():  # a model under `intervene` rehearses itself
        return rehearse(model, inputs, asked)


@contextmanager
def already_rehearsed() -> Iterator[None]:
    token = _REHEARSED.set(True)
    try:
        yield
    finally:
        _REHEARSED.reset(token)


@registry.rehearsal("tokens")
def rehearse_first(model: Any, dataset: Any, measure: Callable[[], Any], device: Any = None) -> Any:
    check_dataset(dataset)
    lines = rehearsed(model, dataset)
    with already_rehearsed(), on_device(model, device):
        rows = measure()
        if isinstance(rows, ResultRows):
            named = dict.fromkeys(row["layer_name"] for row in rows if row.get("layer_name"))
            samples = next((row["samples"] for row in rows if isinstance(row.get("samples"), int)), None)
            rows.about = about_of(model, dataset, samples, layers=named or None)
    if not isinstance(rows, list):
        for line in lines:
            warnings.warn(line, stacklevel=4)
    elif lines:
        rows = rows if isinstance(rows, ResultRows) else ResultRows(rows)
        rows.warnings = lines
    return rows


def rising(
    model: NDArray[np.float64], optimum: NDArray[np.float64] | None, positions: NDArray[np.int64]
) -> tuple[str, ...]:
    """Return a warning if the loss above the optimum rises from the middle to the last third of positions.

    Args:
        model, optimum: losses in nats (sample, position); None counts as an optimum of zero.
        positions: number of earlier observations in the sequence (position,).
    """
    above = model if optimum is None else model - optimum
    finite = np.where(np.isfinite(above), above, np.nan)
    kinds = np.unique(positions)
    if len(kinds) < _LEAST_POSITIONS or len(finite) < 2:
        return ()
    _, middle, last = np.array_split(kinds, 3)
    late, mid = (mean_of_asked(finite[:, np.isin(positions, third)]) for third in (last, middle))
    rise = (late - mid)[~np.isnan(late - mid)]
    if len(rise) < 2:
        return ()
    mean, error = float(rise.mean()), float(rise.std(ddof=1) / np.sqrt(len(rise)))
    if mean <= max(LEAST_RISE, STANDARD_ERRORS * error):
        return ()
    what = "loss" if optimum is None else "loss above the optimum"
    return (
        f"the {what} rises with position: {float(np.nanmean(mid)):.3f} nats in the middle third of positions, "
        f"{float(np.nanmean(late)):.3f} in the last third; train longer, or evaluate at the training length (length=)",
    )
