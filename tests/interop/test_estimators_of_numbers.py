"""Estimators whose states emit numbers, beside those of hmmlearn from the same start; and their processes, both ways."""

import pickle
from typing import Any

import numpy as np
import pytest

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.interop.hmmlearn import from_hmmlearn, to_hmmlearn

parametrize_with_checks = pytest.importorskip("sklearn.utils.estimator_checks").parametrize_with_checks
hmmlearn = pytest.importorskip("hmmlearn.hmm")
estimators = pytest.importorskip("hmmscope.sklearn")

SHAPES = ("diag", "full", "tied", "spherical")
LENGTHS = [150, 50, 100]


def rows() -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(300, 2))
    x[:120] += 3
    x[200:240] -= 2
    return x


def counts() -> np.ndarray:
    random = np.random.default_rng(0)
    return np.concatenate([random.poisson([7, 1], size=(80, 2)), random.poisson([2, 9], size=(220, 2))])


@pytest.mark.long
@pytest.mark.parametrize("name", [*SHAPES, "poisson"])
def test_the_numbers_are_those_of_hmmlearn(name: str) -> None:
    if name == "poisson":
        x, args = counts(), {}
        theirs, ours = hmmlearn.PoissonHMM, estimators.PoissonHMM
    else:
        x, args = rows(), {"covariance_type": name}
        theirs, ours = hmmlearn.GaussianHMM, estimators.GaussianHMM
    options: dict[str, Any] = args | {"n_iter": 8, "random_state": 1}
    size = 2 if name == "poisson" else 3
    a, b = theirs(size, **options).fit(x, LENGTHS), ours(size, **options).fit(x, LENGTHS)
    for field in ("startprob_", "transmat_", "lambdas_" if name == "poisson" else "means_"):
        assert np.abs(getattr(a, field) - getattr(b, field)).max() < 1e-9
    if name != "poisson":
        covariances = np.stack([np.eye(2) * v for v in a._covars_[:, 0]]) if name == "spherical" else a.covars_
        assert np.abs(covariances - b.covars_).max() < 1e-9
    assert np.allclose(a.monitor_.history, b.monitor_.history, rtol=1e-10, atol=0)
    assert b.score(x, LENGTHS) == pytest.approx(a.score(x, LENGTHS), rel=1e-10)
    assert np.array_equal(a.predict(x, LENGTHS), b.predict(x, LENGTHS))
    assert np.abs(a.predict_proba(x, LENGTHS) - b.predict_proba(x, LENGTHS)).max() < 1e-9
    assert b.decode(x, LENGTHS, "map")[0] == pytest.approx(a.decode(x, LENGTHS, "map")[0], rel=1e-10)
    if name != "spherical":  # there hmmlearn counts a variance for each feature
        assert b.bic(x) == pytest.approx(a.bic(x), rel=1e-10)
    assert b.sample(5, random_state=0)[0].shape == (5, 2)
    assert pickle.loads(pickle.dumps(b)).score(x) == b.score(x)


def test_one_variance_a_state_may_be_given_as_a_column() -> None:
    """(S, 1), as hmmlearn takes it, and one for each feature where all are equal."""
    x, scores = rows(), []
    for covars in ([4.0, 1.0], [[4.0], [1.0]], [[4.0, 4.0], [1.0, 1.0]]):
        for kind in (hmmlearn.GaussianHMM, estimators.GaussianHMM):
            if np.shape(covars) == (2, 2) and kind is hmmlearn.GaussianHMM:
                continue
            model = kind(2, covariance_type="spherical", init_params="", n_iter=2)
            model.startprob_, model.transmat_ = np.full(2, 0.5), np.full((2, 2), 0.5)
            model.means_, model.covars_ = np.array([[0.0, 0.0], [3.0, 3.0]]), np.array(covars)
            scores.append(model.fit(x).score(x))
    assert scores == pytest.approx([scores[0]] * 5, rel=1e-10)
    model.covars_ = np.array([[4.0, 3.0], [1.0, 1.0]])
    with pytest.raises(InputError, match="covariances"):
        model.score(x)


