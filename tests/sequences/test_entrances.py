"""One entrance: the same data in any container give the same sequences and the same exact answers."""

import json
import re
import warnings
from collections import UserList, deque
from functools import partial
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
from hmmscope.lab.cli import main
from hmmscope.runs.stream_parts import parts_of

UMBRELLA, CASINO = hs.load_process("umbrella"), hs.load_process("dishonest-casino")
NUMBERS = hs.GaussianHMM([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], [[0.0], [3.0]], torch.ones(2, 1))


def containers(values: np.ndarray) -> dict[str, Any]:
    """The same column in arrays, lists and tables."""
    fixed = values.copy()
    fixed.flags.writeable = False
    return {
        "list": values.tolist(),
        "read-only": fixed,
        "big-endian": values.astype(values.dtype.newbyteorder(">")),
        "reversed": values[::-1].copy()[::-1],
        "strided": np.repeat(values, 2)[::2],
        "column": values[:, None],
        "masked": np.ma.array(values),
        "tensor": torch.tensor(values),
        "mapping": {"x": values},
        "records": np.array([(value,) for value in values], dtype=[("x", values.dtype)]),
    }


@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(0, 1), min_size=2, max_size=8).filter(lambda one: 1 in one))
def test_symbols_in_any_container_are_the_same(rows: list[int]) -> None:
    values = np.array(rows)
    expected = hs.log_likelihood(UMBRELLA, values)
    kinds = containers(values) | {
        "floats": values.astype(float),
        "booleans": values.astype(bool),
        "bytes": values.astype("u1"),
    }
    for name, source in kinds.items():
        assert hs.SequenceData(source, symbols_from=UMBRELLA)[0].tolist() == rows, name
        assert hs.log_likelihood(UMBRELLA, source).equal(expected), name


@settings(max_examples=5, deadline=None)
@given(st.lists(st.floats(-4, 4, width=32), min_size=2, max_size=8), st.booleans())
def test_numbers_in_any_container_are_the_same(rows: list[float], gap: bool) -> None:
    values = np.array(rows + [np.nan] * gap + [0.5])
    expected, vectors = hs.log_likelihood(NUMBERS, values), hs.read_vectors(values).rows
    nothing = [None if value != value else value for value in values.tolist()]
    for name, source in (containers(values) | {"None": nothing, "objects": np.array(nothing, dtype=object)}).items():
        torch.testing.assert_close(hs.read_vectors(source).rows, vectors, rtol=0, atol=0, equal_nan=True, msg=name)
        assert hs.log_likelihood(NUMBERS, source).equal(expected), name


def test_sequences_without_observations_are_refused_in_one_line() -> None:
    for process, values in ((NUMBERS, np.array([0.5, 1.5, 4.0])), (UMBRELLA, np.array([0, 1, 1]))):
        for verb in (process.score, process.predict, process.predict_proba, process.forecast):
            for x, more in (([values, []], {}), (values, {"lengths": [0, 3]}), ([], {}), (values[:0], {})):
                with pytest.raises(InputError, match=r"is empty; leave it out$|: holds no sequence$"):
                    verb(x, **more)
    empty = hs.filter_beliefs(NUMBERS, torch.zeros(2, 0, 1))
    assert (empty.log_likelihood.tolist(), empty.first_observation.tolist()) == ([0, 0], [1.5])
    for gaps in (np.full(9, np.nan), np.full((9, 2), np.nan), [None] * 9, torch.full((9,), torch.nan), [[np.nan] * 2]):
        with pytest.raises(InputError, match=r"^sequences: .*every observation is missing"):
            hs.fit(gaps, 1)


