"""A fit answers about rows: states, probabilities, scores, samples, forecasts, a table of states."""

import itertools
import pickle
import warnings
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError, RefusedError
from hmmscope.reprs import times_as_array
from hmmscope.runs.given_rows import labels_as_given, of_symbols
from hmmscope.runs.row_values import RowValues, duration_text, multiple_of, time_step

WEATHER = hs.HMM(
    [0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.8, 0.2], [0.3, 0.7]], symbols=["sun", "rain"], states=["dry", "wet"]
)
SENSORS = hs.GaussianHMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.0, 1.0], [5.0, 9.0]], [[1.0, 1.0], [2.0, 1.0]])
FAMILIES = {
    "symbols": WEATHER,
    "edges": hs.LabelledHMM([0.5, 0.5], [[[0.5, 0.2], [0.1, 0.1]], [[0.1, 0.2], [0.4, 0.4]]]),
    "gaussian": SENSORS,
    "mixture": hs.GaussianMixtureHMM(
        [0.5, 0.5],
        [[0.9, 0.1], [0.2, 0.8]],
        [[0.4, 0.6], [1.0, 0.0]],
        [[[0.0], [1.0]], [[7.0], [9.0]]],
        [[[1.0], [2.0]], [[1.0], [1.0]]],
    ),
    "poisson": hs.PoissonHMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[2.0], [9.0]]),
    "channels": hs.MultichannelHMM(
        [0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[[0.8, 0.2], [0.1, 0.9]], [[0.5, 0.2, 0.3], [0.1, 0.8, 0.1]]]
    ),
    "mixed": hs.MixedHMM(
        [0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.0], [5.0]], [[1.0], [2.0]], [[[0.8, 0.2], [0.1, 0.9]]]
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_answers_with_the_same_methods(family: str) -> None:
    hmm: Any = FAMILIES[family]
    drawn = hmm.sample(7, 3, seed=2)
    x = drawn.observations
    states, probs = hmm.predict(x), hmm.predict_proba(x)
    assert states.shape == drawn.states.shape == (21,)
    assert states.lengths == (7, 7, 7)
    assert probs.shape == (21, 2)
    assert np.allclose(probs.sum(1), 1)
    scores = hmm.score(x, per_sequence=True)
    assert scores.shape == (3,)
    assert hmm.score(x) == pytest.approx(scores.sum(), abs=1e-9)
    batch: Any = torch.from_numpy(np.asarray(x).reshape(3, 7, *x.shape[1:]))
    assert states.tolist() == hs.most_likely_states(hmm, batch).states.flatten().tolist()
    assert np.allclose(probs, hs.smooth_beliefs(hmm, batch).flatten(0, 1), atol=1e-12)
    assert np.allclose(scores, hs.filter_beliefs(hmm, batch).log_likelihood, atol=1e-9)
    table = hmm.state_table(x)
    assert [row["state"] for row in table] == list(probs.names)
    assert sum(row["share"] for row in table) == pytest.approx(1.0)
    if family == "edges":
        return
    assert table[0]["dwell_rows"] == pytest.approx(10)
    assert hmm.state_table()[0]["share"] == pytest.approx(2 / 3)
    ahead = hmm.forecast(x[:7], 2)
    assert {row["step"] for row in ahead.table()} == {1, 2}
    if family == "channels":  # probabilities of symbols: means of their numbers say nothing
        assert ahead.names == ("x0=0", "x0=1", "x1=0", "x1=1", "x1=2")
        exact = torch.from_numpy(np.asarray(probs))[6] @ hmm.transition @ hmm.emissions
        assert ahead.mean[0].tolist() == pytest.approx(exact.tolist(), abs=1e-12)
        assert torch.equal(ahead.low, ahead.mean)
    if family == "mixed":
        assert ahead.names == ("x0", "x1=0", "x1=1")
        assert ahead.low[0, 0] < ahead.mean[0, 0] < ahead.high[0, 0]
        assert table.columns().keys() >= {"mean x0", "std x0", "P(x1=0)", "P(x1=1)"}


