"""Sequences that users bring: every source, one reading or a refusal that says both, bounded reads, exact splits."""

import json
import math
import os
import random
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch
from torch.utils.data import DataLoader

import hmmscope as hs
from hmmscope.errors import DamagedError, HmmscopeError, InputError, RefusedError
from hmmscope.processes.recorded_sequences import RecordedSequences
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.read_options import ReadOptions


def refused(call: Callable[[], object], *parts: str, kind: type[Exception] = InputError) -> str:
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message
    return message


def numbers(data: SequenceData) -> list[list[int]]:
    return [sequence.tolist() for sequence in data]


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# --------------------------------------------------------------------------------------------------------------------
# Sources

ROWS = [[0, 2, 1], [1], [2, 2]]
GROUPED = {"column": "s", "group": "u"}


@pytest.mark.parametrize(
    "source, options, rows, symbols",
    [
        (ROWS, {}, ROWS, None),
        ([tuple(row) for row in ROWS], {}, ROWS, None),
        ([torch.tensor(row) for row in ROWS], {}, ROWS, None),
        ([0, 1, 1], {}, [[0, 1, 1]], None),
        (np.array([[0, 1], [1, 0]], np.int16), {}, [[0, 1], [1, 0]], None),
        (torch.tensor([[0, 1], [1, 0]]), {}, [[0, 1], [1, 0]], None),
        (torch.tensor([0, 3, 1]), {}, [[0, 3, 1]], None),
        (np.array([[0, 1], [1, 9]]), {"lengths": [2, 1]}, [[0, 1], [1]], None),
        ([["b", "a"], ["b"]], {}, [[1, 0], [1]], ("a", "b")),
        ([["b", "a"], ["b"]], {"symbols": ["b", "a", "c"]}, [[0, 1], [0]], ("b", "a", "c")),
        (ROWS, {"symbols": ["x", "y", "z"]}, ROWS, ("x", "y", "z")),
        (["abba", "ba"], {}, [[0, 1, 1, 0], [1, 0]], ("a", "b")),
        ("abba\nba", {}, [[0, 1, 1, 0], [1, 0]], ("a", "b")),
        ({"observations": ROWS, "other": [1, 2, 3]}, {}, ROWS, None),
        ({"a": ROWS, "b": ROWS}, {"column": "b"}, ROWS, None),
        ({"u": [7, 8, 7], "s": ["bb", "a", "a"]}, GROUPED, [[1, 0], [0]], ("a", "bb")),
        ({"u": ["x", "y", "x"], "s": [3, 0, 1]}, GROUPED, [[3, 1], [0]], None),
        (SimpleNamespace, {}, [[0, 1], [1]], None),
        (np.array(["b", "a", "b"], object), {"unit": "lines"}, [[1, 0, 1]], ("a", "b")),
        (np.array([["b"], ["a"], ["b"]], object), {}, [[1, 0, 1]], ("a", "b")),
        (np.array([["b", "a"], ["a", "a"]], object), {}, [[1, 0], [0, 0]], ("a", "b")),
        (np.array([[0], [1], [1]], object), {}, [[0, 1, 1]], None),
        (np.array([[0, 1], [1]], object), {}, [[0, 1], [1]], None),
        ([[0], [1], [1]], {"lengths": [2, 1]}, [[0, 1], [1]], None),
        ([["b"], ["a"], ["a"]], {"lengths": [2, 1]}, [[1, 0], [0]], ("a", "b")),
        (["b", "a", "a"], {"lengths": [2, 1], "unit": "lines"}, [[1, 0], [0]], ("a", "b")),
        ({"s": ["b", "a", None, "a"]}, {"unit": "lines", "missing": "none"}, [[1, 0, hs.MISSING, 0]], ("a", "b")),
        ({"s": ["b", "", "a"]}, {"unit": "lines", "missing": ""}, [[1, hs.MISSING, 0]], ("a", "b")),
        ({"s": ["1", None, "0"]}, {"unit": "lines", "missing": "none"}, [[1, hs.MISSING, 0]], None),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.usefixtures("unchecked")
def test_objects(source: Any, options: dict, rows: list, symbols: object) -> None:
    if source is SimpleNamespace:

        class Table:  # as of the library datasets
            column_names = ("text", "observations")

            def __getitem__(self, name: str) -> list:
                return [[0, 1], [1]] if name == "observations" else ["x", "y"]

        source = Table()
    data = SequenceData(source, **options)
    assert numbers(data) == rows
    assert data.symbols == symbols
    assert data.lengths.tolist() == [len(row) for row in rows]
    assert data.num_steps == sum(map(len, rows))
    assert len(data) == len(rows)


@pytest.mark.parametrize(
    "name, text, options, rows, symbols",
    [
        ("a.txt", "abba\nba\n\n", {}, [[0, 1, 1, 0], [1, 0]], ("a", "b")),
        ("a.txt", "\ufeffabba\r\nba\r\n", {}, [[0, 1, 1, 0], [1, 0]], ("a", "b")),
        ("a.txt", "b a b\nb\n", {}, [[1, 0, 1], [1]], ("a", "b")),
        ("a.txt", "rain sun rain\nsun\n", {}, [[0, 1, 0], [1]], ("rain", "sun")),
        ("a.txt", "a cat\n", {"unit": "characters"}, [[1, 0, 2, 1, 3]], (" ", "a", "c", "t")),
        ("a.txt", "0 2 1\n1,1\n", {}, [[0, 2, 1], [1, 1]], None),
        ("a.txt", "0 2 1\n1,1\n", {"symbols": 9}, [[0, 2, 1], [1, 1]], None),
        ("a.txt", "0110\n10\n", {"symbols": 2}, [[0, 1, 1, 0], [1, 0]], None),
        ("a.txt", "0110\n10\n", {"unit": "characters"}, [[0, 1, 1, 0], [1, 0]], ("0", "1")),
        ("a.txt", "b\na\n\nb\n", {"unit": "lines"}, [[1, 0], [1]], ("a", "b")),
        ("a.txt", "3\n0\n\n1\n", {"unit": "lines"}, [[3, 0], [1]], None),
        ("a.log", "abba\n", {"symbols": ["b", "a"]}, [[1, 0, 0, 1]], ("b", "a")),
        ("a.fasta", ">one\nACGT\nac\n;remark\n>two\nTT\n", {}, [[0, 1, 2, 3, 0, 1], [3, 3]], tuple("ACGT")),
        ("reads", ">one\nAC\n", {}, [[0, 1]], ("A", "C")),
        ("a.csv", "0,1,1\n1,,\n", {}, [[0, 1, 1], [1]], None),
        ("a.tsv", "0\t1\n1\t0\n", {}, [[0, 1], [1, 0]], None),
        ("a.csv", "x,y\nx,x\n", {"unit": "words"}, [[0, 1], [0, 0]], ("x", "y")),
        ("a.csv", "id,dna\n1,ACA\n2,CC\n", {"column": "dna"}, [[0, 1, 0], [1, 1]], ("A", "C")),
        ("a.csv", 'id,s\n1,"a b"\n2,b\n', {"column": "s"}, [[0, 1], [1]], ("a", "b")),
        ("a.csv", "u,s\n7,b\n8,a\n7,a\n", {"column": "s", "group": "u"}, [[1, 0], [0]], ("a", "b")),
        ("a.csv", "u,s\n7,3\n8,0\n7,1\n", {"column": "s", "group": "u"}, [[3, 1], [0]], None),
        ("a.jsonl", '{"observations": [0, 1]}\n{"observations": [1]}', {}, [[0, 1], [1]], None),
        ("a.jsonl", '{"s": ["b", "a"]}\n', {}, [[1, 0]], ("a", "b")),
        ("a.jsonl", "[0, 1]\n[1]\n", {}, [[0, 1], [1]], None),
        ("a.jsonl", '{"u": 7, "s": "bb"}\n{"u": 8, "s": "a"}\n{"u": 7, "s": "a"}', GROUPED, [[1, 0], [0]], ("a", "bb")),
        ("a.jsonl", '{"text": "abba", "n": 1}\n', {"column": "text"}, [[0, 1, 1, 0]], ("a", "b")),
    ],
)
def test_files(tmp_path: Path, name: str, text: str, options: dict, rows: list, symbols: object) -> None:
    data = SequenceData(written(tmp_path, name, text), **options)
    assert (numbers(data), data.symbols) == (rows, symbols)
    assert data.num_symbols == (options["symbols"] if isinstance(options.get("symbols"), int) else data.num_symbols)
    assert data.title == name
    assert len(data.describe().splitlines()) == 2


def test_arrays_in_files(tmp_path: Path) -> None:
    array = np.array([[0, 1, 2], [2, 0, 0]])
    np.savez(tmp_path / "a.npz", observations=array, states=array, lengths=np.array([3, 1]))
    np.savez(tmp_path / "two.npz", a=array, b=array)
    np.save(tmp_path / "a.npy", array)
    assert numbers(SequenceData(tmp_path / "a.npz")) == [[0, 1, 2], [2]]
    assert numbers(SequenceData((tmp_path / "a.npy").rename(tmp_path / "A.NPY"))) == array.tolist()
    assert numbers(SequenceData(tmp_path / "two.npz", column="b")) == array.tolist()
    refused(lambda: SequenceData(tmp_path / "two.npz"), "no column or array 'observations', but a, b", "column=")
    hs.load_process("umbrella").save(tmp_path / "p.npz")
    refused(lambda: SequenceData(tmp_path / "p.npz"), "must have the format 'hmmscope-sequences', got 'hmmscope-hmm'")
    hs.Mixture([0.5, 0.5], [hs.load_process("umbrella")] * 2).save(tmp_path / "p.json")
    refused(lambda: SequenceData(tmp_path / "p.json"), "have the format 'hmmscope-sequences', got 'hmmscope-mixture'")
    (tmp_path / "l.json").write_text("[[0, 1, 2], [1, 0]]")
    assert SequenceData(tmp_path / "l.json").digest == SequenceData([[0, 1, 2], [1, 0]]).digest
    (tmp_path / "o.json").write_text('{"a": [1]}')
    refused(lambda: SequenceData(tmp_path / "o.json"), "must contain a list of sequences")
    (tmp_path / "n.json").write_text("[[0, 1")
    refused(lambda: SequenceData(tmp_path / "n.json"), "not JSON")


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"observations": [[0, 1], [1]], "x": [1, 2]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert numbers(SequenceData(tmp_path / "a.parquet")) == numbers(SequenceData(table)) == [[0, 1], [1]]
    events = pyarrow.table({"u": [7, 8, 7], "s": ["bb", "a", "a"]})
    parquet.write_table(events, tmp_path / "events.parquet")
    for source in (tmp_path / "events.parquet", events):
        assert numbers(SequenceData(source, **GROUPED)) == [[1, 0], [0]]


def test_frames_and_data_sets() -> None:
    for library in ("pandas", "polars"):
        frames = pytest.importorskip(library)
        assert numbers(SequenceData(frames.DataFrame({"s": ROWS}))) == ROWS
        assert SequenceData(frames.DataFrame({"s": ["ACGT", "GG"]})).symbols == ("A", "C", "G", "T")
        events = frames.DataFrame({"u": [7, 8, 7], "s": ["bb", "a", "a"]})
        assert numbers(SequenceData(events, **GROUPED)) == [[1, 0], [0]]
        days = frames.DataFrame({"s": ["sun", None, "rain"], "n": [1, None, 0]})
        for column in ("s", "n"):
            for source in (days, days.lazy()) if library == "polars" else (days,):
                found = SequenceData(source, column=column, unit="lines", missing="none")
                assert numbers(found) == [[1, hs.MISSING, 0]]
            with pytest.raises(InputError, match="missing='none'"):
                SequenceData(days, column=column, unit="lines")
        assert numbers(SequenceData(days["n"], missing="none")) == [[1, hs.MISSING, 0]]
        assert numbers(SequenceData(days[["s"]].to_numpy(), missing="none")) == [[1, hs.MISSING, 0]]
    datasets = pytest.importorskip("datasets")
    found = datasets.Dataset.from_dict({"observations": ROWS, "text": ["ab", "ba", "b"], "u": [1, 2, 1]})
    assert numbers(SequenceData(found)) == ROWS
    assert numbers(SequenceData(found, column="text")) == [[0, 1], [1, 0], [1]]
    assert numbers(SequenceData(found, column="text", group="u")) == [[0, 1], [2]]
    streamed = SequenceData(found.to_iterable_dataset(), column="text", unit="characters")
    assert numbers(streamed) == [[0, 1], [1, 0], [1]]
    refused(lambda: SequenceData(datasets.DatasetDict(train=found)), "has several splits", "source['train']")


# --------------------------------------------------------------------------------------------------------------------
# Two readings, and what is wrong


@pytest.mark.parametrize(
    "name, text, both",
    [
        ("a.txt", "the cat sat on the mat\nit was fat\n", ("as characters", "as words")),
        ("a.txt", "0110\n1010\n", ("as characters", "as lines")),
        ("a.txt", "b\na\nb\n", ("as characters", "as lines")),
        ("a.txt", "rain\nsun\nrain\nrain\nsun\n", ("as characters", "as lines")),
        ("a.txt", "1\n0\n1\n", ("as numbers", "as lines")),
        ("a.txt", "rain\nsun\nrain\n", ("as characters", "as lines")),
        ("a.csv", "a,b\nb,b\n", ("cells are symbols", "first row names columns")),
    ],
)
def test_two_readings_are_both_said(tmp_path: Path, name: str, text: str, both: tuple[str, str]) -> None:
    path = written(tmp_path, name, text)
    message = refused(lambda: SequenceData(path), "can be read in two ways", *both, "(--unit)")
    assert message.startswith(f"{name}: ")


@pytest.mark.parametrize(
    "name, text, options, part",
    [
        ("a.txt", "", {}, "a.txt: holds no sequence"),
        ("a.txt", b"\xff\xfe\x00", {}, "is not UTF-16 text; save it as UTF-8"),
        ("a.txt", "день\n".encode("utf-16-le"), {}, "a.txt: is UTF-16LE text without a byte-order mark"),
        ("a.csv", "day,s\n1,ä\n".encode("utf-16-be"), {"column": "s"}, "a.csv: is UTF-16BE text without"),
        ("a.fa", ">день\nACGT\n".encode("utf-32-le"), {}, "a.fa: is UTF-32LE text without"),
        ("a.jsonl", '["a"]\n'.encode("utf-32-be"), {}, "a.jsonl: is UTF-32BE text without"),
        ("a.txt", "ab\nac\n", {"symbols": ["a", "b"]}, "a.txt: line 2, symbol 2: 'c' is not one of a, b"),
        ("a.txt", "0 1\n\n0 5\n", {"symbols": 2}, "a.txt: line 3, symbol 2: '5' is not one of the numbers 0 to 1"),
        ("a.txt", "0 99999999999\n", {}, "symbol 2: '99999999999' is not one of the numbers"),
        ("a.txt", "ab\n", {"unit": "letters"}, "unit: unknown 'letters'"),
        ("a.txt", "ab\n", {"symbols": ["a", "a"]}, "symbols: must be different names"),
        ("a.fa", "ACGT\n", {}, "FASTA must begin with a header"),
        ("a.fa", ">only\n", {}, "holds no sequence"),
        ("a.csv", "id,s\n1,ab\n2\n", {"column": "s"}, "row 3: has 1 cells, but the header has 2"),
        ("a.csv", "id,s\n1,ab\n", {"column": "t"}, "column: unknown 't'"),
        ("a.csv", "id,s\n1,ab\n", {"group": "id"}, "group: needs the column"),
        ("a.csv", "id,s\n1,ab\n", {"column": "s", "group": "u"}, "group: unknown 'u'"),
        ("a.txt", "ab\n", GROUPED, "group: needs a table"),
        ("a.csv", "0\n1\n1\n", {}, "3 lists of one symbol can be read in two ways"),
        ("a.csv", "a\nb\n", {"unit": "words"}, "2 lists of one symbol can be read in two ways"),
        (
            "a.csv",
            "s\na\n\nb\n",
            {"column": "s", "unit": "lines"},
            "row 3: column s: is empty; if it marks a missing observation",
        ),
        ("a.csv", "id,s\n1,ab\n2,\n", {"column": "s"}, "row 3: is empty; leave it out, or pass unit='lines'"),
        ("a.csv", "a,b\n1,0\n,\n", {"column": "a", "unit": "lines"}, "row 3: column a: is empty"),
        ("a.csv", "id,s\n\n1,ab\n\n2,\n", {"column": "s"}, "row 5: is empty"),  # as an editor counts them
        ("a.csv", "0,1\n\n0,-\n", {"symbols": 2, "unit": "words"}, "row 3, symbol 2: '-' is not one of"),
        ("a.csv", "id,s\n\n1,a\n2\n", {"column": "s"}, "row 4: has 1 cells, but the header has 2"),
        ("a.csv", "u,s\n7,a\n7,\n", GROUPED, "row 3: column s: is empty"),
        ("a.jsonl", '{"s": [0, 1]}\n\n{"s": [0.5]}\n', {}, "row 3: must be a list of whole numbers"),
        ("a.jsonl", '{"s": [0]}\n\n{"t": [0]}\n', {}, "row 3: has no field 's'"),
        (
            "a.txt",
            "0 1 1\n1 0 x 1\n",
            {},
            "a.txt: 'x' is not a whole number, but most of 7 words are; if all are names, pass",
        ),
        ("a.jsonl", '{"u": 1, "s": [0]}\n', GROUPED, "with group= each row must be one name or whole number"),
        ("a.jsonl", '{"observations": [0.5]}\n', {}, "row 1: must be a list of whole numbers"),
        ("a.jsonl", '{"observations": [0]}\n{"o": [0]}\n', {}, "row 2: has no field 'observations'"),
        ("a.jsonl", '{"a": [0], "b": [0]}\n', {}, "no column or array 'observations', but a, b"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, name: str, text: str, options: dict, part: str) -> None:
    path = written(tmp_path, name, text)
    refused(lambda: SequenceData(path, **options), part)


def test_empty_cells_of_one_column_are_kept_in_their_place(tmp_path: Path) -> None:
    """A blank line of a file of one column is an empty cell; those at the end of a file are none."""
    path = written(tmp_path, "a.csv", "s\na\n\nb\n\n")
    data = SequenceData(path, column="s", unit="lines", missing="")
    assert numbers(data) == [[0, hs.MISSING, 1]]
    assert numbers(SequenceData(written(tmp_path, "n.csv", "0,1\n\n1,0\n"))) == [[0, 1], [1, 0]]


def test_names_that_may_be_gaps_are_said(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "s\nrain\nNA\nsun\nnan\n")
    how = SequenceData(path, column="s", unit="lines").how
    assert how.endswith("; NA and nan count as symbols unless you pass --missing NA,nan")
    assert "unless" not in SequenceData(path, column="s", unit="lines", missing=["NA", "nan"]).how
    assert "unless" not in SequenceData(path, column="s", unit="lines", symbols=["rain", "NA", "sun", "nan"]).how


@pytest.mark.usefixtures("unchecked")
def test_objects_that_are_no_sequences() -> None:
    refused(lambda: SequenceData(3), "must be lists, an array, a tensor, a table or a path, got 3")
    refused(lambda: SequenceData([]), "holds no sequence")
    refused(
        lambda: SequenceData([[0, -1]]), "sequence 1, symbol 2: -1 is not a symbol", "if it is padding, give lengths"
    )
    refused(lambda: SequenceData([[0, 1.5]]), "sequence 1: must be a list of whole numbers")
    refused(
        lambda: SequenceData(np.zeros((2, 2, 2))),
        "must be whole numbers (sequence, time) or names, got float64 (2, 2, 2)",
    )
    refused(lambda: SequenceData(np.zeros((2, 2)) + 0.5), "must be symbol numbers, which are whole, got 0.5")
    refused(lambda: SequenceData(["rain", "sun", "rain"]), "two ways", "3 sequences of 3 to 4", "1 sequence of 3")
    refused(lambda: SequenceData(["ab", "", "b"]), "sequence 2: is empty; leave it out")
    refused(lambda: SequenceData(["ab", None]), "sequence 2: is None; leave it out")
    refused(lambda: SequenceData(["ab", None], unit="lines"), "sequence 2: is None; if it marks a missing observation")
    refused(lambda: SequenceData([[0], "a"]), "sequence 2: must be a list of symbols or a text, got 'a'")
    refused(lambda: SequenceData(np.zeros((2, 2), int), lengths=[3, 1]), "lengths: must be 2 numbers")
    refused(lambda: SequenceData([[0]], symbols=0), "symbols: must be in [1, 16777216], got 0")


def test_json_lines_that_are_not(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for text in ("{nope\n", '{"s": 1, "s": 2}\n'):
        path.write_text(text)
        refused(lambda: SequenceData(path), "a.jsonl: line 1: not JSON", kind=DamagedError)


# --------------------------------------------------------------------------------------------------------------------
# The reading rule


@pytest.mark.usefixtures("unchecked")
def test_arrays_of_hmmlearn() -> None:
    """X is (time, 1), with the lengths of its sequences: one column is one sequence, and lengths cut it."""
    column, rows = np.array([[0], [1], [1], [2]]), np.array([[0, 1], [1, 2]])
    assert numbers(SequenceData(column)) == numbers(SequenceData(torch.tensor(column))) == [[0, 1, 1, 2]]
    assert "whose column is one sequence" in SequenceData(column).how
    assert numbers(SequenceData(column, lengths=[3, 1])) == [[0, 1, 1], [2]]
    assert numbers(SequenceData(column[:, 0], lengths=np.array([1, 3]))) == [[0], [1, 1, 2]]
    assert numbers(SequenceData(column, axis=1)) == [[0], [1], [1], [2]]
    assert numbers(SequenceData(rows)) == [[0, 1], [1, 2]]
    assert numbers(SequenceData(rows, lengths=[2, 1])) == [[0, 1], [1]]
    assert numbers(SequenceData(rows, axis=0)) == [[0, 1], [1, 2]]
    assert numbers(SequenceData(np.array([[0, 1, 1], [1, 2, 0]]), axis=0)) == [[0, 1], [1, 2], [1, 0]]
    assert numbers(SequenceData(np.array([["b"], ["a"], ["b"]]))) == [[1, 0, 1]]
    assert numbers(SequenceData([["b", "a", "b"]], lengths=[2])) == [[1, 0]]
    refused(lambda: SequenceData(column, lengths=[3, 2]), "lengths: must be 1 numbers", "or sum to 4, got [3, 2]")
    refused(lambda: SequenceData(column, axis=2), "axis: must be 0")
    refused(lambda: SequenceData(["abba"], lengths=[2]), "lengths: apply to arrays and lists of symbols, not to text")
    floats = np.array([[0.0, 1.0], [2.0, 1.0], [1.0, 1.0]])
    refused(
        lambda: SequenceData(floats), "(3, 2) can be read in two ways", "axis=0 as 2 sequences", "axis=1 as 3 sequences"
    )
    refused(
        lambda: SequenceData(floats[:, :1]), "as one sequence of 3 steps", "axis=1 as 3 sequences", "or give lengths"
    )
    assert numbers(SequenceData(floats, axis=0)) == [[0, 2, 1], [1, 1, 1]]
    assert numbers(SequenceData(floats, lengths=[2, 1, 1])) == [[0, 1], [2], [1]]
    assert numbers(SequenceData(floats[:, :1], lengths=[1, 2])) == [[0], [2, 1]]
    assert numbers(SequenceData(floats[:, 0])) == numbers(SequenceData([0.0, 2.0, 1.0])) == [[0, 2, 1]]
    refused(lambda: SequenceData(np.array([0, np.nan])), "symbol 2: is nan, which is not a symbol", "missing='none'")
    for odd in (0.5, np.inf, 1e300):
        refused(lambda odd=odd: SequenceData(np.array([0, odd])), "must be a list of whole numbers")  # type: ignore[misc]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("lengths", ["ab", [[1, 2]], [0.5, 1.5], [-1, 3], [10**30], [None], {"a": 1}])
def test_lengths_that_are_none(lengths: object) -> None:
    refused(lambda: SequenceData(np.zeros((2, 2), int), lengths=lengths), "lengths: must be")


@pytest.mark.parametrize(
    "lengths", [[3, 3], [30, 3], [-3, 13], [2.5, 7.5], [10, 0], [], [[10]], ["10"], [2**63 - 1, 11]]
)
@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".json"])
def test_lengths_are_compared_with_the_tokens(tmp_path: Path, ending: str, lengths: list) -> None:
    """Of the library's own files, whoever reads them."""
    path, about = tmp_path / f"a{ending}", {"format": "hmmscope-sequences", "version": 1, "num_symbols": 2}
    tokens, counts = np.array([0, 1] * 5), np.array(lengths)
    if ending == ".json":
        path.write_text(json.dumps(about | {"tokens": tokens.tolist(), "lengths": lengths}))
    elif ending == ".npz":
        np.savez(path, header=np.array(json.dumps(about)), tokens=tokens, lengths=counts)
    elif counts.dtype.kind == "U":
        return  # safetensors holds no text
    else:
        save_file(
            {"tokens": tokens, "lengths": counts}, path, {"sequences": json.dumps(about), "hmm": json.dumps(about)}
        )
    refused(lambda: SequenceData(path), f"a{ending}: lengths: must be")
    refused(lambda: hs.load_process(path), f"a{ending}: lengths: must be")
    if ending == ".safetensors":
        refused(lambda: list(hs.SequenceStream(path)), "lengths: must be")


COLUMN = "day,weather\n" + "".join(
    f"{k},{name}\n" for k, name in enumerate(["sun", "rain", "sun", "rain", "rain", "sun"])
)


def test_one_rule_with_and_without_an_alphabet(tmp_path: Path) -> None:
    """A symbol a row is one sequence or many of one: both are said, unless all rows are symbols of a known alphabet."""
    path = written(tmp_path, "w.csv", COLUMN)
    hmm = hs.HMM([1.0], [[1.0]], [[0.5, 0.5]], symbols=["rain", "sun"])
    refused(lambda: SequenceData(path, column="weather"), "two ways", "as lines", "1 sequence of 6")
    for options in ({"symbols": ["rain", "sun"]}, {"symbols_from": hmm}):
        assert numbers(SequenceData(path, column="weather", **options)) == [[1, 0, 1, 0, 0, 1]]
    digits = written(tmp_path, "d.txt", "1\n0\n1\n")
    refused(lambda: SequenceData(digits), "as numbers", "3 sequences of 1", "as lines", "1 sequence of 3")
    assert numbers(SequenceData(digits, symbols=2)) == [[1, 0, 1]]
    spaced = written(tmp_path, "s.txt", "no rain\nrain\nno rain\n")
    assert numbers(SequenceData(spaced, symbols=["no rain", "rain"])) == [[0, 1, 0]]  # no other reading has these names
    assert numbers(SequenceData(written(tmp_path, "o.txt", "sun\n"), symbols=["rain", "sun"])) == [[1]]


def test_what_is_read_is_read_again_by_its_names() -> None:
    sky = SequenceData([["sun", "rain"], ["sun"]], symbols=["sun", "rain", "hail"], title="sky", seed=3)
    again = SequenceData(sky)
    assert (again, again.symbols, again.title, again.seed) == (sky, sky.symbols, "sky", 3)
    other = ["hail", "rain", "fog", "sun"]
    assert numbers(SequenceData(sky, symbols=other)) == [[3, 1], [3]]
    assert SequenceData(sky, symbols_from=hs.HMM([1.0], [[1.0]], [[0.25] * 4], symbols=other)).symbols == tuple(other)
    gaps = SequenceData([[0, None, 1]], missing="none", symbols=5)
    assert SequenceData(gaps) == gaps
    assert numbers(SequenceData(gaps, symbols=["a", "b"])) == [[0, hs.MISSING, 1]]
    refused(lambda: SequenceData(sky, symbols=["rain", "sun", "fog"][:1]), "'sun' is not one of rain")
    refused(lambda: SequenceData(gaps, symbols=1), "1 is not a symbol in [0, 1)")
    refused(lambda: SequenceData(sky, unit="words"), "unit: SequenceData is already read")
    refused(lambda: SequenceData(gaps, lengths=[1, 2]), "lengths: SequenceData is already read")


class Column:
    """A column of pyarrow, of which iterating gives no plain values, in a table that has two of one name."""

    columns = ("s", "s")

    def __getitem__(self, name: str) -> "Column":
        return self

    def to_pylist(self) -> list:
        return [0, 1, 1]


def test_lists_of_arrays_and_columns_of_other_libraries() -> None:
    masked = np.ma.masked_equal([0, 7, 1], 7)
    one = hs.HMM([1.0], [[1.0]], [[0.25, 0.75]])
    for rows, expected in (
        ([np.array([[0], [1]]), np.array([[1]])], [[0, 1], [1]]),
        ([np.array([[0], [1]]), np.array([[1], [1]])], [[0, 1], [1, 1]]),
        ([masked, np.array([1])], [[0, hs.MISSING, 1], [1]]),
        ([masked, masked], [[0, hs.MISSING, 1]] * 2),
    ):
        assert numbers(SequenceData(rows)) == expected
        assert hs.log_likelihood(one, rows).tolist() == hs.log_likelihood(one, SequenceData(rows)).tolist()
    refused(lambda: hs.log_likelihood(one, []), "observations: must not be empty")
    refused(lambda: SequenceData([np.array([[0.0], [1.0]])]), "must be a list of whole numbers")
    refused(lambda: SequenceData(Column(), column="s"), "column: 2 columns are named 's'")
    del Column.columns
    assert numbers(SequenceData(Column())) == [[0, 1, 1]]


@pytest.mark.parametrize("ending", [".json", ".npz", ".safetensors"])
def test_a_fitted_hmm_knows_how_to_read(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path, "w.csv", COLUMN)
    fitted = hs.fit(
        path, 2, column="weather", unit="lines", options=hs.FitOptions(max_iterations=2, num_restarts=1)
    ).hmm
    fitted.save(tmp_path / f"h{ending}")
    loaded = hs.load_process(tmp_path / f"h{ending}")
    assert loaded.read_options == fitted.read_options == ReadOptions(unit="lines", column="weather")
    assert (
        loaded.digest
        == fitted.digest
        == hs.HMM(*(getattr(fitted, a) for a in ("initial", "transition", "emission")), symbols=fitted.symbols).digest
    )
    data = SequenceData(path, symbols_from=loaded)
    assert numbers(data) == [[1, 0, 1, 0, 0, 1]]
    assert "column weather: each line is one symbol" in data.how
    assert "read with options of the process, --unit lines --column weather" in data.how
    assert numbers(SequenceData(written(tmp_path, "t.txt", "rain\nsun\n"), symbols_from=loaded)) == [[0, 1]]
    assert numbers(SequenceData(written(tmp_path, "j.jsonl", '{"observations": ["sun"]}'), symbols_from=loaded)) == [
        [1]
    ]
    assert numbers(SequenceData(written(tmp_path, "n.txt", "rain sun\n"), symbols_from=loaded, unit="words")) == [
        [0, 1]
    ]
    drawn = hs.ProcessDataset(loaded, length=3, seed=1)[
        0:4
    ].observations  # what `hmmscope sample` writes as text, a sequence a line
    lines = [" ".join(loaded.symbols[v] for v in row) for row in drawn.tolist()]
    for source in (written(tmp_path, "drawn.txt", "\n".join(lines)), lines):
        again = SequenceData(source, symbols_from=loaded)
        assert numbers(again) == drawn.tolist()
        assert "words separated by spaces" in again.how
    refused(
        lambda: SequenceData(written(tmp_path, "no.txt", "sun\nNA\n"), symbols_from=loaded),
        "sequence 1, symbol 2: 'NA' is not one of rain, sun; if it marks a missing observation, pass missing='NA'",
        "--unit lines --column weather",
    )
    odd = json.dumps(
        json.loads(json.dumps({"format": "hmmscope-hmm", "initial": [1], "transition": [[1]], "emission": [[1]]}))
        | {"reading": {"units": 1}}
    )
    refused(lambda: hs.load_process(written(tmp_path, "odd.json", odd)), "odd.json: reading.units: unknown 'units'")


def test_an_empty_cell_is_no_symbol(tmp_path: Path) -> None:
    path = written(tmp_path, "g.csv", "u,s\n1,a\n1,\n,a\n")
    refused(lambda: SequenceData(path, column="s", unit="lines"), "g.csv: row 3: column s: is empty")
    refused(lambda: SequenceData(path, column="s", group="u"), "column u: is empty")
    refused(lambda: SequenceData(written(tmp_path, "d.csv", "s,s\na,b\n"), column="s"), "2 columns are named 's'")


def test_fastq_is_its_sequences(tmp_path: Path) -> None:
    """Quality may begin with any sign, and long records may have several lines."""
    text = "@r1 first\nACg\nTT\n+r1\n@I+\nII\n@r2\nGG\n+\n@@\n\n"
    data = SequenceData(written(tmp_path, "a.fastq", text))
    assert numbers(data) == [[0, 1, 2, 3, 3], [2, 2]]
    assert data.symbols == ("A", "C", "G", "T")
    assert "without their quality" in data.how
    assert numbers(SequenceData(written(tmp_path, "b.fq", text), symbols="TGCA")) == [[3, 2, 1, 0, 0], [1, 1]]
    refused(
        lambda: SequenceData(written(tmp_path, "c.fq", "@r\nACGT\n+\nII\n")),
        "line 1 has 4 letters but 2 quality characters",
    )
    refused(
        lambda: SequenceData(written(tmp_path, "d.fq", "ACGT\n")), "line 1: a FASTQ record must begin with a header"
    )


# --------------------------------------------------------------------------------------------------------------------
# Bounds


def test_a_cell_may_be_a_gene(tmp_path: Path) -> None:
    path = written(tmp_path, "g.csv", "id,dna\n1," + "ACGT" * 50_000 + "\n")
    assert SequenceData(path, column="dna").lengths.tolist() == [200_000]


def test_no_line_repeats_what_it_refuses(tmp_path: Path) -> None:
    key = "k" * 10**6
    path = written(tmp_path, "a.jsonl", json.dumps({key: [0], "b": [1]}))
    for call in (
        lambda: SequenceData(path),
        lambda: SequenceData(path, column=key[:-1]),
        lambda: SequenceData([[key]], symbols=["a", key + "k"]),
    ):
        assert len(refused(call)) <= 400


@pytest.mark.usefixtures("unchecked")
def test_values_of_other_types_are_refused(tmp_path: Path) -> None:
    lists = written(tmp_path, "g.jsonl", '{"s": "a", "u": [1]}\n{"s": "a", "u": [1]}\n')
    refused(lambda: SequenceData(lists, column="s", group="u"), "row 1, column u: must be a name or number, got [1]")
    save_torch({"observations": torch.zeros(2, 2, dtype=torch.bfloat16)}, tmp_path / "b.safetensors")
    refused(lambda: SequenceData(tmp_path / "b.safetensors"), "float32 (2, 2) can be read in two ways")
    save_torch({"tokens": torch.zeros(2).bfloat16(), "lengths": torch.tensor([2])}, tmp_path / "t.safetensors")
    assert numbers(SequenceData(tmp_path / "t.safetensors")) == [[0, 0]]
    about = {"format": "hmmscope-sequences", "version": 1, "num_symbols": 2, "lengths": [3]}
    for tokens in ([[0, 1], [1]], "abc", None, [0, 1.5, 1], [0, "a", 1]):
        path = written(tmp_path, "r.json", json.dumps(about | {"tokens": tokens}))
        refused(lambda path=path: hs.load_process(path), "must be")  # type: ignore[misc]
        refused(lambda path=path: SequenceData(path), "must be")  # type: ignore[misc]
    table = {"s": ["a", "b"], "u": [1, 2]}
    refused(lambda: SequenceData(table | {"u": 3}, column="s", group="u"), "column u: must be a list of rows, got 3")
    refused(
        lambda: SequenceData(table | {"u": [1]}, column="s", group="u"), "u has 1 rows, but the observations have 2"
    )
    assert numbers(SequenceData(torch.zeros(2, dtype=torch.bfloat16))) == [[0, 0]]
    assert numbers(SequenceData(torch.zeros(2, dtype=torch.float16))) == [[0, 0]]
    for name in ("a\0b", json.loads('"\\ud800"')):
        refused(lambda name=name: SequenceData(name), "no file can have this name")  # type: ignore[misc]
    header = json.dumps({"observations": {"dtype": "I64", "shape": [0, 10**30], "data_offsets": [0, 0]}}).encode()
    path = written(tmp_path, "s.safetensors", len(header).to_bytes(8, "little") + header)
    refused(lambda: SequenceData(path), "a shape exceeds any memory", kind=DamagedError)
    header = json.dumps({"observations": {"dtype": "I64", "shape": [1] * 65, "data_offsets": [0, 8]}}).encode()
    path = written(tmp_path, "d.safetensors", len(header).to_bytes(8, "little") + header + bytes(8))
    refused(lambda: SequenceData(path), "a tensor has more than 64 axes", kind=DamagedError)
    save_torch({"observations": torch.zeros(2, dtype=torch.uint16)}, tmp_path / "u.safetensors")
    refused(
        lambda: SequenceData(tmp_path / "u.safetensors"), "type U16 is not supported; save it as I64", kind=DamagedError
    )


VALUES = [None, True, 0, 1, -1, 2**63, 10**30, 1.5, math.nan, "", "a", "ab", "1", "1 0", "a\n", "x" * 999, "a\0"]
VALUES += [json.loads('"\\ud800"'), [], [0], ["a"], [[0]], [None], {}, {"a": 1}, [1.5], [10**30], [0, "a"]]
OPTIONS: dict[str, list] = {
    "unit": [None, None, "lines", "words", "numbers", "x"],
    "column": [None, "s", "u"],
    "group": [None, None, "u", "s"],
    "symbols": [None, None, 2, ["a", "b"]],
    "lengths": [None, None, [1], [2, 1], "a", [0.5]],
    "axis": [None, 0, 1],
}


def refusal(source: object, options: dict) -> str | None:
    """What is said of a source that is refused by an error of ours; another one comes through."""
    try:
        SequenceData(source, **options)
    except HmmscopeError as error:
        return str(error)
    return None


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", ["rows", "table", "lines", "saved"])
def test_values_of_any_type_are_read_or_refused_in_a_line(tmp_path: Path, kind: str) -> None:
    """By type and structure, in every field: data, or an error of ours, never another one."""
    rng, outcomes = random.Random(kind), Counter[bool]()
    for _ in range(200):
        alike = rng.choice([True, False])
        cells = [[rng.choice(VALUES)] * 3 if alike else rng.choices(VALUES, k=3) for _ in range(3)]
        options = {name: rng.choice(values) for name, values in OPTIONS.items() if rng.random() < 0.3}
        options = options if kind == "rows" else {"column": "s"} | options
        path = tmp_path / "a.jsonl"
        path.write_text("\n".join(json.dumps(dict(zip("suv", row, strict=True))) for row in zip(*cells, strict=True)))
        source: Any = {"rows": cells[0], "table": dict(zip("suv", cells, strict=True)), "lines": path}.get(kind)
        if kind == "saved":
            fields = {"tokens": [0, 1], "lengths": [2], "num_symbols": 2, "symbols": ["a", "b"], "reading": {}}
            about = {"format": "hmmscope-sequences"} | fields | {rng.choice(list(fields)): rng.choice(VALUES)}
            source, options = tmp_path / "a.json", {}
            source.write_text(json.dumps(about))
        line = refusal(source, options)
        outcomes[line is None] += 1
        assert line is None or ("\n" not in line and len(line) <= 400)
    assert outcomes[True] > 3
    assert outcomes[False] > 10


def test_half_a_character_is_no_text(tmp_path: Path) -> None:
    half = json.loads('"\\ud800"')
    for call in (
        lambda: SequenceData([[half]]),
        lambda: SequenceData([half + "a"], unit="characters"),
        lambda: SequenceData([[0]], symbols=[half]),
        lambda: hs.HMM([1.0], [[1.0]], [[1.0]], symbols=[half]),
        lambda: hs.HMM([1.0], [[1.0]], [[1.0]], states=[half]),
    ):
        refused(call, "contains an unpaired surrogate")


@pytest.mark.parametrize("ending", ["", ".txt", ".npz", ".npy", ".safetensors", ".jsonl", ".fa", ".csv"])
def test_devices_and_pipes_are_refused_at_once(tmp_path: Path, ending: str) -> None:
    os.symlink("/dev/zero", tmp_path / f"zero{ending}")
    os.mkfifo(tmp_path / f"pipe{ending}")
    for name in ("zero", "pipe"):
        refused(lambda name=name: SequenceData(tmp_path / f"{name}{ending}"), "not a regular file")  # type: ignore[misc]


@pytest.mark.long
def test_an_archive_that_inflates_is_refused_before_it_does(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (2**26,)})
        for _ in range(2**9):
            file.write(bytes(2**20))
    refused(
        lambda: SequenceData(tmp_path / "a.npz"), "bytes decompress to 536871040", "more than the 268435456 allowed"
    )


def test_an_array_whose_header_lies_is_damaged(tmp_path: Path) -> None:
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (2**50,)})
    refused(lambda: SequenceData(tmp_path / "a.npy"), "differs from the size in its header", kind=DamagedError)


