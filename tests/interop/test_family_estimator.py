"""The estimator of any emission family: numbers of the estimators with one family, and families of other packages."""

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError

base = pytest.importorskip("sklearn.base")
estimators = pytest.importorskip("hmmscope.sklearn")


class ExponentialHMM(hs.EmissionHMM):
    """A family of another package: positive numbers with rates by state."""

    file_format, file_arrays = "test-exponential-hmm", ("initial", "transition", "rates")
    num_symbols = num_draws = 1

    def __init__(self, initial, transition, rates, **texts):
        super().__init__(initial, transition, **texts)
        self.rates = torch.as_tensor(rates).double()

    means = property(lambda self: 1 / self.rates[:, None])
    variances = property(lambda self: self.rates[:, None] ** -2)

    def num_free(self, positive):
        return {"rates": self.num_states}

    def log_likelihoods(self, observations):
        return (self.rates.log() - observations * self.rates).nan_to_num(0.0)

    def emit(self, states, uniforms):
        return -torch.log1p(-uniforms) / self.rates[states, None]

    @classmethod
    def initialize(cls, observations, num_states, random, *, min_variance):
        even = torch.full((num_states, num_states), 1 / num_states)
        return cls(even[0], even, torch.from_numpy(random.gamma(4, 0.25, num_states)) / observations.nanmean())

    def m_step(self, observations, occupancy, min_variance):
        seen = (~observations.isnan()).double()
        return {"rates": (occupancy.T @ seen / (occupancy.T @ observations.nan_to_num(0.0)))[:, 0]}


def test_a_family_by_class_finds_its_rates_and_is_cloned() -> None:
    planted = ExponentialHMM([0.5, 0.5], [[0.95, 0.05], [0.1, 0.9]], [0.2, 5.0])
    x = hs.ProcessDataset(planted, length=500)[0:4].observations.flatten(0, 1).numpy()
    x[7] = np.nan
    model = base.clone(estimators.FamilyHMM(2, emission=ExponentialHMM, n_iter=50, n_init=3, random_state=0))
    model.fit(x, [500] * 4)
    assert np.sort(model.emissions_["rates"]) == pytest.approx([0.2, 5.0], rel=0.1)
    assert model.score(x, [500] * 4) > float(hs.log_likelihood(planted, torch.from_numpy(x).reshape(4, 500, 1)).sum())
    posteriors = model.predict_proba(x, [500] * 4)
    assert posteriors.shape == (2000, 2)
    assert np.allclose(posteriors.sum(1), 1)
    assert model.bic(x, [500] * 4) == pytest.approx(5 * np.log(2000) - 2 * model.score(x, [500] * 4))
    assert model.sample(3, random_state=1)[0].shape == (3, 1)
    assert isinstance(model.process(), ExponentialHMM)


def test_a_step_is_that_of_the_estimator_of_the_family() -> None:
    x = np.random.default_rng(0).poisson([[4.0, 1.0]] * 60 + [[1.0, 9.0]] * 60).astype(float)
    begun = {"startprob_": np.array([0.5, 0.5]), "transmat_": np.array([[0.8, 0.2], [0.3, 0.7]])}
    rates = np.array([[3.0, 2.0], [2.0, 6.0]])
    ours = estimators.FamilyHMM(2, emission="poisson", n_iter=5, init_params="")
    other = estimators.PoissonHMM(2, n_iter=5, init_params="")
    for model in (ours, other):
        for name, value in begun.items():
            setattr(model, name, value)
    ours.emissions_, other.lambdas_ = {"rates": rates}, rates
    ours.fit(x), other.fit(x)
    assert np.allclose(ours.emissions_["rates"], other.lambdas_)
    assert np.allclose(ours.transmat_, other.transmat_)


def test_options_of_a_family_and_refusals() -> None:
    x = np.random.default_rng(0).normal(size=(60, 1))
    model = estimators.FamilyHMM(
        2, "gaussian-mixture", {"num_gaussians": 2, "covariance_type": "spherical"}, random_state=0
    ).fit(x)
    assert model.emissions_["weights"].shape == (2, 2)
    assert model.process().covariance_type == "spherical"
    for arguments, said in (
        ({"emission": "gausian"}, "emission: unknown 'gausian'; did you mean 'gaussian'"),
        ({"emission": dict}, "emission: must be a subclass"),
        ({"min_variance": 0.0}, r"min_variance: must be in \(0, 1\)"),
        ({"params": "stx"}, "params: must be letters of 'ste'"),
    ):
        with pytest.raises(InputError, match=said):
            estimators.FamilyHMM(2, **arguments).fit(x)
    with pytest.raises(InputError, match="must be counts"):
        estimators.FamilyHMM(2, emission="poisson").fit(x)
