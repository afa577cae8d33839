"""Fits of hidden semi-Markov models, against enumeration of segmentations."""

import math

import numpy as np
import pytest
import torch

import hmmscope
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import as_sequences, fit_baum_welch
from hmmscope.inference.fit_durations import DurationSteps, SemiMarkovParams, _negative_binomial, fit_durations
from hmmscope.inference.row_rules import RowRules
from hmmscope.seeds import numpy_generator


def _random(rng, num_states, longest, num_symbols):
    moves = rng.dirichlet(np.ones(num_states), num_states)
    if num_states > 1:
        np.fill_diagonal(moves, 0)
        moves /= moves.sum(1, keepdims=True)
    durations = rng.dirichlet(np.ones(longest), num_states)
    return SemiMarkovParams(
        rng.dirichlet(np.ones(num_states)), moves, durations, rng.dirichlet(np.ones(num_symbols), num_states)
    )


def _segmentations(params, symbols):
    """Visits (state, whole duration, observed steps) of each segmentation, with its probability."""

    def extend(visits, time, probability):
        if time == len(symbols):
            yield visits, probability
            return
        for state in range(len(params.initial)):
            enter = params.transition[visits[-1][0], state] if visits else params.initial[state]
            for number, last in enumerate(params.durations[state], 1):
                own = symbols[time : time + number]
                emit = math.prod(1.0 if v == hmmscope.MISSING else params.emission[state, v] for v in own)
                if enter * last * emit > 0:
                    yield from extend(
                        [*visits, (state, number, own)], time + len(own), probability * enter * last * emit
                    )

    return list(extend([], 0, 1.0))


def test_counts_equal_those_by_enumeration():
    rng = numpy_generator(0, "durations")
    for _ in range(5):
        num_states, longest, time = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(2, 6))
        params = _random(rng, num_states, longest, 2)
        symbols = rng.integers(0, 2, (2, time))
        symbols[0, 1] = hmmscope.MISSING
        expected, log_likelihood = SemiMarkovParams(*map(np.zeros_like, params)), 0.0
        for row in symbols.tolist():
            found = _segmentations(params, row)
            total = sum(probability for _, probability in found)
            log_likelihood += math.log(total)
            for visits, probability in found:
                share = probability / total
                expected.initial[visits[0][0]] += share
                for place, (state, number, own) in enumerate(visits):
                    expected.durations[state, number - 1] += share
                    if place:
                        expected.transition[visits[place - 1][0], state] += share
                    for symbol in own:
                        if symbol != hmmscope.MISSING:
                            expected.emission[state, symbol] += share
        counts, logs = DurationSteps(as_sequences(torch.from_numpy(symbols), 2), "free", RowRules({}, 0.0, {})).counts(
            params
        )
        assert logs == pytest.approx(log_likelihood, abs=1e-10)
        for ours, exact in zip(counts, expected, strict=True):
            np.testing.assert_allclose(ours, exact, atol=1e-10)


@pytest.mark.parametrize("family", ["free", "negative-binomial"])
def test_em_never_decreases(family):
    rng = numpy_generator(1, "durations")
    symbols, params, before = torch.from_numpy(rng.integers(0, 2, (5, 20))), _random(rng, 2, 3, 2), -math.inf
    if family == "negative-binomial":
        params = params._replace(
            durations=np.stack(
                [_negative_binomial(np.full(3, 1 / 3), row, np.ones(3, np.bool_)) for row in params.durations]
            )
        )
    settings = DurationSteps(as_sequences(symbols, 2), family, RowRules({}, 0.0, {}))
    for _ in range(6):
        counts, reached = settings.counts(params)
        assert reached >= before - 1e-9
        params, before = settings.maximise(params, counts), reached


def test_negative_binomial_durations():
    """(k + 1) P(k + 1) / P(k) of a negative binomial distribution is linear in k."""
    rng = numpy_generator(3, "durations")
    symbols = torch.from_numpy(rng.integers(0, 2, (5, 20)))
    found = fit_durations(symbols, 2, 2, 6, family="negative-binomial", num_restarts=2, max_iterations=3)
    durations = found.hmm.durations.numpy()
    slopes = np.diff(np.arange(1, 6) * durations[:, 1:] / durations[:, :-1], axis=1)
    np.testing.assert_allclose(slopes, slopes[:, :1].repeat(4, 1), atol=1e-9)


def test_fit_finds_the_durations():
    truth = SemiMarkovParams(
        np.array([0.5, 0.5]), np.eye(2)[::-1], np.array([[0.05, 0.05, 0.9], [0.8, 0.1, 0.1]]), np.eye(2) * 0.96 + 0.02
    )
    sampled = truth.hmm().sample_paths(np.arange(30), np.arange(40) == 0, 0)
    found = fit_durations(torch.as_tensor(sampled.observations), 2, 2, 3, num_restarts=2, max_iterations=25)
    order = found.hmm.emission[:, 0].argsort(descending=True)
    np.testing.assert_allclose(found.hmm.durations[order], truth.durations, atol=0.08)
    assert found.num_free == {"initial": 1, "transition": 0, "durations": 4, "emission": 2}
    again = hmmscope.log_likelihood(found.hmm, torch.as_tensor(sampled.observations)).sum()
    assert float(again) == pytest.approx(found.log_likelihood, abs=1e-5)  # HMM rounds to multiples of 2^-32


def test_visits_of_one_step_equal_a_markov_chain_without_self_transitions():
    symbols = torch.from_numpy(numpy_generator(2, "durations").integers(0, 3, (6, 15)))
    rows = np.array([0.5, 0.5]), np.eye(2)[::-1], np.array([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])
    options = {"num_restarts": 1, "max_iterations": 10, "tolerance": 0.0}
    start = SemiMarkovParams(rows[0], rows[1], np.ones((2, 1)), rows[2])
    ours = fit_durations(symbols, 2, 3, 1, start=start, **options)
    other = fit_baum_welch(symbols, 2, 3, start=hmmscope.HMM(*rows), **options)
    assert ours.log_likelihood == pytest.approx(other.log_likelihood, abs=1e-6)
    assert ours.bic == pytest.approx(other.bic, abs=1e-6)


def test_errors():
    for options, message in (
        ({"longest": 0}, "longest: must be at least 1"),
        ({"longest": 4000}, "longest: must be at most 4096 divided by num_states, got 4000"),
        ({"longest": 3, "family": "poisson"}, "family: .*poisson.*free, negative-binomial"),
        (
            {"longest": 3, "start": hmmscope.HMM([1], [[1]], [[0.5, 0.5]])},
            "start: must be a SemiMarkovHMM, or a list of its four",
        ),
        ({"longest": 3, "start": (np.ones(2) / 2,) * 4}, r"start.transition: must have the shape \(2, 2\)"),
    ):
        with pytest.raises(InputError, match=message):
            fit_durations([[0, 1]], 2, 2, **options)
