"""Weights of sequences in likelihoods and expected counts."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Tensor
from hmmscope.errors import InputError
from hmmscope.inference.loop_inputs import PackedSequences
from hmmscope.schema import refuse_masked, shown

Array = NDArray[np.float64]


def as_weights(weights: Any, count: int) -> Array | None:
    if weights is None:
        return None
    refuse_masked("sequence_weights", weights)
    rule = f"sequence_weights: must be {count} finite numbers of at least 0, one per sequence"
    try:
        found = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{rule}, got {shown(weights)}") from None
    if found.shape != (count,):
        raise InputError(f"{rule}, got the shape {found.shape}")
    bad = ~(np.isfinite(found) & (found >= 0))
    if bad.any():
        raise InputError(f"{rule}, got sequence_weights[{int(bad.argmax())}] = {found[bad][0]:g}")
    if count and not found.any():
        raise InputError("sequence_weights: at least one weight must be positive, got only zeros")
    return found


def weighted_sum(logs: Tensor, weights: Array | None) -> Tensor:
    if weights is None:
        return logs.sum()
    factors = torch.from_numpy(weights)
    return (logs.where(factors > 0, 0.0) * factors).sum()


def with_weights(work: PackedSequences, weights: Array | None) -> PackedSequences:
    if weights is None:
        return work
    found = work._replace(weights=weights[work.rows])
    return found.part(np.asarray(weights[work.rows] > 0))


def weighted_moves(work: PackedSequences, beliefs: Array, backward: Array, smoothed: Array) -> tuple[Array, Array]:
    """Return the weighted sums of `smoothed` at sequence starts (S,), and of belief_t(i) * backward_{t+1}(j) (S, S).

    Args:
        work: Sequences with weights.
        beliefs, backward, smoothed: Arrays (N, S), see `hmmscope.kernels.simd_over_sequences.backward`.
    """
    assert work.weights is not None
    times = np.arange(int(work.lengths.max(initial=0)))
    places, inside = work.offsets[:, None] + times, times < work.lengths[:, None]
    starts = np.append(work.starts[: len(times)], True)
    weights = np.broadcast_to(work.weights[:, None], inside.shape)
    first, moves = inside & starts[:-1], (times + 1 < work.lengths[:, None]) & ~starts[1:]
    here = places[moves]
    pairs = (beliefs[here] * weights[moves][:, None]).T @ backward[here + 1]
    return weights[first] @ smoothed[places[first]], pairs


def weighted_emissions(work: PackedSequences, smoothed: Array, num_symbols: int) -> Array:
    """Sum the weighted smoothed posteriors (N, S) by symbol, into (V, S)."""
    assert work.weights is not None
    times = np.arange(int(work.lengths.max(initial=0)))
    places = (work.offsets[:, None] + times)[times < work.lengths[:, None]]
    states, symbols = smoothed[places] * np.repeat(work.weights, work.lengths)[:, None], work.symbols[places]
    return np.stack([np.bincount(symbols, column, num_symbols) for column in states.T], 1)
