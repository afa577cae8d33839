"""Scripts after hmmlearn's gallery run with one changed import; at equal parameters both libraries say the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

ours = pytest.importorskip("hmmscope.sklearn")
theirs = pytest.importorskip("hmmlearn.hmm", reason="hmmlearn is not installed; pip install 'hmmscope[hmm]'")

#: Learned parameters of each class.
LEARNED = {"CategoricalHMM": ("emissionprob_",), "GaussianHMM": ("means_", "covars_"), "PoissonHMM": ("lambdas_",)}
RNG = np.random.default_rng(7)
#: A walk over four corners, rolls of a casino with a loaded die, and counts of earthquakes with one likeliest path.
WALK = np.repeat([0, 1, 2, 3, 1, 0], 40)
CORNERS = np.array([[0.0, 0.0], [0, 9], [9, 9], [9, 0]])
ROLLS = np.where(RNG.random(600) < np.repeat([1 / 6, 0.7], 300), 5, RNG.integers(0, 5, 600))[:, None]
QUAKES = np.random.default_rng(1).poisson(np.repeat([15, 24, 31, 18], 30))[:, None]
Example = Callable[[Any], tuple[Any, Any]]


def casino(hmm: Any) -> tuple[Any, Any]:
    """A known model decodes the rolls; another one is fitted to the first half and compared on the second."""
    known = hmm.CategoricalHMM(n_components=2, random_state=99)
    known.startprob_, known.transmat_ = np.array([1.0, 0.0]), np.array([[0.95, 0.05], [0.1, 0.9]])
    known.emissionprob_ = np.array([[1 / 6] * 6, [0.05] * 5 + [0.75]])
    assert (known.predict(ROLLS)[[10, -10]] == [0, 1]).all()
    train, judge = ROLLS[::2], ROLLS[1::2]
    found = [hmm.CategoricalHMM(2, random_state=k, init_params="se").set_params(n_iter=50) for k in range(3)]
    for model in found:
        model.transmat_ = np.array([[0.9, 0.1], [0.1, 0.9]])
        model.fit(train)
    return max(found, key=lambda model: model.score(judge)), ROLLS


def sampling_and_decoding(hmm: Any) -> tuple[Any, Any]:
    """Samples of a model with four corners are decoded by a model fitted to them, the best of several starts."""
    known = hmm.GaussianHMM(n_components=4, covariance_type="full")
    known.startprob_, known.transmat_ = np.array([0.6, 0.3, 0.1, 0.0]), np.full((4, 4), 0.05) + 0.8 * np.eye(4)
    known.means_, known.covars_ = CORNERS, np.tile(np.eye(2), (4, 1, 1))
    sampled, states = known.sample(500, random_state=3)
    assert (known.predict(sampled) == states).mean() > 0.95
    x = CORNERS[WALK] + np.random.default_rng(0).normal(size=(len(WALK), 2))
    fits = [hmm.GaussianHMM(4, "full", random_state=k, n_iter=30).fit(x) for k in range(3)]
    best = max(fits, key=lambda model: model.score(x))
    assert best.monitor_.iter >= 2
    return best, x


def model_selection(hmm: Any) -> tuple[Any, Any]:
    """The number of states by AIC and BIC."""
    x = CORNERS[WALK] + np.random.default_rng(1).normal(size=(len(WALK), 2))
    fits = {
        n: max((hmm.GaussianHMM(n, random_state=k, n_iter=30).fit(x) for k in range(4)), key=lambda one: one.score(x))
        for n in (2, 3, 4, 5)
    }
    assert min(fits, key=lambda n: fits[n].bic(x)) == 4
    assert fits[4].aic(x) < fits[3].aic(x)
    return fits[4], x


def earthquakes(hmm: Any) -> tuple[Any, Any]:
    """Rates of earthquakes per year: the best number of states and start."""
    fits = [hmm.PoissonHMM(n_components=n, random_state=k, n_iter=20).fit(QUAKES) for n in (2, 3) for k in range(3)]
    best = max(fits, key=lambda model: model.score(QUAKES))
    assert 10 < best.lambdas_.min() < best.lambdas_.max() < 40
    return best, QUAKES


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("example", [casino, sampling_and_decoding, model_selection, earthquakes])
def test_an_example_runs_after_one_changed_import(example: Example) -> None:
    model, x = example(ours)
    other, _ = example(theirs)
    for mine, peer in ((model, type(other)()), (type(model)(), other)):  # parameters of each in the other
        source, copy = (mine, peer) if hasattr(mine, "transmat_") else (peer, mine)
        copy.set_params(n_components=source.n_components)
        if hasattr(source, "covariance_type"):
            copy.set_params(covariance_type=source.covariance_type)
        for name in ("startprob_", "transmat_", *LEARNED[type(source).__name__]):
            value = np.array(getattr(source, name))
            if name == "covars_" and source.covariance_type == "diag":
                value = np.array([np.diag(one) for one in value]) if value.ndim == 3 else value
            setattr(copy, name, value)
        assert copy.score(x) == pytest.approx(source.score(x), abs=1e-8, rel=1e-11)
        (log, states), (other_log, other_states) = copy.decode(x), source.decode(x)
        assert log == pytest.approx(other_log, abs=1e-8, rel=1e-11)
        assert states.tolist() == other_states.tolist()
        np.testing.assert_allclose(copy.predict_proba(x), source.predict_proba(x), atol=1e-8)
