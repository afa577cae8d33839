"""The processes of [Limits]: their laws, their corrections, and the least losses that they allow."""

import itertools
import math

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.inference.floors import belief_floor
from hmmscope.kernels.random_arrays import random_permutations, standard_normals, uniforms
from hmmscope.kernels.reference import philox_reference
from hmmscope.processes.cycles import group_order, never_meeting_pairs, random_cycles, transition_edges
from hmmscope.seeds import philox_key
from limits_processes_cases import CYCLIC, chi_square, moore_hard
from reference_samplers import permutation_reference, sample_edges_reference

# ---------------------------------------------------------------------------------------------------------------------
# Random arrays


@pytest.mark.parametrize("component", [0, 7, 2**33 + 5])
@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_permutations_equal_the_plain_ones(component, size):
    drawn = random_permutations((3, 4), np.array([1, component]), 4, size)
    for row in range(4):
        assert drawn[1, row].tolist() == permutation_reference((3, 4), component, row, size)
    np.testing.assert_array_equal(drawn[:, :2], random_permutations((3, 4), np.array([1, component]), 2, size))


def test_a_word_beyond_the_last_multiple_is_skipped(monkeypatch):
    """Of three choices, 2^32 - 1 would be a first choice too many; the next word, 1, is taken."""
    monkeypatch.setattr("hmmscope.kernels.reference.philox_reference", lambda *_: (2**32 - 1, 1, 1, 0))
    assert permutation_reference((0, 0), 0, 0, 3) == [0, 2, 1]


def test_permutations_are_uniform():
    drawn = random_permutations((1, 4), np.arange(3000), 8, 4).reshape(-1, 4)
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 24
    assert chi_square(counts) < 56  # 23 degrees of freedom: exceeded with probability 1e-4


def test_normals_and_uniforms_have_their_moments():
    z = standard_normals((1, 5), np.arange(500), 20, 20).ravel()
    n = len(z)
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - mean) < 4 * math.sqrt(variance / n), power
    assert abs((np.abs(z) > 3).mean() - math.erfc(3 / math.sqrt(2))) < 4 * math.sqrt(0.0027 / n)
    u = uniforms((1, 5), np.arange(500), 20, 20).ravel()
    assert 0 < u.min() < u.max() < 1
    assert np.abs(np.sort(u) - (np.arange(n) + 0.5) / n).max() < 2.2 / math.sqrt(n)  # Kolmogorov, about 1e-4


@pytest.mark.parametrize("draw", [standard_normals, uniforms])
def test_arrays_depend_on_their_component_alone(draw):
    numbers = np.array([5, 0, 2**35 + 1])
    batch = draw((5, 2), numbers, 4, 6)
    for index, number in enumerate(numbers):
        np.testing.assert_array_equal(draw((5, 2), np.array([number]), 4, 6)[0], batch[index])
    assert not np.array_equal(batch, draw((6, 2), numbers, 4, 6))
    assert len(np.unique(batch)) == batch.size


def test_normals_are_made_of_the_documented_words():
    w = philox_reference((0, 2 * 3 + 1, 9, 1), (5, 2))
    u, v = (((high << 20 | low >> 12) + 0.5) / 2**52 for high, low in (w[:2], w[2:]))
    drawn = standard_normals((5, 2), np.array([2**32 + 9]), 3, 3)[0, 2, 1]
    assert drawn == pytest.approx(math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v), abs=1e-14)


# ---------------------------------------------------------------------------------------------------------------------
# Cycles and their groups


def test_cycles_go_through_all_states_and_are_uniform():
    cycles = random_cycles(0, 5, 4096)
    state, seen = torch.zeros(len(cycles), dtype=torch.int64), []
    for _ in range(5):
        seen.append(state)
        state = cycles.gather(1, state[:, None])[:, 0]
    assert (state == 0).all()
    assert (torch.stack(seen, 1).sort(1).values == torch.arange(5)).all()
    _, counts = np.unique(cycles.numpy(), axis=0, return_counts=True)
    assert len(counts) == 24
    assert chi_square(counts) < 56


def test_more_actions_keep_the_first_cycles():
    assert torch.equal(random_cycles(3, 5, 9)[:4], random_cycles(3, 5, 4))
    assert not torch.equal(random_cycles(3, 5, 9), random_cycles(4, 5, 9))


