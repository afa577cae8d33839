"""Estimators keep masks of `numpy.ma`, as the functions of hmmscope do, and count the free parameters by one rule."""

from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference.memory import with_prior
from hmmscope.processes.kalman import kalman_filter
from hmmscope.processes.linear_gaussian import LinearGaussian
from hmmscope.processes.matrix_product import MatrixProduct

sklearn = pytest.importorskip("sklearn")

from hmmscope.sklearn import GMMHMM, CategoricalHMM, GaussianHMM, PoissonHMM  # noqa: E402

LENGTHS = [13, 17]
SYMBOLS = np.random.default_rng(5).integers(0, 4, (30, 1))
NUMBERS = np.column_stack([SYMBOLS[:, 0] + np.linspace(0, 1, 30), np.sin(np.arange(30.0))])
GAPS = np.random.default_rng(6).random((30, 2)) < 0.2
CHAIN: dict[str, Any] = {"startprob_": np.array([0.7, 0.3]), "transmat_": np.array([[0.9, 0.1], [0.4, 0.6]])}


def estimators() -> list[tuple[Any, np.ma.MaskedArray[Any, Any], dict[str, Any]]]:
    """Estimator, masked rows, its emissions."""
    masked = np.ma.array(SYMBOLS, mask=GAPS[:, :1])
    numbers = np.ma.array(NUMBERS, mask=GAPS)
    laws = np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]])
    means = np.array([[0.0, 0.5], [3.0, -0.5]])
    options: dict[str, Any] = {"n_components": 2, "n_iter": 3, "init_params": "", "random_state": 0}
    mixture = {
        "weights_": np.full((2, 2), 0.5),
        "means_": np.stack([means, means + 1], 1),
        "covars_": np.ones((2, 2, 2)),
    }
    return [
        (CategoricalHMM(n_features=4, **options), masked, {"emissionprob_": laws}),
        (GaussianHMM(**options), numbers, {"means_": means, "covars_": np.ones((2, 2))}),
        (PoissonHMM(**options), masked, {"lambdas_": np.array([[1.0], [3.0]])}),
        (GMMHMM(n_mix=2, **options), numbers, mixture),
    ]


@pytest.mark.parametrize("case", estimators(), ids=lambda case: type(case[0]).__name__)
def test_masks_are_kept(case: tuple[Any, np.ma.MaskedArray[Any, Any], dict[str, Any]]) -> None:
    estimator, masked, emissions = case
    with_nan = np.where(np.ma.getmaskarray(masked), np.nan, masked.data.astype(np.float64))
    found = []
    for rows in (masked, with_nan, list(masked)):
        own = sklearn.base.clone(estimator)
        for name, value in (CHAIN | emissions).items():
            setattr(own, name, value)
        own.fit(rows, LENGTHS)
        answers = [own.score(rows, LENGTHS), own.bic(rows, LENGTHS), own.aic(rows, LENGTHS), own.predict(rows, LENGTHS)]
        answers += [own.predict_proba(rows, LENGTHS), *own.score_samples(rows, LENGTHS), *own.decode(rows, LENGTHS)]
        found.append([*answers, own.transmat_, own.score(np.asarray(masked), LENGTHS)])
    for other in found[1:]:
        assert all(map(np.array_equal, found[0], other))
    assert found[0][0] != found[0][-1]  # what lies under the mask counts for nothing
    process = (
        hs.HMM(own.startprob_, own.transmat_, own.emissionprob_) if "emissionprob_" in emissions else own.process()
    )
    pieces = [masked[:13], masked[13:]]
    exact = [hs.log_likelihood(process, piece[:, 0] if process.num_symbols in (1, 4) else piece) for piece in pieces]
    assert found[0][0] == pytest.approx(float(sum(exact)), rel=1e-6)