# --------------------------------------------------------------------------------------------------------------------
# What it is


def test_indexing_and_batches() -> None:
    data = SequenceData([[0, 1, 2], [1], [2, 2], [0, 0]])
    assert data[0].tolist() == [0, 1, 2]
    assert data[-1].tolist() == [0, 0]
    assert numbers(data[1:3]) == [[1], [2, 2]]
    assert numbers(data[[3, 0]]) == [[0, 0], [0, 1, 2]]
    assert data[1:3].num_symbols == 3
    with pytest.raises(IndexError):
        data[4]
    refused(lambda: data[9:], "must select at least one sequence")
    tokens, lengths = data.padded()
    assert tokens.tolist() == [[0, 1, 2], [1, 0, 0], [2, 2, 0], [0, 0, 0]]
    assert lengths.tolist() == [3, 1, 2, 2]
    assert data.padded(2)[1].tolist() == [2, 1, 2, 2]
    parts = list(data.batches(3))
    assert [len(tokens) for tokens, _ in parts] == [3, 1]
    once = [tokens[b, :n].tolist() for tokens, counts in data.batches(3, shuffle=1) for b, n in enumerate(counts)]
    assert sorted(once) == sorted(numbers(data))
    (whole,) = DataLoader(data, batch_size=4, collate_fn=data.collate)
    assert torch.equal(whole[0], tokens)
    assert numbers(data.cut(2)) == [[0, 1], [2], [1], [2, 2], [0, 0]]