def test_distinct_cycles_are_without_replacement():
    for seed in range(5):
        cycles = random_cycles(seed, 4, 6, distinct=True)
        assert len({tuple(cycle) for cycle in cycles.tolist()}) == 6
    repeated = [len({tuple(c) for c in random_cycles(seed, 5, 5).tolist()}) < 5 for seed in range(200)]
    expected = 1 - math.prod(1 - k / 24 for k in range(5))
    assert abs(np.mean(repeated) - expected) < 4 * math.sqrt(expected / 200)


def test_groups_of_cycles():
    assert group_order(torch.tensor([[1, 2, 3, 4, 0]])) == 5
    assert group_order(torch.tensor([[1, 2, 3, 4, 0], [1, 0, 2, 3, 4]])) == 120
    assert {group_order(random_cycles(seed, 3, 5)) for seed in range(20)} == {3}
    assert {group_order(random_cycles(seed, 4, 5)) for seed in range(40)} <= {4, 8, 24}
    with pytest.raises(InputError, match="contain each state once"):
        group_order(torch.tensor([[0, 0, 1]]))
    with pytest.raises(InputError, match="at most 50"):
        group_order(torch.tensor([[1, 2, 3, 4, 0], [1, 0, 2, 3, 4]]), limit=50)


def test_five_cycles_of_five_states_generate_a5():
    """All cycles in one subgroup of order 5 has probability 6 * (4/24)^5 = 1/1296 for five, 1/6 for two."""
    assert {group_order(random_cycles(seed, 5, 5)) for seed in range(100)} <= {5, 60}
    orders = [group_order(random_cycles(seed, 5, 2)) for seed in range(300)]
    assert set(orders) == {5, 60}
    assert abs(np.mean(np.array(orders) == 5) - 1 / 6) < 4 * math.sqrt(5 / 36 / 300)


def test_cycles_are_drawn_until_they_generate_the_group():
    for name in ("cyclic-det", "cyclic-rnd", "cyclic-hard"):
        spec = registry.lookup("process", name)
        for seed in range(12):
            cycles = spec(num_symbols=2, group_order=60, seed=seed).cycles()
            assert group_order(cycles) == 60
            first = spec(num_symbols=2, seed=seed).cycles()
            assert torch.equal(cycles, first) == (group_order(first) == 60)
    with pytest.raises(InputError, match="never generated a group of 7 elements"):
        spec(num_symbols=2, group_order=7).cycles()


def test_pairs_that_never_meet():
    square = torch.tensor([[1, 2, 3, 0], [3, 0, 1, 2]])
    assert never_meeting_pairs(square) == [(0, 1), (0, 3), (1, 2), (2, 3)]
    assert never_meeting_pairs(torch.tensor([[1, 0]])) == [(0, 1)]
    assert never_meeting_pairs(torch.tensor([[1, 2, 3, 0], [2, 3, 1, 0]])) == []
    for seed in range(5):
        assert never_meeting_pairs(random_cycles(seed, 5, 2)) == []
        assert never_meeting_pairs(random_cycles(seed, 7, 1)) == []


def test_edges_are_the_transition_diagram():
    process = hs.make_process("cyclic-det", num_states=4, num_symbols=2, seed=1)
    cycles = random_cycles(1, 4, 2)
    edges = transition_edges(process)
    assert [(e.state, e.symbol) for e in edges] == list(itertools.product(range(4), range(2)))
    assert all(e.next_state == cycles[e.symbol, e.state] and e.probability == 0.5 for e in edges)


# ---------------------------------------------------------------------------------------------------------------------
# RanHMM


def test_beliefs_by_hand():
    """The numbers of a two-state example, in fractions; our time 0 is the paper's time 1."""
    transition = [[0.9, 0.1], [0.2, 0.8]]
    hmm = hs.HMM(transition[0], transition, [[0.7, 0.3], [0.1, 0.9]])
    beliefs = hs.filter_beliefs(hmm, torch.tensor([[0, 1, 1]])).beliefs[0]
    expected = torch.tensor([[63 / 64, 1 / 64], [569 / 782, 213 / 782]], dtype=torch.float64)
    torch.testing.assert_close(beliefs[:2], expected, rtol=0, atol=2e-9)  # 0.9 is no multiple of 2^-32


