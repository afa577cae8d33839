"""The processes of [Limits]: their laws, their corrections, and the least losses that they allow."""

import itertools
import math

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference.floors import belief_floor, cyclic_hard_floor, next_observation_floor
from hmmscope.kernels.random_arrays import random_permutations, standard_normals, uniforms
from hmmscope.kernels.reference import permutation_reference, philox_reference, sample_edges_reference
from hmmscope.processes.augmentation import augment
from hmmscope.processes.cycles import (
    driven,
    group_order,
    never_meeting_pairs,
    permutation_matrices,
    random_cycles,
    transition_edges,
)
from hmmscope.processes.orthogonal import haar_orthogonal
from hmmscope.seeds import philox_key
from strategies import rows

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


def chi_square(counts):
    counts = np.asarray(counts, float)
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())


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
    with pytest.raises(InputError, match="hold each state once"):
        group_order(torch.tensor([[0, 0, 1]]))
    with pytest.raises(InputError, match="more than 50"):
        group_order(torch.tensor([[1, 2, 3, 4, 0], [1, 0, 2, 3, 4]]), limit=50)


def test_five_cycles_of_five_states_generate_a5():
    """All cycles in one subgroup of order 5 has probability 6 * (4/24)^5 = 1/1296 for five, 1/6 for two."""
    assert {group_order(random_cycles(seed, 5, 5)) for seed in range(100)} <= {5, 60}
    orders = [group_order(random_cycles(seed, 5, 2)) for seed in range(300)]
    assert set(orders) == {5, 60}
    assert abs(np.mean(np.array(orders) == 5) - 1 / 6) < 4 * math.sqrt(5 / 36 / 300)


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
        assert torch.equal(hmm.initial_S, hmm.transition_SS[0])
        assert hmm.emission_SV.shape == (5, 5)
    dirichlet, random = hs.make_process("ran-hmm", seed=3), hs.make_process("random-hmm", seed=3)
    assert torch.equal(dirichlet.transition_SS, random.transition_SS)
    assert torch.equal(dirichlet.emission_SV, random.emission_SV)


def test_laws_of_the_rows():
    def logs(law):
        hmm = hs.make_process("ran-hmm", law=law, num_states=200, num_symbols=200)
        return hmm.emission_SV.log()

    softmax = logs("softmax")
    difference = (softmax[:, 0::2] - softmax[:, 1::2]).flatten()
    assert abs(difference.mean()) < 4 * math.sqrt(2 / len(difference))
    assert abs(difference.var() - 2) < 4 * math.sqrt(8 / len(difference))
    uniform = logs("uniform")
    ratio = (uniform[:, 0::2] - uniform[:, 1::2]).flatten()  # of two uniforms: Laplace, variance 2, 4th moment 24
    assert abs(ratio.var() - 2) < 4 * math.sqrt(20 / len(ratio))
    largest = uniform.exp().amax(1) * 200
    assert 1.8 < largest.mean() < 2.1  # 2 for U(0, 1) over its mean
    dirichlet = hs.make_process("ran-hmm", num_states=200, num_symbols=200).emission_SV.flatten()
    assert abs(dirichlet.square().mean() * 200 * 201 / 2 - 1) < 0.05  # E p^2 = 2 / (K (K + 1))


# ---------------------------------------------------------------------------------------------------------------------
# Cyclic processes

CYCLIC = {
    "det": ("cyclic-det", {}),
    "rnd": ("cyclic-rnd", {"backward_probability": 0.1}),
    "hard": ("cyclic-hard", {"prediction_rate": 0.25}),
    "small": ("cyclic-hard", {"num_states": 2, "num_symbols": 1, "prediction_rate": 1.0}),
}


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
    batch = hs.Corpus(process, length=30)[0:200]
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
        law = process.labelled_VSS[a, s] * 4
        assert law[cycles[a, s]] == 0.875
        assert law[cycles[a].argsort()[s]] == 0.125
        assert law.sum() == 1
    two = hs.make_process("cyclic-rnd", num_states=2, num_symbols=1, backward_probability=0.25)
    assert two.labelled_VSS[0].tolist() == [[0, 1], [1, 0]]  # of two states successor and predecessor are one


