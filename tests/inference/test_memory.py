"""Finite memory: against enumeration, the reference tables of binary channels and a low-rank HMM, and the certificate."""

import itertools
import math

import numpy as np
import pytest
import torch

import hmmscope as hs
import oracles
from comparing import close, floats
from hmmscope.errors import InputError
from hmmscope.inference.linear_memory import linear_predictor
from hmmscope.inference.memory import all_sequences, filter_windows, memory_table
from hmmscope.inference.memory_error import fit_decay, memory_certificate, memory_error, sampled_memory_error
from hmmscope.inference.observability import numerical_rank
from hmmscope.inference.stationary_process import emitting_steps, state_transitions
from hmmscope.processes.stationary import closed_classes, stationary_law
from inference_cases import revived
from strategies import KINDS, Matrices, as_labelled, dense, rows


def symbols(rng, batch, time, num_symbols):
    return torch.from_numpy(rng.integers(0, num_symbols, (batch, time)))


def binary(flip, noise):
    return hs.HMM([0.5, 0.5], [[1 - flip, flip], [flip, 1 - flip]], [[1 - noise, noise], [noise, 1 - noise]])


def low_rank(noise):
    """Reference HMM A: rank 2, stationary law (.3, .2, .2, .3), gamma = 1 - noise."""
    left = np.array([[0.9, 0.1], [0.8, 0.2], [0.2, 0.8], [0.1, 0.9]])
    right = np.array([[0.55, 0.30, 0.10, 0.05], [0.05, 0.10, 0.30, 0.55]])
    return hs.HMM([0.3, 0.2, 0.2, 0.3], left @ right, (1 - noise) * np.eye(4) + noise / 4)


# ---------------------------------------------------------------------------------------------------------------------
# The stationary law


def least_squares_law(transition):
    """law @ (transition - 1) = 0 with sum one, of a chain with one closed class."""
    system = np.vstack([transition.T - np.eye(len(transition)), np.ones(len(transition))])
    return np.linalg.lstsq(system, np.append(np.zeros(len(transition)), 1.0), rcond=None)[0]


def test_the_stationary_law_is_stationary():
    rng = np.random.default_rng(0)
    for _ in range(40):
        kind = KINDS[rng.integers(len(KINDS))]
        hmm = hs.HMM(*kind(rng, int(rng.integers(1, 7)), 2))
        if len(closed_classes(hmm.transition)) > 1:
            with pytest.raises(InputError, match=r"^stationary distribution: is not unique"):
                hs.stationary_distribution(hmm)
            continue
        law, expected = hs.stationary_distribution(hmm), least_squares_law(hmm.transition.numpy())
        np.testing.assert_allclose(law, expected, rtol=1e-9, atol=1e-13)
        close(law.sum(), 1.0)
        np.testing.assert_allclose(law @ hmm.transition, law, rtol=1e-13, atol=0)


def test_a_state_that_is_nearly_never_visited_has_its_right_share():
    """A walk up with probability 2^-32 a step and down for certain: shares 1, 2^-32, .. of a geometric law."""
    up = 2.0**-32
    transition = np.zeros((6, 6))
    transition[0, 0], transition[0, 1], transition[5, 4] = 1 - up, up, 1
    for state in range(1, 5):
        transition[state, [state - 1, state + 1]] = 1 - up, up
    law = stationary_law(torch.from_numpy(transition))
    expected = [1.0]
    for state in range(5):
        expected.append(expected[-1] * transition[state, state + 1] / transition[state + 1, state])
    close(law, np.array(expected) / sum(expected))
    assert 0 < law[5] < 1e-47


def test_transient_states_have_none_and_several_closed_sets_are_refused():
    law = hs.stationary_distribution(hs.HMM([1, 0, 0], [[0.5, 0.25, 0.25], [0, 0, 1], [0, 1, 0]], [[1.0]] * 3))
    assert law.tolist() == [0.0, 0.5, 0.5]
    split = hs.HMM([1, 0, 0], [[0, 0.5, 0.5], [0, 1, 0], [0, 0, 1]], [[1.0]] * 3)
    with pytest.raises(InputError, match=r"2 closed sets of states, \[1\], \[2\]; pass the argument prior, "):
        hs.stationary_distribution(split)
    with pytest.raises(InputError, match=r"^process: a mixture has no single stationary distribution"):
        hs.stationary_distribution(hs.Mixture([1.0], [split]))
    assert hs.stationary_distribution(hs.make_process("even")).tolist() == pytest.approx([2 / 3, 1 / 3], abs=1e-9)