def test_ran_hmm_starts_one_step_from_state_0():
    for law in ("dirichlet", "softmax", "uniform"):
        hmm = hs.make_process("ran-hmm", law=law, seed=3)
        assert torch.equal(hmm.initial, hmm.transition[0])
        assert hmm.emission.shape == (5, 5)
    dirichlet, random = hs.make_process("ran-hmm", seed=3), hs.make_process("random-hmm", seed=3)
    assert torch.equal(dirichlet.transition, random.transition)
    assert torch.equal(dirichlet.emission, random.emission)


def test_laws_of_the_rows():
    def logs(law):
        hmm = hs.make_process("ran-hmm", law=law, num_states=200, num_symbols=200)
        return hmm.emission.log()

    softmax = logs("softmax")
    difference = (softmax[:, 0::2] - softmax[:, 1::2]).flatten()
    assert abs(difference.mean()) < 4 * math.sqrt(2 / len(difference))
    assert abs(difference.var() - 2) < 4 * math.sqrt(8 / len(difference))
    uniform = logs("uniform")
    ratio = (uniform[:, 0::2] - uniform[:, 1::2]).flatten()  # of two uniforms: Laplace, variance 2, 4th moment 24
    assert abs(ratio.var() - 2) < 4 * math.sqrt(20 / len(ratio))
    largest = uniform.exp().amax(1) * 200
    assert 1.8 < largest.mean() < 2.1  # 2 for U(0, 1) over its mean
    dirichlet = hs.make_process("ran-hmm", num_states=200, num_symbols=200).emission.flatten()
    assert abs(dirichlet.square().mean() * 200 * 201 / 2 - 1) < 0.05  # E p^2 = 2 / (K (K + 1))


@pytest.mark.parametrize("name, fields", CYCLIC.values(), ids=CYCLIC)
def test_samples_equal_the_plain_sampler(name, fields):
    process = hs.make_process(name, seed=2, **fields)
    samples, starts = np.array([0, 5, 2**33, 7, 1, 3, 9, 2, 8, 11]), np.arange(13) % 7 == 0
    paths = process.sample_paths(samples, starts, 4, "train")
    _, initial, edges = process.alias_tables
    zeros = np.zeros(len(samples), np.int64)
    plain = sample_edges_reference(philox_key(4, "train"), samples, zeros, starts, initial, edges, process.num_states)
    np.testing.assert_array_equal(paths.observations, plain[0])
    np.testing.assert_array_equal(paths.states, plain[1])


def test_cyclic_det_follows_its_cycles():
    process, cycles = hs.make_process("cyclic-det", seed=7), random_cycles(7, 5, 5)
    batch = hs.ProcessDataset(process, length=30)[0:200]
    state = torch.zeros(200, dtype=torch.int64)
    for t in range(30):
        state = cycles[batch.observations[:, t], state]
        assert torch.equal(batch.states[:, t], state)
    beliefs = hs.filter_beliefs(process, batch.observations).beliefs
    assert torch.equal(beliefs, torch.nn.functional.one_hot(batch.states, 5).to(torch.float64))
    assert chi_square(batch.observations.flatten().bincount()) < 24  # 4 degrees of freedom, 1e-4
    assert float(belief_floor(process, 20, num_samples=10).mean) == 0
    assert process.symbols == ("a0", "a1", "a2", "a3", "a4")
    assert process.states == ("s0", "s1", "s2", "s3", "s4")


def test_cyclic_rnd_slips_back():
    process = hs.make_process("cyclic-rnd", backward_probability=0.125, num_symbols=4, seed=1)
    cycles = random_cycles(1, 5, 4)
    for a, s in itertools.product(range(4), range(5)):
        law = process.labelled[a, s] * 4
        assert law[cycles[a, s]] == 0.875
        assert law[cycles[a].argsort()[s]] == 0.125
        assert law.sum() == 1
    two = hs.make_process("cyclic-rnd", num_states=2, num_symbols=1, backward_probability=0.25)
    assert two.labelled[0].tolist() == [[0, 1], [1, 0]]  # of two states successor and predecessor are one