def test_symbols_of_cyclic_rnd_say_nothing():
    process = hs.make_process("cyclic-rnd", seed=1)
    batch = hs.Corpus(process, length=60)[0:50]
    exact = hs.filter_beliefs(process, batch.observations)
    torch.testing.assert_close(exact.next_observation, torch.full_like(exact.next_observation, 0.2), rtol=0, atol=1e-9)
    belief = torch.eye(5, dtype=torch.float64)[0].expand(50, 5)
    kernels = process.labelled_VSS * 5
    for t in range(60):
        belief = torch.einsum("bi,bij->bj", belief, kernels[batch.observations[:, t]])
        torch.testing.assert_close(exact.beliefs[:, t], belief, rtol=0, atol=1e-7)  # up to 60 quantised steps


def test_augmented_cyclic_rnd_is_the_same_process():
    fields = {"seed": 1, "backward_probability": 0.03}
    plain, pairs = hs.make_process("cyclic-rnd", **fields), hs.make_process("cyclic-rnd", augmented=True, **fields)
    assert pairs.num_states == 25
    assert pairs.states[7] == "s2,a1"
    for state, action in itertools.product(range(5), range(5)):
        row = pairs.transition_SS[action * 5 + state].view(5, 5)
        assert torch.equal(row, plain.labelled_VSS[:, state])
    observations = hs.Corpus(plain, length=20)[0:30].observations
    one, other = hs.filter_beliefs(plain, observations), hs.filter_beliefs(pairs, observations)
    by_pair = other.beliefs.view(30, 20, 5, 5)
    blocks = by_pair.gather(2, observations[:, :, None, None].expand(-1, -1, 1, 5))[:, :, 0]
    torch.testing.assert_close(blocks, one.beliefs, rtol=0, atol=1e-14)
    torch.testing.assert_close(other.log_likelihood, one.log_likelihood, rtol=0, atol=1e-12)


def moore_hard(cycles, rate):
    """Cyclic-HARD as an HMM whose states emit, written from its definition: (s, a, 0), (s, 1), (s, 2)."""
    m, n = cycles.shape
    index = {(s, a, 0): s * m + a for s in range(n) for a in range(m)}
    index |= {(s, None, stage): n * m + (stage - 1) * n + s for s in range(n) for stage in (1, 2)}
    transition, emission = np.zeros((len(index),) * 2), np.zeros((len(index), m + 1 + n))
    for (s, a, stage), i in index.items():
        emission[i, {0: a, 1: m, 2: m + 1 + s}[stage]] = 1
        if stage == 1:
            transition[i, index[s, None, 2]] = 1
        for action in range(m) if stage != 1 else ():
            after = index[int(cycles[action, s]), action, 0]
            transition[i, after] += (1 - rate if stage == 0 else 1) / m
        if stage == 0:
            transition[i, index[s, None, 1]] += rate
    initial = np.zeros(len(index))
    for action in range(m):
        initial[index[int(cycles[action, 0]), action, 0]] = (1 - rate) / m
    initial[index[0, None, 1]] = rate
    return hs.HMM(initial, transition, emission)


def test_cyclic_hard_is_its_moore_machine():
    process = hs.make_process("cyclic-hard", seed=3, prediction_rate=0.2, num_symbols=3)
    moore = moore_hard(random_cycles(3, 5, 3).numpy(), 0.2)
    assert moore.num_states == 5 * 3 + 2 * 5
    observations = hs.Corpus(process, length=40)[0:100].observations
    one, other = hs.filter_beliefs(process, observations), hs.filter_beliefs(moore, observations)
    torch.testing.assert_close(one.next_observation, other.next_observation, rtol=0, atol=1e-9)
    torch.testing.assert_close(one.log_likelihood, other.log_likelihood, rtol=0, atol=1e-7)
    from_moore = hs.Corpus(moore, length=40)[0:100].observations
    assert (hs.filter_beliefs(process, from_moore).impossible_at == -1).all()


def test_predictions_of_cyclic_hard():
    rate, m, n = 0.25, 5, 5
    process = hs.make_process("cyclic-hard", seed=3, prediction_rate=rate)
    assert process.symbols == ("a0", "a1", "a2", "a3", "a4", "*", "s0", "s1", "s2", "s3", "s4")
    batch = hs.Corpus(process, length=60)[0:200]
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


