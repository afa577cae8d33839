"""Files of numbers: one reading rule for `fit` and for questions; what can be read in several ways is refused."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import hmmscope as hs
from cli_cases import assert_one_line, call  # noqa: F401 - a fixture
from hmmscope.errors import InputError
from hmmscope.lab.verbs.train import run_config
from hmmscope.sequences.vector_data import read_vectors

TABLE = "day,temp,rain\n1,3.5,0\n1,4,NA\n2,-1e1,\n2,2,7.25\n2,0,1\n"


def written(folder: Path, text: str, name: str = "numbers.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_columns_are_coordinates_and_runs_of_a_group_are_sequences(tmp_path: Path) -> None:
    found = read_vectors(written(tmp_path, TABLE), group="day")
    nan = torch.nan
    rows = torch.tensor([[3.5, 0.0], [4.0, nan], [-10.0, nan], [2.0, 7.25], [0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(found.rows, rows, equal_nan=True, rtol=0, atol=0)
    assert found.lengths.tolist() == [2, 3]
    assert found.how == "numbers.csv, columns temp, rain, each day a sequence"
    one = read_vectors(written(tmp_path, TABLE.replace(",", "\t"), "n.tsv"), column="rain,temp")
    torch.testing.assert_close(one.rows, rows[:, [1, 0]], equal_nan=True, rtol=0, atol=0)
    assert one.lengths.tolist() == [5]
    apart = read_vectors(written(tmp_path, "a,b\n1,2\n2,3\n1,4\n", "apart.csv"), group="a")
    assert (apart.lengths.tolist(), apart.rows[:, 0].tolist(), apart.names) == ([2, 1], [2, 4, 3], ("1", "2"))
    plain = written(tmp_path, "1.5,2\n3,4\n5,6\n")
    assert read_vectors(plain, axis=0).lengths.tolist() == [3, 3]
    assert read_vectors(plain, axis=1).rows[:, 0].tolist() == [1.5, 2, 3, 4, 5, 6]
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3, 4)), lengths=np.array([3, 1]))
    assert read_vectors(tmp_path / "x.npz").lengths.tolist() == [3, 1]
    text = '{"x": 1.5}\n\n{"x": NaN}'
    for name, data in (("x.jsonl.gz", gzip.compress(text.encode())), ("x.ndjson", text.encode("utf-16"))):
        (tmp_path / name).write_bytes(data)
        assert read_vectors(tmp_path / name).rows[:, 0].nan_to_num(-1).tolist() == [1.5, -1]
    assert read_vectors(written(tmp_path, "[[1.5, 2], [3]]", "x.json")).lengths.tolist() == [2, 1]


@pytest.mark.parametrize(
    "text, options, said",
    [
        ("1.5,2\n3,4\n", {}, "three ways: add a header of column names to read 2 observations of 2"),
        ("1.5\n2\n", {"column": "x"}, "has no header with column names"),
        ("a,b\n1,x\n", {}, "numbers.csv: row 2, column b: must be a number, got 'x'; name markers of missing"),
        ("a,b\n1,inf\n", {}, "column b: must be a number, got 'inf'"),
        ("a,b\n1\n", {}, "row 2: has 1 cells, but the header has 2"),
        ("a,b\n1,2\n", {"column": "c"}, "column: unknown 'c'"),
        ("a,a\n1,2\n", {}, "2 columns have the name 'a'"),
        ("a,b\n", {}, "numbers.csv: contains no numbers"),
        ("a,b\n1,2\n", {"axis": 0}, "axis applies to tables without column names"),
        ("", {}, "contains no numbers"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, options: dict, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read_vectors(written(tmp_path, text), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_a_table_is_fitted_and_asked_about_on_the_command_line(tmp_path: Path, call) -> None:  # type: ignore[no-untyped-def]
    x = np.random.default_rng(0).normal(size=60) + np.repeat([0.0, 8.0, 0.0], 20)
    table = written(tmp_path, "who,level\n" + "".join(f"a,{value:.3f}\n" for value in x) + "b,NA\nb,8\n")
    out = tmp_path / "fit.json"
    fit = "fit", table, "--emission", "gaussian", "--states", "2", "--group", "who", "--out", out, "--quiet"
    said = call(*fit, "--posterior", 20, "--forecast", 2)
    assert said.code == 0
    comes = re.findall(
        r"\n  \+(\d)  (.*)  (\S+) \[(\S+), (\S+)\]", said.out.split("the next value with its 95 % interval:")[1]
    )
    assert [(step, name) for step, name, *_ in comes] == [("1", "coordinate 0"), ("2", "coordinate 0")]
    assert all(float(low) < float(mean) < float(high) for _, _, mean, low, high in comes)
    assert float(comes[0][2]) > 4  # the last number was 8
    assert "1 coordinate, 61 observations (fitted to numbers.csv, column level, each who a sequence)" in said.out
    process = hs.load_process(out)
    assert sorted(process.means[:, 0].round().tolist()) == [0, 8]
    assert "column level" in process.source
    assert run_config(str(out), {}).target == run_config("random-gaussian", {}).target == "density"
    assert run_config(str(out), {"target": "observation"}).target == run_config("umbrella", {}).target == "observation"
    said = call("infer", out, table, "--group", "who")
    assert said.code == 0
    assert "in 2 sequences of 2 to 60" in said.out + said.error
    for bad, part in (
        (("infer", out, table, "--column", "level,who"), "must be a number, got 'a'"),
        (("infer", out, table, "--unit", "words"), "unit: applies to symbols"),
        (("fit", table, "--emission", "gausian", "--states", "2", "--out", "n.json"), "did you mean 'gaussian'"),
        (
            ("fit", table, "--emission", "poisson", "--symbols", "3", "--states", "2", "--out", "n.json"),
            "--symbols: applies to symbols",
        ),
    ):
        refused = call(*bad)
        assert_one_line(refused, 2)
        assert part in refused.error
    assert not (tmp_path / "n.json").exists()
