"""Estimators of scikit-learn in the place of hmmlearn's: its numbers, its scripts, and scikit-learn's contract."""

import math
import pickle
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hmmlearn import hmm as theirs
from joblib import parallel_config
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import validate_data

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.sklearn import CategoricalHMM

PARTS = ("startprob_", "transmat_", "emissionprob_")


def both(parts, **options):
    """An estimator of each library with the same parameters."""
    made = [kind(len(parts[0]), init_params="", **options) for kind in (theirs.CategoricalHMM, CategoricalHMM)]
    for model in made:
        for name, value in zip(PARTS, parts, strict=True):
            setattr(model, name, value.copy())
    return made


def random_parts(seed):
    """Dense matrices, matrices with zeros, and coarse ones whose paths tie."""
    rng = np.random.default_rng(seed)
    size, symbols = int(rng.integers(1, 10)), int(rng.integers(2, 7))
    parts = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size), size), rng.dirichlet(np.ones(symbols), size)
    if seed % 3 == 1:
        parts = tuple(np.where(part < 0.08, 0.0, part) + 1e-300 for part in parts)
    elif seed % 3 == 2:
        parts = tuple(np.round(part * 4) + 0.5 for part in parts)
    return tuple(part / part.sum(-1, keepdims=True) for part in parts)


LENGTHS = [300, 1, 70, 129]


def rolls(parts, seed=0):
    return both(parts)[0].sample(sum(LENGTHS), random_state=seed)[0]