def test_the_digest_is_of_the_content() -> None:
    data = SequenceData([[0, 1], [1]])
    others = [
        SequenceData([[0], [1, 1]]),
        SequenceData([[0, 1, 1]]),
        SequenceData([[0, 1], [1]], symbols=3),
        SequenceData([[0, 1], [1]], symbols=["a", "b"]),
        SequenceData([[0, 1], [1]], symbols=["b", "a"]),
        SequenceData([[1], [0, 1]]),
    ]
    assert len({data.digest, *(other.digest for other in others)}) == 7
    assert SequenceData(np.array([[0, 1], [1, 5]]), lengths=[2, 1], title="x", symbols=2) == data


def test_the_split_is_of_sequences_and_not_of_their_order() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 4, rng.integers(3, 9)).tolist() for _ in range(200)]
    data, turned = SequenceData(rows), SequenceData(rows[::-1])
    parts, again, other = data.split(), turned.split(), data.split(seed=1)
    keys = [{tuple(row) for row in numbers(part)} for part in parts]
    assert [{tuple(row) for row in numbers(part)} for part in again] == keys
    assert [{tuple(row) for row in numbers(part)} for part in other] != keys
    assert all(keys[a].isdisjoint(keys[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    assert sum(map(len, parts)) == 200
    different = sum(map(len, keys))
    assert [len(key) for key in keys] == [different - 2 * round(different / 10), *[round(different / 10)] * 2]
    assert (data.train, data.validation, data.test) == parts


def test_few_sequences_are_not_split() -> None:
    refused(
        lambda: SequenceData(["abba"], unit="words").train,
        "1 observations (words separated by",
        "cannot be split into three parts",
    )
    refused(lambda: SequenceData([[0, 1] * 50]).train, "1 sequence cannot be split into three parts", "data.cut(10)")
    refused(lambda: SequenceData([[0, 0], [0, 0], [1, 1]]).train, "2 different sequences")
    parts = SequenceData([[0], [0], [1], [2]], axis=1).split()
    assert sorted(sorted(map(tuple, numbers(part))) for part in parts) == [[(0,), (0,)], [(1,)], [(2,)]]


@pytest.mark.parametrize("ending", [".safetensors", ".npz", ".jsonl"])
def test_random_data_is_read_back_equal(tmp_path: Path, ending: str) -> None:
    """Names in their order, symbols that do not occur, and lengths, of 40 random sets."""
    pool = [
        "sun",
        "rain",
        "0",
        "1",
        "10",
        "a b",
        "a,b",
        " ",
        "é",
        "b",
        "a",
        "\t",
        '"',
        "@",
        "null",
        "\x1b",
        "\u2028",
        "Z",
    ]
    for seed in range(40):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(1, 9))
        rows = [
            rng.integers(0, rng.integers(1, count + 1), rng.integers(1, 7)).tolist() for _ in range(rng.integers(1, 6))
        ]
        names = [pool[k] for k in rng.permutation(len(pool))[:count]] if seed % 4 else None
        data = SequenceData(rows, symbols=names or count)
        data.save(tmp_path / f"{seed}{ending}")
        back = SequenceData(tmp_path / f"{seed}{ending}")
        assert (back, back.symbols, back.num_symbols, numbers(back)) == (data, data.symbols, count, rows), seed
    x = SequenceData([["sun", "rain"], ["sun"]], symbols=["sun", "rain", "hail"])
    x.save(tmp_path / f"x{ending}")
    assert SequenceData(tmp_path / f"x{ending}").symbols == ("sun", "rain", "hail")
    assert SequenceData(tmp_path / f"x{ending}") == x
    other = SequenceData(tmp_path / f"x{ending}", symbols=["hail", "rain", "sun"])
    assert numbers(other) == [[2, 1], [2]]


@pytest.mark.parametrize("ending", [".safetensors", ".npz", ".jsonl"])
def test_saved_data_is_read_back_equal(tmp_path: Path, ending: str) -> None:
    for number, data in enumerate((SequenceData(["abba", "c"]), SequenceData([[0, 300, 2], [1]]))):
        path = tmp_path / f"{number}{ending}"
        data.save(path)
        assert SequenceData(path) == data
        refused(lambda path=path, data=data: data.save(path), "exists", kind=RefusedError)  # type: ignore[misc]
    refused(lambda: SequenceData(["ab"]).save(tmp_path / "a.pkl"), "must end in .safetensors, .npz, .jsonl")


def test_names_of_another_order_are_translated(tmp_path: Path) -> None:
    SequenceData(["abba"]).save(tmp_path / "a.npz")
    assert numbers(SequenceData(tmp_path / "a.npz", symbols=["b", "a"])) == [[1, 0, 0, 1]]
    refused(lambda: SequenceData(tmp_path / "a.npz", symbols=["b", "c"]), "'a' is not one of b, c")


def test_numbers_of_json_lines_are_of_the_names_in_the_file(tmp_path: Path) -> None:
    """`hmmscope sample` writes numbers with the names beside them; another order of names is another numbering."""
    line = {"observations": [0, 1, 1], "alphabet": {"symbols": ["x", "y"]}}
    path = written(tmp_path, "a.jsonl", json.dumps(line))
    assert numbers(SequenceData(path, symbols=["y", "x"])) == [[1, 0, 0]]


def test_what_is_said_obeys_no_escape_sequence(tmp_path: Path) -> None:
    data = SequenceData(written(tmp_path, "a\x1b[2J.txt", "a\x1bb\x07\nba\n"), unit="characters")
    assert all(line.isprintable() for line in data.describe().splitlines())
    assert len(data.describe().splitlines()) == 2
    assert "<" not in SequenceData([["<b>", "x"]])._repr_html_().replace("<t", "").replace("</", "").replace("<c", "")


def test_a_flood_is_no_repr() -> None:
    assert len(repr(SequenceData(np.zeros((500, 500), int)))) < 100


def test_json_written_by_others_has_names(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", json.dumps({"observations": [0, 1], "alphabet": {"symbols": ["x", "y"]}}))
    assert SequenceData(path).symbols == ("x", "y")


def test_a_column_of_a_long_name_is_said_in_short(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"k" * 5000: [0, 1, 0]}) + "\n")
    data = SequenceData(path, column="k" * 5000)
    assert data.num_observations == 3
    assert len(data.how) < 300


def test_what_stays_in_its_file_is_saved_without_a_warning(tmp_path):
    """torch warns of arrays that cannot be written to; a kept file is one."""
    np.savez(tmp_path / "x.npz", observations=np.random.default_rng(0).integers(0, 3, (4, 50)))
    data = hs.SequenceData(tmp_path / "x.npz")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.save(tmp_path / "y.safetensors")
        again = hs.SequenceData(tmp_path / "y.safetensors")
        again.save(tmp_path / "z.npz")
        tokens = RecordedSequences(again).file_tensors()["tokens"]
    assert torch.equal(tokens, torch.from_numpy(np.array(data.flat)).to(tokens.dtype))
