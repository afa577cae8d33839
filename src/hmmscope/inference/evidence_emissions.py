"""Emission families for estimates of the evidence, under conjugate priors."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hmmscope.inference.constrained_laws import ConstrainedRows, log_gamma
from hmmscope.inference.count_mixtures import Array, Rows
from hmmscope.inference.em import Model, counter_of_several
from hmmscope.inference.gibbs import dirichlet_rows
from hmmscope.inference.loop_inputs import PackedSequences

#: Map from parameters to their log density relative to the prior (N,), and to the counts for proposals.
Law = Callable[[Rows], tuple[Array, Rows]]

#: Smallest parameter entry, so that no model forbids the data.
_FLOOR = 1e-12


@runtime_checkable
class Emissions(Protocol):
    """Interface of an emission family with a conjugate prior."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Sequence lengths."""

    @property
    def cost(self) -> int:
        """Relative time of one likelihood; for symbols, (number of observations) * (number of states)^2."""

    def nothing(self, count: int) -> Rows:
        """Return expected counts of zero for `count` models."""

    def likelihood(self, share: int) -> Law:
        """Return the map from parameters to log-likelihood and expected counts, on 1 / `share` of the data."""

    def draw(self, counts: Rows, random: np.random.Generator) -> Rows:
        """Draw emission parameters given expected counts."""

    def natural(self, laws: Rows) -> Array:
        """Return the natural parameters, which multiply the counts in the log-likelihood (N, state, count)."""

    def log_marginal(self, counts: Rows) -> Array:
        """Return the log marginal likelihood of counts under the prior (N,)."""

    def likeness(self, laws: Rows, fit: Rows) -> Array:
        """Return E[log P(v | fit state)] for emissions v of the models' states (N, state, fit state)."""


@dataclass(frozen=True, eq=False)
class Symbols:
    """Categorical emissions (N, S, V) of N models, with a uniform prior."""

    work: PackedSequences
    size: int
    num_symbols: int
    num_threads: int | None = None
    law: ConstrainedRows | None = None

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.work.lengths

    @property
    def cost(self) -> int:
        return int(self.work.lengths.sum()) * self.size**2

    def nothing(self, count: int) -> Rows:
        return *no_moves(count, self.size), np.zeros((count, self.size, self.num_symbols))

    def likelihood(self, share: int) -> Law:
        count = counter_of_several(share_of(self.work, share), self.size, self.num_symbols, self.num_threads)

        def law(rows: Rows) -> tuple[Array, Rows]:
            found = count(Model(*rows))
            return found.logs, (found.initial, found.transitions, found.emissions.swapaxes(1, 2))

        return law

    def draw(self, counts: Rows, random: np.random.Generator) -> Rows:
        return (draw_rows(counts[0], random, self.law),)

    def natural(self, laws: Rows) -> Array:
        return row_factors(laws[0], self.law)

    def log_marginal(self, counts: Rows) -> Array:
        return log_marginal_of_rows(counts[0], self.law)

    def likeness(self, laws: Rows, fit: Rows) -> Array:
        likely: Array = laws[0] @ np.log(fit[0][0]).T
        return likely


def no_moves(count: int, size: int) -> Rows:
    return np.zeros((count, size)), np.zeros((count, size, size))


def share_of(work: PackedSequences, share: int) -> PackedSequences:
    if len(work.rows) >= share:
        part = work.part(np.arange(len(work.rows)) % share == 0)
        return part._replace(rows=np.arange(len(part.rows)))
    return work._replace(lengths=np.maximum(1, work.lengths // share))


def draw_rows(counts: Array, random: np.random.Generator, law: ConstrainedRows | None) -> Array:
    return _at_least(dirichlet_rows(1 + counts, random)) if law is None else law.draw(counts, random)


def row_factors(rows: Array, law: ConstrainedRows | None) -> Array:
    found: Array = np.log(rows) if law is None else law.factors(rows)
    return found


def log_marginal_of_rows(counts: Array, law: ConstrainedRows | None) -> Array:
    if law is not None:
        return law.log_mean(counts)
    size = counts.shape[-1]
    logs = log_gamma(counts + 1).sum(-1) - log_gamma(counts.sum(-1) + size) + math.lgamma(size)
    found: Array = logs.reshape(len(counts), -1).sum(1)
    return found


def floored(parts: Rows) -> Rows:
    return tuple(map(_at_least, parts))


def _at_least(probs: Array) -> Array:
    raised = np.maximum(probs, _FLOOR)
    found: Array = raised / raised.sum(-1, keepdims=True)
    return found
