"""The Kalman filter against Gaussian conditioning, the scalar form of orthogonal systems, and golden ratios."""

import math

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference.floors import linear_floor, linear_variances
from hmmscope.inference.window import linear_window_errors
from hmmscope.processes.kalman import forgetting_factor, kalman_steps, steady_step

GOLDEN = (1 + math.sqrt(5)) / 2


def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def general_system(seed=0, num_states=3, num_observed=2, singular=False):
    """If `singular`, the output noise has the least rank with which observations have densities."""
    rng = np.random.default_rng(seed)
    state, output = (rng.normal(size=(n, n)) for n in (num_states, num_observed))
    output[:, : num_states * singular] = 0
    return hs.LinearGaussian(
        rng.normal(size=(num_states, num_states)) / 2,
        rng.normal(size=(num_observed, num_states)),
        initial=rng.normal(size=num_states),
        state_noise=state @ state.T + 0.1 * np.eye(num_states),
        output_noise=output @ output.T + (not singular) * 0.1 * np.eye(num_observed),
    )


def conditioned(process, observations, initial, initial_covariance):
    """Means, covariances and log-densities from the joint Gaussian of everything, without a recursion over the data.

    What is NaN is no part of what is conditioned on.
    """
    n, m, time = process.num_states, process.num_symbols, len(observations)
    a, c = process.transition.numpy(), process.output.numpy()
    joint_state = np.zeros((n * (time + 1),) * 2)  # covariance of (noise in the start, state noises)
    joint_state[:n, :n] = initial_covariance
    for t in range(1, time + 1):
        joint_state[n * t : n * (t + 1), n * t : n * (t + 1)] = process.state_noise.numpy()
    powers = [np.linalg.matrix_power(a, k) for k in range(time + 1)]
    to_states = np.block(
        [[powers[t - u] if u <= t else np.zeros((n, n)) for u in range(time + 1)] for t in range(1, time + 1)]
    )
    outputs = np.kron(np.eye(time), c)
    state_mean = np.concatenate([powers[t] @ initial for t in range(1, time + 1)])
    state_cov = to_states @ joint_state @ to_states.T
    seen_cov = outputs @ state_cov @ outputs.T + np.kron(np.eye(time), process.output_noise.numpy())
    error = observations.ravel() - outputs @ state_mean
    means, covariances, logs = [], [], []
    made = np.flatnonzero(~np.isnan(error))
    for t in range(1, time + 1):
        seen, here = made[made < m * t], slice(n * (t - 1), n * t)
        cross, own = (state_cov @ outputs.T)[here, seen], seen_cov[np.ix_(seen, seen)]
        weights = np.linalg.lstsq(own, cross.T, rcond=None)[0].T
        means.append(state_mean[here] + weights @ error[seen])
        covariances.append(state_cov[here, here] - weights @ cross.T)
        sign, log_determinant = np.linalg.slogdet(2 * math.pi * own)
        assert sign == 1
        scaled = np.linalg.lstsq(own, error[seen], rcond=None)[0]
        logs.append(-0.5 * (error[seen] @ scaled + log_determinant))
    return np.array(means), np.array(covariances), np.diff(logs, prepend=0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sizes", [(3, 2), (2, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("singular", [False, True])
def test_filter_is_gaussian_conditioning(seed, sizes, known, singular):
    process = general_system(seed, *sizes, singular)
    observations = hs.ProcessDataset(process, length=6)[0:3].observations
    rng = np.random.default_rng(seed)
    spread = rng.normal(size=(sizes[0], sizes[0]))
    initial, covariance = rng.normal(size=sizes[0]), spread @ spread.T
    options = {} if known else {"initial": initial, "initial_covariance": covariance}
    exact = hs.kalman_filter(process, observations, **options)
    if known:
        initial, covariance = process.initial.numpy(), np.zeros((sizes[0],) * 2)
    for b in range(3):
        means, covariances, logs = conditioned(process, observations[b].numpy(), initial, covariance)
        np.testing.assert_allclose(exact.means[b], means, rtol=0, atol=1e-10)
        np.testing.assert_allclose(exact.covariances[b], covariances, rtol=0, atol=1e-10)
        np.testing.assert_allclose(exact.log_likelihood_terms[b], logs, rtol=0, atol=1e-9)
        assert exact.log_likelihood[b] == pytest.approx(logs.sum(), abs=1e-9)
    torch.testing.assert_close(exact.predicted_observation[:, 1:], exact.next_observation[:, :-1])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sizes", [(3, 2), (2, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("singular", [False, True])
def test_what_was_not_observed_is_no_condition(seed, sizes, singular):
    """Vectors, and single coordinates of them, that are missing: at random, at both ends, everywhere, nowhere."""
    process = general_system(seed, *sizes, singular)
    observations = hs.ProcessDataset(process, length=6)[0:5].observations
    gone = torch.rand(observations.shape, generator=torch.Generator().manual_seed(seed)) < 0.4
    gone[1, 0] = gone[1, -1] = gone[2] = True
    gone[3] = False
    observed = observations.masked_fill(gone, torch.nan)
    exact = hs.kalman_filter(process, observed)
    known = process.initial.numpy(), np.zeros((sizes[0],) * 2)
    for b in range(5):
        means, covariances, logs = conditioned(process, observed[b].numpy(), *known)
        np.testing.assert_allclose(exact.means[b], means, rtol=0, atol=1e-10)
        np.testing.assert_allclose(exact.covariances[b], covariances, rtol=0, atol=1e-10)
        np.testing.assert_allclose(exact.log_likelihood_terms[b], logs, rtol=0, atol=1e-9)
    assert (exact.log_likelihood_terms[gone.all(2)] == 0).all()
    assert torch.equal(exact.means[3], hs.kalman_filter(process, observations[3:4]).means[0])  # as by itself
    torch.testing.assert_close(exact.predicted_observation[:, 1:], exact.next_observation[:, :-1])
    assert torch.equal(hs.observe(process, observed).vectors["covariance"], exact.covariances)
    with pytest.raises(InputError, match=r"observations\[0, 0\]: must be finite"):
        hs.kalman_filter(process, observations / 0)


def test_one_start_for_each_sequence():
    process = general_system()
    observations = hs.ProcessDataset(process, length=5)[0:2].observations
    starts = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    both = hs.kalman_filter(process, observations, initial=starts)
    for b in range(2):
        alone = hs.kalman_filter(process, observations[b : b + 1], initial=starts[b])
        torch.testing.assert_close(both.means[b], alone.means[0], rtol=0, atol=1e-13)


def isotropic_gains(num_steps: int) -> torch.Tensor:
    gains, variance = [], 0.0
    for _ in range(num_steps):
        variance = (variance + 1) / (variance + 2)
        gains.append(variance)
    return torch.tensor(gains, dtype=torch.float64)


def isotropic_means(process, observations):
    """Compute filtered means of a system with orthogonal matrices and unit noise ([Limits] Appendix C)."""
    means, mean = [], process.initial.expand(len(observations), -1)
    for t, gain in enumerate(isotropic_gains(observations.shape[1])):
        predicted = mean @ process.transition.T
        mean = predicted + gain * (observations[:, t] - predicted @ process.output.T) @ process.output
        means.append(mean)
    return torch.stack(means, 1)


@pytest.mark.parametrize("seed", range(4))
def test_scalar_gains_suffice_for_orthogonal_systems(seed):
    process = hs.make_process("ran-lds", seed=seed)
    observations = hs.ProcessDataset(process, length=120)[0:50].observations
    general = hs.kalman_filter(process, observations).means
    scalar = isotropic_means(process, observations)
    assert (general - scalar).abs().max() <= 1e-12 * (1 + scalar.abs().max())
    assert (general - scalar).abs().max() <= 1e-12


def test_gains_are_ratios_of_fibonacci_numbers():
    gains = isotropic_gains(30)
    exact = [fibonacci(2 * t) / fibonacci(2 * t + 1) for t in range(1, 31)]
    torch.testing.assert_close(gains, torch.tensor(exact, dtype=torch.float64), rtol=0, atol=1e-15)
    assert gains[:4].tolist() == pytest.approx([1 / 2, 3 / 5, 8 / 13, 21 / 34], abs=1e-15)
    process = hs.make_process("ran-lds")
    start = torch.zeros(5, 5, dtype=torch.float64)
    for step, gain in zip(kalman_steps(process, start), gains, strict=False):
        torch.testing.assert_close(step.gain, gain * process.output.T, rtol=0, atol=1e-14)
        torch.testing.assert_close(step.covariance, gain * torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-14)


def test_variances_and_floors():
    process = hs.make_process("ran-lds")
    variances = linear_variances(process, 121)
    exact = [fibonacci(2 * t + 1) / fibonacci(2 * t - 1) for t in range(1, 122)]
    torch.testing.assert_close(variances, torch.tensor(exact, dtype=torch.float64), rtol=0, atol=1e-13)
    assert variances[-1] == pytest.approx(GOLDEN**2, abs=1e-12)
    assert linear_floor(process, 120) == pytest.approx(2.6117240, abs=5e-8)
    assert linear_floor(process, 120, first=1) == pytest.approx(2.6168742, abs=5e-8)


def test_floor_is_the_error_of_the_filter():
    process = hs.make_process("ran-lds", seed=1)
    observations = hs.ProcessDataset(process, length=120)[0:1000].observations
    predicted = hs.kalman_filter(process, observations).predicted_observation
    by_sample = (observations - predicted).square().mean((1, 2))
    assert abs(by_sample.mean() - linear_floor(process, 120)) < 4 * by_sample.std() / math.sqrt(1000)


def test_forgetting():
    for seed in range(3):
        process = hs.make_process("ran-lds", seed=seed)
        assert forgetting_factor(process) == pytest.approx(1 - 1 / GOLDEN, abs=1e-12)
        assert forgetting_factor(process) == pytest.approx(0.3819660, abs=5e-8)
    slow = hs.LinearGaussian([[0.5]], [[1.0]], output_noise=[[1e6]])
    assert forgetting_factor(slow) == pytest.approx(0.5, abs=1e-5)  # hardly anything is seen
    with pytest.raises(InputError, match="did not converge"):
        steady_step(hs.LinearGaussian([[2.0]], [[0.0]]), max_steps=50)


def test_windows_of_a_linear_system():
    process = hs.make_process("ran-lds")
    zero = linear_window_errors(process, [0, 1, 2, 4, 8, 16], 120)
    expected = [1, 0.381, 0.145, 0.021, 4e-4, 0]
    torch.testing.assert_close(zero.mean, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=2e-3)
    oldest = linear_window_errors(process, [1, 2, 4, 8, 16], 120, start="oldest")
    expected = [0.065, 0.024, 0.0036, 1e-4, 0]
    torch.testing.assert_close(oldest.mean, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=2e-3)
    whole = linear_window_errors(process, [120], 120, num_samples=10)
    assert whole.mean < 1e-12


def test_empty_sequences():
    result = hs.kalman_filter(hs.make_process("ran-lds"), torch.zeros(3, 0, 5, dtype=torch.float64))
    assert result.means.shape == (3, 0, 5)
    assert result.covariances.shape == (3, 0, 5, 5)
    assert result.log_likelihood.tolist() == [0, 0, 0]


def test_bad_observations_are_refused():
    process = hs.make_process("ran-lds")
    good = torch.zeros(2, 3, 5, dtype=torch.float64)
    with pytest.raises(InputError, match=r"must have shape \(batch, time, 5\)"):
        hs.kalman_filter(process, good[:, :, :4])
    bad = good.clone()
    bad[1, 2, 0] = math.inf
    with pytest.raises(InputError, match=r"observations\[1, 2\]: must be finite"):
        hs.kalman_filter(process, bad)
    with pytest.raises(InputError, match="initial: must have shape"):
        hs.kalman_filter(process, good, initial=[1.0])
    with pytest.raises(InputError, match="initial_covariance"):
        hs.kalman_filter(process, good, initial_covariance=[[1.0]])
    with pytest.raises(InputError, match="start: must be 'zero' or 'oldest'"):
        linear_window_errors(process, [1], 3, start="newest")
    with pytest.raises(InputError, match=r"windows: must be one or more numbers in \[1, 3\]"):
        linear_window_errors(process, [0], 3, start="oldest")
