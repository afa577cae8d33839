"""Files of numbers: what is fitted says how it was read, rows that hold nothing are gaps, and bad options are one line."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.emissions.log_space_chain import smoothed
from hmmscope.errors import InputError
from hmmscope.lab.cli import main
from hmmscope.sequences.vector_data import read_vectors


def written(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def fitting(source: str, model: str, *options: str) -> list[str]:
    """The command that fits one Gaussian to a file."""
    return ["fit", source, *options, "--emission", "gaussian", "--states", "1", "--out", model]


def two_columns(folder: Path) -> Path:
    rows = np.random.default_rng(0).normal(size=(60, 2)) * [1, 9] + [20, 3]
    text = "".join(f"{a:.3f},{b:.3f},{place // 20},x\n" for place, (a, b) in enumerate(rows))
    return written(folder, f"temp,rain,day,note\n{text}")


@pytest.mark.parametrize(
    "chosen", [["--column", "rain,temp"], ["--column", "temp"], ["--column", "rain", "--group", "day"]]
)
def test_the_fitted_file_reads_others_as_it_was_read(
    chosen: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns in their order, groups and gaps; before, coordinates were taken as they stood in the table."""
    table, model = str(two_columns(tmp_path)), str(tmp_path / "model.json")
    fitted = ["fit", table, *chosen, "--emission", "gaussian", "--states", "1", "--out", model]
    assert main(fitted) == 0
    total = capsys.readouterr().out.partition("log-likelihood ")[2].partition(" ")[0]
    assert main(["infer", model, table]) == 0
    said = capsys.readouterr().out
    assert f"log-density {total} nats" in said
    assert ("3 sequences" in said) == ("--group" in chosen)
    loaded = hs.load_process(model)
    assert loaded.read_options.column == chosen[1]
    assert loaded.replaced().read_options is None  # type: ignore[attr-defined]


def test_tables_without_those_names_are_read_by_themselves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, model = str(two_columns(tmp_path)), str(tmp_path / "model.json")
    assert main(fitting(table, model, "--column", "temp", "--group", "day")) == 0
    for text in ("19.5\n20.5\n", "level\n19.5\n20.5\n"):
        assert main(["infer", model, str(written(tmp_path, text, "other.csv"))]) == 0
        assert "1 coordinate in 1 sequence of 2" in capsys.readouterr().out


def test_gaps_with_a_name_of_their_own_are_gaps_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, model = str(written(tmp_path, "x\n1.5\n-99.0\n2.5\n3.5\n")), str(tmp_path / "model.json")
    assert main(fitting(table, model, "--missing=-99")) == 0
    assert "3 observations" in capsys.readouterr().out
    assert main(["infer", model, table]) == 0
    assert "3 observations and 1 missing, log-density -3.648618 nats" in capsys.readouterr().out


def test_arrays_of_an_npz_are_asked_about_as_they_were_fitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, model = np.random.default_rng(0).normal(size=(40, 2)), str(tmp_path / "model.json")
    for name in ("x", "observations"):
        path = str(tmp_path / f"{name}.npz")
        np.savez(path, **{name: rows, "lengths": np.array([25, 15])})
        assert main(fitting(path, model)) == 0
        capsys.readouterr()
        assert main(["infer", model, path]) == 0
        assert "2 sequences, 40 observations" in capsys.readouterr().out
        Path(model).unlink()


def test_an_axis_is_kept_for_arrays_that_have_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, model = np.random.default_rng(0).normal(size=(4, 30)), str(tmp_path / "model.json")
    for name, array in (("two.npy", rows), ("one.npy", rows[0]), ("three.npy", rows[:, :, None])):
        np.save(tmp_path / name, array)
    assert main(fitting(str(tmp_path / "two.npy"), model, "--axis", "1")) == 0
    capsys.readouterr()
    for name, said in (
        ("two.npy", "4 sequences, 120 obs"),
        ("one.npy", "1 sequence of"),
        ("three.npy", "4 sequences, 120 obs"),
    ):
        assert main(["infer", model, str(tmp_path / name)]) == 0
        assert said in capsys.readouterr().out


