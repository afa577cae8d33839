"""Least losses of the processes of [Limits], augmented processes, linear systems and products of matrices."""

import itertools
import math

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference.floors import belief_floor, cyclic_hard_floor, next_observation_floor
from hmmscope.processes.cycles import driven, permutation_matrices
from hmmscope.processes.driven_as_hmm import augment
from hmmscope.processes.orthogonal import haar_orthogonal
from limits_processes_cases import (
    BAD,
    BAD_SYSTEMS,
    RAN_HMM,
    chain_law,
    chi_square,
    discrepancy,
    dyadic_mdp,
    general_system,
    mdp_law,
    ran_hmm_floors,
)


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
        observations = hs.ProcessDataset(process, length=12)[0:40].observations
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
    batch = hs.ProcessDataset(process, length=10)[0:5]
    assert (batch.states == 0).all()
    vectors = process.vectors(batch.observations)
    for b in range(5):
        vector = torch.eye(4, dtype=torch.float64)[0]
        for t in range(10):
            vector = process.matrices[batch.observations[b, t]] @ vector
            torch.testing.assert_close(vectors[b, t], vector, rtol=0, atol=1e-14)
    assert vectors.square().mean(-1).sub(1 / 4).abs().max() < 1e-14  # what predicting zero costs
    again = process.vectors(batch.observations, reset_mask=torch.arange(10) % 4 == 0)
    torch.testing.assert_close(again[:, 4:8], process.vectors(batch.observations[:, 4:8]))
    assert torch.equal(process.vectors(batch.observations[3:4]), vectors[3:4])
    assert process.vectors(batch.observations[:0]).shape == (0, 10, 4)
    with pytest.raises(InputError, match="must be symbols in"):
        process.vectors(torch.tensor([[3]]))


def test_matmul_symbols_are_uniform():
    observations = hs.ProcessDataset(hs.make_process("matmul"), length=100)[0:200].observations
    assert chi_square(observations.flatten().bincount()) < 24
    assert len({hs.make_process("matmul", seed=seed).digest for seed in range(3)}) == 3


@pytest.mark.parametrize("make", [lambda: hs.make_process("ran-lds"), general_system], ids=["ran-lds", "general"])
def test_linear_samples_are_the_same_in_any_batch(make):
    process = make()
    dataset = hs.ProcessDataset(process, length=11, seed=3)
    whole = dataset[0:20]
    assert whole.tokens.shape == whole.observations.shape == (20, 11, process.num_symbols)
    for part in ([7], [3, 19, 0], list(range(19, -1, -1))):
        assert torch.equal(dataset[part].observations, whole.observations[part])
        assert torch.equal(dataset[part].states, whole.states[part])
    short = hs.ProcessDataset(process, length=4, seed=3)[0:20]
    assert torch.equal(short.states, whole.states[:, :4])
    for other in (
        hs.ProcessDataset(process, length=11, seed=4),
        hs.ProcessDataset(process, length=11, seed=3, stream="train"),
    ):
        assert not torch.equal(other[0:20].states, whole.states)
    assert (
        dataset.digest(5)
        == hs.ProcessDataset(make(), length=11, seed=3).digest(5)
        != hs.ProcessDataset(make(), 11, 4).digest(5)
    )


def test_linear_noise_has_its_covariance():
    process = general_system()
    paths = process.sample_paths(np.arange(20_000), np.array([True, False, True]), 0)
    states, observations = paths.states.double(), paths.observations
    before = torch.stack([process.initial.expand(20_000, 3), states[:, 0], process.initial.expand(20_000, 3)], 1)
    state_noise = (states - before @ process.transition.T).flatten(0, 1)
    output_noise = (observations - states @ process.output.T).flatten(0, 1)
    for noise, covariance in ((state_noise, process.state_noise), (output_noise, process.output_noise)):
        scale = covariance.diagonal().max()
        assert noise.mean(0).abs().max() < 4.5 * math.sqrt(scale / len(noise))
        assert (noise.T.cov() - covariance).abs().max() < 4.5 * scale * math.sqrt(2 / len(noise))
    both = torch.cat([state_noise, output_noise], 1).T.corrcoef()
    assert both[:3, 3:].abs().max() < 4.5 / math.sqrt(60_000)


def test_vectors_after_a_placeholder():
    dataset = hs.ProcessDataset(hs.make_process("ran-lds"), layout=hs.SequenceLayout(length=5, placeholder=True))
    batch = dataset[0:3]
    assert batch.tokens.shape == (3, 6, 5)
    assert (batch.tokens[:, 0] == 0).all()
    assert torch.equal(batch.tokens[:, 1:], batch.observations)


def test_placeholder_is_the_position_0_of_the_paper():
    process = hs.make_process("cyclic-hard")
    dataset = hs.ProcessDataset(process, layout=hs.SequenceLayout(length=6, placeholder=True), seed=1)
    plain = hs.ProcessDataset(process, length=6, seed=1)
    assert dataset.vocab_size == 12
    assert plain.vocab_size == 11
    assert (dataset[0:4].tokens[:, 0] == 11).all()
    assert torch.equal(dataset[0:4].tokens[:, 1:], plain[0:4].tokens)
    assert dataset.layout.predicted_observations.tolist() == [0, 1, 2, 3, 4, 5]
    assert plain.layout.predicted_observations.tolist() == [1, 2, 3, 4, 5]
    assert dataset.digest(4) != plain.digest(4)
    assert hs.ProcessDataset(process, layout=hs.SequenceLayout(length=6), seed=1).digest(4) == plain.digest(4)


@pytest.mark.parametrize("name, fields, message", BAD, ids=lambda x: str(x)[:40])
def test_bad_fields_are_refused(name, fields, message):
    with pytest.raises(InputError, match=message):
        hs.make_process(name, **fields)


@pytest.mark.parametrize("arguments, options, message", BAD_SYSTEMS, ids=lambda x: str(x)[:30])
def test_bad_linear_systems_are_refused(arguments, options, message):
    with pytest.raises(InputError, match=message):
        hs.LinearGaussian(*arguments, **options)


def test_numbers_in_lists_keep_all_their_digits():
    assert hs.LinearGaussian([[0.1]], [[1 / 3]]).output.item() == 1 / 3


def test_bad_matrices_of_products_are_refused():
    with pytest.raises(InputError, match=r"must have shape \(symbols, n, n\)"):
        hs.MatrixProduct(np.eye(2))
    with pytest.raises(InputError, match="must be finite"):
        hs.MatrixProduct(np.full((1, 2, 2), np.inf))
    with pytest.raises(InputError, match=r"must be in \[0, 2\^40\)"):
        hs.make_process("ran-lds").sample_paths(np.array([-1]), np.array([True]), 0)


def test_driven_systems_take_any_kernel():
    process = driven(permutation_matrices(torch.tensor([[1, 0], [0, 1]])))
    assert process.labelled.tolist() == [[[0, 0.5], [0.5, 0]], [[0.5, 0], [0, 0.5]]]
    assert process.initial.tolist() == [1, 0]