def test_a_mask_without_entries_and_plain_rows_are_as_before() -> None:
    estimator = CategoricalHMM(2, n_features=4, random_state=0).fit(SYMBOLS)
    assert estimator.score(np.ma.array(SYMBOLS)) == estimator.score(SYMBOLS)
    assert estimator.score(SYMBOLS.tolist()) == estimator.score(SYMBOLS)
    with pytest.raises(InputError, match="X: a masked array must have a numeric dtype"):
        estimator.score(np.ma.array([["a"], ["b"]], mask=[[True], [False]]))


def test_every_way_to_write_a_missing_symbol_is_the_same() -> None:
    estimator = CategoricalHMM(2, n_features=4, random_state=0).fit(SYMBOLS)
    want = estimator.score(np.array([1, np.nan, 0]))
    gaps = (None, np.nan, np.ma.masked, hs.MISSING)
    for rows in [[1, gap, 0] for gap in gaps] + [[[1], [gap], [0]] for gap in gaps] + [((1,), (None,), (0,))]:
        assert estimator.score(rows) == want
    assert estimator.score(np.array([1, hs.MISSING, 0])) == estimator.score(torch.tensor([1, hs.MISSING, 0])) == want
    process = hs.HMM(estimator.startprob_, estimator.transmat_, estimator.emissionprob_)
    assert float(hs.log_likelihood(process, [1, np.ma.masked, 0])) == pytest.approx(want)
    for wrong, line in (
        ([[1], ["a"]], "X: must be numbers, got 'a'"),
        (np.array(["2020-01-01"], "M8[ns]"), "X: must be numbers, got datetime64"),
    ):
        with pytest.raises(InputError, match=line):
            estimator.score(wrong)


def test_missing_rows_do_not_count_in_bic() -> None:
    for estimator, masked, _ in estimators():
        own = sklearn.base.clone(estimator).set_params(init_params=estimator.params).fit(masked)
        seen = (~np.ma.getmaskarray(masked)).any(1).sum()
        penalties = own.bic(masked) + 2 * own.score(masked), own.aic(masked) + 2 * own.score(masked)
        assert penalties[0] / np.log(seen) == pytest.approx(penalties[1] / 2)


def test_what_must_be_known_has_no_mask() -> None:
    estimator = CategoricalHMM(2, n_features=4, random_state=0).fit(SYMBOLS)
    hidden = np.ma.array([13, 17], mask=[False, True])
    for call in (
        lambda: estimator.score(SYMBOLS, hidden),
        lambda: GaussianHMM(1).fit(NUMBERS).score(NUMBERS, hidden),
        lambda: hs.SequenceData(SYMBOLS[:, 0], lengths=hidden),
        lambda: hs.fit(NUMBERS, 1, lengths=hidden),
    ):
        with pytest.raises(InputError, match="lengths: has masked entries"):
            call()
    with pytest.raises(InputError, match="initial: has masked entries"):
        hs.HMM(np.ma.array([0.5, 0.5], mask=[True, False]), np.eye(2), np.eye(2))
    half = np.ma.array([0.5, 0.5], mask=[True, False])
    linear = LinearGaussian(np.eye(2), np.eye(2), output_noise=np.eye(2))
    values = torch.zeros(1, 2, 2)
    for name, ask in (
        ("transition", lambda: hs.HMM([0.5, 0.5], [half, [0.5, 0.5]], np.eye(2))),
        ("process", lambda: hs.stationary_distribution(np.ma.array(np.eye(2), mask=np.eye(2)))),
        ("process", lambda: hs.stationary_distribution([half, half])),
        ("matrices", lambda: MatrixProduct(np.ma.array(np.ones((1, 2, 2)), mask=True))),
        ("initial", lambda: kalman_filter(linear, values, initial=half)),
        ("initial_covariance", lambda: kalman_filter(linear, values, initial_covariance=[half, [0.0, 1.0]])),
        ("prior", lambda: with_prior(hs.make_process("mess3"), np.ma.array([0.5, 0.25, 0.25], mask=[0, 1, 0]))),
    ):
        with pytest.raises(InputError, match=rf"^{name}: has masked entries"):
            ask()
    estimator.startprob_ = half
    with pytest.raises(InputError, match="startprob_: has masked entries"):
        estimator.score(SYMBOLS)
    with pytest.raises(InputError, match="covars_: has masked entries"):
        GaussianHMM(1).covars_ = np.ma.array([[1.0]], mask=[[True]])