def test_time_does_not_close_up_over_rows_that_hold_nothing(tmp_path: Path) -> None:
    found = read_vectors(written(tmp_path, "t,r\n1.5,2\n,\n3.5,4\nNA,NA\n"))
    assert found.rows.isnan().all(1).tolist() == [False, True, False, True]
    one = read_vectors(written(tmp_path, "t\n0.1\n\n9.1\n\n"))
    assert one.rows[:, 0].isnan().tolist() == [False, True, False]
    with pytest.raises(InputError, match=r"row 5, column r: must be a number, got 'x'"):
        read_vectors(written(tmp_path, "t,r\n\n1,2\n\n3,x\n"))


@pytest.mark.parametrize("missing", ["-1", -1, -1.0, ["-1"], ["-1.0"]])
def test_names_of_gaps_are_names_and_numbers_and_not_letters(missing: Any, tmp_path: Path) -> None:
    """`missing="-1"` was the names "-" and "1"."""
    rows = read_vectors(written(tmp_path, "x\n1.5\n1\n-1\n-1.0\n"), missing=missing).rows[:, 0]
    assert rows.isnan().tolist() == [False, False, True, True]


def test_named_and_other_gaps(tmp_path: Path) -> None:
    rows = read_vectors(written(tmp_path, "x\n1\nNA\nnone\n"), missing=["NA", "none"]).rows[:, 0]
    assert rows.isnan().tolist() == [False, True, True]
    assert read_vectors(written(tmp_path, "x\n1\nNaN\n"), missing=float("nan")).rows[1].isnan().all()


def test_a_cell_may_be_long(tmp_path: Path) -> None:
    found = read_vectors(written(tmp_path, f"x,note\n1,{'a' * 200_000}\n2,b\n"), column="x")
    assert found.rows[:, 0].tolist() == [1, 2]


@pytest.mark.parametrize(
    "source",
    [np.array(["2020-01-01", "NaT"], "datetime64[s]"), np.array([1, 2], "timedelta64[s]"), np.array([1j, 2.0])],
)
def test_dates_and_complex_numbers_are_no_numbers(source: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"^source: must be numbers"):
        hs.fit(source, 1, emission="gaussian")


def test_tensors_of_any_kind_are_numbers() -> None:
    rows = torch.tensor(np.random.default_rng(0).normal(size=40))
    for source in (rows.bfloat16(), rows.clone().requires_grad_()):
        assert hs.fit(source, 1).hmm.num_states == 1  # type: ignore[union-attr]


SYMBOLS = np.random.default_rng(0).integers(0, 3, (60, 2))
ROWS = np.random.default_rng(0).normal(size=60)


@pytest.mark.parametrize(
    ("ask", "line"),
    [
        (
            lambda: hs.fit(SYMBOLS, 2, emission="channels", lengths=[60], sizes=[2, 3]),
            "sizes: must be at least 3 for channel 0",
        ),
        (
            lambda: hs.fit(SYMBOLS, 2, emission="channels", lengths=[60], sizes=3),
            "sizes: must be a list of 2 whole numbers",
        ),
        (
            lambda: hs.fit(ROWS, 2, emission="gaussian-mixture", num_gaussians=0),
            "num_gaussians: must be at least 1 and whole",
        ),
        (
            lambda: hs.fit(ROWS, 2, emission="gaussian-mixture", num_gaussians=1.5),
            "num_gaussians: must be at least 1 and whole",
        ),
        (lambda: hs.fit(ROWS, 2, options=hs.FitOptions(num_restarts=2.5)), "num_restarts: must be an integer, got 2.5"),
        (
            lambda: hs.fit(SYMBOLS[:, 0], 2, options=hs.FitOptions(num_restarts=2.5)),
            "num_restarts: must be an integer, got 2.5",
        ),
        (
            lambda: hs.fit(ROWS, 2, options=hs.FitOptions(fixed="emission")),
            r"fixed: must be empty if start is None, got \['emission'\]",
        ),
        (lambda: hs.fit(SYMBOLS[:, 0], 2).posterior(emission=[1, 2, 3]), r"emission: must be in \[0.01, 1000\]"),
    ],
)
def test_bad_options_are_one_line(ask: Any, line: str, unchecked: None) -> None:
    with pytest.raises(InputError, match=f"^{line}"):
        ask()


