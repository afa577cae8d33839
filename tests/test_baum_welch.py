"""The in-context baseline that fits a model to what it has seen."""

import sys

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError, ResourceError
from hmmscope.inference.baum_welch import baum_welch_predictions, fit_baum_welch


def casino(length, count=4):
    process = hs.load_process("dishonest-casino")
    return process, hs.Corpus(process, length=length)[0:count].observations


def test_the_fit_explains_the_data_as_well_as_the_truth():
    process, observations = casino(500)
    fit = fit_baum_welch(observations, 2, 6, num_restarts=2, max_iterations=30, pseudo_count=0.0)
    assert fit.log_likelihood == pytest.approx(
        hs.filter_beliefs(fit.hmm, observations).log_likelihood.sum().item(), rel=1e-6
    )
    assert fit.log_likelihood > hs.filter_beliefs(process, observations).log_likelihood.sum().item() - 5


def test_the_same_seed_gives_the_same_fit():
    _, observations = casino(60)
    one, two = (fit_baum_welch(observations, 2, 6, num_restarts=1, max_iterations=5, seed=3) for _ in range(2))
    assert one.hmm.digest == two.hmm.digest
    assert one.num_iterations <= 5
    other = fit_baum_welch(observations, 2, 6, num_restarts=1, max_iterations=5, seed=4)
    assert other.hmm.digest != one.hmm.digest


def test_padding_is_not_seen():
    _, observations = casino(40, count=2)
    padded = torch.cat([observations, torch.full((2, 5), 99)], 1)
    one = fit_baum_welch(observations, 2, 6, num_restarts=1, max_iterations=4)
    two = fit_baum_welch(padded, 2, 6, num_restarts=1, max_iterations=4, lengths=[40, 40])
    assert one.hmm.digest == two.hmm.digest


def test_predictions_use_the_past_only():
    _, observations = casino(30, count=1)
    options = {"num_restarts": 1, "max_iterations": 4}
    predicted = baum_welch_predictions(observations, 2, 6, [0, 9, 29], **options)
    assert predicted.shape == (1, 3, 6)
    np.testing.assert_allclose(predicted.sum(-1), 1, rtol=1e-12)
    assert (predicted > 0).all()  # nothing is impossible because it has not been seen
    changed = observations.clone()
    changed[0, 10:] = 0
    again = baum_welch_predictions(changed, 2, 6, [0, 9, 29], **options)
    assert torch.equal(predicted[:, :2], again[:, :2])
    assert not torch.equal(predicted[:, 2], again[:, 2])


def test_without_hmmlearn(monkeypatch):
    monkeypatch.setitem(sys.modules, "hmmlearn.hmm", None)
    with pytest.raises(ResourceError, match=r"^Baum-Welch needs hmmlearn: pip install 'hmmscope\[hmm\]'$"):
        fit_baum_welch(torch.zeros(1, 3, dtype=torch.int64), 2, 2)


def test_bad_requests_are_refused():
    observations = torch.zeros(1, 3, dtype=torch.int64)
    for call, message in (
        (lambda: fit_baum_welch(observations, 0, 2), r"^num_states: must be at least 1, got 0$"),
        (lambda: fit_baum_welch(observations, 2, 2, pseudo_count=-1.0), r"^pseudo_count: must be at least 0"),
        (lambda: fit_baum_welch(observations + 5, 2, 2), r"^observations\[0, 0\]: symbol 5 "),
        (lambda: fit_baum_welch(observations[:, :0], 2, 2), r"^observations: must hold at least one"),
        (lambda: baum_welch_predictions(observations, 2, 2, [3]), r"^positions: must be in \[0, 3\), got \[3\]$"),
    ):
        with pytest.raises(InputError, match=message):
            call()
