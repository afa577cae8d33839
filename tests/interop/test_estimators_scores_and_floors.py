"""Scores of each sequence, and a bound on fitted variances."""

import numpy as np
import pytest

estimators = pytest.importorskip("hmmscope.sklearn")


def test_scores_of_sequences_sum_to_the_score() -> None:
    random = np.random.default_rng(0)
    x, lengths = random.integers(0, 3, (30, 1)), [5, 20, 5]
    y = random.normal(size=(30, 2))
    for model, rows in (
        (estimators.CategoricalHMM(2), x),
        (estimators.GaussianHMM(2), y),
        (estimators.PoissonHMM(2), x),
    ):
        found = model.fit(rows, lengths).score_sequences(rows, lengths)
        apart = [model.score(part) for part in np.split(rows, [5, 25])]
        assert found == pytest.approx(apart, abs=1e-10)
        assert model.score(rows, lengths) == pytest.approx(sum(apart), abs=1e-10)


@pytest.mark.parametrize("kind", ["diag", "full", "tied", "spherical"])
@pytest.mark.parametrize("name", ["GaussianHMM", "GMMHMM"])
def test_no_fitted_variance_is_below_the_bound(name: str, kind: str) -> None:
    x = np.random.default_rng(0).normal(size=(60, 2))
    x[30:] = [[5.0, 5.0]]  # one repeated row, and collinear columns
    x[:, 1] = x[:, 0]
    options = {"covars_prior": 0, "covars_weight": 0} if name == "GaussianHMM" else {}
    model = getattr(estimators, name)(2, covariance_type=kind, min_variance=0.3, random_state=0, **options).fit(x)
    covars = model.covars_ if name == "GMMHMM" else model._covars_
    least = np.linalg.eigvalsh(covars) if kind in ("full", "tied") else covars
    assert least.min() >= 0.3 - 1e-12
    assert np.isfinite(model.score(x))
