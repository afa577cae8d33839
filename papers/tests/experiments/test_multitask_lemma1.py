"""[MultiTask] Lemma 1: reference exponents, closed forms of the processes."""

import math

import numpy as np
import pytest

import hmmscope as hs
from hmmscope.analysis.decomposition import Histories
from hmmscope.errors import InputError
from hmmscope.inference.memory_error import fit_decay, memory_certificate
from hmmscope_papers.multitask import forgetting as lemma
from hmmscope_papers.multitask.lemma1 import Lemma1, few
from strategies import dense

SMOKE = Lemma1.sizes["smoke"]

# ---------------------------------------------------------------------------------------------------------------------
# Processes


@pytest.mark.parametrize("gamma", [0.0, 0.05, 0.3, 0.8])
def test_processes_have_the_observability_that_they_say(gamma):
    assert hs.observability(lemma.held_bit(gamma)).upper == pytest.approx(gamma, abs=1e-8)
    assert hs.observability(lemma.binary_chain(0.1, gamma)).upper == pytest.approx(gamma, abs=1e-8)
    hmm = lemma.held_bit(gamma)
    np.testing.assert_allclose(hs.stationary_distribution(hmm), hmm.initial, atol=1e-8)


def test_observability_of_the_hidden_cycle_needs_two_observations():
    assert hs.observability(lemma.hidden_cycle()).upper == 0.0
    assert hs.observability(lemma.hidden_cycle(), 2).lower == pytest.approx(0.3192523364, abs=1e-8)


def test_the_error_of_the_held_bit_has_a_closed_form():
    """Singular emissions: exact by enumeration, and within 4 standard errors for sampled long histories."""
    hmm, time = lemma.held_bit(0.0), 8
    histories = Histories.all(hmm, time)
    for length in (1, 2, 3, 5):
        error = histories.mean(histories.distances(length).prediction)
        assert error == pytest.approx(
            lemma.held_bit_error(length, time), rel=1e-7
        )  # probabilities are rounded to 2^-32
    sampled = Histories.sampled(hmm, 160, 2000, seed=1)
    for length in (1, 8, 32):
        values = sampled.distances(length).prediction
        wanted = lemma.held_bit_error(length, 160)
        assert abs(sampled.mean(values) - wanted) < 4 * float(values.std()) / math.sqrt(2000)


# ---------------------------------------------------------------------------------------------------------------------
# Rates

#: (rate - mixing) / gamma^2 of binary chains, for gamma = .2, .3, .4, .6, .8; 14 observations, lengths 2 to 9.
EXPONENTS = {0.1: (1.09, 0.99, 0.97, 1.03, 1.27), 0.2: (1.00, 1.01, 1.03, 1.12, 1.40)}
GAMMAS = (0.2, 0.3, 0.4, 0.6, 0.8)


@pytest.mark.parametrize("flip", EXPONENTS)
def test_reference_exponents_of_binary_chains(flip):
    """The printed numbers, to their last digit, with all memories taken from histories of 14 observations."""
    for gamma, printed in zip(GAMMAS, EXPONENTS[flip], strict=True):
        histories = Histories.all(lemma.binary_chain(flip, gamma), 14)
        errors = [histories.mean(histories.distances(length).prediction) for length in range(1, 10)]
        excess = fit_decay(range(1, 10), errors).rate + math.log(1 - 2 * flip)
        assert excess / gamma**2 == pytest.approx(printed, abs=0.01)


@pytest.mark.parametrize("flip", EXPONENTS)
def test_exponents_without_the_end_of_the_history(flip):
    """The same number of observations before every window: the slow chain no longer bends down at weak observations."""
    for gamma, printed in zip(GAMMAS, EXPONENTS[flip], strict=True):
        names = {"family": lemma.CHAIN, "instance": "", "observability": gamma}
        row = lemma.rate_row(names, lemma.memory_rows(names, lemma.binary_chain(flip, gamma), 6, 7))
        wanted = 0.975 if (flip, gamma) == (0.1, 0.2) else printed  # 1.09 is an effect of the end
        assert row["excess"] / gamma**2 == pytest.approx(wanted, abs=0.03)
        assert row["residual"] < 0.05
        longer = lemma.rate_row(names, lemma.memory_rows(names, lemma.binary_chain(flip, gamma), 6, 9))
        assert row["rate"] == pytest.approx(longer["rate"], rel=5e-3)


def test_observations_can_slow_down_forgetting():
    """A chain that forgets nearly at once by itself: informative observations keep what it alone would have lost."""
    rates = []
    for gamma in (0.2, 0.6):
        hmm = hs.make_process("low-rank-hmm", num_states=4, num_symbols=4, observability=gamma, seed=3)
        assert lemma._second_eigenvalue(hmm) < 0.001
        rates.append(lemma.rate_row({}, lemma.memory_rows({}, hmm, 3, 3)))
    assert rates[1]["rate"] < rates[0]["rate"] < rates[0]["mixing"]


def test_the_memory_that_is_needed():
    lengths = [1, 2, 4, 8]
    assert lemma._memory_needed(lengths, np.exp(-np.array(lengths) * math.log(10))) == pytest.approx(2)
    assert lemma._memory_needed(lengths, np.exp(-np.array(lengths) * math.log(10) / 2)) == pytest.approx(3)
    assert lemma._memory_needed(lengths, np.array([1.0, 0.5, 0.0, 0.0])) == 4
    assert lemma._memory_needed(lengths, np.array([1.0, 0.9, 0.8, 0.7])) is None


def test_the_certificate_is_above_every_history():
    """Also for the random processes of the experiment; a tenth of it would not be."""
    shares = []
    for names, hmm, longest, past in lemma.processes(SMOKE):
        for row in lemma.memory_rows(names, hmm, longest, past):
            assert row["certificate"] == memory_certificate(hmm, row["memory_length"])
            shares.append(row["worst"] / row["certificate"])
            assert row["total_variation"] <= row["worst"]
    assert max(shares) <= 1
    assert max(shares) > 0.1


# ---------------------------------------------------------------------------------------------------------------------
# The experiment


def test_sizes_that_cannot_work_are_refused():
    for change, group, message in (
        ({"flips": [0.5]}, "memory", r"^flips: must be in \(0, 0\.5\), got \[0\.5\]$"),
        ({"instances": 0}, "memory", r"^instances: must be at least 1, got 0$"),
        ({"held_observabilities": [1.0]}, "held bit", r"^held_observabilities: must be in \[0, 1\)"),
    ):
        with pytest.raises(InputError, match=message):
            Lemma1().measure({}, group, SMOKE | change)


def test_few_curves_are_drawn():
    assert few([0.3, 0.1]) == [0.1, 0.3]
    assert few([k / 10 for k in range(1, 9)]) == [0.1, 0.3, 0.6, 0.8]


def test_every_observation_helps_a_positive_chain():
    rng = np.random.default_rng(8)
    for _ in range(4):
        matrices = dense(rng, 3, 2)
        errors = []
        for length in (1, 4, 7):
            histories = Histories.all(hs.HMM(*matrices), length + 5)
            errors.append(histories.mean(histories.distances(length).squared))
        assert errors[2] < errors[1] < errors[0]