def test_masked_truths_floats_and_lists_are_missing_symbols() -> None:
    row = np.ma.array([0, 1, 1, 0, 1], mask=[1, 0, 0, 0, 0])
    for source in (row.astype(np.bool_), [row.astype(np.bool_)], [row.astype(float)], list(row), [list(row)]):
        assert hs.SequenceData(source).flat.tolist() == [2, 1, 1, 0, 1]
    names = np.ma.array(["x", "a", "b"], mask=[True, False, False])
    for named in ([names], [list(names)]):
        with pytest.raises(InputError, match=r"sequence 1, symbol 1: is None.* pass missing='none'"):
            hs.SequenceData(named)
        data = hs.SequenceData(named, missing="none")
        assert (data.symbols, data.flat.tolist()) == (("a", "b"), [2, 0, 1])
    hidden = np.ma.array([0.0, 1.0, -0.5], mask=[False, False, True])
    assert hs.fit(hidden, 1, options=hs.FitOptions(num_restarts=1)).hmm.num_symbols == 2


FREE: list[tuple[Any, dict[str, Any], int]] = [
    (CategoricalHMM(2, params="e", n_features=5), {}, 8),
    (CategoricalHMM(2, n_features=5), {}, 11),
    (CategoricalHMM(2, params="st", n_features=5), {}, 3),
    (CategoricalHMM(2, init_params="se", n_features=5), {"transmat_": np.array([[1.0, 0.0], [0.5, 0.5]])}, 10),
    (GaussianHMM(2, params="stm"), {}, 7),
    (GaussianHMM(2, params="c", covariance_type="tied"), {}, 3),
    (GaussianHMM(2, params="c", covariance_type="spherical"), {}, 2),
    (GaussianHMM(2, params="mc", covariance_type="full"), {}, 4 + 6),
    (PoissonHMM(2, params="s"), {}, 1),
    (PoissonHMM(2), {}, 3 + 4),
    (GMMHMM(2, n_mix=2, params="w"), {}, 2),
    (GMMHMM(2, 2, params="mcw", init_params="stmc"), {"weights_": np.array([[1.0, 0.0], [0.5, 0.5]])}, 6 + 6 + 1),
]


@pytest.mark.parametrize("case", FREE, ids=lambda case: f"{type(case[0]).__name__}-{case[0].params}-{case[2]}")
def test_free_parameters(case: tuple[Any, dict[str, Any], int]) -> None:
    estimator, given, free = case
    rows = SYMBOLS if "Cat" in type(estimator).__name__ else np.abs(np.floor(NUMBERS))
    estimator = sklearn.base.clone(estimator).set_params(random_state=0, n_iter=2)
    for name, value in given.items():
        setattr(estimator, name, value)
    for _ in range(2):  # a second fit begins with the laws of the first, and keeps its class of models
        estimator.fit(rows)
        assert (estimator.aic(rows) + 2 * estimator.score(rows)) / 2 == pytest.approx(free)
        assert (estimator.bic(rows) + 2 * estimator.score(rows)) / np.log(30) == pytest.approx(free)
        estimator.set_params(init_params="")
    for name, value in given.items():
        assert (getattr(estimator, name)[value == 0] == 0).all()


def test_laws_that_are_set_count_by_their_own_zeros() -> None:
    estimator = CategoricalHMM(2, n_features=4, random_state=0, n_iter=1).fit(SYMBOLS)
    assert estimator._num_parameters() == 9
    estimator.transmat_ = np.eye(2)
    assert estimator._num_parameters() == 7


def test_a_prior_on_weights_leaves_zeros() -> None:
    estimator = GMMHMM(1, 2, weights_prior=3.0, init_params="stmc", n_iter=2, random_state=0)
    estimator.weights_ = np.array([[1.0, 0.0]])
    assert estimator.fit(NUMBERS).weights_.tolist() == [[1.0, 0.0]]