# ---------------------------------------------------------------------------------------------------------------------
# Beliefs from a window


def test_memory_beliefs_equal_enumeration_of_each_window():
    rng = np.random.default_rng(1)
    for _ in range(30):
        matrices = KINDS[rng.integers(len(KINDS))](rng, 3, 3)
        prior = rows(rng, 1, 3, 0.3)[0]
        observations = symbols(rng, 3, 7, 3)
        memory_length = int(rng.integers(1, 9))
        result = hs.memory_beliefs(hs.HMM(*matrices), observations, memory_length, prior=prior)
        exact = oracles.exact(Matrices(prior, *matrices[1:]))
        for b, t in itertools.product(range(3), range(7)):
            window = observations[b, max(0, t + 1 - memory_length) : t + 1].tolist()
            answer = oracles.by_enumeration(exact, window)
            close(result.beliefs[b, t], floats(answer.belief[-1]))
            close(result.next_observation[b, t], floats(answer.following[-1]))
        close(result.first_observation, floats(oracles.first_law(exact)))


def test_the_scores_are_of_predictions_made_before():
    rng = np.random.default_rng(2)
    hmm = hs.HMM(*dense(rng, 3, 3))
    observations = symbols(rng, 4, 9, 3)
    result = hs.memory_beliefs(hmm, observations, 2)
    before = torch.cat([result.first_observation.expand(4, 1, -1), result.next_observation[:, :-1]], 1)
    close(result.log_likelihood_terms, before.gather(2, observations[:, :, None])[:, :, 0].log())
    close(result.log_likelihood, result.log_likelihood_terms.sum(1))


def test_a_memory_of_everything_is_the_filter():
    rng = np.random.default_rng(3)
    for memory_length in (9, 10, 50):
        matrices = KINDS[rng.integers(len(KINDS))](rng, 3, 3)
        for hmm in (hs.HMM(*matrices), hs.LabelledHMM(*as_labelled(matrices))):
            observations = symbols(rng, 4, 9, 3)
            memory = hs.memory_beliefs(hmm, observations, memory_length, prior=hmm.initial)
            whole = hs.filter_beliefs(hmm, observations)
            close(memory.beliefs, whole.beliefs)
            close(memory.next_observation, whole.next_observation)
            close(memory.log_likelihood, whole.log_likelihood)
            assert torch.equal(memory.impossible_at, whole.impossible_at)


def test_a_markov_chain_of_order_one_needs_one_symbol():
    chain = hs.make_process("markov-chain", num_states=4, num_symbols=4)
    observations = hs.ProcessDataset(chain, length=20)[0:5].observations
    close(
        hs.memory_beliefs(chain, observations, 1).next_observation,
        hs.filter_beliefs(chain, observations).next_observation,
    )
    assert memory_error(chain, 1, 4).total_variation < 1e-15


def test_a_forbidden_window_is_followed_by_possible_ones():
    """The start state is transient: its symbol 0 has no place under the stationary law."""
    hmm = hs.HMM([1, 0], [[0, 1], [0, 1]], [[1, 0, 0], [0, 0.5, 0.5]])
    result = hs.memory_beliefs(hmm, torch.tensor([[0, 1, 2, 1, 1]]), 2)
    assert result.beliefs[0].tolist() == [[0, 0], [0, 0], [0, 1], [0, 1], [0, 1]]
    assert result.impossible_at.tolist() == [0]
    assert result.log_likelihood.tolist() == [-math.inf]
    assert not torch.isnan(result.log_likelihood_terms).any()
    assert result.log_likelihood_terms[0, 4].item() == pytest.approx(math.log(0.5))