@pytest.mark.parametrize("reading", [{"group": "id"}, {"time": "day", "sort": True}])
def test_rows_that_reading_reordered_are_warned_of(reading: dict[str, Any]) -> None:
    table = {"id": ["a", "b"] * 4, "day": [3, 1, 2, 4, 6, 5, 8, 7], "x": [0, 1, 0, 1, 1, 0, 0, 1]}
    fit = hs.fit(table, 1, column="x", **reading)
    for answer in (fit.predict, fit.predict_proba, lambda: fit.hmm.predict(table, column="x", **reading)):
        with pytest.warns(UserWarning, match=r"reordered the rows of the table; match results by the index"):
            answer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit.predict({"id": ["a", "a", "b"], "day": [1, 2, 3], "x": [0, 1, 0]}, column="x", **reading)


def test_a_fit_answers_about_its_data_and_about_other_data() -> None:
    x = np.asarray(SENSORS.sample(300, seed=1).observations)
    fit = hs.fit(x, 2, lengths=[100, 200])
    assert fit.score() == pytest.approx(fit.log_likelihood, abs=1e-8)
    assert fit.predict().tolist() == fit.predict(x, lengths=[100, 200]).tolist()
    assert np.array_equal(fit.predict_proba(), fit.predict_proba([x[:100], x[100:]]))
    assert len(fit.score(per_sequence=True)) == 2
    assert fit.predict(names=True)[0] in ("state 0", "state 1")
    assert fit.predict(x[:5]).shape == (5,)
    assert fit.sample(4).observations.shape == (4, 2)
    with pytest.raises(InputError, match=r"observed: must be a single sequence, got 2 sequences; pass the past of one"):
        fit.forecast(steps=3)
    ahead = fit.forecast(x, steps=3)
    mean = hs.filter_beliefs(fit.hmm, x).next_observation[0, -1]
    assert np.allclose(ahead.mean[0], mean)
    assert bool((ahead.low < ahead.mean).all() & (ahead.mean < ahead.high).all())
    with pytest.raises(InputError, match="lengths: describes how to read x, but x is missing; pass x"):
        fit.predict(lengths=[3])


def test_missing_rows_and_impossible_sequences() -> None:
    x = np.asarray(SENSORS.sample(20).observations).copy()
    x[5:8] = np.nan
    assert SENSORS.predict(x).shape == (20,)
    assert np.isfinite(SENSORS.score(x))
    sure = hs.HMM([1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]])
    assert sure.predict([[0, 0], [1, 0]]).tolist() == [0, 0, -1, -1]
    assert sure.predict([[0, 0], [1, 0]], names=True).tolist() == ["state 0", "state 0", "?", "?"]
    assert sure.score([[0, 0], [1, 0]], per_sequence=True).tolist() == [0.0, -np.inf]
    assert sure.state_table()[0]["dwell_rows"] == np.inf


SEEN, KINDS = ["sun", "rain", "sun"], (str, object, np.dtypes.StringDType())
FORMS = [SEEN, [SEEN], np.array([0, 1, 0]), torch.tensor([[0, 1, 0]]), *(np.array(SEEN, kind) for kind in KINDS)]


@pytest.mark.parametrize("x", FORMS)
def test_forms_of_one_sequence_of_symbols(x: Any) -> None:
    assert WEATHER.score(x) == pytest.approx(WEATHER.score(hs.SequenceData([[0, 1, 0]], symbols=["sun", "rain"])))
    assert WEATHER.predict(x, names=True).tolist() == ["dry", "dry", "dry"]
    assert float(hs.log_likelihood(WEATHER, x)[0]) == pytest.approx(WEATHER.score(x))


