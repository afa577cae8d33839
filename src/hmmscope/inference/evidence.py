"""Evidence P(observations | number of states) under conjugate priors, by sequential Monte Carlo."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hmmscope.inference.constrained_laws import ConstrainedRows, log_gamma, symmetries
from hmmscope.inference.em import Model, can_run_side_by_side, counts_of_several
from hmmscope.inference.gibbs import dirichlet_rows
from hmmscope.inference.loop_inputs import PackedSequences
from hmmscope.processes.hmm import HMM
from hmmscope.reprs import Shown
from hmmscope.seeds import numpy_generator

Array = NDArray[np.float64]
#: Parameters of N models (initial (N, S), transition (N, S, S), emission parameters), or their counts.
Rows = tuple[Array, ...]
#: Map from rows to their log density relative to the prior (N,), and the counts that propose from it.
Law = Callable[[Rows], tuple[Array, Rows]]

#: Number of particles, and Metropolis moves of each per step.
PARTICLES, MOVES = 128, 2
#: Effective sample size that determines the step length, as a fraction of the particles.
WORTH = 0.5
#: Intermediate levels use 1/16 and 1/4 of the observations, if that leaves at least LEAST.
SHARES, LEAST = (16, 4), 64
#: Limit on observations times squared states, about 20 seconds on one core, and the limit unless it is asked for.
MOST, UNASKED = 5_000_000, 1_000_000
#: Gap in nats at which the estimate from the prior is abandoned.
BEHIND = 5.0
#: Smallest parameter entry, so that no model forbids the data.
_FLOOR = 1e-12


@runtime_checkable
class Emissions(Protocol):
    """Interface of an emission family with a conjugate prior."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Sequence lengths."""

    def nothing(self, count: int) -> Rows:
        """Return expected counts of zero."""

    def likelihood(self, share: int) -> Law:
        """Return a function from parameters to log-likelihood and counts of one in `share` observations."""

    def draw(self, counts: Rows, random: np.random.Generator) -> Rows:
        """Draw emission parameters given expected counts."""

    def log_density(self, laws: Rows, counts: Rows) -> Array:
        """Return the log density of emission parameters given counts, relative to the prior (N,)."""

    def likeness(self, laws: Rows, fit: Rows) -> Array:
        """Return E[log P(emissions of a state | state of the fit)] (N, state, fit state)."""


class EvidenceStopped(Exception):
    """The callback of an estimate asked to stop."""


class Evidence(NamedTuple):
    """Log evidence in nats, and the difference of two estimates."""

    log: float
    error: float


def evidence(
    work: PackedSequences,
    hmm: HMM,
    num_threads: int | None = None,
    seed: int = 0,
    *,
    most: int = MOST,
    callback: Callable[[str], object] | None = None,
    laws: Mapping[str, ConstrainedRows] | None = None,
) -> Evidence | None:
    """Estimate log P(all observations | number of states), in nats, under uniform priors.

    Args:
        work: Packed sequences; V is missing.
        hmm: HMM fitted to most of the data.
        most: Limit on observations times squared states.
        callback: Receives a text at each step; True raises `EvidenceStopped`.
        laws: Priors of parts that are not free, all in closed form.

    Returns:
        None if this is too costly: above eight states or `most`.
    """
    size, num_symbols = hmm.emission.shape
    if size == 1:
        return Evidence(_of_one_state(work, num_symbols, laws or {}), 0.0)
    if not can_run_side_by_side(size, work) or int(work.lengths.sum()) * size**2 > most:
        return None
    fit = floored(tuple(part[None] for part in Model.of(hmm)))
    symbols = Symbols(work, size, num_symbols, num_threads, (laws or {}).get("emission"))
    return sampled(symbols, fit, numpy_generator(seed, "evidence", size), callback, laws)


def sampled(
    emissions: Emissions,
    fit: Rows,
    random: np.random.Generator,
    callback: Callable[[str], object] | None = None,
    laws: Mapping[str, ConstrainedRows] | None = None,
) -> Evidence:
    """Estimate log P(all observations | number of states) by sequential Monte Carlo.

    The result is the larger of two estimates. The first anneals from the prior through 1/16, 1/4 and all observations;
    if it completes, two runs are averaged. The second starts near a fitted model, from 1/4, 1/16, ... of its expected
    counts; it covers one labelling of the S states, so it is multiplied by the number of equivalent labellings.

    Source: Del Moral, Doucet and Jasra (2006).

    Args:
        emissions: Emission family with data.
        fit: Rows of one model without zeros (`floored`).
        random: Generator.
        callback, laws: See `evidence`.
    """
    way = AnnealedSampler(emissions, fit, random, callback, laws or {})
    one, wide = way.estimate()
    if not wide:
        return Evidence(one, 0.0)
    other, _ = way.estimate()
    return Evidence(float(np.logaddexp(one, other)) - math.log(2), abs(one - other))