def test_what_a_window_nearly_loses_comes_back():
    matrices, sequence = revived()
    hmm, observations = hs.HMM(*matrices), torch.tensor([[1, *sequence], [0, 0, 0, *sequence[:-2]]])
    length = len(sequence)
    windows = observations.unfold(1, length, 1).flatten(0, 1)
    exact = hs.filter_beliefs(hmm, windows)
    known = hs.memory_beliefs(hmm, observations, length, prior=matrices.initial)
    close(known.beliefs[:, length - 1 :].flatten(0, 1), exact.beliefs[:, -1])
    close(known.next_observation[:, length - 1 :].flatten(0, 1), exact.next_observation[:, -1])
    beliefs, _, totals = filter_windows(hmm.params, windows)
    close(beliefs, exact.beliefs[:, -1])
    np.testing.assert_allclose(totals, exact.log_likelihood, rtol=1e-12)
    assert totals[1] < -1000
    assert beliefs.any(1).tolist() == [False, True, True, True]


def test_the_table_is_the_memory_predictor():
    for hmm in (low_rank(0.4), hs.make_process("mess3"), hs.make_process("even")):
        table = memory_table(hmm, 3)
        assert len(table.windows) == hmm.num_symbols**3
        close(table.probability.sum(), 1.0)
        result = hs.memory_beliefs(hmm, table.windows, 3)
        close(table.next_observation, result.next_observation[:, -1])
        plain = hs.filter_beliefs(hmm, table.windows)  # these start from their stationary laws, up to 2^-32
        np.testing.assert_allclose(table.probability, plain.log_likelihood.exp(), atol=1e-8)
    impossible = table.probability == 0
    assert table.windows[impossible].tolist() == [[0, 1, 0]]
    assert not table.next_observation[impossible].any()


# ---------------------------------------------------------------------------------------------------------------------
# Reference tables: theory, finite memory by exact enumeration (printed to six decimals)


BINARY = {
    0.1: [0.073728, 0.028778, 0.009772, 0.003542, 0.001244, 0.000444],
    0.2: [0.081435, 0.045466, 0.024979, 0.013839, 0.007641, 0.004225],
    0.3: [0.052395, 0.035794, 0.024519, 0.016816, 0.011534, 0.007908],
    0.4: [0.016129, 0.012395, 0.009528, 0.007321, 0.005624, 0.004313],
}
RATIOS = {0.1: 0.355, 0.2: 0.553, 0.3: 0.686, 0.4: 0.768}
LOW_RANK = {
    0.2: [0.029358, 0.006091, 0.001228, 0.000249, 0.00005],
    0.4: [0.029615, 0.010071, 0.003408, 0.001154, 0.000391],
    0.6: [0.017526, 0.007638, 0.003329, 0.001451, 0.000631],
    0.8: [0.005142, 0.002560, 0.001274, 0.000634, 0.000315],
}


@pytest.mark.parametrize("noise", BINARY)
def test_reference_table_of_the_binary_channel(noise):
    errors = [memory_error(binary(0.1, noise), length, 14) for length in range(1, 7)]
    assert [round(error.total_variation, 6) for error in errors] == BINARY[noise]
    assert all(error.exact and error.low == error.high == error.total_variation for error in errors)
    # The ratio alternates a little with the length; the table has three digits of its mean.
    fitted = fit_decay(range(1, 7), [error.total_variation for error in errors])
    assert fitted.ratio == pytest.approx(RATIOS[noise], abs=2e-3)
    assert (fitted.first, fitted.last) == (2, 6)


@pytest.mark.parametrize("noise", LOW_RANK)
def test_reference_table_of_the_low_rank_hmm(noise):
    errors = [memory_error(low_rank(noise), length, 8).total_variation for length in range(1, 6)]
    assert [round(error, 6) for error in errors] == LOW_RANK[noise]


def test_reference_certificate():
    assert [round(memory_certificate(binary(0.1, 0.2), length), 4) for length in (1, 2, 3)] == [0.7059, 0.6063, 0.5098]