def test_rows_keep_their_labels_and_other_results_are_plain_arrays() -> None:
    found = WEATHER.predict_proba([[0, 1, 0], [1]])
    twice, plain = np.concatenate([found, found]), [found[0], found[::-1], found[:, None], found.T, found.argmax(0)]
    for one in (twice, *plain, found + 1, found.copy(), found.round(2), np.sort(found), np.roll(found, 1)):
        assert type(one) is np.ndarray
    assert isinstance(found.sum(), float)
    assert [len(one) for one in found.per_sequence()] == [3, 1]
    for again in (pickle.loads(pickle.dumps(found)), deepcopy(found), found[:]):
        assert (again.lengths, again.names) == ((3, 1), ("dry", "wet"))
        assert np.array_equal(again, found)
    assert list(found.columns()) == ["sequence", "time", "dry", "wet"]
    for chosen in (found[1:], found[[1, 2, 3]], found[np.arange(4) > 0], found[1:, ::-1], found[1:, 1], found[:3][1:]):
        assert chosen.columns()["time"].tolist() == [1, 2, 0][: len(chosen)]
        assert chosen.columns()["sequence"].tolist() == [0, 0, 1][: len(chosen)]
        assert np.array_equal(chosen.columns()["wet"], np.asarray(found)[1:, 1][: len(chosen)])
    assert found.argmax(1).columns()["argmax"].tolist() == np.argmax(found, 1).tolist() == [0, 0, 0, 1]
    assert RowValues.of([5, 6, 7], [3], ["state"], np.array(list("abc")))[1:].columns()["index"].tolist() == ["b", "c"]
    drawn = WEATHER.sample(4, 3).observations
    assert WEATHER.predict(drawn[:6]).lengths == (4, 2)


def test_answers_are_written_as_csv(tmp_path: Path) -> None:
    WEATHER.predict([["sun"], ["rain", "rain"]]).to_csv(tmp_path / "states.csv")
    assert (tmp_path / "states.csv").read_text().splitlines() == ["sequence,time,state", "0,0,0", "1,0,1", "1,1,1"]
    with pytest.raises(RefusedError, match=r"states\.csv: exists"):
        WEATHER.predict([[0]]).to_csv(tmp_path / "states.csv")


def test_the_background_is_paler_where_observations_are_missing() -> None:
    hmm = SENSORS
    x = np.array([[0.0, 1.0], [np.nan, np.nan], [np.nan, np.nan], [0.0, 1.0], [5.0, 9.0]])
    drawn = hmm.plot("observations", x, coordinates=[0])
    spans = {one.get_alpha(): len(one.get_paths()) for one in drawn.collections[:2]}
    assert spans == {0.28: 2, 0.1: 1}
    whole = hmm.plot("observations", np.nan_to_num(x), coordinates=[0])
    assert [one.get_alpha() for one in whole.collections[:2]] == [0.28, 0.28]


def test_a_stream_stores_no_rows() -> None:
    fit = hs.fit([[0, 1, 1, 0, 1]] * 4, 2, stream=True)
    with pytest.raises(InputError, match="predict: needs the fitted data, but a stream stores none"):
        fit.predict()
    assert fit.predict([[0, 1]]).shape == (2,)


def test_results_keep_the_index_of_pandas() -> None:
    pd: Any = pytest.importorskip("pandas")
    stamps = pd.date_range("2026-01-01", periods=300, freq="10min", name="stamp", tz="Europe/Berlin")
    frame = pd.DataFrame(np.asarray(SENSORS.sample(300).observations), index=stamps, columns=["temp", "rain"])
    fit = hs.fit(frame, 2, emission="gaussian", lengths=[300])
    probs = fit.predict_proba().to_pandas()
    assert probs.index.equals(stamps)
    assert list(probs) == ["state 0", "state 1"]
    assert fit.predict(frame[10:20]).to_pandas().index.equals(stamps[10:20])
    assert all(one[5:8].to_pandas().index.equals(stamps[5:8]) for one in (fit.predict(), fit.predict_proba().argmax(1)))
    assert WEATHER.predict([[0, 0], [1]])[1:].to_pandas().index.tolist() == [(0, 1), (1, 0)]
    states = fit.states()
    assert "mean temp" in states[0]
    assert states[0]["dwell_time"] / np.timedelta64(10, "m") == pytest.approx(states[0]["dwell_rows"], rel=1e-6)
    assert fit.forecast(steps=2).to_pandas()["time"].iloc[-1] == stamps[-1] + 2 * stamps.freq
    assert fit.table().to_pandas().shape[0] == 1
    assert WEATHER.predict([[0], [1, 1]]).to_pandas().index.names == ["sequence", "time"]
    text = pd.Series(["sun", "rain"], index=["a", "b"])
    assert WEATHER.predict(text).to_pandas().index.tolist() == ["a", "b"]