# The same numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.drawn(10)
@pytest.mark.parametrize("implementation", ["log", "scaling"])
@pytest.mark.parametrize("seed", range(12))
def test_answers_are_hmmlearns(seed, implementation):
    parts = random_parts(seed)
    a, b = both(parts, implementation=implementation)
    X = rolls(parts)
    assert b.score(X, LENGTHS) == pytest.approx(a.score(X, LENGTHS), abs=1e-8)
    assert np.allclose(a.predict_proba(X, LENGTHS), b.predict_proba(X, LENGTHS), rtol=0, atol=1e-8)
    for algorithm in ("viterbi", "map"):
        (log, states), (other, found) = (model.decode(X, LENGTHS, algorithm=algorithm) for model in (a, b))
        assert other == pytest.approx(log, abs=1e-8)
        if algorithm == "viterbi":  # of smoothed beliefs that tie the last bit decides
            assert found.tolist() == states.tolist()
    zeros = sum(int((part == 0).sum()) for part in parts)  # hmmlearn counts them, though its fit keeps them
    for name, each in (("aic", 2), ("bic", math.log(len(X)))):
        wanted = getattr(a, name)(X, LENGTHS) - each * zeros
        assert getattr(b, name)(X, LENGTHS) == pytest.approx(wanted, abs=1e-7)
    for first in (None, len(parts[0]) - 1):
        (x, z), (y, w) = (model.sample(50, random_state=3, currstate=first) for model in (a, b))
        assert (x.tolist(), z.tolist()) == (y.tolist(), w.tolist())
    assert np.allclose(a.get_stationary_distribution(), b.get_stationary_distribution(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(9))
def test_fits_are_hmmlearns_from_the_same_start(seed):
    parts = random_parts(seed)
    priors = {} if seed % 2 else {"startprob_prior": 2.0, "transmat_prior": 1.5, "emissionprob_prior": 1.1}
    wanted = {"n_iter": 15, "tol": -math.inf, "params": ("ste", "te", "s")[seed % 3]} | priors
    a, b = both(parts, **wanted)
    X = rolls(parts, seed)
    assert a.fit(X, LENGTHS).monitor_.iter == b.fit(X, LENGTHS).monitor_.iter == 15
    assert np.allclose(a.monitor_.history, b.monitor_.history, rtol=0, atol=1e-8)
    for name in PARTS:
        assert np.allclose(getattr(a, name), getattr(b, name), rtol=0, atol=1e-8), name


@pytest.mark.parametrize("random_state", [7, np.random.RandomState])
def test_a_seed_begins_where_it_begins_in_hmmlearn(random_state):
    X = rolls(random_parts(0))
    a, b = (
        kind(3, n_iter=1, random_state=random_state if isinstance(random_state, int) else random_state(4)).fit(X)
        for kind in (theirs.CategoricalHMM, CategoricalHMM)
    )
    for name in PARTS:
        assert np.allclose(getattr(a, name), getattr(b, name), rtol=0, atol=1e-12)
    assert a.sample(40)[0].tolist() == b.sample(40)[0].tolist()  # drawn by the generator that fitted


SCRIPT = """
import numpy as np
from hmmlearn import hmm

# A casino has a fair die and a loaded one, and seldom changes them.
casino = hmm.CategoricalHMM(n_components=2, random_state=99)
casino.startprob_ = np.array([1.0, 0.0])
casino.transmat_ = np.array([[0.95, 0.05], [0.1, 0.9]])
casino.emissionprob_ = np.array([[1 / 6] * 6, [0.1] * 5 + [0.5]])
rolls, dice = casino.sample(4000)
X_train, X_validate = rolls[:2000], rolls[2000:]
print(f"{casino.score(X_validate):.6f}")

best, best_score = None, -np.inf
rng = np.random.RandomState(13)
for seed in range(8):
    model = hmm.CategoricalHMM(n_components=2, random_state=seed, init_params="se")
    model.transmat_ = np.array([rng.dirichlet([0.9, 0.1]), rng.dirichlet([0.1, 0.9])])
    model.fit(X_train)
    score = model.score(X_validate)
    print(f"{seed} {score:.6f} {model.monitor_.converged} {model.monitor_.iter}")
    if score > best_score:
        best, best_score = model, score

states = best.predict(rolls)
print(best.n_features, best.emissionprob_.round(6).tolist())
print(best.transmat_.round(6).tolist(), max(np.mean(states == dice), np.mean(states != dice)))
"""


def test_a_script_for_hmmlearn_runs_after_one_line_of_it_is_changed(capsys):
    said = []
    for line in ("from hmmlearn import hmm", "from hmmscope import sklearn as hmm"):
        exec(compile(SCRIPT.replace("from hmmlearn import hmm", line), "script", "exec"), {})
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert len(said[0].splitlines()) == 11


# scikit-learn's contract ------------------------------------------------------------------------------------------------


class FirstColumn(CategoricalHMM):
    """Symbols made of the first column of what the checks bring, which are numbers in several columns, and y ignored."""

    def fit(self, X, y=None):
        return super().fit(X)

    def score(self, X, y=None):
        return super().score(X)

    def _read(self, X, *, fitting):
        X = validate_data(self, X, reset=fitting, ensure_non_negative=True, ensure_all_finite="allow-nan")
        width, self.n_features_in_ = self.n_features_in_, 1
        found = super()._read(np.minimum(np.floor(X[:, :1]), 6), fitting=fitting)
        self.n_features_in_ = width
        return found


ONE_COLUMN = "the check brings several columns; symbols are one"
COLUMN = "an array of one dimension is one column, as in hmmscope.fit"
LENGTHS_SECOND = "the second argument of fit is lengths, as in hmmlearn, and there is no y"
EXPECTED = {
    CategoricalHMM: dict.fromkeys(
        (
            *(
                "check_estimators_overwrite_params",
                "check_dont_overwrite_parameters",
                "check_estimators_fit_returns_self",
            ),
            *("check_readonly_memmap_input", "check_n_features_in_after_fitting", "check_estimators_dtypes"),
            *(
                "check_dtype_object",
                "check_pipeline_consistency",
                "check_estimators_nan_inf",
                "check_estimators_pickle",
            ),
            *("check_f_contiguous_array_estimator", "check_methods_sample_order_invariance", "check_dict_unchanged"),
            *("check_methods_subset_invariance", "check_fit2d_1sample", "check_fit_idempotent"),
            *("check_fit_check_is_fitted", "check_n_features_in", "check_fit2d_predict1d"),
        ),
        ONE_COLUMN,
    )
    | dict.fromkeys(("check_fit_score_takes_y", "check_fit2d_1feature"), LENGTHS_SECOND)
    | {"check_fit1d": COLUMN},
    FirstColumn: dict.fromkeys(
        ("check_methods_sample_order_invariance", "check_methods_subset_invariance"),
        "rows are moments of one sequence: their order is what the model is about",
    ),
}


@pytest.mark.drawn(40)
@parametrize_with_checks(
    [CategoricalHMM(2, random_state=0), FirstColumn(2, random_state=0)],
    expected_failed_checks=lambda estimator: EXPECTED[type(estimator)],
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.slow)])
def test_a_search_over_options_with_two_jobs(backend):
    X = rolls(random_parts(3))
    with parallel_config(backend):
        search, alone = (
            GridSearchCV(CategoricalHMM(random_state=0), {"n_components": [1, 2, 3]}, cv=2, n_jobs=n).fit(X)
            for n in (2, 1)
        )
    found = [one.cv_results_["mean_test_score"].tolist() for one in (search, alone)]
    assert found[0] == pytest.approx(found[1], abs=1e-9)
    assert search.best_estimator_.predict(X).shape == (len(X),)


