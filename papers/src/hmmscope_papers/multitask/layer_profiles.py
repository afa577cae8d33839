"""Layers where curves rise and peak, and statistics at layers chosen on other samples."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hmmscope.analysis import resampled_curves

#: Fraction of the curve's maximum that defines the onset.
ONSET = 0.9

#: Values by layer, of one curve or many (curve, layer).
Curves = NDArray[np.float64]


def onset_layer(curves: Curves, *, above_first: bool = False) -> Curves:
    """Return the first layer (curve,) where curves reach the fraction `ONSET` of their maximum.

    Args:
        curves: one curve (layer,), or several (curve, layer).
        above_first: True first subtracts the value of layer 0.
    """
    floor = curves[..., :1] if above_first else np.zeros_like(curves[..., :1])
    bound = floor + ONSET * (curves.max(-1, keepdims=True) - floor)
    first: Curves = (curves >= bound - 1e-12).argmax(-1).astype(np.float64)
    return first


def peak_layer(curves: Curves) -> Curves:
    highest: Curves = (curves >= curves.max(-1, keepdims=True) - 1e-12).argmax(-1).astype(np.float64)
    return highest


def at_layer(curves: Curves, layers: Curves) -> Curves:
    values: Curves = np.take_along_axis(curves, layers.astype(np.int64)[..., None], -1)[..., 0]
    return values


def cross_fitted(by_sample: Curves, statistic: Callable[[Curves, Curves], Curves], *, seed: int = 0) -> Curves:
    """Choose layers on one half of the samples, measure there on the other half, and average over both directions.

    Args:
        by_sample: values (sample, layer).
        statistic: function of the curves to choose by and those to measure (resample, layer); returns (resample,).
        seed: seed of the bootstrap resamples.
    """
    halves = [resampled_curves(by_sample[start::2], seed=2 * seed + start) for start in (0, 1)]
    return (statistic(halves[0], halves[1]) + statistic(halves[1], halves[0])) / 2
