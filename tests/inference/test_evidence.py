"""Evidence of numbers of states: against sums over all paths, on both ways to it, and in closed form of one state."""

import itertools
import math

import numpy as np
import pytest

import hmmscope as hs
from hmmscope.inference import evidence as module
from hmmscope.inference.evidence import Evidence, evidence
from hmmscope.inference.loop_inputs import flat_sequences
from hmmscope.inference.monte_carlo import log_mean
from hmmscope.inference.num_states import support_of

#: Two sequences of symbols 0 and 1; 2 is a missing one.
SEEN, LENGTHS = np.array([0, 0, 1, 0, 2, 1, 1, 1, 1, 0]), np.array([7, 3])


def by_paths(size):
    """log P(SEEN): of each path, products of Dirichlet-multinomials of its counts, added up."""
    total = 0.0
    for path in itertools.product(range(size), repeat=len(SEEN)):
        first, moves, visits = np.zeros(size), np.zeros((size, size)), np.zeros((size, 3))
        np.add.at(first, [path[0], path[7]], 1)
        np.add.at(moves, ([*path[:6], *path[7:9]], [*path[1:7], *path[8:]]), 1)
        np.add.at(visits, (list(path), SEEN), 1)
        rows = [first, *moves, *visits[:, :2]]
        total += math.prod(
            math.factorial(len(row) - 1)
            * math.prod(math.factorial(int(n)) for n in row)
            / math.factorial(int(row.sum()) + len(row) - 1)
            for row in rows
        )
    return math.log(total)


def mean_of(estimates):
    """Mean of likelihoods beside the largest, in logarithms, and its standard error."""
    ratios = np.exp(np.array(estimates) - max(estimates))
    return max(estimates) + math.log(ratios.mean()), ratios.std(ddof=1) / ratios.mean() / len(ratios) ** 0.5


@pytest.mark.parametrize("way", ["from the prior, in three levels", "from a fit", "by chains"])
def test_estimates_are_unbiased(way, monkeypatch):
    work, exact = flat_sequences(SEEN, LENGTHS), by_paths(2)
    hmm = hs.HMM([0.5, 0.5], [[0.75, 0.25], [0.25, 0.75]], [[0.75, 0.25], [0.25, 0.75]])
    monkeypatch.setattr(module, "LEAST", 0)
    symbols = module.Symbols(work, 2, 2, 1)
    fit = tuple(part.numpy()[None] for part in (hmm.initial, hmm.transition, hmm.emission))
    samplers = [module.AnnealedSampler(symbols, fit, np.random.default_rng(seed)) for seed in range(8)]
    if way != "from the prior, in three levels":
        monkeypatch.setattr(module, "HARD", 0 if way == "by chains" else 100)
        monkeypatch.setattr(module, "CHAINS", 8)
        found = [one.estimate().log for one in samplers[:4]]
    else:
        levels = [symbols.likelihood(share) for share in (*module.SHARES, 1)]
        found = [one.from_prior(levels, [-math.inf] * 2).log for one in samplers]
    mean, error = mean_of(found)
    assert abs(mean - exact) < 4 * error
    assert error < 0.1


def test_the_error_of_an_estimate_is_small_and_holds():
    """With the right number of states; an earlier estimate had a spread of .2 nats here."""
    states = np.repeat(np.arange(20) % 2, 25)
    symbols = np.where(np.random.default_rng(0).random(500) < 0.85, states, 1 - states)
    hmm = hs.HMM([0.5, 0.5], [[0.96, 0.04], [0.04, 0.96]], [[0.85, 0.15], [0.15, 0.85]])
    found = [evidence(flat_sequences(symbols, np.array([500])), hmm, 1, seed) for seed in range(6)]
    logs = np.array([one.log for one in found])
    assert logs.std() < 0.05
    assert np.median([one.error for one in found]) < 0.1
    assert np.mean(abs(logs - logs.mean()) < [one.error for one in found]) > 0.6


def test_the_log_of_a_mean_has_no_bias_and_an_honest_error(monkeypatch):
    random = np.random.default_rng(0)
    found = [log_mean(random.normal(-0.045, 0.3, 8).tolist()) for _ in range(1000)]
    logs, errors = np.array([one.log for one in found]), np.array([one.error for one in found])
    assert abs(logs.mean()) < 0.01
    assert 0.9 < np.mean(abs(logs) <= errors) < 0.97
    monkeypatch.setattr(module, "log_mean", lambda logs: None)  # as of runs of which one dominates
    two = hs.HMM([0.5, 0.5], [[0.75, 0.25], [0.25, 0.75]], [[0.75, 0.25], [0.25, 0.75]])
    assert evidence(flat_sequences(SEEN, LENGTHS), two).error == 100


def test_one_state_has_a_closed_form():
    hmm = hs.HMM([1.0], [[1.0]], [[0.5, 0.5]])
    found = evidence(flat_sequences(SEEN, LENGTHS), hmm)
    assert found.log == pytest.approx(by_paths(1), rel=1e-12)
    assert found.error == 0


def test_labels_are_those_of_the_fit_if_no_other_order_is_likelier():
    rng = np.random.default_rng(0)
    rows = tuple(rng.dirichlet(np.ones(4), shape) for shape in (30, (30, 4), (30, 4)))
    fit = tuple(rng.dirichlet(np.ones(4), shape) for shape in (1, (1, 4), (1, 4)))
    fit[2][0], rows[2][:8] = np.eye(4) * 0.6 + 0.1, np.eye(4) * 0.6 + 0.1
    stays, kept = rows[1].diagonal(0, 1, 2), fit[1][0].diagonal()

    def like(n, order):
        kinds = (rows[2][n, list(order)] * np.log(fit[2][0])).sum()
        return kinds + (stays[n, list(order)] * np.log(kept) + (1 - stays[n, list(order)]) * np.log1p(-kept)).sum()

    best = [max(itertools.permutations(range(4)), key=lambda order, n=n: like(n, order)) for n in range(30)]
    symbols = module.Symbols(flat_sequences(SEEN, LENGTHS), 4, 4)
    assert module.labelled_as(symbols, rows, fit).tolist() == [order == (0, 1, 2, 3) for order in best]
    assert len(set(best)) > 5


def test_numbers_far_from_the_likeliest_are_not_looked_at():
    logs = {1: -130.0, 2: -117.9, 3: -100.0, 4: -112.1, 5: 0.0}
    support = support_of({size: abs(size - 3.0) for size in logs}, lambda size: Evidence(logs[size], 0.0))
    assert support.log_evidence == {1: -math.inf, 2: -117.9, 3: -100.0, 4: -112.1, 5: -math.inf}
    nine = hs.HMM(np.full(9, 1 / 9), np.eye(9), np.eye(9))
    assert evidence(flat_sequences(SEEN, LENGTHS), nine) is None