PYTHAGORAS = {
    1: (1.318006e-3, 1.318006e-3, 0),
    2: (1.893185e-4, 1.767109e-4, 1.260753e-5),
    3: (5.884659e-5, 2.250807e-5, 3.633853e-5),
}
EIGENVALUES = {1: (0.22, 0.28), 2: (0.200747, 0.513834), 3: (0.194568, 0.765922)}


@pytest.mark.parametrize("length", PYTHAGORAS)
def test_reference_decomposition(length):
    """total = memory + linear, exactly; the population covariance has L - 1 zero eigenvalues; rank W <= rank P."""
    hmm = low_rank(0.4)
    linear = linear_predictor(hmm, length)
    sequences = all_sequences(4, 6)
    _, following, log_probability = filter_windows(hmm.params, sequences)
    exact, probability = following @ hmm.emission, log_probability.exp()
    window = memory_table(hmm, length).next_observation[torch.arange(len(sequences)) % 4**length]
    features = torch.nn.functional.one_hot(sequences[:, -length:].flip(1), 4).flatten(1).double()
    guess = features @ linear.weights.T
    total, memory, misfit = (
        float(probability @ (a - b).square().sum(1)) for a, b in ((exact, guess), (exact, window), (window, guess))
    )
    assert total == pytest.approx(memory + misfit, rel=1e-7)
    for value, printed in zip((total, memory, misfit), PYTHAGORAS[length], strict=True):
        assert value == pytest.approx(printed, rel=1e-6, abs=1e-20)
    assert memory_error(hmm, length, 6).squared == pytest.approx(memory, rel=1e-12)
    # Moments by enumeration.
    weighted = features * probability[:, None]
    np.testing.assert_allclose(weighted.T @ features, linear.covariance, atol=2e-9)  # 2^-32 in the start law
    np.testing.assert_allclose(exact.T @ weighted, linear.cross, atol=2e-9)
    assert linear.num_zero == length - 1
    found = (round(linear.smallest_eigenvalue, 6), round(linear.largest_eigenvalue, 6))
    assert found == pytest.approx(EIGENVALUES[length], abs=1.1e-6)
    assert numerical_rank(hmm.transition) == 2
    assert numerical_rank(linear.weights, 1e-7) <= 2


def test_the_linear_predictor_of_transitions_that_emit():
    rng = np.random.default_rng(4)
    matrices = dense(rng, 3, 3)
    prior = hs.stationary_distribution(hs.HMM(*matrices))
    labelled = hs.LabelledHMM(*as_labelled(matrices))
    wide = torch.cat([torch.zeros(1, dtype=torch.float64), prior])
    # State-emitting: the prior is of the state that emits; labelled: of the one before. Take it a step back: the same law.
    one, two = linear_predictor(hs.HMM(*matrices), 3), linear_predictor(labelled, 3, prior=wide)
    np.testing.assert_allclose(one.covariance, two.covariance, atol=1e-12)
    np.testing.assert_allclose(one.weights, two.weights, atol=1e-9)


# ---------------------------------------------------------------------------------------------------------------------
# Errors


def test_more_memory_never_hurts_a_stationary_process():
    """M18, in the squared distance to the exact prediction, and in the expected loss."""
    rng = np.random.default_rng(5)
    for _ in range(6):
        _, transition, emission = dense(rng, 3, 2)
        stationary = hs.HMM(stationary_law(torch.from_numpy(transition)), transition, emission)
        errors = [memory_error(stationary, length, 7).squared for length in range(1, 8)]
        assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(errors))
        assert errors[-1] < 1e-17  # the start law is rounded to 2^-32
        losses = []
        for length in range(1, 6):
            table = memory_table(stationary, length)
            losses.append(float(table.probability @ torch.special.entr(table.next_observation).sum(1)))
        assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(losses))


def test_sampling_agrees_with_enumeration():
    """Ten intervals of 95 %, widened to 4 standard errors: a miss has probability below 10^-3 over all."""
    for number, hmm in enumerate((binary(0.1, 0.2), low_rank(0.4), hs.make_process("mess3"))):
        for length in (1, 2, 4):
            exact = memory_error(hmm, length, 7)
            sampled = sampled_memory_error(hmm, length, 7, num_samples=4000, seed=number)
            error = (sampled.high - sampled.total_variation) / 1.96
            assert abs(sampled.total_variation - exact.total_variation) < 4 * error
            assert not sampled.exact
            assert sampled.low <= sampled.total_variation <= sampled.high