def _of_one_state(work: PackedSequences, num_symbols: int, laws: Mapping[str, ConstrainedRows]) -> float:
    counts = np.bincount(work.packed().symbols, minlength=num_symbols)[:num_symbols]
    if "emission" in laws:
        return laws["emission"].log_marginal(counts[None].astype(np.float64))
    return math.lgamma(num_symbols) + sum(map(math.lgamma, counts + 1)) - math.lgamma(counts.sum() + num_symbols)


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

    def nothing(self, count: int) -> Rows:
        return *no_moves(count, self.size), np.zeros((count, self.size, self.num_symbols))

    def likelihood(self, share: int) -> Law:
        part = share_of(self.work, share)

        def law(rows: Rows) -> tuple[Array, Rows]:
            found = counts_of_several(Model(*rows), part, self.num_threads)
            return found.logs, (found.initial, found.transitions, found.emissions.swapaxes(1, 2))

        return law

    def draw(self, counts: Rows, random: np.random.Generator) -> Rows:
        return (_rows_drawn(counts[0], random, self.law),)

    def log_density(self, laws: Rows, counts: Rows) -> Array:
        return _dirichlet_log_density(laws[0], counts[0], self.law)

    def likeness(self, laws: Rows, fit: Rows) -> Array:
        likely: Array = laws[0] @ np.log(fit[0][0]).T
        return likely


def no_moves(count: int, size: int) -> Rows:
    return np.zeros((count, size)), np.zeros((count, size, size))