def test_stars_are_rare():
    """One position in 122 at rate 1/120; an expected 0.984 in 120 steps, none with probability 0.3663."""
    process = hs.make_process("cyclic-hard")
    paths = process.sample_paths(np.arange(20_000), np.arange(120) == 0, 0)
    stars = (paths.observations == 5).sum(1).double()
    assert abs(stars.mean() - 0.984) < 4 * stars.std() / math.sqrt(20_000)
    none = (119 / 120) ** 120
    assert none == pytest.approx(0.3663, abs=5e-5)
    assert abs((stars == 0).double().mean() - none) < 4 * math.sqrt(none * (1 - none) / 20_000)


# ---------------------------------------------------------------------------------------------------------------------
# Floors


def test_floor_of_cyclic_hard():
    assert cyclic_hard_floor(5, 1 / 120, 1) == pytest.approx(1.644220, abs=5e-7)
    assert cyclic_hard_floor(5, 1 / 120, 120) == pytest.approx(1.630572, abs=5e-7)
    assert cyclic_hard_floor(2, 1 / 16, 17) == pytest.approx(0.8275, abs=5e-5)  # positions 0 .. 16
    assert cyclic_hard_floor(2, 1 / 32, 33) == pytest.approx(0.7841, abs=5e-5)
    assert cyclic_hard_floor(3, 1.0, 3) == pytest.approx(math.log(3) / 3)
    sampled = next_observation_floor(
        hs.make_process("cyclic-hard", prediction_rate=1 / 16, num_symbols=2), 17, num_samples=4000
    )
    assert sampled.low < 0.8275 + 1e-4
    assert sampled.high > 0.8275 - 1e-4


@pytest.mark.parametrize("slip, floor", [(0.01, 1.1269), (0.03, 1.4387), (0.05, 1.5075), (0.1, 1.5586), (0.15, 1.5756)])
def test_floor_of_cyclic_rnd(slip, floor):
    """Means over instances; each instance is within about 0.0015 of them."""
    means = [
        float(
            belief_floor(hs.make_process("cyclic-rnd", backward_probability=slip, seed=seed), 120, num_samples=100).mean
        )
        for seed in range(5)
    ]
    assert np.mean(means) == pytest.approx(floor, abs=0.003)


def ran_hmm_floors(law, num_instances, num_steps=120):
    processes = [hs.make_process("ran-hmm", law=law, seed=seed) for seed in range(num_instances)]
    beliefs = [float(belief_floor(p, num_steps, num_samples=100).mean) for p in processes]
    following = [float(next_observation_floor(p, num_steps, num_samples=100).mean) for p in processes]
    return np.mean(beliefs), np.mean(following)


#: Law of the rows: belief entropy, its standard deviation over instances, the same for the next observation.
RAN_HMM = {
    "dirichlet": (1.257, 0.1, 1.532, 0.055),
    "softmax": (1.287, 0.11, 1.539, 0.045),
    "uniform": (1.421, 0.065, 1.577, 0.025),
}


@pytest.mark.parametrize("law", RAN_HMM)
def test_floors_of_ran_hmm(law):
    belief, sd, following, following_sd = RAN_HMM[law]
    means = ran_hmm_floors(law, 20)
    assert abs(means[0] - belief) < 4 * sd / math.sqrt(20)
    assert abs(means[1] - following) < 4 * following_sd / math.sqrt(20)


@pytest.mark.soak
@pytest.mark.parametrize("law", RAN_HMM)
def test_floors_of_many_ran_hmms(law):
    belief, sd, following, following_sd = RAN_HMM[law]
    means = ran_hmm_floors(law, 200)
    assert abs(means[0] - belief) < 4 * sd / math.sqrt(60)  # the reference is a mean over 60 or 200 instances
    assert abs(means[1] - following) < 4 * following_sd / math.sqrt(60)


# ---------------------------------------------------------------------------------------------------------------------
# From input-driven systems to HMMs: exhaustive enumeration


def dyadic_mdp(seed, num_states=3, num_actions=2):
    """A kernel `[a, i, j]` of multiples of 2^-16, so that nothing is rounded."""
    rng = np.random.default_rng(seed)
    return np.stack([rows(rng, num_states, num_states) for _ in range(num_actions)])