def test_observations_are_counted_where_some_entry_was_made() -> None:
    """The mean by observation of the fit is that of `ask`."""
    rows = np.where(np.arange(40) % 4 == 0, np.nan, np.random.default_rng(0).normal(size=40))
    assert hs.fit(rows, 1, emission="gaussian").num_observations == 30


def test_numbers_of_states_are_judged_by_rows_or_a_file(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(80, 2))
    table = written(tmp_path, "a,b\n" + "".join(f"{a},{b}\n" for a, b in rows))
    by_rows = hs.fit(rows, [1, 2], lengths=[80], validation=rows[:40], options=hs.FitOptions(num_restarts=1))
    by_file = hs.fit(table, [1, 2], emission="gaussian", validation=table, options=hs.FitOptions(num_restarts=1))
    assert by_rows.held_out.keys() == by_file.held_out.keys() == {1, 2}


@pytest.mark.parametrize("glitch", [1e3, 1e8, 1e12, 1e17, 1e60])
def test_laws_sum_to_one_whatever_an_outlier_says(glitch: float) -> None:
    """A left-right chain meets what none of its states gives: laws summed to 20, and EM counted so many visits."""
    move = torch.tensor([[0.9, 0.1, 0.0], [0.0, 0.9, 0.1], [0.0, 0.0, 1.0]], dtype=torch.float64)
    rows = torch.randn(60, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[20:40] += 5
    rows[40:] += 10
    rows[25] = glitch
    process = hs.GaussianHMM([1, 0, 0], move, [[0.0], [5.0], [10.0]], torch.ones(3, 1))
    for laws in (hs.smooth_beliefs(process, rows[None]), hs.filter_beliefs(process, rows[None]).beliefs):
        assert (laws.sum(-1) - 1).abs().max() < 1e-12
    visits, pairs, total = smoothed(process.chain, process.log_likelihoods(rows))
    assert (visits.sum(-1) - 1).abs().max() < 1e-12
    assert float(pairs.sum()) == pytest.approx(59, abs=1e-9)
    assert total == pytest.approx(float(hs.log_likelihood(process, rows[None])), rel=1e-12)


def test_an_outlier_leaves_the_law_of_all_paths() -> None:
    """Against the sum over all paths, in as many digits as logarithms of 1e6 have."""
    move = torch.tensor([[0.9, 0.1], [0.0, 1.0]], dtype=torch.float64)
    rows = torch.tensor([[0.1], [0.4], [1e3], [4.0], [5.5]], dtype=torch.float64)
    process = hs.GaussianHMM([1, 0], move, [[0.0], [5.0]], torch.ones(2, 1))
    logs = process.log_likelihoods(rows)
    weights, paths = [], []
    for change in range(1, 6):  # the step at which the second state begins
        path = [0] * change + [1] * (5 - change)
        moves = sum(float(move[a, b].log()) for a, b in pairwise(path))
        weights.append(moves + float(logs[range(5), path].sum()))
        paths.append(path)
    law = torch.softmax(torch.tensor(weights, dtype=torch.float64), 0)
    wanted = (law[:, None] * torch.tensor(paths)).sum(0)
    assert (hs.smooth_beliefs(process, rows[None])[0, :, 1] - wanted).abs().max() < 1e-9
