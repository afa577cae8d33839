"""Evidence P(observations | number of states) under conjugate priors, by sequential Monte Carlo."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hmmscope.inference.chains import relabelled
from hmmscope.inference.constrained_laws import ConstrainedRows, RowLaws, symmetries
from hmmscope.inference.count_mixtures import Array, CountMixture, Rows, repeated
from hmmscope.inference.em import Model, can_run_side_by_side
from hmmscope.inference.evidence_emissions import (
    Emissions,
    Law,
    Symbols,
    draw_rows,
    floored,
    log_marginal_of_rows,
    row_factors,
)
from hmmscope.inference.loop_inputs import PackedSequences
from hmmscope.inference.monte_carlo import log_bridge, log_mean, student_half
from hmmscope.processes.hmm import HMM
from hmmscope.reprs import Shown
from hmmscope.seeds import numpy_generator

#: Particles of a run from the prior, Metropolis moves of each per step, and independent runs.
PARTICLES, MOVES, RUNS = 64, 2, 4
#: Densities of a run near a fit, and its least and most particles; fewer above WORK particles * `Emissions.cost`.
DENSITIES, LEAST_PARTICLES, MOST_PARTICLES, WORK = 256, 96, 512, 2**20
#: Annealing steps near the fit from which on Markov chains replace the runs, and the largest `Emissions.cost` for them.
HARD, HARD_WORK = 3, 20_000
#: Groups of chains, chains of a group, rounds, steps of a round, and factor of the expected counts in proposals.
GROUPS, CHAINS, ROUNDS, STEPS, WIDER = 8, 32, 8, 20, 0.7
#: Log-likelihood of models with other labels than the fit's.
OUTSIDE = -1e12
#: Half of a 95 % interval, in nats, if all but one estimate are negligible.
UNKNOWN = 100.0
#: Effective sample size that determines the step length, as a fraction of the particles.
WORTH = 0.5
#: Intermediate levels use 1/16 and 1/4 of the observations, if that leaves at least LEAST.
SHARES, LEAST = (16, 4), 64
#: Limit on observations times squared states, about 20 seconds on one core, and the limit unless it is asked for.
MOST, UNASKED = 5_000_000, 1_000_000
#: Gap in nats at which the estimate from the prior is abandoned.
BEHIND = 5.0


class EvidenceStopped(Exception):
    """Raised when the callback of an estimate requests a stop."""


class Evidence(NamedTuple):
    """Log evidence in nats, and half the width of its 95 % interval."""

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
    laws: RowLaws | None = None,
) -> Evidence | None:
    """Estimate log P(all observations | number of states), in nats, under uniform priors.

    Args:
        work: Packed sequences of symbols in [0, V), V where missing.
        hmm: HMM fitted to all or most of the data.
        num_threads, seed: Number of threads (default: torch's), and random seed.
        most: Largest (number of observations) * (number of states)^2 for which the evidence is computed.
        callback: Function called with a progress text at each step; if it returns True, `EvidenceStopped` is raised.
        laws: Priors of constrained arrays ("initial", "transition", "emission") with closed-form marginal likelihoods.

    Returns:
        The evidence; None for weighted sequences, known states, more than eight states, or too many data.
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
    laws: RowLaws | None = None,
) -> Evidence:
    """Estimate log P(all observations | number of states) by sequential Monte Carlo.

    The estimate is the mean of four annealing runs. They start from a mixture of densities around the fit and around
    modes found by pilot runs, in one labelling of the states; the number of equivalent labellings multiplies the mean.
    If the data are few and pilot runs need three or more annealing steps, bridge sampling replaces the four runs.

    Source: Del Moral, Doucet and Jasra (2006); Cappe, Guillin, Marin and Robert (2004); Meng and Wong (1996).

    Args:
        fit: Parameters of the fitted model without zeros (see `floored`).
        callback, laws: See `evidence`.
    """
    return AnnealedSampler(emissions, fit, random, callback, laws or {}).estimate()


def _of_one_state(work: PackedSequences, num_symbols: int, laws: RowLaws) -> float:
    counts = np.bincount(work.packed().symbols, minlength=num_symbols)[:num_symbols]
    if "emission" in laws:
        return laws["emission"].log_marginal(counts[None].astype(np.float64))
    return math.lgamma(num_symbols) + sum(map(math.lgamma, counts + 1)) - math.lgamma(counts.sum() + num_symbols)


class Particles(NamedTuple):
    """Result of an annealing run."""

    log: float
    counts: Rows
    shares: Array | None = None
    powers: tuple[float, ...] | None = None


class State(NamedTuple):
    """Current models of N MCMC chains, their log-likelihoods and expected counts."""

    rows: Rows
    logs: Array
    counts: Rows

    def replaced(self, new: "State", gains: Array, random: np.random.Generator) -> "State":
        taken = np.log(random.random(len(gains))) < gains
        rows, counts = _either(taken, new.rows, self.rows), _either(taken, new.counts, self.counts)
        return State(rows, np.where(taken, new.logs, self.logs), counts)


