"""Weights of sequences: whole numbers equal copies, zero leaves out."""

import numpy as np
import pytest
import torch

import hmmscope
from hmmscope.errors import InputError
from hmmscope.inference import counts as expected
from hmmscope.inference.baum_welch import fit_baum_welch
from hmmscope.seeds import numpy_generator
from hmmscope.sklearn import CategoricalHMM, GaussianHMM

WEIGHTS = np.array([2.0, 0.0, 3.0, 1.0])
COPIES = np.array([0, 0, 2, 2, 2, 3])
TIME = 12


def _random(num_states, num_symbols=3):
    rng = numpy_generator(num_states, "weights")
    hmm = hmmscope.HMM(
        rng.dirichlet(np.ones(num_states)),
        rng.dirichlet(np.ones(num_states), num_states),
        rng.dirichlet(np.ones(num_symbols), num_states),
    )
    observations = torch.from_numpy(rng.integers(0, num_symbols, (len(WEIGHTS), TIME)))
    observations[0, 3] = hmmscope.MISSING
    return hmm, observations


def _equal(weighted, copied):
    for name in ("initial", "transitions", "emissions"):
        torch.testing.assert_close(getattr(weighted, name), getattr(copied, name), rtol=0, atol=1e-10)


@pytest.mark.parametrize("num_states", [1, 2, 9, 40, 200])
@pytest.mark.parametrize("given", ["", "lengths", "reset_mask"])
def test_counts_equal_those_of_copies(num_states, given):
    hmm, observations = _random(num_states)
    lengths, mask = torch.tensor([TIME, 4, 1, 7]), torch.arange(TIME) % 5 == 0
    of_weighted = {"": {}, "lengths": {"lengths": lengths}, "reset_mask": {"reset_mask": mask}}[given]
    of_copies = {"lengths": lengths[COPIES]} if given == "lengths" else of_weighted
    weighted = hmmscope.expected_counts(hmm, observations, sequence_weights=WEIGHTS, **of_weighted)
    _equal(weighted, hmmscope.expected_counts(hmm, observations[COPIES], **of_copies))


def test_counts_of_long_and_of_nearly_impossible_sequences(monkeypatch):
    hmm, observations = _random(3)
    monkeypatch.setattr(expected, "MOST_BYTES", 2**6)
    monkeypatch.setattr(expected, "PIECE_BYTES", 2**8)
    weighted = hmmscope.expected_counts(hmm, observations, sequence_weights=WEIGHTS)
    _equal(weighted, hmmscope.expected_counts(hmm, observations[COPIES]))
    rare = 2.0**-30
    stiff = hmmscope.HMM([0.5, 0.5], [[1 - rare, rare], [rare, 1 - rare]], [[1 - rare, rare], [rare, 1 - rare]])
    switching = torch.zeros(len(WEIGHTS), 40, dtype=torch.int64)
    switching[2:, 20:] = 1
    weighted = hmmscope.expected_counts(stiff, switching, sequence_weights=WEIGHTS)
    _equal(weighted, hmmscope.expected_counts(stiff, switching[COPIES]))


def test_impossible_sequence_of_weight_zero():
    hmm = hmmscope.HMM([1.0], [[1.0]], [[1.0, 0.0]])
    found = hmmscope.expected_counts(hmm, [[0, 0], [0, 1]], sequence_weights=[2, 0])
    assert found.transitions.tolist() == [[2.0]]


