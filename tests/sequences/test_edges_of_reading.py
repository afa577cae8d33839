"""Which unit a text is read in where one more line decides, what is refused at the edge, and streams in parts."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope import system_info
from hmmscope.errors import DamagedError, InputError, ResourceError
from hmmscope.lab.cli import main
from hmmscope.sequences import encoding, streaming
from hmmscope.sequences.data import SequenceData, read_as
from hmmscope.sequences.encoding import MAX_SYMBOLS, Alphabet, apart, whole_lengths, within
from hmmscope.sequences.gaps import MISSING, Missing
from hmmscope.sequences.read_options import ReadOptions
from hmmscope.sequences.streaming import SequenceStream
from hmmscope.storage import store

TEN = [f"word{letter}" for letter in "abcdefghij"]


@pytest.mark.parametrize(
    ("lines", "symbols", "units"),
    [
        # one word a line: lines are symbols where they come again, in half of them or in one of at most ten
        ([*TEN], None, ["characters"]),
        ([*TEN[:9], TEN[0]], None, ["characters", "lines"]),
        ([*TEN, TEN[0]], None, ["characters"]),
        ([*TEN[:7], *TEN[:5]], None, ["characters"]),
        ([*TEN[:6], *TEN[:6]], None, ["characters", "lines"]),
        (["a", "b"], None, ["characters", "lines"]),
        (["a", "bc"], None, ["characters"]),
        # several words: symbols where they are half as many as their characters
        (["ab cd ab"], None, ["words"]),
        (["ab bc ab"], None, ["characters", "words"]),
        (["a b, a"], None, ["words"]),
        # numbers
        (["5"], None, ["numbers"]),
        (["55"], None, ["characters", "lines"]),
        (["5", "5"], None, ["numbers", "lines"]),
        (["5 5"], None, ["numbers"]),
        (["1\u00b2 1\u00b2 1\u00b2"], None, ["words"]),
        # a number of symbols
        (["012"], 3, ["characters"]),
        (["012"], 2, "symbol 1: '012' is not one of the numbers 0 to 1"),
        (["012"], 13, ["numbers"]),
        (["01", "12"], 13, ["numbers", "lines"]),
        (["1", "2"], 3, ["lines"]),
        (["1", "3"], 3, "symbol 1: '3' is not one of the numbers 0 to 2"),
        # names
        (["a", "b"], ["a", "b"], ["lines"]),
        (["a"], ["a", "b"], ["lines"]),
        (["a b"], ["a b", "c"], ["lines"]),
        (["a b"], ["a", "b", " "], ["characters"]),
        (["ab"], ["a", "b"], ["words"]),
        (["a,b"], ["a", "b", ","], ["words"]),
    ],
)
def test_the_unit_of_a_text_is_the_only_sensible_one(lines: list[str], symbols: Any, units: Any) -> None:
    text = "\n".join(lines) + "\n"
    if len(units) == 1:
        assert SequenceData(text, symbols=symbols)._encoded.read_options.unit == units[0]
        return
    said = units if isinstance(units, str) else "two ways: " + ".*".join(f"as {unit} " for unit in units)
    with pytest.raises(InputError, match=said):
        SequenceData(text, symbols=symbols)


def test_most_words_are_numbers_or_not() -> None:
    """Where fewer than half are names, the names may be mistakes."""
    assert SequenceData("1 x 2 y\n").symbols == ("1", "2", "x", "y")
    with pytest.raises(InputError, match="'x' is not a whole number, but most of 5 words are"):
        SequenceData("1 x 2 y 3\n")


def test_a_number_has_at_most_nine_digits() -> None:
    assert SequenceData("000000000000000001 0\n", unit="numbers").num_symbols == 2
    for word in (str(MAX_SYMBOLS), "9999999999"):
        with pytest.raises(InputError, match=f"'{word}' is not one of the numbers 0 to {MAX_SYMBOLS - 1}"):
            SequenceData(f"0 {word}\n", unit="numbers")
    assert SequenceData([[MAX_SYMBOLS - 1, 0]], symbols=MAX_SYMBOLS).num_symbols == MAX_SYMBOLS
    with pytest.raises(
        InputError, match=f"symbols: must be below {MAX_SYMBOLS}, got {MAX_SYMBOLS}; for real numbers use fit"
    ):
        SequenceData([[MAX_SYMBOLS, 0]])
    assert Alphabet.of(MAX_SYMBOLS).count == MAX_SYMBOLS
    for count in (0, MAX_SYMBOLS + 1):
        with pytest.raises(InputError, match=rf"symbols: must be in \[1, {MAX_SYMBOLS}\], got {count}"):
            Alphabet.of(count)
    for whole in (2.0**53, -(2.0**53)):
        with pytest.raises(InputError, match="must be a list of whole numbers"):
            SequenceData([[whole, 0.0]])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1.5, 1.5], "lengths: must be whole numbers"),
        ([1.0, 2.0], [[0], [1, 2]]),
        ([[1], [2, 3]], "lengths: must be whole numbers"),
        ([[1, 2]], "lengths: must be whole numbers"),
        ([-1, 2], "lengths: must be whole numbers"),
        ([2, 0], "lengths: sequence 2 is empty"),
        ([2, 2], "lengths: must be 1 numbers, each at most the length of its row, or sum to 3"),
        ([4], "lengths: must be 1 numbers, each at most the length of its row, or sum to 3"),
        ([3], [[0, 1, 2]]),
        ([1, 2], [[0], [1, 2]]),
        ([2], [[0, 1]]),
    ],
)
def test_lengths_cut_a_row_or_end_it(given: Any, said: Any) -> None:
    if isinstance(said, list):
        assert [list(row) for row in within([[0, 1, 2]], given)] == said
    else:
        with pytest.raises(InputError, match=said):
            within([[0, 1, 2]], given)


def test_lengths_of_several_rows() -> None:
    assert within([[0, 1], [2, 3]], [2, 1]) == [[0, 1], [2]]
    assert within([[0], [1], [2]], [1, 2]) == [[0], [1, 2]]  # a column
    with pytest.raises(InputError, match="lengths: must be 2 numbers, each at most the length of its row, got"):
        within([[0, 1], [2, 3]], [2, 3])
    assert whole_lengths([]).dtype == np.int64
    for lengths in ([], [0, 3], [2, 2]):
        with pytest.raises(InputError, match="lengths: must be positive and sum to the number of tokens, 3"):
            apart([0, 1, 2], lengths)
    with pytest.raises(InputError, match="tokens: must be whole numbers, one sequence after the other"):
        apart([[0, 1], [2]], [3])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: SequenceData([[0.0, float("nan")]]), "symbol 2: is nan, which is not a symbol"),
        (lambda: SequenceData([[0, None]]), "symbol 2: is None, which is not a symbol"),
        (lambda: SequenceData([np.array([0.0, np.nan])]), "symbol 2: is nan, which is not a symbol"),
        (lambda: SequenceData([]), "sequences: holds no sequence"),
        (lambda: SequenceData([], lengths=[]), "sequences: holds no sequence"),
        (lambda: SequenceData(np.zeros((0, 3), int)), "sequences: holds no sequence"),
        (lambda: SequenceData(np.empty((0, 3), "U1")), "sequences: holds no sequence"),
        (lambda: SequenceData(", ,\n", unit="words"), "holds no sequence"),
        (lambda: SequenceData(" \n\n"), "holds no sequence"),
        (lambda: SequenceData([[0, 1]])[1.5], "index: must be a number, a slice or a list of numbers, got 1.5"),
        (lambda: SequenceData([[0, 1]])[True], "index: must be a number, a slice or a list of numbers, got True"),
        (lambda: SequenceData([[0, 1]])[[]], "index: must be a number, a slice or a list of numbers"),
        (lambda: SequenceData([[0, 1]])[1:], "index: must select at least one sequence"),
        (lambda: SequenceData([[0, 1]]).cut(0), "length: must be at least 1, got 0"),
        (lambda: SequenceData([[0, 1]]).chunks(0), "length: must be at least 1, got 0"),
        (lambda: SequenceData([[0, 1]]).prefixes(0), "length: must be at least 1, got 0"),
        (lambda: SequenceData([[0], [1], [0, 1]]).split(0.9, 0.1), r"with a sum below 1, got \(0.9, 0.1\)"),
        (lambda: SequenceData([[0], [1], [0, 1]]).split(0.0), r"with a sum below 1, got \(0.0, 0.1\)"),
        (lambda: SequenceData([[0], [1], [0, 1]]).split(0.5, 0.0), r"with a sum below 1, got \(0.5, 0.0\)"),
        (lambda: SequenceData([[0, 1]]).split(), "2 observations .* cannot be split into three parts"),
        (lambda: SequenceData([[0, 1, 0]]).split(), r"1 sequence cannot .*, for example with data.cut\(1\)"),
        (lambda: SequenceData([[0] * 30, [1] * 30]).split(), r"2 different sequences cannot .* data.cut\(3\)"),
        (lambda: read_as([[0, 1]], {"uint": "lines"}, ["seed"]), "option: unknown 'uint'"),
        (lambda: read_as(SequenceData([[0, 1]]), {"unit": "lines"}), "unit: SequenceData is already read"),
        (lambda: SequenceData(SequenceData([[0, 1]]), unit="lines"), "unit: SequenceData is already read"),
        (lambda: ReadOptions(axis=2), "axis: must be 0"),
        (lambda: Missing.of([True]), "missing: must be names or numbers"),
        (lambda: SequenceData({"a": [[0]], "b": [[1]]}), "has no column or array 'observations', but a, b"),
        (lambda: SequenceData(type("D", (), {"column_names": {"train": ["s"], "test": ["s"]}})()), r"source\['train'\]"),
    ],
)  # fmt: skip
def test_what_holds_nothing_or_too_little_is_refused(call: Any, said: str, unchecked: None) -> None:
    with pytest.raises(InputError, match=said):
        call()


def test_single_sequences_are_counted_from_either_end() -> None:
    data = SequenceData([[0, 1], [1, 1, 1]])
    assert (data[-1].tolist(), data[-2].tolist()) == ([1, 1, 1], [0, 1])
    for number in (2, -3):
        with pytest.raises(IndexError, match=f"index: there are 2 sequences, got {number}"):
            data[number]


def test_a_text_without_an_end_or_a_table_that_is_none_is_said_by_its_name(tmp_path: Path) -> None:
    for name, data, said in (
        ("a.csv", b'x,y\n"0,1\n', "^a.csv: not CSV"),
        ("b.csv", b"\n\n", "^b.csv: holds no sequence"),
        ("a.json", b"{", "^a.json: not JSON"),
        ("a.json", b"{}", "^a.json: must contain a list of sequences"),
        ("a.fq", b"\n\n", "^a.fq: holds no sequence"),
        ("a.fq", b"@1\n\n+\n\n", "^a.fq: holds no sequence"),
        ("a.fq", b"@1\nAC\n+\nII\nx\n", "^a.fq: line 5: a FASTQ record must begin"),
        ("a.fq", b"@1\nAC\n+\nI\n", "record at line 1 has 2 letters but 1 quality characters"),
        ("a.fq", b"@1\nAC\n+\nIII\n", "record at line 1 has 2 letters but 3 quality characters"),
        ("a.fa", b"AC\n>1\n", "^a.fa: line 1: FASTA must begin with a header"),
        ("a.fa", b">1\n\n", "^a.fa: holds no sequence"),
        ("a.txt", b"\xff", "is not UTF-8 text"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=said):
            SequenceData(tmp_path / name)
    np.savez(tmp_path / "a.npz", header=np.array("{"), observations=np.zeros((1, 2), int))
    with pytest.raises(DamagedError, match=r"^a\.npz: header is not JSON"):
        SequenceData(tmp_path / "a.npz")


def test_parquet_is_read_by_its_library_and_refused_by_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty times the bytes that its groups of rows say have to fit into the memory."""
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    sizes, column = [30, 70], [[0, 1], [1]]
    about = SimpleNamespace(row_group=lambda number: SimpleNamespace(total_byte_size=sizes[number]))

    class ParquetFile:
        metadata, num_row_groups, schema_arrow = about, 2, SimpleNamespace(names=["observations"])

        def __init__(self, file: Any) -> None:
            if file.read() != b"PAR1":
                raise OSError("it has\nno end")

        def read(self, columns: list[str]) -> Any:
            return SimpleNamespace(column=lambda name: column if columns == [name] else None)

    parquet = SimpleNamespace(ParquetFile=ParquetFile)
    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace(parquet=parquet))
    monkeypatch.setattr(system_info, "free_memory", lambda: 6000)
    assert [row.tolist() for row in SequenceData(tmp_path / "a.parquet")] == column
    monkeypatch.setattr(system_info, "free_memory", lambda: 5999)
    with pytest.raises(ResourceError, match=r"a\.parquet: needs"):
        SequenceData(tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes(b"PAR")
    with pytest.raises(DamagedError, match=r"^a\.parquet: not Parquet \(it has no end\)"):
        SequenceData(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ResourceError, match=r"a\.parquet: Parquet needs pyarrow; run pip install"):
        SequenceData(tmp_path / "a.parquet")


def test_a_stream_is_cut_where_it_is_said(tmp_path: Path) -> None:
    """Parts end once they have so many observations, and pieces of a long line are as long as is said."""
    path = tmp_path / "a.txt"
    path.write_text("ababa\n\n  ab \nb\n")
    parts = [[row.tolist() for row in part] for part in SequenceStream(path, unit="characters", batch=4, longest=2)]
    assert parts == [[[0, 1], [0, 1]], [[0], [0, 1], [1]]]
    stream = SequenceStream(path, unit="characters")
    assert (stream.size, stream.symbols, sum(map(len, stream)), stream.position) == (15, ("a", "b"), 3, 15)
    path.write_text("3, 1 NA\n0\n")
    numbers = SequenceStream(path, unit="numbers", missing="NA")
    assert (numbers.num_symbols, numbers.symbols) == (4, None)
    assert [row.tolist() for part in numbers for row in part] == [[3, 1, MISSING], [0]]
    path = tmp_path / "a.fa"
    path.write_text(">1\nAC\ngt\n;x\n>2\n\n>3\nA\n")
    assert [row.tolist() for part in SequenceStream(path, longest=3) for row in part] == [[0, 1, 2], [3], [0]]
    data = SequenceData([[0, 1, 2, 0, 1], [2, 2]])
    data.save(tmp_path / "a.safetensors")
    mapped = SequenceStream(tmp_path / "a.safetensors", batch=3, longest=2)
    assert [[row.tolist() for row in part] for part in mapped] == [[[0, 1], [2, 0]], [[1], [2, 2]]]
    assert mapped.position == mapped.size


@pytest.mark.parametrize(
    ("name", "text", "options", "said"),
    [
        ("a.txt", "ab\n", {}, "unit: is required for streamed text"),
        ("a.txt", "ab\n", {"unit": "lines"}, "unit: unknown 'lines'"),
        ("a.txt", "ab\n", {"unit": "words", "batch": 0}, "batch: must be at least 1, got 0"),
        ("a.txt", "ab\n", {"unit": "words", "longest": 1}, "longest: must be at least 2, got 1"),
        ("a.txt", "\n", {"unit": "words"}, "a.txt: holds no sequence"),
        ("a.txt", "x\n", {"unit": "numbers"}, "a.txt: holds no sequence"),
        ("a.txt", "x\n", {"unit": "words", "missing": "x"}, "a.txt: holds no sequence"),
        ("a.csv", "0\n", {}, "streams read text, FASTA or .safetensors; use SequenceData"),
    ],
)
def test_a_stream_needs_to_know(tmp_path: Path, name: str, text: str, options: dict[str, Any], said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said):
        SequenceStream(tmp_path / name, **options)


def test_a_stream_of_a_file_of_ours_takes_its_symbols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = {"sequences": json.dumps({"symbols": ["a", "b"]})}
    path = tmp_path / "a.safetensors"
    for tensors, said in (
        ({"tokens": torch.tensor([0, 1])}, "must be a file from SequenceData.save"),
        (
            {"tokens": torch.tensor([[0, 1]]), "lengths": torch.tensor([2])},
            r"must be concatenated sequences .*, got shape \(1, 2\)",
        ),
        (
            {"tokens": torch.tensor([0, 1]), "lengths": torch.tensor([1])},
            "lengths: must be positive and sum to the number",
        ),
    ):
        store.write_tensors(path, tensors, header)
        with pytest.raises(InputError, match=said):
            list(SequenceStream(path))
        path.unlink()
    store.write_tensors(path, {"tokens": torch.tensor([0, 1]), "lengths": torch.tensor([2])}, header)
    assert SequenceStream(path, symbols=["a", "b"]).symbols == ("a", "b")
    with pytest.raises(InputError, match=r"symbols: differ from those of the file \(a, b\); leave symbols out"):
        SequenceStream(path, symbols=["b", "a"])
    monkeypatch.setattr(streaming, "_MAX_LINE", 4)
    (tmp_path / "a.txt").write_text("abc\nabcd")
    assert len(next(iter(SequenceStream(tmp_path / "a.txt", unit="characters")))) == 2
    (tmp_path / "a.txt").write_text("abcd\n")
    with pytest.raises(InputError, match="a line is longer than 4 bytes"):
        SequenceStream(tmp_path / "a.txt", unit="characters")
    (tmp_path / "a.txt").write_bytes(b"\xff\n")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        SequenceStream(tmp_path / "a.txt", unit="characters")


def test_the_summary_of_what_was_read() -> None:
    said = [encoding.summary(SequenceData(rows)._encoded) for rows in ([[0]], [[0, 1], [1, 0]], [[0, 1], [1]])]
    assert said == ["1 sequence of 1, 1 symbol", "2 sequences of 2, 2 symbols", "2 sequences of 1 to 2, 2 symbols"]


@pytest.mark.parametrize("group", [None, "t"])
def test_a_column_of_decimals_is_no_column_of_symbols(tmp_path: Path, group: str | None) -> None:
    """Decimal numbers need `unit`; whole numbers and names that contain points are symbols."""
    path = tmp_path / "a.csv"
    path.write_text("t,x\n0,0.25\n0,NA\n1,-1e3\n1,2\n")
    asked = {"column": "x", "group": group, "missing": "NA"}
    with pytest.raises(
        InputError, match=r"a\.csv: column x: contains decimal numbers instead of symbols; .*emission='gaussian'"
    ):
        SequenceData(path, **asked)
    assert SequenceData(path, unit="lines", **asked).symbols == ("-1e3", "0.25", "2")
    path.write_text("t,x\n0,0.25a\n0,NA\n1,b\n1,c\n")
    found = SequenceData(path, **asked)
    assert found.symbols == (("0.25a", "b", "c") if group else tuple(".025ANabc"))
    path.write_text("t,x\n0,1\n0,NA\n1,1\n1,2\n")
    assert SequenceData(path, **asked).flat.tolist() == [1, 3, 1, 2]
    path.write_text("t,x\n0,101\n0,NA\n1,110\n1,111\n")  # words of digits, or large numbers
    if group is None:
        with pytest.raises(InputError, match="can be read in two ways: as characters"):
            SequenceData(path, **asked)
    path.write_text("t,x\n0,1\n0,-1\n1,1\n1,2\n")
    with pytest.raises(InputError, match=r"-1 is not a symbol.*--missing NA,-1"):
        SequenceData(path, **asked)


def test_a_number_far_above_all_others_is_no_symbol() -> None:
    """A mark for what is missing, or a slip, would make a table of millions of symbols."""
    for source in ([[0, 1, 999999]], np.array([[0, 1, 999999]])):
        with pytest.raises(
            InputError, match=r"symbol 999999 implies 1000000 symbols for 3 observations; pass symbols=1000000"
        ):
            SequenceData(source)
    assert SequenceData([[0, 1, 999999]], symbols=1000000).num_symbols == 1000000
    assert SequenceData([[0, 1, 2**16 - 1]]).num_symbols == 2**16
    assert SequenceData([[*range(2**14), 2**16]]).num_symbols == 2**16 + 1


def test_bytes_and_unknown_units_are_refused() -> None:
    with pytest.raises(InputError, match=r"bytes can be read in two ways: as text, source\.decode\(\), or as numbers"):
        SequenceData(b"abba")
    with pytest.raises(InputError, match=r"unit: unknown 'x' \(known: characters, lines, numbers, words\)"):
        SequenceData([[0, 1]], unit="x")


def test_an_empty_list_is_refused_before_the_others_are_read(monkeypatch):
    """Reading millions of lists takes seconds, which an error need not."""
    monkeypatch.setattr("hmmscope.sequences.read_request.plain", lambda _: pytest.fail("was read"))
    with pytest.raises(InputError, match="sequence 2: is empty; leave it out"):
        SequenceData([[0, 1], [], []])


def test_advice_of_an_error_can_be_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Calls that messages suggest are run; FASTA with other signs is refused, and its names stand in the output."""
    hmm = hs.load_process("umbrella")
    for X in (np.array([[0.0, np.nan, 1.0]]), [[0], [1], [1]], [[0, 1, None]]):
        with pytest.raises(InputError) as found:
            hs.filter_beliefs(hmm, X)
        call = re.search(r"hmmscope\.(SequenceData\([^)]*\))", str(found.value))
        assert call, str(found.value)
        data = eval(call[1], {"SequenceData": hs.SequenceData, "X": X, "rows": X})
        assert hs.filter_beliefs(hmm, data).log_likelihood.isfinite().all()
    path = tmp_path / "reads.fasta"
    for text, said in ((">a\nACGT1\n", "line 2: '1' is not a letter"), (">a\nAC\0GT\n", "or binary; save it as UTF-8")):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            hs.SequenceData(path)
    path.write_text(">one\nACGT\n>two\nTT\n")
    hs.fit(path, 1).hmm.save(tmp_path / "fit.json")
    assert main(["infer", str(tmp_path / "fit.json"), str(path), "-q"]) == 0
    out = capsys.readouterr().out
    assert "sequence 1 (one):" in out
    assert "sequence 2 (two):" in out
