"""Goodness of fit and forecasts: what a model has is inside its bands, what it lacks is found, intervals hold what comes."""

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.runs.forecasts import forecast_with
from hmmscope.runs.goodness import goodness_of_fit

CASINO = hs.HMM([0.5, 0.5], [[0.95, 0.05], [0.1, 0.9]], [[1 / 6] * 6, [0.1] * 5 + [0.5]])
DIE = hs.HMM([1.0], [[1.0]], [[1 / 6] * 6])


def test_the_model_itself_is_inside_and_another_is_not():
    rolls = list(hs.ProcessDataset(CASINO, length=400, seed=3)[0:2].observations)
    own, other = (goodness_of_fit([model], rolls, 40) for model in (CASINO, DIE))
    assert list(own.p_values) == ["runs", "n-grams of 2", "n-grams of 3", "autocorrelation"]
    assert min(own.adjusted.values()) > 0.05
    assert other.p_values["n-grams of 2"] == other.p_values["autocorrelation"] == 1 / 41
    assert other.adjusted["n-grams of 2"] == 4 / 41
    assert "outside the band at " in "\n".join(other.lines())
    assert len(own.rows) == 12 + 16 + 16 + 16


def test_p_values_of_the_model_itself_are_about_uniform():
    """Over thirty data sets p is one half in the mean, and rarely small, for each family."""
    found = []
    for seed in range(30):
        data = list(hs.ProcessDataset(DIE, length=40, seed=seed + 10)[0:1].observations)
        found.append(list(goodness_of_fit([DIE], data, 20, seed=seed).p_values.values()))
    assert 0.4 < np.mean(found) < 0.65
    assert (np.mean(np.array(found) < 0.1, axis=0) < 0.25).all()


def test_statistics_are_counted_by_hand():
    rows = {
        (row["family"], row["place"]): row["value"]
        for row in goodness_of_fit([DIE], [torch.tensor([0, 0, 1, 0, 0, hs.MISSING, 2])], 20).rows
    }
    assert rows["runs", "1"] == pytest.approx(2 / 4)  # 00, 1, 00, 2
    assert rows["runs", "2"] == pytest.approx(2 / 4)
    assert rows["n-grams of 2", "0 0"] == pytest.approx(2 / 4)  # what is missing parts them
    assert rows["n-grams of 3", "0 0 1"] == pytest.approx(1 / 3)
    assert rows["autocorrelation", "1"] == pytest.approx(2 / 4)
    assert rows["autocorrelation", "2"] == pytest.approx(1 / 4)


def test_numbers_with_missing_entries_have_bands_and_a_figure():
    process = hs.GaussianHMM([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], [-2.0, 2.0], [[1.0], [1.0]])
    numbers = hs.ProcessDataset(process, length=300)[0].observations[0]
    numbers[5:9] = torch.nan
    found = goodness_of_fit([process], [numbers], 20)
    assert list(found.p_values) == ["runs", "n-grams of 2", "n-grams of 3", "autocorrelation"]
    assert min(found.adjusted.values()) > 0.1
    assert len(found.plot().axes) == 4
    alone = hs.GaussianHMM([1.0], [[1.0]], [0.0], [[5.0]])
    assert goodness_of_fit([alone], [numbers], 20).p_values["autocorrelation"] == 1 / 21


def test_forecasts_are_the_mean_over_models():
    mixed = forecast_with([CASINO, DIE], torch.tensor([5, 5, 5]), 2)
    one, two = (hs.forecast(model, torch.tensor([[5, 5, 5]]), 2).observations[0] for model in (CASINO, DIE))
    assert torch.allclose(mixed.mean, (one + two) / 2)
    assert bool((mixed.low <= mixed.mean).all() & (mixed.mean <= mixed.high).all())
    assert len(mixed.table()) == 12
    named = hs.HMM([1.0], [[1.0]], [[0.25, 0.75]], symbols=["rain", "sun"])
    for past in (["sun", "rain"], hs.SequenceData([["sun", "rain"]]), np.array([[1], [0]]), [1, hs.MISSING]):
        assert forecast_with([named], past, 1).mean.tolist() == [[0.25, 0.75]]
    with pytest.raises(InputError, match="observed: must be one sequence"):
        forecast_with([named], [[0, 1], [1, 1]], 1)
    process = hs.GaussianHMM([1.0], [[1.0]], [3.0], [[4.0]])
    numbers = forecast_with([process] * 40, torch.zeros(4, 1), 1)
    assert numbers.mean.tolist() == [[3.0]]
    assert [float(numbers.low), float(numbers.high)] == pytest.approx([3 - 3.92, 3 + 3.92], abs=0.25)


def test_bad_requests_are_refused():
    with pytest.raises(InputError, match=r"^num_simulations: must be at least 20, got 3"):
        goodness_of_fit([DIE], [torch.tensor([0, 1])], 3)
    with pytest.raises(InputError, match=r"^steps: must be at least 1, got 0"):
        forecast_with([DIE], torch.tensor([0, 1]), 0)
    stream = hs.fit([[0, 1, 0], [1, 1, 0]], 1, stream=True)
    for asked in ("check", "posterior"):
        with pytest.raises(InputError, match=rf"^{asked}: needs the fitted data, but a stream stores none"):
            getattr(stream, asked)()
