"""Missing observations from every source, through files, fits, corpora, trainings and counts."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hmmscope as hs
from hmmscope.analysis.ngrams import TunedNgrams
from hmmscope.analysis.trained_ngrams import TrainedNgrams
from hmmscope.datasets.targets import PADDING, make_target
from hmmscope.errors import InputError
from hmmscope.kernels.context_counts import context_counts, context_tree_laws
from hmmscope.lab.study.study_tables import grams
from hmmscope.processes.recorded_sequences import RecordedSequences
from hmmscope.sequences.data import SequenceData

GAP = hs.MISSING
#: What every source below holds, read as rows of numbers, and of names.
ROWS = [[0, 1, GAP, 1], [1, GAP]]
BY_U: dict[str, Any] = {"column": "s", "group": "u"}


def rows(data: SequenceData) -> list[list[int]]:
    return [sequence.tolist() for sequence in data]


class Frame(dict):
    @property
    def columns(self) -> list[str]:
        return list(self)


FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "a.txt": ("ab-b\nb-\n", {"unit": "characters", "missing": "-"}),
    "words.txt": ("a b NA b\nb NA\n", {"unit": "words", "missing": "NA"}),
    "numbers.txt": ("0 1 NA 1\n1 NA\n", {"unit": "numbers", "missing": "NA"}),
    "lines.txt": ("a\nb\nNA\nb\n\nb\nNA\n", {"unit": "lines", "missing": "NA"}),
    "a.fasta": (">1\nACNC\n>2\nC-\n", {"missing": ["N", "-"]}),
    "a.fastq": ("@1\nACNC\n+\nIIII\n@2\nCN\n+\nII\n", {"missing": "N"}),
    "events.csv": ("u,s\n1,a\n1,b\n2,b\n1,\n1,b\n2,\n", {"column": "s", "group": "u", "missing": ""}),
    "texts.csv": ("s\nab-b\nb-\n", {"column": "s", "missing": "-"}),
    "rows.csv": ("0,1,NA,1\n1,NA\n", {"missing": "NA"}),
    "rows.jsonl": ('[0, 1, null, 1]\n[1, null]\n', {"missing": [None]}),
    "named.jsonl": ('{"s": ["a", "b", null, "b"]}\n{"s": ["b", null]}\n', {"missing": "none"}),
    "a.json": ("[[0, 1, null, 1], [1, -1]]", {"missing": [None, -1]}),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_with_gaps(tmp_path: Path, name: str) -> None:
    text, options = FILES[name]
    (tmp_path / name).write_text(text)
    data = SequenceData(tmp_path / name, **options)
    assert rows(data) == ROWS
    assert (data.num_observations, data.num_missing, data.num_symbols) == (4, 2, 2)
    assert ", 2 missing" in data.describe()
    assert "?" in data.describe()
    fitted = hs.fit(data, 1, options=hs.FitOptions(max_iterations=1)).hmm
    fitted.save(tmp_path / "hmm.json")
    again = hs.load_process(tmp_path / "hmm.json")
    assert again.read_options == data.read_options
    assert SequenceData(tmp_path / name, symbols_from=again) == data


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ([[0, 1, None, 1], [1, None]], {"missing": [None]}),
        ([["a", "b", float("nan"), "b"], ["b", None]], {"missing": "nan"}),
        ([[0.0, 1.0, float("nan"), 1.0], [1, float("nan")]], {"missing": float("nan")}),
        ([[0, 1, -1, 1], [1, -1]], {"missing": -1}),
        (np.array([[0, 1, -1, 1], [1, -1, 9, 9]]), {"missing": -1, "lengths": [4, 2]}),
        (np.array([[0.0], [1.0], [np.nan], [1.0], [1.0], [np.nan]]), {"missing": "nan", "lengths": [4, 2]}),
        (np.ma.masked_equal(np.array([[0, 1, 5, 1], [1, 5, 0, 0]]), 5), {"lengths": [4, 2]}),
        (torch.tensor([[0, 1, GAP, 1], [1, GAP, 0, 0]]), {"lengths": [4, 2]}),
        (Frame(s=["ab-b", "b-"]), {"column": "s", "missing": "-"}),
        (Frame(s=["a", "b", "b", None, "b", None], u=[1, 1, 2, 1, 1, 2]), BY_U | {"missing": [None]}),
        (Frame(s=[0.0, 1.0, 1.0, np.nan, 1.0, np.nan], u=[1, 1, 2, 1, 1, 2]), BY_U | {"missing": "nan"}),
        (Frame(observations=[[0, 1, None, 1], [1, None]]), {"missing": [None]}),
    ],
)  # fmt: skip
def test_objects_with_gaps(source: object, options: dict) -> None:
    assert rows(SequenceData(source, **options)) == ROWS


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ([[0, 1], [1, None]], {}, r"sequence 2, symbol 2: is None, .* pass missing='none' \(--missing none\)"),
        ([["a"], ["b", None]], {}, r"sequence 2, symbol 2: is None, .* pass missing='none'"),
        (np.array([0, -1]), {}, r"symbol 2: -1 is not a symbol in .* give lengths; .* missing='-1' \(--missing -1\)"),
        ([[0, 1], []], {}, "sequence 2: is empty; leave it out"),
        ([["a"], []], {}, "sequence 2: is empty; leave it out"),
        ([["a"], ["b", ""]], {}, r"sequence 2, symbol 2: is empty, which is not a symbol; .* \(--missing ''\)"),
        ([[0, 1, 1]], {"lengths": [3, 0]}, "lengths: sequence 2 is empty; leave it out"),
        ([[None, None]], {"missing": [None]}, "every observation is missing"),
        (["--"], {"unit": "characters", "missing": "-"}, "^sequences: every observation is missing"),
        (["-", "-"], {"unit": "lines", "missing": "-"}, "^sequences: every observation is missing"),
        ("-\n-\n", {"unit": "lines", "missing": "-"}, "^sequences: every observation is missing"),
        (["ACN"], {"symbols": "ACGT"}, r"'N' is not one of A, C, G, T; .* pass missing='N' \(--missing N\)"),
        ("1 0 NA\n", {"unit": "numbers"}, "'NA' is not one of the numbers .*; if .* missing='NA'"),
        ([["a", "b"]], {"symbols": ["a", "c"]}, "'b' is not one of a, c$"),
        ([[2**63]], {}, "sequence 1: 9223372036854775808 is not a symbol; symbols must be below 16777216"),
        ({0, 1}, {}, "must have an order, such as a list, got a set"),
        ([["a", "b"]], {"symbols": ["a", "b"], "missing": "b"}, "missing: 'b' is also a symbol"),
        ([["a"]], {"missing": {"a": 1}}, "missing: must be names or numbers"),
        ([["a"]], {"symbols": ["a", ""]}, "symbols: name 2 is empty; each name needs at least one character"),
        (Frame(s=["a", None], u=[1, 1]), BY_U, "row 2: column s: is None; .*missing='none'"),
        (Frame(s=["a", ""], u=[1, 1]), BY_U, r"row 2: column s: is empty; .* missing='' \(--missing ''\)"),
        (Frame(s=["a", ""], u=[1, 1]), BY_U | {"missing": "NA"}, r"missing=\['NA', ''\] \(--missing NA,\)"),
        (Frame(s=["a", "b"], u=[1, None]), BY_U | {"missing": [None]}, "row 2, column u: is None, so the row has no group"),
    ],
)  # fmt: skip
def test_what_nobody_named_is_refused_with_its_place(source: object, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SequenceData(source, **options)


def test_a_symbol_may_be_called_none() -> None:
    data = SequenceData([["none", None, "rain"]], missing=[None])
    assert (data.symbols, rows(data)) == (("none", "rain"), [[0, GAP, 1]])
    assert SequenceData([["none", math.nan]], symbols_from=data) == SequenceData(
        [["none", None]], symbols=data.symbols, missing="nan"
    )
    assert SequenceData([["none", None, "rain"]], missing="none").symbols == ("rain",)


def test_letters_that_may_be_gaps_are_said(tmp_path: Path) -> None:
    (tmp_path / "a.fa").write_text(">1\nACN-\n>2\n>3\nAA\n")
    assert "unless you pass --missing -,N; 1 empty record left out" in SequenceData(tmp_path / "a.fa").how
    (tmp_path / "p.fa").write_text(">1\nMNK\n")
    assert "missing" not in SequenceData(tmp_path / "p.fa").how  # N of proteins is asparagine


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0, 1, 2, GAP]), min_size=1, max_size=5), min_size=1, max_size=4),
    st.sampled_from([None, ("sun", "rain", "hail", "fog"), ("b", "a", "d", "c"), ("NA", "none", "?", "x")]),
    st.sampled_from([".npz", ".safetensors", ".jsonl"]),
)
def test_what_is_written_is_read_back_equal(tmp_path_factory: Any, given_rows: list, names: Any, ending: str) -> None:
    if all(value == GAP for row in given_rows for value in row):
        return
    data = SequenceData(given_rows, symbols=names or 4)
    path = tmp_path_factory.mktemp("w") / f"a{ending}"
    data.save(path)
    again = SequenceData(path)
    assert again == data
    assert (rows(again), again.symbols, again.num_symbols) == (given_rows, data.symbols, 4)
    stream = hs.SequenceStream(path) if ending == ".safetensors" else None
    if stream is not None:
        assert [row for part in stream for row in rows(part)] == given_rows


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"symbols": "sun"}, "symbols: must be a list of names, got 'sun'"),
        ({"symbols": ["a", "a"]}, "symbols: must be different names"),
        ({"symbols": ["a", ""]}, "symbols: name 2 is empty"),
        ({"version": 2}, "version: must be 1 of hmmscope-sequences, got 2"),
        ({"format": "hmmscope-hmm"}, "must have the format 'hmmscope-sequences', got 'hmmscope-hmm'"),
        ({"symbols": ["a", "b"], "num_symbols": 3}, "num_symbols: must be the number of names, 2, got 3"),
        ({"num_symbols": -1}, r"symbols: must be in \[1, "),
        ("ab", "row 1: alphabet: must be a mapping with symbols, got 'ab'"),
    ],
)
def test_the_header_of_json_lines_is_checked(tmp_path: Path, header: object, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"observations": [0, 1], "alphabet": header}))
    with pytest.raises(InputError, match=f"^a.jsonl: {message}") as caught:
        SequenceData(tmp_path / "a.jsonl")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("lists", [[[0], [1], [1]], [["b"], ["a"], ["b"]]])
def test_lists_of_one_symbol_are_read_as_is_said(tmp_path: Path, lists: list) -> None:
    """A column of hmmlearn, as lists, is one sequence or many."""
    with pytest.raises(
        InputError, match=r"3 lists of one symbol .* axis=0 as one sequence of 3 symbols, or with axis=1 as 3 seq"
    ):
        SequenceData(lists)
    column, each = SequenceData(lists, axis=0), SequenceData(lists, axis=1)
    assert (column.lengths.tolist(), each.lengths.tolist()) == ([3], [1, 1, 1])
    assert SequenceData(lists, symbols_from=column) == column
    assert SequenceData(lists, lengths=[1, 1, 1]) == each
    each.save(tmp_path / "a.jsonl")
    assert SequenceData(tmp_path / "a.jsonl") == each


def test_streams_with_gaps(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab-b\nb-\n")
    parts = list(hs.SequenceStream(tmp_path / "a.txt", unit="characters", missing="-"))
    assert [row for part in parts for row in rows(part)] == ROWS
    fitted = hs.fit(tmp_path / "a.txt", 1, stream=True, unit="characters", missing="-")
    assert fitted.num_observations == 4
    assert fitted.hmm.emission[0, 1] > fitted.hmm.emission[0, 0]


def planted(count: int = 60, length: int = 20) -> SequenceData:
    """Sequences that repeat themselves, of which every seventh observation is missing."""
    drawn = np.random.default_rng(0).integers(0, 3, (count, length))
    drawn[:, 1::2] = (drawn[:, ::2] + 1) % 3
    return SequenceData(np.where(np.arange(count * length).reshape(count, length) % 7 == 3, -1, drawn), missing=-1)


def test_a_network_sees_a_token_and_is_not_asked() -> None:
    data = planted()
    process = RecordedSequences(data)
    dataset = hs.ProcessDataset(process, layout=hs.SequenceLayout(length=20, placeholder=True), stream="evaluate")
    batch = dataset[0:4]
    gaps = batch.observations == GAP
    assert gaps.any()
    assert dataset.vocab_size == 5  # three symbols, the placeholder, and what stands for a gap
    assert (batch.tokens[:, 1:][gaps] == 4).all()
    assert (batch.tokens[:, 1:][~gaps] == batch.observations[~gaps]).all()
    labels = make_target("observation", process, dataset.layout).labels(batch)
    assert torch.equal(labels == PADDING, gaps)
    with pytest.raises(InputError, match="layout: must be SequenceLayout for sequences with missing observations"):
        hs.ProcessDataset(process, layout=hs.PromptLayout(num_demonstrations=1))


def test_training_and_its_baselines_on_gaps(tmp_path: Path) -> None:
    """A run trains, is loaded with its gaps, and stands beside counting and the optimum of an HMM, judged where seen."""
    data = planted()
    run = hs.train(data, tmp_path / "run", model={"name": "gru", "width": 16}, num_steps=30, training={"batch_size": 8})
    loaded = hs.load_run(tmp_path / "run")
    assert loaded.dataset().process.data == data
    score = hs.evaluate(loaded.model, loaded.dataset("evaluate"), num_samples=6)
    seen = loaded.dataset("evaluate")[0:6].observations[:, 1:] != GAP
    for name, metrics in score.measures.items():
        assert np.array_equal(np.isfinite(metrics["loss"]), seen.numpy()), name
    assert run.model.vocab_size == 4
    hmm = hs.fit(data, 2, options=hs.FitOptions(num_restarts=3, max_iterations=10)).hmm
    beside = hs.ProcessDataset(RecordedSequences(data, hmm), length=20, stream="evaluate")
    exact = hs.evaluate(loaded.model, beside, num_samples=6, baselines=False)
    batch = beside[0:6]
    terms = hs.filter_beliefs(hmm, batch.observations).log_likelihood_terms[:, 1:]
    found = exact.measures["optimum"]["loss"]
    np.testing.assert_allclose(found[seen.numpy()], -terms[seen].numpy(), rtol=1e-12)


def brute_counts(row: list[int], t: int, order: int, num_symbols: int) -> list[int]:
    """How often each symbol has followed the last `order` symbols before t, where no gap is among them."""
    context = row[t - order : t]
    found = [0] * num_symbols
    if len(context) < order or GAP in context:
        return found
    for u in range(order, t):
        if row[u] != GAP and row[u - order : u] == context:
            found[row[u]] += 1
    return found


def test_no_context_reaches_over_a_gap() -> None:
    rng = np.random.default_rng(2)
    seen = np.where(rng.random((4, 30)) < 0.2, GAP, rng.integers(0, 2, (4, 30)))
    counts = context_counts(seen, np.arange(30), 2, 3)
    for b in range(4):
        for t in range(30):
            for order in range(min(t, 3) + 1):
                assert counts[b, t, order].tolist() == brute_counts(seen[b].tolist(), t, order, 2)
    laws = context_tree_laws(seen, np.arange(30), 2, 3, 0.5, 0.5)
    assert np.allclose(laws.sum(-1), 1)
    of_seen = context_tree_laws(seen, np.arange(30), 2, 3, 0.5, 0.5, of_seen=True)[..., 0]
    chosen = np.take_along_axis(laws, np.maximum(seen, 0)[..., None], 2)[..., 0]
    assert np.allclose(of_seen[seen >= 0], chosen[seen >= 0])
    late = seen.copy()
    late[:, 20] = GAP  # what is known right after a gap has no context, whatever stood before it
    other = late.copy()
    other[:, 19] = 1 - np.maximum(late[:, 19], 0)
    for order in range(1, 4):
        assert not context_counts(late, np.arange(30), 2, 3)[:, 21, order].any()
    assert not np.array_equal(context_counts(other, np.arange(30), 2, 3)[:, 21, 0], counts[:, 21, 0])


def test_counting_in_a_training_part_cuts_at_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap parts what is counted as the end of a sequence does, and predictions after it begin anew."""
    monkeypatch.setattr("hmmscope.analysis.ngrams.STEPS", (4.0,))  # a coarse search is enough
    rng = np.random.default_rng(4)
    parts = [rng.integers(0, 3, int(n)).tolist() for n in rng.integers(2, 9, 40)]
    joined = [[*parts[k], GAP, *parts[k + 1]] for k in range(0, 40, 2)]
    with_gap, without = (RecordedSequences(SequenceData(some, symbols=3)) for some in (joined, parts))
    for process in (with_gap, without):
        process.part = lambda stream, own=process: own.data  # type: ignore[method-assign,assignment,misc]
    one, other = TrainedNgrams(with_gap, 2), TrainedNgrams(without, 2)
    assert one.strengths == other.strengths
    assert (one.depth, one.pseudo_count) == (other.depth, other.pseudo_count)
    assert sorted(grams(with_gap.data, 3).tolist()) == sorted(grams(without.data, 3).tolist())
    whole = torch.tensor([[0, 1, 2, GAP, 2, 1, 0]])
    after = one.predictions(whole, np.arange(7))
    anew = other.predictions(whole[:, 4:], np.arange(3))
    for name, law in after.items():
        torch.testing.assert_close(law[:, 4:], anew[name], rtol=0, atol=0)
        torch.testing.assert_close(law[:, :4], other.predictions(whole[:, :3], np.arange(4))[name], rtol=0, atol=0)


