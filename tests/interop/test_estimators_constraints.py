"""Estimators with constraints and known states: numbers of `hmmscope.fit`, counted estimates, and refusals."""

from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError

base = pytest.importorskip("sklearn.base")
estimators = pytest.importorskip("hmmscope.sklearn")

LENGTHS = [20, 33, 7]
TIED = hs.Constraints(
    initial=[True, True, False],
    transition=[[None, "a", 0.0], [0.0, None, "a"], ["b", 0.25, None]],
    emission=[[0.5, "e", None], [None, "e", 0.0], [True, True, True]],
)
STRICT = dict(n_iter=12, tol=-np.inf, random_state=3, n_init=2)


def symbols() -> tuple[Any, Any]:
    """Return a column with gaps, and states of its rows, half of them unknown."""
    random = np.random.default_rng(2)
    hmm = hs.HMM(
        [1, 0, 0], [[0.8, 0.2, 0], [0, 0.8, 0.2], [0.2, 0.25, 0.55]], [[0.5, 0.3, 0.2], [0.7, 0.3, 0], [0, 0, 1]]
    )
    drawn = hmm.sample(sum(LENGTHS), 1, seed=1)
    x, states = np.asarray(drawn.observations, float).reshape(-1, 1), np.asarray(drawn.states).ravel()
    x[random.random(len(x)) < 0.1] = np.nan
    states = np.where(random.random(len(x)) < 0.5, states, -1)
    states[[0, 1, 2, 20, 21, 22, 53, 54, 55]] = -1  # a sequence may not start in state 2
    return x, states


def test_fits_are_those_of_fit_from_the_same_start() -> None:
    x, _ = symbols()
    model = estimators.CategoricalHMM(3, n_features=3, constraints=TIED, n_iter=25, tol=-np.inf, init_params="")
    start = hs.HMM([0.5, 0.5, 0], [[0.8, 0.2, 0], [0, 0.8, 0.2], [0.3, 0.25, 0.45]], np.full((3, 3), 1 / 3))
    start = start.replaced(emission=[[0.5, 0.25, 0.25], [0.75, 0.25, 0], [0.2, 0.3, 0.5]])
    model.startprob_, model.transmat_, model.emissionprob_ = start.initial, start.transition, start.emission
    model.fit(x, LENGTHS)
    rows = [np.where(np.isnan(part), hs.MISSING, part).astype(int).tolist() for part in np.split(x[:, 0], [20, 53])]
    options = hs.FitOptions(
        constraints=TIED, start=start, num_restarts=1, max_iterations=25, tolerance=0.0, pseudo_count=0.0
    )
    fit = hs.fit(hs.SequenceData(rows, symbols=3), 3, options=options)
    for own, other in ((model.startprob_, fit.hmm.initial), (model.transmat_, fit.hmm.transition)):
        assert own == pytest.approx(other.numpy(), abs=1e-8)
    assert model.emissionprob_ == pytest.approx(fit.hmm.emission.numpy(), abs=1e-8)
    assert model._num_parameters() == sum(fit.final.num_free.values())
    assert np.all(np.diff(model.monitor_.history) >= -1e-9)


@pytest.mark.parametrize("known", [False, True])
def test_constraints_hold_from_random_starts_and_the_score_never_decreases(known: bool) -> None:
    x, states = symbols()
    model = base.clone(estimators.CategoricalHMM(3, constraints=TIED, **STRICT))
    given = {"known_states": states} if known else {}
    model.fit(x, LENGTHS, **given)
    assert (model.startprob_[2], model.transmat_[0, 2], model.transmat_[2, 1], model.emissionprob_[0, 0]) == (
        0,
        0,
        0.25,
        0.5,
    )
    assert model.transmat_[0, 1] == model.transmat_[1, 2] > 0
    assert model.emissionprob_[0, 1] == model.emissionprob_[1, 1]
    assert np.all(np.diff(model.monitor_.history) >= -1e-9)
    assert model.bic(x, LENGTHS) == pytest.approx(6 * np.log(57) - 2 * model.score(x, LENGTHS))


