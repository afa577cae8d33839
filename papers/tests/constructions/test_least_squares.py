"""Least squares on windows: closed forms, the spectrum of one-hot windows, and the bound on the optimisation error."""

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from hmmscope.errors import InputError
from hmmscope_papers.constructions.regression import LeastSquares, RegressionSamples, joint_index, window_features
from multitask_cases import plain_descent, random_demonstrations, samples_of


def random_problem(seed: int, num_symbols: int, memory_length: int, number: int, length: int) -> LeastSquares:
    drawn = torch.from_numpy(np.random.default_rng(seed).integers(num_symbols, size=(number, length)))
    return RegressionSamples.of(drawn, num_symbols, memory_length).problem()


@pytest.mark.parametrize("num_symbols, memory_length, num_futures", [(3, 2, 1), (2, 3, 2), (4, 1, 1), (2, 1, 3)])
def test_moments_solution_and_iterates(num_symbols: int, memory_length: int, num_futures: int) -> None:
    """Against loops over samples and numpy's pseudo-inverse."""
    demonstrations = random_demonstrations(np.random.default_rng(0), [6] * 9, num_symbols)
    found = RegressionSamples.of(torch.tensor(demonstrations), num_symbols, memory_length, num_futures).problem()
    samples = samples_of(demonstrations, num_symbols, memory_length, num_futures)
    x, y = (np.array(part) for part in zip(*samples, strict=True))
    assert found.num_samples == len(samples)
    assert np.abs(found.covariance.numpy() - x.T @ x / len(x)).max() < 1e-15
    assert np.abs(found.cross.numpy() - y.T @ x / len(x)).max() < 1e-15
    wanted = np.linalg.lstsq(x, y, rcond=None)[0].T  # of least norm
    assert np.abs(found.solution().numpy() - wanted).max() < 1e-12
    assert found.rank == np.linalg.matrix_rank(x)
    for ridge in (0.0, 0.2):
        steps = plain_descent(samples, 0.3, 25, ridge)
        assert np.abs(found.iterates(25, 0.3, ridge).numpy() - np.array(steps)).max() < 1e-14
        assert np.abs(found.descent(25, 0.3, ridge).numpy() - steps[-1]).max() < 1e-14
        limit = y.T @ x / len(x) @ np.linalg.pinv(x.T @ x / len(x) + ridge * np.eye(x.shape[1]), rcond=1e-10)
        assert np.abs(found.solution(ridge).numpy() - limit).max() < 1e-12


@settings(max_examples=60)
@given(
    num_symbols=st.integers(2, 4),
    memory_length=st.integers(1, 4),
    number=st.integers(1, 30),
    num_steps=st.integers(0, 60),
    share=st.floats(0.05, 1.0),
    seed=st.integers(0, 2**16),
)
def test_invariants(num_symbols: int, memory_length: int, number: int, num_steps: int, share: float, seed: int) -> None:
    problem = random_problem(seed, num_symbols, memory_length, number, memory_length + 2)
    zeros = int((problem.eigenvalues == 0).sum())
    assert (
        zeros >= memory_length - 1
    )  # [MultiTask] Assumption 3 as stated, a smallest eigenvalue above zero, never holds
    assert problem.rank <= memory_length * (num_symbols - 1) + 1
    assert 0 < float(problem.alpha) <= float(problem.largest) <= memory_length * (1 + 1e-14)
    rate = share / float(problem.largest)
    weights, solution = problem.descent(num_steps, rate), problem.solution()
    windows = torch.tensor(list(itertools.product(range(num_symbols), repeat=memory_length)))
    x = window_features(windows, num_symbols)
    inside = problem.in_range(x)
    assert bool(inside.any())
    error = ((solution - weights) @ x[inside].T).norm(dim=0).max()
    bound = problem.optimisation_bound(memory_length, num_steps, rate)
    assert float(error) <= float(bound) * (1 + 1e-9) + 1e-12
    assert float(bound) <= (memory_length / float(problem.alpha)) ** 0.5 * (1 + 1e-9)
    assert float(((solution @ x[inside].T).sum(0) - 1).abs().max()) < 1e-9  # least squares is normalised
    null = problem._spectrum[1][:, problem.eigenvalues == 0]
    assert float((weights @ null).abs().sum()) < 1e-10


@pytest.mark.parametrize("num_symbols, memory_length", [(2, 1), (2, 3), (3, 2), (4, 2)])
def test_full_factorial_spectrum(num_symbols: int, memory_length: int) -> None:
    """L/V once, 1/V L(V - 1) times, 0 L - 1 times."""
    windows = list(itertools.product(range(num_symbols), repeat=memory_length))
    drawn = torch.tensor([[*window, window[-1]] for window in windows])
    found = RegressionSamples.of(drawn, num_symbols, memory_length).problem().eigenvalues
    wanted = [0.0] * (memory_length - 1) + [1 / num_symbols] * (memory_length * (num_symbols - 1))
    assert found.tolist() == pytest.approx([*wanted, memory_length / num_symbols], abs=1e-14)
    assert int((found == 0).sum()) == memory_length - 1