def test_dwell_times_and_calendar_steps() -> None:
    """Six hundred years are not "always", and the year after a leap year begins on the first of January."""
    years = [f"{year}-01-01" for year in range(1960, 1972)]
    fit = hs.fit({"t": years, "x": np.zeros(12) + np.arange(12) % 2}, 1, column="x", time="t", every="12mo")
    stamps = np.datetime64("2026-01-01") + np.timedelta64(10, "m") * np.array([0, 1, 2, 7, 8])
    assert time_step(stamps) == np.timedelta64(10, "m")
    assert time_step(np.arange(5)) is None
    for minutes, text in ((0.5, "30 s"), (90, "1 h 30 min"), (60 * 24 * 3, "3 d"), (59.9999, "1 h")):
        assert duration_text(np.timedelta64(round(minutes * 60e9), "ns")) == text
    step = np.timedelta64(365, "D")
    assert duration_text(multiple_of(step, 627.3)) == "228,964 d 12 h"
    assert duration_text(multiple_of(step, np.inf)) == "always"
    assert multiple_of(np.timedelta64(10, "ns"), 2.5) == np.timedelta64(25, "ns")
    ahead = [str(row["time"])[:10] for row in fit.forecast(steps=2).table()[::2]]
    assert ahead == ["1972-01-01", "1973-01-01"]


def test_times_in_columns_are_arrays() -> None:
    """Polars reads each number in a list of NumPy's durations as microseconds."""
    stamps = np.datetime64("2026-01-01T00:00", "us") + np.arange(300) * np.timedelta64(1, "h")
    fit = hs.fit({"t": stamps, "x": np.asarray(SENSORS.sample(300).observations)[:, 1]}, 2, column="x", time="t")
    states, ahead = fit.states().columns(), fit.forecast(steps=2).columns()
    assert (states["dwell_time"].dtype, ahead["time"].dtype) == ("m8[ns]", "M8[us]")
    assert np.allclose(states["dwell_time"] / np.timedelta64(1, "h"), states["dwell_rows"])
    assert (ahead["time"] == stamps[-1:] + np.array([1, 2], "m8[h]")).all()
    assert RowValues.of(stamps, [300], ["state"], stamps.astype("M8[s]")).columns()["index"].dtype == "M8[us]"
    years = times_as_array([None, np.timedelta64(5000, "ns"), np.timedelta64(2**61, "us")])
    assert years[1:].astype(int).tolist() == [5, 2**61]
    polars = pytest.importorskip("polars")
    hours = polars.DataFrame(states)["dwell_time"].dt.total_seconds(fractional=True) / 3600
    assert np.allclose(hours, states["dwell_rows"])
    assert polars.DataFrame(ahead)["time"].to_list() == ahead["time"].tolist()


def test_answers_have_the_index_of_a_frame_itself() -> None:
    pandas = pytest.importorskip("pandas")
    x = [0.5, 1.5, 0.2, 1.1, 0.4, 1.9]
    for index in (
        pandas.date_range("2026", periods=6, freq="h", tz="Europe/Berlin"),
        pandas.period_range("2026-01", periods=6, freq="M"),
        pandas.MultiIndex.from_product([["a", "b"], range(3)]),
        pandas.Index([0] * 6),
    ):
        frame = pandas.DataFrame({"x": x}, index=index)
        fit = hs.fit(frame, 1)
        given = (fit.predict(), fit.predict(frame), fit.predict_proba(frame), fit.hmm.predict(frame))
        assert all(found.to_pandas().index.equals(index) for found in given)