def mdp_law(kernels, num_steps):
    """P(s_0, a_1, s_1, .., a_t, s_t) by walking through all of them, from state 0."""
    m, n, _ = kernels.shape
    law = {((0,),): 1.0}
    for _ in range(num_steps):
        law = {
            (*path, (a, s)): p * kernels[a, path[-1][-1], s] / m
            for path, p in law.items()
            for a in range(m)
            for s in range(n)
        }
    return {tuple(itertools.chain(*path)): p for path, p in law.items()}


def chain_law(hmm, num_steps):
    """P(pair_0, .., pair_{t-1}) of the hidden pairs of an augmented HMM."""
    initial, transition = hmm.initial_S.tolist(), hmm.transition_SS.tolist()
    law = {(pair,): p for pair, p in enumerate(initial)}
    for _ in range(num_steps - 1):
        law = {(*path, j): p * transition[path[-1]][j] for path, p in law.items() for j in range(len(initial))}
    return law


def discrepancy(one, other):
    return max(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other})


@pytest.mark.parametrize("seed", range(3))
def test_both_pairings_have_the_law_of_the_system(seed):
    kernels = dyadic_mdp(seed)
    n, steps = 3, 3
    process, truth = driven(torch.from_numpy(kernels)), mdp_law(kernels, steps)
    assert sum(truth.values()) == pytest.approx(1, abs=1e-15)

    post = {}
    for path, p in chain_law(augment(process), steps).items():  # pair t = (s_{t+1}, a_{t+1})
        key = (0, *itertools.chain(*((pair // n, pair % n) for pair in path)))
        post[key] = post.get(key, 0.0) + p
    assert discrepancy(post, truth) <= 1e-15

    pre, misread = {}, {}
    for path, p in chain_law(augment(process, "pre"), steps + 1).items():  # pair t = (s_t, a_{t+1})
        states, actions = [pair % n for pair in path], [pair // n for pair in path]
        key = tuple(itertools.chain(*zip(states, actions, strict=True)))[:-1]
        pre[key] = pre.get(key, 0.0) + p
        wrong = (states[0], *itertools.chain(*zip(actions[1:], states[1:], strict=True)))
        misread[wrong] = misread.get(wrong, 0.0) + p
    assert discrepancy(pre, truth) <= 1e-15
    assert discrepancy(misread, truth) > 1e-3  # the printed kernel with the printed trajectory


@pytest.mark.parametrize("pairing", ["post", "pre"])
def test_augmented_processes_emit_the_same(pairing):
    for process in (
        hs.make_process("cyclic-rnd", seed=1, backward_probability=0.1),
        hs.make_process("cyclic-hard", seed=1, prediction_rate=0.3, num_symbols=2),
        hs.make_process("golden-mean"),
    ):
        if isinstance(process, hs.HMM):
            continue
        observations = hs.Corpus(process, length=12)[0:40].observations
        torch.testing.assert_close(
            hs.filter_beliefs(augment(process, pairing), observations).log_likelihood,
            hs.filter_beliefs(process, observations).log_likelihood,
            rtol=0,
            atol=1e-7,  # conditional laws are rounded to 2^-32 anew in the pre pairing
        )


@pytest.mark.usefixtures("unchecked")
def test_other_pairings_are_refused():
    with pytest.raises(InputError, match="must be post or pre"):
        augment(hs.make_process("cyclic-det"), "both")


# ---------------------------------------------------------------------------------------------------------------------
# MatMul and RanLDS


def test_haar_matrices():
    matrices = haar_orthogonal((1, 5), 4000, 3)
    eye = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(matrices @ matrices.transpose(1, 2), eye.expand_as(matrices), rtol=0, atol=1e-14)
    assert matrices.mean(0).abs().max() < 4 * math.sqrt(1 / 3 / 4000)
    assert (matrices.square().mean(0) - 1 / 3).abs().max() < 4 * math.sqrt(4 / 45 / 4000)
    trace = matrices.diagonal(dim1=1, dim2=2).sum(1)  # mean 0, variance 1 under Haar's law
    assert abs(trace.mean()) < 4 / math.sqrt(4000)
    assert abs(trace.square().mean() - 1) < 4 * math.sqrt(2 / 4000)
    positive = (torch.linalg.det(matrices) > 0).double().mean()
    assert abs(positive - 0.5) < 4 * 0.5 / math.sqrt(4000)
    assert torch.equal(haar_orthogonal((1, 5), 2, 3), matrices[:2])


def test_matmul_vectors_are_products():
    process = hs.make_process("matmul", dimension=4, num_symbols=3, seed=2)
    batch = hs.Corpus(process, length=10)[0:5]
    assert (batch.states == 0).all()
    vectors = process.vectors(batch.observations)
    for b in range(5):
        vector = torch.eye(4, dtype=torch.float64)[0]
        for t in range(10):
            vector = process.matrices_VDD[batch.observations[b, t]] @ vector
            torch.testing.assert_close(vectors[b, t], vector, rtol=0, atol=1e-14)
    assert vectors.square().mean(-1).sub(1 / 4).abs().max() < 1e-14  # what predicting zero costs
    again = process.vectors(batch.observations, starts=torch.arange(10) % 4 == 0)
    torch.testing.assert_close(again[:, 4:8], process.vectors(batch.observations[:, 4:8]))
    assert torch.equal(process.vectors(batch.observations[3:4]), vectors[3:4])
    assert process.vectors(batch.observations[:0]).shape == (0, 10, 4)
    with pytest.raises(InputError, match="must be symbols in"):
        process.vectors(torch.tensor([[3]]))


def test_matmul_symbols_are_uniform():
    observations = hs.Corpus(hs.make_process("matmul"), length=100)[0:200].observations
    assert chi_square(observations.flatten().bincount()) < 24
    assert len({hs.make_process("matmul", seed=seed).digest for seed in range(3)}) == 3


def general_system():
    rng = np.random.default_rng(0)
    spread = rng.normal(size=(2, 3, 3))
    noise = [m @ m.T + 0.1 * np.eye(3) for m in spread]
    return hs.LinearGaussian(
        rng.normal(size=(3, 3)) / 3,
        rng.normal(size=(2, 3)),
        initial=rng.normal(size=3),
        state_noise=noise[0],
        output_noise=noise[1][:2, :2],
    )


@pytest.mark.parametrize("make", [lambda: hs.make_process("ran-lds"), general_system], ids=["ran-lds", "general"])
def test_linear_samples_are_the_same_in_any_batch(make):
    process = make()
    corpus = hs.Corpus(process, length=11, seed=3)
    whole = corpus[0:20]
    assert whole.tokens.shape == whole.observations.shape == (20, 11, process.num_symbols)
    for part in ([7], [3, 19, 0], list(range(19, -1, -1))):
        assert torch.equal(corpus[part].observations, whole.observations[part])
        assert torch.equal(corpus[part].states, whole.states[part])
    short = hs.Corpus(process, length=4, seed=3)[0:20]
    assert torch.equal(short.states, whole.states[:, :4])
    for other in (hs.Corpus(process, length=11, seed=4), hs.Corpus(process, length=11, seed=3, stream="train")):
        assert not torch.equal(other[0:20].states, whole.states)
    assert corpus.digest(5) == hs.Corpus(make(), length=11, seed=3).digest(5) != hs.Corpus(make(), 11, 4).digest(5)


def test_linear_noise_has_its_covariance():
    process = general_system()
    paths = process.sample_paths(np.arange(20_000), np.array([True, False, True]), 0)
    states, observations = paths.states.double(), paths.observations
    before = torch.stack([process.initial_S.expand(20_000, 3), states[:, 0], process.initial_S.expand(20_000, 3)], 1)
    state_noise = (states - before @ process.transition_SS.T).flatten(0, 1)
    output_noise = (observations - states @ process.output_YS.T).flatten(0, 1)
    for noise, covariance in ((state_noise, process.state_noise_SS), (output_noise, process.output_noise_YY)):
        scale = covariance.diagonal().max()
        assert noise.mean(0).abs().max() < 4.5 * math.sqrt(scale / len(noise))
        assert (noise.T.cov() - covariance).abs().max() < 4.5 * scale * math.sqrt(2 / len(noise))
    both = torch.cat([state_noise, output_noise], 1).T.corrcoef()
    assert both[:3, 3:].abs().max() < 4.5 / math.sqrt(60_000)


def test_vectors_after_a_placeholder():
    corpus = hs.Corpus(hs.make_process("ran-lds"), layout=hs.Sequences(length=5, placeholder=True))
    batch = corpus[0:3]
    assert batch.tokens.shape == (3, 6, 5)
    assert (batch.tokens[:, 0] == 0).all()
    assert torch.equal(batch.tokens[:, 1:], batch.observations)


def test_placeholder_is_the_position_0_of_the_paper():
    process = hs.make_process("cyclic-hard")
    corpus = hs.Corpus(process, layout=hs.Sequences(length=6, placeholder=True), seed=1)
    plain = hs.Corpus(process, length=6, seed=1)
    assert corpus.num_tokens == 12
    assert plain.num_tokens == 11
    assert (corpus[0:4].tokens[:, 0] == 11).all()
    assert torch.equal(corpus[0:4].tokens[:, 1:], plain[0:4].tokens)
    assert corpus.layout.predicted.tolist() == [0, 1, 2, 3, 4, 5]
    assert plain.layout.predicted.tolist() == [1, 2, 3, 4, 5]
    assert corpus.digest(4) != plain.digest(4)
    assert hs.Corpus(process, layout=hs.Sequences(length=6), seed=1).digest(4) == plain.digest(4)


# ---------------------------------------------------------------------------------------------------------------------
# Refusals

BAD = [
    ("ran-hmm", {"law": "normal"}, "law"),
    ("ran-hmm", {"num_states": 0}, r"num_states: must be in \[1, 4096\]"),
    ("cyclic-det", {"num_states": 1}, r"num_states: must be in \[2, 1024\]"),
    ("cyclic-det", {"num_states": 3, "num_symbols": 3, "distinct": True}, "at most 2, the number of distinct cycles"),
    ("cyclic-det", {"num_states": 1024, "num_symbols": 65}, "num_symbols: must be at most 64"),
    ("cyclic-rnd", {"backward_probability": 1.5}, r"backward_probability: must be in \[0, 1\]"),
    ("cyclic-rnd", {"backward_probability": 1e-10}, "below 2\\^-32"),
    ("cyclic-hard", {"prediction_rate": 0.0}, r"prediction_rate: must be in \(0, 1\]"),
    ("cyclic-hard", {"num_states": 200}, "at most 65536 edges"),
    ("matmul", {"dimension": 0}, r"dimension: must be in \[1, 1024\]"),
    ("matmul", {"dimension": 1024, "num_symbols": 100}, "matrix entries"),
    ("ran-lds", {"seed": -1}, "seed: must be an integer"),
    ("ran-lds", {"dimensions": 3}, "did you mean 'dimension'"),
]


@pytest.mark.parametrize("name, fields, message", BAD, ids=lambda x: str(x)[:40])
def test_bad_fields_are_refused(name, fields, message):
    with pytest.raises(InputError, match=message):
        hs.make_process(name, **fields)


EYE = np.eye(2)
BAD_SYSTEMS = [
    ((EYE[:1], EYE), {}, "transition: must have shape 1 x 1"),
    ((EYE, np.eye(3)), {}, "output: must have shape any x 2"),
    ((EYE * np.nan, EYE), {}, "transition: must be finite"),
    ((EYE, EYE), {"initial": [1.0]}, "initial: must have shape 2"),
    ((EYE, EYE), {"state_noise": -EYE}, "state_noise: must be a symmetric positive definite"),
    ((EYE, EYE), {"output_noise": [[1.0, 0.5], [0.0, 1.0]]}, "output_noise: must be a symmetric"),
]


@pytest.mark.parametrize("arguments, options, message", BAD_SYSTEMS, ids=lambda x: str(x)[:30])
def test_bad_linear_systems_are_refused(arguments, options, message):
    with pytest.raises(InputError, match=message):
        hs.LinearGaussian(*arguments, **options)


def test_bad_matrices_of_products_are_refused():
    with pytest.raises(InputError, match="must have shape any x n x n"):
        hs.MatrixProduct(np.eye(2))
    with pytest.raises(InputError, match="must be finite"):
        hs.MatrixProduct(np.full((1, 2, 2), np.inf))
    with pytest.raises(InputError, match="samples are numbered"):
        hs.make_process("ran-lds").sample_paths(np.array([-1]), np.array([True]), 0)


def test_driven_systems_take_any_kernel():
    process = driven(permutation_matrices(torch.tensor([[1, 0], [0, 1]])))
    assert process.labelled_VSS.tolist() == [[[0, 0.5], [0.5, 0]], [[0.5, 0], [0, 0.5]]]
    assert process.initial_S.tolist() == [1, 0]
