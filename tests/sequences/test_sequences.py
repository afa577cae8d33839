"""Sequences that users bring: every source, one reading or a refusal that says both, bounded reads, exact splits."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import hmmscope as hs
from hmmscope.errors import DamagedError, InputError, RefusedError
from hmmscope.sequences.data import SequenceData


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
    assert data.num_observations == sum(map(len, rows))
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
    assert numbers(SequenceData(tmp_path / "a.npy")) == array.tolist()
    assert numbers(SequenceData(tmp_path / "two.npz", column="b")) == array.tolist()
    refused(lambda: SequenceData(tmp_path / "two.npz"), "no array 'observations' but a, b", "column=")
    hs.load_process("umbrella").save(tmp_path / "p.npz")
    refused(lambda: SequenceData(tmp_path / "p.npz"), "holds a process ('hmmscope-hmm'), not sequences")
    hs.Mixture([0.5, 0.5], [hs.load_process("umbrella")] * 2).save(tmp_path / "p.json")
    refused(lambda: SequenceData(tmp_path / "p.json"), "holds a process ('hmmscope-mixture'), not sequences")
    (tmp_path / "l.json").write_text("[[0, 1, 2], [1, 0]]")
    assert SequenceData(tmp_path / "l.json").digest == SequenceData([[0, 1, 2], [1, 0]]).digest
    (tmp_path / "o.json").write_text('{"a": [1]}')
    refused(lambda: SequenceData(tmp_path / "o.json"), "must hold a list of sequences")
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
        ("a.txt", b"\xff\xfe\x00", {}, "is not UTF-8"),
        ("a.txt", "ab\nac\n", {"symbols": ["a", "b"]}, "a.txt: line 2, symbol 2: 'c' is not one of a, b"),
        ("a.txt", "0 1\n\n0 5\n", {"symbols": 2}, "a.txt: line 3, symbol 2: '5' is not one of the numbers 0 to 1"),
        ("a.txt", "0 99999999999\n", {}, "symbol 2: '99999999999' is not one of the numbers"),
        ("a.txt", "ab\n", {"unit": "letters"}, "unit: unknown 'letters'"),
        ("a.txt", "ab\n", {"symbols": ["a", "a"]}, "symbols: must be different names"),
        ("a.fa", "ACGT\n", {}, "FASTA begins with a header"),
        ("a.fa", ">only\n", {}, "holds no sequence"),
        ("a.csv", "id,s\n1,ab\n2\n", {"column": "s"}, "row 3: 1 cells where the header has 2"),
        ("a.csv", "id,s\n1,ab\n", {"column": "t"}, "column: unknown 't'"),
        ("a.csv", "id,s\n1,ab\n", {"group": "id"}, "group: needs column"),
        ("a.csv", "id,s\n1,ab\n", {"column": "s", "group": "u"}, "group: unknown 'u'"),
        ("a.txt", "ab\n", GROUPED, "group: has no columns"),
        ("a.jsonl", '{"u": 1, "s": [0]}\n', GROUPED, "with group= each row must be one name or whole number"),
        ("a.jsonl", '{"observations": [0.5]}\n', {}, "row 1: must be a list of whole numbers"),
        ("a.jsonl", '{"observations": [0]}\n{"o": [0]}\n', {}, "row 2: has no field 'observations'"),
        ("a.jsonl", '{"a": [0], "b": [0]}\n', {}, "no array 'observations' but a, b"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, name: str, text: str, options: dict, part: str) -> None:
    path = written(tmp_path, name, text)
    refused(lambda: SequenceData(path, **options), part)


@pytest.mark.usefixtures("unchecked")
def test_objects_that_are_no_sequences() -> None:
    refused(lambda: SequenceData(3), "must be lists, an array, a tensor, a table or a path, got 3")
    refused(lambda: SequenceData([]), "holds no sequence")
    refused(lambda: SequenceData([[0, -1]]), "sequence 1, symbol 2: -1 is no symbol", "give lengths if it is padding")
    refused(lambda: SequenceData([[0, 1.5]]), "sequence 1: must be a list of whole numbers")
    refused(
        lambda: SequenceData(np.zeros((2, 2))), "must be whole numbers (sequence, time) or names, got float64 (2, 2)"
    )
    refused(lambda: SequenceData([[0], "a"]), "sequence 2: must be a list of symbols or a text, got 'a'")
    refused(lambda: SequenceData(np.zeros((2, 2), int), lengths=[3, 1]), "lengths: must be 2 numbers")
    refused(lambda: SequenceData([[0]], symbols=0), "symbols: must be in [1, 16777216], got 0")


def test_json_lines_that_are_not(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", "{nope\n")
    refused(lambda: SequenceData(path), "a.jsonl: line 1: not JSON", kind=DamagedError)


# --------------------------------------------------------------------------------------------------------------------
# Bounds


@pytest.mark.parametrize("ending", ["", ".txt", ".npz", ".npy", ".safetensors", ".jsonl", ".fa", ".csv"])
def test_devices_and_pipes_are_refused_at_once(tmp_path: Path, ending: str) -> None:
    os.symlink("/dev/zero", tmp_path / f"zero{ending}")
    os.mkfifo(tmp_path / f"pipe{ending}")
    for name in ("zero", "pipe"):
        refused(lambda name=name: SequenceData(tmp_path / f"{name}{ending}"), "not a regular file")  # type: ignore[misc]


def test_an_archive_that_inflates_is_refused_before_it_does(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (2**26,)})
        for _ in range(2**9):
            file.write(bytes(2**20))
    refused(
        lambda: SequenceData(tmp_path / "a.npz"), "bytes that inflate to 536871040", "more than the 268435456 allowed"
    )


def test_an_array_whose_header_lies_is_damaged(tmp_path: Path) -> None:
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (2**50,)})
    refused(lambda: SequenceData(tmp_path / "a.npy"), "of another size than its header says", kind=DamagedError)


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
    refused(lambda: data[9:], "chooses no sequence")
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
    refused(lambda: SequenceData([[0, 1] * 50]).train, "1 sequence cannot be split into three parts", "data.cut(10)")
    refused(lambda: SequenceData([[0], [0], [1]]).train, "2 different sequences")
    parts = SequenceData([[0], [0], [1], [2]]).split()
    assert sorted(sorted(map(tuple, numbers(part))) for part in parts) == [[(0,), (0,)], [(1,)], [(2,)]]


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
