"""Densities coordinate by coordinate equal the formula by rows."""

import math

import numpy as np
import pytest
import torch

from hmmscope.emissions import densities
from hmmscope.emissions.chain import filter_states, log_likelihood_of, smooth_and_score, smooth_states
from hmmscope.emissions.poisson import PoissonHMM
from hmmscope.emissions.states import MarkovChainParams
from hmmscope.sklearn import GMMHMM, GaussianHMM


def by_rows(vectors: torch.Tensor, means: torch.Tensor, variances: torch.Tensor) -> torch.Tensor:
    each = (vectors[:, None] - means).square() / variances + (variances.log() + math.log(2 * math.pi))
    return -0.5 * each.masked_fill(vectors.isnan()[:, None], 0.0).sum(2)


@pytest.fixture
def given() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(0)
    vectors, weights = 100 + 3 * random.normal(size=(1500, 4)), random.random((1500, 3))
    parts = vectors, 100 + random.normal(size=(3, 4)), 0.1 + random.random((3, 4)), weights
    return tuple(map(torch.from_numpy, parts))


@pytest.mark.parametrize("gaps", [False, True])
def test_densities_and_squares_equal_the_formula(gaps, given) -> None:
    vectors, means, variances, weights = given
    if gaps:
        vectors[::7, 1] = vectors[5] = torch.nan
    found = densities.log_densities(vectors, means, variances)
    torch.testing.assert_close(found, by_rows(vectors, means, variances), rtol=1e-14, atol=1e-12 * gaps)
    found = densities.weighted_squares(vectors, weights, means)
    exact = torch.einsum("nc,ncy->cy", weights, (vectors[:, None] - means).square().nan_to_num(0.0))
    torch.testing.assert_close(found, exact, rtol=1e-13, atol=0)


def test_counts_with_and_without_a_table_of_factorials() -> None:
    process = PoissonHMM([0.5, 0.5], np.full((2, 2), 0.5), [[1.0, 2.0], [3.0, 4.0]])
    for most in (3.0, 3e5):
        counts = torch.tensor([[0.0, most], [torch.nan, 2.0], [torch.nan, torch.nan]], dtype=torch.float64)
        terms = [(counts * r.log() - r - torch.lgamma(counts + 1)).nan_to_num(0.0).sum(-1) for r in process.rates]
        torch.testing.assert_close(process.log_likelihoods(counts), torch.stack(terms, -1), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("tiny", [1e-3, 1e-150])
def test_totals_are_those_of_the_filter(tiny) -> None:
    """With tiny transitions some sequences are computed again in logarithms."""
    chain = MarkovChainParams(*(torch.tensor(x).double() for x in ([0.5, 0.5], [[1 - tiny, tiny], [0.0, 1.0]])))
    logs = torch.tensor([[[0.0, -1.0], [-900.0, 0.0], [-900.0, -1.0]]] * 2).double()
    logs[1, 0, 0] = logs[1, 0, 1] = -torch.inf
    for lengths in (None, torch.tensor([2, 3])):
        exact = filter_states(chain, logs, lengths=lengths).log_likelihood
        smoothed, totals = smooth_and_score(chain, logs, lengths=lengths)
        for found in (log_likelihood_of(chain, logs, lengths=lengths), totals):
            torch.testing.assert_close(found, exact, rtol=1e-13, atol=0)
        assert torch.equal(smoothed, smooth_states(chain, logs, lengths=lengths))


@pytest.mark.parametrize("estimator", [GaussianHMM, GMMHMM])
def test_given_means_need_no_clusters(estimator, monkeypatch) -> None:
    X = np.random.default_rng(0).normal(size=(40, 1))
    model = estimator(2, random_state=0, n_iter=2).fit(X)
    again = estimator(2, random_state=0, n_iter=2, init_params="")
    for name in estimator.parts.values():
        setattr(again, name, getattr(model, name))
    monkeypatch.setattr(f"{estimator.__module__}.KMeans", None)
    before = set(vars(again.fit(X)))
    again.predict(X)
    assert set(vars(again)) == before
