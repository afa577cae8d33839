"""`hmmscope.fit`: one number of states or several, data in memory or as a stream."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import fit_baum_welch

LIMITS: dict[str, Any] = {"num_restarts": 2, "max_iterations": 15}
QUICK = hs.FitOptions(**LIMITS)


@pytest.fixture(scope="module")
def casino() -> hs.SequenceData:
    process = hs.load_process("dishonest-casino")
    rows = list(hs.ProcessDataset(process, length=60)[0:60].observations)
    return hs.SequenceData([row[: 30 + k % 30] for k, row in enumerate(rows)], symbols=process.symbols, title="rolls")


def test_it_is_the_fit_of_the_same_rows(casino: hs.SequenceData) -> None:
    fit = hs.fit(casino, 2, options=QUICK)
    padded, lengths = casino.padded()
    expected = fit_baum_welch(padded, 2, 6, lengths=lengths, **LIMITS)
    assert torch.equal(fit.hmm.transition, expected.hmm.transition)
    assert fit.log_likelihood == expected.log_likelihood
    assert (fit.hmm.symbols, fit.hmm.title) == (casino.symbols, "Baum-Welch fit to rolls")
    assert fit.num_observations == casino.num_observations
    assert "_repr_html_" in dir(fit)
    assert "table" in fit._repr_html_()


@pytest.mark.drawn(1, of="numbers of states")
def test_the_number_of_states_is_chosen_and_the_table_has_both_rules(casino: hs.SequenceData) -> None:
    fit = hs.fit(casino, [4, 1, 2], options=QUICK)
    scores = {
        size: hs.filter_beliefs(one.hmm, casino.validation.padded()[0], lengths=casino.validation.lengths)
        .log_likelihood.sum()
        .item()
        / casino.validation.num_observations
        for size, one in fit.fits.items()
    }
    assert fit.held_out == pytest.approx(scores, rel=1e-9)
    bic = {size: one.bic for size, one in fit.fits.items()}
    assert fit.hmm.num_states == min(bic, key=lambda size: bic[size])
    assert [row["bic"] for row in fit.table()] == [bic[size] for size in (1, 2, 4)]
    assert [row["held_out_error"] for row in fit.table()] == list(fit.held_out_errors.values())
    assert fit.lines()[0].split()[:4] == ["states", "restarts", "BIC", "held-out"]
    assert fit.lines()[4] == fit.reason
    assert [line.endswith("  chosen") for line in fit.lines()[1:4]] == [
        size == fit.hmm.num_states for size in (1, 2, 4)
    ]
    assert [row["num_states"] for row in fit.table() if row["chosen"]] == [fit.hmm.num_states]
    assert fit.num_fitted == casino.train.num_observations
    given = hs.fit(casino.train, [1, 2, 4], validation=casino.validation, options=QUICK)
    assert given.held_out == fit.held_out
    why, same = (one.reason.partition(": ")[2] for one in (fit, given))  # before it, intervals are of other data
    assert why == f"{same}; the refit uses all data"


def test_a_search_that_does_not_agree_says_so(casino: hs.SequenceData) -> None:
    short = hs.fit(casino, 5, options=hs.FitOptions(num_restarts=4, max_iterations=2))
    assert not short.fits[5].restarts_agree
    apart = f"{short.fits[5].restart_gap:.2g} nats"
    said = "the best two restarts do not agree after 4 restarts (the maximum) for these numbers of states"
    assert short.lines() == [f"{said}: 5 ({apart} difference)"]
    assert f"best two of 4 restarts differ by {apart}" in repr(short)
    sure = hs.fit(casino, 1)
    assert sure.lines() == []
    assert "best two of 3 restarts agree" in repr(sure)
    assert sure.table()[0]["restarts"] == 3
    assert "one restart" in repr(hs.fit(casino, 2, options=hs.FitOptions(num_restarts=1, max_iterations=2)))


def test_a_stream_from_a_file_in_parts_is_nearly_as_good(casino: hs.SequenceData, tmp_path: Path) -> None:
    casino.save(tmp_path / "rolls.safetensors")
    (tmp_path / "rolls.txt").write_text("".join(f"{casino.as_text(one)}\n" for one in casino))
    whole = hs.fit(casino, 2, options=QUICK)
    padded, lengths = casino.padded()

    def worth(hmm: hs.HMM) -> float:
        numbers = [casino.symbols.index(name) for name in hmm.symbols]
        renamed = torch.tensor(np.argsort(numbers))[padded]
        return float(hs.filter_beliefs(hmm, renamed, lengths=lengths).log_likelihood.sum()) / int(lengths.sum())

    for source in (
        tmp_path / "rolls.safetensors",
        hs.SequenceStream(tmp_path / "rolls.txt", unit="characters", batch=500),
        [casino[:20], casino[20:40], casino[40:]],
        casino,
    ):
        fit = hs.fit(source, 2, stream=True, options=QUICK)
        assert fit.num_observations == casino.num_observations
        assert worth(fit.hmm) == pytest.approx(worth(whole.hmm), abs=0.02)


@pytest.mark.parametrize("unit, text", [("characters", "ab ba\nc\n\nabcabcabc\n"), ("numbers", "0 2 11\n1\n\n3 3\n")])
def test_the_parts_of_a_stream_are_the_whole(unit: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text)
    whole = hs.SequenceData(path, unit=unit)
    parts = list(hs.SequenceStream(path, unit=unit, batch=4))
    assert len(parts) > 1
    assert {(part.symbols, part.num_symbols) for part in parts} == {(whole.symbols, whole.num_symbols)}
    assert [s.tolist() for part in parts for s in part] == [s.tolist() for s in whole]


def test_few_sequences_are_cut_to_hold_some_out() -> None:
    rows = np.random.default_rng(0).integers(0, 3, 400).tolist()
    found = hs.fit([rows], [1, 2], options=hs.FitOptions(num_restarts=1, max_iterations=2))
    assert found.num_fitted == 336  # 21 of 25 blocks
    assert found.reason.endswith("; held-out blocks of 16 symbols; the refit uses all data")
    many = hs.fit(
        [rows[k : k + 20] for k in range(0, 400, 20)], [1, 2], options=hs.FitOptions(num_restarts=1, max_iterations=2)
    )
    assert "blocks" not in many.reason


def test_the_chosen_number_of_states_is_fitted_on_to_all(casino: hs.SequenceData) -> None:
    fit = hs.fit(casino, [1, 2], options=QUICK)
    assert fit.num_observations == casino.num_observations
    tokens, lengths = casino.padded()
    own = float(hs.filter_beliefs(fit.hmm, tokens, lengths=lengths).log_likelihood.sum())
    before = fit.fits[fit.hmm.num_states].hmm
    assert own > float(hs.filter_beliefs(before, tokens, lengths=lengths).log_likelihood.sum())
    assert fit.log_likelihood == pytest.approx(own, rel=1e-9)
    row = next(row for row in fit.table() if row["chosen"])
    assert row["log_likelihood"] == fit.fits[row["num_states"]].log_likelihood / casino.train.num_observations


@pytest.mark.long
@pytest.mark.drawn(1, of="numbers of states")
def test_a_symbol_that_was_only_held_out_is_not_forbidden_in_the_end() -> None:
    rows = [[0, 1] * k for k in range(3, 30)] + [[2, 0]]
    for seed in range(8):  # in some split the last sequence is held out
        data = hs.SequenceData(rows, symbols=3, seed=seed)
        fit = hs.fit(data, [1, 2], options=hs.FitOptions(pseudo_count=0.0, **LIMITS))
        assert float(hs.log_likelihood(fit.hmm, [[2, 0]])) > -np.inf


def test_too_little_to_hold_anything_out_is_chosen_by_bic_alone() -> None:
    for rows in ([[0, 1, 1, 0]], [[0, 1, 1, 0, 1, 0, 0, 1] * 20]):
        fit = hs.fit(rows, [1, 2], options=QUICK)
        assert fit.held_out == {}
        assert fit.reason.endswith("; there are too few data for a held-out part")
        assert fit.hmm.num_states == min(fit.fits, key=lambda size: fit.fits[size].bic)
        assert fit.lines()[0].split() == ["states", "restarts", "BIC"]
        assert fit.lines()[3] == fit.reason
        assert "chosen from 1, 2" in repr(fit)


def test_long_records_come_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.fasta"
    path.write_text(">one\nACGT\nacgt\nGG\n>two\nTT\n")
    pieces = [s.tolist() for part in hs.SequenceStream(path, longest=4) for s in part]
    assert [len(piece) for piece in pieces] == [4, 4, 2, 2]
    assert [v for piece in pieces for v in piece] == [v for s in hs.SequenceData(path) for v in s.tolist()]
    hs.SequenceData(path).save(tmp_path / "a.npz")
    hs.SequenceData(path).save(tmp_path / "a.safetensors")
    mapped = [s.tolist() for part in hs.SequenceStream(tmp_path / "a.safetensors", longest=4, batch=5) for s in part]
    assert mapped == pieces


@pytest.mark.parametrize(
    "text, options, message",
    [
        ("ab\n", {}, r"unit: is required for streamed text \(--unit\): 'characters'"),
        ("\n \n", {"unit": "words"}, "holds no sequence"),
        ("ab\nxy\n", {"unit": "characters", "symbols": "ab"}, "'x' is not one of a, b"),
        ("ab\n", {"unit": "characters", "batch": 0}, "batch: must be at least 1"),
    ],
)
def test_streams_that_are_none(text: str, options: dict, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        list(hs.SequenceStream(tmp_path / "a.txt", **options))
    (tmp_path / "a.csv").write_text("1,2\n")
    with pytest.raises(InputError, match="streams read text, FASTA"):
        hs.SequenceStream(tmp_path / "a.csv")


def test_fits_that_are_none(casino: hs.SequenceData) -> None:
    for options, message in (
        *(({"num_states": size}, "num_states: must be at least 1 and whole") for size in ([], 0, "2", 2.5, True)),
        ({"num_states": [1, 2], "stream": True}, "num_states: must be a single number for a stream"),
        ({"num_states": 2, "stream": True, "source": 3}, "source: a stream needs"),
        ({"num_states": 2, "stream": True, "source": []}, "source: holds no sequence"),
        ({"num_states": [1, 2], "validation": [[0, 6]]}, "symbol"),
    ):
        with pytest.raises(InputError, match=message):
            hs.fit(**{"source": casino} | options)


def test_symbols_of_a_start_are_matched_by_name() -> None:
    """In another order they are the same start, in memory and as a stream; other names are refused."""
    data = hs.SequenceData(["abbab", "bbab", "aab"])
    laws = [0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]]
    start = hs.HMM(*laws, [[0.9, 0.1], [0.3, 0.7]], symbols=["a", "b"])
    turned = hs.HMM(*laws, [[0.1, 0.9], [0.7, 0.3]], symbols=["b", "a"])
    plain = hs.HMM(*laws, [[0.9, 0.1], [0.3, 0.7]])
    limits: dict[str, Any] = {"num_restarts": 1, "max_iterations": 2, "fixed": ("emission",)}
    for stream, options in ((False, limits), (True, {})):
        expected = hs.fit(data, 2, stream=stream, options=hs.FitOptions(start=start, **options)).hmm
        for same in (turned, plain):
            found = hs.fit(data, 2, stream=stream, options=hs.FitOptions(start=same, **options)).hmm
            assert torch.equal(found.emission, expected.emission)
            assert torch.equal(found.transition, expected.transition)
        other = hs.HMM(*laws, [[0.9, 0.1], [0.3, 0.7]], symbols=["a", "c"])
        with pytest.raises(
            InputError, match="start: has the symbols a, c, but the source has a, b; pass the same symbols"
        ):
            hs.fit(data, 2, stream=stream, options=hs.FitOptions(start=other, **options))
