"""Fits of many observations: what goes piece by piece is what goes at once, and memory does not grow with the length."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hmmscope as hs
from comparing import close
from hmmscope.errors import InputError
from hmmscope.inference import counts
from hmmscope.inference.smoothing import expected_counts
from hmmscope.sequences.large import num_equal
from inference_cases import close_logs
from strategies import dense, left_right, likely, tiny_entries, with_zeros

TIME = 47


def sums(hmm, observations, starts, lengths):
    found = expected_counts(hmm, observations, reset_mask=starts, lengths=lengths)
    return found.log_likelihood, {"first": found.initial, "transitions": found.transitions, "visits": found.emissions}


@pytest.mark.long
@settings(max_examples=8)
@given(
    st.sampled_from([(dense, 3), (with_zeros, 4), (tiny_entries, 3), (dense, 40), (left_right, 70), (dense, 70)]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_counts_in_pieces_are_those_at_once(of, restarts, seed):
    """States in registers, single transitions and products; ragged sequences, gaps in time, restarts at any place."""
    kind, size = of
    rng = np.random.default_rng(seed)
    matrices = kind(rng, size, 3)
    hmm, count = hs.HMM(*matrices), int(rng.integers(1, 5))
    observations = torch.tensor(np.array([likely(rng, matrices, TIME) for _ in range(count)]))
    lengths = torch.tensor(rng.integers(1, TIME + 1, count))
    starts = torch.tensor((np.arange(TIME) == 0) | (restarts & (rng.random(TIME) < 0.1)))
    if restarts:  # after which nothing need be possible
        observations = torch.tensor(rng.integers(0, 3, (count, TIME))) if kind is dense else observations
    try:
        whole = sums(hmm, observations, starts, lengths)
    except InputError:
        return
    length = int(rng.integers(4, 12))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "MOST_BYTES", 0)
        patch.setattr(counts, "_piece_length", lambda size, num_rows: length)
        pieces = sums(hmm, observations, starts, lengths)
    close_logs(pieces[0], whole[0])
    for name, found in pieces[1].items():
        close(found, whole[1][name], relative=1e-11)


def test_memory_of_a_fit_grows_by_less_than_the_file(tmp_path, monkeypatch):
    """A mapped file of one byte a symbol, as one sequence and as sequences of 100."""
    for name, most in (("BLOCK_BYTES", 2**17), ("MOST_BYTES", 2**19), ("PIECE_BYTES", 2**18)):
        monkeypatch.setattr(counts, name, most)
    symbols = np.random.default_rng(0).integers(0, 4, 1000).astype(np.uint8)
    start = hs.make_process("random-hmm", num_states=2, num_symbols=4)
    options = hs.FitOptions(start=start, num_restarts=1, max_iterations=1)

    def run(number, length):
        np.save(tmp_path / "tokens.npy", np.resize(symbols, number).reshape(-1, length))
        assert hs.fit(tmp_path / "tokens.npy", 2, axis=1, options=options).num_observations == number

    def peak(number, length):
        tracemalloc.start()
        try:
            run(number, length)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    for length in (100, 0):
        small, large = 10**5, 4 * 10**5
        run(small, length or small)  # loads what is compiled
        assert peak(large, length or large) - peak(small, length or small) < 2 * (large - small)


def test_symbols_of_a_file_are_kept_as_they_are(tmp_path):
    """Whatever road reads them: without a copy, by rows, with gaps, or as lists."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 5, (6, 40)).astype(np.uint8)
    np.save(tmp_path / "tokens.npy", tokens)
    mapped = hs.SequenceData(tmp_path / "tokens.npy")
    assert not mapped.flat.flags.owndata
    for other in (
        tokens,
        tokens.astype(np.int64),
        tokens.tolist(),
        torch.from_numpy(tokens),
        np.asfortranarray(tokens),
    ):
        assert hs.SequenceData(other) == mapped
    flat, lengths = tokens.reshape(-1), [100, 90, 50]
    assert hs.SequenceData(flat, lengths=lengths) == hs.SequenceData(flat[:, None], lengths=lengths)
    assert hs.SequenceData(flat, lengths=lengths) == hs.SequenceData(np.split(flat, [100, 190]))
    mine = tokens.copy()
    data = hs.SequenceData(mine)
    mine[:] = 0
    assert data == mapped
    assert hs.SequenceData(tokens, symbols=9).num_symbols == 9
    for wrong in (tokens.astype(np.int8) - 1, tokens):
        with pytest.raises(InputError, match="symbol"):
            hs.SequenceData(wrong, symbols=3)
    assert num_equal(np.resize(tokens, 3 * 10**6), 2) == (np.resize(tokens, 3 * 10**6) == 2).sum()
