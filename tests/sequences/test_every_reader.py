"""Every reader x one long sequence, many short ones, and gaps goes through fit, exact answers, study and training."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hmmscope as hs
from hmmscope.lab.cli import main
from hmmscope.lab.study.run_study import StudySpec
from hmmscope.storage import store

NAMES = "abc"
#: Two states that stay; what is None was not observed.
SHAPES = {"one long": (1, 600), "many short": (40, 15), "gaps": (40, 15)}
STUDY = StudySpec(length=20, states=(1, 2), restarts=1, iterations=3, order=1, networks=("rnn",), max_steps=2)
#: The same on the command line.
SMALL_STUDY = "--length 20 --states 1,2 --restarts 1 --iterations 3 --order 1 --networks rnn --max_steps 2"


def drawn(shape: str) -> list[list[str | None]]:
    process = hs.HMM([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], [[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]])
    count, length = SHAPES[shape]
    rows = hs.ProcessDataset(process, length=length, seed=2)[0:count].observations.tolist()
    gone = np.random.default_rng(1).random((count, length)) < (0.2 if shape == "gaps" else 0)
    return [[None if gone[i, t] else NAMES[v] for t, v in enumerate(row)] for i, row in enumerate(rows)]


def text(rows: list, glue: str, gap: str, between: str = "\n") -> str:
    return "".join(glue.join(gap if name is None else name for name in row) + between for row in rows)


def numbers(rows: list) -> list[list[int]]:
    return [[-1 if name is None else NAMES.index(name) for name in row] for row in rows]


class Frame(dict):
    """A table as frames are: `columns`, and columns by name."""

    @property
    def columns(self) -> list[str]:
        return list(self)


def file(name: str, write: Callable[[list], str], **options: Any) -> Callable[[list, Path], tuple[Any, dict]]:
    def source(rows: list, folder: Path) -> tuple[Any, dict]:
        (folder / name).write_text(write(rows))
        return folder / name, options

    return source


def npz(rows: list, folder: Path) -> tuple[Any, dict]:
    np.savez(folder / "a.npz", observations=np.array(numbers(rows)))
    return folder / "a.npz", {"missing": -1}


def saved(ending: str) -> Callable[[list, Path], tuple[Any, dict]]:
    def source(rows: list, folder: Path) -> tuple[Any, dict]:
        hs.SequenceData(rows, missing=[None]).save(folder / f"a{ending}")
        return folder / f"a{ending}", {}

    return source


def long_column(rows: list) -> list[tuple[int, str | None]]:
    return [(number, name) for number, row in enumerate(rows) for name in row]


READERS: dict[str, Callable[[list, Path], tuple[Any, dict]]] = {
    "lists": lambda rows, _: (rows, {"missing": [None]}),
    "array": lambda rows, _: (np.array(numbers(rows)), {"missing": -1}),
    "masked": lambda rows, _: (np.ma.masked_equal(np.array(numbers(rows)), -1), {}),
    "column and lengths": lambda rows, _: (
        np.concatenate(numbers(rows))[:, None],
        {"missing": -1, "lengths": [len(row) for row in rows]},
    ),
    "characters": file("a.txt", lambda rows: text(rows, "", "-"), unit="characters", missing="-"),
    "words": file("a.txt", lambda rows: text(rows, " ", "NA"), unit="words", missing="NA"),
    "lines": file("a.txt", lambda rows: text(rows, "\n", "NA", "\n\n"), unit="lines", missing="NA"),
    "fasta": file("a.fa", lambda rows: "".join(f">\n{line}\n" for line in text(rows, "", "-").split()), missing="-"),
    "fastq": file(
        "a.fq",
        lambda rows: "".join(f"@\n{line}\n+\n{'I' * len(line)}\n" for line in text(rows, "", "-").split()),
        missing="-",
    ),
    "csv": file(
        "a.csv",
        lambda rows: "u,s\n" + "".join(f"{u},{'' if s is None else s}\n" for u, s in long_column(rows)),
        column="s",
        group="u",
        missing="",
    ),
    "json": file("a.json", json.dumps, missing="none"),
    "jsonl": file("a.jsonl", lambda rows: "".join(json.dumps({"s": row}) + "\n" for row in rows), missing="none"),
    "npz": npz,
    "frame": lambda rows, _: (
        Frame(zip(("u", "s"), map(list, zip(*long_column(rows), strict=True)), strict=True)),
        {"column": "s", "group": "u", "missing": "none"},
    ),
    **{ending: saved(ending) for ending in (".npz", ".safetensors", ".jsonl")},
}


def parquet(rows: list, folder: Path) -> tuple[Any, dict]:
    """Sequences as lists in a column."""
    pyarrow, tables = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    tables.write_table(pyarrow.table({"id": list(range(len(rows))), "s": rows}), folder / "a.parquet")
    return folder / "a.parquet", {"column": "s", "missing": "none"}


def events(make: str) -> Callable[[list, Path], tuple[Any, dict]]:
    """One observation a row, in the table that `make` makes of columns: "pandas.DataFrame"."""
    library, _, kind = make.partition(".")

    def source(rows: list, folder: Path) -> tuple[Any, dict]:
        table: Any = pytest.importorskip(library)
        for name in kind.split("."):
            table = getattr(table, name)
        columns = dict(zip(("u", "s"), map(list, zip(*long_column(rows), strict=True)), strict=True))
        return table(columns), {"column": "s", "group": "u", "missing": "none"}

    return source


def texts(rows: list, _: Path) -> tuple[Any, dict]:
    """A text a row."""
    lines = text(rows, "", "-").split()
    return pytest.importorskip("datasets").Dataset.from_dict({"s": lines}), {
        "column": "s",
        "unit": "characters",
        "missing": "-",
    }


TABLES: dict[str, Callable[[list, Path], tuple[Any, dict]]] = {
    "parquet": parquet,
    "arrow": events("pyarrow.table"),
    "pandas": events("pandas.DataFrame"),
    "polars": events("polars.DataFrame"),
    "polars, lazy": events("polars.LazyFrame"),
    "datasets": events("datasets.Dataset.from_dict"),
    "datasets of texts": texts,
}
READERS |= TABLES

#: Those that are files.
FILES = "characters words lines fasta fastq csv json jsonl npz parquet .npz .safetensors .jsonl"
CROSS = [(reader, shape) for reader in READERS for shape in SHAPES]


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("reader", "shape"), CROSS)
def test_every_reader_goes_everywhere(tmp_path: Path, reader: str, shape: str) -> None:
    rows = drawn(shape)
    source, options = READERS[reader](rows, tmp_path)
    data = hs.SequenceData(source, **options)
    assert [[None if v == hs.MISSING else v for v in s.tolist()] for s in data] == [
        [None if v < 0 else v for v in row] for row in numbers(rows)
    ]
    fitted = hs.fit(source, 2, options=hs.FitOptions(num_restarts=1, max_iterations=3), **options)
    assert fitted.num_observations == sum(name is not None for row in rows for name in row)
    exact = hs.log_likelihood(fitted.hmm, data)
    assert float(exact.sum()) == pytest.approx(fitted.log_likelihood, rel=1e-7)  # the law is quantised after the fit
    assert hs.missing_probs(fitted.hmm, data).shape == (len(rows), data.longest, 3)
    study = hs.study(source, tmp_path / "study", **options, spec=STUDY)
    assert {row["family"] for row in study.table()} == {"n-gram", "context trees", "HMM", "network"}
    network: dict[str, Any] = {"model": {"name": "rnn", "width": 8}, "num_steps": 2}
    run = hs.train(source, tmp_path / "run", length=15, **network, **options)  # type: ignore[arg-type]
    assert run.summary is not None
    assert np.isfinite(run.summary["loss"])
    assert run.process.data.num_missing == data.num_missing
    assert run.process.data.num_observations == data.num_observations


@pytest.mark.parametrize(
    ("reader", "shape"),
    [pytest.param(*x, marks=[] if x == ("csv", "gaps") else pytest.mark.slow) for x in CROSS if x[0] in FILES.split()],
)
def test_every_file_goes_through_every_verb(tmp_path: Path, reader: str, shape: str) -> None:
    """`fit` is told how to read; `ask` with what was fitted needs no word of it."""
    rows = drawn(shape)
    source, options = READERS[reader](rows, tmp_path)
    how = [word for name, value in options.items() for word in (f"--{name}", str(value))]

    def verb(*argv: object) -> None:
        assert main([*map(str, argv), "--quiet"]) == 0

    fitted, table = tmp_path / "h.json", tmp_path / "asked.jsonl"
    verb("fit", source, *how, "--states", 2, "--restarts", 1, "--iterations", 3, "--out", fitted)
    verb("infer", fitted, source, "--smooth", "--viterbi", "--out", table)
    asked = store.read_table(table)
    assert [row["observation"] for row in asked] == [None if v < 0 else v for row in numbers(rows) for v in row]
    smoothed = hs.smooth_beliefs(hs.load_process(fitted), hs.SequenceData(source, **options))
    assert asked[0]["smoothed"] == pytest.approx(smoothed[0, 0].tolist(), abs=1e-12)
    verb("study", source, *how, "--out", tmp_path / "study", *SMALL_STUDY.split())
    assert (tmp_path / "study" / "report.html").exists()
    sizes = ["--model", "rnn", "--model.width", 8, "--layout.length", 15, "--training.num_steps", 2]
    verb("train", source, *how, "--out", tmp_path / "run", *sizes)
    assert np.isfinite((hs.load_run(tmp_path / "run").summary or {})["loss"])