def pseudo_values(parts: Array) -> list[float]:
    """Return a jackknife pseudo-value of `log_bridge` per group; `parts` stacks its arguments (2, group, draw)."""
    count, whole = parts.shape[1], log_bridge(*parts.reshape(2, -1))
    without = (log_bridge(*np.delete(parts, group, 1).reshape(2, -1)) for group in range(count))
    return [count * whole - (count - 1) * log for log in without]


@dataclass(frozen=True, eq=False, repr=False)
class AnnealedSampler(Shown):
    """Annealed sequential Monte Carlo sampler of models; see `sampled`."""

    emissions: Emissions
    fit: Rows
    random: np.random.Generator
    callback: Callable[[str], object] | None = None
    laws: RowLaws = field(default_factory=dict)

    @cached_property
    def orders(self) -> NDArray[np.int64] | None:
        return symmetries(self.laws, self.fit[0].shape[1])

    @property
    def _chain(self) -> tuple[ConstrainedRows | None, ConstrainedRows | None]:
        return self.laws.get("initial"), self.laws.get("transition")

    def estimate(self) -> Evidence:
        total = int(self.emissions.lengths.sum())
        levels = [self.emissions.likelihood(share) for share in SHARES if total >= LEAST * share]
        levels.append(self.emissions.likelihood(1))
        centres = levels[-1](self.fit)[1]
        bounds = [self.near(level(self.fit)[1], level, PARTICLES).log - BEHIND for level in levels[:-1]]
        found = [self.near(centres, levels[-1], PARTICLES)]
        wide = [run for _ in range(RUNS) if (run := self.from_prior(levels, bounds)) is not None]
        some, shares = [centres, *(run.counts for run in [*wide, *found])], found[0].shares
        for _ in range(2):
            found = self.runs(2, some, levels[-1], shares)
            some, shares = [*some, *(run.counts for run in found)], found[0].shares
        if len(found[0].powers or ()) >= HARD and self.emissions.cost <= HARD_WORK:
            starts = [self.from_prior(levels, bounds) for _ in range(GROUPS)]
            near = [run if run and run.log > found[0].log - BEHIND else found[0] for run in starts]
            logs = np.array(self.bridges([run.counts for run in near], levels[-1]))
            return Evidence(float(logs.mean()), float(student_half(logs[:, None])[0]))
        powers = (0.0, *(found[0].powers or ()))  # steps that do not depend on the particles: no bias
        steps = tuple(part for ends in pairwise(powers) for part in (sum(ends) / 2, ends[1]))
        every = [run.log for run in self.runs(RUNS, some, levels[-1], shares, steps or None)]
        mean = log_mean(every)
        return Evidence(max(every), UNKNOWN) if mean is None else Evidence(mean.log, mean.error)

    def runs(
        self, number: int, some: list[Rows], high: Law, shares: Array | None, powers: tuple[float, ...] | None = None
    ) -> list[Particles]:
        centres = tuple(np.concatenate(parts) for parts in zip(*some, strict=True))
        particles = max(LEAST_PARTICLES, min(MOST_PARTICLES, WORK // self.emissions.cost))
        return [self.near(centres, high, particles, shares, powers) for _ in range(number)]

    def from_prior(self, levels: list[Law], bounds: list[float]) -> Particles | None:
        """Anneal from the prior through the densities `levels`; return None once a log evidence is below its bound."""
        total, rows = 0.0, self._drawn(self.emissions.nothing(PARTICLES))
        low: Law = self._prior
        for high, bound in zip(levels, [*bounds, -math.inf], strict=True):
            rows, counts, gain, _ = self._climb(rows, low, high)
            total, low = total + gain, high
            if total < bound:
                return None
        return Particles(total, self._labelled(rows, counts))

    def near(
        self,
        centres: Rows,
        high: Law,
        particles: int,
        shares: Array | None = None,
        powers: tuple[float, ...] | None = None,
    ) -> Particles:
        """Anneal to `high` from a `CountMixture` around the counts `centres`, in one state labelling."""
        around = CountMixture.around(centres, shares, DENSITIES, self._log_marginal, self.random)

        def mixture(rows: Rows) -> tuple[Array, Rows]:
            logs, counts, _ = around.weigh(self._factors(rows))
            return np.where(self._inside(rows), logs, -math.inf), counts

        places = repeated(DENSITIES, particles, self.random)
        rows = self._drawn(tuple(part[places] for part in around.counts))
        inside = self._inside(rows)
        if not inside.any():
            return Particles(-math.inf, centres, shares, powers)
        rows, counts, gain, powers = self._climb(tuple(part[inside] for part in rows), mixture, high, powers)
        used = around.weigh(self._factors(rows))[2]
        whole = math.log(inside.mean()) + self._log_orders
        return Particles(gain + whole, self._labelled(rows, counts), used, powers)

    def bridges(self, starts: list[Rows], high: Law) -> list[float]:
        """Return jackknife pseudo-values of the log evidence, estimated by bridge sampling from Markov chains."""
        picks = [np.resize(self.random.permutation(len(start[0])), CHAINS) for start in starts]
        states: list[State] = []
        for part in (slice(GROUPS // 2), slice(GROUPS // 2, GROUPS)):
            some = [[own[pick] for own in start] for start, pick in zip(starts[part], picks[part], strict=True)]
            states.append(self._state(tuple(map(np.concatenate, zip(*some, strict=True))), high))
        shares: list[Array | None] = [None, None]
        found: list[float] = []
        for number in range(ROUNDS):
            for half in (0, 1):
                centres = states[1 - half].counts
                around = CountMixture.around(centres, shares[half], DENSITIES, self._log_marginal, self.random)
                ratios = np.empty((2, STEPS, GROUPS // 2 * CHAINS))
                for step in range(STEPS):
                    states[half], ratios[:, step] = self._moved(states[half], around, high)
                shares[half] = around.weigh(self._factors(states[half].rows))[2]
                if number == ROUNDS - 1:
                    groups = ratios.reshape(2, STEPS, -1, CHAINS).swapaxes(1, 2)
                    found += [self._log_orders + log for log in pseudo_values(groups.reshape(*groups.shape[:2], -1))]
        return found

    def _moved(self, state: State, around: CountMixture, high: Law) -> tuple[State, Array]:
        self._report()
        for _ in range(MOVES + 1):
            towards = tuple(WIDER * part for part in state.counts)
            new = self._state(towards, high)
            gain = new.logs - state.logs + self._log_density(state.rows, tuple(WIDER * part for part in new.counts))
            state = state.replaced(new, gain - self._log_density(new.rows, towards), self.random)
        places = np.concatenate([repeated(DENSITIES, CHAINS, self.random) for _ in range(GROUPS // 2)])
        new = self._state(tuple(part[places] for part in around.counts), high)
        here, there = (one.logs - around.weigh(self._factors(one.rows))[0] for one in (state, new))
        return state.replaced(new, there - here, self.random), np.stack([here, there])

    def _state(self, counts: Rows, high: Law) -> State:
        rows = self._drawn(counts)
        logs, expected = high(rows)
        return State(rows, np.where(self._inside(rows), logs, OUTSIDE), expected)

    @property
    def _log_orders(self) -> float:
        return math.log(math.factorial(self.fit[0].shape[1]) if self.orders is None else len(self.orders))

    def _inside(self, rows: Rows) -> NDArray[np.bool_]:
        return labelled_as(self.emissions, rows, self.fit, self.orders)

    def _labelled(self, rows: Rows, counts: Rows) -> Rows:
        order = labels(self.emissions, rows, self.fit, self.orders)
        return tuple(relabelled(part, order, axes) for part, axes in zip(counts, (1, 2, 1), strict=True))

    def _report(self) -> None:
        said = f"estimating the evidence for {self.fit[0].shape[1]} states"
        if self.callback is not None and self.callback(said) is True:
            raise EvidenceStopped

    def _factors(self, rows: Rows) -> Array:
        parts = (*map(row_factors, rows, self._chain), self.emissions.natural(rows[2:]))
        return np.concatenate([part.reshape(len(part), -1) for part in parts], 1)

    def _log_marginal(self, counts: Rows) -> Array:
        return sum(map(log_marginal_of_rows, counts, self._chain)) + self.emissions.log_marginal(counts[2:])

    def _prior(self, rows: Rows) -> tuple[Array, Rows]:
        return np.zeros(len(rows[0])), self.emissions.nothing(len(rows[0]))

    def _drawn(self, counts: Rows) -> Rows:
        chain = [draw_rows(count, self.random, law) for count, law in zip(counts, self._chain, strict=False)]
        return *chain, *self.emissions.draw(counts[2:], self.random)

    def _log_density(self, rows: Rows, counts: Rows) -> Array:
        flat = np.concatenate([part.reshape(len(part), -1) for part in counts], 1)
        found: Array = (self._factors(rows) * flat).sum(1) - self._log_marginal(counts)
        return found

    def _climb(
        self, rows: Rows, low: Law, high: Law, powers: tuple[float, ...] | None = None
    ) -> tuple[Rows, Rows, float, tuple[float, ...]]:
        """Anneal along low^(1 - power) high^power; return models, counts, log(integral of high / of low), powers."""
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
            self._report()
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
    """Return whether no permutation in `orders` (None for all) brings a model's labels closer to the fit's."""
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
    found = [list(combinations(range(size), count)) for count in range(1, size + 1)]
    return [(np.array([sum(1 << j for j in one) for one in every]), np.array(every)) for every in found]


def _between(power: float, low: Rows, high: Rows) -> Rows:
    return tuple((1 - power) * a + power * b for a, b in zip(low, high, strict=True))


def _either(taken: NDArray[np.bool_], new: Rows, old: Rows) -> Rows:
    return tuple(np.where(taken.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(new, old, strict=True))
