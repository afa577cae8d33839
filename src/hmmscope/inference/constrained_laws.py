"""Priors of constrained rows of probabilities, and permutations of states that preserve constraints."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.inference.constraints import Array, RowConstraints
from hmmscope.reprs import Shown

#: Most states of which `symmetries` tries all orders.
MOST_STATES = 6
#: Slice-sampling moves per sweep and free dimension of groups that link different rows.
MOVES = 2
#: Smallest drawn probability of a group.
_FLOOR = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class ConstrainedRows(Shown):
    """Prior of constrained rows, with density ∝ product of value^(concentration - 1) over groups of tied entries.

    Attributes:
        rule: Constraints on the rows.
        concentration: Concentration of each tied group; 1 is uniform over the rows that satisfy the constraints.
    """

    rule: RowConstraints
    concentration: float = 1.0

    @cached_property
    def _blocks(self) -> list[tuple[NDArray[np.int64], float, Array]]:
        rows = np.unique(np.column_stack([self.rule.multiplicity, self.rule.left]), axis=0)
        owns = [(np.flatnonzero(row[:-1]), row) for row in rows if row[:-1].any()]
        return [(own, float(row[-1]), row[own]) for own, row in owns]

    @cached_property
    def _linked(self) -> NDArray[np.bool_]:
        groups = [own for own, _, _ in self._blocks]
        shared = np.bincount(np.concatenate([np.empty(0, np.int64), *groups])) > 1
        return np.array([shared[own].any() for own in groups], np.bool_)

    @property
    def closed(self) -> bool:
        return not self._linked.any()

    def pooled(self, counts: Array) -> Array:
        groups, flat = self.rule.groups.ravel(), counts.reshape(len(counts), -1)
        found = np.zeros((len(counts), self.rule.multiplicity.shape[1]))
        np.add.at(found.T, groups[groups >= 0], flat[:, groups >= 0].T)
        return found

    def draw(self, counts: Array, random: np.random.Generator, before: Array | None = None) -> Array:
        """Draw rows (N, ...) given counts; ties across rows need `before`, the rows of the previous Gibbs sweep."""
        values, alone = np.zeros((len(counts), self.rule.multiplicity.shape[1])), self.pooled(counts)
        for (own, total, copies), linked in zip(self._blocks, self._linked, strict=True):
            if not linked:
                drawn = random.standard_gamma(self.concentration + alone[:, own])
                shares = np.maximum(drawn / drawn.sum(1, keepdims=True), _FLOOR)
                values[:, own] = total * shares / shares.sum(1, keepdims=True) / copies
        if not self.closed:
            assert before is not None
            self._move(values[0], alone[0], before, random)
        return self._rows(values)

    def _rows(self, values: Array) -> Array:
        found = np.tile(self.rule.fixed.ravel(), (len(values), 1))
        free = self.rule.groups.ravel() >= 0
        found[:, free] = values[:, self.rule.groups.ravel()[free]]
        return found.reshape(-1, *self.rule.shape)

    def _values(self, rows: Array) -> Array:
        found = np.zeros((len(rows), self.rule.multiplicity.shape[1]))
        free = self.rule.groups.ravel() >= 0
        found[:, self.rule.groups.ravel()[free]] = rows.reshape(len(rows), -1)[:, free]
        return found

    def _move(self, values: Array, seen: Array, before: Array, random: np.random.Generator) -> None:
        blocks = list(itertools.compress(self._blocks, self._linked))
        own = np.unique(np.concatenate([block for block, _, _ in blocks]))
        sums = np.zeros((len(blocks), len(own)))
        for row, (block, _, copies) in zip(sums, blocks, strict=True):
            row[np.searchsorted(own, block)] = copies
        power, at = self.concentration - 1 + seen[own], self._values(before[None])[0, own]
        _, sizes, right = np.linalg.svd(sums)
        basis = right[int((sizes > 1e-9).sum()) :].T
        weight = self.concentration + seen[own]
        scale = np.sqrt(weight) * (sums > 0).sum(0) / ((sums > 0) @ weight @ (sums > 0))  # about the standard deviation
        root = np.linalg.cholesky(np.linalg.inv((basis.T / scale**2) @ basis))
        for _ in range(MOVES * basis.shape[1]):
            line = basis @ (root @ random.standard_normal(basis.shape[1]))
            with np.errstate(divide="ignore", invalid="ignore"):
                ends = -at / line
            low, high = ends[line > 0].max(initial=-np.inf), ends[line < 0].min(initial=np.inf)
            least = float(power @ np.log(at)) + math.log(random.random())
            while True:
                step = random.uniform(low, high)
                moved = at + step * line
                if (moved > 0).all() and float(power @ np.log(moved)) >= least:
                    at = moved
                    break
                low, high = (step, high) if step < 0 else (low, step)
        values[own] = at

    def log_density(self, rows: Array, counts: Array) -> Array:
        """Return log(posterior density / prior density) (N,) of rows (N, ...) given counts."""
        found: Array = (self.factors(rows) * counts).reshape(len(rows), -1).sum(1) - self.log_mean(counts)
        return found

    def factors(self, rows: Array) -> Array:
        free = (self.rule.groups.ravel() >= 0).reshape(self.rule.shape)
        return np.log(np.where(free, rows, 1.0))

    def log_mean(self, counts: Array) -> Array:
        """Return log E[product of entry^count over free entries] (N,) under the prior."""
        seen, found = self.pooled(counts), np.zeros(len(counts))
        for own, total, copies in self._blocks:
            found += seen[:, own] @ np.log(total / copies) + self._log_mean(seen[:, own])
        return found

    def log_marginal(self, counts: Array) -> float:
        """Return log E[product of entry^count over all entries] under the prior."""
        fixed = self.rule.fixed.ravel()
        here = (self.rule.groups.ravel() < 0) & (counts.ravel() > 0)
        with np.errstate(divide="ignore"):
            return float(counts.ravel()[here] @ np.log(fixed[here])) + float(self.log_mean(counts[None])[0])

    def _log_mean(self, seen: Array) -> Array:
        size, alpha = seen.shape[1], self.concentration
        norms = math.lgamma(size * alpha) - size * math.lgamma(alpha)
        found: Array = norms + log_gamma(seen + alpha).sum(1) - log_gamma(seen.sum(1) + size * alpha)
        return found


#: Priors of constrained arrays, by name.
RowLaws = Mapping[str, ConstrainedRows]


def log_gamma(values: Array) -> Array:
    found: Array = torch.lgamma(torch.from_numpy(values)).numpy()
    return found


def symmetries(laws: RowLaws, size: int) -> NDArray[np.int64] | None:
    """Return the permutations of the states that preserve the constraints (order, state); None for all."""
    if not laws:
        return None
    orders = itertools.permutations(range(size)) if size <= MOST_STATES else iter([range(size)])
    found = [order for order in orders if all(_keeps(part, law.rule, [*order]) for part, law in laws.items())]
    return None if len(found) == math.factorial(size) else np.array(found)


def _keeps(part: str, rule: RowConstraints, order: list[int]) -> bool:
    fixed, groups = (own.reshape(rule.shape) for own in (rule.fixed, rule.groups))
    moved_fixed, moved = fixed, groups
    for axis in {"initial": (-1,), "transition": (-2, -1)}.get(part, (-2,)):
        moved_fixed, moved = moved_fixed.take(order, axis), moved.take(order, axis)
    pairs = np.unique(np.stack([moved.ravel(), groups.ravel()]), axis=1).shape[1]
    same = pairs == len(np.unique(groups))  # the same partition into groups
    return same and np.array_equal(moved_fixed, fixed, equal_nan=True)