def test_names_go_through_a_pipeline():
    names = np.array(["rain", "sun", "snow"])[rolls(random_parts(0)) % 3]
    line = make_pipeline(OrdinalEncoder(), CategoricalHMM(2, random_state=1))
    assert line.fit(names).predict(names).shape == (len(names),)
    assert line[-1].n_features == 3
    assert math.isfinite(line.score(names))


def test_clones_and_pickles():
    X = rolls(random_parts(0))
    model = CategoricalHMM(2, random_state=1, n_init=2).fit(X)
    back = pickle.loads(pickle.dumps(model))
    assert back.score(X) == model.score(X)
    assert back.monitor_.history == model.monitor_.history
    assert back.sample(9)[0].tolist() == model.sample(9)[0].tolist()
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    assert fresh.get_params()["n_features"] is None
    with pytest.raises(NotFittedError):
        fresh.predict(X)
    assert fresh.fit(X).score(X) == model.score(X)


def test_more_starts_are_no_worse_and_come_from_one_seed():
    X = rolls(random_parts(2), 1)
    found = [CategoricalHMM(3, n_init=n, random_state=0, n_iter=30).fit(X).score(X) for n in (1, 8, 8)]
    assert found[0] < found[1] == found[2]


# What is refused, and what is said ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, X, lengths, said",
    [
        ({}, [[0, 1], [1, 0]], None, r"X: must be one column .* got 2 features; .*lengths="),
        ({}, [[0.5], [1.0]], None, r"X: must be symbols \(nonnegative integers\)"),
        ({}, [[-1], [1]], None, "Negative values in data"),
        ({"n_features": 2}, [[0], [2]], None, r"X: must be symbols in \[0, 2\), got 2"),
        ({}, [[0], [1]], [1, 2], "lengths: must sum to the 2 rows of X"),
        ({"n_components": 0}, [[0], [1]], None, "n_components: must be a whole number of at least 1, got 0"),
        ({"algorithm": "best"}, [[0], [1]], None, "algorithm: unknown"),
        ({"implementation": "lg"}, [[0], [1]], None, "implementation: .*log"),
        ({"params": "stx"}, [[0], [1]], None, "params: must be letters of 'ste', got 'stx'"),
        ({"n_init": 0}, [[0], [1]], None, "n_init: must be"),
    ],
)
def test_refusals(options, X, lengths, said):
    with pytest.raises(ValueError, match=said) as caught:
        CategoricalHMM(**options).fit(np.array(X), lengths)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint64, np.float64])
def test_a_column_is_read_alike_whatever_its_numbers_are(kind: type) -> None:
    seen = np.random.default_rng(0).integers(0, 3, (40, 1))
    model = CategoricalHMM(n_components=2, n_iter=2, random_state=0).fit(seen)
    column = seen.astype(kind)
    column.flags.writeable = False
    assert model.score(column) == model.score(seen.tolist())
    assert model.score(column[::-1]) == model.score(seen[::-1].copy())
    assert np.array_equal(model.predict(column), model.predict(seen.tolist()))
    for value in (3, np.iinfo(kind).max if kind is not np.float64 else 1e9):
        wrong = seen.astype(kind)
        wrong[5] = value
        with pytest.raises(InputError, match=r"^X: must be symbols in \[0, 3\), got "):
            model.predict(wrong)


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("startprob_", [0.5, 0.4], "startprob_: must have nonnegative rows"),
        ("transmat_", [[0.5, 0.5]], r"transmat_: must have the shape \(2, 2\), got \(1, 2\)"),
        ("emissionprob_", [[1.5, -0.5], [0.5, 0.5]], "emissionprob_: must have nonnegative rows"),
    ],
)
def test_parameters_that_are_no_laws(name, value, said):
    model = both((np.full(2, 0.5), np.full((2, 2), 0.5), np.full((2, 2), 0.5)))[1]
    setattr(model, name, value)
    with pytest.raises(InputError, match=said):
        model.score([[0], [1]])