def test_files_on_the_command_line_and_streams_are_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every file of one column, read by the command line, by estimators' verbs and in parts, against the array."""
    rng, parts = np.random.default_rng(3), []
    symbols, numbers = rng.integers(0, 2, 9), np.append(rng.normal(size=7), [np.nan, 1.5])
    for name, process, values in (
        ("s", hs.HMM(UMBRELLA.initial, UMBRELLA.transition, UMBRELLA.emission), symbols),
        ("n", NUMBERS, numbers),
    ):
        cells = ["" if one != one else str(one) for one in values.tolist()]
        texts = {".csv": ["x", *cells], ".tsv": ["x\ty", *(f"{cell}\t1" for cell in cells)]}
        if name == "s":  # as other programs write integers and booleans
            texts |= {"-real.csv": ["x", *(f"{cell}.0" for cell in cells)]}
            texts |= {"-bool.csv": ["x", *(str(bool(value)) for value in symbols)]}
        for ending, lines in texts.items():
            (tmp_path / f"{name}{ending}").write_text("\n".join(lines) + "\n")
        np.savez(tmp_path / f"{name}.npz", x=values)
        process.save(tmp_path / f"{name}.json")
        expected = float(hs.log_likelihood(process, values))
        for ending in (*texts, ".npz"):
            path = tmp_path / f"{name}{ending}"
            assert main(["infer", str(tmp_path / f"{name}.json"), str(path), "--column", "x", "-q"]) == 0
            said = re.search(r"log-(?:likelihood|density) (-?[\d.]+)", capsys.readouterr().out)
            assert said is not None
            assert float(said[1]) == pytest.approx(expected, abs=1e-5), path
            assert process.score(path, column="x") == pytest.approx(expected, abs=1e-9), path
            fit = hs.fit(path, 1, emission=None if name == "s" else "gaussian", column="x")
            assert fit.log_likelihood == pytest.approx(hs.fit(values, 1).log_likelihood, abs=1e-9), path
    (tmp_path / "s.txt").write_text(" ".join(map(str, symbols)) + "\n")
    hs.SequenceData(symbols).save(tmp_path / "s.safetensors")
    parts = [hs.SequenceStream(tmp_path / "s.txt", unit="numbers"), hs.SequenceStream(tmp_path / "s.safetensors")]
    parts += [parts_of([source], 0, {})[0] for source in containers(symbols).values()]
    for stream in parts:
        assert [one.tolist() for part in stream for one in part] == [symbols.tolist()]


