"""Estimators read what hs.fit reads, and refuse in one line what they cannot fit."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hmmscope as hs
from hmmscope.errors import InputError

estimators = pytest.importorskip("hmmscope.sklearn")

CHAIN = {"startprob_": np.array([0.5, 0.5]), "transmat_": np.array([[0.9, 0.1], [0.2, 0.8]])}


def ready(kind: str) -> Any:
    """An estimator with parameters, which fits nothing."""
    parts: dict[str, Any] = {
        "CategoricalHMM": {"emissionprob_": np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])},
        "GaussianHMM": {"means_": np.array([[0.0], [2.0]]), "covars_": np.ones((2, 1))},
        "PoissonHMM": {"lambdas_": np.array([[0.5], [2.0]])},
        "GMMHMM": {"weights_": np.ones((2, 1)), "means_": np.array([[[0.0]], [[2.0]]]), "covars_": np.ones((2, 1, 1))},
    }
    found = getattr(estimators, kind)(2)
    for name, value in (CHAIN | parts[kind]).items():
        setattr(found, name, value)
    return found


def columns(rows: list[int | None]) -> dict[str, Any]:
    """One column in arrays, lists, tensors and tables."""
    values = np.array([np.nan if one is None else one for one in rows])
    fixed = values.copy()
    fixed.flags.writeable = False
    found = {
        "list": rows,
        "rows": [[one] for one in values.tolist()],
        "one dimension": values,
        "read-only": fixed[:, None],
        "big-endian": values.astype(">f8")[:, None],
        "fortran": np.asfortranarray(np.stack([values, values], 1))[:, :1],
        "reversed": values[::-1].copy()[::-1][:, None],
        "masked": np.ma.masked_invalid(values),
        "tensor": torch.tensor(values),
        "mapping": {"x": values},
        "records": np.array([(one,) for one in values], dtype=[("x", float)]),
        "numbers that were read": hs.read_vectors(values) if not np.isnan(values).all() else values,
    }
    if None not in rows:
        found |= {"bytes": values.astype("u1"), "symbols": hs.SequenceData(values, symbols=3)}
        found |= {"half": values.astype("f2")[:, None]}
    for name in ("pandas", "polars"):
        try:
            library = __import__(name)
        except ImportError:
            continue
        found |= {f"{name} series": library.Series(rows), f"{name} frame": library.DataFrame({"x": rows})}
        found |= {"lazy": library.LazyFrame({"x": rows})} if name == "polars" else {}
    return found


@settings(max_examples=4, deadline=None)
@given(
    st.lists(st.none() | st.integers(0, 2), min_size=2, max_size=6).filter(lambda one: any(v is not None for v in one))
)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["CategoricalHMM", "GaussianHMM", "PoissonHMM", "GMMHMM"])
def test_any_container_gives_the_same_answers(kind: str, rows: list[int | None]) -> None:
    model = ready(kind)
    plain = np.array([[np.nan if one is None else one] for one in rows])
    score, states = model.score(plain), model.predict(plain)
    process = hs.HMM(*CHAIN.values(), model.emissionprob_) if kind == "CategoricalHMM" else model.process()
    source = [hs.MISSING if one is None else one for one in rows] if kind == "CategoricalHMM" else plain[:, 0]
    assert score == pytest.approx(float(hs.log_likelihood(process, source)), abs=1e-7)
    for name, given_rows in columns(rows).items():
        assert model.score(given_rows) == score, name
        assert model.predict(given_rows).tolist() == states.tolist(), name


def test_files_and_data_that_were_read_have_their_lengths(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("x\n" + "".join(f"{one},5\n".replace(",", ".") for one in range(8)))
    rows = np.arange(8.0)[:, None] + 0.5
    model = ready("GaussianHMM")
    assert model.score(path) == model.score(str(path)) == model.score(rows)
    assert model.bic(path) == model.bic(rows)
    parts = hs.SequenceData([[0, 1, 2], [2, 2]])
    model = ready("CategoricalHMM")
    assert model.score(parts) == model.score(np.array([[0], [1], [2], [2], [2]]), [3, 2])
    assert estimators.CategoricalHMM(2, random_state=0).fit(parts).n_features == 3
    with pytest.raises(InputError, match="lengths: apply to arrays and tables only; this X already has lengths"):
        model.score(parts, [3, 2])


@pytest.mark.parametrize("kind", ["CategoricalHMM", "GaussianHMM"])
def test_a_list_of_unequal_sequences_or_of_tables_has_their_lengths(kind: str) -> None:
    model, rows = ready(kind), np.array([0, 1, 2, 2, 2, 1])
    frames = [__import__(name).DataFrame for name in ("pandas", "polars") if find_spec(name)]
    for end, makers in ((4, [np.copy, np.ndarray.tolist, torch.tensor]), (3, [lambda one: one[:, None], *frames])):
        for made in makers:
            assert model.score([made(rows[:end]), made(rows[end:])]) == model.score(rows, [end, 6 - end])
    assert model.score([[one] for one in rows]) == model.score(rows[:, None])
    drawn, own = hs.load_process("umbrella").sample(3, 2), model.sample(4)
    assert model.score(drawn) == model.score(np.asarray(drawn.observations), [3, 3])
    assert model.score(own) == model.score(own[0])


def test_estimators_keep_the_names_of_symbols() -> None:
    model = estimators.CategoricalHMM(1, random_state=0).fit(hs.SequenceData(["2 1 3 1"], unit="words"))
    assert model.score(hs.SequenceData(["3 1"], unit="words")) == model.score(torch.tensor([[2], [0]]))
    with pytest.warns(UserWarning, match=r"^X: whole numbers are indices of symbols \(0 is '1'\)"):
        model.score(np.array([2, 1]))
    assert estimators.CategoricalHMM(1).fit(hs.SequenceData([[0, 1]], symbols=4)).n_features == 4


def test_what_cannot_be_fitted_is_refused_in_one_line() -> None:
    x = np.random.default_rng(0).normal(size=(50, 1))
    twice = np.column_stack([x, x[::-1], x])
    for model in (estimators.GaussianHMM(2, "full", random_state=0), estimators.GaussianHMM(1, "tied")):
        with pytest.raises(InputError, match=r"X: columns \[0, 2\] are collinear .* set min_variance"):
            model.fit(twice)
    flat = np.column_stack([x, np.full(50, 1e13)])
    for kind, which in (("diag", "column 1 is"), ("spherical", "every column is"), ("full", "column 1 is")):
        rows, model = flat * (kind != "spherical"), estimators.GMMHMM(1, 2, covariance_type=kind)
        with pytest.raises(InputError, match=f"^X: {which} constant in the rows of .* or set min_variance or fewer"):
            model.fit(rows)
        assert np.isfinite(estimators.GMMHMM(1, 2, covariance_type=kind, min_variance=0.25).fit(rows).score(rows))
    with pytest.raises(InputError, match=r"column 1 is constant in the rows of state [01], .*set min_variance"):
        estimators.GaussianHMM(2, covars_prior=0).fit(flat)
    with pytest.raises(InputError, match=r"X: every count is 0, .*set lambdas_prior"):
        estimators.PoissonHMM(2).fit(np.zeros((50, 1), int))
    prior = estimators.PoissonHMM(2, lambdas_prior=1, lambdas_weight=2).fit(np.zeros((50, 1), int))
    assert prior.lambdas_ == pytest.approx(np.full((2, 1), 1 / 52))
    for lengths in ([20.5, 29.5], [-1, 51]):
        with pytest.raises(InputError, match=r"lengths: must be whole numbers of at least 0, one per sequence"):
            estimators.GaussianHMM(1).fit(x, lengths)
    one = estimators.GaussianHMM(1).fit(x)
    assert one.score(x, [20.0, 30.0]) == one.score(x, [20, 30])
    with pytest.raises(InputError, match="tol: must be a number of nats"):
        estimators.CategoricalHMM(2, tol=None).fit([0, 1, 1])
    dates = np.array(["2026-01-01", "2026-01-02"] * 6, "M8[D]")
    law = hs.fit(x, 1, emission="gaussian").hmm
    spans = np.array([*dates - dates[0]], object)
    for days in (np.array([*dates], object), spans, np.ma.masked_equal(dates, dates[0])):
        for call in (estimators.GaussianHMM().fit, lambda one: hs.log_likelihood(law, one[None, :, None])):
            with pytest.raises(InputError, match=r"must be numbers|numeric dtype"):
                call(days)
    frames = [__import__(one).DataFrame({"w": ["a", "b"]}) for one in ("pandas", "polars") if find_spec(one)]
    for kind, days in [(type(one), days) for one in frames for days in (dates, dates.tolist())]:
        for model in (estimators.CategoricalHMM(), estimators.GaussianHMM()):
            with pytest.raises(InputError, match=r"^X: must be numbers, got [dt]"):
                model.fit(kind({"d": days, "x": [0, 1] * 6}))
    columns = np.array(["a", "b"]), np.array([["a"], ["b"]], object), np.array([("a",), ("b",)], [("w", "U1")])
    for names in (["a", "b"], {"w": ["a", "b"]}, *columns, *frames):
        with pytest.raises(InputError, match="X: must be numbers, got 'a'; encode names with OrdinalEncoder"):
            estimators.CategoricalHMM(2).fit(names)
    with pytest.raises(InputError, match=r"100000000000000000000 is not a symbol; symbols must be in \[0, "):
        hs.SequenceData([0, 10**20])


@pytest.mark.parametrize("shape", ["diag", "tied"])
def test_the_size_of_numbers_changes_no_state(shape: str) -> None:
    """Numbers near 1e13 are multiples of 1/512, so that subtracting 1e13 is exact."""
    random = np.random.default_rng(0)
    x = np.repeat(random.permutation([-2.0, 2.0] * 10), 25)[:, None] + random.normal(size=(500, 2))
    x += [1e13, 0]
    near, emission = x - [1e13, 0], {"emission": "gaussian", "covariance_type": shape}
    for fit in (
        lambda rows: hs.fit(rows, 2, lengths=[500], options=hs.FitOptions(max_iterations=10), **emission),
        lambda rows: estimators.GaussianHMM(2, shape, min_covar=0, random_state=0, covars_prior=0).fit(rows),
        lambda rows: estimators.GMMHMM(2, 1, min_covar=0, covariance_type=shape, random_state=0).fit(rows),
    ):
        fitted, expected, tiny, huge = (fit(rows) for rows in (x, near, near * 1e-140, near * 1e140))
        states = np.asarray(expected.predict(near, lengths=[500]))
        for model, rows in ((fitted, x), (tiny, near * 1e-140), (huge, near * 1e140)):
            assert np.array_equal(model.predict(rows, lengths=[500]), states)
        far, true = (getattr(model, "hmm", None) or model.process() for model in (fitted, expected))
        total = float(hs.log_likelihood(true, near[None])[0])
        assert float(hs.log_likelihood(far, x[None])[0]) == pytest.approx(total, abs=0.01)  # means are rounded to 1/512
        for scale, advice in ((1e-200, r"multiply it by \de\+19\d"), (1e160, r"multiply it by \de-16\d")):
            with pytest.raises(InputError, match=rf"^(X: column|observations: coordinate) 0: range .*\({advice}\)"):
                fit(near * scale)


@pytest.mark.parametrize("kind, name", [("GaussianHMM", "means"), ("PoissonHMM", "lambdas"), ("GMMHMM", "means")])
def test_columns_differ_from_parameters_set_by_hand(kind: str, name: str) -> None:
    model = ready(kind).set_params(init_params="")
    for call in (model.score, model.predict, model.decode, model.predict_proba, model.bic, model.fit):
        with pytest.raises(InputError, match=f"^X: must have 1 column, as the model's {name}_, got 2$"):
            call(np.ones((5, 2)))


def test_counts_of_millions() -> None:
    """Against log P = sum over the counts below of log(rate / count), from the count 0."""
    rate, counts = 3e6, np.array([0.0, 1.0, 2.0, 2_999_000.0, 3_000_000.0, 3_005_000.0])
    exact = [float(np.log(rate / np.arange(1, one + 1)).sum()) - rate for one in counts]
    model = hs.PoissonHMM([1.0], [[1.0]], [rate])
    found = [float(hs.log_likelihood(model, np.array([one]))) for one in counts]
    assert found == pytest.approx(exact, abs=1e-6)
    drawn = hs.ProcessDataset(model, length=4000)[0:1].observations
    assert abs(float(drawn.mean()) - rate) < 5 * (rate / 4000) ** 0.5
    assert float(drawn.var()) / rate == pytest.approx(1, abs=0.12)
    values = np.repeat([3e7, 3.1e7], 50) + np.tile([0.0, 1e3], 50)
    fitted = hs.fit(values, 2, emission="poisson", options=hs.FitOptions(num_restarts=1, choose="bic"))
    assert sorted(fitted.hmm.rates[:, 0].tolist()) == pytest.approx([3e7 + 500, 3.1e7 + 500], abs=1)


def test_noise_of_a_tracked_position_may_be_singular() -> None:
    parts: dict[str, Any] = {"transition": [[1.0, 1.0], [0.0, 1.0]], "output": [[1.0, 0.0]], "output_noise": [[1.0]]}
    noise = np.array([[0.25, 0.5], [0.5, 1.0]])
    singular, near = (hs.LinearGaussian(**parts, state_noise=noise + more * np.eye(2)) for more in (0.0, 1e-9))
    seen = hs.ProcessDataset(singular, length=30)[0:2].observations
    torch.testing.assert_close(hs.log_likelihood(singular, seen), hs.log_likelihood(near, seen), rtol=1e-6, atol=1e-6)
    for bad in (noise - 0.1 * np.eye(2), [[1.0, 0.0], [0.5, 1.0]]):
        with pytest.raises(InputError, match="state_noise: must be a symmetric positive semidefinite matrix"):
            hs.LinearGaussian(**parts, state_noise=bad)
    exact = hs.LinearGaussian(**parts | {"output_noise": [[0.0]]}, state_noise=noise)
    torch.testing.assert_close(hs.observe(exact, seen).vectors["mean"][..., :1], seen, rtol=1e-14, atol=1e-14)
    assert dict(exact.facts())["least error"].startswith("0.25")
    assert exact.facts_data()["mixing_time"] is None  # the speed oscillates for ever around its true value
    certain = hs.LinearGaussian(**parts | {"output_noise": [[0.0]]}, state_noise=0 * noise)
    with pytest.raises(InputError, match=r"^output_noise: the covariance of observation 0 .* is singular") as refused:
        hs.log_likelihood(certain, seen)
    assert "\n" not in str(refused.value)