def test_answers_about_a_time_grid_keep_the_zone_of_a_frame_and_the_names_of_sequences() -> None:
    """Stamps in UTC could not be joined to a frame with a zone; of several sequences, stamps alone are ambiguous."""
    pandas = pytest.importorskip("pandas")
    stamps = pandas.date_range("2024-03-31", periods=60, freq="10min", tz="Europe/Berlin")
    frame = pandas.DataFrame({"t": stamps, "x": np.arange(60) % 7 + 0.5, "id": "a"}).drop(index=[4, 5])
    reading: dict[str, Any] = {"time": "t", "every": "10min", "column": "x"}
    series = frame.set_index("t")["x"]
    fit, named = hs.fit(frame, 2, **reading), hs.fit(frame.set_index("t"), 2, **reading)
    whole = [fit.predict(), fit.predict(frame), fit.hmm.predict(frame), named.predict()]
    for one in (series, series.gt(3).map({True: "high", False: "low"})):
        fit = hs.fit(one, 2, time="index", every="10min")
        whole += [fit.predict(), fit.predict(one), fit.predict(one.rename("x"), time="index", every="10min")]
    assert all(found.to_pandas().index.equals(stamps) for found in whole)
    both = pandas.concat([frame, frame.assign(id="b")])
    rows = pandas.MultiIndex.from_product([["a", "b"], stamps])
    assert hs.fit(both, 1, group="id", **reading).predict().to_pandas().index.equals(rows)
    for levels in (both.set_index(["id", "t"]), both.set_index(["id", "t"])["x"], both.set_index(["t", "id"])):
        fit = hs.fit(levels, 1, group="id", time="t", every="10min")
        assert fit.predict().to_pandas().index.equals(rows)
        assert fit.predict(levels).to_pandas().index.equals(rows)
    labels = hs.fit(both, 1, column="x", group="id").predict().to_pandas().index
    assert labels.tolist() == [(name, row) for name in "ab" for row in frame.index]


def test_rows_carry_the_names_of_their_sequences(tmp_path: Path) -> None:
    table = {"id": ["b", "b", "a", "a"], "x": [0.5, 1.0, 2.0, 1.5], "t": [1, 3, 1, 2], "s": ["u", "v", "u", "u"]}
    (tmp_path / "a.csv").write_text("id,x,t,s\nb,0.5,1,u\nb,1.0,3,v\na,2.0,1,u\na,1.5,2,u\n")
    for column, source in itertools.product("xs", (table, tmp_path / "a.csv")):
        fit = hs.fit(source, 1, column=column, group="id", time="t", every=1)
        assert "converged, 2 sequences with 5 time steps every 1, of which 1 missing)" in repr(fit)
        found = fit.predict()
        assert found.columns()["sequence"].tolist() == ["b", "b", "b", "a", "a"]
        assert pickle.loads(pickle.dumps(found)).sequences == ("b", "a")
        fit = hs.fit(source, 1, column=column, group="id")
        assert (fit.predict().columns()["sequence"].tolist(), "time steps" in repr(fit)) == ([*"bbaa"], False)
    for ids in ([10, 10, 7, 7], np.array([10, 10, 7, 7], np.int16), np.array([10, 10, 7, 7], object)):
        for column, time in itertools.product("xs", (None, "t")):
            fit = hs.fit(table | {"id": ids}, 1, column=column, group="id", time=time, every=time and 1)
            found = fit.predict().columns()["sequence"]
            assert (found.dtype.kind, sorted(set(found.tolist())), fit.data.data.names) == ("i", [7, 10], (10, 7))
    data: Any = hs.SequenceData([["sun", "rain"], ["sun"]], symbols=["sun", "rain"])
    stamps = np.datetime64("2026-01-01") + np.arange(3)
    assert of_symbols(data, [stamps[:2], stamps[2:]]).index.tolist() == stamps.tolist()


