"""In-context n-gram counts by comparing each context with all before it: no table of V^n entries."""

import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.compiling import kernel


def ngram_predictions(
    observations: NDArray[np.int64],
    position_in_sequence: NDArray[np.int64],
    num_symbols: int,
    max_order: int,
    strength: float,
) -> NDArray[np.float64]:
    """Predictions (batch, time, order 0..max_order, symbol) of each observation from those before it in its sample.

    p_k = (count + strength * p_{k-1}) / (total + strength),  p_{-1} uniform

    where `count` is over earlier observations whose k predecessors equal the k predecessors of the predicted one. A
    context never crosses the start of a sequence; an order longer than the position keeps the order below.
    """
    out = np.empty((*observations.shape, max_order + 1, num_symbols), np.float64)
    _ngram(observations, position_in_sequence, num_symbols, max_order, strength, out)
    return out


@kernel()
def _ngram(observations, position, num_symbols, max_order, strength, out):  # type: ignore[no-untyped-def]
    counts = np.empty((max_order + 1, num_symbols), np.float64)
    totals = np.empty(max_order + 1, np.float64)
    for b in range(observations.shape[0]):
        for t in range(observations.shape[1]):
            counts[:] = 0.0
            totals[:] = 0.0
            for u in range(t):
                longest = min(max_order, position[t], position[u])
                for order in range(longest + 1):
                    if order > 0 and observations[b, u - order] != observations[b, t - order]:
                        break
                    counts[order, observations[b, u]] += 1.0
                    totals[order] += 1.0
            for order in range(max_order + 1):
                for v in range(num_symbols):
                    lower = out[b, t, order - 1, v] if order > 0 else 1.0 / num_symbols
                    out[b, t, order, v] = (counts[order, v] + strength * lower) / (totals[order] + strength)
