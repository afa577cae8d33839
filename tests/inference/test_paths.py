"""Likeliest paths equal the enumerated maximum; drawn paths follow the enumerated posterior."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch

import hmmscope as hs
import oracles
from comparing import close
from hmmscope.errors import InputError
from hmmscope.kernels import underflow_safe
from inference_cases import path_cases, revived, symbols
from strategies import KINDS, Matrices, as_labelled, dense, likely, rows, some_starts, tiny_entries


def test_most_likely_states_equal_the_enumerated_maximum():
    """M16."""
    impossible = 0
    for hmm, observations, starts, all_paths in path_cases(0, 160):
        result = hs.most_likely_states(hmm, observations, reset_mask=starts)
        likelihood = hs.filter_beliefs(hmm, observations, reset_mask=starts).log_likelihood
        for b, paths in enumerate(all_paths):
            if not paths:
                assert result.states[b].eq(-1).all()
                assert result.log_probability[b] == -math.inf
                impossible += 1
                continue
            best, found = max(paths.values()), paths[tuple(result.states[b].tolist())]
            assert found >= best * (1 - Fraction(1, 2**48))  # ties of rounded sums
            assert result.log_probability[b].item() == pytest.approx(oracles.log_of(best), rel=1e-12, abs=1e-14)
            assert result.log_probability[b] <= likelihood[b] + 1e-12
    assert impossible > 40


def test_ties_go_to_the_lowest_state():
    even = hs.HMM([0.25] * 4, np.full((4, 4), 0.25), np.full((4, 2), 0.5))
    result = hs.most_likely_states(even, torch.tensor([[0, 1, 0, 1, 1]]), reset_mask=[True, False, False, True, False])
    assert result.states.tolist() == [[0] * 5]
    assert result.log_probability.item() == pytest.approx(
        2 * math.log(1 / 4) + 3 * math.log(1 / 4) + 5 * math.log(1 / 2)
    )
    # The lowest last state first: 0 is reached only from 1.
    crossed = hs.HMM([0.5, 0.5], [[0.0, 1.0], [1.0, 0.0]], [[1.0], [1.0]])
    assert hs.most_likely_states(crossed, torch.zeros(1, 4, dtype=torch.int64)).states.tolist() == [[1, 0, 1, 0]]


def test_the_same_process_in_the_other_form_has_the_same_paths():
    rng = np.random.default_rng(1)
    for _ in range(25):
        matrices = KINDS[rng.integers(len(KINDS))](rng, 3, 3)
        observations, starts = symbols(rng, 5, 9, 3), some_starts(rng, 9)
        plain, other = hs.HMM(*matrices), hs.LabelledHMM(*as_labelled(matrices))
        one = hs.most_likely_states(plain, observations, reset_mask=starts)
        two = hs.most_likely_states(other, observations, reset_mask=starts)
        close(two.log_probability, one.log_probability)
        draws = [hs.sample_state_paths(p, observations, reset_mask=starts, num_paths=3) for p in (plain, other)]
        possible = draws[0] >= 0
        assert torch.equal(draws[1][possible], draws[0][possible] + 1)


def test_a_long_path_is_as_good_as_its_parts_say():
    """A thousand steps: the log-probability is that of the states, and changing any one state does not raise it."""
    rng = np.random.default_rng(2)
    initial, transition, emission = matrices = dense(rng, 4, 3)
    observations = torch.tensor([likely(rng, matrices, 1000)])
    result = hs.most_likely_states(hs.HMM(*matrices), observations)

    def score(path):
        log = math.log(initial[path[0]]) + np.log(emission[path, observations[0].numpy()]).sum()
        return log + np.log(transition[path[:-1], path[1:]]).sum()

    path = result.states[0].numpy()
    assert result.log_probability.item() == pytest.approx(score(path), rel=1e-12)
    for t in range(0, 1000, 7):
        for state in range(4):
            other = path.copy()
            other[t] = state
            assert score(other) <= score(path) + 1e-9


def test_a_best_path_below_every_float():
    rng = np.random.default_rng(3)
    matrices = tiny_entries(rng, 2, 3)
    worst = np.array([[2.0**-32, 1 - 2.0**-32]] * 2)
    result = hs.most_likely_states(hs.HMM(matrices.initial, np.eye(2), worst), torch.zeros(1, 100, dtype=torch.int64))
    assert result.log_probability.item() == pytest.approx(
        math.log(matrices.initial.max()) - 100 * 32 * math.log(2), rel=1e-14
    )


# ---------------------------------------------------------------------------------------------------------------------
# Drawn paths


def test_drawn_paths_follow_the_posterior():
    """Each path's count within 5 standard deviations (about 1000 counts: one in 2000 runs would fail by chance)."""
    checked = 0
    for hmm, observations, starts, all_paths in path_cases(4, 24):
        draws = hs.sample_state_paths(hmm, observations, reset_mask=starts, num_paths=2000, seed=5)
        for b, paths in enumerate(all_paths):
            counts = Counter(map(tuple, draws[:, b].tolist()))
            if not paths:
                assert set(counts) == {(-1,) * observations.shape[1]}
                continue
            assert set(counts) <= set(paths)
            total = sum(paths.values())
            for path, probability in paths.items():
                p = float(probability / total)
                assert abs(counts[path] - 2000 * p) <= 5 * math.sqrt(2000 * p * (1 - p)) + 5
                checked += 1
    assert checked > 300