def test_labels_of_a_frame_keep_their_kind() -> None:
    """The same with a stand-in for an index with a zone, which arrays of stamps lose."""
    labels = np.array(["2026-01-01T00", "2026-01-01T01"], dtype="datetime64[s]").view(Labels)
    data = hs.read_vectors({"t": ["2026-01-01 00:00", "2026-01-01 01:00"], "x": [0.5, 1.0]}, time="t", every="1h")
    source = SimpleNamespace(index=labels)
    assert labels_as_given(data, source) is labels
    a_series = SimpleNamespace(index=labels[::-1], iloc=None)  # without columns
    assert labels_as_given(data, a_series).tolist() == labels.tolist()


class Labels(np.ndarray):
    """Labels with more than their values."""


def test_answers_are_conditioned_on_known_states_and_weighted() -> None:
    """For symbols, numbers, durations and inputs, ragged, against inference on each sequence."""
    drawn = np.random.default_rng(0)
    symbols, inputs = ([drawn.integers(0, 2, n).tolist() for n in (6, 3, 9)] for _ in range(2))
    known, weights = [[0, -1, {0, 1}, 1, -1, 0], [None, 1, 1], [-1] * 9], [2.0, 0.0, 0.5]
    numbers = [np.array(row) + 0.25 for row in symbols]
    options: dict[str, Any] = {"num_restarts": 1, "max_iterations": 3}
    for x, more, given in (
        (symbols, {}, {}),
        (numbers, {"emission": "gaussian"}, {}),
        (symbols, {"options": hs.FitOptions(durations=3, **options)}, {}),
        (symbols, {"inputs": inputs}, {"inputs": inputs}),
    ):
        fit = hs.fit(x, 2, **({"options": hs.FitOptions(**options)} | more))
        each = fit.hmm.score(x, known_states=known, per_sequence=True, **given)
        alone: dict[str, Any] = {} if not given else {"inputs": [inputs[0]]}
        expected = hs.log_likelihood(fit.hmm, [x[0]], known_states=[known[0]], **alone)
        assert each[0] == pytest.approx(float(expected[0]), rel=1e-12)
        assert each[2] == pytest.approx(fit.score(per_sequence=True)[2], rel=1e-12)
        assert fit.score(known_states=known) == pytest.approx(each.sum(), rel=1e-12)
        assert fit.score(known_states=known, sequence_weights=weights) == pytest.approx(2 * each[0] + each[2] / 2)
        for path in (fit.predict(known_states=known), fit.hmm.predict(x, known_states=known, **given)):
            assert path[[0, 3, 5, 7, 8]].tolist() == [0, 1, 0, 1, 1]
        assert np.allclose(fit.predict_proba(known_states=known)[[0, 3, 7]], [[1, 0], [0, 1], [0, 1]])
        with pytest.raises(InputError, match=r"known_states\[0\]: must have 6 entries, one per observation, got 1"):
            fit.predict(known_states=[[0], [0], [0]])
        with pytest.raises(InputError, match="sequence_weights: must be 3 finite numbers"):
            fit.score(sequence_weights=[1.0])
        with pytest.raises(InputError, match="sequence_weights: cannot be combined with per_sequence"):
            fit.score(sequence_weights=weights, per_sequence=True)
    table = {"id": ["b", "a", "b", "a"], "s": ["u", "v", "u", "u"]}
    hmm = hs.HMM([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]], symbols=["u", "v"], states=["x", "y"])
    found = hmm.predict(table, column="s", group="id", names=True, known_states=["x", "y", "y", "x"])
    assert found.tolist() == ["x", "y", "y", "x"]  # rows of b, then rows of a
