"""Compiled context counts (how often each symbol followed each context) and context-tree mixtures."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hmmscope.kernels.compiling import kernel


def context_counts(
    observations: NDArray[np.int64], reach: NDArray[np.int64], num_symbols: int, max_order: int
) -> NDArray[np.float64]:
    """For each observation, count how often each symbol followed its context earlier in the sample.

    Args:
        observations: Symbols (batch, time). A negative value means missing, and no context extends across it.
        reach: Number of earlier symbols that a context may contain at each time (time,).
        num_symbols: Number of symbols V.
        max_order: Length of the longest context.

    Returns:
        Counts (batch, time, order 0..max_order, symbol); orders above `reach` have zero counts.
    """
    out = np.zeros((*observations.shape, max_order + 1, num_symbols), np.float64)
    _count(observations, reach, max_order, out)
    return out


@kernel()
def _count(observations, reach, max_order, out):  # type: ignore[no-untyped-def]
    for b in range(observations.shape[0]):
        for t in range(observations.shape[1]):
            for u in range(t):
                if observations[b, u] < 0:
                    continue
                longest = min(max_order, reach[t], reach[u])
                for order in range(longest + 1):
                    before = observations[b, t - order]
                    if order > 0 and (before < 0 or observations[b, u - order] != before):
                        break
                    out[b, t, order, observations[b, u]] += 1.0


def ngram_laws(counts: NDArray[np.float64], strengths: Sequence[float]) -> NDArray[np.float64]:
    """Compute backed-off n-gram probabilities from counts n_k(v) (..., order k, symbol v).

    P_k(v) = (n_k(v) + s_k P_{k-1}(v)) / (sum_u n_k(u) + s_k), with prior strengths s_k and uniform P_{-1}
    """
    laws = np.empty((*counts.shape[:-2], len(strengths), counts.shape[-1]), np.float64)
    law = np.full((*counts.shape[:-2], counts.shape[-1]), 1 / counts.shape[-1])
    for order, strength in enumerate(strengths):
        own = counts[..., order, :]
        law = (own + strength * law) / (own.sum(-1, keepdims=True) + strength)
        laws[..., order, :] = law
    return laws


@kernel()
def backed_off_loss(seen, total, strengths, num_symbols):  # type: ignore[no-untyped-def]
    """Compute the mean n-gram loss in nats; seen and total (example, order) count the observed and all symbols."""
    loss = 0.0
    for i in range(seen.shape[0]):
        p = 1.0 / num_symbols
        for order in range(len(strengths)):
            p = (seen[i, order] + strengths[order] * p) / (total[i, order] + strengths[order])
        loss -= math.log(p)
    return loss / seen.shape[0]


def context_tree_laws(
    observations: NDArray[np.int64],
    reach: NDArray[np.int64],
    num_symbols: int,
    depth: int,
    pseudo_count: float,
    weight: float,
    *,
    of_seen: bool = False,
) -> NDArray[np.float64]:
    """Predict each observation from its past by a Bayesian mixture over all context trees.

        P_s(v) = w_s (n_s(v) + a) / (n_s + a V) + (1 - w_s) P_{s'}(v), where a = pseudo_count

    n_s(v) counts how often symbol v followed context s. s' is s with one earlier symbol in front; w_s is the posterior
    probability that s is a leaf. A tree with i inner nodes, and l leaves less deep than `depth`, has the prior
    probability weight^l (1 - weight)^i.

    Returns:
        Probabilities of all symbols (batch, time, symbol), or with `of_seen` only of the observed one (batch, time, 1).

    Source: Willems, Shtarkov, Tjalkens (1995).
    """
    out = np.empty((*observations.shape, 1 if of_seen else num_symbols), np.float64)
    _trees(observations, reach, num_symbols, depth, pseudo_count, math.log(weight) - math.log1p(-weight), of_seen, out)
    return out


@kernel()
def _trees(observations, reach, num_symbols, depth, pseudo_count, odds, of_seen, out):  # type: ignore[no-untyped-def]
    most = observations.shape[1] * depth + 1
    counts, totals = np.empty((most, num_symbols), np.float64), np.empty(most, np.float64)
    favour = np.empty(most, np.float64)  # log odds that a node is a leaf
    read, child, sibling = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    path, laws = np.empty(depth + 1, np.int64), np.empty((depth + 1, num_symbols), np.float64)
    for b in range(observations.shape[0]):
        size = 1
        counts[0, :], totals[0], favour[0], child[0] = 0.0, 0.0, odds, -1
        for t in range(observations.shape[1]):
            last = 0
            while last < min(depth, reach[t]) and observations[b, t - last - 1] >= 0:
                last += 1
            path[0] = 0
            for k in range(1, last + 1):
                node = child[path[k - 1]]
                while node >= 0 and read[node] != observations[b, t - k]:
                    node = sibling[node]
                if node < 0:
                    node = size
                    size += 1
                    counts[node, :], totals[node], favour[node], child[node] = 0.0, 0.0, odds, -1
                    read[node], sibling[node] = observations[b, t - k], child[path[k - 1]]
                    child[path[k - 1]] = node
                path[k] = node
            seen = observations[b, t]
            low, high = (max(seen, 0), max(seen, 0) + 1) if of_seen else (0, num_symbols)
            for k in range(last, -1, -1):
                node = path[k]
                share = 1.0 if k == last else 1.0 / (1.0 + math.exp(-favour[node]))
                scale = 1.0 / (totals[node] + pseudo_count * num_symbols)
                for v in range(low, high):
                    own = (counts[node, v] + pseudo_count) * scale
                    laws[k, v] = own if k == last else share * own + (1.0 - share) * laws[k + 1, v]
                if seen < 0:
                    continue
                if k < last:
                    favour[node] += math.log((counts[node, seen] + pseudo_count) * scale) - math.log(laws[k + 1, seen])
                counts[node, seen] += 1.0
                totals[node] += 1.0
            for v in range(low, high):
                out[b, t, v - low] = laws[0, v]