@pytest.mark.parametrize("num_states", [2, 9])
def test_fit_equals_that_of_copies(num_states):
    _, observations = _random(2)
    options = {"num_restarts": 3, "max_iterations": 30}
    weighted = fit_baum_welch(observations, num_states, 3, sequence_weights=WEIGHTS, **options)
    copied = fit_baum_welch(observations[COPIES], num_states, 3, **options)
    assert weighted.log_likelihood == pytest.approx(copied.log_likelihood, abs=1e-10)
    assert weighted.bic == pytest.approx(copied.bic, abs=1e-10)
    torch.testing.assert_close(weighted.hmm.transition, copied.hmm.transition, rtol=0, atol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("emission", ["gaussian", "gaussian-mixture"])
@pytest.mark.parametrize("num_states", [2, 40])
def test_fit_to_vectors_equals_that_of_copies(emission, num_states):
    rng = numpy_generator(0, "weights")
    arrays = [np.concatenate([rng.normal(0, 1, (5, 1)), rng.normal(4, 1, (6, 1))]) for _ in WEIGHTS]
    arrays[0][2] = np.nan
    start = hmmscope.fit(
        arrays, num_states, emission=emission, options=hmmscope.FitOptions(num_restarts=1, max_iterations=1)
    ).hmm
    limits = {"start": start, "num_restarts": 1, "max_iterations": 5}
    weighted = hmmscope.fit(
        arrays, num_states, emission=emission, options=hmmscope.FitOptions(sequence_weights=WEIGHTS, **limits)
    )
    copied = hmmscope.fit(
        [arrays[i] for i in COPIES], num_states, emission=emission, options=hmmscope.FitOptions(**limits)
    )
    assert weighted.log_likelihood == pytest.approx(copied.log_likelihood, abs=1e-8)
    assert weighted.final.bic == pytest.approx(copied.final.bic, abs=1e-8)
    assert weighted.num_observations == copied.num_observations


def test_choice_among_sizes_holds_nothing_out():
    sequences = [[0, 1, 0, 1], [1, 1, 1], [0, 1], [0, 0, 0, 1]] * 8
    found = hmmscope.fit(
        sequences, [1, 2], options=hmmscope.FitOptions(sequence_weights=np.tile(WEIGHTS, 8), num_restarts=1)
    )
    assert found.reason.endswith("with weights, no part is held out")
    assert not found.held_out
    with pytest.raises(InputError, match="posterior: supports neither sequence_weights"):
        found.posterior()


@pytest.mark.parametrize("family", [CategoricalHMM, GaussianHMM])
def test_estimators(family):
    rng = numpy_generator(1, "weights")
    lengths = np.array([6, 9, 5, 8])
    X = rng.integers(0, 3, (lengths.sum(), 1))
    ends = lengths.cumsum()
    copied = np.concatenate([X[ends[i] - lengths[i] : ends[i]] for i in COPIES])
    weighted = family(2, random_state=0, n_iter=2).fit(X, lengths)
    parts = {name: np.array(getattr(weighted, name)) for name in weighted.parts.values()}
    models = [family(2, init_params="", n_iter=4) for _ in range(2)]
    for model in models:
        for name, value in parts.items():
            setattr(model, name, value.copy())
    models[0].fit(X, lengths, sequence_weights=WEIGHTS)
    models[1].fit(copied, lengths[COPIES])
    np.testing.assert_allclose(models[0].transmat_, models[1].transmat_, atol=1e-10)
    score = models[0].score(X, lengths, sequence_weights=WEIGHTS)
    assert score == pytest.approx(models[1].score(copied, lengths[COPIES]), abs=1e-9)
    with pytest.raises(InputError, match="one per sequence, got the shape"):
        models[0].fit(X, lengths, sequence_weights=[1.0])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2], "got the shape"),
        ([1, 2, -1, 1], r"sequence_weights\[2\] = -1"),
        ([1, np.nan, 1, 1], r"sequence_weights\[1\] = nan"),
        ([np.inf, 1, 1, 1], "= inf"),
        ("one", "got 'one'"),
        ([0, 0, 0, 0], "only zeros"),
    ],
)
def test_invalid_weights(weights, message):
    _, observations = _random(2)
    with pytest.raises(InputError, match=message):
        fit_baum_welch(observations, 2, 3, sequence_weights=weights)
    with pytest.raises(InputError, match=message):
        hmmscope.fit([[0, 1], [1, 0], [0, 0], [1, 1]], 2, options=hmmscope.FitOptions(sequence_weights=weights))


def test_weights_of_a_stream():
    with pytest.raises(InputError, match="sequence_weights: cannot be used with a stream"):
        hmmscope.fit([[0, 1], [1, 0]], 2, options=hmmscope.FitOptions(sequence_weights=[1, 2]), stream=True)
