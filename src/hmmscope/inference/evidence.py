"""P(observations | number of states) of an HMM whose rows are drawn from uniform laws, by sequential Monte Carlo."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.inference.climbing import Model, counts_of_several, may_go_beside
from hmmscope.inference.gibbs import dirichlet_rows
from hmmscope.inference.loop_inputs import Sequences
from hmmscope.processes.hmm import HMM
from hmmscope.seeds import numpy_generator

Array = NDArray[np.float64]
#: Of several models: initial (N, S), transition (N, S, S), emission (N, S, V); or counts of these shapes.
Rows = tuple[Array, Array, Array]
#: Of rows: log density beside the uniform law (N,), and the counts that draw towards where it is large.
Law = Callable[[Rows], tuple[Array, Rows]]

#: Models that are carried along, and how often each is moved at a step.
PARTICLES, MOVES = 128, 2
#: Steps are so long that weights are worth this share of the particles.
WORTH = 0.5
#: Before all observations one of so many are taken in, if these are at least so many.
SHARES, LEAST = (16, 4), 64
#: Observations times squared states beyond which nothing is computed: about twenty seconds of one core.
MOST = 5_000_000
#: Nats by which the estimate from the prior may fall behind the other before it is given up.
BEHIND = 5.0
#: Entries of the parameters are at least this, so that no model forbids what was seen.
_FLOOR = 1e-12


class Evidence(NamedTuple):
    """log P(all observations | number of states), nats, and how far two estimates of it that are hard to make lie apart."""

    log: float
    error: float


def evidence(work: Sequences, hmm: HMM, num_threads: int | None = None, seed: int = 0) -> Evidence | None:
    """log P(all observations | number of states), nats, each row of the parameters drawn from the uniform law.

    Of one state in closed form. Else by sequential Monte Carlo with moves by Dirichlet proposals around expected counts, on
    two ways that err on the low side where they miss a part of the posterior, so that the larger estimate is taken:

    from the prior, over a sixteenth, a quarter and all of the observations: finds ridges and weak structure
    from around a fit, Dirichlet laws around shares 1/4, 1/16, ... of its counts: finds narrow modes; it is of one
    labelling of the states, those that match the fit better than any other, times S!

    Nothing is taken for a normal law, as singular models call for. Estimates of P, not of its logarithm, are unbiased. Where
    the way from the prior is gone to its end, the posterior is wide, and all is done twice: the mean of P counts.

    Source: Del Moral, Doucet and Jasra (2006), "Sequential Monte Carlo samplers".

    Args:
        work: packed sequences; the symbol V is a missing one.
        hmm: fitted to them, or to most of them.

    Returns:
        None of more than eight states, where observations times squared states exceed `MOST`, or for a very long sequence.
    """
    size, num_symbols = hmm.emission_SV.shape
    if size == 1:
        return Evidence(_of_one_state(work, num_symbols), 0.0)
    if not may_go_beside(size, work) or int(work.lengths.sum()) * size**2 > MOST:
        return None
    fit = _floored(tuple(part[None] for part in Model.of(hmm)))
    random = numpy_generator(seed, "evidence", size)
    one, wide = _of_several_states(work, fit, num_threads, random)
    if not wide:
        return Evidence(one, 0.0)
    other, _ = _of_several_states(work, fit, num_threads, random)
    return Evidence(float(np.logaddexp(one, other)) - math.log(2), abs(one - other))


def _of_one_state(work: Sequences, num_symbols: int) -> float:
    """Its symbols are drawn from a law that is uniform before: a Dirichlet-multinomial."""
    counts = np.bincount(work.packed().symbols, minlength=num_symbols)[:num_symbols]
    return math.lgamma(num_symbols) + sum(map(math.lgamma, counts + 1)) - math.lgamma(counts.sum() + num_symbols)


def _likelihood(work: Sequences, num_threads: int | None) -> Law:
    def law(rows: Rows) -> tuple[Array, Rows]:
        found = counts_of_several(Model(*rows), work, num_threads)
        return found.logs, (found.first, found.transitions, found.visits.swapaxes(1, 2))

    return law


def _uniform(rows: Rows) -> tuple[Array, Rows]:
    first, moves, visits = map(np.zeros_like, rows)
    return np.zeros(len(first)), (first, moves, visits)


def _of_several_states(
    work: Sequences, fit: Rows, num_threads: int | None, random: np.random.Generator
) -> tuple[float, bool]:
    """The larger of two estimates; and whether that from the prior was not given up at a level where it fell behind."""
    low: Law = _uniform
    total, rows = 0.0, _drawn(tuple(np.zeros((PARTICLES, *part.shape[1:])) for part in fit), random)
    levels = [share for share in SHARES if int(work.lengths.sum()) >= LEAST * share]
    for share in [*levels, 1]:
        high = _likelihood(_share(work, share), num_threads)
        near = _from_fit(high, fit, random)
        rows, gain = _climb(rows, low, high, random)
        total, low = total + gain, high
        if share > 1 and total < near - BEHIND:
            return _from_fit(_likelihood(work, num_threads), fit, random), False
    return max(total, near), True


def _share(work: Sequences, share: int) -> Sequences:
    """Every so manieth sequence, or of few sequences the beginnings."""
    if len(work.rows) >= share:
        return work.part(np.arange(len(work.rows)) % share == 0)
    return work._replace(lengths=np.maximum(1, work.lengths // share))


def _from_fit(high: Law, fit: Rows, random: np.random.Generator) -> float:
    """From Dirichlet laws around shares of the expected counts of a fit, and the uniform one."""
    counts = high(fit)[1]
    seen = float(counts[2].sum())
    shares = np.array([0.0, *(4.0**-k for k in range(1, max(2, int(math.log(max(seen, 1), 4)))))])
    levels = [_times(share, counts) for share in shares]

    def around(rows: Rows) -> tuple[Array, Rows]:
        logs = np.stack([_log_density(rows, level) for level in levels], 1)
        weights = np.exp(logs - logs.max(1, keepdims=True))
        mean = weights @ shares / weights.sum(1)
        return logs.max(1) + np.log(weights.mean(1)), _times(mean, counts)

    chosen = np.arange(PARTICLES) * len(shares) // PARTICLES
    rows, gain = _climb(_drawn(_times(shares[chosen], counts), random), around, high, random)
    own = float(_labelled_as(rows, fit).mean())
    return gain + math.log(own) + math.lgamma(fit[0].shape[1] + 1) if own else -math.inf


def _climb(rows: Rows, low: Law, high: Law, random: np.random.Generator) -> tuple[Rows, float]:
    """From particles of the law `low` to those of `high`, by low^(1 - power) high^power; and log of the ratio of masses."""
    (before, pull), (after, push) = low(rows), high(rows)
    power = total = 0.0
    while True:
        step = _step(after - before, 1 - power)
        logs = step * (after - before)
        weights = np.exp(logs - logs.max())
        total += float(logs.max() + math.log(weights.mean()))
        places = (random.random() + np.arange(len(weights))) / len(weights)
        kept = np.minimum(np.searchsorted(weights.cumsum() / weights.sum(), places), len(weights) - 1)
        rows, pull, push = (_chosen(part, kept) for part in (rows, pull, push))
        before, after = before[kept], after[kept]
        if step == 1 - power:
            return rows, total
        power += step
        for _ in range(MOVES):
            towards = _between(power, pull, push)
            others = _drawn(towards, random)
            (low_logs, low_counts), (high_logs, high_counts) = low(others), high(others)
            back = _log_density(rows, _between(power, low_counts, high_counts)) - _log_density(others, towards)
            gain = (1 - power) * (low_logs - before) + power * (high_logs - after) + back
            taken = np.log(random.random(len(gain))) < gain
            before, after = np.where(taken, low_logs, before), np.where(taken, high_logs, after)
            rows, pull, push = (
                _either(taken, *pair) for pair in ((others, rows), (low_counts, pull), (high_counts, push))
            )


def _step(gains: Array, most: float) -> float:
    """The longest step whose weights exp(step * gains) are worth `WORTH` of their number, by bisection."""
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


def _labelled_as(rows: Rows, fit: Rows) -> NDArray[np.bool_]:
    """Whether no other labelling of the states looks more like the fit, by the states' emissions and how long they stay.

    By dynamic programming over the sets of states of the fit that the first states are given.
    """
    stays, kept = (np.diagonal(part[1], axis1=1, axis2=2) for part in (rows, fit))
    likely = rows[2] @ np.log(fit[2][0]).T + stays[..., None] * np.log(kept) + (1 - stays)[..., None] * np.log1p(-kept)
    size = likely.shape[1]
    best = [np.zeros(len(likely))]
    for chosen in range(1, 2**size):
        state = chosen.bit_count() - 1
        ways = [best[chosen ^ 1 << j] + likely[:, state, j] for j in range(size) if chosen >> j & 1]
        best.append(np.maximum.reduce(ways))
    found: NDArray[np.bool_] = np.trace(likely, axis1=1, axis2=2) >= best[-1] - 1e-9
    return found


def _log_density(rows: Rows, counts: Rows) -> Array:
    """Of rows with laws Dirichlet(1 + counts), beside that of the uniform law (N,)."""
    total = np.zeros(len(rows[0]))
    for law, count in zip(rows, counts, strict=True):
        size = law.shape[-1]
        norms = _log_gamma(count.sum(-1) + size) - _log_gamma(count + 1).sum(-1) - math.lgamma(size)
        each = (count * np.log(law)).sum(-1) + norms
        total = total + each.reshape(*each.shape[:1], -1).sum(-1)
    return total


def _log_gamma(values: Array) -> Array:
    found: Array = torch.lgamma(torch.from_numpy(values)).numpy()
    return found


def _drawn(counts: tuple[Array, ...], random: np.random.Generator) -> Rows:
    return _floored(tuple(dirichlet_rows(1 + count, random) for count in counts))


def _floored(parts: tuple[Array, ...]) -> Rows:
    initial, step, emission = (np.maximum(part, _FLOOR) for part in parts)
    return tuple(part / part.sum(-1, keepdims=True) for part in (initial, step, emission))


def _times(factors: Array | float, counts: Rows) -> Rows:
    first, moves, visits = (np.reshape(factors, (-1, *[1] * (part.ndim - 1))) * part for part in counts)
    return first, moves, visits


def _between(power: float, low: Rows, high: Rows) -> Rows:
    first, moves, visits = ((1 - power) * a + power * b for a, b in zip(low, high, strict=True))
    return first, moves, visits


def _chosen(parts: Rows, kept: NDArray[np.int64]) -> Rows:
    return parts[0][kept], parts[1][kept], parts[2][kept]


def _either(taken: NDArray[np.bool_], new: Rows, old: Rows) -> Rows:
    first, moves, visits = (
        np.where(taken.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(new, old, strict=True)
    )
    return first, moves, visits