def test_draws_depend_on_seed_and_number_only():
    rng = np.random.default_rng(6)
    hmm = hs.HMM(*dense(rng, 4, 3))
    observations = symbols(rng, 6, 20, 3)
    whole = hs.sample_state_paths(hmm, observations, num_paths=4, seed=1)
    assert torch.equal(hs.sample_state_paths(hmm, observations, num_paths=2, seed=1), whole[:2])
    order = torch.tensor([4, 0, 5])
    assert torch.equal(
        hs.sample_state_paths(hmm, observations[order], num_paths=4, seed=1, indices=order), whole[:, order]
    )
    assert not torch.equal(hs.sample_state_paths(hmm, observations, num_paths=4, seed=2), whole)
    padded = torch.cat([observations, torch.full((6, 5), 77)], 1)
    longer = hs.sample_state_paths(hmm, padded, num_paths=4, seed=1, lengths=[20] * 6)
    assert torch.equal(longer[:, :, :20], whole)
    assert (longer[:, :, 20:] == -1).all()


def test_draws_where_beliefs_fall_below_every_float():
    """Only the end tells that it was state 1 all the time."""
    matrices, observations = revived()
    leaking = matrices._replace(transition=np.array([[1 - 2**-10, 2**-10], [0, 1]]))
    for hmm in (hs.HMM(*matrices), hs.HMM(*leaking)):
        draws = hs.sample_state_paths(hmm, torch.tensor([observations]), num_paths=2000)
        smoothed = hs.smooth_beliefs(hmm, torch.tensor([observations]))[0, :, 1]
        expected = draws[:, 0].double().mean(0)
        assert (expected - smoothed).abs().max() < 5 * 0.5 / math.sqrt(2000)
        assert (draws[:, 0, -3:] == 1).all()


def test_weight_zero_is_never_drawn():
    """Uniform numbers at and next to the edges of a law with zeros, as floats and as weights far below every float."""
    law = np.array([[0.0, 0.3, 0.0, 0.7, 0.0]])
    symbols_T, starts, step = np.zeros(1, np.int64), np.array([True]), np.eye(5)[None]
    uniform = np.array([[0.0], [0.3 - 2**-54], [0.3], [1 - 2**-53]])
    for exponent in (np.empty((0, 5), np.int64), np.full((1, 5), -(10**6))):
        paths = np.empty((4, 1), np.int64)
        underflow_safe.draw(step, True, symbols_T, starts, law, exponent, uniform, paths)
        assert paths[:, 0].tolist() == [1, 1, 3, 3]
    # of the smallest number the share of a uniform number is all of it, which nothing exceeds
    underflow_safe.draw(step, True, symbols_T, starts, 5e-324 * (law > 0.5), np.empty((0, 5), np.int64), uniform, paths)
    assert paths[:, 0].tolist() == [3, 3, 3, 3]


@pytest.mark.usefixtures("unchecked")
def test_bad_options_are_refused():
    hmm = hs.HMM([1.0], [[1.0]], [[0.5, 0.5]])
    observations = torch.zeros(2, 3, dtype=torch.int64)
    for indices in ([0], [0.5, 1.0], [-1, 0]):
        with pytest.raises(InputError, match=r"^indices: must be 2 nonnegative integers"):
            hs.sample_state_paths(hmm, observations, indices=indices)
    with pytest.raises(InputError, match=r"^num_paths: must be at least 0, got -1$"):
        hs.sample_state_paths(hmm, observations, num_paths=-1)


@pytest.mark.parametrize("batch, time", list(itertools.product((0, 2), (0, 1, 3))))
def test_empty_batches_and_sequences(batch, time):
    for hmm in (hs.make_process("random-hmm", num_states=3, num_symbols=2), hs.make_process("mess3")):
        observations = torch.zeros(batch, time, dtype=torch.int64)
        result = hs.most_likely_states(hmm, observations)
        assert result.states.shape == (batch, time)
        assert result.log_probability.shape == (batch,)
        assert time or (result.log_probability == 0).all()
        assert hs.sample_state_paths(hmm, observations, num_paths=2).shape == (2, batch, time)


def test_one_state_has_one_path():
    """M7."""
    rng = np.random.default_rng(7)
    law = rows(rng, 1, 3)
    observations = symbols(rng, 4, 6, 3)
    hmm = hs.HMM([1.0], [[1.0]], law)
    result = hs.most_likely_states(hmm, observations)
    assert not result.states.any()
    close(result.log_probability, hs.filter_beliefs(hmm, observations).log_likelihood)
    assert not hs.sample_state_paths(hmm, observations).any()


def test_an_unreachable_state_is_on_no_path():
    """M5."""
    rng = np.random.default_rng(8)
    for _ in range(10):
        hmm = dense(rng, 3, 3)
        wider = Matrices(
            np.append(hmm.initial, 0),
            np.vstack([np.column_stack([hmm.transition, np.zeros(3)]), rows(rng, 1, 4)]),
            np.vstack([hmm.emission, rows(rng, 1, 3)]),
        )
        observations = symbols(rng, 4, 8, 3)
        one, other = (hs.most_likely_states(hs.HMM(*m), observations) for m in (hmm, wider))
        assert torch.equal(one.states, other.states)
        assert torch.equal(
            hs.sample_state_paths(hs.HMM(*hmm), observations), hs.sample_state_paths(hs.HMM(*wider), observations)
        )
