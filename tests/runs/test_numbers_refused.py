"""What readers and fits of numbers refuse, each in a line that says what is wrong and where it begins to be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference.gibbs import Chains, DirichletPrior
from hmmscope.runs import fitting
from hmmscope.runs.config import config_from_data
from hmmscope.runs.vector_sequences import choose_vectors, refuse
from hmmscope.sequences.vector_data import read_vectors

TWO, THREE = np.arange(6.0).reshape(3, 2), np.arange(12.0).reshape(2, 3, 2)


@pytest.mark.parametrize(
    ("source", "given", "error"),
    [
        (TWO, {}, r"source: an array \(3, 2\) can be read in three ways: pass lengths=\[3\] to read 3 obs"),
        (TWO, {"axis": 2}, r"axis: must be 0"),
        (THREE, {"axis": 1}, r"got \(2, 3, 2\) with axis=1"),
        (TWO, {"lengths": [1, 1]}, r"lengths: must sum to the 3 rows, got 2"),
        (TWO, {"lengths": [[3]]}, r"lengths: must be whole numbers of at least 1, one per sequence, got \[\[3\]\]"),
        (TWO, {"lengths": [1.5, 1.5]}, r"lengths: must be whole numbers of at least 1"),
        (TWO, {"lengths": [3, 0]}, r"lengths: must be whole numbers of at least 1"),
        (THREE, {"lengths": [3]}, r"lengths: must be 2 whole numbers in \[1, 3\]"),
        (THREE, {"lengths": [3, 4]}, r"lengths: must be 2 whole numbers in \[1, 3\]"),
        ([1.0, float("inf")], {}, r"source\[1\]: is not finite; mark a missing entry with NaN"),
        (["a"], {}, r"source: must be numbers, got"),
        ({"a": [1.0], "b": [2.0], "lengths": [1]}, {}, "source: contains the arrays a, b; choose one with column"),
        ([np.zeros((2, 1)), np.zeros((2, 2))], {}, r"source: every sequence must have observations, all with"),
        ([np.zeros(2), np.zeros(0)], {}, r"source: every sequence must have observations"),
    ],
)
def test_numbers_that_cannot_be_sequences(source: Any, given: dict[str, Any], error: str) -> None:
    with pytest.raises(InputError, match=error):
        read_vectors(source, **given)


def test_numbers_at_the_edge_of_what_is_refused() -> None:
    assert read_vectors(TWO, lengths=[2, 1]).lengths.tolist() == [2, 1]
    assert read_vectors(THREE, lengths=[3, 1]).rows.shape == (4, 2)
    assert read_vectors(TWO, axis=1).lengths.tolist() == [2, 2, 2]
    assert read_vectors(TWO, axis=0).rows[:3, 0].tolist() == [0, 2, 4]


def _arrays(path: Path, **arrays: Any) -> Path:
    np.savez(path / "x.npz", **arrays)
    return path / "x.npz"


def _text(path: Path, text: str, name: str = "x.csv") -> Path:
    (path / name).write_text(text)
    return path / name


@pytest.mark.parametrize(
    ("make", "given", "error"),
    [
        (
            lambda p: _arrays(p, a=np.zeros(2), b=np.zeros(2)),
            {},
            r"x.npz: contains the arrays a, b; choose one with column",
        ),
        (lambda p: _arrays(p, a=np.zeros(2), b=np.zeros(2)), {"column": "c"}, r"column: unknown 'c'"),
        (lambda p: _arrays(p, a=np.zeros(2)), {"group": "g"}, r"x.npz: group applies to tables"),
        (lambda p: _arrays(p, a=np.zeros(2)), {"missing": ("NA",)}, r"x.npz: missing applies to tables"),
        (lambda p: _text(p, "1\n", "x.md"), {}, "x.md: cannot read numbers from .md; use one of .csv, .tsv"),
        (lambda p: _text(p, '{"x": 1}\n{"y": 2}\n', "x.jsonl"), {}, "x.jsonl: row 2: has no field 'x'"),
        (lambda p: _text(p, "1,2\n3\n"), {"axis": 0}, r"x.csv: row 2: 1 cells, but the first row has 2"),
        (lambda p: _text(p, "a,b\n1\n"), {}, r"x.csv: row 2: has 1 cells, but the header has 2"),
    ],
)
def test_files_of_numbers_that_cannot_be_read(
    make: Callable[[Path], Path], given: dict[str, Any], error: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=error):
        read_vectors(make(tmp_path), **given)


def test_the_only_array_of_a_file_is_read_with_its_lengths(tmp_path: Path) -> None:
    found = read_vectors(_arrays(tmp_path, a=np.zeros((3, 2)), lengths=np.array([1, 2])))
    assert found.lengths.tolist() == [1, 2]


def test_fits_of_numbers_refuse_what_is_not_theirs() -> None:
    data, other = read_vectors(TWO, lengths=[3]), read_vectors(np.zeros(3))
    with pytest.raises(InputError, match="validation: must have 2 coordinates, got 1"):
        choose_vectors(data, other, [1], "gaussian", {"seed": 0}, {})
    with pytest.raises(InputError, match="fit: unknown 'nonsense'"):
        choose_vectors(data, None, [1], "gaussian", {"seed": 0}, {"nonsense": 1})
    refuse("gaussian", pseudo_count=None, stream=False, fixed=())
    with pytest.raises(InputError, match="stream: applies to symbols, but emission is 'gaussian'"):
        refuse("gaussian", stream=True)


def test_fits_of_a_stream_refuse_what_needs_all_sequences() -> None:
    with pytest.raises(InputError, match="source: a stream needs a path, SequenceData, or an iterable of parts"):
        hs.fit(5, 2, stream=True)
    with pytest.raises(InputError, match="source: holds no sequence"):
        hs.fit(iter([]), 2, stream=True)
    found = hs.fit(hs.SequenceData([[0, 1, 1], [1, 0]]), 1, stream=True)
    with pytest.raises(InputError, match="check: needs the fitted data, but a stream stores none"):
        found.check(5)
    restricted = fitting.FitData(hs.SequenceData([[0, 1]]), restricted=True)
    with pytest.raises(InputError, match="posterior: supports neither sequence_weights"):
        restricted.posterior(found.hmm, DirichletPrior(), Chains(), {})
    with pytest.raises(InputError, match="posterior: unknown 'mean'"):
        fitting.FitData(hs.SequenceData([[0, 1]]), restricted=False).posterior(
            found.hmm, DirichletPrior(), Chains(), {"mean": 1}
        )


def test_a_field_of_training_is_told_where_it_belongs() -> None:
    with pytest.raises(InputError, match=r"num_steps: is a field of training; write --training\.num_steps"):
        config_from_data({"process": "mess3", "num_steps": 5})


def test_a_run_refuses_a_model_that_is_not_its_own(tmp_path: Path) -> None:
    run = hs.train(
        "mess3", tmp_path / "run", model="rnn", length=4, num_steps=1, options=hs.TrainOptions(num_samples=2)
    )
    with pytest.raises(InputError, match="contains the model, rnn"):
        hs.load_run(tmp_path / "run", model=torch.nn.Linear(1, 1))
    with pytest.raises(
        InputError, match=r"has no intermediate checkpoints; train again with --training\.num_log_checkpoints 20"
    ):
        run.checkpoint_steps()