def test_the_certificate_holds_for_every_history():
    rng = np.random.default_rng(6)
    tight = 0
    for number in range(20):
        matrices = dense(rng, 3, 2)
        stationary = hs.HMM(stationary_law(torch.from_numpy(matrices.transition)), *matrices[1:])
        process = stationary if number % 2 else hs.make_process("mess3", switch=0.2 + 0.005 * number, emission=0.6)
        sequences = all_sequences(process.num_symbols, 8)
        exact = hs.filter_beliefs(process, sequences).next_observation[:, -1]
        for length in (1, 2, 4):
            near = hs.memory_beliefs(process, sequences, length).next_observation[:, -1]
            worst = float((exact - near).abs().sum(1).max() / 2)
            assert worst <= memory_certificate(process, length) + 1e-9
            tight += worst > 0.05 * memory_certificate(process, length)
    assert tight >= 3
    assert memory_certificate(hs.make_process("even"), 3) == 1.0
    assert memory_certificate(hs.HMM([1.0], [[1.0]], [[1.0]]), 3) == 0.0


def test_a_fit_of_a_geometric_decay():
    fitted = fit_decay([1, 2, 3, 4, 5], [9.0, 0.5, 0.25, 0.125, 0.0625])
    assert fitted.ratio == pytest.approx(0.5)
    assert fitted.rate == pytest.approx(math.log(2))
    assert fitted.residual < 1e-12
    assert fit_decay([1, 2, 3, 4], [1.0, 0.5, 0.25, 7.0], first=1, last=3).ratio == pytest.approx(0.5)
    for errors in ([1.0, 0.0, 0.5], [1.0, math.nan, 0.5], [1.0, -1.0, 0.5]):
        with pytest.raises(InputError, match=r"^errors: must have at least two positive values"):
            fit_decay([1, 2, 3], errors)


def test_a_step_of_an_emitting_state_is_a_step_of_its_chain():
    hmm = low_rank(0.4)
    close(emitting_steps(hmm.params).sum(0), hmm.transition)
    assert torch.equal(state_transitions(hs.make_process("mess3").params), hs.make_process("mess3").labelled.sum(0))


@pytest.mark.usefixtures("unchecked")
def test_bad_requests_are_refused():
    hmm = binary(0.1, 0.1)
    observations = torch.zeros(1, 3, dtype=torch.int64)
    for call, message in (
        (lambda: hs.memory_beliefs(hmm, observations, 0), r"^memory_length: must be at least 1, got 0$"),
        (lambda: hs.memory_beliefs(hmm, observations, 1, prior=[0.5, 0.6]), r"^prior: must be 2 probabilities"),
        (lambda: hs.memory_beliefs(hmm, observations, 1, prior=[1.0]), r"^prior: must be 2 probabilities"),
        (lambda: hs.memory_beliefs(hmm, observations, 1, prior=[1.0, 1e-200]), r"^prior: has a positive entry below"),
        (lambda: hs.memory_beliefs(hmm, observations + 2, 1), r"^observations\[0, 0\]: symbol 2 "),
        (lambda: memory_table(hmm, 21), r"^enumeration: 2\^21 sequences exceed the limit of"),
        (lambda: memory_error(hmm, 3, 2), r"^memory_length: must be in \[1, 2\], got 3$"),
        (lambda: linear_predictor(hmm, 0), r"^memory_length: must be at least 1"),
    ):
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize("batch, time, memory_length", [(0, 3, 2), (2, 0, 2), (2, 1, 2), (0, 0, 1)])
def test_empty_batches_and_sequences(batch, time, memory_length):
    result = hs.memory_beliefs(binary(0.1, 0.1), torch.zeros(batch, time, dtype=torch.int64), memory_length)
    assert result.beliefs.shape == (batch, time, 2)
    assert result.next_observation.shape == (batch, time, 2)
    assert result.log_likelihood.shape == (batch,)
