"""Convergence diagnostics and state labels of Markov chain Monte Carlo samples."""

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.errors import InputError

Array = NDArray[np.float64]


def r_hat(draws: Array) -> Array:
    """Compute rank-normalized split R-hat; values above 1.01 mean that the chains have not mixed.

    R-hat = sqrt((within (n - 1) / n + between) / within), where within is the mean variance of a chain of n draws, and
    between the variance of the chains' means. The result is the larger R-hat of the rank-normalized draws and of their
    rank-normalized distances from the median.

    Source: Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021).

    Args:
        draws: Samples (chain, draw, ...), at least four draws.

    Returns:
        One value per entry (...); NaN for an entry that never varies.
    """
    away = np.abs(draws - np.median(draws, axis=(0, 1)))
    return np.fmax(_ratio(_normal_scores(_halves(draws))), _ratio(_normal_scores(_halves(away))))


def effective_sizes(draws: Array) -> tuple[Array, Array]:
    """Compute the effective sample sizes of the bulk and of the tails; both are NaN for constant draws.

    The tail size is the smaller effective sample size of two indicators: a draw is at most the 5 % quantile, or at most
    the 95 % quantile. Geyer's initial monotone sequence truncates the sum of autocorrelations.

    Source: Vehtari et al. (2021), see `r_hat`.

    Args:
        draws: Samples (chain, draw, ...), at least four draws.
    """
    ends = np.quantile(draws, (0.05, 0.95), axis=(0, 1))
    tails = [_effective(_halves((draws <= end).astype(np.float64))) for end in ends]
    return _effective(_normal_scores(_halves(draws))), np.fmin(*tails)


def equal_tails(draws: Array, worth: Array, share: float = 0.95) -> tuple[Array, Array]:
    """Compute the ends of equal-tailed intervals, widened for a small effective sample size.

    The lower end is the quantile of the draws at (r - 1/2) / worth, with r = (1 - share) / 2 * (worth + 1). If `worth`
    is small, the ends are the minimum and the maximum of the draws.

    Source: Hyndman and Fan (1996), definition 6 (Weibull).

    Args:
        draws: Samples (chain, draw, ...).
        worth: Effective sample sizes (...); NaN stands for the number of draws.
        share: Probability of an interval.
    """
    ordered = np.sort(draws.reshape(-1, *draws.shape[2:]), 0)
    count, tail = len(ordered), (1 - share) / 2
    number, last = np.where(np.isnan(worth), count, worth), count - 1
    place = np.clip((tail * (number + 1) - 0.5) / number * count - 0.5, 0, last / 2)
    below, part = np.floor(place).astype(np.int64), place % 1

    def between(low: NDArray[np.int64], high: NDArray[np.int64]) -> Array:
        one, other = (np.take_along_axis(ordered, at[None], 0)[0] for at in (low, high))
        return one + part * (other - one)

    above = np.minimum(below + 1, last)
    return between(below, above), between(last - below, last - above)


def _halves(draws: Array) -> Array:
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, draws.shape[1] - half :]])


def _normal_scores(draws: Array) -> Array:
    chains, count = draws.shape[:2]
    flat = draws.reshape(chains * count, -1)
    ranks = np.empty(flat.shape)
    for entry in range(flat.shape[1]):
        _, which, times = np.unique(flat[:, entry], return_inverse=True, return_counts=True)
        ranks[:, entry] = (times.cumsum() - (times - 1) / 2)[which]
    return torch.special.ndtri(torch.from_numpy((ranks - 0.375) / (len(flat) + 0.25))).numpy().reshape(draws.shape)


def _ratio(draws: Array) -> Array:
    count = draws.shape[1]
    within, between = draws.var(1, ddof=1).mean(0), draws.mean(1).var(0, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Array = np.sqrt((within * (count - 1) / count + between) / within)
    return found


def _effective(draws: Array) -> Array:
    chains, count = draws.shape[:2]
    away = draws - draws.mean(1, keepdims=True)
    waves = np.fft.rfft(away, 2 * count, axis=1)
    covariances = np.fft.irfft(np.abs(waves) ** 2, axis=1)[:, :count].mean(0) / count
    within = covariances[0] * count / (count - 1)
    total = within * (count - 1) / count + (draws.mean(1).var(0, ddof=1) if chains > 1 else 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = 1 - (within - covariances) / total
    correlations[0] = 1.0
    pairs = correlations[: count // 2 * 2].reshape(count // 2, 2, *draws.shape[2:]).sum(1)
    going = np.logical_and.accumulate(pairs > 0, axis=0)
    time = 2 * np.where(going, np.minimum.accumulate(pairs, axis=0), 0.0).sum(0) - 1
    number = chains * count
    found = number / np.maximum(time, 1 / np.log10(number))
    return np.where(total > 0, found, np.nan)


def matching(agreement: Array, orders: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Match the state labels of a draw to those of a reference by the Hungarian method.

    Args:
        agreement: `[..., i, j]` = number of steps with the draw's path in state i and the reference path in state j.
        orders: Permutations among which the result is chosen (order, state); None for all.

    Returns:
        State of the draw that matches each reference state (..., S).

    Raises:
        InputError: SciPy is missing and there are several states.
    """
    size = agreement.shape[-1]
    found = np.zeros((*agreement.shape[:-2], size), np.int64)
    if size == 1:
        return found
    if orders is not None:
        return orders[np.stack([agreement[..., own, np.arange(size)].sum(-1) for own in orders]).argmax(0)]
    try:
        from scipy.optimize import linear_sum_assignment
    except ModuleNotFoundError:
        raise InputError("posterior: matching state labels needs SciPy; run pip install 'hmmscope[hmm]'") from None
    for place in np.ndindex(agreement.shape[:-2]):
        own, reference = linear_sum_assignment(agreement[place], maximize=True)
        found[place][reference] = own
    return found


def relabelled(values: Array, own: NDArray[np.int64], axes: int) -> Array:
    # `own` (..., state) permutes the first `axes` state axes of `values` (..., state, ...)
    for axis in range(own.ndim - 1, own.ndim - 1 + axes):
        order = np.expand_dims(own, [other for other in range(own.ndim - 1, values.ndim) if other != axis])
        values = np.take_along_axis(values, order, axis)
    return values
