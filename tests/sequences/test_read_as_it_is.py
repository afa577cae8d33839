"""What stands in a file or a frame is what is read: byte-order marks, comments, ends of lines, names with zeros in front."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import DamagedError, InputError
from hmmscope.lab.cli import main
from hmmscope.lab.verbs.analyse import _file_name
from hmmscope.storage import disk

RECORDS = ">a\nACGT\nACCA\n>b\nGGTT\n"


@pytest.mark.parametrize(
    "text",
    [
        RECORDS,
        f"\ufeff{RECORDS}",
        f"; made by hand\n\n{RECORDS}",
        RECORDS.replace("\n", "\r\n"),
        RECORDS.replace("\n", "\r"),
    ],
)
def test_a_stream_of_fasta_is_read_like_the_whole(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.fasta"
    path.write_bytes(text.encode())
    stream = hs.SequenceStream(path)
    assert stream.symbols == ("A", "C", "G", "T")
    assert [row.tolist() for part in stream for row in part] == [row.tolist() for row in hs.SequenceData(path)]


def test_a_stream_of_text_has_no_mark_and_no_ends_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes("\ufeffabba\rbab\r\nab\n".encode())
    stream = hs.SequenceStream(path, unit="characters")
    assert stream.symbols == ("a", "b")
    whole = hs.SequenceData(path, unit="characters")
    assert [row.tolist() for part in stream for row in part] == [row.tolist() for row in whole]
    assert len(whole) == 3


def test_text_that_begins_like_fasta_is_asked_about(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text(RECORDS)
    for read in (hs.SequenceData, hs.SequenceStream):
        with pytest.raises(InputError, match=r"can be read in two ways: as FASTA, if it is named \.fasta, or as text"):
            read(path)
    assert ">" in hs.SequenceData(path, unit="characters").symbols


def test_codes_with_zeros_in_front_are_names(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("code\n01\n1\n001\n1\n")
    data = hs.SequenceData(path, column="code", unit="lines")
    assert data.symbols == ("001", "01", "1")
    assert data[0].tolist() == [1, 2, 0, 2]
    path.write_text("code\n0\n1\n10\n")
    assert hs.SequenceData(path, column="code", unit="lines").num_symbols == 11


def test_strings_of_json_lines_may_hold_ends_of_lines_of_other_kinds(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"words": "a\u2028b"}\n{"words": "b\u0085a"}\r\n')
    assert len(hs.SequenceData(path, column="words", unit="characters")) == 2


class Series:
    """A column of a frame whose labels do not begin at 0."""

    ndim = 1

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)
        self.dtype = self.values.dtype

    def __array__(self, *given: Any, **options: Any) -> np.ndarray:
        return self.values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, label: object) -> Any:
        raise KeyError(label)


def test_labels_of_rows_do_not_matter(unchecked: None) -> None:
    umbrella = hs.load_process("umbrella")
    seen = np.array([0, 1, 1, 0, 1])
    whole = hs.filter_beliefs(umbrella, seen)
    assert hs.filter_beliefs(umbrella, Series(seen)).beliefs.equal(whole.beliefs)
    rows = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0]])
    assert hs.filter_beliefs(umbrella, rows, lengths=Series([5, 3])).beliefs[0].equal(whole.beliefs[0])
    assert hs.SequenceData(Series([True, False, True]))[0].tolist() == [1, 0, 1]
    numbers = hs.GaussianHMM([1.0], [[1.0]], [[0.0]], torch.ones(1, 1))
    assert hs.log_likelihood(numbers, np.zeros((5, 1)), lengths=Series([3, 2])).shape == (2,)


class Frame:
    """A frame whose columns are numbers."""

    columns = (0, 1)

    def __getitem__(self, name: object) -> Any:
        return {0: [0, 1, 1], 1: [1, 1, 0]}[name]  # type: ignore[index]


@pytest.mark.parametrize("column", [1, "1"])
def test_columns_of_a_frame_may_be_numbers(column: object, unchecked: None) -> None:
    assert hs.SequenceData(Frame(), column=column, axis=0)[0].tolist() == [1, 1, 0]  # type: ignore[arg-type]


def test_what_several_channels_cannot_show_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, table = tmp_path / "m.json", tmp_path / "x.csv"
    hs.MultichannelHMM([1.0], [[1.0]], [[[1.0, 0.0]], [[0.5, 0.5]]]).save(model)
    table.write_text("a,b\n0,1\n1,0\n")
    assert main(["infer", str(model), str(table)]) == 0
    assert "impossible from observation 1 (1.000000, 0.000000) on" in capsys.readouterr().out


def test_truncated_packed_files_are_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "x.txt.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00\xff\xfe")
    with pytest.raises(DamagedError, match="cannot be unpacked"):
        hs.SequenceData(path)


def test_names_of_files_that_differ_in_other_letters_differ() -> None:
    names = {
        _file_name(name)
        for name in ("curves-days é.txt", "curves-days ä.txt", "curves-days-.txt", "a" * 300, "a" * 200)
    }
    assert len(names) == 5
    assert _file_name("probe-target-state") == "probe-target-state"
    assert max(map(len, names)) < 220


def test_where_no_file_can_be_made_is_said(tmp_path: Path) -> None:
    def make(path: Path) -> int:
        raise FileNotFoundError(path)

    with pytest.raises(OSError, match="no file can be created in this folder"):
        disk.open_temporary(tmp_path / "x", make)
