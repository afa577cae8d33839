"""Where a curve over layers rises, peaks and falls, with intervals over samples.

The best layer of a noisy curve looks better than it is, and a drop from a peak is never negative. So a height at a chosen
layer is measured on other samples than the layer was chosen on: see `cross_fitted`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hmmscope.analysis import resampled_curves

#: A layer holds what its probe reads with this share of the curve's maximum.
ONSET = 0.9

#: Values by layer, of one curve or many (curve, layer).
Curves = NDArray[np.float64]


def onset_layer(curves: Curves, *, above_first: bool = False) -> Curves:
    """First layer (curve,) at which curves (curve, layer) reach the share `ONSET` of their own maximum.

    Args:
        curves: one or many (curve, layer).
        above_first: count from the value at layer 0, instead of from zero.

    Source: [MultiTask] Fig. 3 shows curves without a rule; this one is ours.
    """
    floor = curves[..., :1] if above_first else np.zeros_like(curves[..., :1])
    bound = floor + ONSET * (curves.max(-1, keepdims=True) - floor)
    first: Curves = (curves >= bound - 1e-12).argmax(-1).astype(np.float64)
    return first


def peak_layer(curves: Curves) -> Curves:
    """Layer (curve,) of the maximum of curves (curve, layer); the first among equals."""
    highest: Curves = (curves >= curves.max(-1, keepdims=True) - 1e-12).argmax(-1).astype(np.float64)
    return highest


def at_layer(curves: Curves, layers: Curves) -> Curves:
    """Values (curve,) of curves (curve, layer) at layers (curve,)."""
    values: Curves = np.take_along_axis(curves, layers.astype(np.int64)[..., None], -1)[..., 0]
    return values


def cross_fitted(by_sample: Curves, statistic: Callable[[Curves, Curves], Curves], *, seed: int = 0) -> Curves:
    """A statistic (1 + resamples,) whose layers are chosen on one half of the samples and measured on the other.

    Averaged over both ways. For a flat curve the height at the chosen layer is then as often too low as too high.

    Args:
        by_sample: values (sample, layer), at least two samples.
        statistic: (curves to choose by, curves to measure), each (resample, layer), to (resample,).
        seed: of the resamples.
    """
    halves = [resampled_curves(by_sample[start::2], seed=2 * seed + start) for start in (0, 1)]
    return (statistic(halves[0], halves[1]) + statistic(halves[1], halves[0])) / 2
