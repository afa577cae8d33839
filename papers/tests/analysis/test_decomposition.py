"""Parts of the error of a linear prediction from a window: against enumeration, reference numbers, and the bound."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

import hmmscope as hs
import oracles
from comparing import close, floats
from hmmscope.analysis.decomposition import Histories, Windows, stationary_start
from hmmscope.errors import InputError
from hmmscope.inference.memory import all_sequences, memory_table
from hmmscope.inference.memory_error import memory_error
from hmmscope.processes.low_rank import symmetric_channel
from hmmscope.processes.stationary import closed_classes
from hmmscope_papers.constructions.regression import LeastSquares
from hmmscope_papers.multitask.independent_windows import (
    bound_row,
    check_bound,
    counted_moments,
    descent_filter,
    expected_fit,
    expected_total,
    generalisation_bound,
    reference_process,
    sample_counts,
)
from strategies import KINDS, Matrices, as_labelled, dense

REFERENCE = reference_process()


def binary(flip, noise):
    return hs.HMM([0.5, 0.5], [[1 - flip, flip], [flip, 1 - flip]], symmetric_channel(2, 1 - 2 * noise))


def with_one_class(rng, num_states, num_symbols):
    """An HMM of any kind whose stationary law is unique."""
    while True:
        hmm = hs.HMM(*KINDS[rng.integers(len(KINDS))](rng, num_states, num_symbols))
        if len(closed_classes(hmm.transition)) == 1:
            return hmm


# ---------------------------------------------------------------------------------------------------------------------
# Histories


def test_histories_equal_enumeration_of_hidden_paths():
    rng = np.random.default_rng(0)
    for _ in range(12):
        hmm = with_one_class(rng, 3, 2)
        histories = Histories.all(hmm, 4)
        prior = hs.stationary_distribution(hmm)
        exact = oracles.exact(Matrices(prior, hmm.transition, hmm.emission))
        seen = set()
        for row, observations in enumerate(histories.observations.tolist()):
            answer = oracles.by_enumeration(exact, observations)
            close(histories.probability[row], float(answer.prefix[-1]))
            close(histories.beliefs[row], floats(answer.belief[-1]))
            close(histories.next_observation[row], floats(answer.following[-1]))
            seen.add(tuple(observations))
        for word in set(itertools.product(range(2), repeat=4)) - seen:
            assert oracles.by_enumeration(exact, word).prefix[-1] == 0
        close(histories.probability.sum(), 1.0)
        assert histories.exact


@pytest.mark.long
def test_distances_are_those_of_the_memory_error():
    for hmm, time in ((REFERENCE, 6), (binary(0.1, 0.2), 12), (hs.make_process("mess3"), 7)):
        histories = Histories.all(hmm, time)
        for length in (1, 2, 4, time):
            distances, loss = histories.distances(length), memory_error(hmm, length, time)
            # Here the stationary law is not rounded to multiples of 2^-32; there the histories start from the rounded one.
            assert histories.mean(distances.prediction) == pytest.approx(loss.total_variation, abs=1e-9)
            assert histories.mean(distances.squared) == pytest.approx(loss.squared, abs=1e-9)
        assert histories.mean(histories.distances(time).prediction) < 1e-16


def test_predictions_are_never_further_off_than_beliefs():
    rng = np.random.default_rng(1)
    nearly = 0.0
    for _ in range(25):
        hmm = with_one_class(rng, int(rng.integers(2, 5)), int(rng.integers(2, 4)))
        histories = Histories.all(hmm, 5)
        for length in (1, 2, 3):
            distances = histories.distances(length)
            assert bool((distances.prediction <= distances.belief + 1e-13).all())
            nearly = max(nearly, histories.mean(distances.prediction) / max(histories.mean(distances.belief), 1e-9))
    assert nearly > 0.8  # not so loose that it could not fail


def test_sampled_histories_agree_with_all():
    """Means within 4 standard errors: five misses in 10^4."""
    for hmm in (REFERENCE, hs.make_process("random-hmm", num_states=3, num_symbols=3, seed=4)):
        exact, sampled = Histories.all(hmm, 6), Histories.sampled(hmm, 6, 4000, seed=3)
        assert not sampled.exact
        for length in (1, 2, 5):
            values = sampled.distances(length).prediction
            wanted = exact.mean(exact.distances(length).prediction)
            assert abs(sampled.mean(values) - wanted) < 4 * float(values.std()) / math.sqrt(4000)


def test_processes_are_started_from_their_stationary_laws():
    rng = np.random.default_rng(2)
    matrices = dense(rng, 3, 2)
    for hmm in (hs.HMM(*matrices), hs.LabelledHMM(*as_labelled(matrices))):
        started = stationary_start(hmm)
        assert type(started) is type(hmm)
        np.testing.assert_allclose(started.initial, hs.stationary_distribution(hmm), atol=2.0**-32)
        assert stationary_start(started) is started
    assert stationary_start(REFERENCE) is REFERENCE


# ---------------------------------------------------------------------------------------------------------------------
# Parts that add up


#: Total, memory and misspecification of the best linear predictor of the reference process, by memory length.
PARTS = {
    1: (1.318006e-3, 1.318006e-3, 0),
    2: (1.893185e-4, 1.767109e-4, 1.260753e-5),
    3: (5.884659e-5, 2.250807e-5, 3.633853e-5),
}
EIGENVALUES = {1: (0.22, 0.28), 2: (0.200747, 0.513834), 3: (0.194568, 0.765922)}


@pytest.mark.parametrize("length", PARTS)
def test_reference_parts(length):
    windows = Windows.all(REFERENCE, length)
    parts = Histories.all(REFERENCE, 6).decompose(windows, windows.linear.weights)
    found = (float(parts.total), parts.memory, parts.misspecification)
    for value, printed in zip(found, PARTS[length], strict=True):
        assert value == pytest.approx(printed, rel=1e-6, abs=1e-20)
    assert float(parts.estimation) < 1e-25
    assert windows.rank == 3 * length + 1
    assert windows.linear.num_zero == length - 1
    ends = (windows.linear.smallest_eigenvalue, windows.linear.largest_eigenvalue)
    assert ends == pytest.approx(EIGENVALUES[length], abs=1e-6)


def test_the_parts_add_up_for_any_matrix():
    rng = np.random.default_rng(3)
    for number in range(12):
        hmm = with_one_class(rng, 3, int(rng.integers(2, 4)))
        if number % 3 == 0:
            hmm = hs.make_process("mess3", switch=0.1 + 0.02 * number)
        length = int(rng.integers(1, 4))
        windows, histories = Windows.all(hmm, length), Histories.all(hmm, length + 2)
        shape = (2, 3, hmm.num_symbols, hmm.num_symbols * length)
        parts = histories.decompose(windows, torch.from_numpy(rng.normal(size=shape)))
        assert parts.total.shape == (2, 3)
        assert float((parts.gap.abs() / parts.total).max()) < 1e-13
        assert parts.memory >= 0
        assert parts.misspecification > -1e-16


def test_they_do_not_add_up_for_another_law_of_histories():
    """The gap is a measurement: histories that are not stationary have one."""
    histories, windows = Histories.all(REFERENCE, 5), Windows.all(REFERENCE, 2)
    skewed = histories.probability * (1 + histories.observations[:, -3])  # older than the window
    other = dataclasses.replace(histories, probability=skewed / skewed.sum())
    weights = torch.arange(32, dtype=torch.float64).view(4, 8)  # without the symmetry 0 1 2 3 -> 3 2 1 0 of the process
    assert abs(float(histories.decompose(windows, weights).gap)) < 1e-11
    assert abs(float(other.decompose(windows, weights).gap)) > 1e-2


def test_where_a_linear_function_is_enough():
    """One observation, two of the binary symmetric chain, and any number of a Markov chain; not three of the former."""
    chain = hs.make_process("markov-chain", num_states=4, num_symbols=4)
    cases = [(REFERENCE, 1, True), (binary(0.1, 0.2), 2, True), (binary(0.1, 0.2), 3, False), (chain, 3, True)]
    for hmm, length, exact in cases:
        windows = Windows.all(hmm, length)
        part = float(windows.probability @ windows.misfit)
        assert part < 1e-18 if exact else part > 1e-5


def test_the_noise_is_the_mean_square_of_what_labels_do_beyond_the_linear_predictor():
    windows = Windows.all(REFERENCE, 2)
    assert windows.noise == pytest.approx(0.735080, abs=5e-7)
    label = torch.eye(4, dtype=torch.float64)
    squares = (label[None] - windows.linear_prediction[:, None]).square().sum(2)
    joint = windows.probability[:, None] * windows.next_observation
    assert windows.noise == pytest.approx(float((joint * squares).sum()), rel=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# Samples, and their expectation


def test_counts_are_those_of_the_sequences():
    counts = sample_counts(Windows.all(REFERENCE, 2), 50, 3, seed=5)
    starts = np.arange(3) == 0
    sequences = REFERENCE.sample_paths(np.arange(150), starts, 5, "train").observations.view(3, 50, 3)
    for draw in range(3):
        expected = torch.zeros(4, 4, 4, dtype=torch.int64)
        for first, second, label in sequences[draw].tolist():
            expected[first, second, label] += 1
        assert torch.equal(counts[draw], expected.flatten(0, 1))
    windows = Windows.all(REFERENCE, 2)
    problem = counted_moments(windows, counts)
    x = torch.cat([torch.nn.functional.one_hot(sequences[1, :, k], 4) for k in (1, 0)], 1).double()
    y = torch.nn.functional.one_hot(sequences[1, :, 2], 4).double()
    close(problem.covariance[1], x.T @ x / 50)
    close(problem.cross[1], y.T @ x / 50)
    assert problem.num_samples == 50


def test_expectation_over_labels_equals_enumeration_of_labels():
    """Three samples of two symbols: eight sets of labels, each with its probability."""
    hmm = binary(0.2, 0.1)
    windows = Windows.all(hmm, 2)
    counts = torch.tensor([1, 0, 1, 1])
    numbers = counts.nonzero()[:, 0].tolist()
    for steps in (None, 0, 1, 7):
        mean = torch.zeros(4, 2, dtype=torch.float64)
        square = torch.zeros(4, dtype=torch.float64)
        for labels in itertools.product(range(2), repeat=3):
            table = torch.zeros(4, 2, dtype=torch.int64)
            for window, label in zip(numbers, labels, strict=True):
                table[window, label] += 1
            law = windows.next_observation
            probability = math.prod(float(law[window, label]) for window, label in zip(numbers, labels, strict=True))
            problem = counted_moments(windows, table)
            weights = problem.solution() if steps is None else problem.descent(steps, 0.5)
            fitted = windows.features @ weights.T
            mean += probability * fitted
            square += probability * fitted.square().sum(1)
        fit = expected_fit(windows, counts, descent_filter(problem, steps, 0.5))
        close(fit.mean, mean)
        np.testing.assert_allclose(fit.variance, square - mean.square().sum(1), atol=1e-13)
        assert steps != 1 or float(fit.variance.max()) > 1e-3


def test_the_filter_is_that_of_the_iterates():
    windows = Windows.all(REFERENCE, 2)
    problem = counted_moments(windows, sample_counts(Windows.all(REFERENCE, 2), 60, 2, seed=1))
    iterates = problem.iterates(25, 0.5)
    for steps in (0, 1, 2, 25):
        np.testing.assert_allclose(problem.cross @ descent_filter(problem, steps, 0.5), iterates[steps], atol=1e-13)
    np.testing.assert_allclose(problem.cross @ descent_filter(problem, None, 0.5), problem.solution(), atol=1e-13)


#: n * (estimation error) / (sigma^2 rank) of least squares, memory 2; simulated.
SCALED = {50: 1.14, 100: 1.08, 200: 1.04, 400: 1.03, 800: 0.99, 1600: 1.03, 3200: 1.01}


@pytest.mark.parametrize("number", SCALED)
def test_estimation_error_is_noise_times_rank_over_samples(number):
    """Within 4 standard errors of the mean of 300 draws, and 0.03 for the printed value, which is simulated too."""
    windows, histories = Windows.all(REFERENCE, 2), Histories.all(REFERENCE, 2)
    problem = counted_moments(windows, sample_counts(Windows.all(REFERENCE, 2), number, 300, seed=number))
    errors = histories.decompose(windows, problem.solution()).estimation * number / (windows.noise * windows.rank)
    assert abs(float(errors.mean()) - SCALED[number]) < 4 * float(errors.std()) / math.sqrt(300) + 0.03


#: Total squared error to the exact filter by memory length and samples, for 5, 20, 80 and 320 steps; means of 8 draws.
TOTALS = {
    1: {
        100: (3.4e-2, 3.0e-2, 3.1e-2, 3.1e-2),
        1000: (1.9e-2, 4.5e-3, 4.5e-3, 4.5e-3),
        10_000: (1.7e-2, 1.6e-3, 1.6e-3, 1.6e-3),
        100_000: (1.6e-2, 1.35e-3, 1.35e-3, 1.35e-3),
    },
    2: {
        100: (3.0e-2, 3.7e-2, 4.5e-2, 4.5e-2),
        1000: (1.8e-2, 4.4e-3, 5.0e-3, 5.0e-3),
        10_000: (1.7e-2, 6.5e-4, 6.3e-4, 6.3e-4),
        100_000: (1.7e-2, 3.0e-4, 2.5e-4, 2.5e-4),
    },
    3: {
        100: (3.2e-2, 5.3e-2, 8.2e-2, 8.3e-2),
        1000: (2.0e-2, 6.2e-3, 8.6e-3, 8.6e-3),
        10_000: (1.8e-2, 8.3e-4, 7.6e-4, 7.6e-4),
        100_000: (1.8e-2, 4.0e-4, 1.33e-4, 1.34e-4),
    },
}


@pytest.mark.parametrize("length", TOTALS)
def test_reference_totals_of_gradient_descent(length):
    """Printed means of 8 draws are within 4 of their standard errors, and half of their last digit, of ours."""
    windows, histories = Windows.all(REFERENCE, length), Histories.all(REFERENCE, 6)
    for number, printed in TOTALS[length].items():
        draws = 16 if number > 10_000 else 40
        counts = sample_counts(Windows.all(REFERENCE, length), number, draws, seed=7)
        problem = counted_moments(windows, counts)
        for steps, value in zip((5, 20, 80, 320), printed, strict=True):
            totals = histories.decompose(windows, problem.descent(steps, 1 / length)).total
            spread = float(totals.std())
            digit = 0.05 * 10 ** math.floor(math.log10(value))
            mean = float(totals.mean())
            assert abs(mean - value) < 4 * spread * math.sqrt(1 / 8 + 1 / draws) + digit
            fit = expected_fit(windows, counts.sum(-1), descent_filter(problem, steps, 1 / length))
            expected = float(expected_total(histories, windows, fit).mean())
            assert abs(mean - expected) < 4 * spread / math.sqrt(draws)


def test_few_samples_are_served_best_by_few_steps_and_a_short_memory():
    """In expectation over labels and 40 sets of windows: the error is monotone neither in steps nor in memory."""
    histories, least = Histories.all(REFERENCE, 4), {}
    for length in (1, 3):
        windows = Windows.all(REFERENCE, length)
        counts = sample_counts(Windows.all(REFERENCE, length), 100, 40)
        problem = counted_moments(windows, counts)
        for steps in (2, 10, None):
            fit = expected_fit(windows, counts.sum(-1), descent_filter(problem, steps, 1 / length))
            least[length, steps] = float(expected_total(histories, windows, fit).mean())
    assert least[3, 10] < 0.5 * least[3, None]
    assert least[3, 10] < 0.5 * least[3, 2]
    assert least[1, None] < 0.5 * least[3, None]


# ---------------------------------------------------------------------------------------------------------------------
# The covariance and the bound


@pytest.fixture(scope="module")
def bound_rows():
    return [bound_row(number) for number in range(200)]


@pytest.mark.long
def test_the_bound_holds_for_random_processes(bound_rows):
    pairs = [("total", "bound"), ("generalisation", "generalisation_bound"), ("optimisation", "optimisation_bound")]
    pairs += [(f"worst_{part}", f"{part}_bound") for part in ("generalisation", "optimisation")]
    for value, bound in pairs:
        shares = [row[value] / row[bound] for row in bound_rows]
        assert max(shares) <= 1 + 1e-9
        assert max(shares) > 0.3  # a bound a third as large would fail
    assert min(row["covered"] for row in bound_rows) < 0.99
    assert any(row["misspecification"] > 0.02 for row in bound_rows)


@pytest.mark.long
def test_the_bound_without_the_smallest_eigenvalue_fails(bound_rows):
    """With the largest eigenvalue in its place it would not hold: the condition number matters."""
    wrong = [row["generalisation_bound"] * math.sqrt(row["smallest_nonzero"] / row["largest"]) for row in bound_rows]
    assert any(row["worst_generalisation"] > bound for row, bound in zip(bound_rows, wrong, strict=True))


def test_facts_about_the_sample_covariance(bound_rows):
    for row in bound_rows:
        assert row["rank"] <= row["largest_rank"]
        assert row["zero_eigenvalues"] >= row["memory_length"] - 1
        assert row["largest"] <= row["memory_length"] + 1e-12
        assert row["sum_error"] < 1e-9


def test_eigenvalues_of_a_full_factorial_sample():
    """L / V once, 1 / V for L (V - 1), and zero for L - 1 of them."""
    for num_symbols, length in ((2, 3), (3, 2), (4, 2)):
        hmm = hs.make_process("random-hmm", num_states=2, num_symbols=num_symbols)
        counts = torch.zeros(num_symbols**length, num_symbols, dtype=torch.int64)
        counts[:, 0] = 1
        problem = counted_moments(Windows.all(hmm, length), counts)
        expected = [0.0] * (length - 1) + [1 / num_symbols] * (length * (num_symbols - 1)) + [length / num_symbols]
        np.testing.assert_allclose(problem.eigenvalues, expected, atol=1e-14)


def test_the_explicit_bound_is_what_it_says():
    eye = torch.eye(2, dtype=torch.float64)
    problem = LeastSquares(eye / 4, eye / 4, 100)
    assert generalisation_bound(problem, 1, 0.03) == pytest.approx(math.sqrt(4 * (2 / 100 + 0.03)))


@pytest.mark.usefixtures("unchecked")
def test_bad_requests_are_refused():
    windows, histories = Windows.all(REFERENCE, 2), Histories.all(REFERENCE, 3)
    counts = sample_counts(Windows.all(REFERENCE, 2), 100, 1)[0]
    split = hs.HMM([1, 0], [[1, 0], [0, 1]], [[0.5, 0.5], [0.1, 0.9]])
    two = torch.stack([counts, 2 * counts])
    for call, message in (
        (lambda: Histories.all(REFERENCE, 0), r"^time: must be at least 1, got 0$"),
        (lambda: Histories.all(REFERENCE, 11), r"^enumeration: 4\^11 sequences exceed the limit of 1048576"),
        (lambda: Histories.all(split, 3), r"^stationary distribution: is not unique"),
        (lambda: Histories.sampled(REFERENCE, 3, 0), r"^num_samples: must be at least 1, got 0$"),
        (lambda: histories.distances(4), r"^memory_length: must be in \[1, 3\], got 4$"),
        (lambda: histories.distances(0), r"^memory_length: must be in \[1, 3\], got 0$"),
        (lambda: sample_counts(Windows.all(REFERENCE, 2), 0, 1), r"^num_samples: must be at least 1, got 0$"),
        (
            lambda: counted_moments(windows, 0 * counts),
            r"^counts: must contain at least one sample in each draw, got 0$",
        ),
        (lambda: counted_moments(windows, two), r"^counts: must contain equally many samples in each draw"),
        (lambda: check_bound(histories, windows, counts, 3, 3.0), r"^rate: must be in \(0, "),
        (lambda: check_bound(histories, windows, counts, 3, 0.0), r"^rate: must be in \(0, "),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_windows_are_those_of_the_memory_table():
    windows, table = Windows.all(REFERENCE, 3), memory_table(REFERENCE, 3)
    close(windows.next_observation, table.next_observation)
    features = windows.features.view(64, 3, 4)
    for slot in range(3):
        assert torch.equal(features[:, slot].argmax(1), table.windows[:, 2 - slot])
    assert torch.equal(Histories.all(REFERENCE, 3).windows(3), torch.arange(64))
    assert torch.equal(all_sequences(4, 3), table.windows)
