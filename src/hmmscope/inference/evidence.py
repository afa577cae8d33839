"""Evidence P(observations | number of states) under conjugate priors, by sequential Monte Carlo."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import combinations
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hmmscope.inference.constrained_laws import ConstrainedRows, log_gamma, symmetries
from hmmscope.inference.count_mixtures import Array, CountMixture, Rows, repeated
from hmmscope.inference.em import Model, can_run_side_by_side, counter_of_several
from hmmscope.inference.gibbs import dirichlet_rows
from hmmscope.inference.loop_inputs import PackedSequences
from hmmscope.inference.monte_carlo import log_mean
from hmmscope.processes.hmm import HMM
from hmmscope.reprs import Shown
from hmmscope.seeds import numpy_generator

#: Map from rows to their log density relative to the prior (N,), and the counts that propose from it.
Law = Callable[[Rows], tuple[Array, Rows]]

#: Particles of a run from the prior, Metropolis moves of each per step, and independent runs.
PARTICLES, MOVES, RUNS = 64, 2, 4
#: Densities of a run near a fit, and its least and most particles; fewer above WORK particles * `Emissions.cost`.
DENSITIES, LEAST_PARTICLES, MOST_PARTICLES, WORK = 256, 96, 512, 2**20
#: Half of a 95 % interval, in nats, where a single estimate decides.
UNKNOWN = 100.0
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

    @property
    def cost(self) -> int:
        """Processor time of the likelihood of one model, relative to that of one symbol and state."""

    def nothing(self, count: int) -> Rows:
        """Return zeros as the expected counts of `count` models."""

    def likelihood(self, share: int) -> Law:
        """Return a function from parameters to log-likelihood and expected counts of 1 / `share` of the data."""

    def draw(self, counts: Rows, random: np.random.Generator) -> Rows:
        """Draw emission parameters given expected counts."""

    def natural(self, laws: Rows) -> Array:
        """Return the natural parameters: the factors of the counts in the log-likelihood (N, state, count)."""

    def log_marginal(self, counts: Rows) -> Array:
        """Return the log marginal likelihood of counts under the prior (N,)."""

    def likeness(self, laws: Rows, fit: Rows) -> Array:
        """Return E[log P(emissions of a state | state of the fit)] (N, state, fit state)."""


class EvidenceStopped(Exception):
    """The exception raised when the callback of an estimate requests a stop."""


class Evidence(NamedTuple):
    """The log evidence in nats, and half the width of its 95 % interval."""

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
        work: Packed sequences, with the symbol V for missing observations.
        hmm: HMM fitted to all or most of the data.
        num_threads, seed: Number of threads (default: torch's), and random seed.
        most: Largest (number of observations) * (number of states)^2 for which the evidence is computed.
        callback: Function called with a progress text at each step; if it returns True, `EvidenceStopped` is raised.
        laws: Priors in closed form of the constrained parts of the parameters.

    Returns:
        The evidence; None for more than eight states or more data than `most`.
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

    Four runs anneal from the prior through 1/16, 1/4 and all observations, to find modes. Four other runs start near
    the expected counts of the fit and of particles of earlier runs. The latter cover one labelling of the S states, so
    their estimates are multiplied by the number of equivalent labellings. The result is the log of the mean estimate.

    Source: Del Moral, Doucet and Jasra (2006); Cappe, Guillin, Marin and Robert (2004).

    Args:
        emissions: Emission family with data.
        fit: Parameters of the fitted model without zeros (see `floored`).
        random: Random generator.
        callback, laws: See `evidence`.
    """
    logs = AnnealedSampler(emissions, fit, random, callback, laws or {}).estimates()
    mean = log_mean(logs)
    return Evidence(max(logs), UNKNOWN) if mean is None else Evidence(mean.log, mean.error)


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
        return (_rows_drawn(counts[0], random, self.law),)

    def natural(self, laws: Rows) -> Array:
        return _factors(laws[0], self.law)

    def log_marginal(self, counts: Rows) -> Array:
        return _log_mean(counts[0], self.law)

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