@pytest.mark.long
@pytest.mark.drawn(3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prior", [False, True], ids=["no prior", "priors"])
def test_mixtures_are_those_of_hmmlearn(shape: str, prior: bool) -> None:
    """The same start by k-means, every iteration, and all answers; a fit that goes on ends at the same optimum."""
    x = rows()
    options: dict[str, Any] = {"covariance_type": shape, "n_iter": 8, "random_state": 1, "tol": -np.inf}
    if prior:
        options |= {"weights_prior": 1.5, "means_prior": 1.0, "means_weight": 3.0, "transmat_prior": 1.2}
        options |= {"covars_weight": 9.0 if shape in ("full", "tied") else 0.5, "covars_prior": 0.5}
    a, b = hmmlearn.GMMHMM(2, 3, **options), estimators.GMMHMM(2, 3, **options)
    for model in (a, b):
        model.fit(x, LENGTHS)
    for field in ("startprob_", "transmat_", "weights_", "means_", "covars_"):
        assert np.abs(getattr(a, field) - getattr(b, field)).max() < 1e-9, field
    assert np.allclose(a.monitor_.history, b.monitor_.history, rtol=1e-10, atol=0)
    assert b.score(x, LENGTHS) == pytest.approx(a.score(x, LENGTHS), rel=1e-10)
    assert np.array_equal(a.predict(x, LENGTHS), b.predict(x, LENGTHS))
    assert np.abs(a.predict_proba(x, LENGTHS) - b.predict_proba(x, LENGTHS)).max() < 1e-9
    assert b.sample(5, random_state=0)[0].shape == (5, 2)
    assert pickle.loads(pickle.dumps(b)).score(x) == b.score(x)
    if shape != "diag" or prior:
        return
    a.init_params, b.init_params, a.monitor_.n_iter = "", "", 60
    a.n_iter = b.n_iter = 60
    assert b.fit(x, LENGTHS).score(x, LENGTHS) == pytest.approx(a.fit(x, LENGTHS).score(x, LENGTHS), abs=1e-6)


def test_priors_are_those_of_hmmlearn() -> None:
    x = rows()
    options: dict[str, Any] = {
        "n_iter": 4,
        "random_state": 1,
        "means_prior": 1.0,
        "means_weight": 3.0,
        "covars_prior": 0.5,
    }
    for shape in SHAPES:
        a = hmmlearn.GaussianHMM(2, shape, covars_weight=5, **options).fit(x)
        b = estimators.GaussianHMM(2, shape, covars_weight=5, **options).fit(x)
        assert np.abs(a.means_ - b.means_).max() < 1e-9
    options = {"n_iter": 4, "random_state": 1, "lambdas_prior": 2.0, "lambdas_weight": 1.0}
    a, b = hmmlearn.PoissonHMM(2, **options).fit(counts()), estimators.PoissonHMM(2, **options).fit(counts())
    assert np.abs(a.lambdas_ - b.lambdas_).max() < 1e-9


def test_missing_entries_are_summed_out() -> None:
    x = rows()
    x[5, 0], x[7] = np.nan, np.nan
    model = estimators.GaussianHMM(2, random_state=0).fit(x)
    for fitted in (model, estimators.GMMHMM(2, 2, covariance_type="spherical", random_state=0).fit(x)):
        found = hs.log_likelihood(fitted.process(), x)
        assert fitted.score(x) == pytest.approx(float(found), rel=1e-12)
    for full in (estimators.GaussianHMM(2, "full"), estimators.GMMHMM(2, 2, covariance_type="full")):
        with pytest.raises(InputError, match="missing entries require covariance_type diag or spherical"):
            full.set_params(random_state=0).fit(x)


class OfVectors:
    """One sequence, and y ignored, as scikit-learn's checks call estimators."""

    def fit(self, X: Any, y: object = None) -> Any:
        return super().fit(X)  # type: ignore[misc]

    def score(self, X: Any, y: object = None) -> float:
        return super().score(X)  # type: ignore[misc, no-any-return]


class Gaussians(OfVectors, estimators.GaussianHMM):  # type: ignore[misc, name-defined]
    __init__ = estimators.GaussianHMM.__init__


class Mixtures(OfVectors, estimators.GMMHMM):  # type: ignore[misc, name-defined]
    __init__ = estimators.GMMHMM.__init__


ORDER = "rows are moments of one sequence: their order is what the model is about"
EXPECTED = {
    "check_methods_sample_order_invariance": ORDER,
    "check_methods_subset_invariance": ORDER,
    "check_fit1d": "an array of one dimension is one column, as in hmmscope.fit",
    "check_fit2d_predict1d": "likewise",
    "check_dtype_object": "the error names the entry instead of the argument of float()",
    "check_dont_overwrite_parameters": "n_features is an attribute of hmmlearn's",
}


@pytest.mark.slow
@parametrize_with_checks(
    [Gaussians(2, random_state=0), Mixtures(2, 2, covars_weight=0.01, random_state=0)],
    expected_failed_checks=lambda _: EXPECTED,
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_grids_and_refusals() -> None:
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV

    x = rows()
    found = GridSearchCV(estimators.GaussianHMM(n_iter=3, random_state=0), {"n_components": [1, 2]}, cv=2).fit(x)
    assert found.best_params_["n_components"] in (1, 2)
    assert clone(found.best_estimator_).covariance_type == "diag"
    for attempt, said in (
        (lambda: estimators.GaussianHMM(2, "round").fit(x), "covariance_type: unknown 'round'"),
        (lambda: estimators.GMMHMM(2, 0).fit(x), "n_mix: must be a whole number of at least 1, got 0"),
        (lambda: estimators.GMMHMM(2, covariance_type="round").fit(x), "covariance_type: unknown 'round'"),
        (lambda: estimators.GMMHMM(2).fit(x[:1]), "must have at least 2 rows"),
        (lambda: estimators.GaussianHMM(2).fit(x[:1]), "must have at least 2 rows"),
        (lambda: estimators.GaussianHMM(2, random_state=0).fit(x).score(x, [3]), "lengths: must sum to the"),
        (lambda: estimators.PoissonHMM(2).fit(x), "must be counts"),
    ):
        with pytest.raises(InputError, match=said):
            attempt()


@pytest.mark.parametrize("name", [*SHAPES, "poisson", "gmm, diag", "gmm, full", "gmm, tied", "gmm, spherical"])
def test_processes_go_both_ways(name: str) -> None:
    if name == "poisson":
        fitted = hmmlearn.PoissonHMM(2, n_iter=3, random_state=0).fit(counts())
    elif name.startswith("gmm"):
        fitted = hmmlearn.GMMHMM(2, 2, covariance_type=name[5:], n_iter=3, random_state=0).fit(rows())
    else:
        fitted = hmmlearn.GaussianHMM(2, name, n_iter=3, random_state=0).fit(rows())
    x = counts() if name == "poisson" else rows()
    process = from_hmmlearn(fitted)
    assert float(hs.log_likelihood(process, x.astype(float))) == pytest.approx(fitted.score(x), rel=1e-9)
    again = to_hmmlearn(process)
    assert again.score(x) == pytest.approx(fitted.score(x), rel=1e-12)
    assert from_hmmlearn(again).digest == process.digest
