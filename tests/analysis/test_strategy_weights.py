"""Weights of strategies: planted mixtures are found again, and the errors are those of other samples."""

import numpy as np
import pytest
import torch

from hmmscope.analysis.strategy_weights import strategy_weights
from hmmscope.axes import Tensor
from hmmscope.errors import InputError


def laws(samples: int, *, seed: int = 0, number: int = 4) -> dict[str, Tensor]:
    """Random laws (sample, place, symbol) by name."""
    drawn = np.random.default_rng(seed).dirichlet(np.full(5, 0.5), (number, samples, 3))
    return {f"p{k}": torch.from_numpy(law) for k, law in enumerate(drawn)}


@pytest.mark.parametrize("planted", [(0.4, 0.3, 0.2, 0.1), (0.7, 0.0, 0.3, 0.0), (0.0, 0.0, 0.0, 1.0)])
def test_planted_mixtures_are_found(planted: tuple[float, ...]) -> None:
    predictors = laws(40)
    model = sum(w * law for w, law in zip(planted, predictors.values(), strict=True))
    found = strategy_weights(model, predictors)  # type: ignore[arg-type]
    assert list(found.value.values()) == pytest.approx(planted, abs=1e-6)
    assert max(found.error.values()) < 1e-6  # every part of the samples says the same
    assert found.left == pytest.approx(0, abs=1e-9)
    for name, law in predictors.items():
        wanted = float(torch.special.xlogy(model, model / law).sum(-1).mean())
        assert found.single_kl[name] == pytest.approx(wanted)


def test_samples_that_mix_differently_make_the_error() -> None:
    """The weight of a sample is 0 or 1, at random: the fitted one is near a half, with an error that covers it."""
    off = []
    for seed in range(30):
        predictors = laws(100, seed=seed, number=2)
        chosen = torch.from_numpy(np.random.default_rng(seed).random((100, 1, 1)) < 0.5)
        found = strategy_weights(torch.where(chosen, predictors["p0"], predictors["p1"]), predictors)
        off.append((found.value["p0"] - 0.5) / found.error["p0"])
        assert 0.02 < found.error["p0"] < 0.2
        assert found.left > 0.05
    assert np.abs(off).max() < 4
    assert 0.5 < np.std(off) < 1.6


def test_one_predictor_has_all_the_weight() -> None:
    found = strategy_weights(laws(4)["p0"], {"other": laws(4)["p1"]})
    assert found.value == {"other": 1.0}
    assert found.left == pytest.approx(found.single_kl["other"])


def test_what_no_mixture_allows_is_refused() -> None:
    sure = torch.tensor([[[1.0, 0.0]]]).double().expand(2, 1, 2)
    even = torch.full((2, 1, 2), 0.5).double()
    assert strategy_weights(sure, {"sure": sure}).left == 0
    with pytest.raises(InputError, match="predictors"):
        strategy_weights(even, {"sure": sure})
    with pytest.raises(InputError, match="at least 2 samples"):
        strategy_weights(even[:1], {"even": even[:1]})