class Near(NamedTuple):
    """Result of `AnnealedSampler.near`: log estimate, labelled counts of particles, weights of fractions, powers."""

    log: float
    counts: Rows
    shares: Array | None
    powers: tuple[float, ...] | None


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

    @property
    def _chain(self) -> tuple[ConstrainedRows | None, ConstrainedRows | None]:
        return self.laws.get("initial"), self.laws.get("transition")

    def estimates(self) -> list[float]:
        """Return log estimates of independent runs near the fit and near modes found from the prior."""
        total = int(self.emissions.lengths.sum())
        levels = [self.emissions.likelihood(share) for share in SHARES if total >= LEAST * share]
        high = self.emissions.likelihood(1)
        some = [high(self.fit)[1]]
        bounds = [self.near(level(self.fit)[1], level, PARTICLES).log - BEHIND for level in levels]
        found = [self.near(some[0], high, PARTICLES)]
        wide = [self.from_prior([*levels, high], bounds)[1] for _ in range(RUNS)]
        some, shares = [*some, *filter(None, wide), found[0].counts], found[0].shares
        particles = max(LEAST_PARTICLES, min(MOST_PARTICLES, WORK // self.emissions.cost))
        for runs in (2, 2, RUNS):
            centres = tuple(np.concatenate(parts) for parts in zip(*some, strict=True))
            powers = found[0].powers if runs == RUNS else None  # steps that do not depend on the particles: no bias
            found = [self.near(centres, high, particles, shares, powers) for _ in range(runs)]
            some, shares = [*some, *(one.counts for one in found)], found[0].shares
        return [one.log for one in found]

    def from_prior(self, levels: list[Law], bounds: list[float]) -> tuple[float, Rows | None]:
        """Return a log estimate, and labelled counts of the particles (None if below a bound)."""
        total, rows = 0.0, self._drawn(self.emissions.nothing(PARTICLES))
        low: Law = self._prior
        for high, bound in zip(levels, [*bounds, -math.inf], strict=True):
            rows, counts, gain, _ = self._climb(rows, low, high)
            total, low = total + gain, high
            if total < bound:
                return total, None
        return total, self._labelled(rows, counts)

    def near(
        self,
        centres: Rows,
        high: Law,
        particles: int,
        shares: Array | None = None,
        powers: tuple[float, ...] | None = None,
    ) -> Near:
        """Anneal from a mixture around `centres`, within one labelling of states, through given or adapted powers."""
        size = self.fit[0].shape[1]
        around = CountMixture.around(centres, shares, DENSITIES, self._log_marginal, self.random)

        def mixture(rows: Rows) -> tuple[Array, Rows]:
            logs, counts, _ = around.weigh(self._factors(rows))
            return np.where(labelled_as(self.emissions, rows, self.fit, self.orders), logs, -math.inf), counts

        places = repeated(DENSITIES, particles, self.random)
        rows = self._drawn(tuple(part[places] for part in around.counts))
        inside = labelled_as(self.emissions, rows, self.fit, self.orders)
        if not inside.any():
            return Near(-math.inf, centres, shares, powers)
        rows, counts, gain, powers = self._climb(tuple(part[inside] for part in rows), mixture, high, powers)
        whole = math.log(inside.mean() * (math.factorial(size) if self.orders is None else len(self.orders)))
        return Near(gain + whole, self._labelled(rows, counts), around.weigh(self._factors(rows))[2], powers)

    def _labelled(self, rows: Rows, counts: Rows) -> Rows:
        order, (initial, moves, rest) = labels(self.emissions, rows, self.fit, self.orders), counts
        moves = np.take_along_axis(np.take_along_axis(moves, order[:, :, None], 1), order[:, None], 2)
        return np.take_along_axis(initial, order, 1), moves, np.take_along_axis(rest, order[:, :, None], 1)

    def _factors(self, rows: Rows) -> Array:
        parts = (*map(_factors, rows, self._chain), self.emissions.natural(rows[2:]))
        return np.concatenate([part.reshape(len(part), -1) for part in parts], 1)

    def _log_marginal(self, counts: Rows) -> Array:
        return sum(map(_log_mean, counts, self._chain)) + self.emissions.log_marginal(counts[2:])

    def _prior(self, rows: Rows) -> tuple[Array, Rows]:
        return np.zeros(len(rows[0])), self.emissions.nothing(len(rows[0]))

    def _drawn(self, counts: Rows) -> Rows:
        chain = [_rows_drawn(count, self.random, law) for count, law in zip(counts, self._chain, strict=False)]
        return *chain, *self.emissions.draw(counts[2:], self.random)

    def _log_density(self, rows: Rows, counts: Rows) -> Array:
        flat = np.concatenate([part.reshape(len(part), -1) for part in counts], 1)
        found: Array = (self._factors(rows) * flat).sum(1) - self._log_marginal(counts)
        return found

    def _climb(
        self, rows: Rows, low: Law, high: Law, powers: tuple[float, ...] | None = None
    ) -> tuple[Rows, Rows, float, tuple[float, ...]]:
        """Anneal through low^(1 - power) high^power; return rows, counts, the log ratio of masses and the powers."""
        (before, pull), (after, push) = low(rows), high(rows)
        total, passed = 0.0, [0.0]
        while True:
            gains = after - before
            power = passed[-1] + _step(gains, 1 - passed[-1]) if powers is None else powers[len(passed) - 1]
            logs = (power - passed[-1]) * gains
            weights = np.exp(logs - logs.max())
            total += float(logs.max() + math.log(weights.mean()))
            passed.append(power)
            places = (self.random.random() + np.arange(len(weights))) / len(weights)
            kept = np.minimum(np.searchsorted(weights.cumsum() / weights.sum(), places), len(weights) - 1)
            rows, pull, push = (tuple(part[kept] for part in parts) for parts in (rows, pull, push))
            before, after = before[kept], after[kept]
            if power >= 1:
                return rows, push, total, tuple(passed[1:])
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
    """Return whether each model's state labels are the closest to the fit's, among `orders` or all orders of states."""
    found: NDArray[np.bool_] = (labels(emissions, rows, fit, orders) == np.arange(fit[0].shape[1])).all(1)
    return found


def labels(emissions: Emissions, rows: Rows, fit: Rows, orders: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    stays, kept = (np.diagonal(part[1], axis1=1, axis2=2) for part in (rows, fit))
    likely = emissions.likeness(rows[2:], fit[2:])
    likely = likely + stays[..., None] * np.log(kept) + (1 - stays)[..., None] * np.log1p(-kept)
    size, every = likely.shape[1], np.arange(len(likely))
    if orders is not None:
        sums = np.stack([likely[:, order, np.arange(size)].sum(1) for order in orders])
        same = np.trace(likely, axis1=1, axis2=2) >= sums.max(0) - 1e-9
        return np.where(same[:, None], np.arange(size), orders[sums.argmax(0)])
    best, last = np.zeros((1 << size, len(likely))), np.zeros((1 << size, len(likely)), np.int64)
    matches = np.ascontiguousarray(likely.transpose(2, 1, 0))
    for match, (sets, members) in zip(matches, _sets(size), strict=True):
        ways = best[sets[:, None] ^ 1 << members] + match[members]
        best[sets] = ways.max(1)
        last[sets] = np.take_along_axis(members, ways.argmax(1), 1)
    found, left = np.empty((len(likely), size), np.int64), np.full(len(likely), 2**size - 1)
    for state in range(size - 1, -1, -1):
        found[:, state] = last[left, every]
        left ^= 1 << found[:, state]
    kept = np.trace(likely, axis1=1, axis2=2) >= best[-1] - 1e-9
    return np.where(kept[:, None], np.arange(size), found)


@cache
def _sets(size: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the sets of 1, 2, ... states, as bits of an integer and as members (set, member)."""
    found = [list(combinations(range(size), count)) for count in range(1, size + 1)]
    return [(np.array([sum(1 << j for j in one) for one in every]), np.array(every)) for every in found]


def _rows_drawn(counts: Array, random: np.random.Generator, law: ConstrainedRows | None) -> Array:
    return _at_least(dirichlet_rows(1 + counts, random)) if law is None else law.draw(counts, random)


def _factors(rows: Array, law: ConstrainedRows | None) -> Array:
    found: Array = np.log(rows) if law is None else law.factors(rows)
    return found


def _log_mean(counts: Array, law: ConstrainedRows | None) -> Array:
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


def _between(power: float, low: Rows, high: Rows) -> Rows:
    return tuple((1 - power) * a + power * b for a, b in zip(low, high, strict=True))


def _either(taken: NDArray[np.bool_], new: Rows, old: Rows) -> Rows:
    return tuple(np.where(taken.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(new, old, strict=True))