def test_mixture_of_lags_on_a_full_factorial() -> None:
    """Labels from lag l with weight lambda_l: y[a] = m/V + c (sum_l lambda_l 1[o_(t-l) = a] - 1/V)."""
    weights, rate, steps, size = (0.5, 0.25, 0.25), 0.4, 7, 3
    demonstrations = []
    for window in itertools.product(range(size), repeat=3):
        for lag, copies in enumerate((2, 1, 1)):
            demonstrations += [[*window, window[-1 - lag]]] * copies
    problem = RegressionSamples.of(torch.tensor(demonstrations), size, 3).problem()
    recent_first = torch.tensor([2, 0, 2])
    found = problem.descent(steps, rate) @ window_features(recent_first, size)
    mass, contrast = 1 - (1 - rate * 3 / size) ** steps, 1 - (1 - rate / size) ** steps
    for symbol in range(size):
        share = sum(weight for weight, one in zip(weights, recent_first.tolist(), strict=True) if one == symbol)
        assert float(found[symbol]) == pytest.approx(mass / size + contrast * (share - 1 / size), abs=1e-14)


def test_convergence_is_geometric_below_its_bound() -> None:
    """Uniform random demonstrations, 4 symbols, memory 3, 180 samples: the slowest eigenvalue sets the rate."""
    expected = {1: 1.0e-1, 5: 3.3e-2, 20: 5.2e-4, 50: 2.0e-7, 100: 9.7e-13}  # of another draw
    ratios = []
    for seed in range(8):
        problem = random_problem(seed, 4, 3, 60, 6)
        assert (int(problem.rank), problem.num_samples) == (10, 180)
        assert float(problem.alpha) == pytest.approx(0.166, abs=0.03)
        rate = 1 / float(problem.largest)
        assert float(problem.largest) == pytest.approx(0.766, abs=0.03)
        windows = torch.tensor(list(itertools.product(range(4), repeat=3)))
        x = window_features(windows, 4)
        errors = {}
        for steps, size in expected.items():
            difference = (problem.solution() - problem.descent(steps, rate)) @ x.T
            errors[steps] = float(difference.norm(dim=0).mean())
            assert float(difference.norm(dim=0).max()) <= float(problem.optimisation_bound(3, steps, rate))
            if steps <= 20:
                assert size / 4 < errors[steps] < size * 4
        slope = np.log(errors[50] / errors[20]) / 30
        ratios.append(slope / np.log(1 - rate * float(problem.alpha)))
    assert np.mean(ratios) == pytest.approx(1, abs=0.05)


def test_leading_axes_are_independent_problems() -> None:
    drawn = torch.from_numpy(np.random.default_rng(1).integers(3, size=(4, 7, 5)))
    together = RegressionSamples.of(drawn, 3, 2).problem()
    rates = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    x = RegressionSamples.of(drawn, 3, 2).features()
    for i in range(4):
        one = RegressionSamples.of(drawn[i], 3, 2).problem()
        assert torch.equal(together.covariance[i], one.covariance)
        assert float((together.solution()[i] - one.solution()).abs().max()) < 1e-12
        assert float((together.descent(9, rates)[i] - one.descent(9, float(rates[i]))).abs().max()) < 1e-13
        assert float(together.alpha[i] - one.alpha) == pytest.approx(0, abs=1e-14)
    assert bool(together.in_range(x).all())
    assert together.iterates(3, 0.5).shape == (4, 4, 3, 6)


def test_range_is_told_apart() -> None:
    """A window whose symbol was never seen at its place lies outside."""
    problem = RegressionSamples.of(torch.tensor([[0, 1], [1, 0]]), 3, 1).problem()
    x = window_features(torch.tensor([[0], [1], [2]]), 3)
    assert problem.in_range(x).tolist() == [True, True, False]
    assert float(problem.condition) == 1


def test_joint_index_counts_in_base_v() -> None:
    tuples = torch.tensor(list(itertools.product(range(3), repeat=2)))
    assert joint_index(tuples, 3).tolist() == list(range(9))
    assert window_features(torch.tensor([1, 2]), 3, "tabular").tolist() == [float(i == 5) for i in range(9)]


@pytest.mark.parametrize(
    "shape, memory_length, num_futures, message",
    [
        ((3, 2), 2, 1, "demonstrations: must have at least 3 symbols each, got 2"),
        ((0, 5), 2, 1, "demonstrations: must have at least one, got 0"),
        ((3, 5), 0, 1, "memory_length: must be at least 1"),
        ((3, 5), 2, 0, "num_futures: must be at least 1"),
    ],
)
def test_refused(shape: tuple[int, int], memory_length: int, num_futures: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        RegressionSamples.of(torch.zeros(shape, dtype=torch.int64), 2, memory_length, num_futures)
    with pytest.raises(InputError, match="num_steps: must be at least 0"):
        random_problem(0, 2, 1, 3, 3).descent(-1, 0.1)