def share_of(work: PackedSequences, share: int) -> PackedSequences:
    """Select every `share`-th sequence, or shorten each sequence to that fraction."""
    if len(work.rows) >= share:
        part = work.part(np.arange(len(work.rows)) % share == 0)
        return part._replace(rows=np.arange(len(part.rows)))
    return work._replace(lengths=np.maximum(1, work.lengths // share))


@dataclass(frozen=True, eq=False, repr=False)
class AnnealedSampler(Shown):
    """Annealed sequential Monte Carlo sampler of models; see `sampled`."""

    emissions: Emissions
    fit: Rows
    random: np.random.Generator
    callback: Callable[[str], object] | None = None
    laws: Mapping[str, ConstrainedRows] = field(default_factory=dict)

    @cached_property
    def orders(self) -> NDArray[np.int64] | None:
        return symmetries(self.laws, self.fit[0].shape[1])

    def estimate(self) -> tuple[float, bool]:
        """Return the larger estimate, and whether the run from the prior completed."""
        low: Law = self._prior
        total, rows = 0.0, self._drawn(self.emissions.nothing(PARTICLES))
        levels = [share for share in SHARES if int(self.emissions.lengths.sum()) >= LEAST * share]
        for share in [*levels, 1]:
            high = self.emissions.likelihood(share)
            near = self.from_fit(high)
            rows, gain = self._climb(rows, low, high)
            total, low = total + gain, high
            if share > 1 and total < near - BEHIND:
                return self.from_fit(self.emissions.likelihood(1)), False
        return max(total, near), True

    def from_fit(self, high: Law) -> float:
        counts = high(self.fit)[1]
        seen = float(counts[2].sum())
        shares = np.array([0.0, *(4.0**-k for k in range(1, max(2, int(math.log(max(seen, 1), 4)))))])
        levels = [_times(share, counts) for share in shares]

        def around(rows: Rows) -> tuple[Array, Rows]:
            logs = np.stack([self._log_density(rows, level) for level in levels], 1)
            weights = np.exp(logs - logs.max(1, keepdims=True))
            mean = weights @ shares / weights.sum(1)
            return logs.max(1) + np.log(weights.mean(1)), _times(mean, counts)

        chosen = np.arange(PARTICLES) * len(shares) // PARTICLES
        rows, gain = self._climb(self._drawn(_times(shares[chosen], counts)), around, high)
        own, size = float(labelled_as(self.emissions, rows, self.fit, self.orders).mean()), self.fit[0].shape[1]
        labellings = math.lgamma(size + 1) if self.orders is None else math.log(len(self.orders))
        return gain + math.log(own) + labellings if own else -math.inf

    @property
    def _chain(self) -> tuple[ConstrainedRows | None, ConstrainedRows | None]:
        return self.laws.get("initial"), self.laws.get("transition")

    def _prior(self, rows: Rows) -> tuple[Array, Rows]:
        return np.zeros(len(rows[0])), self.emissions.nothing(len(rows[0]))

    def _drawn(self, counts: Rows) -> Rows:
        chain = [_rows_drawn(count, self.random, law) for count, law in zip(counts, self._chain, strict=False)]
        return *chain, *self.emissions.draw(counts[2:], self.random)

    def _log_density(self, rows: Rows, counts: Rows) -> Array:
        parts = zip(rows[:2], counts[:2], self._chain, strict=True)
        chain = sum(_dirichlet_log_density(own, count, law) for own, count, law in parts)
        found: Array = chain + self.emissions.log_density(rows[2:], counts[2:])
        return found

    def _climb(self, rows: Rows, low: Law, high: Law) -> tuple[Rows, float]:
        """Anneal through low^(1 - power) high^power; return the log mass ratio."""
        (before, pull), (after, push) = low(rows), high(rows)
        power = total = 0.0
        while True:
            step = _step(after - before, 1 - power)
            logs = step * (after - before)
            weights = np.exp(logs - logs.max())
            total += float(logs.max() + math.log(weights.mean()))
            places = (self.random.random() + np.arange(len(weights))) / len(weights)
            kept = np.minimum(np.searchsorted(weights.cumsum() / weights.sum(), places), len(weights) - 1)
            rows, pull, push = (tuple(part[kept] for part in parts) for parts in (rows, pull, push))
            before, after = before[kept], after[kept]
            if step == 1 - power:
                return rows, total
            power += step
            said = f"evidence of {rows[0].shape[1]} states"
            if self.callback is not None and self.callback(said) is True:
                raise EvidenceStopped
            for _ in range(MOVES):
                towards = _between(power, pull, push)
                others = self._drawn(towards)
                (low_logs, low_counts), (high_logs, high_counts) = low(others), high(others)
                back = self._log_density(rows, _between(power, low_counts, high_counts))
                back = back - self._log_density(others, towards)
                gain = (1 - power) * (low_logs - before) + power * (high_logs - after) + back
                taken = np.log(self.random.random(len(gain))) < gain
                before, after = np.where(taken, low_logs, before), np.where(taken, high_logs, after)
                rows, pull, push = (
                    _either(taken, *pair) for pair in ((others, rows), (low_counts, pull), (high_counts, push))
                )


def _step(gains: Array, most: float) -> float:
    away, low, high = gains - gains.max(), 0.0, most
    for number in range(50):
        middle = most if number == 0 else (low + high) / 2
        weights = np.exp(middle * away)
        if weights.sum() ** 2 / (weights @ weights) >= WORTH * len(weights):
            low = middle
        else:
            high = middle
        if low == most:
            break
    return low


def labelled_as(
    emissions: Emissions, rows: Rows, fit: Rows, orders: NDArray[np.int64] | None = None
) -> NDArray[np.bool_]:
    """Return whether the given labelling of the states is the closest to the fitted model, of all or of `orders`."""
    stays, kept = (np.diagonal(part[1], axis1=1, axis2=2) for part in (rows, fit))
    likely = emissions.likeness(rows[2:], fit[2:])
    likely = likely + stays[..., None] * np.log(kept) + (1 - stays)[..., None] * np.log1p(-kept)
    size = likely.shape[1]
    best = [np.zeros(len(likely))]
    if orders is not None:
        best.append(np.max([likely[:, np.arange(size), order].sum(1) for order in orders], 0))
        return np.asarray(np.trace(likely, axis1=1, axis2=2) >= best[-1] - 1e-9)
    for chosen in range(1, 2**size):
        state = chosen.bit_count() - 1
        ways = [best[chosen ^ 1 << j] + likely[:, state, j] for j in range(size) if chosen >> j & 1]
        best.append(np.maximum.reduce(ways))
    found: NDArray[np.bool_] = np.trace(likely, axis1=1, axis2=2) >= best[-1] - 1e-9
    return found


def _rows_drawn(counts: Array, random: np.random.Generator, law: ConstrainedRows | None) -> Array:
    return _at_least(dirichlet_rows(1 + counts, random)) if law is None else law.draw(counts, random)


def _dirichlet_log_density(probs: Array, count: Array, law: ConstrainedRows | None = None) -> Array:
    if law is not None:
        return law.log_density(probs, count)
    size = probs.shape[-1]
    norms = log_gamma(count.sum(-1) + size) - log_gamma(count + 1).sum(-1) - math.lgamma(size)
    each = (count * np.log(probs)).sum(-1) + norms
    found: Array = each.reshape(*each.shape[:1], -1).sum(-1)
    return found


def floored(parts: Rows) -> Rows:
    return tuple(map(_at_least, parts))


def _at_least(probs: Array) -> Array:
    raised = np.maximum(probs, _FLOOR)
    found: Array = raised / raised.sum(-1, keepdims=True)
    return found


def _times(factors: Array | float, counts: Rows) -> Rows:
    return tuple(np.reshape(factors, (-1, *[1] * (part.ndim - 1))) * part for part in counts)


def _between(power: float, low: Rows, high: Rows) -> Rows:
    return tuple((1 - power) * a + power * b for a, b in zip(low, high, strict=True))


def _either(taken: NDArray[np.bool_], new: Rows, old: Rows) -> Rows:
    return tuple(np.where(taken.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(new, old, strict=True))