@pytest.mark.parametrize("name", ["CategoricalHMM", "GaussianHMM", "PoissonHMM", "GMMHMM", "FamilyHMM"])
def test_known_states_of_every_estimator(name: str) -> None:
    x, states = symbols()
    x = np.where(np.isnan(x), 0.0, x) if name != "CategoricalHMM" else x
    lengths = [*LENGTHS[:2], LENGTHS[2]]
    model = getattr(estimators, name)(3, constraints=hs.Constraints.left_to_right(3), params="st", n_iter=3)
    model.fit(x, lengths)
    assert model.transmat_[np.tril_indices(3, -1)].max() == model.startprob_[1:].max() == 0
    free = getattr(estimators, name)(3, n_iter=3, random_state=0).fit(x, lengths, known_states=states)
    here = states >= 0
    assert (free.predict(x, lengths, known_states=states)[here] == states[here]).all()
    assert (free.decode(x, lengths, "map", known_states=states)[1][here] == states[here]).all()
    posteriors = free.predict_proba(x, lengths, known_states=states)
    assert posteriors[here, states[here]] == pytest.approx(1.0)
    allowed = np.eye(3, dtype=bool)[states] | ~here[:, None]
    logs = free.score_sequences(x, lengths, known_states=allowed)
    assert logs.sum() == pytest.approx(free.score(x, lengths, known_states=states.tolist()))
    factors = [2.0, 0.0, 1.0]
    weighted = free.score(x, lengths, known_states=states, sequence_weights=factors)
    assert weighted == pytest.approx(2 * logs[0] + logs[2])
    kept = np.repeat([True, False, True], lengths)
    some = base.clone(free).fit(x, lengths, known_states=states, sequence_weights=[1, 0, 1])
    alone = base.clone(free).fit(x[kept], [20, 7], known_states=states[kept])
    assert some.transmat_ == pytest.approx(alone.transmat_, abs=1e-9)


def test_complete_labels_give_the_counted_estimate() -> None:
    states, x = np.array([0, 0, 1, 1, 1, 0]), np.array([[0], [1], [1], [2], [1], [0]])
    model = estimators.CategoricalHMM(2, n_iter=1).fit(x, [4, 2], known_states=states)
    assert model.startprob_ == pytest.approx([0.5, 0.5], abs=1e-12)
    assert model.transmat_ == pytest.approx(np.array([[0.5, 0.5], [0.5, 0.5]]), abs=1e-12)
    assert model.emissionprob_ == pytest.approx(np.array([[2, 1, 0], [0, 2, 1]]) / 3, abs=1e-12)


def test_answers_are_those_of_the_process() -> None:
    x, states = symbols()
    model = estimators.CategoricalHMM(3, n_iter=2, random_state=1).fit(x, LENGTHS)
    hmm = hs.HMM(model.startprob_, model.transmat_, model.emissionprob_, allow_drop_tiny=True)
    row = torch.from_numpy(np.where(np.isnan(x[:20, 0]), hs.MISSING, x[:20, 0]).astype(int))[None]
    expected = hs.smooth_beliefs(hmm, row, known_states=states[:20]).numpy()[0]
    assert model.predict_proba(x[:20], known_states=states[:20]) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("options", "given", "said"),
    [
        ({"constraints": hs.Constraints.banded(2)}, {}, r"^constraints.transition: must have the shape \(3, 3\)"),
        ({"constraints": np.eye(3)}, {}, r"^constraints: must be hmmscope.Constraints, got"),
        ({"constraints": TIED, "params": "se"}, {}, r"^constraints: needs 't' in params, which fits transmat_$"),
        (
            {},
            {"known_states": [0, 1]},
            r"^known_states: must have an entry for each of the 60 rows of X \(-1: unknown\)$",
        ),
        ({}, {"known_states": [3] * 60}, r"^known_states\[0, 0\]: must be a state in \[0, 3\)"),
        (
            {"constraints": hs.Constraints.left_to_right(3)},
            {"known_states": [2] * 60},
            r"^X: a sequence has probability zero under the initial parameters and known_states; make zero",
        ),
    ],
)
def test_refusals(options: dict[str, Any], given: dict[str, Any], said: str) -> None:
    x, _ = symbols()
    with pytest.raises(InputError, match=said):
        estimators.CategoricalHMM(3, **options).fit(x, LENGTHS, **given)
    with pytest.raises(InputError, match="must be omitted for vector emissions"):
        estimators.GaussianHMM(3, constraints=TIED).fit(np.nan_to_num(x))
