"""Evidence of numbers of states that emit numbers: against sums over all paths; priors against means over their draws."""

import itertools
import math

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.emissions.conjugate import DirichletRows, GammaRates, NormalInverseWishart, members
from hmmscope.emissions.vector_evidence import VectorEmissions, vector_evidence
from hmmscope.inference import evidence as module
from hmmscope.inference.loop_inputs import flat_sequences

FAMILIES = ("diag", "spherical", "full", "tied", "poisson", "channels")
LENGTHS = torch.tensor([6, 3])


def prior_of(family):
    if family == "poisson":
        return GammaRates(torch.tensor([4.0, 3.0]).double(), 2.0)
    if family == "channels":
        return DirichletRows((3, 2), 0.7)
    return NormalInverseWishart(family, torch.tensor([0.5, 1.0]).double(), torch.tensor([1.0, 0.5]).double(), 0.3, 4.0)


def seen(family):
    """Nine rows of two coordinates, of which two states tell; of variances and counts an entry is missing."""
    rng = np.random.default_rng(0)
    means = np.repeat([[1.0, 2.0], [4.0, 5.0]], [5, 4], 0)
    if family == "channels":
        means = np.array([[0, 0], [0, 1], [0, 0], [1, torch.nan], [0, 0], [2, 1], [2, 1], [2, 0], [2, 1]])
        return torch.from_numpy(means)
    rows = torch.from_numpy(rng.poisson(means).astype(float) if family == "poisson" else rng.normal(means, 1.0))
    if family not in ("full", "tied"):
        rows[3, 1] = torch.nan
    return rows


def by_paths(family, size):
    """log P(rows): over all paths, products of the marginals of the chain's counts and of the rows of each state."""
    laws, rows, found = prior_of(family), seen(family), []
    for path in itertools.product(range(size), repeat=len(rows)):
        first, moves = np.zeros(size), np.zeros((size, size))
        np.add.at(first, [path[0], path[6]], 1)
        np.add.at(moves, ([*path[:5], *path[6:8]], [*path[1:6], *path[7:]]), 1)
        log = float(laws.log_marginal(members(torch.tensor(path), size).T @ laws.features(rows)))
        for row in (first, *moves):
            log += math.lgamma(size) + sum(map(math.lgamma, row + 1)) - math.lgamma(row.sum() + size)
        found.append(log)
    return float(torch.logsumexp(torch.tensor(found, dtype=torch.float64), 0))


def model_of(family, size=2):
    chain = np.full(size, 1 / size), np.full((size, size), 1 / size)
    means = [[1.0, 2.0], [4.0, 5.0]][:size]
    if family == "poisson":
        return hs.PoissonHMM(*chain, means)
    if family == "channels":
        return hs.MultichannelHMM(*chain, [[[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]][:size], [[0.7, 0.3], [0.2, 0.8]][:size]])
    one = {"diag": np.ones((size, 2)), "spherical": np.ones(size), "tied": np.eye(2)}
    return hs.GaussianHMM(*chain, means, one.get(family, [np.eye(2)] * size), family)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_estimates_are_unbiased(family, monkeypatch):
    rows, laws = seen(family), prior_of(family)
    work, features = flat_sequences(np.arange(9), LENGTHS.numpy()), laws.features(rows)
    arrays = model_of(family).file_tensors()
    fit = tuple(arrays[name].numpy()[None] for name in ("initial", "transition", *laws.names))
    numbers = VectorEmissions(work, features, laws, 2, 1)
    samplers = [module.AnnealedSampler(numbers, fit, np.random.default_rng(seed)) for seed in range(40)]
    exact = by_paths(family, 2)
    monkeypatch.setattr(module, "CHAINS", 8)
    for hard in (100, 0):  # runs near the fit, and chains
        monkeypatch.setattr(module, "HARD", hard)
        check_mean([one.estimate().log for one in samplers[:4]], exact, 0.02)
    check_mean([one.from_prior([numbers.likelihood(1)], []).log for one in samplers], exact)


def check_mean(found, exact, bias=0.0):
    """Compare the mean ratio with one; bridge sampling of finite chains has a small bias."""
    ratios = np.exp(np.array(found) - exact)
    error = ratios.std(ddof=1) / len(ratios) ** 0.5
    assert abs(ratios.mean() - 1) < bias + 4 * error
    assert error < 0.2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prior_knows_means_over_its_draws(family):
    """Features weigh as densities do; marginals and draws after statistics, by weighing draws of the prior."""
    laws, rows, random = prior_of(family), seen(family), np.random.default_rng(1)
    features = laws.features(rows)
    statistics = 0.15 * torch.from_numpy(random.random((9, 2))).T @ features
    drawn = laws.draw(statistics.new_zeros(40_000, *statistics.shape), random)
    model = model_of(family).replaced(**{name: own[0] for name, own in drawn.items()})
    natural = laws.natural(drawn)
    torch.testing.assert_close(features @ natural[0].T, model.log_likelihoods(rows))
    logs = (natural * statistics).sum((1, 2))
    weights = (logs - laws.log_marginal(statistics)).exp()
    error = float(weights.std()) / 200
    assert abs(float(weights.mean()) - 1) < 4 * error < 0.2
    after = (laws.natural(laws.draw(statistics.expand(20_000, -1, -1), random)) * statistics).sum((1, 2))
    for share in (0.2, 0.5, 0.8):
        order = logs.argsort()
        quantile = logs[order][torch.searchsorted(weights[order].cumsum(0), share * float(weights.sum()))]
        assert abs(float((after < quantile).double().mean()) - share) < 0.04
    each = laws.moments({name: own[0] for name, own in drawn.items()})
    many = model.emit(torch.zeros(100_000, dtype=torch.int64), torch.from_numpy(random.random((100_000, 2))))
    seen_features = laws.features(many)[:, : each.shape[1]]
    kept = slice(0, 4) if family == "poisson" else slice(None)
    away = (seen_features.mean(0) - each[0])[kept] / (seen_features.std(0)[kept] / 100_000**0.5).clamp_min(1e-12)
    assert float(away.abs().max()) < 5


def test_one_state_has_a_closed_form_and_many_have_none():
    for family in FAMILIES:
        found = vector_evidence(model_of(family, 1), seen(family), LENGTHS, prior_of(family))
        assert found.log == pytest.approx(by_paths(family, 1), rel=1e-12)
        assert found.error == 0
    nine = hs.PoissonHMM(np.full(9, 1 / 9), np.eye(9), np.ones((9, 2)))
    assert vector_evidence(nine, seen("poisson"), LENGTHS, prior_of("poisson")) is None