def test_laws_that_are_changed_in_place_count_at_once():
    """What was worked out of the laws before is of no further use, and a law that is none now is refused."""
    (model, ours), X = both(random_parts(0)), rolls(random_parts(0))
    assert ours.score(X, LENGTHS) == pytest.approx(model.score(X, LENGTHS), rel=1e-12)
    for one in (model, ours):
        one.transmat_[:] = one.transmat_[::-1].copy()
        one.emissionprob_[0] = one.emissionprob_[0, ::-1].copy()
    assert ours.score(X, LENGTHS) == pytest.approx(model.score(X, LENGTHS), rel=1e-12)
    assert np.array_equal(ours.predict(X, LENGTHS), model.predict(X, LENGTHS))
    ours.startprob_[0] += 0.5
    with pytest.raises(InputError, match="startprob_: must have nonnegative rows"):
        ours.score(X, LENGTHS)


def test_an_impossible_sequence_is_impossible_alone():
    model = both((np.array([1.0, 0.0]), np.eye(2), np.eye(2)))[1]
    X = np.array([[0], [0], [0], [1]])
    assert model.score(X, [2, 2]) == -math.inf
    assert model.predict(X, [2, 2]).tolist() == [0, 0, -1, -1]
    assert model.predict_proba(X, [2, 2]).tolist() == [[1, 0], [1, 0], [0, 0], [0, 0]]
    with pytest.raises(InputError, match="X: a sequence has probability zero"):
        model.fit(X, [2, 2])


def test_what_was_set_by_hand_is_not_overwritten_without_a_word(capsys):
    model = CategoricalHMM(2, random_state=0, verbose=True)
    model.transmat_ = np.eye(2)
    with pytest.warns(UserWarning, match="transmat_: will be overwritten; to keep it, leave 't' out of init_params"):
        model.fit([[0], [1], [0]])
    assert re.match(r" +1 +-\d+\.\d{8} +\+nan\n +2", capsys.readouterr().err)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit([[0], [1], [0]])


def test_a_monitor_of_ones_own_says_when_to_end():
    class Third(type(CategoricalHMM().monitor_)):
        @property
        def converged(self):
            return self.iter == 3

    model = CategoricalHMM(2, random_state=0, n_iter=50)
    model.monitor_ = Third(model.monitor_.tol, model.monitor_.n_iter, model.monitor_.verbose)
    assert model.fit(rolls(random_parts(0))).monitor_.iter == 3


def test_nan_is_a_missing_observation_that_is_summed_over():
    parts = tuple(map(np.array, ([0.5, 0.5], [[0.75, 0.25], [0.5, 0.5]], [[0.25, 0.75], [0.875, 0.125]])))
    model, hmm = both(parts)[1], hs.HMM(*parts)
    X = np.array([[0], [np.nan], [1], [np.nan], [np.nan], [0]])
    seen = np.where(np.isnan(X), hs.MISSING, X).astype(int).T
    assert model.score(X) == pytest.approx(float(hs.log_likelihood(hmm, seen)), abs=1e-12)
    assert np.allclose(model.predict_proba(X), hs.smooth_beliefs(hmm, seen)[0], rtol=0, atol=1e-12)
    assert model.predict(X).tolist() == hs.most_likely_states(hmm, seen).states[0].tolist()
    before = model.score(X)
    model.set_params(n_iter=30, tol=0.0).fit(X)
    assert before < model.score(X) < 0
    assert model.emissionprob_.shape == (2, 2)
    with pytest.raises(ValueError, match="infinity"):
        model.score([[np.inf]])


def test_an_estimator_becomes_an_hmm():
    model = CategoricalHMM(2, random_state=0).fit(rolls(random_parts(0)))
    hmm = hs.interop.from_hmmlearn(model, allow_drop_tiny=True)
    assert np.abs(hmm.transition.numpy() - model.transmat_).max() < 2**-31


def test_scikit_learn_is_imported_only_where_it_is_asked_for():
    script = (
        "import sys; import hmmscope; assert 'sklearn' not in sys.modules\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'sklearn' else find(name, *rest)\n"
        "try: import hmmscope.sklearn\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.stdout == "hmmscope.sklearn: needs scikit-learn; run pip install 'hmmscope[sklearn]'\n", done.stderr
