"""Many states with few ways out of each give the answers of the dense roads, whichever transitions can be made.

That those are of every path by enumeration is held by the tests of each answer, whose processes have few states.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hmmscope as hs
from comparing import close
from hmmscope.inference import compiled, loop_inputs
from hmmscope.inference.loop_inputs import over_lanes
from hmmscope.inference.smoothing import expected_counts, smooth_pairs
from inference_cases import close_logs, symbols
from strategies import Matrices, as_labelled, likely, rows, some_starts, with_zeros

SIZE, TIME = 66, 14


def left_right(rng):
    """Each state stays, or goes on by one or two; the last is never left."""
    steps = rows(rng, SIZE, 3)
    transition = np.zeros((SIZE, SIZE))
    for i in range(SIZE):
        for ahead in range(3):
            transition[i, min(i + ahead, SIZE - 1)] += steps[i, ahead]
    return np.eye(SIZE)[0], transition


def cycle(rng):
    return np.full(SIZE, 1 / SIZE), np.roll(np.eye(SIZE), 1, axis=1)


def hubs(rng):
    """Two ways out of each state at random, and all states lead to the first."""
    transition = np.zeros((SIZE, SIZE))
    for i, row in enumerate(rows(rng, SIZE, 3)):
        for weight, to in zip(row, (0, rng.integers(SIZE), (i + 1) % SIZE), strict=True):
            transition[i, to] += weight
    return rows(rng, 1, SIZE, 0.9)[0], transition


def process(rng, kind):
    initial, transition = kind(rng)
    return Matrices(initial, transition, rows(rng, SIZE, 3, rng.choice([0.0, 0.5])))


def answers(hmm, observations, starts, lengths):
    """Everything that is asked of one process, by name."""
    known = {"reset_mask": starts, "lengths": lengths}
    found = hs.filter_beliefs(hmm, observations, **known)
    path = hs.most_likely_states(hmm, observations, **known)
    pairs = smooth_pairs(hmm, observations, **known)
    sharp = {"impossible_at": found.impossible_at, "states": path.states, "log_probability": path.log_probability}
    near = {"beliefs": found.beliefs, "next_observation": found.next_observation, "pairs": pairs.pairs}
    near |= {"smoothed": hs.smooth_beliefs(hmm, observations, **known), "smoothed beside pairs": pairs.beliefs}
    logs = {"terms": found.log_likelihood_terms, "log_likelihood": found.log_likelihood}
    logs |= {"streamed": hs.log_likelihood(hmm, observations, lengths=lengths)}
    if isinstance(hmm, hs.HMM):
        kept = found.impossible_at < 0
        sums = expected_counts(hmm, observations[kept], reset_mask=starts, lengths=lengths[kept])
        near |= {"first": sums.initial, "transitions": sums.transitions, "visits": sums.emissions}
        logs |= {"counted": sums.log_likelihood}
    return sharp, near, logs


def compare(hmm, *given, sparse=True):
    assert loop_inputs.one_by_one(loop_inputs.tables(hmm.params)) == sparse
    ours = answers(hmm, *given)
    with over_lanes():
        assert not loop_inputs.one_by_one(loop_inputs.tables(hmm.params))
        theirs = answers(hmm, *given)
    for name, found in ours[0].items():
        assert torch.equal(found, theirs[0][name]), name
    for name, found in ours[1].items():
        close(found, theirs[1][name])
    for name, found in ours[2].items():
        close_logs(found, theirs[2][name])
    return ours


@pytest.mark.long
@settings(max_examples=4)
@given(st.sampled_from([left_right, cycle, hubs]), st.integers(0, 2**32 - 1))
def test_all_answers_are_those_of_the_dense_roads(kind, seed):
    """Ragged, likely, impossible and empty sequences, with and without restarts, of states and of transitions that emit."""
    rng = np.random.default_rng(seed)
    matrices = process(rng, kind)
    observations = symbols(rng, 5, TIME, 3)
    observations[0] = torch.tensor(likely(rng, matrices, TIME))
    observations[1] = torch.tensor(likely(rng, matrices, TIME))
    lengths = torch.tensor([TIME, TIME, int(rng.integers(1, TIME)), 0, TIME])
    starts = torch.tensor(some_starts(rng, TIME)) if rng.random() < 0.5 else torch.arange(TIME) == 0
    compare(hs.HMM(*matrices), observations, starts, lengths)
    compare(hs.LabelledHMM(*as_labelled(matrices)), observations, starts, lengths)


@pytest.mark.long
def test_few_sequences_go_through_all_transitions_that_emit_row_by_row():
    rng = np.random.default_rng(6)
    matrices = with_zeros(rng, SIZE, 3)
    hmm = hs.LabelledHMM(*as_labelled(matrices))
    observations = symbols(rng, 3, TIME, 3)
    observations[0] = torch.tensor(likely(rng, matrices, TIME))
    lengths = torch.tensor([TIME, 9, 0])
    starts = torch.tensor(some_starts(rng, TIME))
    tables, work = loop_inputs.tables(hmm.params), loop_inputs.sequences(observations, starts, lengths)
    assert loop_inputs.row_by_row(tables, work)
    compare(hmm, observations, starts, lengths, sparse=False)
    compare(hs.HMM(*matrices), observations, starts, lengths, sparse=False)


def test_tiny_beliefs_are_in_no_doubt_while_all_their_digits_are_there():
    """Of a state that is left for good, which nothing says is impossible: its probability goes on falling."""
    initial, transition = left_right(np.random.default_rng(7))
    hmm = hs.HMM(initial, transition, np.random.default_rng(8).dirichlet(np.full(3, 9.0), SIZE))
    observations = hs.ProcessDataset(hmm, length=110)[0:2].observations
    found = compiled.filter_batch(hmm, observations, None, None)
    assert not found.underflow_risk
    careful, terms = np.empty((110, SIZE)), np.empty(110)
    for row in range(2):
        compiled.underflow_safe.plain(
            *compiled.filter_underflow_safe(found.tables, observations[row], found.work.starts, terms), careful
        )
        assert 0 < careful[careful > 0].min() < 1e-110
        np.testing.assert_allclose(found.beliefs[row], careful, rtol=1e-12)
        np.testing.assert_allclose(found.terms[row], terms, rtol=1e-13)
    with over_lanes():  # where they are in doubt
        other = hs.smooth_beliefs(hmm, observations)
    close(hs.smooth_beliefs(hmm, observations), other)


@pytest.mark.parametrize("labelled", [False, True])
def test_what_underflows_is_gone_over_again(labelled):
    """A left-right model stays 600 steps in its first state by the symbols, and must then have been ahead all along."""
    rng = np.random.default_rng(4)
    transition = np.zeros((SIZE, SIZE))
    for i in range(SIZE):
        transition[i, i], transition[i, min(i + 1, SIZE - 1)] = 0.75, 0.25
    transition[-1] = np.eye(SIZE)[-1]
    emission = np.full((SIZE, 3), (2**-14, 1 - 2**-13, 2**-14))
    emission[0] = 1 - 2**-13, 2**-13, 0
    emission[1] = 2**-14, 2**-14, 1 - 2**-13
    matrices = Matrices(np.eye(SIZE)[0], transition, emission)
    observations = torch.zeros(3, 700, dtype=torch.int64)
    observations[0, -60:], observations[1] = 1, torch.tensor(likely(rng, matrices, 700))
    observations[2, -1] = 2  # impossible from the first state, so that it was the one beyond, or the next
    hmm = hs.LabelledHMM(*as_labelled(matrices)) if labelled else hs.HMM(*matrices)
    starts, lengths = torch.arange(700) == 0, torch.tensor([700, 700, 700])
    _, near, _ = compare(hmm, observations, starts, lengths)
    assert ((near["beliefs"] > 0) & (near["beliefs"] < 1e-100)).any(dim=(1, 2)).all()


def test_any_number_of_threads_gives_the_same_digits():
    rng = np.random.default_rng(5)
    hmm = hs.HMM(*process(rng, left_right))
    observations = symbols(rng, 40, TIME, 3)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        kept = hs.filter_beliefs(hmm, observations).impossible_at < 0
        found.append([*vars(expected_counts(hmm, observations[kept])).values(), hs.smooth_beliefs(hmm, observations)])
    torch.set_num_threads(1)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