def test_fractional_numbers_choose_gaussians_in_every_container(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=12).round(3)
    rows, expected = values.tolist(), hs.fit(values, 1).log_likelihood
    np.save(tmp_path / "a.npy", values)
    np.savez(tmp_path / "a.npz", observations=values, other=values > 0)
    (tmp_path / "a.json").write_text(json.dumps(rows))
    for name, lines in (("rows", rows), ("fields", [{"x": one} for one in rows]), ("lists", [{"observations": rows}])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    for source in (deque(rows), UserList(rows), *sorted(tmp_path.iterdir())):
        assert hs.fit(source, 1).log_likelihood == pytest.approx(expected, abs=1e-9), source
    np.savez(tmp_path / "a.npz", a=values, b=values > 0)
    for name, kind in (("a", hs.GaussianHMM), ("b", hs.HMM)):
        assert isinstance(hs.fit(tmp_path / "a.npz", 1, column=name).hmm, kind)
    assert isinstance(hs.fit(deque([0, 1, 1]), 1).hmm, hs.HMM)


def test_text_with_a_decimal_number_on_each_line_is_numbers(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.txt", [0.5, -1.25, 2.0, 1e-3]
    path.write_text("\n".join(map(str, rows)))
    fit = hs.fit(path, 1)
    assert fit.score(path) == pytest.approx(hs.fit(rows, 1).log_likelihood, abs=1e-9)
    assert "." in hs.fit(path, 1, unit="characters").hmm.symbols
    for text in ("0.5\n1.5\n", "1e3\n2e3\n", "-1\n\n+2\n", "0.5\nNaN\n2.5\n"):
        path.write_text(text)
        with pytest.raises(InputError, match=r"number, not a symbol; .* emission='gaussian' .* unit='characters'"):
            hs.SequenceData(path)
        assert hs.read_vectors(path).num_observations == 2
    path.write_text("+-\n.e+\n")
    assert hs.fit(path, 1).hmm.num_symbols == 4


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_numbered_columns_single_tensors_and_nested_tensors() -> None:
    values, signs = np.array([0.5, 1.5, 4.0, -1.0]), np.array([0, 1, 1, 0])
    for name in (0, np.int64(0)):
        fit = hs.fit({0: values, 1: signs}, 1, column=name)
        assert fit.log_likelihood == fit.score({0: values}) == hs.fit(values, 1).log_likelihood
    assert len(hs.read_vectors({0: values, 1: signs}, column=0, group=1)) == 2
    for process, column in ((NUMBERS, values), (UMBRELLA, signs)):
        expected = hs.log_likelihood(process, column)
        for one in ([torch.tensor(value) for value in column], [np.array(value) for value in column]):
            assert hs.log_likelihood(process, one).equal(expected)
            assert process.score(one) == float(expected)
        for layout in (torch.strided, torch.jagged):
            nested = torch.nested.nested_tensor([torch.tensor(column), torch.tensor(column[:2])], layout=layout)
            for verb in (process.score, hs.read_vectors, hs.SequenceData, partial(hs.fit, num_states=1)):
                with pytest.raises(InputError, match="must not be a nested tensor; pass a list of tensors"):
                    verb(nested)


def test_columns_of_known_names_have_one_symbol_in_each_row(tmp_path: Path) -> None:
    names, rows = UMBRELLA.symbols, [0, 1, 1, 0]
    column = [names[row] for row in rows]
    frames = [__import__(one).DataFrame({"w": column}) for one in ("pandas", "polars") if find_spec(one)]
    for name, lines in (("a.csv", ["w", *column]), ("a.txt", column), ("b.csv", [",".join(column)])):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    expected = float(hs.log_likelihood(UMBRELLA, rows))
    for source in (
        *(column, np.array(column), {"w": column}, np.array([(one,) for one in column], [("w", "U20")])),
        *(frames + [[frame] for frame in frames] + sorted(tmp_path.iterdir())),
    ):
        assert UMBRELLA.score(source) == pytest.approx(expected, abs=1e-12)
        assert float(hs.log_likelihood(UMBRELLA, source)) == pytest.approx(expected, abs=1e-12)
        assert hs.SequenceData(source, symbols=names)[0].tolist() == rows
    for source in (column, {"w": column}, *frames):
        parts = hs.log_likelihood(UMBRELLA, source, lengths=[3, 1]).tolist()
        assert UMBRELLA.score(source, lengths=[3, 1], per_sequence=True).tolist() == pytest.approx(parts, abs=1e-12)
    assert UMBRELLA.predict({"i": rows, "w": column}, column="w").tolist() == UMBRELLA.predict(rows).tolist()
    gaps = [column[0], None, *column[2:]]
    for source in (gaps, {"w": gaps}, [gaps]):
        assert UMBRELLA.score(source, missing="none") == UMBRELLA.score([0, hs.MISSING, 1, 0])


RULE = r"whole numbers are indices of symbols \(0 is '1'\); for names pass text, such as '1' or x.astype\(str\)"


def test_whole_numbers_are_warned_of_where_names_are_other_numbers(tmp_path: Path, capsys: Any) -> None:
    rows, file, model, drawn = np.array([1, 3, 5]), *(str(tmp_path / one) for one in ("a.json", "h.json", "s.npz"))
    Path(file).write_text("[1, 3, 5]")
    CASINO.save(model)
    verbs = [partial(hs.log_likelihood, CASINO), CASINO.score, CASINO.predict, CASINO.state_table]
    verbs += [partial(hs.SequenceData, symbols_from=CASINO), partial(hs.fit, num_states=1, symbols=CASINO.symbols)]
    for verb in verbs:
        for source in (Path(file), rows, *containers(rows).values(), *[hs.SequenceData(rows)] * (verb in verbs[:-1])):
            if not isinstance(source, torch.Tensor):
                with pytest.warns(UserWarning, match=f"^(observations|sequences|a.json): {RULE}") as caught:
                    verb(source)
                assert len(caught) == 1
        with pytest.raises(InputError, match=f"6 is not (a symbol )?in .0, 6.; {RULE}"):
            verb([1, 6])
    with pytest.warns(UserWarning, match=f"^source: {RULE}"):
        hs.fit([5, *rows], 2, options=hs.FitOptions(start=CASINO))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensors, sampled = torch.tensor(rows), CASINO.sample(5).observations
        for source in (sampled, tensors, [tensors], [["1", "3"], ["5"]], hs.SequenceData(tensors)):
            for verb in verbs[:-1]:
                verb(source)
        assert main(["sample", model, "--num-samples", "2", "--out", drawn, "-q"]) == 0
        assert main(["infer", model, drawn, "-q"]) == 0
        hs.log_likelihood(hs.HMM([1.0], [[1.0]], [[0.5, 0.5]], symbols=["0", "1"]), rows[:1])
    assert main(["infer", model, file, "-q"]) == 0
    assert re.search(f"^warning: a.json: {RULE}", capsys.readouterr().err, re.MULTILINE)


def test_whole_numbers_are_warned_of_in_inputs_and_known_states() -> None:
    x, u = np.tile([0, 1, 1], 20), np.tile([0, 1], 30)
    model = hs.fit(x, 1, inputs=[["1", "2"][one] for one in u]).hmm
    expected, one_hot = model.score(x, inputs=torch.tensor(u)), np.eye(2, dtype=int)[u]
    frames = [
        __import__(one).DataFrame({"1": one_hot[:, 0], "2": one_hot[:, 1]}) for one in ("pandas",) if find_spec(one)
    ]
    states = hs.HMM(CASINO.initial, CASINO.transition, CASINO.emission, states=["1", "2"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for inputs in (one_hot, torch.tensor(u)[None], *frames):
            assert model.score(x, inputs=inputs) == expected
        for known in (["2", None, "1"], torch.tensor([1, -1, 0]), [{"2"}, {"1", "2"}, {"1"}]):
            assert states.score(x[:3], known_states=known) == states.score(x[:3], known_states=[{"2"}, None, {"1"}])
    for inputs in (u, u[None], u.tolist()):
        for verb in (partial(model.score, x), partial(hs.log_likelihood, model, x[None])):
            with pytest.warns(UserWarning, match=f"^inputs: {RULE}"):
                verb(inputs=inputs)
    start = hs.FitOptions(start=states, known_states=x)
    for fit_or_score in (lambda: states.score(x, known_states=x), lambda: hs.fit(x, 2, symbols=6, options=start)):
        with pytest.warns(UserWarning, match=f"^known_states: {RULE.replace('symbols', 'states')}"):
            fit_or_score()


@pytest.mark.parametrize("count", [1, 3])
def test_sampled_rows_keep_their_sequences_and_hide_their_states(count: int) -> None:
    pair = hs.GaussianHMM([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], [[0.0, 1.0], [3.0, 2.0]], torch.ones(2, 2))
    for process, read in ((CASINO, hs.SequenceData), (NUMBERS, hs.read_vectors), (pair, hs.read_vectors)):
        sample: Any = process.sample(6, count, seed=1)
        rows, paths = sample.observations, process.sample_paths(np.arange(count), np.arange(6) == 0, 1)
        parts = [torch.tensor(part) for part in rows.per_sequence()]
        for source in (rows, sample, paths):
            assert read(source).lengths.tolist() == [6] * count
            found = hs.filter_beliefs(process, source).log_likelihood
            assert torch.allclose(found, hs.filter_beliefs(process, torch.stack(parts)).log_likelihood)
            assert process.score(source) == pytest.approx(float(found.sum()), abs=1e-12)
            assert process.predict(source).tolist() == process.predict(parts).tolist()
            assert hs.fit(source, 1).log_likelihood == hs.fit(parts, 1).log_likelihood


def test_frames_of_other_libraries_are_the_same() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    assert hs.fit(pandas.DataFrame({0: [0.5, 1.0], 1: [1, 2]}), 1, column=0).hmm.num_coordinates == 1
    values, hours = [0.5, None, 2.0], ["2026-01-01T00:00Z", "2026-01-01T01:00Z", "2026-01-01T03:00Z"]
    frames = [kind.DataFrame({"t": hours, "x": values}) for kind in (pandas, polars)]
    indexed = pandas.DataFrame({"x": values}, index=pandas.to_datetime(hours))
    for frame, time in ((frames[0], "t"), (frames[1], "t"), (indexed, "index")):
        found = hs.read_vectors(frame, time=time, every="1h")
        assert found.rows[:, 0].nan_to_num(-1).tolist() == [0.5, -1, -1, 2.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hs.read_vectors(frames[1].lazy(), time="t", every="1h").num_observations == 2
    numbered = frames[0].set_axis([0, 1], axis=1)
    assert hs.read_vectors(numbered, time=0, column=1, every="1h").num_observations == 2
    for time, said in ((2, r"unknown '2' \(known: 0, 1\)"), (numbered[0], "must be the name of a column")):
        with pytest.raises(InputError, match=f"^time: {said}"):
            hs.fit(numbered, 1, time=time, column=1)
    column = pandas.Series(pandas.Categorical(list("aba"), categories=list("cba")))
    assert hs.SequenceData(column).symbols == ("c", "b", "a")
    sizes = pandas.Series(pandas.Categorical([3, None, 1], categories=[3, 2, 1], ordered=True))
    for source in (sizes, sizes.to_frame("x")):
        data = hs.SequenceData(source, missing="nan")
        assert (data.symbols, data[0].tolist()) == (("3", "2", "1"), [0, hs.MISSING, 2])
    for source in (sizes[::2], sizes.cat.as_unordered()[::2]):
        assert CASINO.score(source) == float(hs.log_likelihood(CASINO, source)) == CASINO.score(["3", "1"])


def test_numbers_that_could_be_read_wrongly(tmp_path: Path) -> None:
    """Thousands separators, row numbers of pandas and R, padded rows, and columns in another order or renamed."""
    path = tmp_path / "x.csv"
    for text, rows in (
        ('a,b\n"1,234",2\n"2,345",3\n', None),
        ("a;b\n1.234;2,5\n2.000;3,5\n", None),
        ("a;b\n1,234;2\n2,000;3\n", [[1.234, 2.0], [2.0, 3.0]]),
        ('a,b\n"0,512",2\n"2,345",3\n', [[0.512, 2.0], [2.345, 3.0]]),
        (",a,b\n0,0.5,2\n1,1.5,3\n", [[0.5, 2.0], [1.5, 3.0]]),
        ('"","a","b"\n"1",0.5,2\n"2",1.5,3\n', [[0.5, 2.0], [1.5, 3.0]]),
    ):
        path.write_text(text)
        if rows is None:
            with pytest.raises(hs.HmmscopeError, match="may have a thousands separator or a decimal mark"):
                hs.read_vectors(path)
        else:
            assert hs.read_vectors(path).rows.tolist() == rows
            assert hs.fit(path, 1).hmm.num_coordinates == 2
    ragged = hs.read_vectors(np.array([[0.5, 1.5], [2.5, 9.0]]), axis=1, lengths=[2, 1])
    assert [one[:, 0].tolist() for one in ragged] == [[0.5, 1.5], [2.5]]
    two = {"a": np.array([0.5, 1.5, 4.0]), "b": np.array([3.0, 1.0, 2.5])}
    fit, turned = hs.fit(two, 1), {"b": two["b"], "a": two["a"], "c": two["a"]}
    assert fit.score(turned) == fit.score(hs.read_vectors(turned)) == fit.score(two)
    assert float(hs.log_likelihood(fit.hmm, hs.read_vectors(turned))) == fit.score(two)
    with pytest.raises(hs.HmmscopeError, match="has a but not b, which the model was fitted to; name the columns in"):
        fit.score({"a": two["a"], "d": two["b"]})


def test_unequal_lists_and_lists_of_tables_are_read_by_fits_and_models() -> None:
    numbers: Any = [[0.5, 1.5, 4.5, 5.0], [4.5, 0.5, 0.2]]
    pairs: Any = [[[0.5, 1.0], [2.0, 3.5], [0.0, 1.0]], [[1.0, 1.5], [2.0, 2.5]]]
    sources = [numbers, pairs]
    frames = [__import__(name).DataFrame for name in ("pandas", "polars") if find_spec(name)]
    sources += [[kind({"a": one}) for one in numbers] for kind in frames]
    for source in sources:
        fit = hs.fit(source, 2, emission="gaussian", options=hs.FitOptions(num_restarts=1))
        found = hs.filter_beliefs(fit.hmm, source).log_likelihood
        assert fit.score(source) == pytest.approx(float(found.sum()), abs=1e-9) == pytest.approx(fit.log_likelihood)
        assert fit.predict(source).lengths == tuple(map(len, source))


def test_columns_of_booleans_are_channels_unless_an_emission_of_numbers_is_chosen(tmp_path: Path) -> None:
    few = hs.FitOptions(num_restarts=1, max_iterations=3)
    flags, level = [True, False, None, True] * 9, [0.5, 1.5, 0.25, 2.0] * 9
    tables: list[Any] = [{"flag": flags, "level": level}, {"flag": np.array(flags, object), "level": level}]
    tables += [
        {"flag": np.ma.array([one is True for one in flags], mask=[one is None for one in flags]), "level": level}
    ]
    tables += [__import__(name).DataFrame(tables[0]) for name in ("pandas", "polars") if find_spec(name)]
    for name, write in (("a", str), ("b", json.dumps)):
        rows = (f"{'' if a is None else write(a)},{b}\n" for a, b in zip(flags, level, strict=True))
        (tmp_path / f"{name}.csv").write_text("flag,level\n" + "".join(rows))
        tables.append(tmp_path / f"{name}.csv")
    numbers = np.column_stack([[np.nan if one is None else one for one in flags], level])
    plain = hs.fit(numbers, 2, lengths=[36], options=few, emission="gaussian")
    for table in tables:
        fit, own = hs.fit(table, 2, options=few), hs.fit(table, 2, options=few, emission="gaussian")
        assert (fit.data.columns, fit.hmm.read_options.alphabets) == (("level", "flag"), {"flag": ("False", "True")})
        assert (own.data.columns, own.log_likelihood) == (("flag", "level"), plain.log_likelihood)
        assert "names" not in own.hmm.source
        for other in tables:
            assert fit.score(other) == pytest.approx(fit.log_likelihood, abs=1e-9)
            assert own.score(other) == pytest.approx(plain.log_likelihood, abs=1e-9)


def test_columns_of_names_are_channels_beside_numbers(tmp_path: Path) -> None:
    path, few = tmp_path / "mixed.csv", hs.FitOptions(num_restarts=1, max_iterations=3)
    table = {"sky": ["sun", None, "rain", "sun"] * 9, "temp": [0.5, 1.5, 0.25, None] * 9}
    cells = "".join(f"{a or ''},{b or ''}\n" for a, b in zip(*table.values(), strict=True))
    path.write_text("sky,temp\n" + cells)
    fits = [hs.fit(source, 2, options=few) for source in (table, path, {"sky": table["sky"], "temp": table["temp"]})]
    for fit in fits:
        assert (fit.data.columns, fit.hmm.read_options.alphabets) == (("temp", "sky"), {"sky": ("rain", "sun")})
        assert fits[0].log_likelihood == pytest.approx(fit.score(path), abs=1e-9)
    fits[0].hmm.save(tmp_path / "hmm.json")
    hmm = hs.load_process(tmp_path / "hmm.json")
    assert "sky: sun" in str(hmm)
    assert hmm.predict({"temp": [0.5, 1.5], "sky": [None, "sun"]}).shape == (2,)
    chance = float(hmm.initial @ hmm.channels[0][:, 1])
    assert hmm.score({"temp": [None], "sky": ["sun"]}) == pytest.approx(np.log(chance))
    with pytest.raises(hs.HmmscopeError, match="row 1, column sky: must be one of the names rain, sun, got 'snow'"):
        hmm.predict({"temp": [0.5], "sky": ["snow"]})
    with pytest.raises(hs.HmmscopeError, match=r"emission: must be gaussian for columns of names \(sky\), or leave"):
        hs.fit(path, 1, emission="poisson")
    for column in (["3 C"] + ["4"] * 35, [f"note {row}" for row in range(36)]):
        with pytest.raises(hs.HmmscopeError, match="column sky: must be a number"):
            hs.fit(table | {"sky": column}, 1, emission="gaussian")