def test_symbols_of_cyclic_rnd_say_nothing():
    process = hs.make_process("cyclic-rnd", seed=1)
    batch = hs.ProcessDataset(process, length=60)[0:50]
    exact = hs.filter_beliefs(process, batch.observations)
    torch.testing.assert_close(exact.next_observation, torch.full_like(exact.next_observation, 0.2), rtol=0, atol=1e-9)
    belief = torch.eye(5, dtype=torch.float64)[0].expand(50, 5)
    kernels = process.labelled * 5
    for t in range(60):
        belief = torch.einsum("bi,bij->bj", belief, kernels[batch.observations[:, t]])
        torch.testing.assert_close(exact.beliefs[:, t], belief, rtol=0, atol=1e-7)  # up to 60 quantised steps


def test_augmented_cyclic_rnd_is_the_same_process():
    fields = {"seed": 1, "backward_probability": 0.03}
    plain, pairs = hs.make_process("cyclic-rnd", **fields), hs.make_process("cyclic-rnd", augmented=True, **fields)
    assert pairs.num_states == 25
    assert pairs.states[7] == "s2,a1"
    for state, action in itertools.product(range(5), range(5)):
        row = pairs.transition[action * 5 + state].view(5, 5)
        assert torch.equal(row, plain.labelled[:, state])
    observations = hs.ProcessDataset(plain, length=20)[0:30].observations
    one, other = hs.filter_beliefs(plain, observations), hs.filter_beliefs(pairs, observations)
    by_pair = other.beliefs.view(30, 20, 5, 5)
    blocks = by_pair.gather(2, observations[:, :, None, None].expand(-1, -1, 1, 5))[:, :, 0]
    torch.testing.assert_close(blocks, one.beliefs, rtol=0, atol=1e-14)
    torch.testing.assert_close(other.log_likelihood, one.log_likelihood, rtol=0, atol=1e-12)


def test_cyclic_hard_is_its_moore_machine():
    process = hs.make_process("cyclic-hard", seed=3, prediction_rate=0.2, num_symbols=3)
    moore = moore_hard(random_cycles(3, 5, 3).numpy(), 0.2)
    assert moore.num_states == 5 * 3 + 2 * 5
    observations = hs.ProcessDataset(process, length=40)[0:100].observations
    one, other = hs.filter_beliefs(process, observations), hs.filter_beliefs(moore, observations)
    torch.testing.assert_close(one.next_observation, other.next_observation, rtol=0, atol=1e-9)
    torch.testing.assert_close(one.log_likelihood, other.log_likelihood, rtol=0, atol=1e-7)
    from_moore = hs.ProcessDataset(moore, length=40)[0:100].observations
    assert (hs.filter_beliefs(process, from_moore).impossible_at == -1).all()


def test_predictions_of_cyclic_hard():
    rate, m, n = 0.25, 5, 5
    process = hs.make_process("cyclic-hard", seed=3, prediction_rate=rate)
    assert process.symbols == ("a0", "a1", "a2", "a3", "a4", "*", "s0", "s1", "s2", "s3", "s4")
    batch = hs.ProcessDataset(process, length=60)[0:200]
    predicted = hs.filter_beliefs(process, batch.observations).next_observation
    action, star = batch.observations < m, batch.observations == m
    expected = torch.tensor([(1 - rate) / m] * m + [rate] + [0] * n, dtype=torch.float64)
    torch.testing.assert_close(predicted[action], expected.expand(int(action.sum()), -1), rtol=0, atol=1e-9)
    told = torch.nn.functional.one_hot(m + 1 + batch.states[star] % n, m + 1 + n).to(torch.float64)
    torch.testing.assert_close(predicted[star], told, rtol=0, atol=0)
    after = torch.tensor([1 / m] * m + [0] * (n + 1), dtype=torch.float64)
    last = ~action & ~star
    torch.testing.assert_close(predicted[last], after.expand(int(last.sum()), -1), rtol=0, atol=1e-9)
    assert (batch.states < 3 * n).all()
    cycles, state = random_cycles(3, 5, 5), torch.zeros(200, dtype=torch.int64)
    for t in range(60):
        symbol = batch.observations[:, t]
        state = torch.where(symbol < m, cycles[symbol.clamp_max(m - 1), state], state)
        assert torch.equal(batch.states[:, t] % n, state)