def test_counting_is_tuned_on_what_was_seen() -> None:
    dataset = hs.ProcessDataset(RecordedSequences(planted()), length=20, stream="counting")
    tuned = TunedNgrams.tuned(dataset, num_samples=8)
    assert all(np.isfinite(strength) for strengths in tuned.strengths for strength in strengths)
    found = hs.ngram_baselines(
        dataset, hs.ProcessDataset(RecordedSequences(planted()), length=20, stream="evaluate"), num_samples=6
    )
    seen = hs.ProcessDataset(RecordedSequences(planted()), length=20, stream="evaluate")[0:6].observations[:, 1:] != GAP
    assert np.array_equal(np.isfinite(found.measures["order-1"]["loss"]), seen.numpy())


def test_counting_of_sequences_of_ones_own() -> None:
    """In the training part, judged on the test part: the same laws as beside a model."""
    data = planted(50)
    found = hs.ngram_baselines(data, orders=2)
    process = RecordedSequences(data)
    dataset = hs.ProcessDataset(process, layout=hs.SequenceLayout(length=data.longest, placeholder=True), stream="test")
    batch = dataset[0 : len(data.test)]
    laws = TrainedNgrams(process, 2).predictions(batch.observations, np.arange(data.longest))
    labels = make_target("observation", process, dataset.layout).labels(batch)
    asked = labels != PADDING
    for name, law in laws.items():
        loss = -law.gather(2, labels.clamp_min(0)[..., None])[..., 0].log()
        assert np.nanmean(found.measures[name]["loss"]) == pytest.approx(float(loss[asked].mean()), rel=1e-12)
    assert {"order-2", "context-tree", "trained-order-2", "trained-context-tree"} <= set(found.measures)
    assert f"n-gram of order {found.trained_order} fitted to the training part" in repr(found)
    listed = [[None if v == GAP else v for v in row] for row in rows(data)]
    again = hs.ngram_baselines(listed, orders=2, missing="none")
    assert repr(again) == repr(found)
    for call, message in (
        (lambda: hs.ngram_baselines(dataset), "test: must be a dataset with the layout of train"),
        (
            lambda: hs.ngram_baselines(dataset, dataset, missing="none"),
            "missing: applies to recorded sequences only, but train is a dataset",
        ),
        (lambda: hs.ngram_baselines([[0, 1]]), "cannot be split"),
    ):
        with pytest.raises(InputError, match=message):
            call()
