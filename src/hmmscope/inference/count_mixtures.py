"""Mixtures of posterior densities of HMM parameters: proposals for estimates of the evidence."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hmmscope.reprs import Shown

Array = NDArray[np.float64]
#: Parameters of N models (initial (N, S), transition (N, S, S), emission parameters), or their expected counts.
Rows = tuple[Array, ...]

#: Share of densities with equally likely fractions, and number of log densities at a time.
SPREAD, BLOCK = 0.2, 2**13


@dataclass(frozen=True, eq=False, repr=False)
class CountMixture(Shown):
    """Equal-weight mixture of M posterior densities of HMM parameters given expected counts.

    Attributes:
        counts: Expected counts on which each density is conditional (M, ...).
        norms: Log marginal likelihood of each density's counts (M,).
        kinds: Index of each density's fraction, see `around` (M,).
    """

    counts: Rows
    norms: Array
    kinds: NDArray[np.int64]
    num_fractions: int

    @classmethod
    def around(
        cls,
        centres: Rows,
        shares: Array | None,
        size: int,
        log_marginal: Callable[[Rows], Array],
        random: np.random.Generator,
    ) -> "CountMixture":
        """Return `size` densities; their counts are random `centres` times random fractions 0.8 * 0.4^k or 0.

        Args:
            shares: Probabilities of the fractions before mixing with equal ones (default: equal).
        """
        seen = float(centres[0][0].sum() + centres[1][0].sum())
        fractions = np.append(0.8 * 0.4 ** np.arange(1 + max(1, int(math.log(max(seen, 1), 2.5)))), 0.0)
        number = len(fractions)
        ends = np.full(number, 1 / number) if shares is None else (1 - SPREAD) * shares + SPREAD / number
        even = (random.permutation(size) + random.random()) / size
        kinds = np.searchsorted(ends.cumsum()[:-1], even)
        chosen = repeated(len(centres[0]), size, random)
        counts = tuple((part[chosen].T * fractions[kinds]).T for part in centres)
        return cls(counts, log_marginal(counts), kinds, number)

    @cached_property
    def _flat(self) -> tuple[Array, Array]:
        flat = np.concatenate([part.reshape(len(part), -1) for part in self.counts], 1)
        return flat, np.ascontiguousarray(flat.T)

    def weigh(self, factors: Array) -> tuple[Array, Rows, Array]:
        """Return log(density / prior), E[component's counts | model] and the models' mean P(fraction | model)."""
        (flat, across), used = self._flat, np.zeros(len(self.norms))
        logs, means, block = np.empty(len(factors)), np.empty_like(factors), max(1, BLOCK // len(self.norms))
        for begin in range(0, len(factors), block):  # small blocks stay in the cache
            weights = factors[begin : begin + block] @ across
            weights -= self.norms
            most = weights.max(1, keepdims=True)
            weights -= most
            np.exp(weights, out=weights)
            whole = weights.sum(1, keepdims=True)
            logs[begin : begin + block] = (most + np.log(whole / len(self.norms)))[:, 0]
            weights /= whole
            used += weights.sum(0) / len(factors)
            np.matmul(weights, flat, out=means[begin : begin + block])
        parts = np.split(means, np.cumsum([part[0].size for part in self.counts])[:-1], axis=1)
        counts = tuple(own.reshape(-1, *part.shape[1:]) for own, part in zip(parts, self.counts, strict=True))
        return logs, counts, np.bincount(self.kinds, used, self.num_fractions).astype(np.float64)


def repeated(number: int, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    found: NDArray[np.int64] = random.permutation(-(-count // number) * number)[:count] % number
    return found
